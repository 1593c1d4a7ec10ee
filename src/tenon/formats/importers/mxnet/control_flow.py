"""Operators of MXNet's symbols that run symbols of their own, "subgraphs" of a node: _foreach, _while_loop and _cond.

The variables of a subgraph are its inputs, in the order of "arg_nodes".  Attributes say by numbers which of them are
which inputs of the node.  Source: src/operator/control_flow.cc of MXNet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tenon.formats.decompositions.branches import choose
from tenon.formats.decompositions.loops import RepeatedBody, Repetition, repeat, scan
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value

Subgraph = Callable[[Sequence[Value]], list[Value]]
"""The results of a subgraph for its inputs."""


@dataclass(frozen=True)
class ControlNode:
    """A node with subgraphs, its attributes and inputs."""

    builder: GraphBuilder
    name: str
    attributes: Mapping[str, str]
    inputs: Sequence[Value]
    subgraphs: Sequence[Subgraph]

    def places(self, name: str) -> list[int]:
        """An attribute that lists numbers, (0, 2) for example."""
        if name not in self.attributes:
            raise RefusedError(f"the attribute {name} is missing")
        return [int(n) for n in re.findall(r"\d+", self.attributes[name])]

    def subgraph(self, i: int) -> Subgraph:
        if i >= len(self.subgraphs):
            raise RefusedError(f"it has {len(self.subgraphs)} subgraphs, {i + 1} are needed")
        return self.subgraphs[i]


def _foreach(node: ControlNode) -> list[Value]:
    """Inputs: tensors that are cut along axis 0, states, and what all iterations read; the subgraph gives slices of
    results and then the next states.  Before MXNet 1.5, inputs are in the order of those of the subgraph."""
    data, states = node.places("in_data_locs"), node.places("in_state_locs")
    if "remain_locs" in node.attributes:
        rest = node.places("remain_locs")
        numbers = {place: i for i, place in enumerate([*data, *states, *rest])}
    else:
        numbers = {place: place for place in range(len(node.inputs))}
    if sorted(numbers) != list(range(len(node.inputs))) or not data:
        raise RefusedError("its inputs are not those of its subgraph")
    outside = [node.inputs[numbers[place]] for place in range(len(node.inputs))]
    count = int(node.attributes.get("num_out_data", 0))

    def iteration(cut: Sequence[Value], now: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
        given = dict(enumerate(outside)) | dict(zip(data, cut, strict=True)) | dict(zip(states, now, strict=True))
        results = node.subgraph(0)([given[place] for place in range(len(given))])
        return results[count:], results[:count]

    for place in (*data, *states):
        node.builder.type(outside[place])
    wholes, first = ([outside[place] for place in places] for places in (data, states))
    last, stacked = scan(node.builder, wholes, first, iteration, name=node.name)
    return [*stacked, *last]


def _cond(node: ControlNode) -> list[Value]:
    """The subgraphs are the condition, and both branches; each reads some of the inputs."""
    parts = [
        partial(node.subgraph(i), [node.inputs[place] for place in node.places(f"{name}_input_locs")])
        for i, name in enumerate(("cond", "then", "else"))
    ]
    condition = _condition(node, parts[0]())
    if condition.data is not None:
        return parts[1 if condition.data.item() else 2]()
    return choose(node.builder.writer, condition, parts[1:], node.builder.origin)


def _condition(node: ControlNode, results: Sequence[Value]) -> Value:
    """The only result of a condition, as a bool of rank 0."""
    builder, (condition,) = node.builder, results
    if builder.type(condition).size != 1:
        raise RefusedError(f"its condition has {builder.type(condition).size} elements, not one")
    condition = builder.add("Reshape", condition, builder.ints()) if builder.type(condition).rank else condition
    return condition if condition.type.dtype == "bool" else builder.add("Cast", condition, to="bool")


def _while_loop(node: ControlNode) -> list[Value]:
    """The subgraphs are the condition and the body, which gives slices of results and then the next states; each reads
    some of the inputs, and the states are those of the body that ``func_var_locs`` names."""
    asked, read = node.places("cond_input_locs"), node.places("func_input_locs")
    states = [read[place] for place in node.places("func_var_locs")]
    count, most = (int(node.attributes.get(name, 0)) for name in ("num_out_data", "max_iterations"))
    if most < 1:
        raise RefusedError("the attribute max_iterations is missing")

    def given(places: Sequence[int], now: Sequence[Value]) -> list[Value]:
        known = dict(enumerate(node.inputs)) | dict(zip(states, now, strict=True))
        return [known[place] for place in places]

    def holds(now: Sequence[Value]) -> Value:
        return _condition(node, node.subgraph(0)(given(asked, now)))

    def body(number: Value, now: Sequence[Value]) -> RepeatedBody:
        results = node.subgraph(1)(given(read, now))
        return RepeatedBody(holds(results[count:]), results[count:], results[:count])

    builder, first = node.builder, [node.inputs[place] for place in states]
    trips = Repetition(builder.constant(np.array(most), "most"), holds(first))
    made = repeat(builder, builder.origin, trips, first, body, None)
    if made.extent is not None:
        for value in made.results:
            builder.writer.sizes.count(value, 0, made.extent)
    return [*made.results, *made.states]


CONTROL: dict[str, Callable[[ControlNode], list[Value]]] = {
    "_cond": _cond,
    "_foreach": _foreach,
    "_while_loop": _while_loop,
}
"""Operators with subgraphs."""


def described(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The symbols that a node holds."""
    given = node.get("subgraphs", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise RefusedError("its subgraphs are no symbols; the file is damaged")
    return given
