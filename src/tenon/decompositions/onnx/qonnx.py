"""Quantisation to any number of bits as QONNX and Brevitas write it: floats that lie on a grid.

Source: docs/qonnx-custom-ops of fastmachinelearning/qonnx (IntQuant v1, which was called Quant, BipolarQuant v1, Trunc
v1 and v2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value

Results = Sequence[Value | None]


def limits(bits: Array, signed: bool, narrow: bool) -> tuple[Array, Array]:
    """The least and the largest integer of so many bits; a narrow range has one number less."""
    if signed:
        top = 2.0 ** (bits - 1) - 1
        return -top - (0 if narrow else 1), top
    return np.zeros_like(bits), 2.0**bits - 1 - (1 if narrow else 0)


def _half(layer: OnnxNode, x: Value, type: str, shift: float) -> Value:
    """Away from zero or towards it: the sign times what the size, moved by ``shift``, is rounded to."""
    size = layer.emit(type, layer.emit("Add", layer.emit("Abs", x), layer.scalar("shift", shift)))
    return layer.emit("Mul", layer.emit("Sign", x), size)


_ROUNDINGS: dict[str, Callable[[OnnxNode, Value], Value]] = {
    **dict.fromkeys(("ROUND", "HALF_EVEN"), lambda layer, x: layer.emit("Round", x)),
    "CEIL": lambda layer, x: layer.emit("Ceil", x),
    "FLOOR": lambda layer, x: layer.emit("Floor", x),
    "UP": lambda layer, x: _half(layer, x, "Ceil", 0.0),
    "DOWN": lambda layer, x: _half(layer, x, "Floor", 0.0),
    "HALF_UP": lambda layer, x: _half(layer, x, "Floor", 0.5),
    "HALF_DOWN": lambda layer, x: _half(layer, x, "Ceil", -0.5),
}


def _rounded(layer: OnnxNode, x: Value, default: str) -> Value:
    mode = str(layer.attributes.get("rounding_mode", default)).upper()
    if mode not in _ROUNDINGS:
        raise RefusedError(f"the rounding mode {mode} is not known", f"these are: {', '.join(_ROUNDINGS)}")
    return _ROUNDINGS[mode](layer, x)


def _clamped(layer: OnnxNode, x: Value, bits: Array, default_narrow: int) -> Value:
    signed, narrow = (bool(layer.attributes.get(k, d)) for k, d in (("signed", 1), ("narrow", default_narrow)))
    ends = limits(bits.astype(np.float64), signed, narrow)
    low, high = (layer.constant(stem, v.astype(np.float32)) for stem, v in zip(("low", "high"), ends, strict=True))
    return layer.emit("Max", layer.emit("Min", x, high), low)


def _scaled(layer: OnnxNode) -> Value:
    return layer.emit("Add", layer.emit("Div", layer.input(0), layer.input(1)), layer.input(2))


def _sign(layer: OnnxNode, x: Value) -> Value:
    """1 where a number is not negative, else -1."""
    one, minus = layer.scalar("one", 1), layer.scalar("minus", -1)
    return layer.emit("Where", layer.emit("GreaterOrEqual", x, layer.scalar("zero", 0)), one, minus)


def _quant(layer: OnnxNode) -> Results:
    """Inputs: x, scale, zero point, bits.  Clamped first, then rounded, as it is defined."""
    bits, y = layer.known(3, "the number of bits"), _scaled(layer)
    if bits.size == 1 and bits.item() == 1 and layer.attributes.get("signed", 1):
        y = _sign(layer, y)
    else:
        y = _rounded(layer, _clamped(layer, y, bits, 0), "ROUND")
    return [layer.emit("Mul", layer.emit("Sub", y, layer.input(2)), layer.input(1))]


def _bipolar_quant(layer: OnnxNode) -> Results:
    return [layer.emit("Mul", _sign(layer, layer.input(0)), layer.input(1))]


def _trunc(layer: OnnxNode) -> Results:
    """Inputs: x, scale, zero point, bits before, bits after; of version 2 the new scale before the last."""
    whole = layer.emit("Round", _scaled(layer))
    if layer.has(5):
        return _trunc_to_scale(layer, whole)
    gone = layer.known(3, "the number of bits") - layer.known(4, "the number of bits that are left")
    cut = layer.emit("Div", whole, layer.constant("cut", (2.0**gone).astype(np.float32)))
    y = layer.emit("Sub", _rounded(layer, cut, "FLOOR"), layer.input(2))
    return [layer.emit("Mul", y, layer.input(1))]


def _trunc_to_scale(layer: OnnxNode, whole: Value) -> Results:
    new, old = layer.known(4, "the new scale"), layer.known(1, "the scale")
    ratio = layer.constant("ratio", (2.0 ** np.round(np.log2(new / old))).astype(np.float32))
    y = _clamped(layer, layer.emit("Div", whole, ratio), layer.known(5, "the number of bits that are left"), 0)
    y = layer.emit("Sub", _rounded(layer, y, "FLOOR"), layer.emit("Div", layer.input(2), ratio))
    return [layer.emit("Mul", y, layer.input(4))]


QONNX: dict[str, Callable[[OnnxNode], Results]] = {
    "BipolarQuant": _bipolar_quant,
    "IntQuant": _quant,
    "Quant": _quant,
    "Trunc": _trunc,
}
