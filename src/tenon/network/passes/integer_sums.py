"""Sums of products of bytes: convolutions and matrix products in i32 whose operands are bytes less a zero point.

Models with dynamic quantisation (ConvInteger, MatMulInteger and what is made of them) compute scales and zero points at
run time.  The sums are those of quantised networks, without requantisation: the zero point of the activations is an
operand, and what scales the sums follows as pointwise operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.types import I32, DType
from tenon.network.ops.base import Operator
from tenon.network.ops.convert import Cast
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_matmul import IntegerMatMul
from tenon.network.ops.pointwise import Sub
from tenon.network.ops.window import Window
from tenon.network.passes.base import Match, Result, attribute, rule, rules
from tenon.network.passes.patterns import IsOp


@dataclass(frozen=True)
class Bytes:
    """Integers of 8 bits less a zero point: ``known`` when compiling, or at run time ``zero``, in i32."""

    value: Value
    known: int = 0
    zero: Value | None = None


def _produced(value: Value, kind: type[Operator]) -> Node | None:
    """The node that computes a value, if it is of that operator."""
    node = value.producer
    return node if node is not None and isinstance(node.op, kind) else None


def _cast(value: Value) -> Value | None:
    """The bytes that are converted to this value."""
    node = _produced(value, Cast)
    return node.input(0) if node is not None and node.input(0).type.dtype in (DType.I8, DType.U8) else None


def bytes_of(value: Value) -> Bytes | None:
    """The bytes that a tensor of i32 consists of, if it does."""
    plain = _cast(value)
    if plain is not None:
        return Bytes(plain)
    node = _produced(value, Sub)
    plain = None if node is None else _cast(node.input(0))
    if node is None or plain is None or plain.type.dims != value.type.dims or node.input(1).type.size != 1:
        return None
    zero = node.input(1)
    return Bytes(plain, zero=zero) if zero.data is None else Bytes(plain, int(zero.data.reshape(())))


def weights_of(value: Value) -> tuple[Array, int] | None:
    """Constants of i32 as bytes and the zero point that is subtracted from them, if they lie so close together."""
    if value.data is None or not value.type.size:
        return None
    least, most = int(value.data.min()), int(value.data.max())
    if most - least > 255 or least < -255 or most > 255:
        return None
    zero = min(max(0, -128 - least), 127 - most)
    return (value.data.astype(np.int64) + zero).astype(np.int8), zero


def _scalar(match: Match, zero: Value | None) -> Value | None:
    if zero is None or zero.type.rank == 1:
        return zero
    return match.add("Reshape", zero, match.constant("one", np.array([1], np.int64)))


@rule(IsOp("MatMul"))
def matrix_of_bytes(match: Match) -> Result:
    """a matrix product in i32 of bytes is one of integer kernels"""
    node = match.root
    a, b = node.input(0), node.input(1)
    if node.output.type.dtype is not I32 or a.type.rank < 2 or b.type.rank < 2 or not node.output.type.size:
        return None
    x, known = bytes_of(a), weights_of(b)
    if x is None or known is None or b.type.rank != 2:
        return _both_at_run_time(match, a, b)
    weights = match.constant("weights", np.ascontiguousarray(known[0].T))
    op = IntegerGemm("none", x.known, known[1], to="i32", batch=a.type.rank - 1)
    return match.add(op, x.value, weights, None, _scalar(match, x.zero))


def _both_at_run_time(match: Match, a: Value, b: Value) -> Result:
    """Either may be constant bytes, too."""
    left, right = _factor(match, a), _factor(match, b)
    if left is None or right is None or not a.type.size:
        return None
    op = IntegerMatMul("none", (left.known, right.known, 0), to="i32")
    return match.add(op, left.value, right.value, _scalar(match, left.zero), _scalar(match, right.zero))


def _factor(match: Match, value: Value) -> Bytes | None:
    """A matrix as bytes, computed at run time or constant."""
    known = weights_of(value)
    return bytes_of(value) if known is None else Bytes(match.constant("weights", known[0]), known[1])


@rule(IsOp("Conv"))
def convolution_of_bytes(match: Match) -> Result:
    """a convolution in i32 of bytes by constants is one of integer kernels"""
    node = match.root
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if node.output.type.dtype is not I32 or node.input(0).type.rank > 4 or not (bias is None or bias.constant):
        return None
    x, known = bytes_of(node.input(0)), weights_of(node.input(1))
    if x is None or known is None or not node.output.type.size or not node.input(0).type.size:
        return None
    shape = Window(
        known[0].shape[2:],
        attribute(node, "strides"),
        attribute(node, "dilations"),
        attribute(node, "pads"),
        attribute(node, "auto_pad"),
    )
    axes = shape.axes("Conv", node.input(0).type.dims[2:])
    pads = (*(a.before for a in axes), *(a.after for a in axes))
    if any(p < 0 for p in pads):
        return None
    image = x.value
    if x.zero is not None and any(pads):
        zero = _cast(x.zero)
        if zero is None or zero.type.dtype is not image.type.dtype:
            return "its padding is by a number that is no byte"
        image, pads = _padded(match, image, pads, zero), (0,) * len(pads)
    op = IntegerConv(
        "none",
        x.known,
        known[1],
        to="i32",
        group=attribute(node, "group"),
        pads=pads,
        strides=tuple(a.stride for a in axes),
        dilations=tuple(a.dilation for a in axes),
    )
    return match.add(op, image, match.constant("weights", known[0]), bias, _scalar(match, x.zero))


def _padded(match: Match, image: Value, pads: tuple[int, ...], zero: Value) -> Value:
    """The bytes with a border of their zero point."""
    half = len(pads) // 2
    whole = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
    return match.add("Pad", image, match.constant("pads", whole), zero)


INTEGER_SUMS = rules(
    "sums of bytes",
    matrix_of_bytes,
    convolution_of_bytes,
    level=1,
    ensures="products of bytes are computed by integer kernels",
)
