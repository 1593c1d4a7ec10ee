"""Resampling and automatic padding where ONNX leaves a choice: compared with onnxruntime, which PyTorch's exporters are
tested with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from exact_onnxruntime import session
from onnx_models import model, node, random
from pt2_models import call, pt2
from tenon.formats import importers
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.graph import Array

SIZES = (1, 2, 3, 4, 5, 7, 8, 9)
SCALES = (0.4, 0.6, 0.75, 1.25, 1.3, 1.5, 2.3, 2.5, 3.0)


def both(data: bytes, x: Array) -> tuple[Array, Array]:
    """The results of the references and of onnxruntime."""
    (ours,) = evaluate(importers.load(data), {"x": x}).values()
    return ours, session(data).run(None, {"x": x})[0]


# ------------------------------------------------------------------------------------------- resizing
def resized(x: Array, given: Array, **attributes: Any) -> bytes:
    names = ["x", "", "given"] if given.dtype == np.float32 else ["x", "", "", "given"]
    made = model([node("Resize", names, ["y"], **attributes)], {"x": x.shape}, ["y"], {"given": given}, opset=19)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear"},
        *({"nearest_mode": way} for way in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    ],
    ids=lambda a: next(iter(a.values())),
)
def test_corners_are_aligned_by_whole_extents(attributes: dict[str, str]) -> None:
    for n in SIZES:
        x = random(1, 1, n, seed=n)
        for scale in SCALES:
            given = np.array([1, 1, scale], np.float32)
            if int(n * given[2]) > 0:
                data = resized(x, given, coordinate_transformation_mode="align_corners", **attributes)
                np.testing.assert_allclose(*both(data, x), atol=1e-5, err_msg=f"{n} by {scale}")


@pytest.mark.parametrize("mode", ["align_corners", "half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_nearest_neighbours_of_given_sizes(mode: str, rounding: str) -> None:
    for n in SIZES:
        x = random(1, 1, n, seed=n)
        for out in (1, 2, 3, 5, 7, 8, 11, 24):
            given = np.array([1, 1, out])
            data = resized(x, given, coordinate_transformation_mode=mode, nearest_mode=rounding)
            ours, theirs = both(data, x)
            assert ours.tolist() == theirs.tolist(), f"{n} to {out}"


def test_linear_interpolation_copies_what_keeps_its_extents() -> None:
    x = random(1, 2, 3, 4)
    ours, theirs = both(resized(x, np.array([1, 1, 1.2, 1.2], np.float32), mode="linear"), x)
    np.testing.assert_array_equal(ours, x)
    np.testing.assert_array_equal(theirs, x)


# ------------------------------------------------------------------------------------ PyTorch's programs
def interpolated(name: str, x: Array, factors: list[float], **options: Any) -> Array:
    shape = (*x.shape[:2], *(int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)))
    one = call(f"aten.{name}.vec", "y", input="x", output_size=None, scale_factors=factors, **options)
    (output,) = evaluate(importers.load(pt2([one], {"x": x.shape, "y": shape}, ["x"], ["y"])), {"x": x}).values()
    return output


def test_an_axis_that_keeps_its_extent_is_copied() -> None:
    """An axis that changes is sampled by the factor that was given."""
    x = random(1, 2, 4, 3)
    np.testing.assert_array_equal(interpolated("upsample_bilinear2d", x, [1.2, 1.2], align_corners=False), x)
    y = interpolated("upsample_bilinear2d", x, [1.2, 2.0], align_corners=False)
    at = np.clip((np.arange(6) + 0.5) / 2 - 0.5, 0, 2)
    low = np.floor(at).astype(int)
    expected = x[..., low] * (1 - at + low) + x[..., np.minimum(low + 1, 2)] * (at - low)
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_nearest_neighbours_are_not_copied() -> None:
    x = random(1, 2, 4, 3)
    y = interpolated("upsample_nearest2d", x, [1.2, 1.0])
    np.testing.assert_array_equal(y, x[:, :, [0, 0, 1, 2]])


# ------------------------------------------------------------------------------------ automatic padding
WINDOWS = [(n, k, s) for n in range(1, 12) for k in (1, 2, 3) for s in range(1, 7)]


def windowed(type: str, auto_pad: str, n: int, k: int, s: int) -> bytes:
    inputs = ["x", "w"] if type == "Conv" else ["x"]
    weights = {"w": random(2, 2, k, seed=k)} if type == "Conv" else {}
    one = node(type, inputs, ["y"], auto_pad=auto_pad, kernel_shape=[k], strides=[s])
    return bytes(model([one], {"x": [1, 2, n]}, ["y"], weights, opset=19).SerializeToString())


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("type", ["Conv", "AveragePool", "LpPool"])
def test_same_with_a_stride_past_the_kernel(type: str, auto_pad: str) -> None:
    for n, k, s in WINDOWS:
        x = random(1, 2, n, seed=n)
        ours, theirs = both(windowed(type, auto_pad, n, k, s), x)
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=f"{n} elements, kernel {k}, stride {s}")


def test_same_in_two_axes_of_integers() -> None:
    x = np.random.default_rng(1).integers(0, 256, (1, 2, 7, 9)).astype(np.uint8)
    weights = {"w": np.random.default_rng(2).integers(0, 256, (2, 2, 1, 2)).astype(np.uint8)}
    one = node("ConvInteger", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[4, 5])
    made = model([one], {"x": x.shape}, ["y"], weights, opset=19)
    made.graph.input[0].type.tensor_type.elem_type = 2
    made.graph.output[0].type.tensor_type.elem_type = 6
    ours, theirs = both(bytes(made.SerializeToString()), x)
    np.testing.assert_array_equal(ours, theirs)


def test_max_pool_starts_at_the_first_element() -> None:
    """As in TensorFlow: onnxruntime refuses negative padding here."""
    x = random(1, 2, 8)
    (y,) = evaluate(importers.load(windowed("MaxPool", "SAME_UPPER", 8, 1, 4)), {"x": x}).values()
    np.testing.assert_array_equal(y, x[..., ::4])


@pytest.mark.parametrize("type", ["Conv", "MaxPool"])
def test_what_is_written_says_where_windows_start(type: str) -> None:
    """The padding of other formats, which never crops, reaches onnxruntime as numbers."""
    x = random(1, 2, 9)
    graph = importers.load(windowed(type, "VALID", 9, 2, 5))
    object.__setattr__(graph.nodes[0].op, "auto_pad", "SAME_UPPER")
    graph.nodes[0].output.type = graph.nodes[0].op.infer(graph.nodes[0].inputs)[0]
    (expected,) = evaluate(graph, {"x": x}).values()
    written = to_onnx(graph).SerializeToString()
    np.testing.assert_allclose(session(written).run(None, {"x": x})[0], expected, atol=1e-5)
