"""Rows that a loop writes into a tensor, as TensorFlow's converter does: slices before and behind the row, joined.

The lengths of these slices are known only at run time where the row's number is, and so they are no tensors of Tenon.
The row is written into the whole instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenon.formats.importers.tflite.content import TfliteGraph, TfliteOperation

_Makers = Mapping[int, TfliteOperation]


@dataclass(frozen=True)
class RowUpdate:
    """The numbers of the tensor, of the row's number, and of the row; ``slices`` are those of the parts around it."""

    whole: int
    index: int
    row: int
    slices: tuple[int, int]


def row_updates(graph: TfliteGraph) -> dict[int, RowUpdate]:
    """The updates of a sub-graph by the numbers of the tensors that they result in."""
    makers = {i: operation for operation in graph.operations for i in operation.outputs}
    joined = [operation for operation in graph.operations if operation.outputs and _joins_rows(operation)]
    candidates = ((operation.outputs[0], _update(graph, makers, operation)) for operation in joined)
    return {i: update for i, update in candidates if update is not None}


def _update(graph: TfliteGraph, makers: _Makers, joined: TfliteOperation) -> RowUpdate | None:
    if len(joined.inputs) != 3:
        return None
    before, row, behind = joined.inputs
    first, last = makers.get(before), makers.get(behind)
    if first is None or last is None or not first.type == last.type == "SLICE" or first.inputs[0] != last.inputs[0]:
        return None
    index, following = _leading(graph, makers, first.inputs[2], -1), _leading(graph, makers, last.inputs[1], 0)
    whole = first.inputs[0]
    if index is None or following is None or not _follows(graph, makers.get(following), index):
        return None
    if not _all(graph, first.inputs[1], 0) or not _all(graph, last.inputs[2], -1):
        return None
    shapes = [graph.tensors[i].shape for i in (whole, row, joined.outputs[0])]
    if shapes[0] != shapes[2] or shapes[1] != (1, *shapes[0][1:]):
        return None
    return RowUpdate(whole, index, row, (before, behind))


def _joins_rows(operation: TfliteOperation) -> bool:
    options = operation.options
    return operation.type == "CONCATENATION" and not options.get("axis") and not options.get("activation")


def _leading(graph: TfliteGraph, makers: _Makers, vector: int, rest: int) -> int | None:
    """The number of a scalar that a vector begins with, all other elements of which are ``rest``."""
    operation = makers.get(vector)
    if operation is not None and _joins_rows(operation) and len(operation.inputs) == 2:
        if not _all(graph, operation.inputs[1], rest):
            return None
        vector = operation.inputs[0]
        operation = makers.get(vector)
    return operation.inputs[0] if operation is not None and operation.type == "RESHAPE" else None


def _follows(graph: TfliteGraph, operation: TfliteOperation | None, index: int) -> bool:
    """Whether an operator adds 1 to a number."""
    if operation is None or operation.type != "ADD" or index not in operation.inputs:
        return False
    return any(_all(graph, i, 1) for i in operation.inputs if i != index)


def _all(graph: TfliteGraph, tensor: int, number: int) -> bool:
    data = graph.tensors[tensor].data if tensor >= 0 else None
    return data is not None and bool((data == number).all())
