"""Functions of 16-bit integers, PRELU, sums and squared differences: what TFLite Micro's reference kernels give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType, tensor
from tenon.network.ops.integer_functions import IntegerSigmoid, argument, interpolated, sigmoid_table, softmax_tables
from tenon.network.ops.move import Concat
from tenon.network.ops.requantize import quantized_multiplier
from tenon.network.passes.integers import to_integers
from tenon.network.passes.integers.digest import expected_digest, is_exact
from tflite_models import Model

X = np.array([[-32768, -20000, -3001, -700, -1, 0, 1, 5, 999, 4096, 12345, 32767]], np.int16)
FRACTION = 2.0**-15

MEASURED: list[tuple[str, float, tuple[str, float, int], dict[str, Any], list[int]]] = [
    (
        "LOGISTIC",
        0.0007,
        ("i16", FRACTION, 0),
        {},
        [1, 1, 3573, 12448, 16378, 16384, 16390, 16413, 21890, 31005, 32762, 32767],
    ),
    (
        "LOGISTIC",
        2.0**-12,
        ("i16", FRACTION, 0),
        {},
        [11, 247, 10637, 14987, 16382, 16384, 16386, 16394, 18372, 23956, 31234, 32757],
    ),
    (
        "TANH",
        0.0007,
        ("i16", FRACTION, 0),
        {},
        [-32767, -32767, -31801, -14883, -24, 0, 24, 115, 19789, 32557, 32767, 32767],
    ),
    (
        "TANH",
        2.0**-11,
        ("i16", FRACTION, 0),
        {},
        [-32767, -32767, -29448, -10783, -16, 0, 16, 80, 14825, 31589, 32767, 32767],
    ),
    (
        "SOFTMAX",
        0.0001,
        ("i16", FRACTION, 0),
        {"beta": 1.0},
        [32, 115, 632, 796, 854, 854, 855, 855, 944, 1286, 2934, 22614],
    ),
    ("SOFTMAX", 0.0007, ("i16", FRACTION, 0), {"beta": 0.4}, [2, 2, 2, 3, 3, 3, 3, 3, 5, 11, 107, 32624]),
    (
        "LEAKY_RELU",
        0.0007,
        ("i16", 0.0005, 0),
        {"alpha": 0.3},
        [-13763, -8400, -1261, -294, -1, 0, 1, 7, 1399, 5734, 17283, 32767],
    ),
    ("ABS", 0.0007, ("i16", 0.0009, 0), {}, [25486, 15556, 2334, 544, 1, 0, 1, 4, 777, 3186, 9602, 25485]),
    ("RELU", 0.0007, ("i16", 0.0009, 0), {}, [0, 0, 0, 0, 0, 0, 1, 4, 777, 3186, 9602, 25485]),
    ("QUANTIZE", 0.0007, ("i8", 0.09, -4), {}, [-128, -128, -27, -9, -4, -4, -4, -4, 4, 28, 92, 127]),
]
"""Operator, scale of ``X``, type, scale and zero point of the result, options, and TFLite Micro's result."""


def one(type: str, scale: float, to: tuple[str, float, int], options: dict[str, Any], x: Array = X) -> bytes:
    model = Model()
    a = model.tensor("x", x.shape, "i16", scale=[scale], zero=[0])
    y = model.tensor("y", x.shape, to[0], scale=[to[1]], zero=[to[2]])
    model.add(type, [a], [y], **options)
    return model.bytes([a], [y])


def converted(file: bytes) -> Graph:
    graph = importers.load(file)
    assert not to_integers(graph, "tflm")
    assert is_exact(graph)
    return graph


@pytest.mark.parametrize(("type", "scale", "to", "options", "expected"), MEASURED)
def test_functions_of_16_bits(
    type: str, scale: float, to: tuple[str, float, int], options: dict[str, Any], expected: list[int]
) -> None:
    (got,) = evaluate(converted(one(type, scale, to, options)), {"x": X}).values()
    assert got.reshape(-1).tolist() == expected


def test_compiled_functions_of_16_bits() -> None:
    """All numbers of 16 bits, in one network on this machine."""
    model, every = Model(), np.arange(-(1 << 15), 1 << 15, 7).astype(np.int16).reshape(1, -1)
    x = model.tensor("x", every.shape, "i16", scale=[0.0007], zero=[0])
    ends = []
    for i, (type, _, to, options, _) in enumerate(MEASURED):
        ends.append(model.tensor(f"y{i}", every.shape, to[0], scale=[to[1]], zero=[to[2]]))
        model.add(type, [x], [ends[-1]], **options)
    bundle = tenon.compile(model.bytes([x], ends), arithmetic="tflm", name="functions")
    assert bundle.answer
    results = tenon.open(bundle).run({"x": every})
    for name, expected in evaluate(converted(model.bytes([x], ends)), {"x": every}).items():
        np.testing.assert_array_equal(results[name], expected)


@pytest.mark.parametrize("function", ["sigmoid", "tanh"])
@pytest.mark.parametrize("scale", [2.0**-12, 0.0003, 0.004])
def test_sigmoid_and_tanh_approximate_the_functions(function: Any, scale: float) -> None:
    multiplier_and_shift = argument(scale, function)
    assert multiplier_and_shift is not None
    every = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    real = every * scale
    exact = 1 / (1 + np.exp(-real)) if function == "sigmoid" else np.tanh(real)
    # The argument is rounded to 15 bits, as is the table, whose errors tanh doubles; -1 and 1 are 32767 units.
    assert np.abs(IntegerSigmoid(function, *multiplier_and_shift).reference(every) / 32768 - exact).max() < 2.0**-13


def test_tables_interpolate_the_functions() -> None:
    assert sigmoid_table()[[0, 255]].tolist() == [32768, 65535]
    exps, reciprocals = softmax_tables("f32")
    codes = np.arange(-(1 << 15), 1 << 15)
    unit = (codes + 32768) / 65536
    assert np.abs(interpolated(exps, codes) - 32768 * np.exp(10 * unit - 10)).max() < 3
    assert np.abs(interpolated(reciprocals, codes) - 32768 / (1 + unit)).max() < 2
    ours, litert = softmax_tables("f32"), softmax_tables("f64")
    assert [np.flatnonzero(a != b).tolist() for a, b in zip(ours, litert, strict=True)] == [[], [160, 294]]


@pytest.mark.parametrize(("arithmetic", "computed"), [("tflm", "f32"), ("litert", "f64")])
def test_tables_of_softmax_follow_the_runtime(arithmetic: Any, computed: str) -> None:
    graph = importers.load(one("SOFTMAX", 0.0001, ("i16", FRACTION, 0), {"beta": 1.0}))
    assert not to_integers(graph, arithmetic)
    (op,) = (node.op for node in graph)
    assert getattr(op, "computed", "") == computed


@pytest.mark.parametrize(
    ("type", "scale", "to"),
    [
        ("LOGISTIC", 0.0007, ("i16", 0.0001, 0)),
        ("TANH", 3.0, ("i16", FRACTION, 0)),
        ("ELU", 0.1, ("i16", 0.1, 0)),
        ("QUANTIZE", 100.0, ("i16", 0.001, 0)),
        ("SOFTMAX", 0.1, ("i16", 0.001, 0)),
    ],
)
def test_other_functions_of_16_bits_stay_in_float(type: str, scale: float, to: tuple[str, float, int]) -> None:
    graph = importers.load(one(type, scale, to, {"beta": 1.0} if type == "SOFTMAX" else {}))
    assert len(to_integers(graph, "tflm")) == 1


# -------------------------------------------------------------------------------------- several operands
def pair(
    type: str, dtype: str, scales: Sequence[float], zeros: Sequence[int], second: Array | tuple[int, ...]
) -> bytes:
    """An operator of x [1, 3, 4, 5] and of a constant, or of a tensor of a shape."""
    model, shape = Model(), (1, 3, 4, 5)
    a = model.tensor("a", shape, dtype, scale=[scales[0]], zero=[zeros[0]])
    if isinstance(second, tuple):
        b = model.tensor("b", second, dtype, scale=[scales[1]], zero=[zeros[1]])
    else:
        b = model.constant("b", second, scale=[scales[1]], zero=[zeros[1]])
    y = model.tensor("y", shape, dtype, scale=[scales[2]], zero=[zeros[2]])
    model.add(type, [a, b], [y])
    return model.bytes([a, b] if isinstance(second, tuple) else [a], [y])


def stepped(total: int, factor: float) -> int:
    """Times a multiplier of 31 bits, rounded twice, in Python's integers."""
    multiplier, shift = quantized_multiplier(factor)
    high = ((total << max(shift, 0)) * multiplier + (1 << 30)) >> 31
    size = (abs(high) + ((1 << max(-shift, 0)) >> 1)) >> max(-shift, 0)
    return size if high >= 0 else -size


@pytest.mark.parametrize("ratio", [0.05, 0.08])
def test_prelu_by_slopes_of_8_bits(ratio: float) -> None:
    slopes = np.array([-100, -3, 0, 50, 127], np.int8).reshape(1, 1, 5)
    file = pair("PRELU", "i8", (0.05, 0.02, ratio), (3, -5, 7), slopes)
    graph = converted(file)
    x = np.random.default_rng(1).integers(-128, 128, (1, 3, 4, 5)).astype(np.int8)
    a, s, y = (float(np.float32(v)) for v in (0.05, 0.02, ratio))
    expected = [
        min(max((stepped(d, a / y) if d >= 0 else stepped(d * (int(slope) + 5), a * s / y)) + 7, -128), 127)
        for d, slope in zip(x.reshape(-1).astype(int) - 3, np.broadcast_to(slopes, x.shape).reshape(-1), strict=True)
    ]
    (got,) = evaluate(graph, {"a": x}).values()
    assert got.reshape(-1).tolist() == expected
    np.testing.assert_array_equal(tenon.open(tenon.compile(file, arithmetic="tflm")).run({"a": x})["y"], got)


@pytest.mark.parametrize(
    ("dtype", "scales", "zeros", "headroom"),
    [("i8", (0.05, 0.03, 0.2), (3, -5, -128), 7), ("i16", (2e-4, 1e-4, 9e-4), (0, 0, 0), 0)],
)
def test_squared_difference(dtype: str, scales: tuple[float, ...], zeros: tuple[int, ...], headroom: int) -> None:
    graph = converted(pair("SQUARED_DIFFERENCE", dtype, scales, zeros, (1, 1, 1, 5)))
    kind, rng = np.iinfo(dtype.replace("i", "int")), np.random.default_rng(2)
    feeds = {
        n: rng.integers(kind.min, kind.max + 1, d).astype(kind.dtype)
        for n, d in (("a", (1, 3, 4, 5)), ("b", (1, 1, 1, 5)))
    }
    a, b, y = (float(np.float32(s)) for s in scales)
    most = 2 * max(a, b)
    both = zip(
        feeds["a"].reshape(-1).tolist(), np.broadcast_to(feeds["b"], (1, 3, 4, 5)).reshape(-1).tolist(), strict=True
    )
    expected = []
    for p, q in both:
        left, right = stepped((p - zeros[0]) << headroom, a / most), stepped((q - zeros[1]) << headroom, b / most)
        result = stepped((left - right) ** 2, most * most / ((1 << 2 * headroom) * y)) + zeros[2]
        expected.append(min(max(result, kind.min), kind.max))
    (got,) = evaluate(graph, feeds).values()
    assert got.reshape(-1).tolist() == expected


def compared(type: str, dtype: str, scales: tuple[float, float], zeros: tuple[int, int]) -> bytes:
    model = Model()
    a, b = (
        model.tensor(name, (1, 256, side), dtype, scale=[scale], zero=[zero])
        for name, scale, zero, side in zip("ab", scales, zeros, (1, 256), strict=True)
    )
    y = model.tensor("y", (1, 256, 256), "bool")
    model.add(type, [a, b], [y])
    return model.bytes([a, b], [y])


COMPARED: dict[str, Callable[[Array, Array], Array]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}


@pytest.mark.parametrize(
    ("type", "scales", "zeros"),
    [
        *((type, (0.05, 0.03), (3, -5)) for type in COMPARED),
        ("EQUAL", (0.0005, 0.0005), (0, 0)),
        ("LESS", (0.0005, 0.0005), (7, 7)),
    ],
)
def test_comparisons_of_8_bits(type: str, scales: tuple[float, float], zeros: tuple[int, int]) -> None:
    """All pairs of numbers.  Of small scales many are equal: they are rounded to 256ths of a unit."""
    graph, every = converted(compared(type, "i8", scales, zeros)), np.arange(-128, 128).astype(np.int8)
    feeds = {"a": every.reshape(1, 256, 1), "b": np.broadcast_to(every, (1, 256, 256)).copy()}
    left, right = (
        np.array([stepped((int(n) - zero) << 8, float(np.float32(scale))) for n in every])
        for scale, zero in zip(scales, zeros, strict=True)
    )
    (got,) = evaluate(graph, feeds).values()
    np.testing.assert_array_equal(got[0], COMPARED[type](left[:, None], right))
    if type == "EQUAL" and scales[0] == scales[1]:
        assert np.count_nonzero(got) > 256


def test_compiled_comparisons() -> None:
    file = compared("LESS", "i8", (0.05, 0.03), (3, -5))
    every = np.arange(-128, 128).astype(np.int8)
    feeds = {"a": every.reshape(1, 256, 1), "b": np.broadcast_to(every, (1, 256, 256)).copy()}
    bundle = tenon.compile(file, arithmetic="tflm", name="less")
    assert bundle.answer
    np.testing.assert_array_equal(tenon.open(bundle).run(feeds)["y"], evaluate(converted(file), feeds)["y"])


def test_comparisons_that_stay_in_float() -> None:
    for dtype, scales in (("i8", (1.5, 0.5)), ("i16", (0.5, 0.25))):
        graph = importers.load(compared("LESS", dtype, scales, (0, 0)))
        to_integers(graph, "tflm")
        assert "DequantizeLinear" in {node.op.name for node in graph}


@pytest.mark.parametrize("type", ["ARG_MAX", "ARG_MIN"])
def test_indices_of_extremes_are_those_of_the_integers(type: str) -> None:
    model = Model()
    x = model.tensor("x", (3, 20), "i8", scale=[0.05], zero=[3])
    axis, y = model.constant("axis", np.array(1, np.int32)), model.tensor("y", (3,), "i32")
    model.add(type, [x, axis], [y])
    graph = importers.load(model.bytes([x], [y]))
    to_integers(graph, "tflm")
    assert not any(v.type.dtype.is_float for node in graph for v in node.outputs)
    data = np.random.default_rng(5).integers(-128, 128, (3, 20)).astype(np.int8)
    (got,) = evaluate(graph, {"x": data}).values()
    np.testing.assert_array_equal(got, (np.argmax if type == "ARG_MAX" else np.argmin)(data, 1))


def test_constants_of_16_bits() -> None:
    model = Model()
    x, y = (model.tensor(name, (1, 4), "i16", scale=[0.001], zero=[0]) for name in "xy")
    c = model.constant("c", np.array([[30000, -30000, 5, 100]], np.int16), scale=[0.002])
    model.add("ADD", [x, c], [y], activation=0)
    graph = converted(model.bytes([x], [y]))
    data = np.array([[-32768, 32767, 0, -3]], np.int16)
    (got,) = evaluate(graph, {"x": data}).values()
    assert got.tolist() == [[27232, -27233, 10, 197]]


def test_all_constants_of_16_bits_are_found_again() -> None:
    """The real numbers of these constants are rounded to f32."""
    for scale in (0.0013, 0.17, 0.3):
        model, every = Model(), np.arange(-(1 << 15), 1 << 15).astype(np.int16)
        x, y = (model.tensor(name, every.shape, "i16", scale=[scale], zero=[0]) for name in "xy")
        c = model.constant("c", every, scale=[scale])
        model.add("ADD", [x, c], [y], activation=0)
        (constant,) = (v for v in converted(model.bytes([x], [y])).constants() if v.type.dims == every.shape)
        np.testing.assert_array_equal(constant.array, every)


@pytest.mark.parametrize(("type", "dtype"), [("SUM", "i8"), ("SUM", "i16"), ("MEAN", "i16")])
def test_sums_along_axes(type: str, dtype: str) -> None:
    model, kind = Model(), np.iinfo(dtype.replace("i", "int"))
    zero, fine = (9, 1.0) if dtype == "i8" else (0, 1 / 256)
    x = model.tensor("x", (2, 3, 4, 5), dtype, scale=[0.05 * fine], zero=[zero])
    axes = model.constant("axes", np.array([1, 2], np.int32))
    y = model.tensor("y", (2, 5), dtype, scale=[(0.3 if type == "SUM" else 0.02) * fine], zero=[zero])
    model.add(type, [x, axes], [y])
    graph = converted(model.bytes([x], [y]))
    data = np.random.default_rng(3).integers(kind.min, kind.max + 1, (2, 3, 4, 5)).astype(kind.dtype)
    sums = (data.astype(int) - zero).sum((1, 2)) / (12 if type == "MEAN" else 1)
    ratio = 0.05 / (0.3 if type == "SUM" else 0.02)
    (got,) = evaluate(graph, {"x": data}).values()
    # Rounded twice: to quarters or halves, then to units.
    assert np.abs(got - np.clip(sums * ratio + zero, kind.min, kind.max)).max() <= 0.76


def test_products_of_matrices_of_16_bits() -> None:
    model = Model()
    a, b, y = (
        model.tensor(name, dims, "i16", scale=[scale], zero=[0])
        for name, dims, scale in (("a", (2, 4, 70), 2e-4), ("b", (2, 70, 5), 1e-4), ("y", (2, 4, 5), 2e-3))
    )
    model.add("BATCH_MATMUL", [a, b], [y])
    graph, rng = converted(model.bytes([a, b], [y])), np.random.default_rng(4)
    feeds = {
        n: rng.integers(-(1 << 15), 1 << 15, d).astype(np.int16) for n, d in (("a", (2, 4, 70)), ("b", (2, 70, 5)))
    }
    feeds["b"][:, :, 0] = feeds["a"][:, 0]  # a sum of squares, beyond 32 bits
    sums = feeds["a"].astype(object) @ feeds["b"].astype(object)
    assert max(sums.reshape(-1)) > 1 << 34
    mantissa, shift = np.frexp(float(np.float32(1e-4)) * float(np.float32(2e-4)) / float(np.float32(2e-3)))
    multiplier, right = (round(float(mantissa) * 2.0**31) + (1 << 15)) >> 16, 15 - int(shift)
    expected = [min(max((s * multiplier + (1 << (right - 1))) >> right, -32768), 32767) for s in sums.reshape(-1)]
    (got,) = evaluate(graph, feeds).values()
    assert got.reshape(-1).tolist() == expected
    bundle = tenon.compile(model.bytes([a, b], [y]), arithmetic="tflm")
    np.testing.assert_array_equal(tenon.open(bundle).run(feeds)["y"], got)


@pytest.mark.parametrize(
    ("type", "dtype"),
    [("RELU", "i8"), ("RELU", "i16"), ("LEAKY_RELU", "i8"), ("LEAKY_RELU", "i16"), ("PRELU", "i8"), ("ABS", "i16")],
)
def test_ratios_of_scales_are_divided_in_f32_or_f64(type: str, dtype: str) -> None:
    """0.25 / 0.4 is 0.625 in f32, which LiteRT uses, and 0.62499999 in f64: 4 steps are 2.5 steps of the result."""
    model = Model()
    x = model.tensor("x", (1, 3), dtype, scale=[0.25], zero=[0])
    slopes = [model.constant("w", np.zeros((1, 1), np.int8), scale=[0.01])] if type == "PRELU" else []
    y = model.tensor("y", (1, 3), dtype, scale=[0.4], zero=[0])
    model.add(type, [x, *slopes], [y], **({"alpha": 0.5} if type == "LEAKY_RELU" else {}))
    data = np.array([[4, 12, 20]], np.int8 if dtype == "i8" else np.int16)
    for arithmetic, expected in (("litert", [3, 8, 13]), ("tflm", [2, 7, 12])):
        graph = importers.load(model.bytes([x], [y]))
        assert not to_integers(graph, arithmetic)  # type: ignore[arg-type]
        (got,) = evaluate(graph, {"x": data}).values()
        assert got.reshape(-1).tolist() == expected


def test_absolute_values_of_8_bits_are_rounded_by_each_runtime() -> None:
    model = Model()
    x, y = (model.tensor(name, (1, 2), "i8", scale=[scale], zero=[0]) for name, scale in (("x", 0.25), ("y", 0.4)))
    model.add("ABS", [x], [y])
    for arithmetic, expected in (("litert", [3, 3]), ("tflm", [2, 2])):
        graph = importers.load(model.bytes([x], [y]))
        assert not to_integers(graph, arithmetic)  # type: ignore[arg-type]
        (got,) = evaluate(graph, {"x": np.array([[-4, 4]], np.int8)}).values()
        assert got.reshape(-1).tolist() == expected


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_a_function_of_a_function_and_one_number_is_a_table(rank: int) -> None:
    """Adding a number to LOGISTIC: one table, whatever the rank of the number is."""
    model = Model()
    x = model.tensor("x", (1, 2, 3, 4), "i8", scale=[0.05], zero=[3])
    c = model.constant("c", np.full((1,) * rank, 100, np.int8), scale=[0.01], zero=[0])
    between = model.tensor("s", (1, 2, 3, 4), "i8", scale=[1 / 256], zero=[-128])
    y = model.tensor("y", (1, 2, 3, 4), "i8", scale=[0.01], zero=[-100])
    model.add("LOGISTIC", [x], [between])
    model.add("ADD", [between, c], [y])
    graph = converted(model.bytes([x], [y]))
    assert [node.op.name for node in graph] == ["Lookup"]
    data = np.arange(-12, 12).astype(np.int8).reshape(1, 2, 3, 4)
    (got,) = evaluate(graph, {"x": data}).values()
    real = 1 / (1 + np.exp(-0.05 * (data.astype(float) - 3))) + 1
    assert np.abs((got.astype(float) + 100) * 0.01 - real).max() <= 0.01


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F8E4M3, DType.I4])
def test_inputs_in_storage_formats_leave_no_digest(dtype: DType) -> None:
    """Beside integers: random bits may be no number, and a bundle with such an input can be saved."""
    graph = Graph("g")
    x, q = graph.add_input("x", tensor(dtype, 1, 3, 2, 2)), graph.add_input("q", tensor(DType.I8, 4))
    graph.outputs = [graph.add(Concat(1), [x, x], ["s"]).output, graph.add(Concat(0), [q, q], ["m"]).output]
    assert is_exact(graph)
    assert expected_digest(graph) == ""
