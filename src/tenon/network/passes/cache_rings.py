"""Caches of layers with sliding windows as rings: a window and the longest run take memory, and not the whole context.

The key of position p lies at p modulo the extent of the ring.  A run writes its keys first and then reads them, so the
extent is the window and the most tokens of a run: no query misses a key that a later one of the run has overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.append import Append
from tenon.network.ops.cached_attention import CachedAttention

_SEEN = 7
"""The input of attention that says what each query sees."""


class Rings(NamedTuple):
    """The limits of rings that a program keeps to: ``rewind`` is how many of the last tokens it may take back, for
    which the rings have what is before them, and ``room`` is the number of tokens of a sequence; None and 0 without
    rings."""

    rewind: int | None = None
    room: int = 0


def with_rings(graphs: Sequence[Graph]) -> tuple[list[Graph], Rings]:
    """The graphs of a network's entry points, with rings for the caches of windowed layers that are states, of one
    sequence or several; and what programs have to know of them.

    A ring that would be as large as the cache changes nothing.
    """
    every = [node for graph in graphs for node in _windowed(graph)]
    longest = max((node.input(0).type.dims[1] for node in every), default=0)
    room = max((node.input(1).type.dims[2] for node in every), default=0)
    changed, rings = [graph.copy() for graph in graphs], Rings()
    for graph in changed:
        for node in _windowed(graph):
            assert isinstance(node.op, CachedAttention)
            if node.op.window + longest < room:
                _turn(graph, node, node.op.window + longest, room)
                rings = Rings(longest + 1, room)
    return (changed, rings) if rings.room else (list(graphs), rings)


def _windowed(graph: Graph) -> list[Node]:
    """Attention over a window of caches that are states which nothing else reads, of queries that see nothing behind
    them."""
    return [
        node
        for node in graph
        if isinstance(node.op, CachedAttention)
        and node.op.window
        and not node.op.positions
        and len(node.inputs) <= _SEEN
        and all(_is_state(graph, writer, node) for writer in _writers(node))
    ]


def _writers(node: Node) -> list[Node | None]:
    """The nodes that write the keys, values and scales that a node reads."""
    return [value.producer for i, value in enumerate(node.inputs) if i in (1, 2, 4, 5) and value is not None]


def _is_state(graph: Graph, writer: Node | None, reader: Node) -> bool:
    """Whether a node appends rows to a state of the graph in place, and ``reader`` alone reads it."""
    if writer is None or not isinstance(writer.op, Append):
        return False
    cache, present = writer.inputs[0], writer.outputs[0]
    number = graph.states.get(cache.name, -1) if cache in graph.inputs and cache is not None else -1
    return number >= 0 and graph.outputs[number] is present and present.uses == [reader]


def _turn(graph: Graph, node: Node, extent: int, positions: int) -> None:
    """Make rings of a node's caches, for so many tokens of a sequence."""
    assert isinstance(node.op, CachedAttention)
    for writer in _writers(node):
        assert writer is not None
        cache, value, inputs = writer.input(0), writer.output, writer.inputs
        dims = cache.type.dims
        cache.type = replace(cache.type, shape=(*dims[:2], extent, *dims[3:]))
        ring = graph.add(Append(2, positions), inputs, [value.name], writer.origin, before=writer).output
        for name in (cache.name, value.name):
            graph.extents.pop(name, None)
        graph.replace(value, ring)
        graph.remove(writer)
    op = replace(node.op, positions=positions)
    (y,) = node.outputs
    new = graph.add(op, node.inputs, [y.name], node.origin, before=node).output
    graph.replace(y, new)
    graph.remove(node)
