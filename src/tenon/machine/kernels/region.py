"""Max-pooling with indices, RoiAlign, and determinants."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import IndexLike, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, Value, cast, less, maximum, minimum, op, select
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.data_dependent import counted, flag, number
from tenon.machine.kernels.move import AffineIndex
from tenon.machine.kernels.rows import initial
from tenon.network.graph.types import F32, I64, DType

Ints = tuple[int, ...]


@lru_cache(maxsize=64)
def max_with_position(
    planes: int, sizes: Ints, outs: Ints, taps: Ints, at: tuple[AffineIndex, ...], dtype: DType
) -> Kernel:
    """The greatest element of each window, the first of equals, and its index.

    ``at`` maps loops (positions, then taps) to every axis.  Parameters: x, the index of each element of a plane,
    y, numbers.
    """
    k = Builder("max_with_position", "Greatest element of every window, and its position")
    x = k.param("x", planes, *sizes, dtype=dtype)
    table = k.param("table", *sizes, dtype=I64)
    y = k.param("y", planes, *outs, dtype=dtype, out=True)
    where = k.param("where", planes, *outs, dtype=I64, out=True)
    size, wide = 1, storage_types.computed(dtype)
    for n in sizes:
        size *= n
    with ExitStack() as stack:
        p, plane = stack.enter_context(counted(k, "p", planes))
        here = [stack.enter_context(k.loop("i", n)) for n in outs]
        best, place = k.local("best", 1, dtype=wide), k.local("place", 1, dtype=I64)
        best[0] = initial("max", wide)
        place[0] = number(-1)
        with ExitStack() as inner:
            loops = [*here, *(inner.enter_context(k.loop("t", n)) for n in taps)]
            source = tuple(a.at(loops) for a in at)
            facts = [f for s, n in zip(source, sizes, strict=True) for f in (index(s), index(n - 1) - s)]
            with k.when(*facts):
                value = k.let("value", storage_types.loaded(x[(p, *source)]))
                better = op("or", flag(less(best[0], value)), flag(less(place[0], number(0))))
                better = k.let("better", better)
                place[0] = select(op("not_equal", better, number(0)), plane * size + table[source], place[0])
                best[0] = select(_as(better, wide), value, best[0])
        y[(p, *here)] = storage_types.stored(best[0], dtype)
        where[(p, *here)] = place[0]
    return k.done()


def _as(condition: Expr, dtype: DType) -> Expr:
    """An i64 of 0 or 1 as a mask for values of ``dtype``."""
    mask = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: I64}[dtype.bytes]
    return op("not_equal", cast(condition, mask), 0)


@lru_cache(maxsize=64)
def roi_align(
    shape: Ints, regions: int, outs: Ints, ratio: int, scale: float, half: bool, greatest: bool, index_dtype: DType
) -> Kernel:
    """Bilinear samples of regions, averaged (or the greatest) per bin.

    ``ratio`` samples per bin along each axis; 0: as many as the bin has elements, rounded up, of which only those near
    the image are visited.  Parameters: x [N, C, H, W], regions [R, 4], the batch of each, y [R, C, h, w].
    """
    n, channels, height, width = shape
    k = Builder("roi_align", "RoiAlign: bilinear samples of regions, averaged or the greatest of each bin")
    x, rois = k.param("x", *shape), k.param("rois", regions, 4)
    batches = k.param("batches", regions, dtype=index_dtype)
    y = k.param("y", regions, channels, *outs, out=True)
    shift = 0.5 if half else 0.0
    with ExitStack() as stack:
        r = stack.enter_context(k.loop("r", regions))
        b = stack.enter_context(k.bind("b", cast(batches[r], I64), n))
        left, top, right, bottom = (k.let("edge", rois[r, d] * scale - shift) for d in range(4))
        down = _Axis.of(k, top, bottom, outs[0], height, ratio, half)
        across = _Axis.of(k, left, right, outs[1], width, ratio, half)
        share = k.let("share", 1.0 / (down.samples * across.samples)) if not greatest else None
        i, row = stack.enter_context(counted(k, "i", outs[0]))
        from_row, rows = down.visited(k, stack, row)
        j, col = stack.enter_context(counted(k, "j", outs[1]))
        from_col, cols = across.visited(k, stack, col)
        with k.loop("c", channels) as c:
            y[r, c, i, j] = Const(0.0, Type(F32))
        _, step = stack.enter_context(counted(k, "u", rows))
        at_y = k.let("at", from_row + (cast(step, F32) + 0.5) * down.bin / down.samples)
        _, along = stack.enter_context(counted(k, "v", cols))
        at_x = k.let("at", from_col + (cast(along, F32) + 0.5) * across.bin / across.samples)
        live = k.let("live", op("and", _within(at_y, height), _within(at_x, width)))
        (y0, y1, fy), (x0, x1, fx) = _neighbours(k, at_y, height), _neighbours(k, at_x, width)
        places = [
            stack.enter_context(k.bind("p", p, extent))
            for p, extent in ((y0, height), (y1, height), (x0, width), (x1, width))
        ]
        first = op("and", flag(op("equal", step, number(0))), flag(op("equal", along, number(0))))
        start = k.let("start", first) if greatest else None
        with k.loop("c", channels) as c:
            parts = [
                x[b, c, places[a], places[2 + d]] * (fy if a else 1.0 - fy) * (fx if d else 1.0 - fx)
                for a in (0, 1)
                for d in (0, 1)
            ]
            joined = reduce(maximum if greatest else add, parts)
            value = select(_as(live, F32), joined, Const(0.0, Type(F32)))
            old = y[r, c, i, j]
            if start:
                y[r, c, i, j] = select(_as(start, F32), value, maximum(old, value))
            elif share:
                y[r, c, i, j] = old + value * share
    return k.done()


@dataclass(frozen=True)
class _Axis:
    """A region along one axis: its start, the size of a bin and its number of samples, all f32."""

    start: Expr
    bin: Expr
    samples: Expr
    extent: int
    ratio: int

    @classmethod
    def of(cls, k: Builder, low: Expr, high: Expr, bins: int, extent: int, ratio: int, half: bool) -> _Axis:
        size = high - low if half else maximum(1.0, high - low)
        bin = k.let("bin", size / Const(float(bins), Type(F32)))
        samples: Expr = Const(float(ratio), Type(F32))
        if not ratio:
            samples = k.let("samples", _least(op("ceil", bin), 0.0))
        return cls(low, bin, samples, extent, ratio)

    def visited(self, k: Builder, stack: ExitStack, place: Expr) -> tuple[Expr, IndexLike]:
        """The start of the cell of a bin's first sample, and the number of samples to visit.

        Samples are more than half an element apart where a bin has several, so at most ``most`` of them lie within an
        element of the image or just outside.  Where samples are skipped on a side, at least one there is visited for
        its zero.  The bounds keep rounding errors in a large region from moving the first sample past the image.
        """
        start = k.let("start", self.start + cast(place, F32) * self.bin)
        if self.ratio:
            return start, self.ratio
        most = 2 * self.extent + 6
        step = k.let("step", self.bin / self.samples)
        before = _most(op("floor", (-1.0 - start) / step) - 1.0, self.samples - 1.0)
        skipped = k.let("skipped", _least(before, 0.0))
        later = minimum(-1.0 - step, maximum(-1.0 - (step + step), start + skipped * step))
        begin = k.let("begin", select(less(0.0, skipped), later, start))
        count = cast(_most(self.samples - skipped, float(most)), I64)
        return begin, stack.enter_context(k.bind("count", count, most + 1))


def _least(value: Expr, bound: Value) -> Expr:
    """The greater operand; the bound for NaN."""
    return select(less(bound, value), value, bound)


def _most(value: Expr, bound: Value) -> Expr:
    """The smaller operand; the bound for NaN."""
    return select(less(value, bound), value, bound)


def _within(at: Expr, n: int) -> Expr:
    return op("and", flag(op("less_equal", Const(-1.0, Type(F32)), at)), flag(op("less_equal", at, float(n))))


def _neighbours(k: Builder, at: Expr, n: int) -> tuple[Expr, Expr, Expr]:
    """The two elements around a position, and the weight of the second."""
    at = k.let("at", minimum(_least(at, 0.0), float(n - 1)))
    low = k.let("low", cast(op("floor", at), I64))
    return low, low + 1, k.let("part", at - cast(low, F32))


@lru_cache(maxsize=64)
def determinant(count: int, n: int, dtype: DType) -> Kernel:
    """By Gaussian elimination with partial pivoting.  Parameters: matrices, y, scratch for one matrix."""
    k = Builder(f"determinant_{n}", "Determinants by Gaussian elimination with partial pivoting")
    x, y = k.param("x", count, n, n, dtype=dtype), k.param("y", count, dtype=dtype, out=True)
    a = k.param("a", n, n, dtype=dtype, out=True)
    one, zero = Const(1.0, Type(dtype)), Const(0.0, Type(dtype))
    with k.loop("m", count) as m:
        with k.loop("i", n) as i, k.loop("j", n) as j:
            a[i, j] = x[m, i, j]
        det = k.local("det", 1, dtype=dtype)
        det[0] = one
        with counted(k, "i", n) as (i, row):
            best, place, number_of = (k.local("best", 1, dtype=dtype), *(k.local("p", 1, dtype=I64) for _ in range(2)))
            best[0] = Const(-1.0, Type(dtype))
            place[0] = row
            number_of[0] = row
            with k.loop("r", n - i) as r:
                size = k.let("size", op("abs", a[r + i, i]))
                place[0] = select(op("not_equal", flag(less(best[0], size)), number(0)), number_of[0], place[0])
                best[0] = maximum(best[0], size)
                number_of[0] = number_of[0] + 1
            with k.bind("pivot", place[0], n) as pivot, k.loop("j", n) as j:
                upper = k.let("upper", a[i, j])
                a[i, j] = a[pivot, j]
                a[pivot, j] = upper
            moved = _as(flag(op("not_equal", place[0], row)), dtype)
            det[0] = det[0] * select(moved, -a[i, i], a[i, i])
            with k.loop("r", n - 1 - i) as r:
                whole = op("not_equal", a[i, i], zero)
                factor = k.let("factor", select(whole, a[r + i + 1, i] / select(whole, a[i, i], one), zero))
                with k.loop("j", n) as j:
                    a[r + i + 1, j] = a[r + i + 1, j] - factor * a[i, j]
        y[m] = det[0]
    return k.done()
