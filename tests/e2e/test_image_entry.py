"""The C entry points for images: the program in docs/howto/images.md, and their results compared with Python's."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onnx_models
import tenon
from detectors import bright_areas
from installed import tenon as command
from real import DIGITS, ROOT
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.detect import detections
from tenon.runtime.engine.image import read_image


@pytest.fixture(scope="module")
def areas() -> Bundle:
    how = {"scale": 1 / 255, "fit": "letterbox", "mean": (1, 2, 3)}
    return tenon.compile(bright_areas(), name="areas", preprocess=how, labels=["red", "blue?"])


@pytest.fixture(scope="module")
def folder(areas: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return areas.save(tmp_path_factory.mktemp("areas") / "out", (*areas.parts, "weights-text", "image"))


def _photo(high: int, wide: int, path: Path) -> Array:
    ramp = np.linspace(0, 200, high * wide * 3).reshape(high, wide, 3)
    pixels = (ramp + np.random.default_rng(high).integers(0, 56, ramp.shape)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def _compiler() -> str:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang here")
    return compiler


def test_program_in_the_documentation(areas: Bundle, folder: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "images.md").read_text(encoding="utf-8")
    program = re.findall(r"^```c\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(program) == 1
    (tmp_path / "main.c").write_text(program[0])
    flags = [
        "-std=c99",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffp-contract=off",
        f"-I{folder}",
    ]
    sources = ["main.c", str(folder / "areas_image.c"), str(folder / "areas.o")]
    build = [_compiler(), *flags, *sources, "-o", "main", "-lm"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pixels = _photo(480, 640, tmp_path / "frame.png")
    done_run = subprocess.run([tmp_path / "main"], input=pixels.tobytes(), capture_output=True, check=True)
    with tenon.open(areas) as engine:
        detections = tenon.detect(engine, tmp_path / "frame.png")
    assert len(detections) > 3
    expected = [f"{engine.manifest.labels[d.kind]} {d.score:.9g} {d.box[0]:.17g}" for d in detections]
    assert done_run.stdout.decode().splitlines() == expected


class _Found(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_long), ("score", ctypes.c_float), *((e, ctypes.c_double) for e in "ltrb")]


def test_sizes_channels_and_limits(areas: Bundle, folder: Path, tmp_path: Path) -> None:
    """Two networks link together; grey and colour images; less room than objects; images that are none."""
    nodes = [onnx_models.node("Relu", ["x"], ["y"])]
    other = tenon.compile(onnx_models.model(nodes, {"x": (1, 1, 4, 4)}, ["y"]).SerializeToString(), name="other")
    others = other.save(tmp_path / "other", (*other.parts, "image"))
    library = tmp_path / "both.so"
    flags = ["-std=c99", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-I{folder}", f"-I{others}"]
    sources = [
        str(place / f"{name}{end}")
        for place, name in ((folder, "areas"), (others, "other"))
        for end in ("_image.c", ".o")
    ]
    subprocess.run([_compiler(), *flags, *sources, "-o", str(library), "-lm"], check=True)
    loaded = ctypes.CDLL(str(library))
    weights = np.fromfile(folder / "areas.weights.bin", np.uint8)
    memory = areas.manifest({}, compiled=False).memory
    regions = [np.zeros(n + 64, np.uint8) for n in (weights.size, memory.mutable, memory.activations)]
    starts = [a.ctypes.data + -a.ctypes.data % 64 for a in regions]
    ctypes.memmove(starts[0], weights.ctypes.data, weights.size)
    loaded.areas_detect.restype = ctypes.c_long
    with tenon.open(areas) as engine:
        preprocessing = engine.manifest.preprocessing["x"]
        for high, wide, channels in ((50, 70, 3), (5, 300, 3), (32, 32, 3), (40, 30, 1)):
            pixels = _photo(high, wide, tmp_path / "photo.png")
            if channels == 1:
                pixels = np.ascontiguousarray(pixels[:, :, 0])
                Image.fromarray(pixels).save(tmp_path / "photo.png")
            size = ctypes.c_long(high), ctypes.c_long(wide)
            call = [ctypes.c_void_p(s) for s in starts]
            assert loaded.areas_image(ctypes.c_void_p(pixels.ctypes.data), *size, channels, *call) == 0
            seen = read_image(tmp_path / "photo.png", (1, 3, 32, 32), preprocessing)
            expected = detections(engine, seen, engine.run({"x": seen.pixels}), 0.3, 0.2)
            room, limits = (_Found * 200)(), (ctypes.c_double(0.3), ctypes.c_double(0.2))
            count = loaded.areas_detect(call[1], *size, *limits, room, ctypes.c_long(200))
            got = [(f.kind, f.score, (f.l, f.t, f.r, f.b)) for f in room[:count]]
            assert got == [(d.kind, d.score, d.box) for d in expected]
            assert loaded.areas_detect(call[1], *size, *limits, room, ctypes.c_long(1)) == min(1, len(expected))
        assert loaded.areas_detect(call[1], *size, *limits, room, ctypes.c_long(-1)) == 0
        for channels, bad in ((2, size), (3, (ctypes.c_long(0), ctypes.c_long(4)))):
            assert loaded.areas_image(ctypes.c_void_p(pixels.ctypes.data), *bad, channels, *call) == -2
    loaded.areas_label.restype = ctypes.c_char_p
    assert [loaded.areas_label(ctypes.c_long(i)) for i in (-1, 0, 1, 2)] == [None, b"red", b"blue?", None]


def test_networks_without_an_image_are_refused(tmp_path: Path) -> None:
    nodes = [onnx_models.node("Add", ["a", "b"], ["y"])]
    model = onnx_models.model(nodes, {"a": (1, 3, 8, 8), "b": (1, 3, 8, 8)}, ["y"]).SerializeToString()
    with pytest.raises(InputError, match="does not take exactly one image: leave out --emit image"):
        tenon.compile(model, name="sum").save(tmp_path / "out", ("image",))
    assert not (tmp_path / "out").exists()


def test_command(tmp_path: Path) -> None:
    done = command("compile", DIGITS / "digits.onnx", "--emit", "image", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"digits_image.c", "digits_image.h", "digits.o"} <= {path.name for path in (tmp_path / "out").iterdir()}
