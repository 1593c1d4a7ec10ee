"""Normalisation to mean 0 and variance 1, of rows and of the planes of an image; and across channels (LRN).

Two passes, the mean and then the mean square of the differences from it, avoid cancellation.  The result may overwrite
the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, op
from tenon.machine.kernels import math
from tenon.machine.kernels.group_rows import GroupRow, by_groups, threads_of
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rounded_rows import rounded_place, rounded_shape
from tenon.machine.kernels.rows import CHAINS, each, joined, partial, plane_in_blocks, total
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.network.graph.types import F32, DType


@dataclass(frozen=True)
class Rows:
    """Rows [outer, channels, n], each normalised separately.

    Scale and bias are [channels, n] when ``elementwise``, else [channels].  ``statistics`` adds two outputs
    [outer, channels]: the mean, and the inverse of the standard deviation.  ``centred``: means are subtracted, else
    rows are divided by their root mean square.  ``packed``: results of whole tiles of rows are in bf16, as
    ``kernels.rounded_rows`` writes them.
    """

    outer: int
    channels: int
    n: int
    epsilon: float
    elementwise: bool
    bias: bool = True
    statistics: bool = False
    dtype: DType = F32
    centred: bool = True
    packed: bool = False

    @property
    def about(self) -> str:
        """A description of the work on a row, for comments of generated code."""
        divided = "less their mean, over their standard deviation" if self.centred else "over their root mean square"
        return f"{divided}, scaled{' and shifted' if self.bias else ''}"


def _parameters(k: Builder, s: Rows) -> tuple[Tensor, list[Tensor], Tensor, list[Tensor]]:
    """x, scale and bias if there is one, y, and mean and inverse deviation with ``statistics``."""
    x = k.param("x", s.outer, s.channels, s.n, dtype=s.dtype)
    weights = [k.param(w, s.channels, s.n if s.elementwise else 1) for w in ("s", "b")[: 1 + s.bias]]
    if s.packed:
        y = k.param("y", *rounded_shape(s.outer, s.n), dtype=DType.BF16, out=True)
    else:
        y = k.param("y", s.outer, s.channels, s.n, dtype=s.dtype, out=True)
    return x, weights, y, [k.param(name, s.outer, s.channels, out=True) for name in ("mean", "inv") if s.statistics]


@lru_cache(maxsize=256)
def normalize_rows(s: Rows, machine: Machine) -> Kernel:
    """Parameters: x, scale, bias if there is one, y, and mean and inverse deviation with ``statistics``."""
    if by_groups(machine, s.outer * s.channels, s.n):
        return _rows_in_groups(s, machine)
    k = Builder(
        f"normalize_{s.outer}x{s.channels}x{s.n}{'_rounded' * s.packed}",
        f"Rows {s.about}",
    )
    x, weights, y, noted = _parameters(k, s)
    kinds, _ = deal(s.outer, s.channels)
    with k.loop("o", s.outer, kind=kinds[0]) as o, k.loop("c", s.channels, kind=kinds[1]) as c:

        def element(at: Index, lanes: int) -> Expr:
            return loaded(x.vec(lanes)[o, c, at // lanes])

        mean = k.let("mean", total(k, "add", s.n, machine.lanes, F32, element) * (1 / s.n)) if s.centred else None

        def less(value: Expr) -> Expr:
            return value if mean is None else value - mean

        def squared(at: Index, lanes: int) -> Expr:
            d = k.let("d", less(element(at, lanes)))
            return d * d

        variance = total(k, "add", s.n, machine.lanes, F32, squared) * (1 / s.n)
        inverse = k.let("inv", 1.0 / op("sqrt", variance + s.epsilon))
        for tensor, value in zip(noted, (mean, inverse), strict=False):
            assert value is not None
            tensor[o, c] = value

        def weight(w: Tensor, at: Index, lanes: int) -> Expr:
            return w.vec(lanes)[c, at // lanes] if s.elementwise else w[c, 0]

        def finish(at: Index, lanes: int) -> None:
            value = less(element(at, lanes)) * inverse * weight(weights[0], at, lanes)
            value = value + weight(weights[1], at, lanes) if s.bias else value
            if s.packed:
                y.vec(lanes)[rounded_place(o, at, lanes)] = cast(value, DType.BF16)
            else:
                y.vec(lanes)[o, c, at // lanes] = stored(value, s.dtype)

        each(k, s.n, machine.lanes, finish)
    return k.done()


def _rows_in_groups(s: Rows, machine: Machine) -> Kernel:
    """The same with a block for each row."""
    k = Builder(
        f"normalize_{s.outer}x{s.channels}x{s.n}",
        f"Rows {s.about}; a block each",
    )
    x, weights, y, noted = _parameters(k, s)
    row = GroupRow(k, s.n, threads_of(machine, s.n))
    with k.loop("o", s.outer, kind="block") as o, k.loop("c", s.channels, kind="block") as c:
        sums, squares = row.cells(), row.cells()
        with row.running():
            values = row.values(lambda at: loaded(x[o, c, at]))
            mean = k.let("mean", row.total(sums, "add", F32, values.first) * (1 / s.n)) if s.centred else None

            def less(value: Expr) -> Expr:
                return value if mean is None else value - mean

            def squared(at: Index, number: Index) -> Expr:
                d = k.let("d", less(values.again(at, number) if s.centred else values.first(at, number)))
                return d * d

            variance = row.total(squares, "add", F32, squared) * (1 / s.n)
            inverse = k.let("inv", 1.0 / op("sqrt", variance + s.epsilon))
            with k.when(*row.first()):
                for tensor, value in zip(noted, (mean, inverse), strict=False):
                    assert value is not None
                    tensor[o, c] = value

            def finish(at: Index, number: Index) -> None:
                scale, *shift = (w[c, at] if s.elementwise else w[c, 0] for w in weights)
                value = less(values.again(at, number)) * inverse * scale
                y[o, c, at] = stored(value + shift[0] if shift else value, s.dtype)

            row.elements(finish)
    return k.done()


@lru_cache(maxsize=256)
def normalize_planes(x: Image, y: Image, epsilon: float, machine: Machine) -> Kernel:
    """Normalise each channel's plane separately, vectorised over channels.

    Parameters: x, scale and bias (each padded with zeros to whole blocks, so that padding lanes stay zero), y.
    """
    k = Builder(
        f"normalize_{x.channels}_{x.h}x{x.w}",
        f"Every channel of {x.shown} less its mean, over its standard deviation; scaled and shifted",
    )
    source = k.param("x", *x.shape)
    scale, bias = k.param("s", x.blocks, x.block), k.param("b", x.blocks, x.block)
    target = k.param("y", *y.shape, out=True)
    with k.loop("n", x.n) as n, k.loop("b", x.blocks, kind="parallel") as b:
        for start, iterations, lanes in lane_segments(x.block, machine.lanes):
            with k.loop("v", iterations) as v:
                at = v + start // lanes
                _plane(
                    k,
                    x,
                    y,
                    (source.vec(lanes), target.vec(lanes)),
                    (n, b, at),
                    epsilon,
                    (scale.vec(lanes)[b, at], bias.vec(lanes)[b, at]),
                )
    return k.done()


def _plane(
    k: Builder,
    x: Image,
    y: Image,
    buffers: tuple[Tensor, Tensor],
    at: tuple[Index, Index, Index],
    epsilon: float,
    weights: tuple[Expr, Expr],
) -> None:
    """One vector of channels."""
    source, target = buffers
    n, b, v = at

    def element(row: Index, col: Index) -> Expr:
        return source[n, b, row + x.top, col + x.left, v]

    def sum_of(square_from: Expr | None) -> Expr:
        acc = partial(k, "add", CHAINS, F32, source.lanes)
        for i, j, c, sums in plane_in_blocks(k, x.h, x.w, acc):
            value = element(i, j)
            if square_from is not None:
                d = k.let("d", value - square_from)
                value = d * d
            sums[c] = sums[c] + value
        return joined("add", [acc[c] for c in range(CHAINS)]) * (1 / (x.h * x.w))

    mean = k.let("mean", sum_of(None))
    factor = k.let("f", weights[0] / op("sqrt", sum_of(mean) + epsilon))
    shift = k.let("h", weights[1])
    with k.loop("i", x.h) as i, k.loop("j", x.w) as j:
        target[n, b, i + y.top, j + y.left, v] = (element(i, j) - mean) * factor + shift


@dataclass(frozen=True)
class Lrn:
    """[n, channels, size]: x / (bias + alpha / window * sum of the squares of ``window`` channels) ** beta."""

    n: int
    channels: int
    size: int
    window: int
    alpha: float
    beta: float
    bias: float


@lru_cache(maxsize=64)
def lrn(s: Lrn, machine: Machine) -> Kernel:
    """Parameters: x, y."""
    k = Builder(f"lrn_{s.channels}x{s.size}", f"Local response normalization over {s.channels} channels")
    shape = (s.n, s.channels, s.size)
    x, y = k.param("x", *shape), k.param("y", *shape, out=True)
    before = (s.window - 1) // 2
    with k.loop("n", s.n) as n, k.loop("c", s.channels, kind="parallel") as c:
        for start, iterations, lanes in lane_segments(s.size, machine.lanes):
            with k.loop("j", iterations) as j:
                at = j + start // lanes
                acc = partial(k, "add", 1, F32, lanes)
                with k.loop("w", s.window) as w:
                    other = c + w - before
                    with k.when(other, s.channels - 1 - other):
                        v = k.let("v", x.vec(lanes)[n, other, at])
                        acc[0] = acc[0] + v * v
                base = acc[0] * (s.alpha / s.window) + s.bias
                y.vec(lanes)[n, c, at] = x.vec(lanes)[n, c, at] / power(base, s.beta)
    return k.done()


def power(base: Expr, exponent: float) -> Expr:
    """base ** exponent for positive bases; by square roots where the exponent allows it."""
    root = op("sqrt", base)
    known = {0.5: root, 0.75: root * op("sqrt", root), 1.0: base}
    return known[exponent] if exponent in known else math.pow(base, math.constant(exponent, base))
