"""Casts between integers and the strings that spell them."""

from __future__ import annotations

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode, Results, Text
from tenon.decompositions.strings.text import i32, lengths_of, where, width_of
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Value
from tenon.ir.types import DType

_DIGITS = {DType.I8: 3, DType.U8: 3, DType.I16: 5, DType.U16: 5, DType.I32: 10, DType.U32: 10, DType.I64: 19}
_STRING = 8


def cast(layer: OnnxNode, texts: set[int]) -> Results:
    """To or from strings.  Raises RefusedError for other numbers than integers."""
    to = layer.attributes["to"]
    if to == _STRING and texts:
        return [Text(layer.emit("Identity", layer.input(0)))]
    dtype = layer.input(0).type.dtype if to == _STRING else layer.element(to)
    if dtype not in _DIGITS:
        held = ", ".join(dtype.value for dtype in _DIGITS)
        raise RefusedError(f"casts between strings and {dtype.value} are not supported", f"those of {held} are")
    return [Text(_spelled(layer))] if to == _STRING else [_read(layer, dtype)]


def _u64(layer: OnnxNode, value: int) -> Value:
    return layer.constant("number", np.array(value, np.uint64))


def _spelled(layer: OnnxNode) -> Value:
    """The decimal digits of integers, a minus before those of negative ones."""
    x = layer.input(0)
    count, last = _DIGITS[x.type.dtype], layer.ints("last", [-1])
    column = layer.emit("Cast", layer.emit("Unsqueeze", x, last), to="i64")
    negative = layer.emit("Less", column, layer.constant("zero", np.array(0, np.int64)))
    bits = layer.emit("Cast", column, to="u64")
    size = where(layer, negative, layer.emit("Sub", _u64(layer, 0), bits), bits)  # also of the least i64
    powers = layer.constant("powers", np.array([10**k for k in range(count)][::-1], np.uint64))
    digits = layer.emit("Mod", layer.emit("Div", size, powers), _u64(layer, 10))
    digits = layer.emit("Add", layer.emit("Cast", digits, to="u8"), layer.constant("0", np.array(ord("0"), np.uint8)))
    needed = layer.emit("Cast", layer.emit("GreaterOrEqual", size, powers), to="i32")
    length = layer.emit("Max", layer.emit("ReduceSum", needed, last, keepdims=1), i32(layer, 1))
    ends = [layer.constant("end", np.full((*x.type.dims, 1), byte, np.uint8)) for byte in b"-\0"]
    source = layer.emit("Concat", ends[0], digits, ends[1], axis=-1)
    step = layer.constant("step", np.arange(count + 1, dtype=np.int32))
    sign = layer.emit("Cast", negative, to="i32")
    at = layer.emit("Sub", layer.emit("Add", step, i32(layer, 1 + count)), layer.emit("Add", length, sign))
    at = where(layer, layer.emit("Less", step, sign), i32(layer, 0), layer.emit("Min", at, i32(layer, count + 1)))
    return layer.emit("GatherElements", source, at, axis=-1)


def _read(layer: OnnxNode, dtype: DType) -> Value:
    """The numbers that digits spell, with or without a sign; anything else gives any number."""
    x, last = layer.input(0), layer.ints("last", [-1])
    width = width_of(x)
    digit = layer.emit("Sub", layer.emit("Cast", x, to="i64"), layer.ints("0", [ord("0")]))
    inside = layer.emit(
        "And",
        layer.emit("GreaterOrEqual", digit, layer.ints("least", [0])),
        layer.emit("Less", digit, layer.ints("ten", [10])),
    )
    behind = layer.emit("Sub", lengths_of(layer, x), layer.constant("step", np.arange(1, width + 1, dtype=np.int32)))
    place = layer.emit("Min", layer.emit("Max", behind, i32(layer, 0)), i32(layer, 19))
    powers = layer.constant("powers", np.array([*(10**k for k in range(19)), 0], np.int64))
    worth = layer.emit("Mul", digit, layer.emit("Gather", powers, place, axis=0))
    total = layer.emit("ReduceSum", where(layer, inside, worth, layer.ints("none", [0])), last, keepdims=0)
    minus = layer.emit("Equal", x, layer.constant("minus", np.array(ord("-"), np.uint8)))
    signs = layer.emit("ReduceMax", layer.emit("Cast", minus, to="i32"), last, keepdims=0)
    negative = layer.emit("Cast", signs, to="bool")
    return layer.emit("Cast", where(layer, negative, layer.emit("Neg", total), total), to=dtype.value)
