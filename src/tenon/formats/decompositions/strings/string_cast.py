"""Casts between integers and their decimal strings."""

from __future__ import annotations

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode, Results, StringTensor
from tenon.formats.decompositions.strings.text import i32, lengths_of, where, width_of
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType

_DIGITS = {DType.I8: 3, DType.U8: 3, DType.I16: 5, DType.U16: 5, DType.I32: 10, DType.U32: 10, DType.I64: 19}
_STRING = 8


def cast(node: OnnxNode, texts: set[int]) -> Results:
    """To or from strings.  Raises RefusedError for other numbers than integers."""
    to = node.attributes["to"]
    if to == _STRING and texts:
        return [StringTensor(node.add("Identity", node.input(0)))]
    dtype = node.input(0).type.dtype if to == _STRING else node.element_type(to)
    if dtype not in _DIGITS:
        held = ", ".join(dtype.value for dtype in _DIGITS)
        raise RefusedError(
            f"casts between strings and {dtype.value} are not supported", f"supported are those of {held}"
        )
    return [StringTensor(_decimal_digits(node))] if to == _STRING else [_read(node, dtype)]


def _u64(node: OnnxNode, value: int) -> Value:
    return node.constant(np.array(value, np.uint64), "number")


def _decimal_digits(node: OnnxNode) -> Value:
    """The decimal digits of integers, a minus before those of negative ones."""
    x = node.input(0)
    count, last = _DIGITS[x.type.dtype], node.int_constant("last", [-1])
    column = node.add("Cast", node.add("Unsqueeze", x, last), to="i64")
    negative = node.add("Less", column, node.constant(np.array(0, np.int64), "zero"))
    bits = node.add("Cast", column, to="u64")
    size = where(node, negative, node.add("Sub", _u64(node, 0), bits), bits)  # also of the least i64
    powers = node.constant(np.array([10**k for k in range(count)][::-1], np.uint64), "powers")
    digits = node.add("Mod", node.add("Div", size, powers), _u64(node, 10))
    digits = node.add("Add", node.add("Cast", digits, to="u8"), node.constant(np.array(ord("0"), np.uint8), "0"))
    needed = node.add("Cast", node.add("GreaterOrEqual", size, powers), to="i32")
    length = node.add("Max", node.add("ReduceSum", needed, last, keepdims=1), i32(node, 1))
    ends = [node.constant(np.full((*x.type.dims, 1), byte, np.uint8), "end") for byte in b"-\0"]
    source = node.add("Concat", ends[0], digits, ends[1], axis=-1)
    step = node.constant(np.arange(count + 1, dtype=np.int32), "step")
    sign = node.add("Cast", negative, to="i32")
    at = node.add("Sub", node.add("Add", step, i32(node, 1 + count)), node.add("Add", length, sign))
    at = where(node, node.add("Less", step, sign), i32(node, 0), node.add("Min", at, i32(node, count + 1)))
    return node.add("GatherElements", source, at, axis=-1)


def _read(node: OnnxNode, dtype: DType) -> Value:
    """Parses decimal digits with or without a sign; the result for other strings is unspecified."""
    x, last = node.input(0), node.int_constant("last", [-1])
    width = width_of(x)
    digit = node.add("Sub", node.add("Cast", x, to="i64"), node.int_constant("0", [ord("0")]))
    inside = node.add(
        "And",
        node.add("GreaterOrEqual", digit, node.int_constant("least", [0])),
        node.add("Less", digit, node.int_constant("ten", [10])),
    )
    behind = node.add("Sub", lengths_of(node, x), node.constant(np.arange(1, width + 1, dtype=np.int32), "step"))
    place = node.add("Min", node.add("Max", behind, i32(node, 0)), i32(node, 19))
    powers = node.constant(np.array([*(10**k for k in range(19)), 0], np.int64), "powers")
    worth = node.add("Mul", digit, node.add("Gather", powers, place, axis=0))
    total = node.add("ReduceSum", where(node, inside, worth, node.int_constant("none", [0])), last, keepdims=0)
    minus = node.add("Equal", x, node.constant(np.array(ord("-"), np.uint8), "minus"))
    signs = node.add("ReduceMax", node.add("Cast", minus, to="i32"), last, keepdims=0)
    negative = node.add("Cast", signs, to="bool")
    return node.add("Cast", where(node, negative, node.add("Neg", total), total), to=dtype.value)
