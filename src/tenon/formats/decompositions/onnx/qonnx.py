"""Quantisation to any number of bits as QONNX and Brevitas write it: floats that lie on a grid.

Source: docs/qonnx-custom-ops of fastmachinelearning/qonnx (IntQuant v1, which was called Quant, BipolarQuant v1, Trunc
v1 and v2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value

Results = Sequence[Value | None]


def limits(bits: Array, signed: bool, narrow: bool) -> tuple[Array, Array]:
    """The least and the largest integer of so many bits; a narrow range has one number less."""
    if signed:
        top = 2.0 ** (bits - 1) - 1
        return -top - (0 if narrow else 1), top
    return np.zeros_like(bits), 2.0**bits - 1 - (1 if narrow else 0)


def _half(node: OnnxNode, x: Value, type: str, shift: float) -> Value:
    """Away from zero or towards it: the sign times what the size, moved by ``shift``, is rounded to."""
    size = node.add(type, node.add("Add", node.add("Abs", x), node.typed_scalar("shift", shift)))
    return node.add("Mul", node.add("Sign", x), size)


_ROUNDINGS: dict[str, Callable[[OnnxNode, Value], Value]] = {
    **dict.fromkeys(("ROUND", "HALF_EVEN"), lambda node, x: node.add("Round", x)),
    "CEIL": lambda node, x: node.add("Ceil", x),
    "FLOOR": lambda node, x: node.add("Floor", x),
    "UP": lambda node, x: _half(node, x, "Ceil", 0.0),
    "DOWN": lambda node, x: _half(node, x, "Floor", 0.0),
    "HALF_UP": lambda node, x: _half(node, x, "Floor", 0.5),
    "HALF_DOWN": lambda node, x: _half(node, x, "Ceil", -0.5),
}


def _rounded(node: OnnxNode, x: Value, default: str) -> Value:
    mode = str(node.attributes.get("rounding_mode", default)).upper()
    if mode not in _ROUNDINGS:
        raise RefusedError(f"the rounding mode {mode} is not known", f"these are: {', '.join(_ROUNDINGS)}")
    return _ROUNDINGS[mode](node, x)


def _clamped(node: OnnxNode, x: Value, bits: Array, default_narrow: int) -> Value:
    signed, narrow = (bool(node.attributes.get(k, d)) for k, d in (("signed", 1), ("narrow", default_narrow)))
    ends = limits(bits.astype(np.float64), signed, narrow)
    low, high = (node.constant(v.astype(np.float32), stem) for stem, v in zip(("low", "high"), ends, strict=True))
    return node.add("Max", node.add("Min", x, high), low)


def _scaled(node: OnnxNode) -> Value:
    return node.add("Add", node.add("Div", node.input(0), node.input(1)), node.input(2))


def _sign(node: OnnxNode, x: Value) -> Value:
    """1 where a number is not negative, else -1."""
    one, minus = node.typed_scalar("one", 1), node.typed_scalar("minus", -1)
    return node.add("Where", node.add("GreaterOrEqual", x, node.typed_scalar("zero", 0)), one, minus)


def _quant(node: OnnxNode) -> Results:
    """Inputs: x, scale, zero point, bits.  Clamped first, then rounded, as it is defined."""
    bits, y = node.constant_input(3, "the number of bits"), _scaled(node)
    if bits.size == 1 and bits.item() == 1 and node.attributes.get("signed", 1):
        y = _sign(node, y)
    else:
        y = _rounded(node, _clamped(node, y, bits, 0), "ROUND")
    return [node.add("Mul", node.add("Sub", y, node.input(2)), node.input(1))]


def _bipolar_quant(node: OnnxNode) -> Results:
    return [node.add("Mul", _sign(node, node.input(0)), node.input(1))]


def _trunc(node: OnnxNode) -> Results:
    """Inputs: x, scale, zero point, bits before, bits after; of version 2 the new scale before the last."""
    integers = node.add("Round", _scaled(node))
    if node.has(5):
        return _trunc_to_scale(node, integers)
    dropped_bits = node.constant_input(3, "the number of bits") - node.constant_input(
        4, "the number of bits that are left"
    )
    cut = node.add("Div", integers, node.constant((2.0**dropped_bits).astype(np.float32), "cut"))
    y = node.add("Sub", _rounded(node, cut, "FLOOR"), node.input(2))
    return [node.add("Mul", y, node.input(1))]


def _trunc_to_scale(node: OnnxNode, integers: Value) -> Results:
    new, old = node.constant_input(4, "the new scale"), node.constant_input(1, "the scale")
    ratio = node.constant((2.0 ** np.round(np.log2(new / old))).astype(np.float32), "ratio")
    y = _clamped(node, node.add("Div", integers, ratio), node.constant_input(5, "the number of bits that are left"), 0)
    y = node.add("Sub", _rounded(node, y, "FLOOR"), node.add("Div", node.input(2), ratio))
    return [node.add("Mul", y, node.input(4))]


QONNX: dict[str, Callable[[OnnxNode], Results]] = {
    "BipolarQuant": _bipolar_quant,
    "IntQuant": _quant,
    "Quant": _quant,
    "Trunc": _trunc,
}
