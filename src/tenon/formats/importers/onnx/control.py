"""Control flow, sequences and optionals of ONNX.

A condition that is known picks a branch, which is inlined; otherwise both become bodies of a node that runs one of
them.  Loops are unrolled.  A sequence is a list of values whose length is known; an optional is a value, a sequence or
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tenon.formats.decompositions.branches import choose, different
from tenon.formats.decompositions.onnx.node import Entry, TensorSequence
from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.formats.importers.onnx.node_context import SubgraphNode, flat, rebuilt
from tenon.network.graph.graph import Value
from tenon.network.graph.writer import is_known

if TYPE_CHECKING:
    from onnx import GraphProto

MAX_ITERATIONS = 4096
"""Iterations that a loop may be unrolled to."""


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
        if list(map(_kind, entries[0])) != list(map(_kind, entries[-1])):
            raise different(writer, condition, "sequences of different lengths")
        return flat(entries[-1])

    values = choose(writer, condition, [partial(branch, graph) for graph in branches], call.origin)
    return rebuilt(entries[0], values)


def _kind(entry: Entry) -> object:
    """What is the same in results of both branches besides types."""
    return len(entry.values) if isinstance(entry, TensorSequence) else type(entry)


def _loop(call: SubgraphNode) -> list[Entry]:
    body = call.graph("body")
    iterations = MAX_ITERATIONS + 1 if call.entry(0) is None else int(call.known(0, "the number of iterations").item())
    condition = call.entry(1)
    state: list[Entry] = list(call.inputs[2:])
    rows: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    active: Value | None = None
    for i in range(iterations):
        if i > MAX_ITERATIONS:
            raise RefusedError(f"more than {MAX_ITERATIONS} iterations", "only short loops are unrolled")
        if isinstance(condition, Value) and condition.data is not None:
            if not condition.data.item():
                break
        elif isinstance(condition, Value):
            active = condition if active is None else call.emit("And", [active, condition])
        passed = call.constant(np.array(True)) if condition is None else condition
        condition, *results = call.inline(body, [call.constant(np.array(i, np.int64)), passed, *state])
        after, scanned = results[: len(state)], results[len(state) :]
        if active is not None:
            if scanned:
                call.open_condition(active, "")
                raise RefusedError(
                    "its number of iterations depends on what is computed at run time, and with it a shape",
                    "cut the model around it with --from and --to",
                )
            after = [call.choose(active, new, old) for new, old in zip(after, state, strict=True)]
        state = after
        for row, value in zip(rows, scanned, strict=True):
            row.append(_tensor(value))
    return [*state, *(_stacked(call, row, body, len(state) + 1 + i) for i, row in enumerate(rows))]


def _tensor(entry: Entry) -> Value:
    if not isinstance(entry, Value):
        raise RefusedError("a sequence or an optional where a tensor is needed")
    return entry


def _stacked(
    call: SubgraphNode, row: list[Value], body: GraphProto, i: int, axis: int = 0, backwards: bool = False
) -> Value:
    if not row:
        from tenon.formats.wire.onnx_tensors import element_type

        info = body.output[i].type.tensor_type
        dims = [0, *(d.dim_value for d in info.shape.dim)]
        return call.constant(np.zeros(dims, element_type(info.elem_type).numpy))
    at = call.constant(np.array([axis], np.int64))
    slices = [call.emit("Unsqueeze", [value, at]) for value in (reversed(row) if backwards else row)]
    return call.emit("Concat", slices, axis=axis)


def _scan(call: SubgraphNode) -> list[Entry]:
    body, count = call.graph("body"), call.attribute("num_scan_inputs")
    if call.importer.opset < 9:
        return _scan_8(call, body, count)
    return _scanned(call, body, [call.value(i) for i in range(len(call.inputs))], count)


def _scan_8(call: SubgraphNode, body: GraphProto, count: int) -> list[Entry]:
    """The first version: everything has a batch axis in front."""
    if call.entry(0) is not None:
        raise RefusedError("sequence lengths are not supported", "export with a newer opset")
    values = [call.value(i) for i in range(1, len(call.inputs))]
    batches = []
    for b in range(values[0].type.dims[0]):
        index = call.constant(np.array(b, np.int64))
        batches.append(_scanned(call, body, [call.emit("Gather", [v, index], axis=0) for v in values], count))
    return [
        _stacked(call, [_tensor(r) for r in results], body, i) for i, results in enumerate(zip(*batches, strict=True))
    ]


def _scanned(call: SubgraphNode, body: GraphProto, values: Sequence[Value], count: int) -> list[Entry]:
    states, scans = list(values[: len(values) - count]), values[len(values) - count :]
    outputs = len(body.output) - len(states)
    in_axes = call.attribute("scan_input_axes") or [0] * count
    out_axes = call.attribute("scan_output_axes") or [0] * outputs
    backwards = call.attribute("scan_input_directions") or [0] * count
    reversed_outputs = call.attribute("scan_output_directions") or [0] * outputs
    rows: list[list[Value]] = [[] for _ in range(outputs)]
    iterations = {v.type.dims[a] for v, a in zip(scans, in_axes, strict=True)}
    if len(iterations) != 1 or max(iterations) > MAX_ITERATIONS:
        raise RefusedError(f"it scans {sorted(iterations)} elements; one number of at most {MAX_ITERATIONS} is needed")
    (n,) = iterations
    state: list[Entry] = list(states)
    for i in range(n):
        elements = []
        for value, axis, back in zip(scans, in_axes, backwards, strict=True):
            index = call.constant(np.array(n - 1 - i if back else i, np.int64))
            elements.append(call.emit("Gather", [value, index], axis=axis))
        results = call.inline(body, [*state, *elements])
        state = results[: len(state)]
        for row, result in zip(rows, results[len(state) :], strict=True):
            row.append(_tensor(result))
    values_made = [
        _stacked(call, row, body, len(state) + i, _axis(out_axes[i], row), bool(reversed_outputs[i]))
        for i, row in enumerate(rows)
    ]
    return [*state, *values_made]


def _axis(axis: int, row: list[Value]) -> int:
    return axis + row[0].type.rank + 1 if axis < 0 and row else axis


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
    "Loop": _loop,
    "Optional": lambda call: [call.entry(0)],
    "OptionalGetElement": _get_element,
    "OptionalHasElement": lambda call: [call.constant(np.array(call.entry(0) is not None))],
    "Scan": _scan,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": lambda call: [TensorSequence(tuple(call.value(i) for i in range(len(call.inputs))))],
    "SequenceEmpty": lambda call: [TensorSequence()],
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": lambda call: [call.constant(np.array(len(call.items(0)), np.int64))],
    "SplitToSequence": _split_to_sequence,
}
"""Operators that leave no node of their own."""
