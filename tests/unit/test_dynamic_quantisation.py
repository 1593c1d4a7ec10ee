"""Models whose scales and zero points are known at run time: as the reference to the bit, by integer kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from evaluate import evaluate
from tenon.formats import importers
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph

TYPES = {
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.float32): TensorProto.FLOAT,
}
STEP = np.array(0.01, np.float32)
QUANTISE = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
SCALED = [
    helper.make_node("Cast", ["i"], ["c"], to=1),
    helper.make_node("Mul", ["s", "ws"], ["sw"]),
    helper.make_node("Mul", ["c", "sw"], ["y"]),
]


def file(nodes: list[Any], feeds: dict[str, Array], constants: dict[str, Array], to: int = TensorProto.FLOAT) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TYPES[a.dtype], a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", to, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def optimised(model: bytes) -> Graph:
    graph = importers.load(model)
    return passes.optimize(graph, verify=True)


def kernels(graph: Graph) -> str:
    return " ".join(node.op.name for node in graph)


def check(model: bytes, feeds: dict[str, Array], kind: str, tolerance: float = 1e-5, *, exact: bool = True) -> None:
    """Compiled code gives the bits of the reference, which is onnxruntime's result, by an operator of that kind.

    Not ``exact``: what floats are added to scaled sums, or computed of them, may be rounded once less than there.
    """
    assert kind in kernels(optimised(model))
    (expected,) = evaluate(importers.load(model), feeds).values()
    with tenon.open(tenon.compile(model)) as engine:
        ours = engine.run(feeds)["y"]
    assert np.allclose(ours, expected, 0 if exact else 1e-5, 0 if exact else 1e-6)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    (theirs,) = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert np.abs(ours.astype(np.float64) - theirs).max() <= tolerance * max(1e-3, np.abs(theirs).max())


def integers(rng: np.random.Generator, dtype: type[np.integer[Any]], *shape: int) -> Array:
    kind = np.iinfo(dtype)
    return rng.integers(kind.min, kind.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 3)])
@pytest.mark.parametrize(("group", "outs"), [(1, 5), (2, 4), (6, 6)])
def test_convolution(pads: tuple[int, ...], group: int, outs: int) -> None:
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((1, 6, 9, 8)).astype(np.float32)}
    w = integers(rng, np.uint8, outs, 6 // group, 3, 3)
    node = helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=pads, group=group)
    constants = {"w": w, "wz": np.array(131, np.uint8), "ws": STEP}
    check(file([QUANTISE, node, *SCALED], feeds, constants), feeds, "IntegerConv")


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"dilations": [2, 1]}])
def test_convolution_of_integers(attributes: dict[str, Any]) -> None:
    """The zero point is an input; the sums are the output."""
    rng = np.random.default_rng(4)
    feeds = {"x": integers(rng, np.uint8, 2, 3, 8, 7), "z": np.array(17, np.uint8)}
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], **attributes)
    model = file([node], feeds, {"w": integers(rng, np.uint8, 4, 3, 3, 3)}, TensorProto.INT32)
    check(model, feeds, "IntegerConv", 0)


@pytest.mark.parametrize("dims", [(1, 40), (5, 33), (2, 3, 16), (1, 2, 4, 7)])
@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 0), (np.int8, 3), (np.uint8, 128), (np.uint8, 97)])
def test_matrix_product(dims: tuple[int, ...], dtype: type[np.integer[Any]], zero: int) -> None:
    rng = np.random.default_rng(5)
    feeds = {"x": rng.standard_normal(dims).astype(np.float32)}
    node = helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"])
    constants = {"w": integers(rng, dtype, dims[-1], 21), "wz": np.array(zero, dtype), "ws": STEP}
    check(file([QUANTISE, node, *SCALED], feeds, constants), feeds, "IntegerGemm")


def test_zero_points_of_columns() -> None:
    """Weights less their zero points are bytes again where these lie close together."""
    rng = np.random.default_rng(6)
    feeds = {"x": rng.standard_normal((4, 24)).astype(np.float32)}
    w = rng.integers(60, 190, (24, 6)).astype(np.uint8)
    zero = np.array([120, 125, 130, 128, 127, 122], np.uint8)
    node = helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"])
    check(file([QUANTISE, node, *SCALED], feeds, {"w": w, "wz": zero, "ws": STEP}), feeds, "IntegerGemm")


@pytest.mark.parametrize(("least", "most"), [(7, 255), (130, 255), (-255, -3), (-255, 0), (-127, 128), (0, 255)])
def test_constants_beside_bytes(least: int, most: int) -> None:
    """Weights whose distance from their zero point is no byte."""
    rng = np.random.default_rng(12)
    feeds = {"x": integers(rng, np.uint8, 3, 10), "z": np.array(200, np.uint8)}
    w = rng.integers(least, most + 1, (10, 7))
    w.flat[:2] = least, most
    zero = 255 if most <= 0 else -least if least < 0 else 0
    node = helper.make_node("MatMulInteger", ["x", "w", "z", "wz"], ["y"])
    constants = {"w": (w + zero).astype(np.uint8), "wz": np.array(zero, np.uint8)}
    check(file([node], feeds, constants, TensorProto.INT32), feeds, "IntegerGemm", 0)


@pytest.mark.parametrize("constant", [True, False])
def test_padding_of_a_zero_point_that_is_no_byte(constant: bool) -> None:
    """A border of a number past 255 is not one of bytes; the sums are right all the same."""
    rng = np.random.default_rng(7)
    feeds = {"x": integers(rng, np.uint8, 1, 2, 4, 4), "n": np.array([300], np.float32)}
    nodes = [
        helper.make_node("Cast", ["x"], ["xi"], to=TensorProto.INT32),
        helper.make_node("Cast", ["n"], ["zero"], to=TensorProto.INT32),
        helper.make_node("Sub", ["xi", "zero"], ["centred"]),
        helper.make_node("Cast", ["centred"], ["f"], to=1),
        helper.make_node("Conv", ["f", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    if constant:
        nodes.pop(1)
    w = rng.integers(-9, 9, (3, 2, 3, 3)).astype(np.float32)
    constants = {"w": w, **({"zero": np.array([300], np.int32)} if constant else {})}
    given = {"x": feeds["x"]} if constant else feeds
    model = file(nodes, given, constants)
    graph = importers.load(model)
    with tenon.open(tenon.compile(model)) as engine:
        (expected,) = evaluate(graph, given).values()
        assert np.array_equal(engine.run(given)["y"], expected)


def test_to_float() -> None:
    rng = np.random.default_rng(8)
    feeds = {"x": rng.standard_normal((2, 5, 16)).astype(np.float32)}
    names = ["q", "w", "s", "ws", "z", "wz", "b"]
    node = helper.make_node("MatMulIntegerToFloat", names, ["y"], domain="com.microsoft")
    constants = {
        "w": integers(rng, np.int8, 16, 11),
        "wz": np.zeros(11, np.int8),
        "ws": rng.uniform(0.01, 0.02, 11).astype(np.float32),
        "b": rng.standard_normal(11).astype(np.float32),
    }
    check(file([QUANTISE, node], feeds, constants), feeds, "IntegerGemm", exact=False)


def test_quantised_matrix_product() -> None:
    rng = np.random.default_rng(9)
    feeds = {"x": rng.standard_normal((3, 20)).astype(np.float32)}
    node = helper.make_node("DynamicQuantizeMatMul", ["x", "w", "ws", "", "b"], ["y"], domain="com.microsoft")
    constants = {
        "w": integers(rng, np.int8, 20, 9),
        "ws": np.full(1, 0.02, np.float32),
        "b": rng.standard_normal(9).astype(np.float32),
    }
    check(file([node], feeds, constants), feeds, "IntegerGemm", exact=False)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm(direction: str, columns: bool) -> None:
    rng = np.random.default_rng(10)
    hidden, deep, sides = 6, 5, 2 if direction == "bidirectional" else 1
    feeds = {"x": rng.standard_normal((4, 1, deep)).astype(np.float32)}
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=hidden, direction=direction
    )
    of = (sides, 4 * hidden) if columns else (sides,)
    constants = {
        "w": integers(rng, np.int8, sides, deep, 4 * hidden),
        "r": integers(rng, np.int8, sides, hidden, 4 * hidden),
        "b": rng.standard_normal((sides, 8 * hidden)).astype(np.float32),
        **{n: rng.uniform(0.004, 0.01, of).astype(np.float32) for n in ("ws", "rs")},
        **{n: np.zeros(of, np.int8) for n in ("wz", "rz")},
    }
    check(file([node], feeds, constants), feeds, "IntegerGemm", 1e-3, exact=False)


def test_scales_are_applied_as_sums_are_stored() -> None:
    """Nothing in i32 goes through memory: one operator sums, converts and scales."""
    rng = np.random.default_rng(11)
    feeds = {"x": rng.standard_normal((3, 8)).astype(np.float32)}
    node = helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"])
    model = file([QUANTISE, node, *SCALED], feeds, {"w": integers(rng, np.int8, 8, 4), "ws": STEP})
    graph = optimised(model)
    assert "IntegerGemm+Cast+Mul" in kernels(graph)
    assert onnx.load_from_string(model).graph.output[0].name == graph.outputs[0].name


RUN_TIME = helper.make_node("DynamicQuantizeLinear", ["v"], ["p", "ws", "wz"])


@pytest.mark.parametrize(
    ("a", "b"),
    [((7, 64), (64, 33)), ((2, 3, 5, 16), (2, 3, 16, 9)), ((4, 1, 6, 7), (3, 7, 17)), ((3, 1, 5), (5, 20))],
)
def test_product_of_two_matrices_at_run_time(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Batches broadcast; rows of bytes need not be whole words."""
    rng = np.random.default_rng(13)
    feeds = {"x": rng.standard_normal(a).astype(np.float32), "v": (rng.standard_normal(b) + 1).astype(np.float32)}
    node = helper.make_node("MatMulInteger", ["q", "p", "z", "wz"], ["i"])
    model = file([QUANTISE, RUN_TIME, node, *SCALED], feeds, {})
    check(model, feeds, "IntegerMatMul")
    assert "IntegerMatMul+Cast+Mul" in kernels(optimised(model))


@pytest.mark.parametrize("dtypes", [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("zeros", ["both", "left", "right", "none", "constant"])
def test_sums_of_two_matrices_at_run_time(dtypes: tuple[type[np.integer[Any]], ...], zeros: str) -> None:
    rng = np.random.default_rng(14)
    x, v = integers(rng, dtypes[0], 2, 6, 21), integers(rng, dtypes[1], 2, 21, 18)
    known = {"z": np.array(101, dtypes[0]), "wz": np.array(-3 if dtypes[1] is np.int8 else 255, dtypes[1])}
    names = [n if zeros in ("both", "constant", side) else "" for n, side in (("z", "left"), ("wz", "right"))]
    node = helper.make_node("MatMulInteger", ["x", "v", *names], ["y"])
    given = {n: a for n, a in known.items() if n in names}
    feeds, constants = {"x": x, "v": v}, given if zeros == "constant" else {}
    feeds |= {} if constants else given
    check(file([node], feeds, constants, TensorProto.INT32), feeds, "IntegerMatMul", 0)


@pytest.mark.parametrize("side", [0, 1])
def test_sums_of_constants_in_batches(side: int) -> None:
    """A constant that is no single matrix of weights is packed at run time, too."""
    rng = np.random.default_rng(15)
    pair = [integers(rng, np.uint8, 3, 4, 12), integers(rng, np.uint8, 3, 12, 7)]
    feeds, constants = {"a": pair[0]}, {"b": pair[1]}
    if side == 0:
        feeds, constants = {"b": pair[1]}, {"a": pair[0]}
    feeds |= {"z": np.array(9, np.uint8), "wz": np.array(200, np.uint8)}
    node = helper.make_node("MatMulInteger", ["a", "b", "z", "wz"], ["y"])
    constants_too = {n: feeds.pop(n) for n in (("wz",) if side else ("z",))}
    check(file([node], feeds, constants | constants_too, TensorProto.INT32), feeds, "IntegerMatMul", 0)


def test_matrix_of_zero_points_stays_in_i32() -> None:
    """One for each row of the left matrix, as the specification allows."""
    rng = np.random.default_rng(16)
    feeds = {"x": integers(rng, np.uint8, 4, 8), "v": integers(rng, np.uint8, 8, 5), "z": integers(rng, np.uint8, 4)}
    node = helper.make_node("MatMulInteger", ["x", "v", "z"], ["y"])
    model = file([node], feeds, {}, TensorProto.INT32)
    (expected,) = evaluate(importers.load(model), feeds).values()
    with tenon.open(tenon.compile(model)) as engine:
        assert np.array_equal(engine.run(feeds)["y"], expected)
