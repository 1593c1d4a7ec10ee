"""Loops of ONNX: nodes whose body runs several times, or copies of the body where that does not fit.

A body fits if its states are tensors of the same type in all iterations; then one copy of it is imported.  Fewer than
``FEWEST_STEPS`` iterations become nodes of their own, and so do up to ``UNROLLED`` of them where these change the
shapes of states, or where a run would decide how many there are.  A sequence to which each iteration appends one
element is a stacked result; loops that change the lengths of sequences otherwise become nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tenon.errors import ShapeError
from tenon.formats.decompositions.branches import imported
from tenon.formats.decompositions.loop_states import UnboundedStateError
from tenon.formats.decompositions.loops import (
    FEWEST_STEPS,
    LARGEST_COUNT,
    LoopNode,
    RepeatedBody,
    Repetition,
    is_simple,
    repeat,
)
from tenon.formats.decompositions.onnx.node import Entry, TensorSequence
from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.formats.importers.onnx.node_context import SubgraphNode, flat, kinds, rebuilt
from tenon.network.graph.graph import Value
from tenon.network.graph.sizes import Expression, same
from tenon.network.graph.writer import is_known
from tenon.network.ops.unroll import UNROLLED

if TYPE_CHECKING:
    from onnx import GraphProto

MAX_ITERATIONS = 4096
"""Iterations that a loop may be unrolled to."""

Way = Callable[[], list[Entry]]
"""A way to import a node; returns its outputs."""


def _first_possible(call: SubgraphNode, ways: Sequence[Way]) -> list[Entry]:
    """The outputs by the first of several ways by which the node can be imported.  What is wrong with the last one is
    reported where none is possible, unless that is how large a state becomes; where types are not known, no other way
    is tried."""
    unbounded: UnboundedStateError | None = None
    for way in ways[:-1] if call.importer.writer.may_attempt else ():
        mark = call.importer.mark()
        try:
            with call.importer.writer.attempt():
                results = way()
        except UntypedError:
            raise
        except UnboundedStateError as error:
            results, unbounded = None, error
        except (RefusedError, ShapeError):
            results = None
        if results is not None and not call.importer.failed_since(mark):
            return results
        call.importer.restore(mark)
    try:
        return ways[-1]()
    except RefusedError as error:
        raise unbounded or error from None


class _RunTimeConditionError(RefusedError):
    """A condition or number of iterations of a loop is computed, where it has to be known."""


# ------------------------------------------------------------------------------------------------------------- Loop
def loop(call: SubgraphNode) -> list[Entry]:
    """Loop: as nodes where it is short, as one node that repeats its body, or unrolled with masks."""
    repetition = Repetition(_scalar(call, 0), _scalar(call, 1))
    known = repetition.trip_count is None or repetition.trip_count.data is not None
    never = repetition.start is not None and repetition.start.data is not None and not repetition.start.data.item()
    count = 0 if never else min(repetition.count, MAX_ITERATIONS + 1)
    if count <= 0:
        return _unrolled(call, 0)
    if not known:
        return _repeated_alone(call, repetition)
    if not call.importer.writer.may_attempt:
        return _repeated(call, repetition)
    node: list[Way] = [partial(_repeated, call, repetition)]
    if any(isinstance(state, TensorSequence) for state in call.inputs[2:]):
        node.append(partial(_repeated, call, repetition, growing=True))
    few: list[Way] = []
    if count <= UNROLLED and (repetition.start is None or repetition.start.data is not None):
        few = [partial(_unrolled, call, count, masked=False)]
    simple: list[Way] = [partial(_simple, call, way) for way in node] if count >= FEWEST_STEPS else []
    return _first_possible(call, [*simple, *few, *node, partial(_unrolled, call, count)])


def _simple(call: SubgraphNode, way: Way) -> list[Entry]:
    """Loop as a node whose number of iterations and shapes are known when compiling.  Raises RefusedError."""
    writer = call.importer.writer
    before = len(writer.graph)
    results = way()
    if not is_simple(writer, before):
        raise _RunTimeConditionError("")
    return results


def _scalar(call: SubgraphNode, i: int) -> Value | None:
    """An input of one element, as a tensor of rank 0."""
    if call.entry(i) is None:
        return None
    value = call.value(i)
    if not is_known(value):
        raise UntypedError
    if value.type.size != 1:
        raise RefusedError(f"its input {i} has {value.type.size} elements, not one")
    return call.emit("Reshape", [value, call.constant(np.zeros(0, np.int64))]) if value.type.rank else value


def _repeated_alone(call: SubgraphNode, repetition: Repetition) -> list[Entry]:
    """Loop as a node with a body, where nothing else is possible.  Raises RefusedError, which says why it is not."""
    mark, remedy = call.importer.mark(), ""
    try:
        results = _repeated(call, repetition)
    except UntypedError:
        raise
    except RefusedError as error:
        reason, remedy = error.what, error.remedy
    except ShapeError as error:
        reason = str(error)
    else:
        if not call.importer.failed_since(mark):
            return results
        problem = call.importer.writer.problems[mark.writer.problems]
        reason, remedy = f"{problem.where}: {problem.what}", problem.remedy
    call.importer.restore(mark)
    fixed = call.importer.writer.fixing(repetition.trip_count, "cut the model around it with --from and --to")
    what = f"how often it runs is computed at run time, and its body does not fit into a loop: {reason}"
    raise RefusedError(what, "; or ".join(dict.fromkeys(filter(None, (remedy, fixed)))))


def _repeated(call: SubgraphNode, repetition: Repetition, *, growing: bool = False) -> list[Entry]:
    """Loop as a node with a body.  Where sequences are ``growing``, each iteration appends one element to each of them:
    these are stacked as results are."""
    graph, states = call.graph("body"), list(call.inputs[2:])
    given: list[Entry] = [_growing(state) if growing else state for state in states]

    def body(number: Value, kept: Sequence[Value]) -> RepeatedBody:
        holds = call.constant(np.array(True))
        condition, *results = call.body(graph, [number, holds, *rebuilt(given, kept)])
        after, stacked = results[: len(states)], results[len(states) :]
        appended = [value for each in after if _grows(each) for value in flat([each])]
        if kinds(after) != [
            (1, True) if _grows(each) else kind for each, kind in zip(given, kinds(given), strict=True)
        ]:
            raise RefusedError("a state of its loop is a sequence that changes its length")
        if not isinstance(condition, Value):
            raise RefusedError("its condition is no tensor")
        if is_known(condition) and condition.type.rank:
            condition = call.emit("Reshape", [condition, call.constant(np.zeros(0, np.int64))])
        after = [each for each in after if not _grows(each)]
        return RepeatedBody(condition, flat(after), [*(tensor(entry) for entry in stacked), *appended])

    made = repeat(call.importer, call.origin, repetition, flat(given), body, None)
    outputs = len(call.graph("body").output) - 1 - len(states)
    results, rows = made.results[:outputs], iter(made.results[outputs:])
    if made.extent is not None and len(made.results) > outputs:
        raise RefusedError("how often its loop appends to a sequence is computed at run time")
    for value in results:
        if made.extent is not None and made.trips is not None:
            call.importer.writer.sizes.extents.setdefault(value, {})[0] = made.trips
        elif made.extent is not None:
            call.importer.state_extent(value, 0, made.extent)
    last = [
        _grown(call, before, next(rows)) if _grows(entry) else entry
        for before, entry in zip(states, rebuilt(given, made.states), strict=True)
    ]
    return [*last, *results]


def _growing(entry: Entry) -> Entry:
    """A sequence as the body of a loop sees it that appends to it."""
    return TensorSequence(growing=True) if isinstance(entry, TensorSequence) else entry


def _grows(entry: Entry) -> bool:
    return isinstance(entry, TensorSequence) and entry.growing


def _grown(call: SubgraphNode, before: Entry, rows: Value) -> Entry:
    """A sequence with the slices of a tensor behind what it has."""
    numbers = (call.constant(np.array(i, np.int64)) for i in range(rows.type.dims[0]))
    return TensorSequence((*flat([before]), *(call.emit("Gather", [rows, i], axis=0) for i in numbers)))


def _unrolled(call: SubgraphNode, count: int, *, masked: bool = True) -> list[Entry]:
    """Loop as a copy of its body for each of ``count`` iterations; a condition that is computed at run time ends it by
    masks.  Raises _RunTimeConditionError for such a condition unless ``masked``."""
    body = call.graph("body")
    condition = call.entry(1)
    state: list[Entry] = list(call.inputs[2:])
    rows: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    active: Value | None = None
    for i in range(count):
        if i >= MAX_ITERATIONS:
            raise RefusedError(f"more than {MAX_ITERATIONS} iterations", "only short loops are unrolled")
        if isinstance(condition, Value) and condition.data is not None:
            if not condition.data.item():
                break
        elif isinstance(condition, Value):
            if not masked:
                raise _RunTimeConditionError("its condition is computed at run time")
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
            row.append(tensor(value))
    return [*state, *(_stacked(call, row, body, len(state) + 1 + i) for i, row in enumerate(rows))]


def tensor(entry: Entry) -> Value:
    """The tensor that an entry is.  Raises RefusedError for others."""
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


def scan(call: SubgraphNode) -> list[Entry]:
    """Scan: as nodes where it is short, else as one node that repeats its body, or unrolled."""
    body, count = call.graph("body"), call.attribute("num_scan_inputs")
    if call.importer.opset < 9:
        return _scan_8(call, body, count)
    return _scanned(call, body, [call.value(i) for i in range(len(call.inputs))], count)


def _scan_8(call: SubgraphNode, body: GraphProto, count: int) -> list[Entry]:
    """The first version: everything has a batch axis in front."""
    if call.entry(0) is not None:
        raise RefusedError("sequence lengths are not supported", "export with a newer opset")
    values = [call.value(i) for i in range(1, len(call.inputs))]
    call.importer.refuse_extents("Scan of opset 8", values)
    batches = []
    for b in range(values[0].type.dims[0]):
        index = call.constant(np.array(b, np.int64))
        batches.append(_scanned(call, body, [call.emit("Gather", [v, index], axis=0) for v in values], count))
    return [
        _stacked(call, [tensor(r) for r in results], body, i) for i, results in enumerate(zip(*batches, strict=True))
    ]


@dataclass(frozen=True)
class _ScanPort:
    """An operand that is cut into slices along an axis, or a result that is stacked along one; from the end on where it
    is ``backwards``."""

    axis: int
    backwards: bool


def _scanned(call: SubgraphNode, body: GraphProto, values: Sequence[Value], count: int) -> list[Entry]:
    states, scans = list(values[: len(values) - count]), values[len(values) - count :]
    cut = _ports(call, "scan_input", count)
    stacked = _ports(call, "scan_output", len(body.output) - len(states))
    if call.importer.writer.sizes.concern(scans):
        return _scan_sized(call, body, states, scans, cut, stacked)
    lengths = {v.type.dims[port.axis] for v, port in zip(scans, cut, strict=True)}
    if len(lengths) != 1:
        raise RefusedError(f"it scans {sorted(lengths)} elements; one number is needed")
    (n,) = lengths
    ways: list[Way] = [partial(_scan_repeated, call, body, states, scans, cut, stacked)] if n >= FEWEST_STEPS else []
    return _first_possible(call, [*ways, partial(_scan_unrolled, call, body, states, scans, cut, stacked, n)])


def _ports(call: SubgraphNode, what: str, count: int) -> list[_ScanPort]:
    axes, directions = (call.attribute(f"{what}_{part}") or [0] * count for part in ("axes", "directions"))
    return [_ScanPort(axis, bool(back)) for axis, back in zip(axes, directions, strict=True)]


def _scan_sized(
    call: SubgraphNode,
    body: GraphProto,
    states: Sequence[Value],
    scans: Sequence[Value],
    cut: Sequence[_ScanPort],
    stacked: Sequence[_ScanPort],
) -> list[Entry]:
    """Scan of slices whose number a run decides."""
    sizes = call.importer.writer.sizes
    counts = [sizes.of(v)[port.axis % v.type.rank] for v, port in zip(scans, cut, strict=True)]
    changing = [len(sizes.extents.get(v, {})) for v in scans]
    if not all(same(counts[0], each) for each in counts) or any(n > (not counts[0].known) for n in changing):
        raise RefusedError("it scans tensors of different lengths, or whose slices have extents known only at run time")
    wholes = [_leading(call, v, port, False) for v, port in zip(scans, cut, strict=True)]
    most = min(v.type.dims[0] for v in wholes)
    buffers = [sizes.buffer(v, call.origin, most) for v in wholes]
    return _scan_repeated(call, body, states, buffers, cut, stacked, counts[0])


def _scan_repeated(
    call: SubgraphNode,
    body: GraphProto,
    states: Sequence[Value],
    scans: Sequence[Value],
    cut: Sequence[_ScanPort],
    stacked: Sequence[_ScanPort],
    count: Expression | None = None,
) -> list[Entry]:
    """Scan as a node with a body, which cuts and stacks along axis 0 in one direction; with a ``count`` that a run
    decides, slices are cut already."""
    writer, reverse = call.importer.writer, cut[0].backwards and count is None
    wholes = list(scans)
    if count is None:
        wholes = [_leading(call, v, port, reverse) for v, port in zip(scans, cut, strict=True)]
    if not all(map(is_known, (*states, *wholes))):
        raise UntypedError
    loop = LoopNode(writer, call.origin, call.origin.layer or "scan")
    number = None if count is None else writer.sizes.number(count, call.origin)
    problems, made = len(writer.problems), list[Value]()

    def iteration() -> list[Value]:
        after = list(map(tensor, call.body(body, inside)))
        if len(writer.problems) == problems and not all(map(is_known, after)):
            raise UntypedError
        made.extend([*loop.fitted([*trips, *after[: len(states)]]), *after[len(states) :]])
        return made

    with writer.sizes.inside():
        trips = [] if number is None else [loop.state(number)]
        inside = [*(loop.state(v) for v in states), *(loop.slice(v) for v in wholes)]
        nodes = imported(writer.graph, iteration)
    if len(writer.problems) > problems:
        raise RefusedError("its body cannot be imported")
    if not nodes.known:
        raise UntypedError
    after, results = made[: len(loop.states)], made[len(loop.states) :]
    most, counted = wholes[0].type.dims[0], count is not None
    last, rows = loop.finish(nodes, after, results, most, reverse=reverse, counted=counted)
    last = last[len(trips) :]
    if count is not None:
        for row in rows:
            writer.sizes.extents.setdefault(row, {})[0] = count
    return [*last, *(_placed(call, row, port, reverse) for row, port in zip(rows, stacked, strict=True))]


def _leading(call: SubgraphNode, value: Value, port: _ScanPort, reverse: bool) -> Value:
    """An operand with the axis along which it is cut in front."""
    axis = port.axis % value.type.rank
    value = _flipped(call, value, axis) if port.backwards != reverse else value
    order = [axis, *(i for i in range(value.type.rank) if i != axis)]
    return call.emit("Transpose", [value], perm=order) if axis else value


def _placed(call: SubgraphNode, value: Value, port: _ScanPort, reverse: bool) -> Value:
    """A stacked result with the axis along which it is stacked where the node wants it."""
    value = _flipped(call, value, 0) if port.backwards != reverse else value
    axis = port.axis % value.type.rank
    order = [*range(1, axis + 1), 0, *range(axis + 1, value.type.rank)]
    return call.emit("Transpose", [value], perm=order) if axis else value


def _flipped(call: SubgraphNode, value: Value, axis: int) -> Value:
    bounds = [call.constant(np.array([n], np.int64)) for n in (-1, -LARGEST_COUNT, axis, -1)]
    return call.emit("Slice", [value, *bounds])


def _scan_unrolled(
    call: SubgraphNode,
    body: GraphProto,
    states: Sequence[Value],
    scans: Sequence[Value],
    cut: Sequence[_ScanPort],
    stacked: Sequence[_ScanPort],
    count: int,
) -> list[Entry]:
    """Scan as a copy of its body for each of ``count`` iterations."""
    if count > MAX_ITERATIONS:
        raise RefusedError(f"it scans {count} elements; at most {MAX_ITERATIONS} are unrolled")
    rows: list[list[Value]] = [[] for _ in stacked]
    state: list[Entry] = list(states)
    for i in range(count):
        elements = []
        for value, port in zip(scans, cut, strict=True):
            index = call.constant(np.array(count - 1 - i if port.backwards else i, np.int64))
            elements.append(call.emit("Gather", [value, index], axis=port.axis))
        results = call.inline(body, [*state, *elements])
        state = results[: len(state)]
        for row, result in zip(rows, results[len(state) :], strict=True):
            row.append(tensor(result))
    made = [
        _stacked(call, row, body, len(state) + i, _axis(port.axis, row), port.backwards)
        for i, (row, port) in enumerate(zip(rows, stacked, strict=True))
    ]
    return [*state, *made]


def _axis(axis: int, row: list[Value]) -> int:
    return axis + row[0].type.rank + 1 if axis < 0 and row else axis
