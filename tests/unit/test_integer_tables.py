"""Functions of quantised integers at the edges of their domains, as TFLite's reference kernels define them; expected
values were recorded from LiteRT 2.3.0 or are its kernels' formulas."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph
from tenon.network.passes.integers import to_integers
from tenon.options import Arithmetic
from tflite_models import Model

BYTES = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
Grid = tuple[float, int]


def function(type: str, x: Array, given: Grid, result: Grid, arithmetic: Arithmetic, **options: Any) -> Array:
    """A function of one tensor, in integers; a warning is an error."""
    model, dtype = Model(), "i8" if x.dtype == np.int8 else "i16"
    data = model.tensor("x", x.shape, dtype, scale=[given[0]], zero=[given[1]])
    y = model.tensor("y", x.shape, dtype, scale=[result[0]], zero=[result[1]])
    model.add(type, [data], [y], **options)
    graph = importers.load(model.bytes([data], [y]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_integers(graph, arithmetic)
        assert not any(node.op.name == "QuantizeLinear" for node in graph)
        (output,) = evaluate(graph, {"x": x}).values()
    return output


# ------------------------------------------------------------------------------------------ tables of 8 bits
@pytest.mark.parametrize("arithmetic", ["tflm", "litert", "onnx"])
def test_log_of_what_is_not_positive_is_the_least_integer(arithmetic: Arithmetic) -> None:
    y = function("LOG", BYTES, (0.05, -7), (0.05, -7), arithmetic)
    assert (y[BYTES <= -7] == -128).all()
    real = np.log((BYTES[BYTES > -7].astype(np.float64) + 7) * 0.05) / 0.05 - 7
    np.testing.assert_allclose(y[BYTES > -7], np.clip(real, -128, 127), atol=0.501)


@pytest.mark.parametrize("arithmetic", ["tflm", "litert"])
def test_abs_rounds_twice(arithmetic: Arithmetic) -> None:
    y = function("ABS", BYTES, (float(np.float32(0.003)), -20), (0.5, 5), arithmetic)
    assert y[0, 25] == 6  # 83 steps of 0.006: 0.498, rounded to 64/128 and then to 1
    assert np.flatnonzero(y[0] == 5).size == 2 * 82 + 1


def test_roots_of_litert() -> None:
    """SQRT truncates in f32; below zero, where LiteRT fails, is the least integer."""
    y = function("SQRT", BYTES, (float(np.float32(0.1)), -128), (float(np.float32(0.03)), 10), "litert")
    steps = np.sqrt(np.float32(0.1) * (BYTES.astype(np.float32) + 128)) / np.float32(0.03)
    np.testing.assert_array_equal(y, np.minimum(np.trunc(steps).astype(int) + 10, 127))
    assert y[0, :8].tolist() == [10, 20, 24, 28, 31, 33, 35, 37]  # recorded
    y = function("SQRT", BYTES, (0.1, -100), (0.03, 10), "litert")
    assert (y[BYTES < -100] == -128).all()


@pytest.mark.parametrize("arithmetic", ["tflm", "litert"])
def test_reciprocal_roots_are_in_fixed_point(arithmetic: Arithmetic) -> None:
    y = function("RSQRT", BYTES, (0.013183326460421085, -128), (0.00644665164873004, -32), arithmetic)
    assert y[0, 0] == 127  # of zero
    assert y[0, 196] == 65  # recorded: 64 if it were computed in f32
    y = function("RSQRT", BYTES, (0.3030271530151367, -128), (0.004706489387899637, -83), arithmetic)
    assert y[0, 197] == -55  # recorded


# ----------------------------------------------------------------------------------------------- of 16 bits
def test_exp_that_overflows_is_the_greatest_integer() -> None:
    """Without a warning; LiteRT casts what is no number to an integer there."""
    x = np.arange(-32768, 32768, 7).astype(np.int16).reshape(1, -1)
    y = function("EXP", x, (0.0036761402152478695, 0), (0.00024552756804041564, 0), "litert")
    assert (y[x * 0.0036761402152478695 > 3] == 32767).all()
    assert (np.diff(y[0].astype(int)) >= 0).all()


# ------------------------------------------------------------------------------------------------- products
def reduced(x: Array, scale: float, result: float) -> tuple[Graph, Array]:
    model = Model()
    data = model.tensor("x", x.shape, "u8", scale=[scale], zero=[120])
    y = model.tensor("y", (x.shape[0],), "u8", scale=[result], zero=[120])
    model.add("REDUCE_PROD", [data, model.constant("axes", np.array([1], np.int32))], [y])
    graph = importers.load(model.bytes([data], [y]))
    to_integers(graph, "litert")
    (output,) = evaluate(graph, {"x": x}).values()
    return graph, output


def test_products_of_long_rows_do_not_overflow_before_a_zero() -> None:
    rows = np.full((4, 100), 250, np.uint8)  # 130 steps of 0.1: 13**100 is far beyond f32
    rows[0, 99] = rows[1, 0] = 120  # a zero at the end, and at the beginning
    rows[2, 40:] = 121  # small enough in the end
    _, y = reduced(rows, 0.1, 1e6)
    assert y[:2].tolist() == [120, 120]
    assert y[2] == 120  # 13**40 / 10**60
    assert y[3] == 255


# -------------------------------------------------------------------------------- weights at run time
@pytest.mark.parametrize(
    ("arithmetic", "dtype"), [("tflm", "i16"), ("litert", "i16"), ("tflm", "i8"), ("litert", "i8")]
)
def test_fully_connected_by_weights_at_run_time(arithmetic: Arithmetic, dtype: str) -> None:
    """16-bit sums times a factor of 15 bits in TFLite Micro; LiteRT rounds once, halves away from zero."""
    rng = np.random.default_rng(3)
    limit = 32768 if dtype == "i16" else 128
    x = rng.integers(-limit, limit, (5, 12)).astype(np.int16 if dtype == "i16" else np.int8)
    w = rng.integers(-128, 128, (7, 12)).astype(np.int8)
    scales = [float(np.float32(v)) for v in (0.001, 0.02, 0.02)]
    model = Model()
    data = model.tensor("x", x.shape, dtype, scale=[scales[0]], zero=[0])
    weights = model.tensor("w", w.shape, "i8", scale=[scales[1]], zero=[0])
    y = model.tensor("y", (5, 7), dtype, scale=[scales[2]], zero=[0])
    model.add("FULLY_CONNECTED", [data, weights], [y])
    graph = importers.load(model.bytes([data, weights], [y]))
    to_integers(graph, arithmetic)
    assert [node.op.name for node in graph][-1] == "IntegerMatMul"
    (output,) = evaluate(graph, {"x": x, "w": w}).values()
    sums = x.astype(np.int64) @ w.T.astype(np.int64)
    exact = np.clip(sums * scales[0] * scales[1] / scales[2], -limit, limit - 1)
    assert np.abs(output - exact).max() <= (0.51 if arithmetic == "litert" else 1.01)
