"""Ranges that a model brings along: of QuantizeLinear/DequantizeLinear pairs, as quantisation-aware training and fake
quantisation leave them around floats."""

from __future__ import annotations

from tenon.errors import ModelError
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.quantised_values import scalar_grid
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.network.ops.requantize import limits
from tenon.network.ops.traits import computes_on_integers
from tenon.network.passes.base import drop_dead
from tenon.tools.quantization.ranges import Range

_TYPES = (DType.I8, DType.U8, DType.I16, DType.U16)


def grid_ranges(graph: Graph, *, symmetric: bool = False) -> dict[str, Range]:
    """Ranges that the integers of a quantised graph represent, by the names of the tensors that they store.

    ``symmetric``: signed integers of zero point 0 do without the least one, as those of 16 bits do in any case.
    """
    ranges = {}
    for node in graph:
        pair = scalar_grid(node, _TYPES) if isinstance(node.op, QuantizeLinear) else None
        if pair is not None:
            quant, dtype = pair
            (scale,), (zero,), (least, most) = quant.scale, quant.zero_point, limits(dtype)
            least = -most if (symmetric or dtype is DType.I16) and least < 0 and zero == 0 else least
            ranges[_name(graph, node)] = ((least - zero) * scale, (most - zero) * scale)
    return ranges


def _name(graph: Graph, node: Node) -> str:
    """The name of the float tensor that a QuantizeLinear stores; for an output of the graph, the output's name."""
    for reader in node.output.uses:
        if isinstance(reader.op, DequantizeLinear) and graph.is_output(reader.output):
            return reader.output.name
    return node.input(0).name


def take_out(graph: Graph) -> dict[str, Range]:
    """Remove the pairs around tensors that are computed in floats, and return their ranges.

    Raises ModelError if the graph computes in integers elsewhere.
    """
    ranges = grid_ranges(graph)
    taken: dict[str, Range] = {}
    for node in graph:
        before = node.input(0).producer if isinstance(node.op, DequantizeLinear) else None
        if before is None or not isinstance(before.op, QuantizeLinear) or scalar_grid(before, _TYPES) is None:
            continue
        if scalar_grid(node, _TYPES) != scalar_grid(before, _TYPES):
            continue
        name = _name(graph, before)
        taken[name] = ranges[name]
        _bypass(graph, node, before.input(0), name)
    for node in graph.nodes[::-1]:
        if node in graph and isinstance(node.op, DequantizeLinear | QuantizeLinear) and not graph.used(node.output):
            drop_dead(graph, node)
    rest = [node for node in graph if isinstance(node.op, QuantizeLinear | DequantizeLinear) and not _constant(node)]
    if rest or not taken or any(map(computes_on_integers, graph)):
        raise ModelError(f"{graph.source or graph.name}: is quantised already")
    return taken


def _constant(node: Node) -> bool:
    return all(value is None or value.constant for value in node.inputs)


def _bypass(graph: Graph, node: Node, value: Value, name: str) -> None:
    """Let what reads a pair read what it quantised."""
    graph.replace(node.output, value)
    if graph.is_output(value):
        node.output.name, value.name = value.name, name
