"""``Engine``: running bundles from Python."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import handmade
import onnx_models
from handmade import expected
from tenon import compile
from tenon.errors import BundleError, InputError
from tenon.runtime.bundle.checksum import checksum
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.compare import cosine_similarity, relative_error, signal_to_noise

X = np.linspace(-3, 3, 10, dtype=np.float32).reshape(1, 10)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(cache: Path, tmp_path: Path) -> Path:
    return handmade.bundle(cache=cache).save(tmp_path / "affine")


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(folder) as opened:
        yield opened


# --------------------------------------------------------------------------------------------------- running
def test_run(engine: Engine) -> None:
    np.testing.assert_array_equal(engine.run({"x": X})["y"], expected(X))
    np.testing.assert_array_equal(engine.run(X + 1)["y"], expected(X + 1))


def test_in_memory_bundle(cache: Path) -> None:
    with open_bundle(handmade.bundle(cache=cache)) as engine:
        np.testing.assert_array_equal(engine.run(X)["y"], expected(X))


def test_zero_copy(engine: Engine) -> None:
    engine.inputs["x"][...] = X
    outputs = engine.run(copy=False)
    assert np.shares_memory(outputs["y"], engine.outputs["y"])
    np.testing.assert_array_equal(engine.outputs["y"], expected(X))


def test_copies_survive_the_next_run(engine: Engine) -> None:
    first = engine.run(X)["y"]
    engine.run(X + 1)
    np.testing.assert_array_equal(first, expected(X))


def test_feeds_with_any_strides(engine: Engine) -> None:
    wide = np.zeros((1, 20), np.float32)
    wide[:, ::2] = X
    np.testing.assert_array_equal(engine.run(wide[:, ::2])["y"], expected(X))
    np.testing.assert_array_equal(engine.run(X[:, ::-1])["y"], expected(X[:, ::-1]))


def test_memory_is_aligned_and_described(engine: Engine) -> None:
    assert engine.inputs["x"].ctypes.data % 64 == 0
    assert engine.name == "affine"
    assert engine.memory.peak == 144
    assert engine.memory.bound == 40


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"z": X}, r"no input named 'z': this network's inputs are 'x' \(float32\[1,10\]\)"),
        ({}, "input 'x' is missing"),
        ({"x": X.astype(np.float64)}, r"float64 .* convert it with .astype\(np.float32\)"),
        ({"x": X[0]}, r"shape \[10\] and the network takes \[1,10\].*reshape"),
        ({"x": X[:, :5]}, r"shape \[1,5\] and the network takes \[1,10\]$"),
        ({"x": None}, "is a NoneType: give a NumPy array"),
    ],
)
def test_wrong_feeds(engine: Engine, feeds: dict[str, np.ndarray], words: str) -> None:
    before = engine.inputs["x"].copy()
    with pytest.raises(InputError, match=words):
        engine.run(feeds)
    np.testing.assert_array_equal(engine.inputs["x"], before)


def test_closed(folder: Path) -> None:
    engine = Engine(folder)
    engine.close()
    engine.close()
    with pytest.raises(InputError, match="closed"):
        engine.run(X)
    with pytest.raises(InputError, match="closed"):
        engine.fork()


# --------------------------------------------------------------------------------------------------- threads
def test_two_threads_with_separate_arenas(cache: Path) -> None:
    rounds, runs = 20_000, 20
    first = open_bundle(handmade.bundle(cache=cache, rounds=rounds))
    second = first.fork()
    wrong: list[int] = []

    def work(engine: Engine, sign: int) -> None:
        for i in range(runs):
            x = (X * sign + i).astype(np.float32)
            if not np.array_equal(engine.run(x)["y"], answers[sign, i]):
                wrong.append(i)

    answers = {(sign, i): first.run((X * sign + i).astype(np.float32))["y"] for sign in (1, -1) for i in range(runs)}
    threads = [threading.Thread(target=work, args=pair) for pair in ((first, 1), (second, -1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    # the recurrence of the generated C, one division per round and element
    np.testing.assert_allclose(answers[1, 0], expected(X, rounds), rtol=1e-6)


def test_runs_of_one_engine_in_two_threads_are_serialised(engine: Engine) -> None:
    wrong: list[int] = []

    def work(sign: int) -> None:
        for i in range(300):
            if not np.array_equal(engine.run(X * np.float32(sign * i))["y"], expected(X * np.float32(sign * i))):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(sign,)) for sign in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_run_releases_the_interpreter_lock(cache: Path) -> None:
    with open_bundle(handmade.bundle(cache=cache, rounds=100_000_000)) as engine:
        took: list[float] = []

        def work() -> None:
            start = time.perf_counter()
            engine.run(X)
            took.append(time.perf_counter() - start)

        thread = threading.Thread(target=work)
        thread.start()
        longest, last = 0.0, time.perf_counter()
        while thread.is_alive():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        thread.join()
    # if the run held the interpreter lock, this loop would stop until its end
    assert longest < took[0] / 2


# ---------------------------------------------------------------------------------------------------- opening
def test_rewritten_bundle_is_reloaded(cache: Path, tmp_path: Path) -> None:
    place = tmp_path / "affine"
    old = open_bundle(handmade.bundle(cache=cache).save(place))
    new = open_bundle(handmade.bundle(cache=cache, rounds=1).save(place))
    np.testing.assert_array_equal(old.run(X)["y"], expected(X))
    np.testing.assert_array_equal(new.run(X)["y"], expected(X, 1))


@pytest.mark.parametrize("name", ["libaffine.so", "affine.weights.bin"])
def test_damaged_file(folder: Path, name: str) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=f"{name} is damaged"):
        Engine(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(BundleError, match=f"{name} is damaged"):
        Engine(folder)
    path.write_bytes(b"")
    with pytest.raises(BundleError, match=f"{name} is damaged"):
        Engine(folder)
    path.unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        Engine(folder)


def test_sha256_is_verified_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "affine.weights.bin"
    content = bytearray(path.read_bytes())
    right = checksum(bytes(content))
    content[20] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr(
        "tenon.runtime.engine.files.checksum", lambda c: right if len(c) == len(content) else checksum(c)
    )
    Engine(folder).close()
    with pytest.raises(BundleError, match=r"affine.weights.bin is damaged"):
        Engine(folder, verify=True)


def test_bundle_saved_without_library(cache: Path, tmp_path: Path) -> None:
    folder = handmade.bundle(cache=cache).save(tmp_path / "affine", ("c", "weights"))
    with pytest.raises(BundleError, match=r"saved without libaffine\.so"):
        Engine(folder)


def test_bundle_for_another_machine(cache: Path, tmp_path: Path) -> None:
    bundle = handmade.bundle("riscv64", cache)
    with pytest.raises(BundleError, match=r"made for riscv64, .*--target host"):
        Engine(bundle.save(tmp_path / "affine"))
    with pytest.raises(BundleError, match=r"affine was made for riscv64"):
        open_bundle(bundle)


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"not a bundle: it holds no manifest.json"):
        Engine(tmp_path)
    with pytest.raises(BundleError, match="nowhere is not a bundle: there is no such file or folder"):
        Engine(tmp_path / "nowhere")
    (tmp_path / "net.onnx").write_bytes(bytes(1000))
    with pytest.raises(BundleError, match=r"net\.onnx is no bundle: give what 'tenon compile'"):
        open_bundle(tmp_path / "net.onnx")
    with pytest.raises(InputError, match=r"NoneType is no bundle: give a path, or what tenon\.compile returns"):
        open_bundle(None)  # type: ignore[arg-type]


def test_network_without_weights(tmp_path: Path) -> None:
    y = onnx_models.node("Relu", ["x"], ["y"])
    bundle = compile(onnx_models.model([y], {"x": (1, 4)}, ["y"]).SerializeToString())
    with Engine(bundle.save(tmp_path / "relu")) as engine:
        assert engine.memory.constant == 0
        np.testing.assert_array_equal(engine.run(X[:, :4])["y"], X[:, :4].clip(0))


# -------------------------------------------------------------------------------------------------- comparing
def test_relative_error() -> None:
    a = np.array([1.0, -4.0, np.nan, np.inf])
    assert relative_error(a, a) == 0
    assert relative_error(np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 0.5
    assert relative_error(np.array([1.0]), np.array([np.nan])) == math.inf
    assert relative_error(np.array([1.0]), np.array([0.0])) == math.inf
    assert relative_error(np.zeros(2), np.zeros(3)) == math.inf
    assert relative_error(np.zeros(0), np.zeros(0)) == 0
    assert relative_error(np.array([250], np.uint8), np.array([255], np.uint8)) == pytest.approx(5 / 255)


def test_cosine_similarity() -> None:
    assert cosine_similarity(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0
    assert cosine_similarity(np.array([2.0, 2.0]), np.array([1.0, 1.0])) == pytest.approx(1)
    assert cosine_similarity(np.zeros(2), np.zeros(2)) == 1
    assert cosine_similarity(np.ones(2), np.zeros(2)) == 0


def test_signal_to_noise() -> None:
    assert signal_to_noise(np.array([1.1]), np.array([1.0])) == pytest.approx(20)
    assert signal_to_noise(np.ones(3), np.ones(3)) == math.inf
    assert signal_to_noise(np.ones(3), np.zeros(3)) == -math.inf
