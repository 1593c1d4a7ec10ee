"""Networks with inputs of changing size as users run them: compiled once by the command line, and run at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sized_networks
import tenon
from installed import succeeds
from installed import tenon as command
from sized_models import by_onnxruntime

RANGE = ("--shape", "L=1..32")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of a text encoder, and its bundle for 1 to 32 words."""
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "encoder.onnx").write_bytes(sized_networks.encoder().SerializeToString())
    succeeds("compile", "encoder.onnx", *RANGE, "--profile", "--no-tuning", "-o", "out", cwd=folder)
    return folder


def words(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(count)
    return {"ids": rng.integers(0, 50, (1, count)), "mask": np.ones((1, count), np.int64)}


def save_words(path: Path) -> None:
    """Two samples of nine words."""
    arrays: dict[str, Any] = {name: np.stack([array, array]) for name, array in words(9).items()}
    np.savez(path, **arrays)


def test_python(place: Path) -> None:
    """Three lengths and more by one engine, beside ONNX Runtime with its own memory for each."""
    with tenon.open(place / "out") as engine:
        for count in (32, 1, 7, 20):
            results = engine.run(words(count))
            for name, right in by_onnxruntime(sized_networks.encoder(), words(count)).items():
                assert results[name].shape == right.shape
                np.testing.assert_allclose(results[name], right, rtol=1e-4, atol=1e-5)


def test_run(place: Path) -> None:
    for count in (3, 31):
        for name, array in words(count).items():
            np.save(place / f"{name}.npy", array)
        succeeds("run", "out", "--input", "ids=ids.npy", "--input", "mask=mask.npy", "--output", "y.npz", cwd=place)
        results = np.load(place / "y.npz")
        for name, right in by_onnxruntime(sized_networks.encoder(), words(count)).items():
            np.testing.assert_allclose(results[name], right, rtol=1e-4, atol=1e-5)


def test_checks_and_times(place: Path) -> None:
    """Samples of random sizes are compared with ONNX Runtime; times are of the largest size, or of a stated one."""
    text = succeeds("validate", "out", "--against", "onnxruntime:encoder.onnx", cwd=place)
    assert text.count("passed") == len(sized_networks.encoder().graph.output)
    save_words(place / "words.npz")
    assert "1.00000" in succeeds("compare", "out", "onnxruntime:encoder.onnx", "--data", "words.npz", cwd=place)
    for size in ((), ("--shape", "L=5")):
        assert "median of" in succeeds("benchmark", "out", *size, cwd=place)
    assert "MatMul" in succeeds("profile", "out", "--shape", "L=4", cwd=place)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a detector for images of 32 to 96 pixels, with channels last, and an image of noise."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "detector.onnx").write_bytes(sized_networks.detector().SerializeToString())
    sizes = ("--shape", "H=32..96:32", "--shape", "W=32..96:32", "--data-format", "x=NHWC")
    how = ("--mean", "127.5", "--scale", "1/127.5", "--no-tuning")
    succeeds("compile", "detector.onnx", *sizes, *how, "-o", "out", cwd=folder)
    noise = np.random.default_rng(0).integers(0, 256, (150, 220, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "photo.png")
    return folder


@pytest.mark.parametrize(
    ("size", "used"),
    [((96, 64), (64, 96)), ((220, 150), (64, 96)), ((40, 80), (96, 32)), ((64, 64), (64, 64)), ((3, 90), (96, 32))],
)
def test_images(photos: Path, size: tuple[int, int], used: tuple[int, int]) -> None:
    """An image keeps its size as far as the ranges go."""
    photo = Image.open(photos / "photo.png").resize(size)
    photo.save(photos / "resized.png")
    succeeds("run", "out", "resized.png", "--output", "y.npz", cwd=photos)
    pixels = np.asarray(photo.resize(used[::-1], Image.Resampling.BILINEAR), np.float32) / 127.5 - 1
    right = by_onnxruntime(sized_networks.detector(), {"x": pixels.transpose(2, 0, 1)[None]})
    results = np.load(photos / "y.npz")
    for name, array in right.items():
        np.testing.assert_allclose(results[name], array, rtol=1e-3, atol=1e-3)
    assert "x  f32[1,H:32..96:32,W:32..96:32,3]" in succeeds("inspect", "out", cwd=photos)


REFUSED = {
    ("benchmark", "out", "--shape", "L=33"): "size 'L' is 33, and the network was compiled for 1..32",
    ("benchmark", "out", "--shape", "M=3"): "--shape M: out has L:1..32: a bundle's shapes are fixed",
    (
        "compile",
        "encoder.onnx",
        *RANGE,
        "--emit",
        "exe",
        "-o",
        "x",
    ): "--emit exe: its program takes inputs of fixed shapes",
    ("validate", "encoder.onnx", *RANGE, "--layers"): "layers are compared for fixed shapes only, and runs choose L",
    (
        "quantize",
        "encoder.onnx",
        *RANGE,
        "--data",
        "words.npz",
        "-o",
        "q.onnx",
    ): "cannot be quantised yet: give numbers",
}


@pytest.mark.parametrize("given", REFUSED, ids=lambda given: "-".join(given[:2] + given[-1:]))
def test_what_is_refused(place: Path, given: tuple[str, ...]) -> None:
    save_words(place / "words.npz")
    done = command(*given, cwd=place)
    assert (done.returncode, REFUSED[given] in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
