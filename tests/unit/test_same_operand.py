"""Sums and products of functions of one 8-bit tensor become one table with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Graph
from tenon.network.ops.integer_arithmetic import IntegerMul
from tenon.network.passes.integers import to_integers
from tenon.options import Arithmetic
from tflite_models import Model

CODES = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)


def swish(type: str, *, twice: bool) -> bytes:
    """x * Sigmoid(x) or x + Sigmoid(x); with ``twice`` the operands are two inputs."""
    model = Model()
    x = model.tensor("x", (1, 256), "i8", scale=[0.04], zero=[-3])
    other = model.tensor("other", (1, 256), "i8", scale=[0.04], zero=[-3]) if twice else x
    gate = model.tensor("gate", (1, 256), "i8", scale=[1 / 256], zero=[-128])
    y = model.tensor("y", (1, 256), "i8", scale=[0.05], zero=[7])
    model.add("LOGISTIC", [other], [gate])
    model.add(type, [x, gate], [y])
    return model.bytes([x, other] if twice else [x], [y])


def integers(model: bytes, arithmetic: Arithmetic) -> Graph:
    graph = importers.load(model)
    assert not to_integers(graph, arithmetic)
    return graph


@pytest.mark.parametrize("arithmetic", ["onnx", "tflm", "litert"])
@pytest.mark.parametrize("type", ["MUL", "ADD"])
def test_a_function_of_one_tensor_is_one_table(type: str, arithmetic: Arithmetic) -> None:
    one, two = (integers(swish(type, twice=twice), arithmetic) for twice in (False, True))
    assert [node.op.name for node in one] == ["Lookup"]
    assert sorted(node.op.name for node in two) == ["IntegerAdd" if type == "ADD" else "IntegerMul", "Lookup"]
    assert one.outputs[0].type.quant == two.outputs[0].type.quant
    (expected,) = evaluate(two, {"x": CODES, "other": CODES}).values()
    (result,) = evaluate(one, {"x": CODES}).values()
    np.testing.assert_array_equal(result, expected)
    assert len(np.unique(result)) > 50


def test_a_factor_per_channel_is_kept() -> None:
    model = Model()
    x = model.tensor("x", (1, 8), "i8", scale=[0.04], zero=[0])
    factors = model.constant("f", np.arange(-4, 4, dtype=np.int8).reshape(1, 8), scale=[0.1], zero=[0])
    gate = model.tensor("gate", (1, 8), "i8", scale=[1 / 256], zero=[-128])
    y = model.tensor("y", (1, 8), "i8", scale=[0.05], zero=[0])
    model.add("LOGISTIC", [x], [gate])
    model.add("MUL", [gate, factors], [y])
    graph = integers(model.bytes([x], [y]), "tflm")
    assert [type(node.op) is IntegerMul for node in graph] == [False, True]
