"""Fused operators: fusion of steps into producers, and the results of every producer with steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from lowered import MACHINES, Ask, run_lowered
from operator_cases import LOWERED
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.activation import Clip, Relu, Sigmoid
from tenon.network.ops.base import Case
from tenon.network.ops.convert import Cast
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.fused import Fused, can_fuse, fuse
from tenon.network.ops.integer_arithmetic import IntegerAdd
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_product import IntegerProduct
from tenon.network.ops.pointwise import Add, Mul
from tenon.network.ops.reduce import ReduceSum
from tenon.network.ops.requantize import limits


class Net:
    """A graph with data for all values, so that fused nodes can be compared with the nodes that they replace."""

    def __init__(self) -> None:
        self.graph = Graph("net")
        self.data: dict[Value, Array | None] = {}
        self.rng = np.random.default_rng(1)

    def value(self, array: Array, *, constant: bool = False) -> Value:
        type = TensorType(DType.of(array.dtype), array.shape)
        value = self.graph.constant("w", array) if constant else self.graph.add_input("x", type)
        self.data[value] = array
        return value

    def random(self, *shape: int, constant: bool = False) -> Value:
        return self.value(self.rng.uniform(-1, 1, shape).astype(np.float32), constant=constant)

    def node(self, op: object, *inputs: Value | None) -> Node:
        node = self.graph.add(op, inputs, ["y"])  # type: ignore[arg-type]
        arrays = [None if v is None else self.data[v] for v in inputs]
        self.data[node.output] = op.evaluate(arrays)[0]  # type: ignore[attr-defined]
        return node

    def fused(self, producer: Node, consumer: Node) -> Node:
        assert can_fuse(producer, consumer) == ""
        op, inputs = fuse(producer, consumer)
        return self.node(op, *inputs)


def test_operands_are_renumbered_when_steps_are_added() -> None:
    net = Net()
    x, y, z, half = (
        net.random(3, 5),
        net.random(3, 5),
        net.random(5),
        net.value(np.array(0.5, np.float32), constant=True),
    )
    first = net.node(Mul(), x, y)
    second = net.node(Sigmoid(), first.output)
    third = net.node(Add(), z, second.output)
    fourth = net.node(Clip(), third.output, None, half)
    fifth = net.node(Mul(), fourth.output, z)
    one = net.fused(first, second)
    two = net.fused(one, _reading(net, third, second, one))
    three = net.fused(two, _reading(net, fourth, third, two))
    four = net.fused(three, _reading(net, fifth, fourth, three))
    assert isinstance(four.op, Fused)
    assert [step.op.name for step in four.op.steps] == ["Sigmoid", "Add", "Clip", "Mul"]
    assert sum(v is z for v in four.inputs) == 1
    np.testing.assert_array_equal(net.data[four.output], net.data[fifth.output])
    assert four.output.type == fifth.output.type


def _reading(net: Net, consumer: Node, old: Node, new: Node) -> Node:
    """The consumer, with the output of ``new`` in place of that of ``old``."""
    return net.node(consumer.op, *(new.output if v is old.output else v for v in consumer.inputs))


def test_fused_node_as_consumer() -> None:
    net = Net()
    x, y = net.random(2, 3), net.random(2, 3)
    producer = net.node(Add(), x, y)
    start = net.node(Mul(), producer.output, y)
    chain = net.fused(start, net.node(Mul(), start.output, producer.output))
    whole = net.fused(producer, chain)
    np.testing.assert_array_equal(net.data[whole.output], net.data[chain.output])


def test_reasons_for_not_fusing() -> None:
    net = Net()
    x = net.random(2, 3)
    relu = net.node(Relu(), x)
    wide = net.node(Add(), relu.output, net.random(4, 2, 3))
    assert "another shape" in can_fuse(relu, wide)
    assert "not pointwise" in can_fuse(relu, net.node(ReduceSum(), relu.output))
    assert "does not read" in can_fuse(relu, net.node(Relu(), x))
    assert "registers" in can_fuse(relu, net.node(Cast("i64"), relu.output))
    summed = net.node(ReduceSum(), x)
    assert "applies nothing" in can_fuse(summed, net.node(Relu(), summed.output))


# ------------------------------------------------------------------------- every producer, every machine
@dataclass(frozen=True)
class Extended:
    """A fused operator, its inputs, flags of constant inputs, and the expected result."""

    op: Fused
    arrays: list[Array | None]
    constant: tuple[int, ...]
    expected: Array
    tolerance: float


def _extended(case: Case) -> Extended | None:
    """clip(result * channel, 0.1, 0.9) + residual after a case, of sums of integers as floats; None if its producer
    cannot fuse it."""
    net = Net()
    sums = isinstance(case.op, IntegerProduct) and case.op.rounding == "none"
    if isinstance(case.op, IntegerConv) and not sums:
        return _with_sum(case)
    inputs = [None if a is None else net.value(a, constant=i in case.constant) for i, a in enumerate(case.arrays())]
    node = net.node(case.op, *inputs)
    if sums:
        node = net.fused(node, net.node(Cast(), node.output))
    if len(node.outputs) != 1 or node.output.type.dtype is not DType.F32:
        return None
    shape = node.output.type.dims
    channel = net.random(*(n if i == 1 else 1 for i, n in enumerate(shape)), constant=True)
    low, high = (net.value(np.array(v, np.float32), constant=True) for v in (0.1, 0.9))
    for op, *operands in ((Mul(), channel), (Clip(), low, high), (Add(), net.random(*shape))):
        step = net.node(op, node.output, *operands)
        if can_fuse(node, step):
            return None
        node = net.fused(node, step)
    constant = tuple(i for i, v in enumerate(node.inputs) if v is not None and v.constant)
    arrays = [None if v is None else net.data[v] for v in node.inputs]
    expected = net.data[node.output]
    assert isinstance(node.op, Fused)
    assert expected is not None
    # The tolerance of cases with 16-bit weights includes their rounding.
    return Extended(node.op, arrays, constant, expected, max(1e-5, case.tolerance))


def _with_sum(case: Case) -> Extended | None:
    """A residual sum of integers on top of a case; None where its producer cannot take it."""
    net = Net()
    inputs = [None if a is None else net.value(a, constant=i in case.constant) for i, a in enumerate(case.arrays())]
    node = net.node(case.op, *inputs)
    low, high = limits(node.output.type.dtype)
    residual = np.random.default_rng(3).integers(low, high + 1, node.output.type.dims)
    other = net.value(residual.astype(node.output.type.dtype.numpy))
    scales = 0.05, float(np.float32(0.031)), float(np.float32(0.043))
    # The sum usually has the zero point of its operand; the kernel must not rely on it.
    own = case.op.zero if isinstance(case.op, IntegerProduct) and "1x1" not in case.label else 3
    zeros = own, -4, 5
    to = str(node.output.type.dtype)
    step = net.node(IntegerAdd("float", zeros, low, high, to, scales), node.output, other)
    if can_fuse(node, step):
        assert isinstance(case.op, IntegerConv)
        assert case.op.rounding != "float"
        return None
    node = net.fused(node, step)
    constant = tuple(i for i, v in enumerate(node.inputs) if v is not None and v.constant)
    expected = net.data[node.output]
    assert isinstance(node.op, Fused)
    assert expected is not None
    arrays = [None if v is None else net.data[v] for v in node.inputs]
    return Extended(node.op, arrays, constant, expected, 0.0)


def _producers() -> Iterator[tuple[str, Extended]]:
    for name, case in LOWERED.items():
        if type(case.op).fusable and not isinstance(case.op, Fused | Pointwise) and (extended := _extended(case)):
            yield name, extended


PRODUCERS = dict(_producers())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", PRODUCERS)
def test_every_producer_applies_its_steps(name: str, machine: str) -> None:
    extended = PRODUCERS[name]
    residual = len(extended.arrays) - 1 if machine == "lanes4" else None  # the result may be computed in place of it
    ask = Ask(blocked=True, surplus=1, overwrite=residual)
    (got,) = run_lowered(extended.op, extended.arrays, MACHINES[machine], extended.constant, ask)
    scale = max(1.0, float(np.abs(extended.expected).max()))
    np.testing.assert_allclose(got, extended.expected, rtol=0, atol=extended.tolerance * scale)
