"""Networks of thousands of operators in a row: nothing recurses once per operator, and times do not explode."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import tenon
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Let, Op
from tenon.network.graph.graph import Array

LENGTH = 2000
MOST_SECONDS = 60
"""A compilation takes a few seconds; one that is quadratic in the number of operators took minutes."""

CONSTANTS: dict[str, Array] = {
    "few": np.array(0.01, np.float32),
    "row": np.linspace(0.9, 1.1, 8, dtype=np.float32),
    "square": np.eye(8, dtype=np.float32),
    "scale": np.array(0.03, np.float32),
    "zero": np.array(0, np.int8),
}

Link = Callable[[int, str, str], Sequence[NodeProto]]
make = helper.make_node


def _elementwise(i: int, last: str, before: str) -> Sequence[NodeProto]:
    kind = ("Relu", "Sigmoid", "Add", "Tanh", "Mul")[i % 5]
    return [make(kind, [last, *{"Add": ["few"], "Mul": ["row"]}.get(kind, [])], [f"t{i}"])]


def _residual(i: int, last: str, before: str) -> Sequence[NodeProto]:
    return [make("Sigmoid", [last], [f"t{i}"]) if i % 2 else make("Add", [last, before], [f"t{i}"])]


def _of_both(i: int, last: str, before: str) -> Sequence[NodeProto]:
    return [make(("Add", "Max", "Sub")[i % 3], [last, before], [f"t{i}"])]


def _deep(i: int, last: str, before: str) -> Sequence[NodeProto]:
    return [make(("Asinh", "Softplus", "Atan", "Erf")[i % 4], [last], [f"t{i}"])]


def _rows(i: int, last: str, before: str) -> Sequence[NodeProto]:
    return [make("Softmax", [last], [f"t{i}"], axis=-1)]


def _products(i: int, last: str, before: str) -> Sequence[NodeProto]:
    return [make("Tanh", [last], [f"t{i}"]) if i % 2 else make("MatMul", [last, "square"], [f"t{i}"])]


def _quantised(i: int, last: str, before: str) -> Sequence[NodeProto]:
    return [
        make("Add", [last, before], [f"s{i}"]),
        make("QuantizeLinear", [f"s{i}", "scale", "zero"], [f"q{i}"]),
        make("DequantizeLinear", [f"q{i}", "scale", "zero"], [f"t{i}"]),
    ]


LINKS: tuple[Link, ...] = (_elementwise, _residual, _of_both, _deep, _rows, _products, _quantised)


def chain(link: Link, length: int) -> bytes:
    nodes, last, before = list[NodeProto](), "x", "x"
    for i in range(length):
        nodes += link(i, last, before)
        last, before = f"t{i}", last
    nodes.append(make("Identity", [last], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in "xy")
    constants = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "chain", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.__name__.strip("_"))
def test_chains_are_compiled(link: Link) -> None:
    model = chain(link, LENGTH)
    x = np.random.default_rng(0).normal(0, 1, (4, 8)).astype(np.float32)
    start = time.process_time()
    bundle = tenon.compile(model)
    assert time.process_time() - start < MOST_SECONDS
    (got,) = tenon.open(bundle).run({"x": x}).values()
    (expected,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_allclose(got, expected, 1e-4, 1e-5)


def test_expressions_of_any_depth_are_shared() -> None:
    """Names go to operations that are used twice, whatever the depth."""
    k = Builder("deep", "")
    x, y = k.param("x", 1), k.param("y", 1, out=True)
    value: Expr = x[0]
    for _ in range(5000):
        value = value * value + 1.0
    y[0] = value
    kernel = k.done()
    lets = [stmt.value for stmt in kernel.body if isinstance(stmt, Let)]
    assert len(lets) == 4999
    assert max(map(_depth, lets)) <= 3


def _depth(value: Expr) -> int:
    return 1 + max(map(_depth, value.args)) if isinstance(value, Op) else 0
