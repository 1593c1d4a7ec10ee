"""Values of TFLite's operators where no operand has an element: zero points around images, "off" for no class, and the
neighbours that its nearest resize picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import limits
from tenon.network.passes.integers import to_integers
from tflite_models import Model

RNG = np.random.default_rng(11)


def ints(*numbers: object) -> Array:
    return np.array(numbers, np.int32)


# ---------------------------------------------------------------------------------- quantised padding
@pytest.mark.parametrize("arithmetic", ["tflm", "litert", "onnx"])
@pytest.mark.parametrize(("dtype", "zero"), [("i8", -7), ("u8", 30), ("i16", 0)])
@pytest.mark.parametrize("type", ["SPACE_TO_BATCH_ND", "PAD"])
def test_padding_is_the_zero_point(type: str, dtype: str, zero: int, arithmetic: str) -> None:
    low, high = limits(DType(dtype))
    x = RNG.integers(low, high, (1, 4, 6, 3)).astype(DType(dtype).numpy)
    pads = ints([1, 1], [2, 4])
    padded = np.pad(x, [(0, 0), *pads.tolist(), (0, 0)], constant_values=zero)
    blocks = padded.reshape(1, 3, 2, 4, 3, 3).transpose(2, 4, 0, 1, 3, 5).reshape(6, 3, 4, 3)
    model = Model()
    data = model.tensor("x", x.shape, dtype, scale=[0.05], zero=[zero])
    if type == "PAD":
        operands, expected = [model.constant("pads", ints([0, 0], *pads, [0, 0]))], padded
    else:
        operands, expected = [model.constant("block", ints(2, 3)), model.constant("pads", pads)], blocks
    y = model.tensor("y", expected.shape, dtype, scale=[0.05], zero=[zero])
    model.add(type, [data, *operands], [y])
    graph = importers.load(model.bytes([data], [y]))
    to_integers(graph, arithmetic)  # type: ignore[arg-type]
    (output,) = evaluate(graph, {"x": x}).values()
    np.testing.assert_array_equal(output, expected)


# ------------------------------------------------------------------------------------------- one-hot
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_one_hot_has_no_class_below_zero(axis: int, dtype: type[np.integer[Any]]) -> None:
    classes: Array = np.array([[0, -1, 4], [5, -5, 2]], dtype)
    expected = np.moveaxis(np.where(classes[..., None] == np.arange(5), 3, 1), -1, axis).astype(np.int32)
    model = Model()
    x = model.tensor("x", classes.shape, "i32" if dtype is np.int32 else "i64")
    y = model.tensor("y", expected.shape, "i32")
    numbers = [model.constant(name, np.array(n, np.int32)) for name, n in (("depth", 5), ("on", 3), ("off", 1))]
    model.add("ONE_HOT", [x, *numbers], [y], axis=axis)
    (output,) = evaluate(importers.load(model.bytes([x], [y])), {"x": classes}).values()
    np.testing.assert_array_equal(output, expected)


# ------------------------------------------------------------------------------------ nearest neighbours
def nearest(n: int, out: int, *, align_corners: bool, half_pixel: bool) -> list[int]:
    """The neighbours as TFLite's reference kernel finds them, in f32."""
    scale = np.float32(n - 1) / np.float32(out - 1) if align_corners and out > 1 else np.float32(n) / np.float32(out)
    at = [(np.float32(i) + np.float32(0.5 * half_pixel)) * scale for i in range(out)]
    return [min(int(np.floor(v + np.float32(0.5 * align_corners))), n - 1) for v in at]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("half_pixel", [False, True])
def test_nearest_neighbours(align_corners: bool, half_pixel: bool) -> None:
    for n in (1, 2, 3, 5, 8):
        for out in (1, 2, 3, 5, 7, 8, 10, 16, 17):
            model = Model()
            x, y = model.tensor("x", (1, n, 1, 1)), model.tensor("y", (1, out, 1, 1))
            flags: dict[str, Any] = {"align_corners": align_corners, "half_pixel_centers": half_pixel}
            model.add("RESIZE_NEAREST_NEIGHBOR", [x, model.constant("size", ints(out, 1))], [y], **flags)
            data = np.arange(n, dtype=np.float32).reshape(1, n, 1, 1)
            (output,) = evaluate(importers.load(model.bytes([x], [y])), {"x": data}).values()
            assert output.ravel().tolist() == nearest(n, out, align_corners=align_corners, half_pixel=half_pixel)
