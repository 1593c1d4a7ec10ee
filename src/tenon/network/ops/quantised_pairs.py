"""Pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Value
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear


def read_through_integers(graph: Graph, value: Value, scale: Value, zero: Value) -> Value:
    """Let all readers of ``value`` read its integers, of the type of ``zero``; an output keeps its name."""
    readers, returned, name = list(value.uses), graph.is_output(value), value.name
    before = min(readers, key=graph.position, default=None)
    to = zero.type.dtype.value
    stored = graph.add(QuantizeLinear(to=to), [value, scale, zero], [f"{name}_quantized"], before=before)
    again = graph.add(DequantizeLinear(), [stored.output, scale, zero], [f"{name}_dequantized"], before=before)
    for reader in dict.fromkeys(readers):
        graph.rewire(reader, tuple(again.output if v is value else v for v in reader.inputs))
    if returned:
        graph.outputs = [again.output if v is value else v for v in graph.outputs]
        value.name, again.output.name = f"{name}_float", name
    return again.output
