"""Quantisation of floats by one scale: quotients rounded to integers, plus a zero point, clamped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, segments
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast, cast, maximum, minimum, op
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.pointwise import vectors
from tenon.network.graph.types import F32, I32, DType

_PART = 4096
"""Elements of a work item, which inverts the scale once."""


@dataclass(frozen=True)
class Quantize:
    """``size`` numbers to ``dtype``, whose ends are ``limits``; ``zero``: there is a zero point, of that type."""

    size: int
    dtype: DType
    limits: tuple[int, int]
    zero: bool


@lru_cache(maxsize=256)
def quantize(s: Quantize, machine: Machine) -> Kernel:
    """Parameters: x f32 [size], scale f32 [1], zero point [1], y [size]."""
    k = Builder(f"quantizelinear_{s.size}", f"{s.size} numbers divided by a scale and rounded to {s.dtype}")
    x, scale = k.param("x", s.size), k.param("s", 1)
    zero = k.param("z", 1, dtype=s.dtype) if s.zero else None
    y = k.param("y", s.size, dtype=s.dtype, out=True)
    for first, count, width in segments(s.size, _PART):
        with k.loop("i", count, kind="parallel") as i:
            divisor = k.let("s", scale[0])
            inverse = k.let("r", op("div", Const(1.0, Type(F32)), divisor))
            added = Const(0, Type(I32)) if zero is None else k.let("z", cast(zero[0], I32))
            for inner, lanes in vectors(k, width, machine.lanes):
                at = (i * width + inner + first) // lanes
                rest = (broadcast(each, lanes) for each in (added, divisor, inverse))
                whole = op("nearest_quotient_add", x.vec(lanes)[at], *rest)
                y.vec(lanes)[at] = cast(minimum(maximum(whole, s.limits[0]), s.limits[1]), s.dtype)
    return k.done()
