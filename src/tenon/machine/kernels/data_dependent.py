"""Results whose extent depends on data: buffers of the largest possible extent, zero past the count, and the count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, cast, less, maximum, minimum, op, select
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.boxes import Choice, Kept
from tenon.machine.kernels.merge import sort
from tenon.machine.kernels.tournament import lesser
from tenon.network.graph.types import F32, I32, I64, DType

Ints = tuple[int, ...]


def number(value: int) -> Const:
    return Const(value, Type(I64))


def flag(mask: Expr) -> Expr:
    """A mask as an i64 of 0 or 1."""
    return op("and", cast(mask, I64), 1)


def either(condition: Expr, a: Expr, b: Expr) -> Expr:
    """``a`` where an i64 is not zero, else ``b``."""
    return select(op("not_equal", condition, number(0)), a, b)


@contextmanager
def when(k: Builder, condition: Expr) -> Iterator[None]:
    """Statements for an i64 that is not zero."""
    with k.bind("holds", op("and", flag(op("not_equal", condition, number(0))), 1), 2) as holds, k.when(holds - 1):
        yield


@contextmanager
def counted(k: Builder, name: str, extent: IndexLike) -> Iterator[tuple[Index, Expr]]:
    """A loop, and its index as a value."""
    counter = k.local(name, 1, dtype=I64)
    counter[0] = number(0)
    with k.loop(name, extent) as i:
        yield i, counter[0]
        counter[0] = counter[0] + 1


def clear(k: Builder, y: Tensor, shape: Sequence[int]) -> None:
    """Zeros everywhere."""
    with ExitStack() as stack:
        at = tuple(stack.enter_context(k.loop("z", n)) for n in shape)
        y[at] = Const(0, Type(y.buffer.type.dtype))


@lru_cache(maxsize=64)
def nonzero(dims: Ints, dtype: DType) -> Kernel:
    """The positions of all elements that are not zero, one column each.  Parameters: x, positions, count."""
    size = 1
    for n in dims:
        size *= n
    k = Builder("nonzero", "Positions of all elements that are not zero")
    x = k.param("x", *dims, dtype=dtype)
    y = k.param("positions", len(dims), size, dtype=I64, out=True)
    count = k.param("count", 1, dtype=I64, out=True)
    clear(k, y, (len(dims), size))
    total = k.local("found", 1, dtype=I64)
    total[0] = number(0)
    with ExitStack() as stack:
        loops = [stack.enter_context(counted(k, "i", n)) for n in dims]
        value = storage_types.loaded(x[tuple(i for i, _ in loops)])
        with when(k, flag(op("not_equal", value, 0))):
            with k.bind("at", total[0], size) as at:
                for d, (_, i) in enumerate(loops):
                    y[d, at] = i
            total[0] = total[0] + 1
    count[0] = total[0]
    return k.done()


@lru_cache(maxsize=64)
def compress(outer: int, n: int, inner: int, length: int, dtype: DType) -> Kernel:
    """The slices of the middle axis that a condition of ``length`` keeps.  Parameters: x, condition, y, count."""
    k = Builder("compress", "Slices of the middle axis that a condition keeps")
    x = k.param("x", outer, n, inner, dtype=dtype)
    condition = k.param("condition", length, dtype=DType.BOOL)
    y = k.param("y", outer, n, inner, dtype=dtype, out=True)
    count = k.param("count", 1, dtype=I64, out=True)
    clear(k, y, (outer, n, inner))
    total = k.local("found", 1, dtype=I64)
    total[0] = number(0)
    with k.loop("i", min(length, n)) as i, when(k, cast(condition[i], I64)):
        with k.bind("at", total[0], n) as at, k.loop("o", outer) as o, k.loop("v", inner) as v:
            y[o, at, v] = x[o, i, v]
        total[0] = total[0] + 1
    count[0] = total[0]
    return k.done()


@lru_cache(maxsize=64)
def unique(outer: int, n: int, inner: int, in_order: bool, dtype: DType) -> Kernel:
    """The unique slices of the middle axis, ascending or (not ``in_order``) by first occurrence; NaN sorts last and
    equals itself.

    Parameters: x, y, the index of each one's first occurrence, the inverse indices, the number of occurrences, the
    count, and 2 n i32 of scratch.
    """
    k = Builder("unique", "Different slices of the middle axis, their positions and how often each is there")
    x, y = k.param("x", outer, n, inner, dtype=dtype), k.param("y", outer, n, inner, dtype=dtype, out=True)
    first, inverse, counts, count = (
        k.param(name, extent, dtype=I64, out=True)
        for name, extent in (("first", n), ("inverse", n), ("counts", n), ("count", 1))
    )
    places, spare = (k.param(name, n, dtype=I32, out=True) for name in ("places", "spare"))
    clear(k, y, (outer, n, inner))
    clear(k, first, (n,))
    clear(k, counts, (n,))

    def order(i: Index, j: Index) -> Expr:
        """-1, 0 or 1: the lexicographic comparison of slices i and j."""
        sign = k.local("sign", 1, dtype=I64)
        sign[0] = number(0)
        with k.loop("o", outer) as o, k.loop("v", inner) as v:
            a, b = (k.let("e", storage_types.loaded(x[o, p, v])) for p in (i, j))
            sign[0] = either(sign[0], sign[0], flag(lesser(a, b)) - flag(lesser(b, a)))
        return sign[0]

    sort(k, n, places, spare, lambda i, j: flag(less(number(0), order(i, j))))
    total, leader = k.local("found", 1, dtype=I64), k.local("leader", 1, dtype=I64)

    def note(place: Index, at: Expr) -> None:
        """Append a slice that did not occur before, at index ``found``."""
        with k.bind("f", total[0], n) as f:
            first[f] = at
            with k.loop("o", outer) as o, k.loop("v", inner) as v:
                y[o, f, v] = x[o, place, v]
        total[0] = total[0] + 1

    total[0] = leader[0] = number(0)
    with counted(k, "t", n) as (t, turn), k.bind("p", places[t], n) as p, k.bind("h", leader[0], n) as head:
        new = op("or", flag(op("equal", turn, number(0))), flag(op("not_equal", order(p, head), number(0))))
        new = k.let("new", new)
        leader[0] = either(new, cast(places[t], I64), leader[0])
        if in_order:
            with when(k, new):
                note(p, leader[0])
            inverse[p] = total[0] - 1
        else:
            inverse[p] = leader[0]
    if not in_order:  # the sort is stable: the first occurrence comes first, so that its index is known
        with counted(k, "i", n) as (i, place), k.bind("h", inverse[i], n) as head:
            new = k.let("new", flag(op("equal", inverse[i], place)))
            inverse[i] = either(new, total[0], inverse[head])
            with when(k, new):
                note(i, place)
    with k.loop("i", n) as i, k.bind("f", inverse[i], n) as f:
        counts[f] = counts[f] + 1
    count[0] = total[0]
    return k.done()


@lru_cache(maxsize=64)
def suppress(batches: int, classes: int, boxes: int, most: int, by_centre: bool, scored: bool, overlap: bool) -> Kernel:
    """Greedy NMS: from the best score down, keeps each box that overlaps none kept before it by too much.

    Parameters: boxes [batch, boxes, 4], scores [batch, class, boxes], the largest overlap (when ``overlap``, else 0),
    the least score (when ``scored``), a ``Choice`` of boxes, corners of those kept [most, 4], the number kept in total
    and in earlier classes, rows of (batch, class, box), count.
    """
    k = Builder("suppress", "Greedy non-maximum suppression of boxes")
    rows = batches * classes * most
    corners = k.param("boxes", batches, boxes, 4)
    scores = k.param("scores", batches, classes, boxes)
    limit = k.param("overlap", 1) if overlap else None
    least = k.param("least", 1) if scored else None
    choice = Choice(k, boxes)
    kept = k.param("kept", most, 4, out=True)
    counts = k.param("found", 2, dtype=I32, out=True)
    y, count = k.param("y", rows, 3, dtype=I64, out=True), k.param("count", 1, dtype=I64, out=True)
    clear(k, y, (rows, 3))
    counts[0] = Const(0, Type(I32))
    most_overlap = limit[0] if limit is not None else Const(0.0, Type(F32))

    def fits(mine: Sequence[Expr], other: Sequence[Expr]) -> Expr:
        return op("less_equal", _overlap(mine, other), most_overlap)

    def here() -> Expr:
        return counts[0] - counts[1]

    def room() -> Expr:
        return op("and", less(here(), Const(most, Type(I32))), 1)

    with counted(k, "b", batches) as (b, batch), counted(k, "c", classes) as (c, kind):
        counts[1] = counts[0]
        choice.clear()
        with k.loop("i", boxes) as i:
            score = k.let("score", scores[b, c, i])
            choice.append(score, choice.places[i], None if least is None else less(least[0], score))
        with choice.in_order(boxes, room) as at, k.bind("q", choice.which[at], boxes) as q:
            box = [k.let("p", v) for v in _corners(corners, b, q, by_centre)]
            free = Kept(choice, here(), most, most, lambda o: [kept[o, e] for e in range(4)]).free(box, fits)
            with k.bind("free", free[0], 2) as holds, k.when(holds - 1):
                with k.bind("end", here(), most) as end:
                    for e, value in enumerate(box):
                        kept[end, e] = value
                with k.bind("row", counts[0], rows) as row:
                    for d, what in enumerate((batch, kind, cast(choice.which[at], I64))):
                        y[row, d] = what
                counts[0] = counts[0] + 1
    count[0] = cast(counts[0], I64)
    return k.done()


def _corners(boxes: Tensor, b: IndexLike, i: IndexLike, by_centre: bool) -> list[Expr]:
    """The least and greatest coordinates along both axes."""
    p = [boxes[b, i, d] for d in range(4)]
    if by_centre:
        x, y, w, h = p
        return [x - w * 0.5, y - h * 0.5, x + w * 0.5, y + h * 0.5]
    return [minimum(p[0], p[2]), minimum(p[1], p[3]), maximum(p[0], p[2]), maximum(p[1], p[3])]


def _overlap(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """Intersection over union; 0 where a box is empty."""
    sides = [maximum(minimum(a[d + 2], b[d + 2]) - maximum(a[d], b[d]), 0.0) for d in (0, 1)]
    shared = sides[0] * sides[1]
    areas = [(p[2] - p[0]) * (p[3] - p[1]) for p in (a, b)]
    union = areas[0] + areas[1] - shared
    return select(less(0.0, union), shared / union, 0.0)
