"""Functions of TensorFlow's graphs, whose nodes refer to outputs by name, and the names of a SavedModel's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.tensorflow.loops import CONTROL
from tenon.formats.importers.tensorflow.ops import OPERATORS
from tenon.formats.importers.tensorflow.output_names import OUTPUT_NAMES
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tensorflow_models import Function, const, graph, node, placeholder, saved_model

RNG = np.random.default_rng(6)
X = RNG.uniform(-1, 1, (2, 6)).astype(np.float32)
IMAGE = RNG.uniform(-1, 1, (1, 4, 4, 2)).astype(np.float32)
NET = graph(placeholder("x", 2, 6), node("n", "Neg", "x"), node("a", "Abs", "x"))


def called(x: Array, function: Function) -> list[Array]:
    """The results of a graph that calls a function of one argument."""
    names = ["y", *(f"y:{i}" for i in range(1, len(function.outputs)))]
    call = node("y", "PartitionedCall", "x", f=function)
    data = graph(placeholder("x", *x.shape, dtype=str(DType.of(x.dtype))), call, functions=[function])
    return list(evaluate(importers.load(data, outputs=names), {"x": x}).values())


def one_node(op: str, outputs: list[str], x: Array, *operands: Array, **attributes: Any) -> list[Array]:
    constants = [const(f"c{i}", a, str(DType.of(a.dtype))) for i, a in enumerate(operands)]
    inputs = [f"c{i}:output:0" for i in range(len(operands))]
    made = node("made", op, "x", *inputs, **attributes)
    returned = {f"r{i}": f"made:{name}" for i, name in enumerate(outputs)}
    return called(x, Function("f", ["x"], returned, *constants, made))


# -------------------------------------------------------------------------------------- outputs by name
def test_outputs_are_found_by_name() -> None:
    values, indices = one_node("TopKV2", ["values:0", "indices:0"], X, np.array(2, np.int32))
    np.testing.assert_array_equal(values, np.sort(X, 1)[:, :-3:-1])
    np.testing.assert_array_equal(indices, np.argsort(-X, 1)[:, :2])
    (second,) = one_node("TopKV2", ["indices:0"], X, np.array(2, np.int32))
    np.testing.assert_array_equal(second, indices)


def test_outputs_of_a_pool_with_places() -> None:
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    places, largest = one_node("MaxPoolWithArgmax", ["argmax:0", "output:0"], IMAGE, **window)
    np.testing.assert_array_equal(IMAGE.reshape(-1)[places], largest)


def test_statistics_of_batch_normalisation() -> None:
    four = [np.array(v, np.float32) for v in ([1, 2], [3, 4], [0.5, -0.5], [2, 3])]
    outputs = ["batch_mean:0", "batch_variance:0", "reserve_space_2:0"]
    mean, variance, reserved = one_node("FusedBatchNormV3", outputs, IMAGE, *four, is_training=False)
    np.testing.assert_array_equal(mean, four[2])
    np.testing.assert_array_equal(variance, four[3])
    np.testing.assert_array_equal(reserved, four[3])
    mean, variance, reserved = one_node("FusedBatchNormV3", outputs, IMAGE, *four, is_training=True)
    rows = IMAGE.reshape(-1, 2)
    np.testing.assert_allclose(mean, rows.mean(0), atol=1e-6)
    np.testing.assert_allclose(variance, rows.var(0, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(reserved, rows.var(0), rtol=1e-5)


def test_an_output_of_many_tensors_counts_from_its_first() -> None:
    constants = const("axis", 1, "i32"), const("sizes", [1, 2, 3], "i32")
    split = node("s", "SplitV", "x", "sizes:output:0", "axis:output:0", num_split=3)
    last, first = called(X, Function("f", ["x"], {"a": "s:output:2", "b": "s:output:0"}, *constants, split))
    np.testing.assert_array_equal(last, X[:, 3:])
    np.testing.assert_array_equal(first, X[:, :1])


def test_results_of_a_function_within_a_function() -> None:
    inner = Function(
        "inner",
        ["x"],
        {"indices": "t:indices:0", "values": "t:values:0"},
        const("k", 2, "i32"),
        node("t", "TopKV2", "x", "k:output:0"),
    )
    outer = Function("outer", ["x"], {"p": "c:output:1", "q": "c:output:0"}, node("c", "PartitionedCall", "x", f=inner))
    data = graph(placeholder("x", 2, 6), node("y", "PartitionedCall", "x", f=outer), functions=[inner, outer])
    values, indices = evaluate(importers.load(data, outputs=["y", "y:1"]), {"x": X}).values()
    np.testing.assert_array_equal(values, np.sort(X, 1)[:, :-3:-1])
    np.testing.assert_array_equal(indices, np.argsort(-X, 1)[:, :2])


def test_an_output_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"'made' \(TopKV2\) has no output 'ranks'; it has values, indices"):
        one_node("TopKV2", ["ranks:0"], X, np.array(2, np.int32))


def test_operators_of_several_outputs_are_in_the_table() -> None:
    """Operators whose import gives several outputs that have names of their own."""
    several = {
        "BlockLSTM",
        "BlockLSTMV2",
        "CombinedNonMaxSuppression",
        "FusedBatchNorm",
        "FusedBatchNormV2",
        "FusedBatchNormV3",
        "GRUBlockCell",
        "LSTMBlockCell",
        "MaxPoolWithArgmax",
        "Merge",
        "NonMaxSuppressionV4",
        "NonMaxSuppressionV5",
        "RefMerge",
        "RefSwitch",
        "Switch",
        "TensorArrayV3",
        "TopK",
        "TopKV2",
    }
    assert several <= OPERATORS.keys() | CONTROL.keys()
    assert several <= OUTPUT_NAMES.keys()
    assert not {"Split", "SplitV", "Unpack", "IdentityN", "While", "If"} & OUTPUT_NAMES.keys()


# -------------------------------------------------------------------------------------- names of outputs
def test_outputs_have_the_names_of_the_signature(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "net", NET, {"negative": "n", "size": "a", "again": "a", "given": "x"}, {})
    results = evaluate(importers.load(folder), {"x": X})
    assert results.keys() == {"negative", "size", "again", "given"}
    for name, expected in {"negative": -X, "size": np.abs(X), "again": np.abs(X), "given": X}.items():
        np.testing.assert_array_equal(results[name], expected)


def test_outputs_are_chosen_by_either_name(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "net", NET, {"negative": "n", "size": "a"}, {})
    assert [v.name for v in importers.load(folder, outputs=["size"]).outputs] == ["size"]
    assert [v.name for v in importers.load(folder, outputs=["a", "negative"]).outputs] == ["a", "negative"]


def test_a_key_that_is_the_name_of_another_node(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "net", NET, {"n": "a", "a": "n"}, {})
    results = evaluate(importers.load(folder), {"x": X})
    np.testing.assert_array_equal(results["n"], np.abs(X))
    np.testing.assert_array_equal(results["a"], -X)
