"""Convolutions of quantised integers with sums of 64 bits, for activations of 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, maximum, minimum, op
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.requantize import Requantize
from tenon.network.graph.types import I32, I64, DType

SUMS = (1 << 31) - 1


@dataclass(frozen=True)
class WideConv:
    """The convolution to compute; images have one channel in a block, and x a halo as wide as its padding.

    ``deep`` are the input channels of a group.  With ``partial`` the products of one tap are summed in i32.
    ``row_types`` and ``single`` are as in ``kernels.integer_conv``.
    """

    x: Image
    y: Image
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    deep: int
    group: int
    weights: DType
    partial: bool
    requantize: Requantize
    row_types: tuple[DType, ...]
    single: tuple[bool, ...]


def from_wide_sum(known: Requantize, total: Expr, rows: Sequence[Expr]) -> Expr:
    """An element from a sum in i64, which is saturated to 32 bits where it is rounded doubly."""
    if known.rounding == "double":
        return known(cast(minimum(maximum(total, -SUMS), SUMS), I32), rows)
    given = dict(zip(known.rows, rows, strict=True))
    if known.rounding == "single":
        return _rounded_once(known, total, given)
    scaled = (total * cast(given["multiplier"], I64) + given["half"]) >> given["shift"]
    bounded = minimum(maximum(scaled, known.low - known.zero), known.high - known.zero)
    return cast(cast(bounded, I32) + known.zero, known.dtype)


def _rounded_once(known: Requantize, total: Expr, given: dict[str, Expr]) -> Expr:
    """The magnitude times a multiplier of 31 bits, of which 16 are dropped first: together they exceed 64 bits."""
    sign = total >> 63
    size, multiplier = op("sub", op("xor", total, sign), sign), cast(given["multiplier"], I64)
    product = (size >> 16) * multiplier + ((op("and", size, 0xFFFF) * multiplier) >> 16)
    scaled = minimum((product + (given["half"] >> 16)) >> (given["shift"] - 16), SUMS)
    bounded = cast(op("sub", op("xor", scaled, sign), sign), I32)
    return cast(minimum(maximum(bounded, known.low - known.zero), known.high - known.zero) + known.zero, known.dtype)


@lru_cache(maxsize=256)
def wide_conv(s: WideConv, machine: Machine) -> Kernel:
    """Parameters: x, weights [outputs, kernel..., inputs of the group], bias in i64, rows of factors, y."""
    outs = s.y.channels
    k = Builder(f"integer_wide_conv_{s.y.shown}", f"Convolution of {s.x.shown} to {s.y.shown}, with sums of 64 bits")
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    w = k.param("w", outs, *s.kernel, s.deep, dtype=s.weights)
    b = k.param("b", outs, dtype=I64)
    qs = [k.param("q", 1 if one else outs, dtype=t) for one, t in zip(s.single, s.row_types, strict=True)]
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    per = outs // s.group
    kinds, inside = deal(s.group, per, s.y.h)
    with ExitStack() as stack:
        n = stack.enter_context(k.loop("n", s.y.n))
        g, o, i = (
            stack.enter_context(k.loop(name, count, kind=kind))
            for name, count, kind in zip("goi", (s.group, per, s.y.h), kinds, strict=True)
        )
        j = stack.enter_context(k.loop("j", s.y.w, kind=inside))
        channel = g * per + o
        total = k.local("t", 1, dtype=I64)
        total[0] = b[channel]
        with k.loop("ky", s.kernel[0]) as ky, k.loop("kx", s.kernel[1]) as kx:
            row = i * s.stride[0] + ky * s.dilation[0] - s.padding[0]
            col = j * s.stride[1] + kx * s.dilation[1] - s.padding[1]
            part = k.local("p", 1, dtype=I32)
            part[0] = 0
            with k.loop("c", s.deep) as c:
                value = cast(x[s.x.place(n, g * s.deep + c, row, col, 1)], I32)
                product = value * cast(w[channel, ky, kx, c], I32)
                if s.partial:
                    part[0] = part[0] + product
                else:
                    total[0] = total[0] + cast(product, I64)
            if s.partial:
                total[0] = total[0] + cast(part[0], I64)
        factors = [q[0] if one else q[channel] for q, one in zip(qs, s.single, strict=True)]
        y[s.y.place(n, channel, i, j, 1)] = from_wide_sum(s.requantize, total[0], factors)
    return k.done()
