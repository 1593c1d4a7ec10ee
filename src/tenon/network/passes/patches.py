"""Patch-wise execution: the first layers computed for a few rows of their result at a time.

The result of a prefix of the network is computed in patches of rows.  A patch reads the rows of the input that its
windows reach (its halo), so neighbouring patches compute some rows twice, but no layer of the prefix is ever stored
whole.  Source: Lin et al., "MCUNetV2: Memory-Efficient Patch-based Inference for Tiny Deep Learning" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tenon.errors import InternalError
from tenon.network.graph.graph import Array, Graph, Node, Origin, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.base import Operator
from tenon.network.ops.insert import Insert
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.slice_gather import Slice

ROWS = 2
"""The axis of the rows of an image."""

FEWEST = 2
"""Rows of a result that is worth patches."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """The nodes of a graph up to one whose result alone is read later."""

    nodes: tuple[Node, ...]

    @property
    def last(self) -> Node:
        return self.nodes[-1]

    @property
    def extent(self) -> int:
        """Rows of the result."""
        return self.last.output.type.dims[ROWS]

    def spans(self, rows: int) -> Iterator[Span]:
        """The rows of each patch."""
        for start in range(0, self.extent, rows):
            yield Span(ROWS, start, min(self.extent, start + rows))

    def patches(self, span: Span) -> dict[Node, tuple[Span, Patch]] | None:
        """The spans that every node computes for a patch, and how; None if one of them cannot."""
        inside = set(self.nodes)
        wanted = {self.last.output: span}
        computed: dict[Node, tuple[Span, Patch]] = {}
        for node in reversed(self.nodes):
            here = wanted.get(node.output)
            patch = None if here is None else _patch(node, here)
            if here is None or patch is None:
                return None
            computed[node] = here, patch
            for value, read in zip(node.inputs, patch.reads, strict=True):
                if value is None or value.producer not in inside:
                    continue
                joined = None if read is None else wanted.get(value, read).joined(read)
                if joined is None:
                    return None
                wanted[value] = joined
        return {node: computed[node] for node in self.nodes}


def _patch(node: Node, span: Span) -> Patch | None:
    assert isinstance(node.op, Operator)
    types = [None if v is None else v.type for v in node.inputs]
    return node.op.patch(types, node.output.type, span) if len(node.outputs) == 1 else None


def prefixes(graph: Graph) -> list[Prefix]:
    """All prefixes that can be computed in patches, the shortest first."""
    complete, live, nodes = list[Prefix](), set[Value](), graph.nodes
    left = {v: len(v.uses) + graph.is_output(v) for v in graph.values()}
    for i, node in enumerate(nodes):
        for value in node.inputs:
            if value is not None:
                left[value] -= 1
                if not left[value]:
                    live.discard(value)
        live.update(node.outputs)
        dims = node.output.type.dims
        if len(node.outputs) > 1:
            return complete
        if live != {node.output} or len(dims) <= ROWS or dims[ROWS] < FEWEST:
            continue
        prefix = Prefix(tuple(nodes[: i + 1]))
        if prefix.patches(Span(ROWS, 0, 1)) is not None:
            complete.append(prefix)
    return complete


def patched(graph: Graph, count: int, rows: int) -> Graph:
    """A copy of ``graph`` whose first ``count`` nodes, a prefix that can be, are computed in patches of ``rows``."""
    return _Patched(graph.copy(), count).run(rows)


@dataclass
class _Patched:
    graph: Graph
    count: int
    slices: dict[tuple[Value, Span], Value] = field(default_factory=dict)

    def run(self, rows: int) -> Graph:
        nodes, self.names = self.graph.nodes, Names(self.graph)
        prefix = Prefix(tuple(nodes[: self.count]))
        self.before = nodes[self.count] if self.count < len(nodes) else None
        result, whole = prefix.last.output, None
        for span in prefix.spans(rows):
            part = self.patch(prefix, span)
            op = Insert(ROWS, span.start, prefix.extent)
            name = self.names.fresh(f"{result.name}_until_{span.stop}")
            origin = Origin(prefix.last.origin.file, prefix.last.origin.layer, "Insert")
            given = [part] if whole is None else [part, whole]
            whole = self.graph.add(op, given, [name], origin, before=self.before).output
        assert whole is not None
        self.graph.replace(result, whole)
        self.graph.prune()
        return self.graph

    def patch(self, prefix: Prefix, span: Span) -> Value:
        """Nodes that compute a patch; returns its part of the result."""
        patches = prefix.patches(span)
        if patches is None:
            raise InternalError(f"{prefix.last} cannot be computed in patches")
        made: dict[Value, tuple[Value, Span]] = {}
        for node, (here, patch) in patches.items():
            inputs = [self.read(v, read, made) for v, read in zip(node.inputs, patch.reads, strict=True)]
            name = self.names.fresh(f"{node.output.name}_{span.start}")
            new = self.graph.add(patch.op, inputs, [name], node.origin, before=self.before).output
            if new.type.dims[here.axis] != here.length:
                raise InternalError(f"{new} has {new.type.dims[here.axis]} rows; {here.length} were wanted")
            new.type = replace(new.type, quant=node.output.type.quant)
            made[node.output] = new, here
        return made[prefix.last.output][0]

    def read(self, value: Value | None, span: Span | None, made: dict[Value, tuple[Value, Span]]) -> Value | None:
        """A whole operand, or the part of it that a patch reads."""
        if value is None or span is None:
            return value
        if value in made:
            part, there = made[value]
            return self.sliced(part, Span(span.axis, span.start - there.start, span.stop - there.start))
        return self.sliced(value, span)

    def sliced(self, value: Value, span: Span) -> Value:
        if span.length == value.type.dims[span.axis]:
            return value
        if (value, span) not in self.slices:
            self.slices[value, span] = self.slice(value, span)
        return self.slices[value, span]

    def slice(self, value: Value, span: Span) -> Value:
        name = self.names.fresh(f"{value.name}_from_{span.start}")
        if value.data is not None:
            part = value.data[(*(slice(None),) * span.axis, slice(span.start, span.stop))]
            return self.graph.constant(name, np.ascontiguousarray(part))
        ends: list[Array] = [np.array([n], np.int64) for n in (span.start, span.stop, span.axis)]
        given = [self.graph.constant(self.names.fresh(f"{name}_{i}"), end) for i, end in enumerate(ends)]
        origin = value.producer.origin if value.producer else Origin(self.graph.source, value.name)
        node = self.graph.add(
            Slice(), [value, *given], [name], Origin(origin.file, origin.layer, "Slice"), before=self.before
        )
        node.output.type = replace(node.output.type, quant=value.type.quant)
        return node.output
