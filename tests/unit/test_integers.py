"""Quantised models in integer arithmetic: requantisation, and rewriting of DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import exact_onnxruntime
import tenon
from lowered import MACHINES, make_site, run_lowered, run_site, settle
from on_targets import assert_stated_digest
from tenon.errors import ToolchainError
from tenon.formats import importers
from tenon.machine.kernels.requantize import Rounding
from tenon.network.graph.evaluate import by_reference, evaluate
from tenon.network.graph.fixed_input import fixed_input
from tenon.network.graph.graph import Array, Graph, Node, Origin, Value
from tenon.network.graph.text import parse_type, show_type
from tenon.network.graph.types import DType, Layout, Quant, TensorType
from tenon.network.ops import registry
from tenon.network.ops.integer_arithmetic import IntegerAdd, _reciprocal
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_softmax import IntegerSoftmax
from tenon.network.ops.move import Transpose
from tenon.network.ops.requantize import Factors, quantized_multiplier, rescaled
from tenon.network.ops.shape import Reshape
from tenon.network.passes import optimize
from tenon.network.passes.integers import to_integers
from tenon.network.passes.integers.arithmetic import product_factors
from tenon.options import Arithmetic
from tenon.pipeline import inspect
from tenon.runtime.bundle import read_manifest
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.verify import verify
from tflite_models import Model

ARITHMETICS: tuple[Arithmetic, ...] = ("tflm", "litert", "onnx")


# ----------------------------------------------------------------------------------------------- rounding
@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("double", [-3, -2, -1, 0, 1, 2, 3, 4]),
        ("single", [-4, -3, -2, -1, 1, 2, 3, 4]),
        ("float", [-4, -2, -2, 0, 0, 2, 2, 4]),
    ],
)
def test_ties_are_rounded_as_in_each_runtime(rounding: Rounding, expected: list[int]) -> None:
    """Ties by a factor of exactly 1/2: TFLite Micro, LiteRT's fully connected layers, XNNPACK."""
    sums = np.array([-7, -5, -3, -1, 1, 3, 5, 7])[:, None]
    if rounding == "float":
        factors = Factors("float", np.array([0.5], np.float32))
    else:
        multiplier, shift = quantized_multiplier(0.5)
        factors = Factors(rounding, np.array([multiplier]), np.array([shift]))
    np.testing.assert_array_equal(factors.apply(sums)[:, 0], expected)


def test_multipliers_have_31_bits() -> None:
    assert quantized_multiplier(0.75) == (3 << 29, 0)
    assert quantized_multiplier(1.5) == (3 << 29, 1)
    assert quantized_multiplier(1 - 2.0**-40) == (1 << 30, 1)
    assert quantized_multiplier(2.0**-40) == (0, -31)
    with pytest.raises(ValueError, match="fixed-point"):
        quantized_multiplier(-1.0)


def test_single_rounding_matches_exact_fractions() -> None:
    rng = np.random.default_rng(1)
    sums = rng.integers(-(2**30), 2**30, 2000)
    for factor in (0.3, 0.0017, 0.00000391, 1.7):
        multiplier, shift = quantized_multiplier(factor)
        exact = [Fraction(int(s)) * multiplier * Fraction(2) ** (shift - 31) for s in sums]
        away = [(1 if e >= 0 else -1) * floor(abs(e) + Fraction(1, 2)) for e in exact]
        np.testing.assert_array_equal(rescaled(sums, multiplier, shift, "single"), away)
        twice = rescaled(sums, multiplier, shift, "double")
        assert np.abs(twice - away).max() <= 1


@pytest.mark.parametrize("machine", ["lanes1", "lanes16"])
def test_large_sums_with_zero_right_shift(machine: str) -> None:
    """Two sums are too large to add half of what is dropped; the others are shifted by 0 and 1 to the left."""
    x = np.array([[5, -7, 100, 3]], np.int8)
    weights = np.array([[1, 2, 3, 4], [-1, 2, -3, 4], [1, 0, 0, 0], [0, 1, 0, 0]], np.int8)
    bias = np.array([2**31 - 4000, -(2**31) + 4000, 8, -13], np.int32)
    factors = [quantized_multiplier(f) for f in (2.0**-25, 2.0**-25, 0.75, 1.5)]
    product = IntegerGemm("double", 0, zero=4, scale=0.25)
    for channels in (slice(0, 3), slice(0, 4)):
        arrays = [x, weights[channels], bias[channels], *np.array(factors[channels], np.int32).T.copy()]
        (got,) = run_lowered(product, arrays, MACHINES[machine], (1, 2, 3, 4))
        np.testing.assert_array_equal(got, product.evaluate(arrays)[0])


def test_integer_softmax_is_near_float_softmax() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-128, 128, (50, 12)).astype(np.int8)
    got = IntegerSoftmax(0.05).reference(x).astype(int) + 128
    wide = x.astype(np.float64)
    e = np.exp((wide - wide.max(-1, keepdims=True)) * 0.05)
    assert np.abs(got - np.minimum(np.rint(256 * e / e.sum(-1, keepdims=True)), 255)).max() <= 1
    assert IntegerSoftmax(1.0).reference(np.zeros((1, 1), np.int8)) == 127


# ------------------------------------------------------------------------------------------------- types
def test_text_of_quantised_types_and_halo_fill() -> None:
    type = TensorType(DType.I8, (1, 5, 3, 4), Layout(4, ((1, 1), (0, 2)), -128), Quant((0.5,), (-3,), steps=True))
    assert show_type(type) == "i8[1,5,3,4]@4(1+1,0+2=-128){0.5; -3; _; steps}"
    assert parse_type(show_type(type)) == type


def test_halo_is_filled_with_the_zero_point() -> None:
    layout = Layout(4, ((1, 1),), 7)
    packed = layout.pack(np.ones((1, 3, 2), np.int8))
    assert packed.shape == (1, 1, 4, 4)
    np.testing.assert_array_equal(packed[0, 0, [0, 3]], 7)
    np.testing.assert_array_equal(packed[0, 0, 1:3, 3], 0)


# ----------------------------------------------------------------------------------------- TFLite models
def kinds(graph: Graph) -> set[str]:
    return {node.op.name for node in graph} - {"Transpose", "Reshape"}


def net(*, normalized: bool = False) -> bytes:
    """A convolution, a depthwise one, a sum of both, an average, a fully connected layer and softmax, or the last
    layer's results over their length."""
    rng = np.random.default_rng(3)
    model = Model()
    x = model.tensor("x", (1, 6, 6, 3), "i8", scale=[0.05], zero=[-4])
    weights = rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    scales = rng.uniform(0.01, 0.03, 8).astype(np.float32).tolist()
    w = model.constant("w", weights, scale=scales, axis=0)
    b = model.constant("b", rng.integers(-900, 900, 8).astype(np.int32), scale=[0.05 * s for s in scales])
    conv = model.tensor("conv", (1, 6, 6, 8), "i8", scale=[0.11], zero=[-128])
    model.add("CONV_2D", [x, w, b], [conv], padding=0, stride_w=1, stride_h=1, activation=1)
    wide = model.constant("dw", rng.integers(-127, 128, (1, 3, 3, 8)).astype(np.int8), scale=scales, axis=3)
    zero = model.constant("db", rng.integers(-900, 900, 8).astype(np.int32), scale=[0.11 * s for s in scales])
    deep = model.tensor("deep", (1, 6, 6, 8), "i8", scale=[0.2], zero=[3])
    options = {"padding": 0, "stride_w": 1, "stride_h": 1, "depth_multiplier": 1, "activation": 0}
    model.add("DEPTHWISE_CONV_2D", [conv, wide, zero], [deep], **options)
    total = model.tensor("sum", (1, 6, 6, 8), "i8", scale=[0.3], zero=[9])
    model.add("ADD", [conv, deep], [total], activation=0)
    mean = model.tensor("mean", (1, 1, 1, 8), "i8", scale=[0.3], zero=[9])
    window = {"padding": 1, "stride_w": 6, "stride_h": 6, "filter_w": 6, "filter_h": 6, "activation": 0}
    model.add("AVERAGE_POOL_2D", [total], [mean], **window)
    m = model.constant("m", rng.integers(-127, 128, (5, 8)).astype(np.int8), scale=[0.02])
    c = model.constant("c", rng.integers(-90, 90, 5).astype(np.int32), scale=[0.006])
    logits = model.tensor("logits", (1, 5), "i8", scale=[0.1], zero=[0])
    model.add("FULLY_CONNECTED", [mean, m, c], [logits], activation=0)
    if normalized:
        y = model.tensor("y", (1, 5), "i8", scale=[1 / 128], zero=[0])
        model.add("L2_NORMALIZATION", [logits], [y], activation=0)
    else:
        y = model.tensor("y", (1, 5), "i8", scale=[1 / 256], zero=[-128])
        model.add("SOFTMAX", [logits], [y], beta=1.0)
    return model.bytes([x], [y])


def converted(model: bytes, arithmetic: Arithmetic) -> tuple[Graph, list[str]]:
    graph = importers.load(model)
    return graph, [str(problem) for problem in to_integers(graph, arithmetic)]


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_whole_net_is_converted_to_integers(arithmetic: Arithmetic) -> None:
    graph, left = converted(net(), arithmetic)
    whole = {"IntegerConv", "IntegerAdd", "IntegerAveragePool", "IntegerGemm"}
    if arithmetic == "onnx":
        assert kinds(graph) == {*whole, "ByteSoftmax"}
    else:
        assert kinds(graph) == {*whole, "IntegerSoftmax"}
    assert not left
    assert all(v.type.dtype is DType.I8 for node in graph for v in node.outputs if node.op.name.startswith("Integer"))
    assert all(v.type.quant is not None for node in graph for v in node.outputs if node.op.name == "IntegerConv")


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_integer_layers_are_within_one_step_of_float(arithmetic: Arithmetic) -> None:
    """On equal operands: the layers after a difference of one step multiply it by their weights."""
    rng = np.random.default_rng(4)
    graph, _ = converted(net(), arithmetic)
    floats = importers.load(net())
    layers = {"conv", "deep", "sum", "mean", "logits", "y"}
    for _ in range(40):
        x = {"x": rng.integers(-128, 128, (1, 6, 6, 3)).astype(np.int8)}
        integers: dict[str, Array] = {}

        def record(node: Node, arrays: Sequence[Array | None], known: dict[str, Array] = integers) -> tuple[Array, ...]:
            results = by_reference(node, arrays)
            known[node.output.name] = results[0]
            return results

        evaluate(graph, x, record)
        assert layers <= set(integers)

        def compared(
            node: Node, arrays: Sequence[Array | None], known: dict[str, Array] = integers
        ) -> tuple[Array, ...]:
            (result, *_) = by_reference(node, arrays)
            if node.output.name not in layers:
                return (result,)
            got = known[node.output.name]
            assert got.dtype == result.dtype == np.int8
            assert np.abs(got.astype(int) - result.astype(int)).max() <= 1, node.output.name
            return (got,)

        evaluate(floats, x, compared)


def test_bias_beyond_f32_precision_is_exact() -> None:
    def gemm(bias: int) -> Array:
        model = Model()
        x = model.tensor("x", (1, 1), "i8", scale=[1.0], zero=[0])
        w = model.constant("w", np.array([[1]], np.int8), scale=[1.0])
        b = model.constant("b", np.array([bias], np.int32), scale=[1.0])
        z = model.tensor("z", (1, 1), "i8", scale=[2.0**24], zero=[0])
        model.add("FULLY_CONNECTED", [x, w, b], [z], activation=0)
        graph = importers.load(model.bytes([x], [z]))
        assert not to_integers(graph, "tflm")
        (node,) = graph.nodes
        return node.input(2).array

    assert gemm(2**24 + 1) == [2**24 + 1]
    assert gemm(-(2**30) - 1) == [-(2**30) - 1]


def one(type: str, shape: tuple[int, ...], scale: float, **options: object) -> tuple[Graph, list[str]]:
    """An operator on an image [1, 4, 4, 3], with this output shape and scale, in tflm arithmetic."""
    model = Model()
    x = model.tensor("x", (1, 4, 4, 3), "i8", scale=[0.05], zero=[-7])
    inputs = [x]
    if type == "RESIZE_BILINEAR":
        inputs.append(model.constant("size", np.array(shape[1:3], np.int32)))
    y = model.tensor("y", shape, "i8", scale=[scale], zero=[-7])
    model.add(type, inputs, [y], **options)
    return converted(model.bytes([x], [y]), "tflm")


def answers(graph: Graph) -> tuple[Array, Array]:
    """Random real inputs on the quantisation grid and the graph's results, in steps from the zero point."""
    x = np.random.default_rng(6).integers(-128, 128, (1, 4, 4, 3)).astype(np.int8)
    (y,) = evaluate(graph, {"x": x}).values()
    return (x.astype(float) + 7) * 0.05, y.astype(float) + 7


def test_max_pool_with_fused_activation_is_requantised_and_clipped() -> None:
    window = {"padding": 1, "stride_w": 2, "stride_h": 2, "filter_w": 2, "filter_h": 2, "activation": 3}
    graph, left = one("MAX_POOL_2D", (1, 2, 2, 3), 0.05, **window)
    assert not left
    assert kinds(graph) == {"MaxPool", "Lookup"}
    x, y = answers(graph)
    greatest = x.reshape(1, 2, 2, 2, 2, 3).max((2, 4))
    np.testing.assert_array_equal(y, np.rint(np.clip(greatest, 0, 6) / 0.05))


@pytest.mark.parametrize("type", ["HARD_SWISH", "LEAKY_RELU", "RELU6", "TANH", "QUANTIZE"])
def test_unary_functions_become_lookup_tables(type: str) -> None:
    graph, left = one(type, (1, 4, 4, 3), 0.07, alpha=0.25)
    assert not left
    assert kinds(graph) == {"Lookup"}
    x, y = answers(graph)
    real = {
        "HARD_SWISH": x * np.clip(x + 3, 0, 6) / 6,
        "LEAKY_RELU": np.where(x < 0, 0.25 * x, x),
        "RELU6": np.clip(x, 0, 6),
        "TANH": np.tanh(x),
        "QUANTIZE": x,
    }[type]
    expected = np.clip(real / 0.07, -121, 134)
    # HardSwish rounds several times in 16 bits; LeakyRelu's slope is rounded before two bits are shifted out, too.
    assert np.abs(y - expected).max() <= {"HARD_SWISH": 1.01, "LEAKY_RELU": 0.5 + 0.125}.get(type, 0.501)


def leaky(alpha: float, order: tuple[str, ...] = ("LeakyRelu",)) -> bytes:
    """A quantised convolution, these activations in float, and integers of the result."""
    rng = np.random.default_rng(8)
    weights = rng.integers(-127, 128, (5, 3, 3, 3)).astype(np.int8)
    constants: dict[str, Any] = {
        "xs": np.float32(0.05),
        "xz": np.int8(-4),
        "w": weights,
        "ws": rng.uniform(0.01, 0.02, 5).astype(np.float32),
        "b": rng.integers(-900, 900, 5).astype(np.int32),
        "ys": np.float32(0.1),
        "yz": np.int8(-90),
        "low": np.float32(-1),
        "high": np.float32(9),
    }
    constants["bs"] = np.float32(0.05) * constants["ws"]
    more: dict[str, dict[str, Any]] = {"LeakyRelu": {"alpha": alpha}}
    names = ["c", *(f"a{i}" for i in range(len(order)))]
    steps = [
        helper.make_node(
            kind, [names[i], *(["low", "high"] if kind == "Clip" else [])], [names[i + 1]], **more.get(kind, {})
        )
        for i, kind in enumerate(order)
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["c"], pads=[1] * 4),
        *steps,
        helper.make_node("QuantizeLinear", [names[-1], "ys", "yz"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [1, 3, 6, 7])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("order", [("LeakyRelu",), ("LeakyRelu", "Clip")])
def test_a_convolution_is_rounded_once_with_its_leaky_relu(order: tuple[str, ...], arithmetic: Arithmetic) -> None:
    """Half a step, and the rounding of sums to whole numbers before they are scaled, at most."""
    graph, left = converted(leaky(0.1, order), arithmetic)
    assert not left
    assert kinds(graph) == {"IntegerConv"}
    floats = importers.load(leaky(0.1, order))
    floats.outputs = [floats.outputs[0].producer.input(0)]  # type: ignore[union-attr]
    floats.prune()
    x = {"x": np.random.default_rng(9).integers(-128, 128, (1, 3, 6, 7)).astype(np.int8)}
    (got,), (real,) = evaluate(graph, x).values(), evaluate(floats, x).values()
    assert (real < 0).mean() > 0.2
    exact = np.clip(real.astype(np.float64) / np.float32(0.1), -128 + 90, 127 + 90)
    assert np.abs(got.astype(int) + 90 - exact).max() <= 0.5 + 0.01  # a sum is 0.01 of a step at most


@pytest.mark.parametrize(("alpha", "order"), [(0.1, ("Clip", "LeakyRelu")), (1.5, ("LeakyRelu",))])
def test_other_activations_before_the_rounding_stay_in_float(alpha: float, order: tuple[str, ...]) -> None:
    graph, left = converted(leaky(alpha, order), "onnx")
    assert left
    assert "IntegerConv" not in kinds(graph)


def test_bilinear_resampling_becomes_integers() -> None:
    graph, left = one("RESIZE_BILINEAR", (1, 8, 8, 3), 0.05, half_pixel_centers=True)
    assert not left
    assert kinds(graph) == {"IntegerResizeLinear"}
    x, y = answers(graph)
    np.testing.assert_array_equal(y[:, 0, 0], np.rint(x[:, 0, 0] / 0.05))
    assert y.min() >= (x / 0.05).min() - 0.5
    assert y.max() <= (x / 0.05).max() + 0.5


def in_4_bits(outs: int = 16) -> tuple[bytes, Array]:
    """A 1x1 convolution of 16 channels with 4-bit weights, and these weights [outs, 16]."""
    model = Model()
    weights = np.random.default_rng(7).integers(-8, 8, (outs, 16)).astype(DType.I4.numpy)
    x = model.tensor("x", (1, 3, 3, 16), "i8", scale=[0.5], zero=[3])
    w = model.constant("w", weights.reshape(outs, 1, 1, 16), scale=[0.25] * outs, axis=0)
    b = model.constant("b", np.arange(outs, dtype=np.int32), scale=[0.125] * outs, axis=0)
    y = model.tensor("y", (1, 3, 3, outs), "i8", scale=[2.0], zero=[-1])
    model.add("CONV_2D", [x, w, b], [y], padding=1, stride_w=1, stride_h=1, activation=0, dilation_w=1, dilation_h=1)
    return model.bytes([x], [y]), weights


@pytest.mark.parametrize("target", ["host", "cortex-m7"])
def test_4_bit_weights_are_packed_two_per_byte(target: str) -> None:
    model, weights = in_4_bits()
    graph, left = converted(model, "tflm")
    assert not left
    (node,) = (node for node in graph if node.op.name == "IntegerConv")
    assert node.input(1).type.dtype is DType.I4
    np.testing.assert_array_equal(node.input(1).array.astype(int).reshape(16, 16), weights.astype(int))
    bundle = tenon.compile(model, target=target, arithmetic="tflm", name="small")
    assert any(c.data.dtype == np.int8 and c.data.nbytes == 16 * 16 // 2 for c in bundle.program.constants)
    x = np.random.default_rng(8).integers(-128, 128, (1, 3, 3, 16)).astype(np.int8)
    try:
        (got,) = RemoteBundle(bundle).run([{"x": x}])[0].values()
    except ToolchainError as error:
        pytest.skip(str(error))
    total = (x.astype(int) - 3) @ weights.astype(int).T + np.arange(16)
    half = np.floor(
        total / 2 + 0.5
    )  # 1/16 is the multiplier 1/2, which rounds ties up, and a shift, which rounds ties away from 0
    sixteenth = np.sign(half) * np.floor(np.abs(half) / 8 + 0.5)
    np.testing.assert_array_equal(got, np.clip(sixteenth - 1, -128, 127))


def test_every_integer_operator_has_cases() -> None:
    operators = [cls for name, cls in registry().items() if name.startswith("Integer")]
    assert len(operators) >= 9
    assert all(any(True for _ in cls.cases()) for cls in operators)


# ------------------------------------------------------------------------------- products of several kinds
def transposed(stride: int, kernel: int, padding: int) -> tuple[Graph, list[str]]:
    """A TRANSPOSE_CONV of [1, 3, 4, 5] to two channels, in tflm's arithmetic."""
    rng, model = np.random.default_rng(11), Model()
    sizes = [n * stride if padding == 0 else (n - 1) * stride + kernel for n in (3, 4)]
    shape = model.constant("shape", np.array([1, *sizes, 2], np.int32))
    w = model.constant("w", rng.integers(-127, 128, (2, kernel, kernel, 5)).astype(np.int8), scale=[0.01, 0.02])
    x = model.tensor("x", (1, 3, 4, 5), "i8", scale=[0.5], zero=[-7])
    b = model.constant("b", rng.integers(-900, 900, 2).astype(np.int32), scale=[0.005, 0.01])
    y = model.tensor("y", (1, *sizes, 2), "i8", scale=[0.9], zero=[4])
    model.add("TRANSPOSE_CONV", [shape, w, x, b], [y], padding=padding, stride_h=stride, stride_w=stride, activation=0)
    return converted(model.bytes([x], [y]), "tflm")


@pytest.mark.parametrize(
    ("stride", "kernel", "padding"), [(1, 3, 0), (2, 2, 0), (2, 3, 0), (2, 5, 1), (3, 4, 0), (3, 3, 1)]
)
def test_transposed_convolutions_become_integers(stride: int, kernel: int, padding: int) -> None:
    graph, left = transposed(stride, kernel, padding)
    assert not left
    assert kinds(graph) <= {"IntegerConv", "Slice"}
    x = np.random.default_rng(12).integers(-128, 128, (1, 3, 4, 5)).astype(np.int8)
    (constants,) = ([v.array for v in n.inputs[1:] if v] for n in graph if n.op.name == "IntegerConv")
    (got,) = evaluate(graph, {"x": x}).values()
    rng = np.random.default_rng(11)
    w = rng.integers(-127, 128, (2, kernel, kernel, 5)).astype(int)
    bias = rng.integers(-900, 900, 2)
    full = np.zeros((2 * stride + kernel, 3 * stride + kernel, 2), int)
    for i, j in np.ndindex(3, 4):
        taps = (w * (x[0, i, j].astype(int) + 7)).sum(-1).transpose(1, 2, 0)
        full[i * stride : i * stride + kernel, j * stride : j * stride + kernel] += taps
    first = max(0, kernel - stride) // 2 if padding == 0 else 0
    _, h, width, _ = got.shape
    sums = np.zeros((h + first, width + first, 2), int)
    sums[: full.shape[0], : full.shape[1]] = full[: h + first, : width + first]
    sums = sums[first:, first:] + bias
    factors = Factors("double", constants[2][:: stride**2][:2], constants[3][:: stride**2][:2])
    np.testing.assert_array_equal(got[0], np.clip(factors.apply(sums) + 4, -128, 127))


def test_a_bias_of_floats_is_used_where_it_lies_on_the_steps_of_the_sums() -> None:
    def gemm(bias: list[float]) -> tuple[Graph, list[str]]:
        half, zero = np.array(0.5, np.float32), np.array(0, np.int8)
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xr"]),
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wr"]),
            helper.make_node("Gemm", ["xr", "wr", "b"], ["yr"]),
            helper.make_node("QuantizeLinear", ["yr", "s", "z"], ["y"]),
        ]
        constants: dict[str, Array] = {
            "s": half,
            "z": zero,
            "w": np.eye(3, dtype=np.int8),
            "b": np.array(bias, np.float32),
        }
        graph = helper.make_graph(
            nodes,
            "made",
            [helper.make_tensor_value_info("x", TensorProto.INT8, (1, 3))],
            [helper.make_tensor_value_info("y", TensorProto.INT8, None)],
            [numpy_helper.from_array(data, name) for name, data in constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return converted(bytes(made.SerializeToString()), "onnx")

    graph, left = gemm([0.25, -1.5, 0.0])
    assert not left
    (node,) = (node for node in graph if node.op.name == "IntegerGemm")
    np.testing.assert_array_equal(node.input(2).array, [1, -6, 0])
    _, left = gemm([0.25, -1.4, 0.0])
    assert "its bias is not quantised" in left[0]


def test_weights_are_stored_in_a_type_that_holds_their_zero_point() -> None:
    rng = np.random.default_rng(13)
    file, feeds = qlinear("QLinearMatMul", rng.integers(0, 99, (6, 4)).astype(np.uint8), 159)
    graph, left = converted(file, "tflm")
    assert not left
    expected = evaluate(graph, feeds)["y"]
    np.testing.assert_array_equal(tenon.open(tenon.compile(file, arithmetic="tflm")).run(feeds)["y"], expected)


@pytest.mark.parametrize("type", ["ADD", "MUL", "SUB"])
def test_sums_and_products_with_constants_are_those_of_two_tensors(type: str) -> None:
    """TFLite rounds them in steps, so they are no tables of functions of real numbers."""
    rng, model = np.random.default_rng(14), Model()
    x = model.tensor("x", (1, 2, 3, 4), "i8", scale=[0.05], zero=[-7])
    c = model.constant("c", rng.integers(-128, 128, (4,)).astype(np.int8), scale=[0.03], zero=[5])
    y = model.tensor("y", (1, 2, 3, 4), "i8", scale=[0.07], zero=[-1])
    model.add(type, [x, c], [y], activation=1)
    graph, left = converted(model.bytes([x], [y]), "tflm")
    assert not left
    assert kinds(graph) == {"IntegerMul" if type == "MUL" else "IntegerAdd"}


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_products_of_two_matrices_become_integers(arithmetic: Arithmetic) -> None:
    model = Model()
    a = model.tensor("a", (2, 3, 5), "i8", scale=[0.05], zero=[-7])
    b = model.tensor("b", (2, 4, 5), "i8", scale=[0.03], zero=[9])
    y = model.tensor("y", (2, 3, 4), "i8", scale=[0.25], zero=[1])
    model.add("BATCH_MATMUL", [a, b], [y], adj_y=True)
    graph, left = converted(model.bytes([a, b], [y]), arithmetic)
    assert not left
    assert kinds(graph) == {"IntegerMatMul"}
    rng = np.random.default_rng(15)
    feeds = {
        "a": rng.integers(-128, 128, (2, 3, 5)).astype(np.int8),
        "b": rng.integers(-128, 128, (2, 4, 5)).astype(np.int8),
    }
    sums = (feeds["a"].astype(int) + 7) @ (feeds["b"].astype(int) - 9).swapaxes(1, 2)
    (got,) = evaluate(graph, feeds).values()
    assert np.abs(got - np.clip(sums * 0.006 + 1, -128, 127)).max() <= 0.51
    assert tenon.compile(model.bytes([a, b], [y]), arithmetic=arithmetic).answer


def in_16_bits(bias: Array, arithmetic: Arithmetic, kind: str) -> tuple[Graph, list[str], Array]:
    """A product of i16 [1, 1, 1, 6] by weights of i8 in three channels, whose sums are multiplied by 0.0123."""
    model, rng = Model(), np.random.default_rng(16)
    conv = kind == "CONV_2D"
    weights = rng.integers(-127, 128, (3, 6)).astype(np.int8)
    x = model.tensor("x", (1, 1, 1, 6), "i16", scale=[0.5], zero=[0])
    w = model.constant("w", weights.reshape(3, 1, 1, 6) if conv else weights, scale=[0.0246])
    b = model.constant("b", bias, scale=[0.0123])
    y = model.tensor("y", (1, 1, 1, 3) if conv else (1, 3), "i16", scale=[1.0], zero=[0])
    more = {"padding": 1, "stride_w": 1, "stride_h": 1} if conv else {}
    model.add(kind, [x, w, b], [y], activation=0, **more)
    graph, left = converted(model.bytes([x], [y]), arithmetic)
    return graph, left, weights


ROUNDED = [
    ("CONV_2D", np.int64, "tflm", "reduced"),
    ("CONV_2D", np.int64, "litert", "reduced"),
    ("CONV_2D", np.int32, "tflm", "double"),
    ("FULLY_CONNECTED", np.int64, "tflm", "reduced"),
    ("FULLY_CONNECTED", np.int64, "litert", "single"),
    ("FULLY_CONNECTED", np.int32, "tflm", "double"),
]
"""Kind, type of the bias, arithmetic and rounding, as TFLite Micro's and LiteRT's reference kernels were measured."""


@pytest.mark.parametrize(("kind", "bias", "arithmetic", "rounding"), ROUNDED)
def test_activations_of_16_bits(kind: str, bias: type[np.integer[Any]], arithmetic: Arithmetic, rounding: str) -> None:
    numbers = np.array([1 << 20, -(1 << 22) - 1, (1 << 25) + 1])  # f32 does not hold the last one
    graph, left, weights = in_16_bits(numbers.astype(bias), arithmetic, kind)
    assert not left
    (op,) = (node.op for node in graph if node.op.name in ("IntegerConv", "IntegerGemm"))
    assert getattr(op, "rounding", "") == rounding
    x = np.random.default_rng(17).integers(-(1 << 15), 1 << 15, (1, 1, 1, 6)).astype(np.int16)
    sums = weights.astype(int) @ x.reshape(-1).astype(int) + numbers
    multiplier, shift = quantized_multiplier(float(np.float32(0.5) * np.float32(0.0246)))
    exact = rescaled(sums, multiplier, shift, rounding)  # type: ignore[arg-type]
    (got,) = evaluate(graph, {"x": x}).values()
    np.testing.assert_array_equal(got.reshape(-1), np.clip(exact, -(1 << 15), (1 << 15) - 1))
    if rounding == "reduced":  # 15 bits of the multiplier, once rounded
        short = round(float(np.float32(0.5) * np.float32(0.0246)) * 2.0 ** (15 - shift))
        by_fractions = [floor(Fraction(int(s) * short, 1 << (15 - shift)) + Fraction(1, 2)) for s in sums]
        np.testing.assert_array_equal(exact, by_fractions)


def test_scales_of_products_of_16_bits_are_multiplied_in_f64_by_litert() -> None:
    """f32 rounds the product of these scales; LiteRT does so only for sums of 32 bits."""
    x, w, y = (float(np.float32(scale)) for scale in (0.0071, 0.0133, 0.5))
    rounded = float(np.float32(x) * np.float32(w))
    assert rounded != x * w
    for arithmetic, in_64_bits, unit in (("litert", True, x * w), ("litert", False, rounded), ("tflm", True, rounded)):
        factors = product_factors(arithmetic, x, np.array([w], np.float32), y, gemm=True, wide=in_64_bits)  # type: ignore[arg-type]
        assert not isinstance(factors, str)
        assert factors.values.tolist() == [quantized_multiplier(unit / y)[0]]


def wide(deep: int, kind: str, bias: int | None) -> bytes:
    """A product of i16 [1, 1, 1, deep] by weights of 127 and -127, whose sums are multiplied by 0.0001."""
    model = Model()
    weights = np.full((2, deep), 127, np.int8)
    weights[1] = -127
    x = model.tensor("x", (1, 1, 1, deep), "i16", scale=[0.01], zero=[0])
    w = model.constant("w", weights.reshape(2, 1, 1, deep) if kind == "CONV_2D" else weights, scale=[0.01])
    b = [] if bias is None else [model.constant("b", np.full(2, bias), scale=[0.0001])]
    y = model.tensor("y", (1, 1, 1, 2) if kind == "CONV_2D" else (1, 2), "i16", scale=[30.0], zero=[0])
    model.add(kind, [x, w, *b], [y], activation=0, padding=1, stride_w=1, stride_h=1)
    return model.bytes([x], [y])


@pytest.mark.parametrize("kind", ["CONV_2D", "FULLY_CONNECTED"])
@pytest.mark.parametrize(
    ("deep", "bias", "operator"),
    [
        (516, 0, "narrow"),
        (516, 140000, "IntegerWideConv"),
        (517, 0, "IntegerWideConv"),
        (3000, -(1 << 34), "IntegerWideConv"),
        (3000, None, "IntegerWideConv"),
    ],
)
def test_sums_of_more_than_32_bits_are_exact(kind: str, deep: int, bias: int | None, operator: str) -> None:
    """32768 * 127 * 516 is the last sum that 32 bits hold."""
    graph, left = converted(wide(deep, kind, bias), "tflm")
    assert not left
    assert ("IntegerWideConv" in kinds(graph)) == (operator == "IntegerWideConv")
    multiplier, shift = quantized_multiplier(float(np.float32(0.01) * np.float32(0.01)) / 30)
    short = (multiplier + (1 << 15)) >> 16
    engine = tenon.open(tenon.compile(wide(deep, kind, bias), arithmetic="tflm")) if bias and bias < 0 else None
    for value in (-(1 << 15), (1 << 15) - 1, 12345):
        x = np.full((1, 1, 1, deep), value, np.int16)
        sums = [127 * value * deep * sign + (bias or 0) for sign in (1, -1)]
        expected = [floor(Fraction(s * short, 1 << (15 - shift)) + Fraction(1, 2)) for s in sums]
        for got in (*evaluate(graph, {"x": x}).values(), *(engine.run({"x": x}).values() if engine else ())):
            np.testing.assert_array_equal(got.reshape(-1), np.clip(expected, -(1 << 15), (1 << 15) - 1))


# -------------------------------------------------------------------------------------- ONNX's own products
def qlinear(type: str, weights: Array | None = None, zero: int = 0) -> tuple[bytes, dict[str, Array]]:
    """A QLinearConv or QLinearMatMul of u8 by weights with a scale for each column, and its input."""
    rng = np.random.default_rng(9)
    conv = type == "QLinearConv"
    x = rng.integers(0, 256, (1, 6, 5, 5) if conv else (2, 3, 6)).astype(np.uint8)
    w = rng.integers(-128, 128, (4, 6, 3, 3) if conv else (6, 4)).astype(np.int8) if weights is None else weights
    constants: dict[str, Array] = {
        "w": w,
        "xs": np.array(0.02, np.float32),
        "xz": np.array(117, np.uint8),
        "wz": np.full(4, zero, w.dtype),
        "ws": rng.uniform(0.002, 0.03, 4).astype(np.float32),
        "ys": np.array(0.3, np.float32),
        "yz": np.array(90, np.uint8),
        "b": rng.integers(-900, 900, 4).astype(np.int32),
    }
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *(["b"] if conv else [])]
    node = helper.make_node(type, inputs, ["y"])
    if conv:
        node.attribute.append(helper.make_attribute("pads", [1, 0, 1, 1]))
    graph = helper.make_graph(
        [node],
        "made",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(data, name) for name, data in constants.items() if conv or name != "b"],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString()), {"x": x}


@pytest.mark.parametrize(("type", "integer"), [("QLinearConv", "IntegerConv"), ("QLinearMatMul", "IntegerGemm")])
def test_onnx_products_of_integers_become_integers(type: str, integer: str) -> None:
    shape = (4, 6, 3, 3) if type == "QLinearConv" else (6, 4)
    small = np.random.default_rng(9).integers(-64, 64, shape).astype(np.int8)  # no pair of products exceeds 16 bits
    file, feeds = qlinear(type, small)
    graph, left = converted(file, "onnx")
    assert not left
    assert kinds(graph) == {integer}
    (expected,) = exact_onnxruntime.session(file).run(None, feeds)
    np.testing.assert_array_equal(evaluate(graph, feeds)["y"], expected)


# --------------------------------------------------------------------------------------- bundles and digests
def test_the_fixed_input_is_splitmix64() -> None:
    """The first outputs of the generator for the seed 0, from the paper's reference implementation."""
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    got = fixed_input(DType.U8, (3,), 0)
    np.testing.assert_array_equal(got, [z >> 56 for z in first])
    np.testing.assert_array_equal(fixed_input(DType.I8, (3,), 0), got.view(np.int8))
    floats = fixed_input(DType.F32, (2, 50), 1)
    assert floats.dtype == np.float32
    assert -1 <= floats.min() < -0.9
    assert 0.9 < floats.max() < 1


@pytest.mark.parametrize("target", ["host", "x86-64", "cortex-m7", "aarch64", "wasm32", "riscv64"])
def test_every_target_gives_the_stated_digest(target: str) -> None:
    bundle = tenon.compile(net(), target=target, arithmetic="tflm", name="net")
    assert_stated_digest(bundle)


def test_manifest_states_arithmetic_and_quantisation(tmp_path: Path) -> None:
    manifest = read_manifest(tenon.compile(net(), arithmetic="litert", name="net").save(tmp_path))
    assert manifest.arithmetic == "litert"
    assert len(manifest.answer) == 64
    (x,), (y,) = manifest.inputs, manifest.outputs
    assert (x.scale, x.zero_point) == (float(np.float32(0.05)), -4)
    assert (y.scale, y.zero_point) == (1 / 256, -128)
    header = (tmp_path / "net.h").read_text()
    assert "_SCALE 0.00390625" in header
    assert "_ZERO_POINT (-128)" in header
    with tenon.open(tmp_path) as engine:
        assert verify(engine.manifest, engine.run).right
        wrong = engine.manifest._replace(answer="0" * 64)
        assert not verify(wrong, engine.run).right


def test_float_models_have_no_digest() -> None:
    assert not tenon.compile(net(), arithmetic="float", name="net").answer
    assert not tenon.compile(net(normalized=True), arithmetic="onnx", name="net").answer  # a quotient of floats
    assert tenon.compile(net(), arithmetic="onnx", name="net").answer  # exponentials of integers are a table


def test_default_arithmetic_is_that_of_the_target(tmp_path: Path) -> None:
    model = tmp_path / "net.tflite"
    model.write_bytes(net())
    assert tenon.compile(model, target="x86-64").arithmetic == "onnx"
    assert tenon.compile(model, target="cortex-m7").arithmetic == "tflm"
    for target in ("x86-64", "cortex-m7"):
        bundle = tenon.compile(qlinear("QLinearConv")[0], target=target)
        assert bundle.arithmetic == "onnx"
        assert bundle.answer


def test_inspect_lists_operators_in_float() -> None:
    description, graph = inspect(net(normalized=True), arithmetic="onnx")
    assert graph is not None
    ((where, why),) = description.left_in_float
    assert "L2_NORMALIZATION" in where
    assert "float" in why
    assert "Div" in (description.compiled or {})
    exact, _ = inspect(net(), arithmetic="tflm")
    assert exact.left_in_float == ()
    assert exact.compiled
    assert "IntegerSoftmax" in exact.compiled


BEHIND_A_CONVOLUTION: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("Abs", {}, ()),
    ("Cast", {"to": "f32"}, ()),
    ("Concat", {"axis": 1}, (None,)),
    ("DepthToSpace", {"blocksize": 3}, ()),
    ("Flatten", {}, ()),
    ("Max", {}, (None,)),
    ("MaxPool", {"kernel_shape": (2, 2)}, ()),
    ("Neg", {}, ()),
    ("Pad", {}, ([0, 0, 1, 1, 0, 0, 1, 1],)),
    ("ReduceMax", {}, ([2, 3],)),
    ("ReduceMin", {}, ([2, 3],)),
    ("ReduceMin", {}, ([1],)),
    ("Relu", {}, ()),
    ("Slice", {}, ([1], [5], [1])),
    ("Split", {"axis": 1, "num_outputs": 3}, ()),
    ("Tile", {}, ([1, 2, 1, 1],)),
    ("Transpose", {"perm": (0, 2, 3, 1)}, ()),
]
"""Operators, attributes, and operands behind the first (None: the first again)."""


@pytest.mark.parametrize(("name", "attributes", "more"), BEHIND_A_CONVOLUTION)
def test_readers_of_blocked_integers(name: str, attributes: dict[str, Any], more: tuple[Any, ...]) -> None:
    """The result of a convolution has blocked layout; no operator may treat its bytes as floats."""
    case = next(iter(IntegerConv.cases()))
    x, *constants = [a for a in case.arrays() if a is not None]
    graph = Graph("behind")
    values = [graph.add_input("x", TensorType(DType.of(x.dtype), x.shape))]
    values += [graph.constant(f"c{i}", a) for i, a in enumerate(constants)]
    made = graph.add(case.op, values, ["v"], Origin("", "v", "IntegerConv")).output
    operands = [made]
    operands += [made if m is None else graph.constant(f"m{i}", np.array(m, np.int64)) for i, m in enumerate(more)]
    graph.outputs = [graph.add(registry()[name](**attributes), operands, ["y"], Origin("", "y", name)).outputs[0]]
    expected = evaluate(graph, {"x": x})["y"]
    np.testing.assert_array_equal(tenon.open(tenon.compile(graph)).run({"x": x})["y"], expected)


# ------------------------------------------------------------------------------------------- sums in floats
@pytest.mark.parametrize(("scales", "exact"), [((0.05, 0.031, 0.043), True), ((0.05, 0.05, 0.1), False)])
def test_sums_are_multiplied_by_a_reciprocal_where_no_pair_of_bytes_tells(
    scales: tuple[float, float, float], exact: bool
) -> None:
    """Halves are: 0.1 is twice 0.05, so that every second sum lies in the middle of two results."""
    a, b, c = (float(np.float32(s)) for s in scales)
    add = IntegerAdd("float", (3, -4, 5), scales=(a, b, c))
    assert (_reciprocal(add) is not None) == exact
    graph = Graph("sum")
    pair = [graph.add_input(name, TensorType(DType.I8, (65536,))) for name in "xy"]
    graph.outputs = [graph.add(add, pair, ["z"], Origin("", "z", "IntegerAdd")).output]
    every = np.arange(-128, 128).astype(np.int8)
    feeds = {"x": np.repeat(every, 256), "y": np.tile(every, 256)}
    got = tenon.open(tenon.compile(graph)).run(feeds)["z"]
    np.testing.assert_array_equal(got, evaluate(graph, feeds)["z"])


# ------------------------------------------------------------------------------------- products of images
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("channels", "surplus"), [(16, 0), (16, 1), (5, 0)])
def test_products_read_images_in_their_layout(machine: str, channels: int, surplus: int) -> None:
    """Blocks, halos that other readers asked for; images whose channels do not fill blocks become row-major."""
    rng = np.random.default_rng(8)
    x = rng.integers(-128, 128, (1, channels, 3, 2)).astype(np.int8)
    weights = rng.integers(-120, 128, (4, 6 * channels)).astype(np.int8)
    arrays = [x, weights, rng.integers(-999, 999, 4).astype(np.int32), *np.array([quantized_multiplier(0.003)] * 4).T]
    arrays[3:] = [a.astype(np.int32) for a in arrays[3:]]
    for w_zero in (0, 7):
        product = IntegerGemm("double", -3, w_zero, zero=4, scale=0.25)
        site = make_site(product, arrays, MACHINES[machine], (1, 2, 3, 4))
        block = MACHINES[machine].block
        image = site.input(0).with_layout(Layout(block, ((0, 0), (0, 0))))
        site = settle(product, replace(site, inputs=(image, *site.inputs[1:])), surplus)
        assert site.input(0).layout.image == (channels == 16)
        (got,) = run_site(product, site, arrays)
        np.testing.assert_array_equal(got, product.evaluate(arrays)[0])


def test_classifier_of_an_image_copies_nothing() -> None:
    """A convolution, the order of axes of TFLite, a reshape and a product: two kernels."""
    rng = np.random.default_rng(9)
    graph = Graph("classifier")
    x = graph.add_input("x", TensorType(DType.I8, (1, 4, 5, 3)))
    shift = np.array([-4], np.int32)

    def product(op: IntegerConv | IntegerGemm, value: Value, outs: int) -> Value:
        dims = (outs, 4, 3, 3) if isinstance(op, IntegerConv) else (outs, value.type.dims[1])
        data: list[Array] = [rng.integers(-127, 128, dims).astype(np.int8), np.zeros(outs, np.int32)]
        constants = [graph.constant("c", a) for a in (*data, np.array([3 << 29], np.int32), shift)]
        return graph.add(op, [value, *constants], [f"y{outs}"], Origin("", op.name, op.name)).output

    y = product(IntegerConv("double", pads=(1, 1, 1, 1)), x, 8)
    y = graph.add(Transpose((0, 2, 3, 1)), [y], ["t"]).output
    y = graph.add(Reshape(), [y, graph.constant("dims", np.array([1, 120]))], ["rows"]).output
    graph.outputs = [product(IntegerGemm("double"), y, 3)]
    feeds = {"x": rng.integers(-128, 128, (1, 4, 5, 3)).astype(np.int8)}
    (expected,) = evaluate(graph, feeds).values()
    optimised = graph.copy()
    optimize(optimised)
    assert [node.op.name for node in optimised] == ["IntegerConv", "IntegerGemm"]
    np.testing.assert_array_equal(next(iter(evaluate(optimised, feeds).values())), expected)
    calls = tenon.compile(graph, target="cortex-m4").program.calls
    assert [call.op for call in calls if call.op != "Reorder" or call.layer != "x"] == ["IntegerConv", "IntegerGemm"]
