"""Pooling of regions of interest, whose corners are data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, less, maximum, minimum, op, select
from tenon.machine.kernels.boxes import number
from tenon.network.graph.types import I32


@dataclass(frozen=True)
class PooledRegions:
    """``count`` regions of [items, channels, height, width] pooled to ``rows`` x ``columns`` bins."""

    count: int
    items: int
    channels: int
    height: int
    width: int
    rows: int
    columns: int
    scale: float
    group: int = 0
    """Bins along each side with separate channels (position-sensitive pooling); 0 where all bins share channels."""

    @property
    def outputs(self) -> int:
        return self.channels // (self.group * self.group) if self.group else self.channels

    @property
    def result(self) -> tuple[int, int, int, int]:
        return self.count, self.outputs, self.rows, self.columns


def rounded(x: Expr) -> Expr:
    """The nearest whole number, halves away from zero (C's round)."""
    away = op("floor", op("abs", x) + 0.5)
    return select(less(x, 0.0), -away, away)


def max_regions(d: PooledRegions) -> Kernel:
    """(x, regions [count, 5] of image and corners, 0 1 2 ...) -> [count, channels, rows, columns].

    An empty bin gives 0.
    """
    k = Builder(
        f"max_regions_{d.count}x{d.channels}x{d.height}x{d.width}_{d.rows}x{d.columns}", "Max pooling of regions"
    )
    x, regions, numbers, y = _parameters(k, d)
    with k.loop("r", d.count) as r:
        corner = [k.let("c", rounded(regions[r, 1 + i] * d.scale)) for i in range(4)]
        sides = [maximum(corner[2 + i] - corner[i] + 1.0, 1.0) for i in range(2)]
        bins = [k.let("b", side / float(n)) for side, n in zip(sides, (d.columns, d.rows), strict=True)]
        with k.loop("v", d.rows) as v, k.loop("u", d.columns) as u:
            window = _Window(k, d)
            for i, p in enumerate((u, v)):
                low = op("floor", bins[i] * numbers[p]) + corner[i]
                window.cut(i, low, op("ceil", bins[i] * numbers[p + 1]) + corner[i])
            with k.loop("c", d.channels) as c:
                most = k.local("most", 1, space="stack")
                most[0] = number(-3.4e38)
                with window.elements(cast(regions[r, 0], I32)) as (n, h, w):
                    most[0] = maximum(most[0], x[n, c, h, w])
                y[r, c, v, u] = select(less(number(0.0), window.area), most[0], number(0.0))
    return k.done()


def average_regions(d: PooledRegions) -> Kernel:
    """As ``max_regions``, but means; output channel c of bin (v, u) reads channel (c * group + v) * group + u."""
    k = Builder(
        f"average_regions_{d.count}x{d.channels}x{d.height}x{d.width}_{d.group}",
        "Position-sensitive average pooling of regions",
    )
    x, regions, numbers, y = _parameters(k, d)
    with k.loop("r", d.count) as r:
        first = [k.let("c", rounded(regions[r, 1 + i]) * d.scale) for i in range(2)]
        last = [(rounded(regions[r, 3 + i]) + 1.0) * d.scale for i in range(2)]
        sides = [maximum(b - a, 0.1) for a, b in zip(first, last, strict=True)]
        bins = [k.let("b", side / float(d.group)) for side in sides]
        with k.loop("v", d.group) as v, k.loop("u", d.group) as u:
            window = _Window(k, d)
            for i, p in enumerate((u, v)):
                low = op("floor", bins[i] * numbers[p] + first[i])
                window.cut(i, low, op("ceil", bins[i] * numbers[p + 1] + first[i]))
            with k.loop("c", d.outputs) as c:
                total = k.local("total", 1, space="stack")
                total[0] = number(0.0)
                with window.elements(cast(regions[r, 0], I32)) as (n, h, w):
                    total[0] = total[0] + x[n, (c * d.group + v) * d.group + u, h, w]
                y[r, c, v, u] = total[0] / maximum(window.area, 1.0)
    return k.done()


def aligned_regions(d: PooledRegions, samples: int) -> Kernel:
    """As ``average_regions``, but each bin is the mean of ``samples`` x ``samples`` bilinear samples.

    A sample at or past the end of its bin, which is clipped at the last pixels' centres, counts as zero.
    """
    k = Builder(
        f"aligned_regions_{d.count}x{d.channels}x{d.height}x{d.width}_{d.group}_{samples}",
        "Position-sensitive average pooling of regions at bilinear samples",
    )
    x, regions, numbers, y = _parameters(k, d, samples)
    with k.loop("r", d.count) as r, k.bind("n", cast(regions[r, 0], I32), d.items) as n:
        first = [k.let("c", regions[r, 1 + i] * d.scale) for i in range(2)]
        sides = [maximum((regions[r, 3 + i] + 1.0) * d.scale - first[i], 0.1) for i in range(2)]
        bins = [k.let("b", side / float(d.group)) for side in sides]
        steps = [k.let("s", size / float(samples + 1)) for size in bins]
        with k.loop("v", d.group) as v, k.loop("u", d.group) as u:
            with k.loop("c", d.outputs) as c:
                y[r, c, v, u] = number(0.0)
            low, high = (
                [
                    k.let("e", minimum(maximum(bins[i] * numbers[p + end] + first[i], 0.0), float(extent - 1)))
                    for i, (p, extent) in enumerate(((u, d.width), (v, d.height)))
                ]
                for end in (0, 1)
            )
            with k.loop("i", samples) as i, k.loop("j", samples) as j:
                across, down = (
                    _between(k, low[a] + steps[a] * numbers[p + 1], high[a], extent)
                    for a, (p, extent) in enumerate(((j, d.width), (i, d.height)))
                )
                with ExitStack() as stack:
                    (w0, w1), (h0, h1) = (
                        [stack.enter_context(k.bind("at", cast(place, I32), extent)) for place in side[:2]]
                        for side, extent in ((across, d.width), (down, d.height))
                    )
                    c = stack.enter_context(k.loop("c", d.outputs))
                    at = (c * d.group + v) * d.group + u
                    top, bottom = (x[n, at, h, w0] * across[2] + x[n, at, h, w1] * across[3] for h in (h0, h1))
                    value = (top * down[2] + bottom * down[3]) / float(samples * samples)
                    y[r, c, v, u] = y[r, c, v, u] + value
    return k.done()


def _between(k: Builder, point: Expr, end: Expr, extent: int) -> tuple[Expr, Expr, Expr, Expr]:
    """The pixels on both sides of a point and their weights, which are zero from ``end`` on."""
    inside = less(point, end)
    low = k.let("low", op("floor", minimum(point, float(extent - 1))))
    share = k.let("share", point - low)
    shares = (select(inside, 1.0 - share, number(0.0)), select(inside, share, number(0.0)))
    return low, minimum(low + 1.0, float(extent - 1)), *shares


def _parameters(k: Builder, d: PooledRegions, least: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = k.param("x", d.items, d.channels, d.height, d.width)
    regions, numbers = k.param("regions", d.count, 5), k.param("numbers", max(d.rows, d.columns, least) + 1)
    return x, regions, numbers, k.param("y", *d.result, out=True)


class _Window:
    """The part of an image that a bin covers."""

    def __init__(self, k: Builder, d: PooledRegions) -> None:
        self.k, self.d = k, d
        self.begins: list[Expr] = []
        self.lengths: list[Expr] = []

    def cut(self, axis: int, low: Expr, high: Expr) -> None:
        """Set the columns (axis 0) or rows (axis 1) from ``low`` up to ``high``, clipped to the image."""
        extent = float((self.d.width, self.d.height)[axis])
        low = self.k.let("low", minimum(maximum(low, 0.0), extent))
        self.begins.append(low)
        self.lengths.append(self.k.let("len", maximum(minimum(maximum(high, 0.0), extent) - low, 0.0)))

    @property
    def area(self) -> Expr:
        return self.lengths[0] * self.lengths[1]

    @contextmanager
    def elements(self, item: Expr) -> Iterator[tuple[Index, Index, Index]]:
        """A loop over (image, row, column)."""
        k, d = self.k, self.d
        (x, y), (columns, rows) = self.begins, self.lengths
        with ExitStack() as stack:
            enter = stack.enter_context
            n = enter(k.bind("n", item, d.items))
            top, left = enter(k.bind("h0", cast(y, I32), d.height + 1)), enter(k.bind("w0", cast(x, I32), d.width + 1))
            high, wide = (
                enter(k.bind("hn", cast(rows, I32), d.height + 1)),
                enter(k.bind("wn", cast(columns, I32), d.width + 1)),
            )
            h = top + enter(k.loop("h", d.height, high))
            w = left + enter(k.loop("w", d.width, wide))
            enter(k.when(h < d.height, w < d.width))
            yield n, h, w
