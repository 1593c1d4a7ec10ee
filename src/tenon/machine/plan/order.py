"""The order of execution: among several topological orders, the one with the least memory alive at once."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tenon.network.graph.graph import Graph, Node, Value

_SPARE = 8
"""The part of the memory of activations that fewer barriers may take besides."""


def schedule(graph: Graph, threads: int = 1) -> None:
    """Reorder the nodes of ``graph`` to lower the peak of live activations.

    Candidates are the given order, depth first from the outputs (finish a branch before starting the next), and
    greedy (of the nodes that can run, the one that leaves the least memory alive).  A language model that several
    threads run keeps the given order where that takes little more: nodes of keys and of values alternate in it, so that
    threads meet less often.
    """
    best = min(orders(graph), key=lambda order: peak(order, graph))
    if threads > 1 and graph.text is not None:
        least = peak(best, graph)
        best = graph.nodes if peak(graph.nodes, graph) - least <= least // _SPARE else best
    graph.reorder(best)


def orders(graph: Graph) -> list[list[Node]]:
    """The candidates for the order of execution, each once."""
    candidates = [graph.nodes, _depth_first(graph), _greedy(graph)]
    return list({tuple(map(id, order)): order for order in reversed(candidates)}.values())[::-1]


def _size(value: Value) -> int:
    return 0 if value.constant else value.type.nbytes


def peak(order: list[Node], graph: Graph) -> int:
    """The most bytes of activations alive at once, without buffer sharing."""
    last = {v: i for i, node in enumerate(order) for v in node.inputs if v is not None}
    last.update({v: len(order) for v in graph.outputs})
    alive = most = 0
    for i, node in enumerate(order):
        alive += sum(_size(v) for v in node.outputs)
        most = max(most, alive)
        gone = {v for v in (*node.inputs, *node.outputs) if v is not None and last.get(v, i) == i}
        alive -= sum(_size(v) for v in gone if v.producer is not None)
    return most


def _depth_first(graph: Graph) -> list[Node]:
    order: dict[Node, None] = {}
    for output in graph.outputs:
        if output.producer is None or output.producer in order:
            continue
        stack = [(output.producer, _producers(output.producer))]
        while stack:
            node, producers = stack[-1]
            if (producer := next((n for n in producers if n not in order), None)) is None:
                order[node] = None
                stack.pop()
            else:
                stack.append((producer, _producers(producer)))
    return [*order, *(n for n in graph if n not in order)] if len(order) == len(graph) else graph.nodes


def _producers(node: Node) -> Iterator[Node]:
    """The nodes that a node waits for, that of the largest result first."""
    producers = [v.producer for v in node.inputs if v is not None and v.producer]
    return iter(sorted(producers, key=lambda n: -_size(n.output)))


def _greedy(graph: Graph) -> list[Node]:
    waiting = {n: sum(1 for v in {*n.inputs} if v is not None and v.producer) for n in graph}
    uses = {v: len(set(v.uses)) + graph.is_output(v) for v in graph.values()}
    place = {n: i for i, n in enumerate(graph)}
    nodes = list(graph)
    ready: set[Node] = set()
    heap: list[tuple[int, int]] = []  # ready nodes by the growth of live memory, which only decreases while they wait
    order: list[Node] = []

    def offer(n: Node) -> None:
        ready.add(n)
        allocated = sum(_size(v) for v in n.outputs)
        freed = sum(_size(v) for v in {*n.inputs} if v is not None and v.producer and uses[v] == 1)
        heappush(heap, (allocated - freed, place[n]))

    for node in nodes:
        if not waiting[node]:
            offer(node)
    while heap:
        node = nodes[heappop(heap)[1]]
        if node not in ready:
            continue
        ready.remove(node)
        order.append(node)
        for v in {*node.inputs}:
            if v is not None:
                uses[v] -= 1
                if uses[v] == 1 and v.producer:  # its last reader now frees it
                    for reader in ready.intersection(v.uses):
                        offer(reader)
        for v in node.outputs:
            for reader in dict.fromkeys(v.uses):
                waiting[reader] -= 1
                if not waiting[reader]:
                    offer(reader)
    return order
