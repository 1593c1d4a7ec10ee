"""Choices that are made at run time: nodes with two bodies, of which one runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.network.graph.fixed import remedy
from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.graph.outline import outline
from tenon.network.graph.sizes import same
from tenon.network.graph.writer import Writer, is_known
from tenon.network.ops.branch import If
from tenon.network.ops.comparison import Where

Branch = Callable[[], Sequence[Value]]
"""Adds the nodes of a branch to the graph and returns its results, a list that may grow while the other branch is
imported."""


def choose(writer: Writer, condition: Value, branches: Sequence[Branch], origin: Origin) -> list[Value]:
    """The results of the first branch where ``condition``, a bool of rank 0, holds at run time, else of the second.

    Only the chosen branch is computed.  Raises RefusedError where results of the branches differ in type or shape,
    UntypedError where these are not known.
    """
    problems = len(writer.problems)
    bounds, results, sizes = [len(writer.graph)], list[Sequence[Value]](), list[BranchExtents]()
    for branch in branches:
        with writer.sizes.inside():
            results.append(branch())
            sizes.append(BranchExtents(writer, results[-1], origin))
        bounds.append(len(writer.graph))
    if len(writer.problems) > problems:
        return list(results[0])
    nodes, count = writer.graph.nodes, len(results[0])
    places = [place for place in sorted({*sizes[0].numbers, *sizes[1].numbers}) if not sizes[0].agrees(sizes[1], place)]
    given = [
        [*own, *(part.number(place) for place in places if place[0] < len(own))]
        for own, part in zip(results, sizes, strict=True)
    ]
    second = BranchNodes(writer.graph, nodes[bounds[1] :], given[1])
    first = BranchNodes(writer.graph, nodes[bounds[0] : bounds[1]], given[0])
    _check(writer, condition, first, second)
    chosen = _chosen(writer, condition, first, second, origin)
    for (i, axis), number in zip(places, chosen[count:], strict=True):
        writer.sizes.count(chosen[i], axis, number)
    for place in sizes[0].numbers.keys() - {*places}:
        writer.sizes.extents.setdefault(chosen[place[0]], {})[place[1]] = sizes[0].extents[place]
    return chosen[:count]


class BranchExtents:
    """The extents of a branch's results that only a run knows, by result and axis, and i64 scalars that hold them."""

    def __init__(self, writer: Writer, results: Sequence[Value], origin: Origin) -> None:
        self.writer, self.results = writer, results
        self.extents = {
            (i, axis): extent
            for i, value in enumerate(results)
            for axis, extent in writer.sizes.extents.get(value, {}).items()
        }
        self.numbers = {place: writer.sizes.number(extent, origin) for place, extent in self.extents.items()}

    def agrees(self, other: BranchExtents, place: tuple[int, int]) -> bool:
        """Whether the other branch gives the same extent: both have it from outside then."""
        return place in self.extents and place in other.extents and same(self.extents[place], other.extents[place])

    def number(self, place: tuple[int, int]) -> Value:
        """The extent of a result along an axis."""
        i, axis = place
        held = self.numbers.get(place)
        return self.writer.constant("extent", np.array(self.results[i].type.dims[axis])) if held is None else held


def _chosen(writer: Writer, condition: Value, first: BranchNodes, second: BranchNodes, origin: Origin) -> list[Value]:
    pairs = list(zip(first.results, second.results, strict=True))
    apart = [i for i, (a, b) in enumerate(pairs) if a is not b]
    chosen: list[Value] = [a for a, _ in pairs]
    if not apart:
        return chosen
    given = [[part.results[i] for i in apart] for part in (first, second)]
    names = [f"{origin.layer}_{i}" for i in apart]
    if not first.nodes and not second.nodes:  # to copy one of two tensors, no branch is worth it
        made = tuple(
            writer.plain(Where(), [condition, a, b], [writer.fresh(name)], origin)[0]
            for name, a, b in zip(names, *given, strict=True)
        )
    else:
        made = _if(writer, condition, [first.nodes, second.nodes], given, names, origin)
    for i, value in zip(apart, made, strict=True):
        chosen[i] = value
    return chosen


class BranchNodes:
    """Nodes at the end of a graph and results that they lead to; those that lead to none are removed."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], results: Sequence[Value]) -> None:
        wanted = {*results}
        kept = list[Node]()
        for node in reversed(nodes):
            if wanted.isdisjoint(node.outputs):
                graph.remove(node)
                continue
            kept.append(node)
            wanted.update(v for v in node.inputs if v is not None)
        self.nodes, self.results = kept[::-1], list(results)

    @property
    def known(self) -> bool:
        """Whether all types are known."""
        values = (v for node in self.nodes for v in (*node.inputs, *node.outputs) if v is not None)
        return all(map(is_known, (*values, *self.results)))


def imported(graph: Graph, branch: Branch) -> BranchNodes:
    """The nodes that a branch adds to the graph."""
    before = len(graph)
    results = branch()
    return BranchNodes(graph, graph.nodes[before:], results)


def _check(writer: Writer, condition: Value, first: BranchNodes, second: BranchNodes) -> None:
    if not (is_known(condition) and first.known and second.known):
        raise UntypedError
    if len(first.results) != len(second.results):
        raise different(writer, condition, f"{len(first.results)} and {len(second.results)} tensors")
    for a, b in zip(first.results, second.results, strict=True):
        if a.type.dims != b.type.dims or a.type.dtype is not b.type.dtype:
            raise different(writer, condition, f"{a.type} and {b.type}")


def different(writer: Writer, condition: Value, what: str) -> RefusedError:
    """An error for branches that give different kinds of results under a condition that is not known."""
    return RefusedError(
        f"its condition is computed at run time, and its branches give {what}",
        remedy(writer.need(condition), "let both branches give the same shapes"),
    )


def _if(
    writer: Writer,
    condition: Value,
    nodes: Sequence[Sequence[Node]],
    results: Sequence[Sequence[Value]],
    names: Sequence[str],
    origin: Origin,
) -> tuple[Value, ...]:
    """A node with both branches as bodies, which read the same values."""
    parts = [
        outline(writer.graph, own, [], values, f"{origin.layer}_{word}")
        for own, values, word in zip(nodes, results, ("then", "else"), strict=True)
    ]
    outside = list(dict.fromkeys(value for _, values in parts for value in values))
    for body, values in parts:
        known = dict(zip(values, body.inputs, strict=True))
        body.inputs = []
        for value in outside:
            body.inputs.append(known[value]) if value in known else body.add_input(value.name, value.type)
    return writer.add(If(), [condition, *outside], names, origin, [body for body, _ in parts])
