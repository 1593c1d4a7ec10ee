"""How far values are needed where extents are known at run time, and compiled networks that compute only that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import tenon
from tenon.machine.kernel_ir.needed import NeededCount
from tenon.machine.kernel_ir.text import show
from tenon.machine.plan.demand import Demand, ExtentBound, clip_nodes, demands, output_extents
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.plan.program import Call, mapped
from tenon.machine.proofs.needed import LeftOutError, with_proved_cuts
from tenon.machine.targets import find
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.types import F32, I64, tensor
from tenon.network.ops.activation import Relu
from tenon.network.ops.base import Operator
from tenon.network.ops.clipped import Clipped
from tenon.network.ops.conv import Conv
from tenon.network.ops.convert import Cast
from tenon.network.ops.mask import Mask
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.move import Concat, Transpose
from tenon.network.ops.pointwise import Add, Div
from tenon.network.ops.pool import MaxPool
from tenon.network.ops.reach import Reach
from tenon.network.ops.reduce import ReduceMax
from tenon.network.ops.shape import Reshape
from tenon.network.ops.softmax import Softmax

RNG = np.random.default_rng(7)


class Net:
    """A graph under construction."""

    def __init__(self) -> None:
        self.graph = Graph("sizes")
        self.sizes: dict[str, Value] = {}

    def size(self, name: str, most: int, step: int = 1) -> Value:
        self.graph.sizes[name] = SizeRange(0, most, step)
        return self.graph.add_input(name, tensor(I64))

    def input(self, name: str, *dims: int, **extents: str) -> Value:
        self.graph.extents[name] = tuple((int(axis[1:]), size) for axis, size in extents.items())
        return self.graph.add_input(name, tensor(F32, *dims))

    def weights(self, *dims: int) -> Value:
        return self.graph.constant("w", RNG.standard_normal(dims).astype(np.float32) * np.float32(0.3))

    def integers(self, *numbers: int) -> Value:
        return self.graph.constant("c", np.array(numbers if len(numbers) > 1 else numbers[0], np.int64))

    def add(self, op: Operator, *inputs: Value) -> Value:
        return self.graph.add(op, inputs, [f"v{len(self.graph)}"]).output

    def output(self, value: Value, **extents: Value) -> None:
        self.graph.outputs.append(value)
        if extents:
            self.graph.extents[value.name] = tuple((int(axis[1:]), size.name) for axis, size in extents.items())


def windows() -> Net:
    """A convolution with padding, one by steps of two and a pooling, over images of H x W of 16 x 24."""
    net = Net()
    h, w = net.size("H", 16, 4), net.size("W", 24, 4)
    x = net.input("x", 1, 3, 16, 24, a2="H", a3="W")

    def masked(x: Value, h: Value, w: Value) -> Value:
        return net.add(Mask(3, 0.0), net.add(Mask(2, 0.0), x, h), w)

    conv = Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    y = net.add(Relu(), net.add(conv, masked(x, h, w), net.weights(20, 3, 3, 3)))
    half = [net.add(Div(), size, net.integers(2)) for size in (h, w)]
    y = net.add(Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2)), masked(y, h, w), net.weights(8, 20, 3, 3))
    joined = net.add(Concat(1), y, net.add(Relu(), y))
    net.output(net.add(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), joined))
    quarter = [net.add(Div(), size, net.integers(2)) for size in half]
    for size in quarter:
        net.output(size)
    net.graph.extents[net.graph.outputs[0].name] = ((2, quarter[0].name), (3, quarter[1].name))
    return net


def attention(most: int = 20) -> Net:
    """Attention of one layer over L of 20 positions, with 2 heads of 8 channels."""
    net = Net()
    n = net.size("L", most)
    x = net.input("x", 1, most, 16, a1="L")

    def heads(perm: tuple[int, ...]) -> Value:
        y = net.add(Add(), net.add(MatMul(), x, net.weights(16, 16)), net.weights(16))
        return net.add(Transpose(perm), net.add(Reshape(), y, net.integers(1, most, 2, 8)))

    scores = net.add(MatMul(), heads((0, 2, 1, 3)), heads((0, 2, 3, 1)))
    shares = net.add(Softmax(-1), net.add(Mask(3, -np.inf), scores, n))
    values = net.add(Mask(2, 0.0), heads((0, 2, 1, 3)), n)
    y = net.add(Transpose((0, 2, 1, 3)), net.add(MatMul(), net.add(Mask(3, 0.0), shares, n), values))
    y = net.add(MatMul(), net.add(Reshape(), y, net.integers(1, most, 16)), net.weights(16, 16))
    net.output(net.add(Add(), x, y), a1=n)
    return net


def shown(demand: Demand) -> dict[int, list[tuple[str, int, int, int]]]:
    return {
        axis: sorted((b.extent.name, b.factor, b.offset, b.divisor) for b in bounds) for axis, bounds in demand.items()
    }


@pytest.mark.parametrize("divisor", [1, 2, 16])
@pytest.mark.parametrize("reach", [Reach(0), Reach(0, 1, -3, 4), Reach(0, 16, -15), Reach(0, 2, 5, 3)])
def test_operands_of_operands_are_needed_as_far_as_both_reaches_say(divisor: int, reach: Reach) -> None:
    """The bound is exact where the second has no factor, or takes back what the first rounds up."""
    both, spare = Reach(0, 3, 2, divisor).then(reach), set[int]()
    for count in range(60):
        first = -(-(3 * count + 2) // divisor)
        second = -(-(reach.factor * first + reach.offset) // reach.divisor)
        spare.add(-(-(both.factor * count + both.offset) // both.divisor) - second)
    assert min(spare) == 0
    assert max(spare) <= (reach.factor > 1) * reach.factor
    whole = Reach(0, divisor=16)
    assert whole.then(Reach(0)) == whole
    assert ExtentBound(Value("n", tensor(I64)), divisor=16).through(Reach(0, 16, -15)).offset == 0


def test_windows_need_a_margin_and_masks_their_extent() -> None:
    graph = windows().graph
    needed = demands(graph, output_extents(graph))
    by_op = {node.op.name: node for node in graph}
    pool, first = by_op["MaxPool"], graph.nodes[2]
    quarter = graph.outputs[1].name, graph.outputs[2].name
    assert shown(needed[pool.output]) == {2: [(quarter[0], 1, 0, 1)], 3: [(quarter[1], 1, 0, 1)]}
    assert shown(needed[pool.input(0)]) == {2: [(quarter[0], 2, 0, 1)], 3: [(quarter[1], 2, 0, 1)]}
    assert first.op.name == "Conv"
    assert shown(needed[first.output]) == {2: [("H", 1, 0, 1)], 3: [("W", 1, 0, 1)]}
    # of a window of three, and three more positions of a tile of Winograd's algorithm
    assert shown(needed[first.input(0)]) == {2: [("H", 1, 4, 1)], 3: [("W", 1, 4, 1)]}


@pytest.mark.parametrize(("axis", "value", "more"), [(2, 0.0, 7), (2, -1.0, 0), (3, 0.0, 0), (None, 0.0, 0)])
def test_blocks_need_rows_of_zeros(axis: int | None, value: float, more: int) -> None:
    """Only where a Mask stores zeros below an image does a 1x1 convolution read rows that complete a block."""
    net = Net()
    sizes = [net.size(name, 16) for name in "HW"]
    x = net.add(Relu(), net.input("x", 1, 128, 16, 16, a2="H", a3="W"))
    if axis is not None:
        x = net.add(Mask(axis, value), x, sizes[axis - 2])
    net.output(net.add(Conv(), x, net.weights(128, 128, 1, 1)), a2=sizes[0], a3=sizes[1])
    needed = demands(net.graph, output_extents(net.graph))
    assert shown(needed[x]) == {2: [("H", 1, more, 1)], 3: [("W", 1, 0, 1)]}
    clip_nodes(net.graph, output_extents(net.graph))
    blocks = {node.op.name: node.op.blocks for node in net.graph if isinstance(node.op, Clipped)}
    assert blocks["Conv"] == (more > 0)
    assert not blocks["Relu"]


def test_readers_that_need_everything_leave_nothing_out() -> None:
    net = attention()
    net.output(net.graph.nodes[0].output)
    needed = demands(net.graph, output_extents(net.graph))
    assert net.graph.nodes[0].output not in needed
    assert net.graph.nodes[1].output in needed


@pytest.mark.parametrize("first", [True, False])
def test_nodes_end_at_extents_that_are_known_before_they_run(first: bool) -> None:
    """A count that a network computes from floats is not known to nodes before it."""
    net = Net()
    x = net.input("x", 4, 6)
    early = net.add(Relu(), x)
    count = net.add(Cast("i64"), net.add(ReduceMax(keepdims=0), x))
    late = net.add(Relu(), x)
    net.output(early if first else late)
    outputs: dict[int, Demand] = {0: {0: frozenset({ExtentBound(count)})}}
    clip_nodes(net.graph, outputs)
    assert [node.output for node in net.graph if isinstance(node.op, Clipped)] == ([] if first else [late])


@pytest.mark.parametrize("target", ["x86-64-avx2", "cortex-m4"])
def test_kernels_of_a_plan_end_at_extents(target: str) -> None:
    program = plan(attention().graph, Setting(find(target).machine), "sizes")
    whole = [call.op for call in program.calls if call.cut is None]
    assert set(whole) <= {"Mask"}, whole
    assert all("needed" in show(call.kernel) for call in program.calls if call.cut is not None)


NETS = {"windows": windows, "attention": attention}


@pytest.mark.parametrize(("name", "c99"), [("windows", "gnu"), ("attention", "strict")])
def test_compiled_networks_compute_their_true_extents(name: str, c99: Literal["gnu", "strict"], tmp_path: Path) -> None:
    """With one thread and with two, for several sizes, the results are those of the references."""
    net = NETS[name]()
    folder = tenon.compile(net.graph, threads=2, c99=c99).save(tmp_path / "net")
    x, *_ = (v for v in net.graph.inputs if v.type.dtype is F32)
    whole = RNG.standard_normal(x.type.dims).astype(np.float32)
    sizes = [
        dict(zip(net.graph.sizes, at, strict=True))
        for at in ([(8, 24), (16, 4)] if name == "windows" else [(7,), (20,)])
    ]
    for threads in (1, 2):
        engine = tenon.Engine(folder, threads=threads)
        for size in sizes:
            check(net.graph, engine, x, whole, size)


def check(graph: Graph, engine: tenon.Engine, x: Value, whole: Array, size: dict[str, int]) -> None:
    counts = {name: np.array(n, np.int64) for name, n in size.items()}
    got = engine.run({x.name: whole, **counts})
    expected = evaluate(graph, {x.name: whole, **counts})
    first = graph.outputs[0].name
    kept = tuple(slice(n) for n in got[first].shape)
    np.testing.assert_allclose(got[first], expected[first][kept], rtol=0, atol=1e-5)
    assert got[first].size


def test_kernels_whose_cuts_are_not_proved_stay_whole() -> None:
    """A kernel that is cut shorter than what is needed is replaced by the whole one; one that sums less is refused."""
    program = plan(attention().graph, Setting(find("x86-64-avx2").machine), "sizes")
    assert with_proved_cuts(program).calls == program.calls

    def shorter(call: Call) -> Call:
        if call.cut is None:
            return call
        needed = tuple(replace(axis, bounds=(NeededCount(axis.bounds[0].param, 2),)) for axis in call.cut.needed)
        return replace(call, cut=replace(call.cut, needed=needed))

    wrong = replace(program, items=mapped(program.items, shorter))
    with pytest.raises(LeftOutError):
        with_proved_cuts(wrong)
    plain = tuple(call for call in wrong.calls if call.cut is None or not call.cut.absorbed)
    calls = with_proved_cuts(replace(wrong, items=plain)).calls
    assert all(call.cut is None for call in calls)
    assert all(a.kernel is b.cut.whole for a, b in zip(calls, plain, strict=True) if b.cut is not None)


def test_extents_are_computed_as_soon_as_what_they_depend_on() -> None:
    """An extent that follows from a result of the network is known before the nodes that need no more than it says."""
    net = Net()
    x = net.input("x", 1, 4, 12)
    count = net.add(Cast("i64"), net.add(ReduceMax(keepdims=0), x))
    y = net.add(Relu(), x)
    twice = net.add(Add(), count, count)
    net.output(net.add(Relu(), net.add(Mask(2, 0.0), y, twice)))
    clip_nodes(net.graph, {})
    order = [node.output for node in net.graph]
    assert order.index(twice) == order.index(count) + 1
    assert y.producer is not None
    assert isinstance(y.producer.op, Clipped)
    assert y.producer.inputs[-1] is twice
