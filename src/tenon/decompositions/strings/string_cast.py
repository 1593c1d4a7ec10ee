"""Casts between integers and the strings that spell them."""

from __future__ import annotations

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode, Results, StringTensor
from tenon.decompositions.strings.text import i32, lengths_of, where, width_of
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Value
from tenon.ir.types import DType

_DIGITS = {DType.I8: 3, DType.U8: 3, DType.I16: 5, DType.U16: 5, DType.I32: 10, DType.U32: 10, DType.I64: 19}
_STRING = 8


def cast(node: OnnxNode, texts: set[int]) -> Results:
    """To or from strings.  Raises RefusedError for other numbers than integers."""
    to = node.attributes["to"]
    if to == _STRING and texts:
        return [StringTensor(node.emit("Identity", node.input(0)))]
    dtype = node.input(0).type.dtype if to == _STRING else node.element(to)
    if dtype not in _DIGITS:
        held = ", ".join(dtype.value for dtype in _DIGITS)
        raise RefusedError(f"casts between strings and {dtype.value} are not supported", f"those of {held} are")
    return [StringTensor(_spelled(node))] if to == _STRING else [_read(node, dtype)]


def _u64(node: OnnxNode, value: int) -> Value:
    return node.constant("number", np.array(value, np.uint64))


def _spelled(node: OnnxNode) -> Value:
    """The decimal digits of integers, a minus before those of negative ones."""
    x = node.input(0)
    count, last = _DIGITS[x.type.dtype], node.ints("last", [-1])
    column = node.emit("Cast", node.emit("Unsqueeze", x, last), to="i64")
    negative = node.emit("Less", column, node.constant("zero", np.array(0, np.int64)))
    bits = node.emit("Cast", column, to="u64")
    size = where(node, negative, node.emit("Sub", _u64(node, 0), bits), bits)  # also of the least i64
    powers = node.constant("powers", np.array([10**k for k in range(count)][::-1], np.uint64))
    digits = node.emit("Mod", node.emit("Div", size, powers), _u64(node, 10))
    digits = node.emit("Add", node.emit("Cast", digits, to="u8"), node.constant("0", np.array(ord("0"), np.uint8)))
    needed = node.emit("Cast", node.emit("GreaterOrEqual", size, powers), to="i32")
    length = node.emit("Max", node.emit("ReduceSum", needed, last, keepdims=1), i32(node, 1))
    ends = [node.constant("end", np.full((*x.type.dims, 1), byte, np.uint8)) for byte in b"-\0"]
    source = node.emit("Concat", ends[0], digits, ends[1], axis=-1)
    step = node.constant("step", np.arange(count + 1, dtype=np.int32))
    sign = node.emit("Cast", negative, to="i32")
    at = node.emit("Sub", node.emit("Add", step, i32(node, 1 + count)), node.emit("Add", length, sign))
    at = where(node, node.emit("Less", step, sign), i32(node, 0), node.emit("Min", at, i32(node, count + 1)))
    return node.emit("GatherElements", source, at, axis=-1)


def _read(node: OnnxNode, dtype: DType) -> Value:
    """The numbers that digits spell, with or without a sign; anything else gives any number."""
    x, last = node.input(0), node.ints("last", [-1])
    width = width_of(x)
    digit = node.emit("Sub", node.emit("Cast", x, to="i64"), node.ints("0", [ord("0")]))
    inside = node.emit(
        "And",
        node.emit("GreaterOrEqual", digit, node.ints("least", [0])),
        node.emit("Less", digit, node.ints("ten", [10])),
    )
    behind = node.emit("Sub", lengths_of(node, x), node.constant("step", np.arange(1, width + 1, dtype=np.int32)))
    place = node.emit("Min", node.emit("Max", behind, i32(node, 0)), i32(node, 19))
    powers = node.constant("powers", np.array([*(10**k for k in range(19)), 0], np.int64))
    worth = node.emit("Mul", digit, node.emit("Gather", powers, place, axis=0))
    total = node.emit("ReduceSum", where(node, inside, worth, node.ints("none", [0])), last, keepdims=0)
    minus = node.emit("Equal", x, node.constant("minus", np.array(ord("-"), np.uint8)))
    signs = node.emit("ReduceMax", node.emit("Cast", minus, to="i32"), last, keepdims=0)
    negative = node.emit("Cast", signs, to="bool")
    return node.emit("Cast", where(node, negative, node.emit("Neg", total), total), to=dtype.value)
