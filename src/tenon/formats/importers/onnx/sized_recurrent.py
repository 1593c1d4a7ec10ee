"""LSTM, GRU and RNN over sequences whose length a run decides: those of the largest length, with the true lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import FIX
from tenon.network.graph.sizes import Expression, same

RECURRENT = ("GRU", "LSTM", "RNN")
_X, _LENGTHS, _STATES = 0, 4, (5, 6)


def sized_recurrent(node: OnnxNode, compose: Callable[[OnnxNode], Sequence[Value | None] | None]) -> list[Value]:
    """The outputs of a recurrent layer that reads extents known only at run time.  Raises RefusedError."""
    sizes, first = node.builder.writer.sizes, bool(node.attributes.get("layout"))
    time, batch = (1, 0) if first else (0, 1)
    extents = sizes.of(node.input(_X))
    kept = (_X, _LENGTHS, *_STATES)
    changing = [i for i, v in enumerate(node.inputs) if v is not None and v in sizes.extents]
    if not extents[2].known or any(i not in kept for i in changing):
        raise RefusedError(f"{node.type} with a number of features or weights that is known only at run time", FIX)
    dims = node.input(_X).type.dims
    for i in (*_STATES, _LENGTHS):
        if node.has(i):
            _check(sizes.of(node.input(i)), [0 if i == _LENGTHS or first else 1], extents[batch])
    given = node.input(_LENGTHS) if node.has(_LENGTHS) else None
    for i in changing:
        value = node.input(i)
        node.set_input(i, sizes.buffer(value, node.origin, value.type.dims[0]))
    if not extents[time].known:
        count = node.add("Cast", sizes.number(extents[time], node.origin), to="i32")
        whole = node.add("Expand", count, node.int_constant("rows", [dims[batch]]))
        node.set_input(_LENGTHS, whole if given is None else node.add("Min", node.input(_LENGTHS), whole))
    results = [v for v in compose(node) or () if v is not None]
    steps, rows = extents[time], extents[batch]
    for i, value in enumerate(results):
        directions = value.type.dims[_direction(i, first)]
        own: list[Expression | int] = [rows, directions] if first else [directions, rows]
        if i == 0:
            own = [rows, steps, directions] if first else [steps, directions, rows]
        sizes.state(value, [*own, value.type.dims[-1]])
    return results


def _direction(i: int, first: bool) -> int:
    """The axis of directions of a result."""
    if i == 0:
        return 2 if first else 1
    return 1 if first else 0


def _check(extents: Sequence[Expression], axes: Sequence[int], rows: Expression) -> None:
    for axis, extent in enumerate(extents):
        if not (same(extent, rows) if axis in axes else extent.known):
            raise RefusedError(
                "its states or lengths have extents that may differ from those of its rows in a run", FIX
            )
