"""Control flow, sequences and optionals of ONNX.

A condition that is known picks a branch, which is inlined; otherwise both become bodies of a node that runs one of
them.  Loops have a module of their own (``loops``).  A sequence is a list of values whose length is known; an optional
is a value, a sequence or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
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
    values, axis = list(call.items(0)), call.attribute("axis")
    if call.attribute("new_axis", 0):
        axis = axis + values[0].type.rank + 1 if axis < 0 else axis
        at = call.constant(np.array([axis], np.int64))
        values = [call.emit("Unsqueeze", [v, at]) for v in values]
    return [call.emit("Concat", values, axis=axis)]


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
