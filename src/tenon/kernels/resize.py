"""Interpolation of blocked images: a few weighted taps along rows, a few along columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.ir.build import Builder
from tenon.ir.index import Index
from tenon.ir.loops import Expr, Kernel, broadcast
from tenon.kernels.image import Image
from tenon.kernels.machine import Machine


@dataclass(frozen=True)
class Span:
    """Output positions ``first .. + count`` along one axis: number i of them reads, for each tap, input position
    (start + step * i) // by."""

    first: int
    count: int
    starts: tuple[int, ...]
    step: int
    by: int

    def at(self, i: Index, tap: int) -> Index:
        return (i * self.step + self.starts[tap]) // self.by


@dataclass(frozen=True)
class Resample:
    """What to compute: the spans of all rows and columns of ``y``, with equally many taps in each."""

    x: Image
    y: Image
    rows: tuple[Span, ...]
    cols: tuple[Span, ...]


@lru_cache(maxsize=256)
def resample(s: Resample, machine: Machine) -> Kernel:
    """Parameters: x, weights of the rows [h][taps], weights of the columns [w][taps], y."""
    k = Builder(f"resize_{s.y.channels}_{s.y.h}x{s.y.w}")
    lanes = machine.lanes if s.x.block % machine.lanes == 0 else 1
    down, across = len(s.rows[0].starts), len(s.cols[0].starts)
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    row_weights = k.param("r", s.y.h, down)
    col_weights = k.param("s", s.y.w, across)
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    with k.loop("n", s.y.n) as n, k.loop("c", s.y.blocks * s.y.block // lanes) as c:
        for rows in s.rows:
            with k.loop("i", rows.count) as i:
                vertical = [k.let("wr", row_weights[i + rows.first, t]) for t in range(down)]
                for cols in s.cols:
                    with k.loop("j", cols.count) as j:
                        horizontal = [k.let("wc", col_weights[j + cols.first, t]) for t in range(across)]

                        def pixel(p: int, q: int, rows=rows, cols=cols, i=i, j=j) -> Expr:  # type: ignore[no-untyped-def]
                            return x.vec(lanes)[s.x.place(n, c * lanes, rows.at(i, p), cols.at(j, q), lanes)]

                        total = _weighted(
                            [
                                _weighted([pixel(p, q) for q in range(across)], horizontal)
                                for p in range(down)
                            ],
                            vertical,
                        )
                        at = s.y.place(n, c * lanes, i + rows.first, j + cols.first, lanes)
                        y.vec(lanes)[at] = total
    return k.done()


def _weighted(values: list[Expr], weights: list[Expr]) -> Expr:
    """The sum of the products; a single value has weight one."""
    if len(values) == 1:
        return values[0]
    terms = [v * broadcast(w, v.type.lanes) for v, w in zip(values, weights, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
