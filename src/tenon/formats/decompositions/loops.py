"""Loops that stay loops: nodes whose body runs several times, with states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.formats.decompositions.branches import BranchNodes, imported
from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.formats.graph_builder.node_context import NodeBuilder
from tenon.network.graph.graph import Array, Origin, Value
from tenon.network.graph.outline import outline
from tenon.network.graph.types import LARGEST_BUFFER, DType, TensorType
from tenon.network.graph.writer import Writer, is_known
from tenon.network.ops.comparison import Where
from tenon.network.ops.pointwise import Add
from tenon.network.ops.scan import Scan

UNROLLED = 32
"""The most steps of a layer that become nodes of their own; more become a loop.  Both run equally fast; passes see
through nodes, and what loops save grows with the steps."""

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
    cut, kept = [loop.slice(v) for v in slices], [loop.state(v) for v in states]
    before = len(builder.writer.graph)
    after, results = iteration(cut, kept)
    if not all(map(is_known, (*after, *results))):  # a problem of the model, which was reported
        return after, results
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

    def state(self, initial: Value) -> Value:
        """The value in the body of a state, which has this value before the first iteration."""
        return self._held(self.states, initial, initial.type)

    def slice(self, whole: Value) -> Value:
        """The value in the body of a slice of this tensor along axis 0."""
        return self._held(self.slices, whole, TensorType(whole.type.dtype, whole.type.dims[1:]))

    def _held(self, pairs: list[tuple[Value, Value]], outside: Value, type: TensorType) -> Value:
        name = self.writer.names.fresh(f"{outside.name}_in_loop")
        pairs.append((outside, Value(name, TensorType(type.dtype, type.dims))))
        return pairs[-1][1]

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
        names = [f"{self.name}_{i}" for i in range(len(graph.outputs))]
        outputs = self.writer.add(op, [*given, *outside], names, self.origin, [graph])
        return outputs[: len(after)], outputs[len(after) :]


@dataclass(frozen=True)
class Repetition:
    """How often a body runs: ``trips`` (i64 of rank 0) times, or without end; not at all unless ``start`` (a bool of
    rank 0) holds.  None stands for no limit, and for true."""

    trips: Value | None
    start: Value | None

    @property
    def count(self) -> int:
        """The largest number of iterations that is known."""
        return LARGEST_COUNT if self.trips is None or self.trips.data is None else int(self.trips.data.item())


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


Body = Callable[[Value, Sequence[Value]], RepeatedBody]
"""f(number of the iteration, an i64 of rank 0; states) -> what the body gives."""


def repeat(
    writer: Writer, origin: Origin, repetition: Repetition, states: Sequence[Value], add_body: Body, most: int | None
) -> Repeated:
    """A loop whose end may be decided at run time.

    ``most`` bounds the number of iterations where ``repetition`` does not.  Raises RefusedError where the body does not
    fit into a loop, or where results are stacked and the largest number of iterations is not known; UntypedError where
    types are not known.
    """
    return _Repeating(writer, origin, repetition, most).run(states, add_body)


class _Repeating:
    def __init__(self, writer: Writer, origin: Origin, repetition: Repetition, most: int | None) -> None:
        self.writer, self.origin, self.repetition, self.most = writer, origin, repetition, most
        self.loop = LoopNode(writer, origin, origin.layer or "loop")

    def run(self, states: Sequence[Value], add_body: Body) -> Repeated:
        if not all(map(is_known, states)):
            raise UntypedError
        writer = self.writer
        kept = [self.loop.state(v) for v in states]
        number = Value(writer.names.fresh("iteration"), TensorType(DType.I64, ()))
        made: list[RepeatedBody] = []

        def body() -> Sequence[Value]:
            made.append(add_body(number, kept))
            return [made[0].condition, *made[0].states, *made[0].results]

        problems = len(writer.problems)
        nodes = imported(writer.graph, body)
        if len(writer.problems) > problems:
            untyped = [Value(writer.names.fresh("state")) for _ in states]
            return Repeated(untyped, [Value(writer.names.fresh("result")) for _ in made[0].results], None)
        if not nodes.known:
            raise UntypedError
        return self.finished(nodes, number, made[0])

    def finished(self, nodes: BranchNodes, number: Value, body: RepeatedBody) -> Repeated:
        """The loop with the states that count its iterations, where it needs them."""
        counted, numbered = self.is_counted(body), bool(number.uses or any(v is number for v in nodes.results))
        count, graph = self.largest(counted, body.results), self.writer.graph
        hidden: list[tuple[Value, Value, Value]] = []
        first = self.first_count() if counted else number
        before = len(graph)
        if counted:
            held = Value(self.writer.names.fresh("count"), TensorType(DType.I64, ()))
            hidden.append((first, held, self.count_after(held, body.condition)))
        if numbered and not counted:
            self.loop.slices.append((self.constant(np.arange(count)), number))
        elif numbered or (counted and body.results):
            hidden.append((self.constant(np.array(0)), number, self.add(Add(), number, self.constant(np.array(1)))))
        nodes.nodes += graph.nodes[before:]
        self.loop.states[:0] = [(initial, inside) for initial, inside, _ in hidden]
        after = [*(following for _, _, following in hidden), *body.states]
        last, stacked = self.loop.finish(nodes, after, body.results, count, counted=counted)
        return Repeated(last[len(hidden) :], stacked, last[1] if counted and stacked else None)

    def is_counted(self, body: RepeatedBody) -> bool:
        """Whether a state has to say how often the body runs."""
        trips, start = self.repetition.trips, self.repetition.start
        return any(v is not None and v.data is None for v in (trips, start, body.condition)) or (
            not _holds(body.condition)
        )

    def largest(self, counted: bool, results: Sequence[Value]) -> int:
        """The largest number of iterations.  Raises RefusedError where that has to be known and is not."""
        count = min(self.repetition.count, self.most or LARGEST_COUNT)
        if counted and not results:
            return count
        if count >= LARGEST_COUNT and not counted:
            raise RefusedError("its loop never ends")
        if any(count * v.type.nbytes >= LARGEST_BUFFER for v in results) or count >= LARGEST_COUNT:
            remedy = self.writer.fixing(self.repetition.trips, "cut the model around it with --from and --to")
            raise RefusedError(
                "it stacks a result of each iteration, and how many there are at most is not known", remedy
            )
        return count

    def first_count(self) -> Value:
        """How often the body runs before it says otherwise."""
        trips, start = self.repetition.trips, self.repetition.start
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
