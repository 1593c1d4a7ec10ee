"""The elements of values that anything reads, where extents are known at run time.

A value's content ends at its extents, of its buffer's largest ones.  From the outputs, whose extents the graph states,
and from each Mask, which needs its operand up to its own extent only, demand is propagated back to the operands of each
node by the operators' rules (``Operator.reach``): along an axis, the positions below the greatest of a few affine
functions of extents.  Nodes of whose results less than everything is needed become ``Clipped``, whose further inputs
are the extents, if these are known before the node runs; their kernels are then cut short (``plan.clip``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tenon.machine.plan.clip import sums_end
from tenon.machine.plan.lowering_context import Setting, site
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import I64
from tenon.network.ops.base import Operator
from tenon.network.ops.clipped import SPARES, AbsorbedPositions, Clipped, NeededExtent, NeededPositions
from tenon.network.ops.mask import Mask
from tenon.network.ops.reach import Absorbed, Reach
from tenon.network.ops.size_check import Bounded

MOST_BOUNDS = 2
"""The most bounds of one axis; with more, everything is needed."""

_SCALAR = 8
"""Elements of the values from which extents are computed before anything else."""


@dataclass(frozen=True)
class ExtentBound:
    """The positions below ceil((factor * extent + offset) / divisor)."""

    extent: Value
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    def through(self, reach: Reach) -> ExtentBound:
        """The bound of an operand that is read as far as ``reach`` says."""
        read = Reach(0, self.factor, self.offset, self.divisor).then(reach)
        common = math.gcd(read.factor, read.offset, read.divisor)
        return ExtentBound(self.extent, read.factor // common, read.offset // common, read.divisor // common)


Bounds = frozenset[ExtentBound]
Demand = dict[int, Bounds]
"""The bounds along each axis of which not everything is needed."""


def unchecked(extent: Value) -> Value:
    """The extent before its range is checked: the same number, so that it is one bound and not two."""
    while extent.producer is not None and isinstance(extent.producer.op, Bounded):
        extent = extent.producer.input(0)
    return extent


def joined(bounds: Bounds) -> Bounds | None:
    """The same with bounds that differ in the offset as one; None if there are too many."""
    largest: dict[tuple[Value, int, int], int] = {}
    for b in bounds:
        key = b.extent, b.factor, b.divisor
        largest[key] = max(b.offset, largest.get(key, b.offset))
    merged = frozenset(ExtentBound(e, f, offset, d) for (e, f, d), offset in largest.items())
    return merged if len(merged) <= MOST_BOUNDS else None


def either(a: Demand | None, b: Demand) -> Demand:
    """The demand of two readers together; None is no reader."""
    if a is None:
        return b
    both = {axis: joined(a[axis] | b[axis]) for axis in a.keys() & b.keys()}
    return {axis: bounds for axis, bounds in both.items() if bounds is not None}


def output_extents(graph: Graph) -> dict[int, Demand]:
    """The demand of each output whose extents the graph states, by its number; asked before layouts are assigned."""
    by_name = {v.name: v for v in (*graph.inputs, *graph.outputs)}
    stated = ((i, graph.extents.get(v.name, ())) for i, v in enumerate(graph.outputs))
    return {
        i: {axis: frozenset({ExtentBound(unchecked(by_name[name]))}) for axis, name in extents if name in by_name}
        for i, extents in stated
        if extents
    }


Masked = list[tuple[Absorbed, Value]]
"""Operands over an axis of which a node sums, and the extent beyond which their elements change no sum."""

Sums = dict[Node, tuple[Masked, int]]
"""By node, such operands, and how many elements beyond the extents it may read."""


def demands(graph: Graph, outputs: dict[int, Demand], sums: Sums | None = None) -> dict[Value, Demand]:
    """The demand of every value of which not everything is needed; ``outputs`` that of outputs.  Nodes of ``sums`` read
    a few elements beyond the extents."""
    needed: dict[Value, Demand] = {}
    for i, result in enumerate(graph.outputs):
        needed[result] = either(needed.get(result), outputs.get(i, {}))
    for node in reversed(graph.nodes):
        for operand, wanted in _operand_demands(node, needed, *(sums or {}).get(node, ([], 0))):
            needed[operand] = either(needed.get(operand), wanted)
    return {value: demand for value, demand in needed.items() if demand}


def _operand_demands(
    node: Node, needed: dict[Value, Demand], masked: Masked, spare: int
) -> Iterator[tuple[Value, Demand]]:
    """The demand of a node on each of its inputs."""
    wanted: list[Demand | None] = [None] * len(node.inputs)
    for output, value in enumerate(node.outputs):
        if value in needed:
            for i, more in enumerate(_by_rule(node, output, needed[value])):
                wanted[i] = either(wanted[i], more)
    for read in node.op.counted_reads(node.inputs) if isinstance(node.op, Operator) else ():
        bound = frozenset({ExtentBound(unchecked(node.input(read.number)))})
        wanted[read.operand] = {**(wanted[read.operand] or {}), read.axis: bound}
    for absorbed, extent in masked:
        bound = frozenset({ExtentBound(extent, 1, spare)})
        wanted[absorbed.operand] = {**(wanted[absorbed.operand] or {}), absorbed.axis: bound}
    for operand, demand in zip(node.inputs, wanted, strict=True):
        if operand is not None:
            yield operand, demand or {}


def _by_rule(node: Node, output: int, demand: Demand) -> list[Demand]:
    """The demands of a node on its inputs for one of its outputs."""
    needed: list[Demand] = [{} for _ in node.inputs]
    results = [v.type for v in node.outputs]
    for axis, bounds in demand.items() if isinstance(node.op, Operator) else ():
        assert isinstance(node.op, Operator)
        for i, reach in enumerate(node.op.reach(node.inputs, results, axis, output) or ()):
            if reach is not None:
                needed[i][reach.axis] = frozenset(b.through(reach) for b in bounds)
    return needed


# ------------------------------------------------------------------------------------------------ nodes
def clip_nodes(graph: Graph, outputs: dict[int, Demand], setting: Setting | None = None) -> None:
    """Make nodes of whose results less than everything is needed ``Clipped``; with a ``setting``, after layouts are
    assigned, also those that sum over an axis of which less is needed."""
    for node in graph:
        if isinstance(node.op, Clipped):
            inputs = node.inputs[: node.op.count]
            node.op = node.op.base
            graph.rewire(node, inputs)
    needed = demands(graph, outputs)
    if not needed:
        return
    graph.reorder(_extents_first(graph))
    position = {node: i for i, node in enumerate(graph)}
    nodes = [node for node in graph if not node.bodies and isinstance(node.op, Operator)]
    sums: Sums = {}
    for node in nodes if setting is not None else ():
        masked = list(_masked(node))
        if setting is not None and masked:
            op = _clipped(node, needed, position, masked)[0]
            spare = next((n for n in SPARES if _sums_end(node, replace(op, spare=n), setting)), None)
            if spare is not None:
                sums[node] = masked, spare
    needed = demands(graph, outputs, sums)
    in_blocks = {node for node in nodes if isinstance(node.op, Operator) and node.op.in_blocks(node.inputs)}
    for node in nodes:
        masked, spare = sums.get(node, ([], 0))
        op, extents = _clipped(node, needed, position, masked)
        if op.needed or op.absorbed:
            node.op = replace(op, spare=spare, blocks=node in in_blocks)
            graph.rewire(node, (*node.inputs, *extents))


def _masked(node: Node) -> Iterator[tuple[Absorbed, Value]]:
    """The operands of a node that a Mask fills with what changes no result, and its extent."""
    for absorbed in node.op.absorbs(node.inputs) if isinstance(node.op, Operator) else ():
        maker = node.input(absorbed.operand).producer
        if maker is not None and isinstance(maker.op, Mask):
            lowest = absorbed.value == -math.inf and maker.op.value <= _LOWEST
            same_axis = maker.op.axis % maker.output.type.rank == absorbed.axis
            if same_axis and (lowest or maker.op.value == absorbed.value):
                yield absorbed, unchecked(maker.input(1))


_LOWEST = float(np.finfo(np.float32).min)


def _sums_end(node: Node, op: Clipped, setting: Setting) -> bool:
    """Whether the kernels of a node end their sums at extents."""
    types = [node.output.type if v is None else v.type for v in node.inputs]
    steps = op.base.lower(site(node, setting))
    return sums_end(op, types, [v.type for v in node.outputs], steps)


def _extents_first(graph: Graph) -> list[Node]:
    """The nodes, those that compute few integers from few integers as early as possible: first, or directly behind the
    last node that computes what they read."""
    order: dict[Node, None] = {}

    def place_counts(nodes: Iterable[Node]) -> None:
        todo = list(nodes)[::-1]
        while todo:
            node = todo.pop()
            if node not in order and _counts(node) and all(_placed(v, order) for v in node.inputs):
                order[node] = None
                todo += [reader for value in node.outputs for reader in value.uses][::-1]

    place_counts(graph)
    for node in graph:
        if node not in order:
            order[node] = None
            place_counts(reader for value in node.outputs for reader in value.uses)
    return list(order)


def _counts(node: Node) -> bool:
    """Whether a node computes few integers from few integers."""
    operands = [v for v in node.inputs if v is not None]
    return not node.bodies and all(_few(v) for v in (*operands, *node.outputs))


def _placed(value: Value | None, order: Mapping[Node, None]) -> bool:
    """Whether a value is there before any node, or what computes it is placed already."""
    return value is None or value.producer is None or value.producer in order


def _few(value: Value) -> bool:
    return value.type.size <= _SCALAR and not value.type.dtype.is_float


def _clipped(
    node: Node, needed: dict[Value, Demand], position: dict[Node, int], masked: Masked
) -> tuple[Clipped, dict[Value, int]]:
    """The operator of a node with those extents that are known before it runs, and the numbers of these extents."""

    def known(b: ExtentBound) -> bool:
        maker = b.extent.producer
        return b.extent.type.dtype is I64 and (maker is None or position[maker] < position[node])

    extents: dict[Value, int] = {}
    positions = list[NeededPositions]()
    for output, value in enumerate(node.outputs):
        for axis, bounds in sorted(needed.get(value, {}).items()):
            if all(map(known, bounds)):
                ordered = sorted(bounds, key=lambda b: (b.extent.name, b.factor, b.offset, b.divisor))
                numbered = [
                    NeededExtent(extents.setdefault(b.extent, len(extents)), b.factor, b.offset, b.divisor)
                    for b in ordered
                ]
                positions.append(NeededPositions(output, axis, tuple(numbered)))
    absorbed = [AbsorbedPositions(a.operand, a.axis, extents.setdefault(extent, len(extents))) for a, extent in masked]
    assert isinstance(node.op, Operator)
    return Clipped(node.op, len(node.inputs), tuple(positions), tuple(absorbed)), extents
