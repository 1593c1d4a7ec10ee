"""Loops that stay loops: layers that do the same for every slice of a tensor, with a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.formats.graph_builder.node_context import NodeBuilder
from tenon.network.graph.graph import Value
from tenon.network.graph.outline import outline
from tenon.network.graph.types import TensorType
from tenon.network.graph.writer import is_known
from tenon.network.ops.scan import Scan

UNROLLED = 32
"""The most steps of a layer that become nodes of their own; more become a loop.  Both run equally fast; passes see
through nodes, and what loops save grows with the steps."""

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
    writer = builder.writer
    graph, before = writer.graph, len(writer.graph)

    def held(value: Value, type: TensorType) -> Value:
        return Value(writer.names.fresh(f"{value.name}_in_loop"), TensorType(type.dtype, type.dims))

    cut = [held(v, TensorType(v.type.dtype, v.type.dims[1:])) for v in slices]
    kept = [held(v, v.type) for v in states]
    after, results = iteration(cut, kept)
    if not all(map(is_known, (*after, *results))):  # a problem of the model, which was reported
        return after, results
    body, outside = outline(graph, graph.nodes[before:], [*kept, *cut], [*after, *results], name)
    op = Scan(slices[0].type.dims[0], len(states), len(slices), reverse)
    names = [f"{name}_{i}" for i in range(len(body.outputs))]
    outputs = writer.add(op, [*states, *slices, *outside], names, builder.origin, [body])
    return outputs[: len(states)], outputs[len(states) :]
