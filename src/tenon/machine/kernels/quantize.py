"""Quantisation of floats by one scale: quotients rounded to integers, plus a zero point, clamped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, segments
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
                rest = [broadcast(each, lanes) for each in (added, divisor, inverse)]
                y.vec(lanes)[at] = cast(nearest_integer(x.vec(lanes)[at], rest, s.limits), s.dtype)
    return k.done()


def nearest_integer(x: Expr, numbers: Sequence[Expr], limits: tuple[int, int]) -> Expr:
    """x quantised, in i32: ``numbers`` are the zero point, the scale and the inverse of the scale."""
    whole = op("nearest_quotient_add", x, *numbers)
    return minimum(maximum(whole, limits[0]), limits[1])


@lru_cache(maxsize=64)
def quantize_words(x: Image, y: Image, zero: bool, scalar: Callable[..., Expr], *, around: bool) -> Kernel:
    """Planes of at most four channels to words of four bytes, zeros past the last channel, of which an item stores one,
    or four where rows of y have so many; ``around``: its halo gets what a zero becomes.

    ``scalar`` is the result for an element, a scale and, where there is one, a zero point.  Parameters: x f32, scale
    f32 [1], zero point [1], y as words.
    """
    assert x.block == 1
    assert y.blocks == 1
    k = Builder(f"quantizelinear_{x.n * x.channels * x.h * x.w}", f"{x.shown} divided by a scale and rounded to words")
    source, scale = k.param("x", *x.shape[:4]), k.param("s", 1)
    point = k.param("z", 1, dtype=y.dtype) if zero else None
    target = k.param("y", *y.shape[:4], dtype=I32, out=True)
    with blocks_of_planes(k, source, x, y, around=around) as (at, positions):
        rest = [k.let("s", scale[0]), *([] if point is None else [k.let("z", point[0])])]
        words = []
        for planes in positions:
            values: list[Expr] = [k.let("v", scalar(v, *rest)) for v in planes]
            words.append(k.let("word", word_of([*values, *[Const(0, Type(I32))] * (4 - x.channels)])))
        k.store(target.buffer, at, vector4(*words) if len(words) == FOUR else words[0])
    return k.done()


@contextmanager
def blocks_of_planes(
    k: Builder, source: Tensor, x: Image, y: Image, *, around: bool
) -> Iterator[tuple[tuple[Index, ...], list[list[Expr]]]]:
    """The loops over what an item stores of ``y``, with ``around`` its halo included: where it lies in [n, 1, rows,
    columns], and the elements of all planes at each of its positions, four where rows have so many; beside the image
    zeros."""
    top, bottom, left, right = (y.top, y.bottom, y.left, y.right) if around else (0, 0, 0, 0)
    columns, aligned = left + y.w + right, around or not (y.left or y.right)
    each = FOUR if columns % FOUR == 0 and aligned else 1
    together = each == FOUR and not any(extent % FOUR for extent in (x.w, x.left, x.right, left, right))
    with (
        k.loop("n", x.n, kind="parallel") as n,
        k.loop("i", top + y.h + bottom, kind="parallel") as i,
        k.loop("j", columns // each, kind="parallel") as j,
    ):
        row, first = i - top, j * each - left

        def loaded(channel: int, col: Index, lanes: int) -> Expr:
            facts = [row] * (top > 0) + [y.h - 1 - row] * (bottom > 0)
            facts += [col] * (left > 0) + [y.w - 1 - col] * (right > 0)
            where = n, Index((), channel), row + x.top, col + x.left
            return k.let("x", guarded(tuple(facts), Load(source.buffer, where, Type(F32, lanes)), 0.0))

        if together:
            planes = [lanes_of(loaded(c, first, FOUR)) for c in range(x.channels)]
            positions = [list(each) for each in zip(*planes, strict=True)]
        else:
            positions = [[loaded(c, first + e, 1) for c in range(x.channels)] for e in range(each)]
        yield (n, Index(), row + y.top, first + y.left), positions
