"""Loops that stay loops: nodes whose body runs several times, with states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from tenon.formats.decompositions.branches import BranchNodes
from tenon.formats.decompositions.counted_loops import LoopState, counts, first_number, known_count, written_row
from tenon.formats.decompositions.loop_states import MOST_ROUNDS, StateExtents, StatesChangedError, fitted
from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.formats.graph_builder.node_context import NodeBuilder
from tenon.network.graph.graph import Array, Origin, Value
from tenon.network.graph.outline import outline
from tenon.network.graph.sizes import Expression, UndecidedError, expression, extreme, same, symbol
from tenon.network.graph.types import LARGEST_BUFFER, DType, TensorType
from tenon.network.graph.writer import Writer, is_known
from tenon.network.ops.comparison import Where
from tenon.network.ops.move import Concat
from tenon.network.ops.pointwise import Add
from tenon.network.ops.scan import Scan
from tenon.network.ops.shape import Reshape

T = TypeVar("T")

FEWEST_STEPS = 3
"""The fewest steps of a recurrent layer that become a loop, which targets with memory to spare unroll later."""

LARGEST_COUNT = 2**31 - 1
"""The most iterations of a loop, which are counted in 32 bits."""

Iteration = Callable[[Sequence[Value], Sequence[Value]], tuple[Sequence[Value], Sequence[Value]]]
"""f(slices, states) -> the next states, slices of results."""


def scan(
    builder: NodeBuilder,
    slices: Sequence[Value],
    states: Sequence[Value],
    iteration: Iteration,
    *,
    name: str,
    reverse: bool = False,
) -> tuple[Sequence[Value], Sequence[Value]]:
    """A loop over the slices, along axis 0, of tensors of known types: one node, whose body is what ``iteration`` adds.

    Returns the last states, and the results, with a slice of each iteration along axis 0.  ``reverse``: from the last
    slice to the first.
    """
    loop = LoopNode(builder.writer, builder.origin, name)
    with builder.writer.sizes.inside():
        cut, kept = [loop.slice(v) for v in slices], [loop.state(v) for v in states]
        before = len(builder.writer.graph)
        after, results = iteration(cut, kept)
        if not all(map(is_known, (*after, *results))):  # a problem of the model, which was reported
            return after, results
        after = loop.fitted(after)
    nodes = builder.writer.graph.nodes[before:]
    body = BranchNodes(builder.writer.graph, nodes, [*after, *results])
    return loop.finish(body, after, results, slices[0].type.dims[0], reverse=reverse)


@dataclass
class LoopNode:
    """A loop under construction: values that stand for states and slices in its body, and what they are outside."""

    writer: Writer
    origin: Origin
    name: str
    states: list[tuple[Value, Value]] = field(default_factory=list)
    slices: list[tuple[Value, Value]] = field(default_factory=list)
    alike: dict[Value, Value] = field(default_factory=dict)
    """Values in the body that are the same in all iterations, and what they are outside."""

    def state(self, initial: Value) -> Value:
        """The value in the body of a state, which has this value before the first iteration."""
        return self._held(self.states, initial, initial.type)

    def slice(self, whole: Value) -> Value:
        """The value in the body of a slice of this tensor along axis 0."""
        return self._held(self.slices, whole, TensorType(whole.type.dtype, whole.type.dims[1:]))

    def fitted(self, after: Sequence[Value]) -> list[Value]:
        """The next states in buffers of the present ones.  Raises RefusedError where their extents differ."""
        made, sizes = list[Value](), self.writer.sizes
        for value, (first, held) in zip(after, self.states, strict=True):
            if not _alike(value, held) or not all(map(same, sizes.of(held), sizes.of(value))):
                raise RefusedError(f"a state of its loop is {first.type} first and has another shape then")
            made.append(fitted(self.writer, value, held.type.dims, self.origin))
        return made

    def _held(self, pairs: list[tuple[Value, Value]], outside: Value, type: TensorType) -> Value:
        names, sizes = self.writer.names, self.writer.sizes
        name = names.fresh(f"{outside.name}_in_loop")
        names.stands_for(name, names.stem(outside.name))
        inside = Value(name, TensorType(type.dtype, type.dims, quant=type.quant))
        cut = outside.type.rank - type.rank
        if own := {axis - cut: e for axis, e in sizes.extents.get(outside, {}).items() if axis >= cut}:
            sizes.extents[inside] = own
        sizes.held.add(inside)
        pairs.append((outside, inside))
        return inside

    def finish(
        self,
        body: BranchNodes,
        after: Sequence[Value],
        results: Sequence[Value],
        count: int,
        *,
        reverse: bool = False,
        counted: bool = False,
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """Add the node, of whose body ``after`` are the next states and ``results`` slices of what is stacked.

        Returns the last states and the stacked results.  Raises RefusedError where a state changes its type.
        """
        for (first, _), following in zip(self.states, after, strict=True):
            if (first.type.dtype, first.type.dims) != (following.type.dtype, following.type.dims):
                raise RefusedError(f"a state of its loop is {first.type} first and then {following.type}")
        inputs = [inside for _, inside in (*self.states, *self.slices)]
        graph, outside = outline(self.writer.graph, body.nodes, inputs, [*after, *results], self.name)
        given = [value for value, _ in (*self.states, *self.slices)]
        op = Scan(count, len(self.states), len(self.slices), reverse, counted)
        names = [self.writer.fresh(f"{self.name}_{i}") for i in range(len(graph.outputs))]
        given += [self.alike.get(value, value) for value in outside]
        outputs = self.writer.plain(op, given, names, self.origin, [graph])
        self._state_extents(outputs, after, results)
        return outputs[: len(after)], outputs[len(after) :]

    def _state_extents(self, outputs: Sequence[Value], after: Sequence[Value], results: Sequence[Value]) -> None:
        """Let the outputs of the node have the extents that they have in the body, if these are known outside of it."""
        sizes = self.writer.sizes
        for value, inside in zip(outputs, (*after, *results), strict=True):
            for axis, extent in sizes.extents.get(inside, {}).items():
                try:
                    sizes.number(extent, self.origin)
                except UndecidedError:
                    if inside in results:
                        what = f"it stacks '{inside.name}', whose extents each iteration may change"
                        raise RefusedError(what, "cut the model around it with --from and --to") from None
                    continue
                place = axis if value.type.rank == inside.type.rank else axis + 1
                sizes.extents.setdefault(value, {})[place] = extent


def is_simple(writer: Writer, before: int) -> bool:
    """Whether loops among the nodes from number ``before`` on run a number of times, and their states have extents,
    that are known when compiling."""
    loops = [node for node in writer.graph.nodes[before:] if isinstance(node.op, Scan)]
    return not any(
        node.op.counted or node.output.name in writer.sizes.growing for node in loops if isinstance(node.op, Scan)
    )


class LongLoopError(RefusedError):
    """A loop of more steps than are unrolled, or of a number that is computed at run time."""


@dataclass(frozen=True)
class Repetition:
    """How often a body runs: ``trip_count`` (i64 of rank 0) times, or without end; not at all unless ``start`` (a bool
    of rank 0) holds.  None stands for no limit, and for true."""

    trip_count: Value | None
    start: Value | None

    @property
    def count(self) -> int:
        """The largest number of iterations that is known."""
        return (
            LARGEST_COUNT
            if self.trip_count is None or self.trip_count.data is None
            else int(self.trip_count.data.item())
        )


@dataclass(frozen=True)
class RepeatedBody:
    """The results of a body in an iteration: whether there is another one (a bool of rank 0), the next states, and
    slices of what is stacked."""

    condition: Value
    states: Sequence[Value]
    results: Sequence[Value]


@dataclass(frozen=True)
class Repeated:
    """The last states of a loop, stacked results, and how many slices of these are valid; None: all of them."""

    states: Sequence[Value]
    results: Sequence[Value]
    extent: Value | None
    trips: Expression | None = None
    """The number of iterations as an expression, where it is no other than the trip count."""


Body = Callable[[Value, Sequence[Value]], RepeatedBody]
"""f(number of the iteration, an i64 of rank 0; states) -> what the body gives."""


def _alike(value: Value, other: Value) -> bool:
    """Whether two tensors have the same type but for their extents."""
    return is_known(value) and (value.type.dtype, value.type.rank) == (other.type.dtype, other.type.rank)


class Restorable(Protocol):
    """An importer whose state can be returned to."""

    @property
    def writer(self) -> Writer: ...

    def mark(self) -> Any: ...

    def restore(self, mark: Any) -> None: ...


def repeat(
    builder: Restorable,
    origin: Origin,
    repetition: Repetition,
    states: Sequence[Value],
    add_body: Body,
    most: int | None,
) -> Repeated:
    """A loop whose end may be decided at run time.

    ``most`` bounds the number of iterations where ``repetition`` does not.  Raises RefusedError where the body does not
    fit into a loop, or where results are stacked and the largest number of iterations is not known; UntypedError where
    types are not known.  ``add_body`` is called again where shapes of states change in an iteration.
    """
    return _Repeating(builder, origin, repetition, most).run(states, add_body)


class _StatePlan:
    """The states of a body that a loop carries: some need not be.

    ``count`` is the number of iterations, None where it is known only at run time.  ``following`` are the next values
    of the states that are carried, which are then those of ``loop``; ``rows`` are results to be stacked, ``most`` is
    how many of them there may be.
    """

    def __init__(self, loop: LoopNode, states: Sequence[LoopState], count: int | None) -> None:
        self.states, self.count, self.sizes = states, count, loop.writer.sizes
        self.kinds = [self.kind(states, state) for state in states]
        self.following = self.chosen("carried", lambda state: state.following)
        self.rows = self.chosen("row", lambda state: written_row(states, state))
        self.most = min([LARGEST_COUNT, *self.chosen("row", lambda state: state.first.type.dims[0])])
        loop.states = self.chosen("carried", lambda state: (state.first, state.held))
        loop.alike = dict(self.chosen("alike", lambda state: (state.held, state.first)))
        loop.slices += self.chosen("counter", lambda state: (self.numbers(loop.writer, state), state.held))

    def kind(self, states: Sequence[LoopState], state: LoopState) -> str:
        if state.following is state.held:
            return "alike"
        if state.held in self.sizes.extents:
            return "carried"
        if self.count is not None and self.count < LARGEST_COUNT and counts(state) and first_number(state) is not None:
            return "counter"
        fits = self.count is None or self.count <= (state.first.type.dims or (0,))[0]
        return "row" if fits and written_row(states, state) is not None else "carried"

    def chosen(self, kind: str, part: Callable[[LoopState], T | None]) -> list[T]:
        parts = (part(state) for own, state in zip(self.kinds, self.states, strict=True) if own == kind)
        return [each for each in parts if each is not None]

    def numbers(self, writer: Writer, state: LoopState, last: bool = False) -> Value:
        """The values of a counter in all iterations, one after the other along a new axis; or that after the last."""
        first, count, type = first_number(state) or 0, self.count or 0, state.first.type
        if last:
            return writer.constant(f"{state.held.name}_last", np.full(type.dims, first + count, type.dtype.numpy))
        numbers = np.arange(first, first + count).astype(type.dtype.numpy).reshape(-1, *type.dims)
        return writer.constant(f"{state.held.name}_numbers", numbers)

    def finals(self, writer: Writer, origin: Origin, carried: Sequence[Value], stacked: Sequence[Value]) -> list[Value]:
        """The last values of all states, from those of the states that are carried and the stacked rows."""
        last, rows = iter(carried), iter(stacked)

        def final(kind: str, state: LoopState) -> Value:
            match kind:
                case "alike":
                    return state.first
                case "counter":
                    return self.numbers(writer, state, last=True)
                case "row":
                    return _whole(writer, origin, next(rows), state.first)
            return next(last)

        return [final(kind, state) for kind, state in zip(self.kinds, self.states, strict=True)]


def _whole(writer: Writer, origin: Origin, rows: Value, like: Value) -> Value:
    """Stacked rows [n, 1, ...] as the tensor that they were written into, with zeros behind them."""
    dims = like.type.dims
    shape = writer.constant(f"{rows.name}_dims", np.array((rows.type.dims[0], *dims[1:]), np.int64))
    (flat,) = writer.add(Reshape(), [rows, shape], [f"{rows.name}_flat"], origin)
    if rows.type.dims[0] == dims[0]:
        return flat
    rest = np.zeros((dims[0] - rows.type.dims[0], *dims[1:]), like.type.dtype.numpy)
    return writer.add(Concat(0), [flat, writer.constant(f"{rows.name}_rest", rest)], [f"{rows.name}_whole"], origin)[0]


class _Repeating:
    def __init__(self, builder: Restorable, origin: Origin, repetition: Repetition, most: int | None) -> None:
        self.builder, self.writer, self.origin = builder, builder.writer, origin
        self.repetition, self.most = repetition, most
        self.loop = LoopNode(self.writer, origin, origin.layer or "loop")

    def run(self, states: Sequence[Value], add_body: Body) -> Repeated:
        if not all(map(is_known, states)):
            raise UntypedError
        extents, repetition = StateExtents(self.writer, self.origin, states), self.repetition
        self.stated()  # what bounds the trip count stands in front of the loop
        for _ in range(MOST_ROUNDS):
            mark = self.builder.mark()
            self.loop, self.repetition = LoopNode(self.writer, self.origin, self.loop.name), repetition
            try:
                return self.round(extents, add_body)
            except StatesChangedError:
                self.builder.restore(mark)
        raise RefusedError("the shapes of its states change in a way that has no largest one")

    def round(self, extents: StateExtents, add_body: Body) -> Repeated:
        """The loop for the largest extents of states that are known so far.  Raises StatesChangedError."""
        writer, sizes = self.writer, self.writer.sizes
        firsts, numbers = extents.firsts(), extents.first_numbers()
        with sizes.inside():
            kept = [self.loop.state(v) for v in firsts]
            extents.open(kept)
            number = Value(writer.names.fresh("iteration"), TensorType(DType.I64, ()))
            self.number_iterations(number)

            problems, before = len(writer.problems), len(writer.graph)
            made = add_body(number, kept)
            if len(writer.problems) > problems:
                return Repeated(made.states, made.results, None)
            if not all(map(is_known, (made.condition, *made.states, *made.results))):
                raise UntypedError
            pairs = zip(self.loop.states, made.states, strict=True)
            given = [LoopState(first, held, following) for (first, held), following in pairs]
            condition = self.decided(given, made.condition)
            following = extents.closed(kept, made.states, self.most_trips())
            given = [LoopState(s.first, s.held, after) for s, after in zip(given, following, strict=True)]
            changing = [
                LoopState(first, change.held, after)
                for first, change, after in zip(numbers, extents.changing.values(), extents.numbers(), strict=True)
            ]
            after = [state.following for state in (*given, *changing)]
            nodes = BranchNodes(writer.graph, writer.graph.nodes[before:], [condition, *after, *made.results])
        if not nodes.known:
            raise UntypedError
        body = RepeatedBody(condition, following, made.results)
        return self.finished(nodes, number, body, given, changing, extents)

    def number_iterations(self, number: Value) -> None:
        """Let ``number`` be known as the number of an iteration."""
        sizes, most = self.writer.sizes, self.most_trips()
        expected = symbol("iteration", 0, most - 1 if most < LARGEST_COUNT else math.inf)
        sizes.elements[number] = np.array(expected, object)
        if not expected.known:
            sizes.numbers[expected] = number
        sizes.held.add(number)

    def most_trips(self) -> int:
        """The largest number of iterations that is known."""
        return min(self.repetition.count, self.most or LARGEST_COUNT, self.stated())

    def decided(self, states: Sequence[LoopState], condition: Value) -> Value:
        """The condition, or true where it only counts iterations, whose number is then that of ``repetition``."""
        start = self.repetition.start
        if self.repetition.trip_count is not None or not (start is None or _holds(start)):
            return condition
        count = known_count(states, condition)
        if count is None:
            return condition
        self.repetition = Repetition(self.constant(np.array(count)), None)
        return self.writer.constant(f"{self.loop.name}_holds", np.array(True))

    def finished(
        self,
        nodes: BranchNodes,
        number: Value,
        body: RepeatedBody,
        states: Sequence[LoopState],
        changing: Sequence[LoopState],
        extents: StateExtents,
    ) -> Repeated:
        """The loop with the states that it needs to count its iterations, and those that hold ``changing`` extents."""
        counted = self.is_counted(body)
        plan = _StatePlan(self.loop, states, None if counted else self.repetition.count)
        results = [*body.results, *plan.rows]
        count, graph = self.largest(counted, results, plan.most), self.writer.graph
        hidden = list(changing)
        wanted = [*([body.condition] if counted else []), *plan.following, *(s.following for s in hidden), *results]
        nodes = BranchNodes(graph, nodes.nodes, wanted)
        self.loop.slices = [(whole, held) for whole, held in self.loop.slices if held.uses or held in nodes.results]
        numbered = bool(number.uses) or number in nodes.results
        first = self.first_count() if counted else number
        before = len(graph)
        if counted:
            held = Value(self.writer.names.fresh("count"), TensorType(DType.I64, ()))
            hidden.insert(0, LoopState(first, held, self.count_after(held, body.condition)))
        if numbered and not counted:
            self.loop.slices.append((self.constant(np.arange(count)), number))
        elif numbered or (counted and body.results):
            following = self.add(Add(), number, self.constant(np.array(1)))
            hidden.insert(int(counted), LoopState(self.constant(np.array(0)), number, following))
        nodes.nodes += graph.nodes[before:]
        self.loop.states[:0] = [(state.first, state.held) for state in hidden]
        after = [*(state.following for state in hidden), *plan.following]
        last, stacked = self.loop.finish(nodes, after, results, count, counted=counted)
        if changing:
            self.writer.sizes.growing.add(last[0].name)
        own = len(body.results)
        finals = plan.finals(self.writer, self.origin, last[len(hidden) :], stacked[own:])
        trips = self.all_trips(body) if counted else expression(self.repetition.count)
        finals = extents.finals(finals, last[len(hidden) - len(changing) : len(hidden)], trips)
        return Repeated(finals, stacked[:own], last[1] if counted and own else None, self.all_trips(body))

    def is_counted(self, body: RepeatedBody) -> bool:
        """Whether a state has to say how often the body runs."""
        trip_count, start = self.repetition.trip_count, self.repetition.start
        return any(v is not None and v.data is None for v in (trip_count, start, body.condition)) or (
            not _holds(body.condition)
        )

    def largest(self, counted: bool, results: Sequence[Value], most: int) -> int:
        """The largest number of iterations.  Raises RefusedError where that has to be known and is not."""
        count = min(self.repetition.count, self.most or LARGEST_COUNT, most, self.stated())
        if counted and not results:
            return count
        if count >= LARGEST_COUNT and not counted:
            raise RefusedError("its loop never ends")
        if any(count * v.type.nbytes >= LARGEST_BUFFER for v in results) or count >= LARGEST_COUNT:
            remedy = self.writer.fixing(self.repetition.trip_count, "cut the model around it with --from and --to")
            raise RefusedError(
                "it stacks a result of each iteration, and how many there are at most is not known", remedy
            )
        return count

    def stated(self) -> int:
        """The largest number of iterations that the user states."""
        trips, graph = self.repetition.trip_count, self.writer.graph
        known = self.trips()
        if known is not None and known.most < LARGEST_COUNT:
            return max(0, int(known.most))
        if trips is None or trips.name not in graph.limits:
            return LARGEST_COUNT
        graph.limited.add(trips.name)
        return graph.limits[trips.name]

    def trips(self) -> Expression | None:
        """The trip count as an expression."""
        elements = self.writer.sizes.elements_of(self.repetition.trip_count)
        return None if elements is None or elements.size != 1 else elements.reshape(-1)[0]

    def all_trips(self, body: RepeatedBody) -> Expression | None:
        """The number of iterations, where no condition ends the loop before."""
        start, trips = self.repetition.start, self.trips()
        endless = trips is None or not _holds(body.condition) or not (start is None or _holds(start))
        return None if endless or trips is None or trips.known else extreme([trips, 0], greatest=True)

    def first_count(self) -> Value:
        """How often the body runs before it says otherwise."""
        trips, start = self.repetition.trip_count, self.repetition.start
        count = trips if trips is not None else self.constant(np.array(LARGEST_COUNT))
        return count if start is None or _holds(start) else self.add(Where(), start, count, self.constant(np.array(0)))

    def count_after(self, count: Value, condition: Value) -> Value:
        """How often the body runs, after an iteration that gives this condition."""
        if _holds(condition):
            return count
        return self.add(Where(), condition, count, self.constant(np.array(0)))

    def constant(self, number: Array) -> Value:
        return self.writer.constant(f"{self.loop.name}_number", number.astype(np.int64))

    def add(self, op: Where | Add, *inputs: Value) -> Value:
        return self.writer.add(op, inputs, [f"{self.loop.name}_{op.name.lower()}"], self.origin)[0]


def _holds(condition: Value) -> bool:
    return condition.data is not None and bool(condition.data.item())
