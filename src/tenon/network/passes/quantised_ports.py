"""Inputs and outputs as the integers that a quantised model converts them to or from."""

from __future__ import annotations

from dataclasses import replace

from tenon.errors import InputError
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import Quant
from tenon.network.graph.writer import Names
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear

_MOVERS = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators between a port and its conversion that move integers as they move floats."""


def take_integers(graph: Graph, name: str, names: Names) -> bool:
    """Let the input of that name be the result of its QuantizeLinear; False if the model does not quantise it."""
    at, value = next((at, value) for at, value in enumerate(graph.inputs) if value.name == name)
    moved, last = _readers(value)
    conversions = [node for node in last.uses if isinstance(node.op, QuantizeLinear)]
    if not conversions or len(conversions) < len(last.uses) or last in graph.outputs:
        return False
    if any(node.output in graph.outputs for node in conversions):
        return False
    first, *others = conversions
    quant = _quant(first)
    if any(_quant(node) != quant or node.output.type.dtype is not first.output.type.dtype for node in others):
        return False
    graph.inputs[at] = new = Value(name, replace(value.type, dtype=first.output.type.dtype, quant=quant))
    value.name = names.fresh(f"{name}_real")
    graph.replace(value, new)
    for node in moved:
        node.output.type = replace(node.output.type, dtype=new.type.dtype, quant=quant)
    for node in conversions:
        graph.replace(node.output, moved[-1].output if moved else new)
    graph.prune()
    return True


def give_integers(graph: Graph, name: str, names: Names) -> bool:
    """Let the output of that name be the operand of its DequantizeLinear; False if the model does not dequantise it."""
    at, value = next((at, value) for at, value in enumerate(graph.outputs) if value.name == name)
    moved, maker = _makers(value)
    if maker is None or not isinstance(maker.op, DequantizeLinear):
        return False
    integers, quant = maker.input(0), _quant(maker)
    integers.type = replace(integers.type, quant=quant)
    if not moved:
        graph.outputs[at] = integers
        value.name, integers.name = names.fresh(f"{name}_real"), name
    else:
        if len(maker.output.uses) > 1 or maker.output in graph.outputs:
            return False
        graph.replace(maker.output, integers)
        for node in moved:
            node.output.type = replace(node.output.type, dtype=integers.type.dtype, quant=quant)
    graph.prune()
    return True


def _readers(value: Value) -> tuple[list[Node], Value]:
    """The movers that an input goes through, and the tensor behind them."""
    moved = list[Node]()
    while len(value.uses) == 1 and value.uses[0].op.name in _MOVERS and value.uses[0].input(0) is value:
        moved.append(value.uses[0])
        value = moved[-1].output
    return moved, value


def _makers(value: Value) -> tuple[list[Node], Node | None]:
    """The movers that an output comes from, and what makes the first one's operand."""
    moved, maker = list[Node](), value.producer
    while maker is not None and maker.op.name in _MOVERS and not value.uses:
        moved.append(maker)
        operand = maker.input(0)
        if len(operand.uses) > 1:
            return moved, None
        maker = operand.producer
    return moved, maker


def _quant(node: Node) -> Quant:
    """The scale and zero point of a QuantizeLinear or DequantizeLinear.  Raises InputError if they are not numbers."""
    scale, zero = node.input(1).data, node.inputs[2].data if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None or scale.size != 1:
        raise InputError(f"{node.origin}: only a tensor with one constant scale can be of type quantized")
    return Quant((float(scale.reshape(-1)[0]),), (0 if zero is None else int(zero.reshape(-1)[0]),))
