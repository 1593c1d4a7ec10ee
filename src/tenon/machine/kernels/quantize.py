"""Quantisation of floats by one scale: quotients rounded to integers, plus a zero point, clamped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Load,
    Type,
    broadcast,
    cast,
    lanes_of,
    maximum,
    minimum,
    op,
    vector4,
)
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_tiled import word_of
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


@lru_cache(maxsize=64)
def quantize_words(x: Image, y: Image, zero: bool, scalar: Callable[..., Expr]) -> Kernel:
    """Planes of at most four channels to words of four bytes, zeros past the last channel, of which an item stores one,
    or those of four positions where they lie so.

    ``scalar`` is the result for an element, a scale and, where there is one, a zero point.  Parameters: x f32, scale
    f32 [1], zero point [1], y as words.
    """
    assert x.block == 1
    assert y.blocks == 1
    k = Builder(f"quantizelinear_{x.n * x.channels * x.h * x.w}", f"{x.shown} divided by a scale and rounded to words")
    source, scale = k.param("x", *x.shape[:4]), k.param("s", 1)
    point = k.param("z", 1, dtype=y.dtype) if zero else None
    target = k.param("y", *y.shape[:4], dtype=I32, out=True)
    with positions_of(k, x, y) as (n, i, j, each):
        rest = [k.let("s", scale[0]), *([] if point is None else [k.let("z", point[0])])]
        values = [
            [k.let("v", scalar(v, *rest)) for v in elements(k, source, (n, Index((), c), i + x.top, j + x.left), each)]
            for c in range(x.channels)
        ]
        values += [[Const(0, Type(I32))] * each] * (4 - x.channels)
        words = [word_of(list(own)) for own in zip(*values, strict=True)]
        k.store(target.buffer, (n, Index(), i + y.top, j + y.left), vector4(*words) if each == FOUR else words[0])
    return k.done()


@contextmanager
def positions_of(k: Builder, x: Image, y: Image) -> Iterator[tuple[Index, Index, Index, int]]:
    """The loops over positions of an image and its copy, and how many neighbouring ones an item has: four where they
    lie at multiples of four in both."""
    each = FOUR if not any(extent % FOUR for extent in (x.w, x.left, x.right, y.left, y.right)) else 1
    with (
        k.loop("n", x.n, kind="parallel") as n,
        k.loop("i", x.h, kind="parallel") as i,
        k.loop("j", x.w // each, kind="parallel") as j,
    ):
        yield n, i, j * each, each


def elements(k: Builder, plane: Tensor, at: tuple[Index, ...], each: int) -> list[Expr]:
    """``each`` neighbouring elements of f32."""
    return lanes_of(k.let("four", Load(plane.buffer, at, Type(F32, FOUR))))[:each] if each == FOUR else [plane[*at]]
