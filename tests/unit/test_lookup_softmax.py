"""Functions of 8-bit integers that give floats: softmax by a table of exponentials, others by a table of results."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from compiled import Library
from interpret import interpret
from lowered import MACHINES, make_site, run_lowered, run_site
from networks_to_quantise import built
from on_targets import assert_stated_digest
from tenon.errors import ShapeError
from tenon.formats import importers
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.lookup_softmax import LookupSoftmax as Rows
from tenon.machine.kernels.lookup_softmax import lookup_softmax
from tenon.machine.kernels.rows import CHAINS
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.machine.targets.host import missing
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.text import parse_type
from tenon.network.graph.types import DType
from tenon.network.ops.lookup_softmax import LookupLogSoftmax, LookupSoftmax, exponentials, logarithm
from tenon.network.ops.softmax import Softmax
from tenon.network.passes.integers import to_integers
from tenon.network.passes.integers.digest import is_exact
from tenon.options import Arithmetic

ARITHMETICS: tuple[Arithmetic, ...] = ("tflm", "litert", "onnx")
UNIT = 2.0**-24
"""The relative error of one rounding."""


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    kind = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(kind.min, kind.max + 1, shape).astype(dtype)


def exact_softmax(x: Array, axis: int, scale: float) -> Array:
    real = x.astype(np.float64) * scale
    e = np.exp(real - real.max(axis, keepdims=True))
    result: Array = e / e.sum(axis, keepdims=True)
    return result


# ------------------------------------------------------------------------------------------------ the operator
def test_exponentials_are_rounded_once() -> None:
    for scale in (0.0, 0.004, 0.07, 0.27, 0.9, 3.0, 1e30):
        table = exponentials(scale).astype(np.float64)
        with np.errstate(under="ignore"):
            exact = np.exp(-np.arange(256) * scale)
        large = exact > 1.1e-30
        assert table[0] == 1
        assert (np.abs(table - exact)[large] <= exact[large] * UNIT * (1 + 1e-6)).all()
        assert not table[~large & (exact < 1e-30)].any()
        assert not ((table > 0) & (table < 1e-30)).any()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 1000, 20000])
def test_errors_are_those_of_few_roundings(n: int, dtype: Any) -> None:
    """An exponential, a division and a product are rounded once each; so is every addition of positive numbers, of
    which a number takes part in n / CHAINS of its chain and three between chains.  Exponentials that count as zero are
    less than 1.1e-30."""
    roundings = 2 * (1 + 1 + n // CHAINS + 3)  # the exponential and those of the sum, in both factors
    for scale in (0.004, 0.1, 0.9):
        x = random((3, n), dtype)
        expected = exact_softmax(x, -1, scale)
        got = LookupSoftmax(-1, scale).reference(x)
        assert got.dtype == np.float32
        assert (np.abs(got - expected) <= roundings * UNIT * expected + 2e-30).all()
        np.testing.assert_allclose(got.astype(np.float64).sum(-1), 1, atol=roundings * UNIT)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("n", [32, 33, 46, 1000, 4096])
def test_work_groups_add_in_the_order_of_one_thread(n: int, log: bool) -> None:
    machine, x, table = find("cuda").machine, random((3, n), np.int8, n), exponentials(0.02)
    results = []
    for lanes in (machine, MACHINES["lanes1"]):
        kernel = lookup_softmax(Rows(3, n, 1, DType.I8, log, 0.02), lanes)
        assert (work_groups(kernel) is not None) is (lanes is machine)
        assert prove(kernel) > 0
        y = np.full((3, n), np.nan, np.float32)
        interpret(kernel, [x, table, y])
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])


def test_softmax_is_near_that_of_floats() -> None:
    """A number of up to 12.8 and its distance of up to 25.6 are rounded before exp takes them, which multiplies the
    result by 1 + their errors, in the numerator and in the sum; roundings of the functions are few beside it."""
    x = random((50, 12), np.int8)
    scale = float(np.float32(0.1))
    floats = x.astype(np.float32) * np.float32(scale)
    (expected,) = Softmax().evaluate([floats])
    got = LookupSoftmax(-1, scale).reference(x)
    assert (np.abs(got - expected) <= (2 * (12.8 + 25.6) + 16) * UNIT * expected).all()


OPERATORS = (LookupSoftmax, LookupLogSoftmax)
SHAPES = ((-1, (1, 1)), (-1, (3, 6)), (1, (2, 19)), (0, (33,)), (1, (2, 9, 3)), (-1, (1, 17000)))


@pytest.mark.parametrize("flags", [("-O1",), ("-O3", "-march=native", "-ffp-contract=fast")])
def test_compiled_kernels_give_the_bits_of_the_reference(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Kernels have 1 to 16 lanes, with the host's fused multiply-adds and without."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc")
    library, places = Library(), []
    for machine, dtype, cls, (axis, shape) in product(MACHINES.values(), (np.int8, np.uint8), OPERATORS, SHAPES):
        op, x = cls(axis, 0.05 if shape[0] > 2 else 2.5), random(shape, dtype)
        site = make_site(op, [x], machine)
        for step in op.lower(site):
            library.add(step.kernel)
        places.append((op, site, x))
    library.build(tmp_path, [gcc, *flags])
    for op, site, x in places:
        (got,) = run_site(op, site, [x], execute=library)
        assert got.tobytes() == op.reference(x).tobytes()


@pytest.mark.parametrize("scale", [0.004, 0.1, 0.9])
def test_logarithms_are_near_those_of_floats(scale: float) -> None:
    """The sum has the relative error of its roundings, an absolute one of its logarithm, which is rounded to 1 ulp; so
    is the product, and the result is rounded once."""
    for n in (1, 5, 1000):
        x = random((3, n), np.int8)
        real = x.astype(np.float64) * scale
        real = real - real.max(-1, keepdims=True)
        total = np.log(np.exp(real).sum(-1, keepdims=True))
        got = LookupLogSoftmax(-1, scale).reference(x)
        largest = np.abs(real) + total + np.abs(real - total)
        assert (np.abs(got - (real - total)) <= UNIT * ((4 + n // CHAINS) + 2 * largest)).all()


@pytest.mark.parametrize("x", [1.0, 1.0000001, 1.41421354, 1.41421366, 2.0, 1e3, 9e7])
def test_logarithms_are_within_1_ulp(x: float) -> None:
    number = np.array([x], np.float32)
    exact = np.log(number.astype(np.float64))
    np.testing.assert_allclose(logarithm(number), exact, rtol=2 * UNIT)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_rows_of_extreme_numbers(dtype: Any) -> None:
    kind = np.iinfo(dtype)
    x = np.array([[kind.min, kind.max], [kind.min, kind.min], [kind.max, kind.max]], dtype)
    for machine in MACHINES.values():
        (got,) = run_lowered(LookupSoftmax(-1, 1.0), [x], machine)
        np.testing.assert_array_equal(got, [[0, 1], [0.5, 0.5], [0.5, 0.5]])


def test_zero_points_make_no_difference() -> None:
    x = random((4, 9), np.int8) // 2
    shifted = (x.astype(np.int64) + 60).astype(np.int8)
    as_u8 = (x.astype(np.int64) + 128).astype(np.uint8)
    results = [LookupSoftmax(-1, 0.1).reference(a).tobytes() for a in (x, shifted, as_u8)]
    assert len(set(results)) == 1


def test_other_types_are_refused() -> None:
    graph = Graph("g")
    x = graph.add_input("x", parse_type("i16[2,3]"))
    with pytest.raises(ShapeError, match="8-bit"):
        graph.add(LookupSoftmax(), [x], ["y"])


# ------------------------------------------------------------------------------------------- graphs that have it
def graph_of(nodes: list[Any], outputs: tuple[str, ...] = ("y",), dtype: int = TensorProto.INT8) -> Graph:
    """The integers x [2, 3, 4], of the scale 0.1 and the zero point 5, as floats f, and ``nodes``; c has a scale for
    each channel, w is of 16 bits and v are floats."""
    constants = {
        "s": np.array(0.1, np.float32),
        "z": np.array(5, helper.tensor_dtype_to_np_dtype(dtype)),
        "each": np.array([0.1, 0.2, 0.3], np.float32),
        "half": np.array(0.5, np.float32),
        "third": np.array(1 / 3, np.float32),
        "minus": np.array(-0.5, np.float32),
        "flat": np.array([6, 4], np.int64),
        "to": np.array(1 / 200, np.float32),
        "low": np.array(-128, np.int8),
        "high": np.array(127, np.int8),
    }
    given = {"x": dtype, "w": TensorProto.INT16, "v": TensorProto.FLOAT}
    first = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        helper.make_node("DequantizeLinear", ["x", "each"], ["c"], axis=1),
        helper.make_node("DequantizeLinear", ["w", "s"], ["g"]),
    ]
    made = helper.make_graph(
        [*first, *nodes],
        "g",
        [helper.make_tensor_value_info(name, type, [2, 3, 4]) for name, type in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return importers.load(model.SerializeToString())


def feeds(dtype: Any) -> dict[str, Array]:
    return {
        "x": random((2, 3, 4), dtype),
        "w": random((2, 3, 4), np.int16) // 99,
        "v": np.random.default_rng(2).normal(0, 1, (2, 3, 4)).astype(np.float32),
    }


node = helper.make_node
FROM_INTEGERS: dict[str, tuple[list[Any], str]] = {  # operators, with "/" those of TFLite's arithmetics behind
    "last axis": ([node("Softmax", ["f"], ["y"])], "LookupSoftmax"),
    "middle axis": ([node("Softmax", ["f"], ["y"], axis=1)], "LookupSoftmax"),
    "logarithm": ([node("LogSoftmax", ["f"], ["y"], axis=1)], "LookupLogSoftmax"),
    "logarithm, quantised": (
        [node("LogSoftmax", ["f"], ["1"]), node("QuantizeLinear", ["1", "s", "high"], ["y"])],
        "LookupLogSoftmax QuantizeLinear",
    ),
    "moved": (
        [
            node("Transpose", ["f"], ["1"], perm=[0, 2, 1]),
            node("Reshape", ["1", "flat"], ["2"]),
            node("Softmax", ["2"], ["y"], axis=0),
        ],
        "Reshape LookupSoftmax Transpose",
    ),
    "factor": ([node("Mul", ["f", "half"], ["1"]), node("Softmax", ["1"], ["y"])], "LookupSoftmax"),
    "quantised again": (
        [node("Softmax", ["f"], ["1"]), node("QuantizeLinear", ["1", "to", "low"], ["y"])],
        "ByteSoftmax / LookupSoftmax QuantizeLinear",
    ),
    "middle axis, quantised again": (
        [node("Softmax", ["f"], ["1"], axis=1), node("QuantizeLinear", ["1", "to", "low"], ["y"])],
        "LookupSoftmax QuantizeLinear",
    ),
    "sigmoid": ([node("Sigmoid", ["f"], ["y"])], "Lookup"),
    "functions": (
        [node("Mul", ["f", "third"], ["1"]), node("Tanh", ["1"], ["2"]), node("Exp", ["2"], ["y"])],
        "Lookup",
    ),
    "square": ([node("Mul", ["f", "f"], ["y"])], "Lookup"),
    "moved afterwards": ([node("Sigmoid", ["f"], ["1"]), node("Reshape", ["1", "flat"], ["y"])], "Lookup Reshape"),
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", FROM_INTEGERS)
def test_functions_of_integers_are_tables(name: str, dtype: Any) -> None:
    nodes, text = FROM_INTEGERS[name]
    by_onnx, *by_tflite = text.split(" / ")
    graph = graph_of(nodes, dtype=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    before = evaluate(graph, feeds(dtype))["y"]
    for arithmetic in ARITHMETICS:
        made = graph.copy()
        left = to_integers(made, arithmetic)
        expected = by_onnx if arithmetic == "onnx" or not by_tflite else by_tflite[0]
        assert sorted(n.op.name for n in made) == sorted(expected.split())
        assert is_exact(made)
        assert not left or (arithmetic != "onnx" and "quantised" in name)  # TFLite's softmax is another
        after = evaluate(made, feeds(dtype))["y"]
        assert after.dtype == before.dtype
        step = 1 if after.dtype.kind in "iu" else 1e-5  # of results of up to 169, whose operands are 13 or less
        np.testing.assert_allclose(after.astype(np.float64), before, rtol=1e-5, atol=step)


STAY: dict[str, list[Any]] = {
    "scales of channels": [node("Softmax", ["c"], ["y"])],
    "16 bits": [node("Softmax", ["g"], ["y"])],
    "floats": [node("Softmax", ["v"], ["y"])],
    "logarithm of 16 bits": [node("LogSoftmax", ["g"], ["y"])],
    "negative factor": [node("Mul", ["f", "minus"], ["1"]), node("Softmax", ["1"], ["y"])],
    "sum": [node("Add", ["f", "v"], ["1"]), node("Softmax", ["1"], ["y"])],
    "sigmoid of 16 bits": [node("Sigmoid", ["g"], ["y"])],
    "sigmoid before arithmetic": [node("Sigmoid", ["f"], ["1"]), node("Mul", ["1", "v"], ["y"])],
    "product of two tensors": [node("Mul", ["f", "g"], ["y"])],
}


@pytest.mark.parametrize("name", STAY)
def test_other_functions_stay_in_float(name: str) -> None:
    graph = graph_of(STAY[name])
    before = evaluate(graph, feeds(np.int8))["y"]
    to_integers(graph, "onnx")
    assert not {n.op.name for n in graph} & {"Lookup", "LookupLogSoftmax", "LookupSoftmax"}
    assert not is_exact(graph)
    np.testing.assert_array_equal(evaluate(graph, feeds(np.int8))["y"], before)


def test_floats_that_others_read_remain() -> None:
    nodes = [node("Softmax", ["f"], ["y"]), node("Neg", ["f"], ["n"]), node("Sigmoid", ["f"], ["p"])]
    graph = graph_of(nodes, ("y", "f", "n", "p"))
    before = evaluate(graph, feeds(np.int8))
    to_integers(graph, "onnx")
    names = sorted(n.op.name for n in graph)
    assert names == ["DequantizeLinear", "Lookup", "LookupSoftmax", "Neg"]
    after = evaluate(graph, feeds(np.int8))
    for name, rtol in (("f", 0), ("n", 0), ("y", 1e-5), ("p", 1e-6)):
        np.testing.assert_allclose(after[name], before[name], rtol=rtol)


# --------------------------------------------------------------------------------------------------- targets
TARGETS = ("host", "x86-64", "aarch64", "aarch64-sve256", "cortex-m4", "cortex-m0plus", "riscv64", "wasm32")
"""Targets of 1 to 8 lanes, with fused multiply-adds and without, with floats in software."""


@pytest.mark.parametrize("function", ["Softmax", "LogSoftmax", "Sigmoid"])
def test_all_targets_give_the_same_floats(function: str) -> None:
    """The stated digest is that of the references."""
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(0, 0.3, (10, 16)), "b": rng.normal(0, 0.5, (16, 27))}
    nodes = [
        node("MatMul", ["x", "a"], ["1"]),
        node("Relu", ["1"], ["2"]),
        node("MatMul", ["2", "b"], ["3"]),
        node(function, ["3"], ["y"]),
    ]
    given = [rng.normal(0, 1, (3, 10)).astype(np.float32) for _ in range(12)]
    made = tenon.quantize(
        built(nodes, weights, [3, 10], [3, 27]),
        given,
        method="min-max",
        range_search=False,
        rounding="nearest",
        equalisation=False,
        bias_correction=False,
    )
    bundles = {target: tenon.compile(made.graph, target=target) for target in TARGETS}
    assert len({bundle.answer for bundle in bundles.values()}) == 1
    assert bundles["host"].answer
    for target, bundle in bundles.items():
        if not missing(find(target)):
            assert_stated_digest(bundle)


@pytest.mark.parametrize("channels", [1, 5, 11])
def test_floats_of_any_number_of_channels(channels: int) -> None:
    """Channels that only fill a vector are zeros."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.3, (channels, 6, 1, 1))}
    nodes = [
        node("Conv", ["x", "w"], ["1"]),
        node("Sigmoid", ["1"], ["2"]),
        node("MaxPool", ["2"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    given = [rng.normal(0, 1, (1, 6, 4, 4)).astype(np.float32) for _ in range(8)]
    made = tenon.quantize(
        built(nodes, weights, [1, 6, 4, 4], [1, channels, 2, 2]),
        given,
        method="min-max",
        range_search=False,
        rounding="nearest",
        equalisation=False,
        bias_correction=False,
    )
    for output in made.report.outputs:
        assert output.sqnr > 30
