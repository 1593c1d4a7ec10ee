"""Control flow, sequences and optionals of ONNX.

A condition that is known picks a branch, which is inlined; otherwise both become bodies of a node that runs one of
them.  Loops have a module of their own (``loops``).  A sequence is a list of values whose length is known; an optional
is a value, a sequence or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tenon.formats.decompositions.branches import choose, different
from tenon.formats.decompositions.onnx.node import Entry, TensorSequence
from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.formats.importers.onnx.loops import loop, scan
from tenon.formats.importers.onnx.node_context import SubgraphNode, flat, kinds, rebuilt
from tenon.network.graph.graph import Value
from tenon.network.graph.writer import is_known
from tenon.network.ops.slice_gather import Gather

if TYPE_CHECKING:
    from onnx import GraphProto


def _if(call: SubgraphNode) -> list[Entry]:
    condition = call.value(0)
    branches = [call.graph(name) for name in ("then_branch", "else_branch")]
    if condition.data is not None:
        if condition.data.size != 1:
            raise RefusedError(f"its condition has {condition.data.size} elements, not one")
        return call.inline(branches[0 if condition.data.item() else 1], ())
    if not is_known(condition):
        raise UntypedError
    if condition.type.rank:
        condition = call.emit("Reshape", [condition, call.constant(np.zeros(0, np.int64))])
    writer, entries = call.importer.writer, list[list[Entry]]()

    def branch(graph: GraphProto) -> list[Value]:
        entries.append(call.body(graph, ()))
        if kinds(entries[0]) != kinds(entries[-1]):
            raise different(writer, condition, "sequences of different lengths")
        return flat(entries[-1])

    values = choose(writer, condition, [partial(branch, graph) for graph in branches], call.origin)
    return rebuilt(entries[0], values)


# ------------------------------------------------------------------------------ sequences and optionals
def _at(call: SubgraphNode, count: int, i: int) -> int:
    """The position that input ``i`` names in a sequence of ``count``."""
    position = int(call.known(i, "the position in the sequence").item())
    if not -count <= position <= count:
        raise RefusedError(f"position {position} is not in a sequence of {count}")
    return position + count if position < 0 else position


def _sequence_at(call: SubgraphNode) -> list[Entry]:
    values = call.items(0)
    return [values[_at(call, len(values), 1)]]


def _sequence_insert(call: SubgraphNode) -> list[Entry]:
    entry = call.entry(0)
    if isinstance(entry, TensorSequence) and entry.growing and call.entry(2) is None:
        return [replace(entry, values=(*entry.values, call.value(1)))]
    values = call.items(0)
    at = _at(call, len(values), 2) if call.entry(2) is not None else len(values)
    return [TensorSequence((*values[:at], call.value(1), *values[at:]))]


def _sequence_erase(call: SubgraphNode) -> list[Entry]:
    values = call.items(0)
    at = _at(call, len(values), 1) if call.entry(1) is not None else len(values) - 1
    return [TensorSequence((*values[:at], *values[at + 1 :]))]


def _split_to_sequence(call: SubgraphNode) -> list[Entry]:
    x, axis = call.value(0), call.attribute("axis", 0)
    n = x.type.dims[axis]
    split = call.known(1, "the split") if call.entry(1) is not None else None
    step = 1 if split is None else int(split.item()) if split.ndim == 0 else 0
    sizes = [min(step, n - i) for i in range(0, n, step)] if step else [int(s) for s in np.asarray(split)]
    at, parts = 0, list[Value]()
    ends = np.cumsum([0, *sizes])
    for at, end in pairwise(ends):
        bounds = [call.constant(np.array([v], np.int64)) for v in (at, end, axis)]
        parts.append(call.emit("Slice", [x, *bounds]))
    if split is None and not call.attribute("keepdims", 1):
        axes = call.constant(np.array([axis], np.int64))
        parts = [call.emit("Squeeze", [v, axes]) for v in parts]
    return [TensorSequence(tuple(parts))]


def _concat_from_sequence(call: SubgraphNode) -> list[Entry]:
    values, axis, new = list(call.items(0)), call.attribute("axis"), bool(call.attribute("new_axis", 0))
    axis += values[0].type.rank + new if axis < 0 else 0
    rest = list[Value]()
    starts = [i for i, v in enumerate(values) if (part := _slice_of(v)) is not None and part[1] == 0]
    if starts and (whole := _stacked(values[starts[-1] :])) is not None:
        values, rest = values[: starts[-1]], [_joined(call, whole, axis, new=new)]
    if new:
        at = call.constant(np.array([axis], np.int64))
        values = [call.emit("Unsqueeze", [v, at]) for v in values]
    values += rest
    return [call.emit("Concat", values, axis=axis) if len(values) > 1 else values[0]]


def _slice_of(value: Value) -> tuple[Value, int] | None:
    """The tensor of which a value is a slice along axis 0, and its number; None for others."""
    node = value.producer
    if node is None or not isinstance(node.op, Gather) or node.op.axis:
        return None
    place = node.input(1).data
    return (node.input(0), int(place)) if place is not None and place.ndim == 0 else None


def _stacked(values: Sequence[Value]) -> Value | None:
    """The tensor whose slices along axis 0 these are, in order; None for others."""
    slices = [part for v in values if (part := _slice_of(v)) is not None]
    if len(slices) < len(values) or len({id(whole) for whole, _ in slices}) != 1:
        return None
    whole, _ = slices[0]
    return whole if [number for _, number in slices] == list(range(whole.type.dims[0])) else None


def _joined(call: SubgraphNode, whole: Value, axis: int, *, new: bool) -> Value:
    """The slices of a tensor along axis 0 along another axis, which is a new one or one that they have."""
    count, *dims = whole.type.dims
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims) + 1)]
    whole = call.emit("Transpose", [whole], perm=order) if axis else whole
    if new:
        return whole
    dims[axis] *= count
    return call.emit("Reshape", [whole, call.constant(np.array(dims, np.int64))])


def _get_element(call: SubgraphNode) -> list[Entry]:
    if call.entry(0) is None:
        raise RefusedError("the optional has no value")
    return [call.entry(0)]


CONTROL: dict[str, Callable[[SubgraphNode], list[Entry]]] = {
    "ConcatFromSequence": _concat_from_sequence,
    "If": _if,
    "Loop": loop,
    "Optional": lambda call: [call.entry(0)],
    "OptionalGetElement": _get_element,
    "OptionalHasElement": lambda call: [call.constant(np.array(call.entry(0) is not None))],
    "Scan": scan,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": lambda call: [TensorSequence(tuple(call.value(i) for i in range(len(call.inputs))))],
    "SequenceEmpty": lambda call: [TensorSequence()],
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": lambda call: [call.constant(np.array(len(call.items(0)), np.int64))],
    "SplitToSequence": _split_to_sequence,
}
"""Operators that leave no node of their own."""
