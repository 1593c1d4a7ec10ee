"""Bundles with changed files are rejected or give unchanged results; no crashes and no wrong results."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from tenon.errors import BundleError, InputError, TenonError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.checksum import checksum
from tenon.runtime.engine.detect import detections, image_input
from tenon.runtime.engine.image import InputImage

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
X = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
ROW, FACTOR = 65536, 0x9E3779B97F4A7C15


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that uses as many manifest fields as possible."""
    folder = tmp_path_factory.mktemp("digits") / "digits"
    shapes = [{"image": (1, 1, 8, 8)}, {"image": (2, 1, 8, 8)}]
    return tenon.compile(DIGITS, name="digits", shapes=shapes, profile=True, threads=2).save(folder)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "digits"))


def leaves(content: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all leaf values and empty containers."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    if not items:
        yield where
    for name, item in items:
        yield from leaves(item, (*where, name))


def replaced(content: Any, where: tuple[str | int, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(content))
    at = copy
    for name in where[:-1]:
        at = at[name]
    at[where[-1]] = value
    return copy


def at(content: Any, where: tuple[str | int, ...]) -> Any:
    for name in where:
        content = content[name]
    return content


def others(value: Any) -> list[Any]:
    """Other values for a field."""
    return [other for other in _candidates(value) if type(other) is not type(value) or other != value]


def _candidates(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2 + 64, 0, -1, 2**31, 2**40, 2**70]
    if isinstance(value, float):
        return [value + 1, -1.0]
    if isinstance(value, str):
        return [value + "x", "", "x", "f64"]
    return [[], {}, None, 7, "x"]


def write_signed(folder: Path, content: Any) -> None:
    """Write the manifest with a valid digest."""
    blank = json.dumps({**content, "digest": ""}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    digest = blake2b(blank.encode(), digest_size=32).hexdigest()
    text = blank.replace('\n "digest": ""', f'\n "digest": "{digest}"', 1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def answers(folder: Path) -> list[Array]:
    """The results and properties of an engine."""
    with tenon.open(folder, threads=2) as engine:
        results = [engine.run(X), engine.run(np.concatenate([X, X]))]
        assert (np.diff(engine.timestamps().astype(np.int64)) >= 0).all()
        detected(engine)
        return [np.array(a) for one in results for a in one.values()]


def detected(engine: tenon.Engine) -> None:
    try:
        name = image_input(engine)
        seen = InputImage(X, (8, 8), (0.0, 0.0, 8.0, 8.0), (8, 8))
        detections(engine, seen, engine.run({name: X}))
    except InputError:
        return


# ---------------------------------------------------------------------------------------------------- manifest
def test_every_change_of_the_manifest_is_detected(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    answers(folder)
    count = 0
    for where in leaves(content):
        for value in others(at(content, where))[:2]:
            changed = json.dumps(replaced(content, where, value), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
            (folder / "manifest.json").write_text(changed, encoding="utf-8")
            with pytest.raises(BundleError):
                tenon.open(folder)
            count += 1
    assert count > 400


def test_every_flipped_byte_of_the_manifest_is_detected(folder: Path) -> None:
    whole, rng = (folder / "manifest.json").read_bytes(), random.Random(0)
    for place in rng.sample(range(len(whole)), 400):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        (folder / "manifest.json").write_bytes(changed)
        with pytest.raises(BundleError):
            tenon.open(folder)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / "manifest.json").write_bytes(whole[:length])
        with pytest.raises(BundleError):
            tenon.open(folder)


def test_changes_with_a_valid_digest_are_rejected_or_harmless(folder: Path) -> None:
    """A changed manifest with a valid digest cannot cause out-of-bounds memory accesses."""
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    write_signed(folder, content)
    expected = answers(folder)
    refused, kinds = 0, set[type[TenonError]]()
    for where in leaves(content):
        if where[0] == "digest":
            continue
        every = others(at(content, where))
        for value in every if where[0] != "nodes" else every[:1]:
            write_signed(folder, replaced(content, where, value))
            try:
                actual = answers(folder)
            except TenonError as error:
                kinds.add(type(error))
                refused += 1
                continue
            assert all(np.array_equal(a, b) for a, b in zip(expected, actual, strict=True)), where
    assert kinds <= {BundleError, InputError}
    assert refused > 200


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("memory", "mutable"), 64),
        (("memory", "activations"), 0),
        (("memory", "alignment"), 1),
        (("inputs", 0, "offset"), 1 << 20),
        (("inputs", 0, "shape"), [1, 1, 4, 16]),
        (("outputs", 0, "dtype"), "i32"),
        (("bindings", 1, "inputs", 0, "offset"), 64),
        (("threads",), 64),
        (("entry",), "digits_2"),
    ],
)
def test_sizes_are_compared_with_the_library(folder: Path, where: tuple[str | int, ...], value: Any) -> None:
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert at(content, where) != value
    every = replaced(content, where, value)
    if where[0] in ("inputs", "outputs", "entry"):  # stated twice
        every = replaced(every, ("bindings", 0, *where), value)
    write_signed(folder, every)
    with pytest.raises(BundleError):
        tenon.open(folder)


HEADS = {"kind": "rows", "outputs": ["probabilities"], "corners": "xyxy", "pixels": None, "background": -1}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("preprocessing", {"nowhere": {}}, "preprocessing of 'nowhere', which is not an input"),
        ("heads", {**HEADS, "outputs": ["nowhere"]}, "detections in 'nowhere', which is no output"),
        ("heads", {**HEADS, "kind": "boxes"}, "detections in 1 outputs"),
        ("heads", {**HEADS, "outputs": []}, "detections in 0 outputs"),
    ],
)
def test_contradictions_are_rejected(folder: Path, name: str, value: Any, words: str) -> None:
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    write_signed(folder, {**content, name: value})
    with pytest.raises(BundleError, match=words):
        tenon.open(folder)
    write_signed(folder, {**content, "heads": HEADS})
    tenon.open(folder).close()


def test_bundle_of_another_format_is_rejected_and_can_be_replaced(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    del content["digest"]
    (folder / "manifest.json").write_text(json.dumps({**content, "format": 2, "novel": 7}), encoding="utf-8")
    with pytest.raises(BundleError, match="has format 2 and this Tenon reads 1: install a newer Tenon"):
        tenon.open(folder)
    tenon.compile(DIGITS, name="digits").save(folder)
    with tenon.open(folder) as engine:
        assert engine.run(X)["probabilities"].shape == (1, 10)


# --------------------------------------------------------------------------------------------- other files
@pytest.mark.parametrize("name", ["libdigits.so", "digits.weights.bin"])
def test_changed_and_truncated_files(folder: Path, name: str) -> None:
    path, rng = folder / name, random.Random(0)
    whole = path.read_bytes()
    places = [0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(60))]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(BundleError, match=f"{name} is damaged"):
            tenon.open(folder)
    for content in (b"", whole[:1], whole[:-1], whole + b"\0", whole[: len(whole) // 2], bytes(len(whole))):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=f"{name} is damaged"):
            tenon.open(folder)


def test_files_of_another_bundle(folder: Path, tmp_path: Path) -> None:
    other = tenon.compile(DIGITS, name="digits", threads=2, strassen=0, precision="fp16").save(tmp_path / "other")
    for name in ("libdigits.so", "digits.weights.bin", "manifest.json"):
        mixed = Path(shutil.copytree(folder, tmp_path / f"mixed-{name}"))
        shutil.copy(other / name, mixed / name)
        with pytest.raises(BundleError):
            tenon.open(mixed)


# ---------------------------------------------------------------------------------------------------- checksum
@pytest.mark.parametrize("size", [0, 1, ROW - 1, ROW, ROW + 1, 5 * ROW + 17])
def test_checksum_detects_changes(size: int) -> None:
    rng = np.random.default_rng(size)
    data = rng.integers(0, 256, size, np.uint8)
    known = {checksum(data)}
    for place in rng.integers(0, size, 40) if size else ():
        changed = data.copy()
        changed[place] ^= 1 << int(rng.integers(8))
        digest = checksum(changed)
        assert digest not in known
        assert digest == checksum(changed.tobytes()) == checksum(changed.data)
    rows = np.arange(4 * ROW, dtype=np.uint32).astype(np.uint8).reshape(4, ROW)
    rows[1] += 1
    assert checksum(rows.reshape(-1)) != checksum(rows[[1, 0, 2, 3]].reshape(-1))
    assert checksum(np.append(data, np.uint8(0))) != checksum(data)


def test_checksum_definition() -> None:
    data = np.random.default_rng(0).integers(0, 256, 3 * ROW + 5, np.uint8).tobytes()
    folded = [0] * 8192
    for row in range(3):
        for i in range(8192):
            word = int.from_bytes(data[row * ROW + 8 * i : row * ROW + 8 * i + 8], "little")
            folded[i] = (folded[i] * FACTOR + word) % 2**64
    folded[0] = (folded[0] * FACTOR + int.from_bytes(data[3 * ROW :], "little")) % 2**64
    sums = [0] * 64
    for i, word in enumerate(folded):
        mixed = (word ^ word >> 32) * FACTOR * (2 * i + 1) % 2**64
        sums[i % 64] = (sums[i % 64] + (mixed ^ mixed >> 32)) % 2**64
    assert (
        checksum(data)
        == blake2b(b"".join(w.to_bytes(8, "little") for w in (*sums, len(data))), digest_size=8).hexdigest()
    )


def test_checksum_detects_flips_of_highest_bits() -> None:
    """In two columns that are added: differences by 2^63 would cancel without the mixing."""
    data = np.random.default_rng(3).integers(0, 256, ROW + 4096, np.uint8)
    for first in (0, ROW):
        changed = data.copy()
        changed[[first + 7, first + 7 + 512]] ^= 0x80
        assert checksum(changed) != checksum(data)
