"""Samples of WAV files and of images with focus; a quantised network compiled at once."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

import tenon
from networks_to_quantise import built
from tenon.cli.app import app
from tenon.errors import InputError
from tenon.network.graph.graph import Graph
from tenon.tools.quantization.samples import read_samples


def listener(dims: list[int]) -> Graph:
    """A network of one input of ``dims``."""
    return built([helper.make_node("Relu", ["x"], ["y"])], {}, dims, dims)


def sound(path: Path, numbers: np.ndarray, width: int, channels: int = 1) -> None:
    """A WAV file of integers of ``width`` bytes."""
    data = (numbers.astype("<i8") + (128 if width == 1 else 0)).view(np.uint8).reshape(-1, 8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, 16000, 0, "NONE", "not compressed"))
        file.writeframes(data)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sounds_are_cut_into_pieces(width: int, tmp_path: Path) -> None:
    step = 2.0 ** (1 - 8 * width)
    numbers = np.array([-(2 ** (8 * width - 1)), -1, 0, 1, 2, 3, 5])
    sound(tmp_path / "a.wav", numbers, width)
    given = read_samples(listener([1, 3]), tmp_path, 10)
    assert [each["x"].tolist() for each in given] == [[[-1.0, -step, 0.0]], [[step, 2 * step, 3 * step]]]


def test_channels_are_averaged_and_short_sounds_end_in_silence(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav", np.array([0, 16384, -16384, -16384]), 2, channels=2)
    (given,) = read_samples(listener([1, 4, 1]), tmp_path, 10)
    assert given["x"].reshape(-1).tolist() == [0.25, -0.5, 0.0, 0.0]
    (tmp_path / "b.wav").write_bytes(b"RIFF none")
    with pytest.raises(InputError, match=r"b\.wav: not a readable WAV file"):
        read_samples(listener([1, 4, 1]), tmp_path, 10)


def test_focus_makes_channels_of_rows_and_columns(tmp_path: Path) -> None:
    """YOLOv5's focus layer: x[::2, ::2], x[1::2, ::2], x[::2, 1::2], x[1::2, 1::2]."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    (given,) = read_samples(listener([1, 12, 2, 3]), tmp_path, 1, preprocess={"focus": True, "scale": 0.5})
    planes = pixels.transpose(2, 0, 1) * 0.5
    wanted = np.concatenate([planes[:, r::2, c::2] for r, c in ((0, 0), (1, 0), (0, 1), (1, 1))])
    np.testing.assert_array_equal(given["x"][0], wanted)
    with pytest.raises(InputError, match=r"focus is for inputs \[1, 12, H, W\]"):
        read_samples(listener([1, 3, 4, 6]), tmp_path, 1, preprocess={"focus": True})


def _filtered(pixels: np.ndarray, size: int, low: float, high: float) -> np.ndarray:
    """The first axis from ``low`` to ``high`` as ``size`` averages under triangles: a bilinear filter, antialiased."""
    step = (high - low) / size
    centres = low + (np.arange(size) + 0.5) * step
    reach = max(step, 1.0)
    weights = np.maximum(0, 1 - np.abs(np.arange(len(pixels)) + 0.5 - centres[:, None]) / reach)
    return np.rint(np.tensordot(weights / weights.sum(1, keepdims=True), pixels, 1))


def _resized(pixels: np.ndarray, high: int, wide: int, box: tuple[float, float, float, float]) -> np.ndarray:
    left, top, right, bottom = box
    columns = _filtered(pixels.swapaxes(0, 1), wide, left, right).swapaxes(0, 1)
    return _filtered(columns, high, top, bottom)


@pytest.mark.parametrize("fit", ["stretch", "bgr", "crop", "letterbox", "focus"])
def test_pixels_are_those_of_an_independent_computation(fit: str, tmp_path: Path) -> None:
    """Pillow rounds weights of filters, which a grey level may depend on."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    whole, means, scales = (0.0, 0.0, 50.0, 30.0), np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.25, 2.0])
    high, wide, changes = 8, 12, {"mean": means.tolist(), "scale": scales.tolist()}
    if fit == "crop":  # of 10 rows, 50 x 30 of which 36 x 24 are shown
        wanted, changes = _resized(pixels, high, wide, (7.0, 3.0, 43.0, 27.0)), {**changes, "fit": fit, "resize": 10}
    elif fit == "letterbox":  # 12 x 7 pixels below no row
        wanted, changes = np.full((high, wide, 3), 9.0), {**changes, "fit": fit, "border": 9}
        wanted[:7] = _resized(pixels, 7, wide, whole)
    elif fit == "focus":
        wanted, changes = _resized(pixels, 2 * high, 2 * wide, whole), {**changes, "focus": True}
    else:
        wanted = _resized(pixels, high, wide, whole)
        changes = {**changes, "channels": "bgr" if fit == "bgr" else "rgb"}
        wanted = wanted[:, :, ::-1] if fit == "bgr" else wanted
    parts = [wanted]
    if fit == "focus":
        parts = [wanted[row::2, column::2] for column in (0, 1) for row in (0, 1)]
    shape = [1, 3 * len(parts), high, wide]
    (given,) = read_samples(listener(shape), tmp_path, 1, preprocess=changes)
    levels = given["x"][0].transpose(1, 2, 0) / np.tile(scales, len(parts)) + np.tile(means, len(parts))
    np.testing.assert_allclose(levels, np.concatenate(parts, -1), atol=1.001)


def test_a_quantised_network_is_compiled_at_once(tmp_path: Path) -> None:
    from tenon.formats.exporters.save import save

    weights = {"w": np.random.default_rng(0).normal(0, 1, (3, 4))}
    save(built([helper.make_node("MatMul", ["x", "w"], ["y"])], weights, [1, 3], [1, 4]), tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(0, 1, (4, 1, 3)).astype(np.float32))
    words = [
        "quantize",
        str(tmp_path / "net.onnx"),
        "--data",
        str(tmp_path / "x.npy"),
        "--method",
        "min-max",
        "--rounding",
        "nearest",
        "--no-range-search",
        "-o",
    ]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "net.tenon"), "--target", "aarch64"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, [*words, str(tmp_path / "net")])
    assert done.exit_code == 0, done.output
    with tenon.open(tmp_path / "net") as engine:
        assert engine.run({"x": np.ones((1, 3), np.float32)})["y"].shape == (1, 4)
    done = CliRunner().invoke(app, [*words, str(tmp_path / "net.bin")])
    assert "give a name that ends in .onnx, .tflite, .tmfile, .tenon" in str(done.exception or done.output)
