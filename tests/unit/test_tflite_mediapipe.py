"""MediaPipe's custom operators and RFFT2D, compared with definitions in NumPy, element by element."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tflite_models import Model

RNG = np.random.default_rng(1)
SAME, VALID = 1, 2


def custom(
    type: str,
    operands: Sequence[Array],
    *outputs: Sequence[int],
    version: int = 1,
    fields: Sequence[int] = (),
    **options: Any,
) -> list[Array]:
    """The operator of inputs ``x0``, ``x1``, compiled; ``fields`` are the integers of a C structure."""
    model = Model()
    inputs = [model.tensor(f"x{i}", a.shape) for i, a in enumerate(operands)]
    made = [model.tensor(f"y{i}", dims) for i, dims in enumerate(outputs)]
    packed = struct.pack(f"<{len(fields)}i", *fields)
    model.add(type, inputs, made, version=version, custom_bytes=packed, **options)
    net = tenon.open(tenon.compile(model.bytes(inputs, made), name="net", no_tuning=True))
    return list(net.run({f"x{i}": a for i, a in enumerate(operands)}).values())


def uniform(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


# --------------------------------------------------------------------------------------------------- windows
def transposed(x: Array, w: Array, bias: Array, padding: int, strides: tuple[int, int]) -> Array:
    sizes, kernel = x.shape[1:3], w.shape[1:3]
    cut = [
        max(0, k - (n - 1) % s - 1) if padding == SAME else 0 for n, k, s in zip(sizes, kernel, strides, strict=True)
    ]
    image = [s * (n - 1) + k - c for n, k, s, c in zip(sizes, kernel, strides, cut, strict=True)]
    y = np.zeros((x.shape[0], *image, w.shape[0]), np.float64) + bias
    for i, j, a, b in np.ndindex(*sizes, *kernel):
        row, column = i * strides[0] - cut[0] // 2 + a, j * strides[1] - cut[1] // 2 + b
        if 0 <= row < image[0] and 0 <= column < image[1]:
            y[:, row, column] += x[:, i, j].astype(np.float64) @ w[:, a, b].T
    return y.astype(np.float32)


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(("kernel", "strides"), [((2, 2), (2, 2)), ((3, 4), (2, 3)), ((1, 2), (2, 1))])
def test_transposed_convolution_with_bias(padding: int, kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    x, w, bias = uniform(1, 4, 5, 3), uniform(2, *kernel, 3), uniform(2)
    expected = transposed(x, w, bias, padding, strides)
    fields = (padding, strides[1], strides[0])
    (y,) = custom("Convolution2DTransposeBias", [x, w, bias], expected.shape, fields=fields)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def pooled(x: Array, padding: int, kernel: tuple[int, int], strides: tuple[int, int]) -> tuple[Array, Array]:
    n, *sizes, channels = x.shape
    same = [-(-size // s) for size, s in zip(sizes, strides, strict=True)]
    counts = same if padding == SAME else [(n - k) // s + 1 for n, k, s in zip(sizes, kernel, strides, strict=True)]
    before = [max(0, (c - 1) * s + k - n) // 2 for n, k, s, c in zip(sizes, kernel, strides, counts, strict=True)]
    y, at = (np.zeros((n, *counts, channels), np.float32) for _ in range(2))
    for b, i, j, c in np.ndindex(*y.shape):
        best = (float(np.finfo(np.float32).min), 0)
        for k in range(kernel[0] * kernel[1]):
            row, column = i * strides[0] - before[0] + k // kernel[1], j * strides[1] - before[1] + k % kernel[1]
            if 0 <= row < sizes[0] and 0 <= column < sizes[1] and x[b, row, column, c] > best[0]:
                best = (float(x[b, row, column, c]), k)
        y[b, i, j, c], at[b, i, j, c] = best[0], best[1] + 0.1
    return y, at


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(("kernel", "strides"), [((2, 2), (2, 2)), ((3, 2), (2, 1))])
def test_pooling_keeps_positions(padding: int, kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    x = RNG.integers(-3, 3, (2, 5, 6, 3)).astype(np.float32)
    expected, places = pooled(x, padding, kernel, strides)
    fields = (padding, strides[1], strides[0], kernel[1], kernel[0], 0)
    y, at = custom("MaxPoolingWithArgmax2D", [x], expected.shape, expected.shape, fields=fields)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(at, places, rtol=1e-6)


def test_unpooling_puts_elements_back() -> None:
    x, at = uniform(1, 2, 3, 4), RNG.integers(0, 4, (1, 2, 3, 4)) + np.float32(0.1)
    expected = np.zeros((1, 4, 6, 4), np.float32)
    for _, i, j, c in np.ndindex(*x.shape):
        row, column = divmod(int(at[0, i, j, c]), 2)
        expected[0, 2 * i + row, 2 * j + column, c] = x[0, i, j, c]
    (y,) = custom("MaxUnpooling2D", [x, at.astype(np.float32)], expected.shape, fields=(SAME, 2, 2, 2, 2, 0))
    np.testing.assert_array_equal(y, expected)


def test_unpooling_of_overlapping_windows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="windows of 3x3 with strides of 2x2 are not supported"):
        custom("MaxUnpooling2D", [uniform(1, 2, 2, 1)] * 2, (1, 6, 6, 1), fields=(SAME, 2, 2, 3, 3, 0))


# ------------------------------------------------------------------------------------------------ transforms
def warped(image: Array, matrix: Array, rows: int, columns: int, *, centres: bool) -> Array:
    _, height, width, channels = image.shape
    m = matrix.reshape(4, 4).astype(np.float64)[:2]
    if centres:
        m[:, 3] += m[:, 0] / 2 + m[:, 1] / 2 - 0.5
    y = np.zeros((1, rows, columns, channels))
    padded = np.pad(image[0].astype(np.float64), [(0, 1), (0, 1), (0, 0)])
    for i, j in np.ndindex(rows, columns):
        across, down = m @ [j, i, 0, 1]
        if 0 <= across <= width - 1 and 0 <= down <= height - 1:
            left, top = math.floor(across), math.floor(down)
            a, b = across - left, down - top
            upper = (1 - a) * padded[top, left] + a * padded[top, left + 1]
            lower = (1 - a) * padded[top + 1, left] + a * padded[top + 1, left + 1]
            y[0, i, j] = (1 - b) * upper + b * lower
    return y.astype(np.float32)


MATRIX = np.array([0.6, 0.25, 0, 0.5, -0.375, 0.7, 0, 1.25, 0, 0, 1, 0, 0, 0, 0, 1], np.float32)
IDENTITY = np.eye(4, dtype=np.float32).ravel()


@pytest.mark.parametrize("matrix", [MATRIX, IDENTITY], ids=["turned", "same"])
@pytest.mark.parametrize("type", ["TransformTensor", "TransformTensorBilinear"])
def test_images_are_transformed(type: str, matrix: Array) -> None:
    image, newer = uniform(1, 6, 7, 2), type == "TransformTensorBilinear"
    options: dict[str, Any] = {"mode": "bilinear", "output_size": [5, 8]}
    if newer:
        options = {"output_height": 5, "output_width": 8}
    (y,) = custom(type, [image, matrix.reshape(1, 4, 4)], (1, 5, 8, 2), version=1 + newer, **options)
    np.testing.assert_allclose(y, warped(image, matrix, 5, 8, centres=newer), atol=1e-5)


@pytest.mark.parametrize(
    ("version", "shape", "options"),
    [
        (1, (1, 1, 1, 12), {"dimensions": 3, "scale": 2.0}),
        (1, (1, 1, 1, 12), {"dimensions": 2, "scale": 0.5}),
        (2, (1, 4, 3), {}),
        (2, (1, 6, 2), {}),
    ],
)
def test_landmarks_are_transformed(version: int, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x, matrix = uniform(*shape), MATRIX.reshape(4, 4)
    points = x.reshape(-1, options.get("dimensions", shape[-1]))
    expected = points.copy()
    expected[:, :2] = points[:, :2] @ matrix[:2, :2].T + matrix[:2, 3] * options.get("scale", 1)
    (y,) = custom("TransformLandmarks", [x, matrix.reshape(1, 4, 4)], shape, version=version, **options)
    np.testing.assert_allclose(y, expected.reshape(shape), rtol=1e-5, atol=1e-6)


def turn(angle: float) -> Array:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def affine(linear: Array, shift: Any) -> Array:
    m = np.eye(3)
    m[:2, :2], m[:2, 2] = linear, shift
    return m


def in_four(m: Array) -> Array:
    full = np.eye(4)
    full[:2, :2], full[:2, 3] = m[:2, :2], m[:2, 2]
    return full.astype(np.float32).reshape(1, 4, 4)


def box(points: Array, angle: float) -> tuple[Array, Array]:
    """Size and centre of the box around turned points; the centre in the axes given."""
    turned = points @ turn(angle).T
    high, low = turned.max(0), turned.min(0)
    return high - low, turn(-angle) @ ((high + low) / 2)


def test_a_box_of_landmarks_becomes_a_matrix() -> None:
    """The first version: from the output's pixels to the input's, through coordinates of -1 to 1."""
    x, subset = RNG.uniform(0, 192, (1, 1, 1, 30)).astype(np.float32), [0, 3, 5, 7, 2]
    points = x.reshape(10, 3)[:, :2].astype(np.float64)
    dx, dy = points[4] - points[1]
    alpha = -np.arctan(dy / dx)
    size, centre = box(points[subset], alpha)
    relative = affine(np.diag([2 / 23, 2 / 15]), [-1, -1])
    absolute = affine(np.diag([95 / 2, 63 / 2]), [95 / 2, 63 / 2])
    expected = (
        absolute @ affine(turn(-alpha), centre / 192 * 2 - 1) @ affine(np.diag(size * 1.5 / 192), [0, 0]) @ relative
    )
    (y,) = custom(
        "Landmarks2TransformMatrix",
        [x],
        (1, 4, 4),
        dimensions=3,
        landmarks_range=192,
        left_rotation_idx=1,
        right_rotation_idx=4,
        bbox_size_multiplier=1.5,
        input_hw=[64, 96],
        output_hw=[16, 24],
        subset=subset,
    )
    np.testing.assert_allclose(y, in_four(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [0.0, 1.25])
def test_a_turned_box_of_landmarks_becomes_a_matrix(target: float) -> None:
    """The second version: from the output's pixels to the landmarks' coordinates."""
    x, subset = RNG.uniform(0, 192, (1, 10, 3)).astype(np.float32), [0, 3, 5, 7, 2, 2]
    points = x.reshape(10, 3)[:, :2].astype(np.float64)
    dx, dy = points[4] - points[1]
    angle = target - np.arctan2(dy, dx)
    size, centre = box(points[subset], angle)
    scale = size * [1.5, 0.75] / [24, 16]
    expected = affine(np.eye(2), centre) @ affine(turn(-angle) @ np.diag(scale), [0, 0]) @ affine(np.eye(2), [-12, -8])
    (y,) = custom(
        "Landmarks2TransformMatrix",
        [x],
        (1, 4, 4),
        version=2,
        left_rotation_idx=1,
        right_rotation_idx=4,
        target_rotation_radians=target,
        output_height=16,
        output_width=24,
        scale_x=1.5,
        scale_y=0.75,
        subset_idxs=subset,
    )
    np.testing.assert_allclose(y, in_four(expected), rtol=1e-4, atol=1e-4)


def test_options_that_are_missing_are_named() -> None:
    with pytest.raises(UnsupportedError, match="its custom options have 0 bytes; 12 are needed"):
        custom("Convolution2DTransposeBias", [uniform(1, 2, 2, 1), uniform(1, 2, 2, 1)], (1, 4, 4, 1))
    with pytest.raises(UnsupportedError, match=r"its input_hw \[\] is not a height and a width"):
        custom("Landmarks2TransformMatrix", [uniform(1, 1, 1, 9)], (1, 4, 4), dimensions=3)


# ---------------------------------------------------------------------------------------------- spectra
def spectrum(shape: Sequence[int], lengths: Sequence[int], *, squeezed: bool = False) -> bytes:
    """The magnitude and both parts of the spectrum of ``x``."""
    model = Model()
    x, at = model.tensor("x", shape), model.constant("lengths", np.array(lengths, np.int32))
    dims = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
    y = model.tensor("y", dims, "complex64")
    model.add("RFFT2D", [x, at], [y])
    if squeezed:
        z = model.tensor("z", tuple(n for n in dims if n > 1), "complex64")
        model.add("SQUEEZE", [y], [z])
        y, dims = z, tuple(n for n in dims if n > 1)
    made = [model.tensor(name, dims) for name in ("real", "imaginary", "magnitude")]
    for name, output in zip(("REAL", "IMAG", "COMPLEX_ABS"), made, strict=True):
        model.add(name, [y], [output])
    return model.bytes([x], made)


@pytest.mark.parametrize(
    ("shape", "lengths", "squeezed"),
    [((3, 1, 16), (1, 16), True), ((2, 4, 8), (4, 8), False), ((1, 5, 6), (4, 16), False), ((4, 9), (8, 4), False)],
)
def test_spectra(shape: Sequence[int], lengths: Sequence[int], squeezed: bool) -> None:
    x = uniform(*shape)
    expected = np.fft.rfft2(x, s=lengths)
    expected = expected.squeeze() if squeezed else expected
    results = evaluate(importers.load(spectrum(shape, lengths, squeezed=squeezed)), {"x": x})
    np.testing.assert_allclose(results["real"] + 1j * results["imaginary"], expected, atol=1e-5)
    np.testing.assert_allclose(results["magnitude"], abs(expected), atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 1, 16), (2, 4, 8)])
def test_spectra_match_litert(shape: Sequence[int]) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    data, x = spectrum(shape, shape[1:]), uniform(*shape)
    net = interpreter.Interpreter(model_content=data)
    net.allocate_tensors()
    net.set_tensor(net.get_input_details()[0]["index"], x)
    net.invoke()
    results = evaluate(importers.load(data), {"x": x})
    for y, output in zip(results.values(), net.get_output_details(), strict=True):
        np.testing.assert_allclose(y, net.get_tensor(output["index"]), atol=1e-5)


def test_complex_numbers_of_an_input_are_refused() -> None:
    model = Model()
    x, y = model.tensor("x", (3,), "complex64"), model.tensor("y", (3,))
    model.add("REAL", [x], [y])
    with pytest.raises(UnsupportedError, match="input 0 is not computed from real numbers by RFFT2D"):
        importers.load(model.bytes([x], [y]))
