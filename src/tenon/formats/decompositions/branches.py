"""Choices that are made at run time: nodes with two bodies, of which one runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.network.graph.fixed import remedy
from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.graph.outline import outline
from tenon.network.graph.sizes import same
from tenon.network.graph.writer import Writer, is_known
from tenon.network.ops.branch import If
from tenon.network.ops.comparison import Where
from tenon.network.ops.slice_gather import Pad

Branch = Callable[[], Sequence[Value]]
"""Adds the nodes of a branch to the graph and returns its results, a list that may grow while the other branch is
imported."""


def choose(writer: Writer, condition: Value, branches: Sequence[Branch], origin: Origin) -> list[Value]:
    """The results of the first branch where ``condition``, a bool of rank 0, holds at run time, else of the second.

    Only the chosen branch is computed.  Where results have different extents, the buffer has the larger ones, and a
    run computes the extents.  Raises RefusedError where results of the branches differ in type or rank, UntypedError
    where these are not known.
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
    own = [nodes[start:stop] for start, stop in pairwise(bounds)]
    _check(writer, condition, *results)
    places = sizes[0].differing(sizes[1])
    given = [part.padded(other) for part, other in (sizes, sizes[::-1])]
    own = [[*before, *more] for before, (_, more) in zip(own, given, strict=True)]
    ends = [[*values, *map(part.number, places)] for (values, _), part in zip(given, sizes, strict=True)]
    second, first = (BranchNodes(writer.graph, own[i], ends[i]) for i in (1, 0))
    if not (first.known and second.known):
        raise UntypedError
    chosen = _chosen(writer, condition, first, second, origin)
    writer.sizes.use(If())
    for (i, axis), number in zip(places, chosen[count:], strict=True):
        writer.sizes.count(chosen[i], axis, number)
    for place in sizes[0].numbers.keys() - {*places}:
        writer.sizes.extents.setdefault(chosen[place[0]], {})[place[1]] = sizes[0].extents[place]
    return chosen[:count]


class BranchExtents:
    """The extents of a branch's results that only a run knows, by result and axis, and i64 scalars that hold them."""

    def __init__(self, writer: Writer, results: Sequence[Value], origin: Origin) -> None:
        self.writer, self.results, self.origin = writer, results, origin
        self.extents = {
            (i, axis): extent
            for i, value in enumerate(results)
            for axis, extent in writer.sizes.extents.get(value, {}).items()
        }
        self.numbers = {place: writer.sizes.number(extent, origin) for place, extent in self.extents.items()}

    def differing(self, other: BranchExtents) -> list[tuple[int, int]]:
        """The results and axes that have another extent in the other branch."""
        fixed = {
            (i, axis)
            for i, (a, b) in enumerate(zip(self.results, other.results, strict=True))
            for axis, (n, m) in enumerate(zip(a.type.dims, b.type.dims, strict=True))
            if n != m
        }
        places = sorted({*fixed, *self.numbers, *other.numbers})
        return [place for place in places if not self.agrees(other, place)]

    def padded(self, other: BranchExtents) -> tuple[list[Value], list[Node]]:
        """The results in buffers with room for those of the other branch, and the nodes that copy them there."""
        graph, before = self.writer.graph, len(self.writer.graph)
        made = [_padded(self.writer, *pair, self.origin) for pair in zip(self.results, other.results, strict=True)]
        return made, graph.nodes[before:]

    def agrees(self, other: BranchExtents, place: tuple[int, int]) -> bool:
        """Whether the other branch gives the same extent: both have it from outside then."""
        return place in self.extents and place in other.extents and same(self.extents[place], other.extents[place])

    def number(self, place: tuple[int, int]) -> Value:
        """The extent of a result along an axis."""
        i, axis = place
        held = self.numbers.get(place)
        return self.writer.constant("extent", np.array(self.results[i].type.dims[axis])) if held is None else held


def _padded(writer: Writer, value: Value, like: Value, origin: Origin) -> Value:
    """A tensor with zeros behind its elements along the axes along which another one is larger."""
    after = [max(0, m - n) for n, m in zip(value.type.dims, like.type.dims, strict=True)]
    if not any(after):
        return value
    pads = writer.constant(f"{value.name}_pads", np.array([0] * len(after) + after, np.int64))
    return writer.plain(Pad(), [value, pads], [writer.fresh(f"{value.name}_padded")], origin)[0]


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


def _check(writer: Writer, condition: Value, first: Sequence[Value], second: Sequence[Value]) -> None:
    if not all(map(is_known, (condition, *first, *second))):
        raise UntypedError
    if len(first) != len(second):
        raise different(writer, condition, f"{len(first)} and {len(second)} tensors")
    for a, b in zip(first, second, strict=True):
        if a.type.rank != b.type.rank or a.type.dtype is not b.type.dtype:
            raise different(writer, condition, f"{a.type} and {b.type}")


def different(writer: Writer, condition: Value, what: str) -> RefusedError:
    """An error for branches that give different kinds of results under a condition that is not known."""
    return RefusedError(
        f"its condition is computed at run time, and its branches give {what}",
        remedy(writer.need(condition), "let both branches give tensors of the same types and ranks"),
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
