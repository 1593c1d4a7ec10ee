"""Interpolation of blocked images: a separable filter of a few taps along rows and along columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, broadcast
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal


@dataclass(frozen=True)
class OutputRange:
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
    """The resampling to compute: the spans of all rows and columns of ``y``, with equally many taps in each."""

    x: Image
    y: Image
    rows: tuple[OutputRange, ...]
    cols: tuple[OutputRange, ...]


@lru_cache(maxsize=256)
def resample(s: Resample, machine: Machine) -> Kernel:
    """Parameters: x, weights of the rows [h][taps], weights of the columns [w][taps], y."""
    k = Builder(
        f"resize_{s.y.channels}_{s.y.h}x{s.y.w}",
        f"Resampling of {s.x.shown} to {s.y.shown} by weights of rows and columns",
    )
    lanes = machine.lanes if s.x.block % machine.lanes == 0 else 1
    down, across = range(len(s.rows[0].starts)), range(len(s.cols[0].starts))
    x = k.param("x", *s.x.shape, dtype=s.x.dtype).vec(lanes)
    row_weights = k.param("r", s.y.h, len(down))
    col_weights = k.param("s", s.y.w, len(across))
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True).vec(lanes)
    vectors = s.y.blocks * s.y.block // lanes
    (kind,), inside = deal(vectors)
    with k.loop("n", s.y.n) as n, k.loop("c", vectors, kind=kind) as c:
        for rows in s.rows:
            with k.loop("i", rows.count, kind=inside) as i:
                vertical = _named(k, "wr", [row_weights[i + rows.first, t] for t in down])
                for cols in s.cols:
                    with k.loop("j", cols.count) as j:
                        horizontal = _named(k, "wc", [col_weights[j + cols.first, t] for t in across])
                        lines = []
                        for p in down:
                            at = [s.x.place(n, c * lanes, rows.at(i, p), cols.at(j, q), lanes) for q in across]
                            lines.append(_weighted([x[a] for a in at], horizontal))
                        to = s.y.place(n, c * lanes, i + rows.first, j + cols.first, lanes)
                        y[to] = _weighted(lines, vertical)
    return k.done()


def _named(k: Builder, name: str, weights: list[Expr]) -> list[Expr]:
    """The weights of a row or column, loaded once; a single one is never read."""
    return [k.let(name, w) for w in weights] if len(weights) > 1 else weights


def _weighted(values: list[Expr], weights: list[Expr]) -> Expr:
    """The sum of the products; a single value has weight one."""
    if len(values) == 1:
        return values[0]
    terms = [v * broadcast(w, v.type.lanes) for v, w in zip(values, weights, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
