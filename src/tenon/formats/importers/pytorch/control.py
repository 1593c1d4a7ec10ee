"""Calls of PyTorch that run graphs of their own: torch.cond, while_loop, scan and map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tenon.formats.decompositions.branches import choose
from tenon.formats.decompositions.loop_forms import LoopForms
from tenon.formats.decompositions.loops import LongLoopError, RepeatedBody, Repetition, repeat, scan
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.pytorch.program import PytorchCall, PytorchGraph
from tenon.network.graph.graph import Value

MAX_STEPS = 1024
"""Steps that a loop may be unrolled to."""


class CallImporter(Protocol):
    """Imports calls in order."""

    builder: GraphBuilder

    def call(self, call: PytorchCall) -> None: ...

    def value(self, given: Any) -> Any: ...


@dataclass(frozen=True)
class ControlCall:
    """A call with graphs among its arguments, which are numbered."""

    importer: CallImporter
    call: PytorchCall

    @property
    def builder(self) -> GraphBuilder:
        return self.importer.builder

    def graph(self, i: int) -> PytorchGraph:
        given = self.call.arguments.get(str(i))
        if not isinstance(given, PytorchGraph):
            raise RefusedError(f"its argument {i} is no graph")
        return given

    def tensors(self, i: int) -> list[Value]:
        """An argument that lists tensors."""
        values = self.importer.value(self.call.arguments.get(str(i)) or [])
        values = values if isinstance(values, list) else [values]
        if not all(isinstance(v, Value) for v in values):
            raise RefusedError(f"its argument {i} lists numbers; only tensors are supported there")
        return values

    def flag(self, value: Value) -> Value:
        """A condition as a bool of rank 0."""
        type = self.builder.type(value)
        if type.size != 1:
            raise RefusedError(f"its condition has {type.size} elements, not one")
        value = self.builder.add("Reshape", value, self.builder.ints()) if type.rank else value
        return value if type.dtype == "bool" else self.builder.add("Cast", value, to="bool")

    def results(self, graph: PytorchGraph, given: Sequence[Value]) -> list[Value]:
        """Import a graph on these inputs, and return its outputs."""
        if len(given) != len(graph.inputs):
            raise RefusedError(f"its graph takes {len(graph.inputs)} tensors, and gets {len(given)}")
        self.builder.scope.update(zip(graph.inputs, given, strict=True))
        for call in graph.calls:
            self.importer.call(call)
        values = [self.importer.value(each) for each in graph.outputs]
        if not all(isinstance(v, Value) for v in values):
            raise RefusedError("its graph gives numbers; only tensors are supported there")
        return values


def _cond(call: ControlCall) -> Sequence[Value]:
    """Arguments: condition, graph where it holds, other graph, operands of both."""
    (condition,), given = call.tensors(0), call.tensors(3)
    condition = call.flag(condition)
    if condition.data is not None:
        return call.results(call.graph(1 if condition.data.item() else 2), given)
    branches = [partial(call.results, call.graph(i), given) for i in (1, 2)]
    return choose(call.builder.writer, condition, branches, call.builder.origin)


def _while_loop(call: ControlCall) -> Sequence[Value]:
    """Arguments: graph of the condition, body, first states, what both read as well."""
    condition, body, first, rest = call.graph(0), call.graph(1), call.tensors(2), call.tensors(3)

    def holds(states: Sequence[Value]) -> Value:
        (value,) = call.results(condition, [*states, *rest])
        return call.flag(value)

    def unrolled(most: int) -> Sequence[Value]:
        states: Sequence[Value] = first
        for _ in range(most + 1):
            value = holds(states)
            if value.data is None:
                raise LongLoopError("the condition of its loop is computed at run time")
            if not value.data.item():
                return states
            states = call.results(body, [*states, *rest])
        raise LongLoopError(f"its loop runs more than {most} steps")

    def iteration(number: Value, states: Sequence[Value]) -> RepeatedBody:
        after = call.results(body, [*states, *rest])
        return RepeatedBody(holds(after), after, [])

    def repeated() -> Sequence[Value]:
        start = Repetition(None, holds(first))
        return repeat(call.builder, call.builder.origin, start, first, iteration, None).states

    return LoopForms(call.builder, unrolled, repeated, MAX_STEPS).run()


def _scan(call: ControlCall) -> Sequence[Value]:
    """Arguments: body, first states, tensors that are cut along axis 0, what the body reads as well."""
    return _over_slices(call, call.tensors(1), call.tensors(2), call.tensors(3))


def _map(call: ControlCall) -> Sequence[Value]:
    """Arguments: body, tensors that are cut along axis 0, what the body reads as well."""
    return _over_slices(call, [], call.tensors(1), call.tensors(2))


def _over_slices(
    call: ControlCall, states: Sequence[Value], slices: Sequence[Value], rest: Sequence[Value]
) -> Sequence[Value]:
    body, count = call.graph(0), len(states)
    if not slices:
        raise RefusedError("it cuts no tensor into slices")

    def iteration(cut: Sequence[Value], now: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        results = call.results(body, [*now, *cut, *rest])
        return results[:count], results[count:]

    last, stacked = scan(call.builder, slices, states, iteration, name=call.call.name)
    return [*last, *stacked]


CONTROL: dict[str, Callable[[ControlCall], Sequence[Value]]] = {
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
    "higher_order.scan": _scan,
    "higher_order.map_impl": _map,
}
"""Operators that run graphs."""
