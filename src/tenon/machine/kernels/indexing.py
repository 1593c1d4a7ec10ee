"""Data-dependent indexing (gathers, scatters, one-hot) and scans along an axis (cumulative sums, top-k)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, cast, less, op, select
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tournament import Tournament, greater_or_nan, lesser
from tenon.network.graph.types import I64, DType

Ints = tuple[int, ...]


def position(value: Expr, extent: int) -> Expr:
    """An index read from data; a negative one counts from the end."""
    value = cast(value, I64)
    return value + select(less(value, 0), Const(extent, Type(I64)), Const(0, Type(I64)))


def bind_position(k: Builder, value: Expr, extent: int) -> AbstractContextManager[Index]:
    """The index for ``position``, for indices into tensors."""
    return k.bind("at", position(value, extent), extent)


def grid(k: Builder, stack: ExitStack, extents: Sequence[int]) -> list[IndexLike]:
    """A loop for every extent."""
    return [stack.enter_context(k.loop("ijklmn"[i % 6], n)) for i, n in enumerate(extents)]


@lru_cache(maxsize=256)
def gather(outer: int, n: int, inner: int, count: int, dtype: DType, index_dtype: DType, machine: Machine) -> Kernel:
    """y[o, i] = x[o, indices[i]] over rows of ``inner`` elements.  Parameters: x, indices, y."""
    k = Builder(f"gather_{outer}x{count}x{inner}", f"Rows of {inner} elements gathered by index")
    x = k.param("x", outer, n, inner, dtype=dtype)
    indices = k.param("indices", count, dtype=index_dtype)
    y = k.param("y", outer, count, inner, dtype=dtype, out=True)
    with k.loop("i", count) as i, bind_position(k, indices[i], n) as at, k.loop("o", outer) as o:
        for start, iterations, width in lane_segments(inner, machine.lanes_of(dtype)):
            with k.loop("v", iterations) as v:
                y.vec(width)[o, i, v + start // width] = x.vec(width)[o, at, v + start // width]
    return k.done()


@lru_cache(maxsize=256)
def gather_elements(dims: Ints, shape: Ints, axis: int, dtype: DType, index_dtype: DType) -> Kernel:
    """y[.., i, ..] = x[.., indices[.., i, ..], ..].  Parameters: x, indices, y."""
    k = Builder("gather_elements", "Elements gathered by an index each, along one axis")
    x = k.param("x", *dims, dtype=dtype)
    indices = k.param("indices", *shape, dtype=index_dtype)
    y = k.param("y", *shape, dtype=dtype, out=True)
    with ExitStack() as stack:
        here = grid(k, stack, shape)
        at = stack.enter_context(bind_position(k, indices[tuple(here)], dims[axis]))
        y[tuple(here)] = x[(*here[:axis], at, *here[axis + 1 :])]
    return k.done()


@lru_cache(maxsize=256)
def gather_nd(
    batch: int, rows: int, dims: Ints, inner: int, dtype: DType, index_dtype: DType, machine: Machine
) -> Kernel:
    """y[b, r] = x[b, indices[b, r]]: each row of indices names a position of ``dims``."""
    k = Builder("gather_nd", "Slices gathered by positions")
    x = k.param("x", batch, *dims, inner, dtype=dtype)
    indices = k.param("indices", batch, rows, len(dims), dtype=index_dtype)
    y = k.param("y", batch, rows, inner, dtype=dtype, out=True)
    with ExitStack() as stack:
        b, r = grid(k, stack, (batch, rows))
        at = [stack.enter_context(bind_position(k, indices[b, r, d], n)) for d, n in enumerate(dims)]
        for start, iterations, width in lane_segments(inner, machine.lanes_of(dtype)):
            with k.loop("v", iterations) as v:
                y.vec(width)[b, r, v + start // width] = x.vec(width)[(b, *at, v + start // width)]
    return k.done()


def combine(reduction: str, old: Expr, new: Expr) -> Expr:
    """How a scatter combines an element with its update."""
    if reduction == "none":
        return new
    a, b, dtype = storage_types.loaded(old), storage_types.loaded(new), old.type.dtype
    if dtype is DType.BOOL:
        return op({"add": "or", "max": "or", "mul": "and", "min": "and"}[reduction], a, b)
    return storage_types.stored(op(reduction, a, b), dtype)


@lru_cache(maxsize=256)
def scatter_elements(dims: Ints, shape: Ints, axis: int, reduction: str, dtype: DType, index_dtype: DType) -> Kernel:
    """y[.., indices[.., i, ..], ..] combined with updates[.., i, ..].  Parameters: indices, updates, y."""
    k = Builder("scatter_elements", "Updates scattered by an index each, along one axis")
    indices = k.param("indices", *shape, dtype=index_dtype)
    updates = k.param("updates", *shape, dtype=dtype)
    y = k.param("y", *dims, dtype=dtype, out=True)
    with ExitStack() as stack:
        here = grid(k, stack, shape)
        at = stack.enter_context(bind_position(k, indices[tuple(here)], dims[axis]))
        target = (*here[:axis], at, *here[axis + 1 :])
        y[target] = combine(reduction, y[target], updates[tuple(here)])
    return k.done()


@lru_cache(maxsize=256)
def scatter_nd(rows: int, dims: Ints, inner: int, reduction: str, dtype: DType, index_dtype: DType) -> Kernel:
    """y[indices[r]] combined with updates[r], rows of ``inner`` elements.  Parameters: indices, updates, y."""
    k = Builder("scatter_nd", "Updates scattered by positions")
    indices = k.param("indices", rows, len(dims), dtype=index_dtype)
    updates = k.param("updates", rows, inner, dtype=dtype)
    y = k.param("y", *dims, inner, dtype=dtype, out=True)
    with ExitStack() as stack:
        (r,) = grid(k, stack, (rows,))
        at = [stack.enter_context(bind_position(k, indices[r, d], n)) for d, n in enumerate(dims)]
        with k.loop("v", inner) as v:
            y[(*at, v)] = combine(reduction, y[(*at, v)], updates[r, v])
    return k.done()


@lru_cache(maxsize=256)
def one_hot(outer: int, depth: int, inner: int, dtype: DType, index_dtype: DType) -> Kernel:
    """Parameters: indices [outer, inner], values (off, on), y [outer, depth, inner]."""
    k = Builder("one_hot", "One-hot encoding of indices")
    indices = k.param("indices", outer, inner, dtype=index_dtype)
    values = k.param("values", 2, dtype=dtype)
    y = k.param("y", outer, depth, inner, dtype=dtype, out=True)
    with k.loop("i", outer) as i:
        with k.loop("d", depth) as d, k.loop("j", inner) as j:
            y[i, d, j] = values[0]
        with k.loop("j", inner) as j:
            at = k.let("p", position(_whole(indices[i, j]), depth))
            inside = op("and", less(at, depth), op("less_equal", Const(0, Type(I64)), at))
            with k.bind("there", op("and", inside, 1), 2) as there, k.when(there > 0), k.bind("at", at, depth) as place:
                y[i, place, j] = values[1]
    return k.done()


def _whole(value: Expr) -> Expr:
    return cast(storage_types.loaded(value), I64)


@lru_cache(maxsize=256)
def cumulate(
    outer: int, n: int, inner: int, how: str, exclusive: bool, reverse: bool, dtype: DType, machine: Machine
) -> Kernel:
    """Running sums ("add") or products ("mul") along the middle axis.  Parameters: x, y."""
    k = Builder(f"cumulate_{how}", f"Running results ({how}) along the middle axis")
    x = k.param("x", outer, n, inner, dtype=dtype)
    y = k.param("y", outer, n, inner, dtype=dtype, out=True)
    sums_in = storage_types.computed(dtype)
    with k.loop("o", outer) as o:
        for start, iterations, width in lane_segments(inner, machine.lanes_of(dtype)):
            with k.loop("v", iterations) as v:
                acc = k.local("acc", 1, dtype=sums_in, lanes=width)
                acc[0] = Const(0 if how == "add" else 1, Type(sums_in))
                with k.loop("r", n) as r:
                    at = (o, n - 1 - r if reverse else r, v + start // width)
                    if exclusive:
                        y.vec(width)[at] = storage_types.stored(acc[0], dtype)
                    acc[0] = op(how, acc[0], storage_types.loaded(x.vec(width)[at]))
                    if not exclusive:
                        y.vec(width)[at] = storage_types.stored(acc[0], dtype)
    return k.done()


@lru_cache(maxsize=256)
def reverse_sequence(
    dims: Ints, time_axis: int, batch_axis: int, inner: int, dtype: DType, index_dtype: DType
) -> Kernel:
    """The first elements along time of every batch in reverse.  ``dims`` are the two leading axes.  x, lengths, y."""
    k = Builder("reverse_sequence", "The first elements along time of every batch in reverse")
    x, lengths = k.param("x", *dims, inner, dtype=dtype), k.param("lengths", dims[batch_axis], dtype=index_dtype)
    y = k.param("y", *dims, inner, dtype=dtype, out=True)
    steps = dims[time_axis]

    def at(t: IndexLike, b: IndexLike, v: IndexLike) -> tuple[IndexLike, ...]:
        return (t, b, v) if time_axis == 0 else (b, t, v)

    with ExitStack() as stack:
        b = stack.enter_context(k.loop("b", dims[batch_axis]))
        count = stack.enter_context(k.bind("count", cast(lengths[b], I64), steps + 1))
        t, v = grid(k, stack, (steps, inner))
        with k.when(count - 1 - t):
            y[at(t, b, v)] = x[at(count - 1 - t, b, v)]
        with k.when(index(t) - count):
            y[at(t, b, v)] = x[at(t, b, v)]
    return k.done()


FEW = 64
"""Elements up to which counting ranks is faster than sorting."""


@lru_cache(maxsize=256)
def top_k_of_many(outer: int, n: int, inner: int, count: int, largest: bool, dtype: DType) -> Kernel:
    """As ``top_k``, by a tournament.  Parameters: x, a ``Tournament`` of n, values, positions (i64)."""
    k = Builder(
        f"top{count}_of_{n}",
        f"The {count} {'greatest' if largest else 'least'} of {n} elements in order, and their positions",
    )
    x = k.param("x", outer, n, inner, dtype=dtype)
    table = Tournament(k, n, storage_types.computed(dtype), greater_or_nan if largest else lesser)
    values = k.param("values", outer, count, inner, dtype=dtype, out=True)
    positions = k.param("positions", outer, count, inner, dtype=I64, out=True)
    with k.loop("o", outer) as o, k.loop("v", inner) as v:
        table.clear()
        with k.loop("i", n) as i:
            table.append(storage_types.loaded(x[o, i, v]))
        table.play()
        with k.loop("t", count) as t, k.bind("at", table.place(), n) as at:
            values[o, t, v] = x[o, at, v]
            positions[o, t, v] = cast(table.place(), I64)
            table.drop(at)
    return k.done()


@lru_cache(maxsize=256)
def top_k(outer: int, n: int, inner: int, count: int, largest: bool, dtype: DType) -> Kernel:
    """The ``count`` greatest (or least) along the middle axis, in order; ties keep their order.

    An element's rank is the number of elements that precede it.  Parameters: x, values, positions (i64).
    """
    k = Builder(
        f"top{count}_of_{n}",
        f"The {count} {'greatest' if largest else 'least'} of {n} elements in order, and their positions",
    )
    x = k.param("x", outer, n, inner, dtype=dtype)
    values = k.param("values", outer, count, inner, dtype=dtype, out=True)
    positions = k.param("positions", outer, count, inner, dtype=I64, out=True)
    with k.loop("o", outer) as o, k.loop("v", inner) as v:
        number = k.local("number", 1, dtype=I64)
        number[0] = Const(0, Type(I64))
        with k.loop("i", n) as i:
            rank, other = k.local("rank", 1, dtype=I64), k.local("other", 1, dtype=I64)
            rank[0] = Const(0, Type(I64))
            other[0] = Const(0, Type(I64))
            own = k.let("own", storage_types.loaded(x[o, i, v]))
            with k.loop("j", n) as j:
                that = k.let("that", storage_types.loaded(x[o, j, v]))
                ahead = less(own, that) if largest else less(that, own)
                earlier = less(other[0], number[0])
                same = op("equal", own, that)
                before = op("or", _flag(ahead), op("and", _flag(same), _flag(earlier)))
                rank[0] = rank[0] + before
                other[0] = other[0] + 1
            with k.bind("place", rank[0], n) as place, k.when(index(count - 1) - place):
                values[o, place, v] = x[o, i, v]
                positions[o, place, v] = number[0]
            number[0] = number[0] + 1
    return k.done()


def _flag(mask: Expr) -> Expr:
    """A mask as an i64 of 0 or 1."""
    return op("and", cast(mask, I64), 1)
