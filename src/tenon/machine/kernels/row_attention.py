"""Attention of one query to many keys, as a decoder has it for each word: keys and values are read once, as they lie.

Heads that share keys and values are computed together.  Vectors run along the elements of keys and of values; blocks of
scores have an online softmax (``kernels.blocked_attention``).  Where there are fewer heads than work for all threads,
each of several parts of the keys has results of its own, which a second kernel joins.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, lane_segments, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, maximum, op, select
from tenon.machine.kernels import math
from tenon.machine.kernels.attention_tiles import LEAST
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import ENOUGH, deal
from tenon.machine.kernels.rows import joined, total, totals
from tenon.machine.kernels.storage_types import as_f32, loaded, stored
from tenon.network.graph.types import F32, I32, I64, DType

BLOCK = 64
"""Keys whose scores are computed before their values are added."""

_ROWS, _VECTORS = 4, 4
"""Heads and vectors of channels whose sums are in registers."""

_PART = 256
"""Keys of a part at least, so that its results take little time beside them."""


def parts_of(s: HeadSizes) -> int:
    """In how many parts the keys are computed: as many as make enough work items with the heads, whatever the number of
    threads, on which the order of sums must not depend."""
    heads = s.batch * s.count // s.group
    return max(1, min(s.keys // _PART, -(-ENOUGH // heads)))


def parts_shapes(s: HeadSizes, parts: int) -> list[tuple[str, tuple[int, ...]]]:
    """The results of parts, in f32: sums of values, greatest scores, sums of exponentials."""
    rows = (s.batch, s.count // s.group, parts, s.group)
    return [("sums", (*rows, s.channels)), ("tops", rows), ("totals", rows)]


def row_scratch(s: HeadSizes, parts: int) -> list[tuple[str, tuple[int, ...]]]:
    """The scratch memory of a thread, in f32: scores and, where the keys are in one part, sums."""
    return [("scores", (s.group, BLOCK)), *([("own", (s.group, s.channels))] if parts == 1 else [])]


@dataclass(frozen=True, eq=False)
class _RowAttention:
    """A kernel being built, at a head of keys: operands, scratch memory, the greatest score and the sum of exponentials
    of each row; ``at`` are the first indices of its sums."""

    k: Builder
    s: HeadSizes
    machine: Machine
    q: Tensor
    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, ...]
    mask: Tensor | None
    scores: Tensor
    sums: Tensor
    batch: Index
    table: Index
    head: Index
    at: tuple[Index, ...]
    past: Index
    limits: tuple[Index, ...]
    top: Tensor
    total: Tensor


@lru_cache(maxsize=128)
def row_attention(s: HeadSizes, machine: Machine, parts: int = 1) -> Kernel:
    """Parameters: queries [batch, shared, group, depth], keys [batch, shared, keys, depth] and values [..., channels];
    where ``s`` says so the mask, the number of keys (i64 [1]), the keys before the query (i64 [1]), the scales of keys
    and those of values (f32 [batch, shared, keys]), with slots, of which there are then as many tables of keys, values
    and scales, those of each part (i64 [batch], as the keys before it are);
    ``row_scratch``; the results [batch, shared, group, channels], or ``parts_shapes`` for several parts."""
    k = Builder(
        f"row_attention_{s.batch * s.count}x{s.keys}x{s.depth}",
        f"Attention of a query of {s.batch * s.count} heads to {s.keys} keys of {s.depth}",
    )
    shared = s.count // s.group
    q = k.param("q", s.batch, shared, s.group, s.depth, dtype=s.dtype)
    tables = s.slots or s.batch
    keys = k.param("k", tables, shared, s.keys, s.depth, dtype=s.stored)
    values = k.param("v", tables, shared, s.keys, s.channels, dtype=s.stored)
    m = s.mask
    mask = None if m is None else k.param("m", m.batch, m.heads, m.keys, dtype=m.dtype)
    given_numbers = [name for name, given in (("length", s.length), ("past", s.past)) if given]
    numbers = [k.param(name, s.batch if s.slots else 1, dtype=I64) for name in given_numbers]
    scales = tuple(k.param(name, tables, shared, s.keys) for name in ("ks", "vs") if s.scaled)
    slots = k.param("slots", s.batch, dtype=I64) if s.slots else None
    scores, *own = (k.param(name, *shape, scratch=True) for name, shape in row_scratch(s, parts))
    shapes = [("y", (s.batch, shared, s.group, s.channels))] if parts == 1 else parts_shapes(s, parts)
    results = [k.param(name, *shape, dtype=s.dtype if parts == 1 else F32, out=True) for name, shape in shapes]
    kinds, inside = deal(s.batch, shared, threads=machine.threads)
    each = -(-s.keys // (BLOCK * parts))
    with ExitStack() as stack:
        ranges = [n for n, given in ((s.keys + 1, s.length), (s.pasts, s.past)) if given]
        b = stack.enter_context(k.loop("b", s.batch, kind=kinds[0])) if s.slots else Index()
        counts = [
            stack.enter_context(k.bind("count", number[b], most)) for number, most in zip(numbers, ranges, strict=True)
        ]
        table = b if slots is None else stack.enter_context(k.bind("slot", slots[b], s.slots))
        past = counts[-1] if s.past else Index()
        limits = [Index((), s.keys), *(counts[:1] if s.length else ()), *([past + 1] if s.causal else ())]
        if slots is None:
            b = table = stack.enter_context(k.loop("b", s.batch, kind=kinds[0]))
        h = stack.enter_context(k.loop("h", shared, kind=kinds[1]))
        c = stack.enter_context(k.loop("p", parts, kind=inside)) if parts > 1 else Index()
        top, whole = (k.local(name, s.group) for name in ("top", "total"))
        sums, at = (own[0], ()) if parts == 1 else (results[0], (b, h, c))
        operands, room = (q, keys, values, scales, mask), (scores, sums)
        p = _RowAttention(k, s, machine, *operands, *room, b, table, h, at, past, tuple(limits), top, whole)
        _attend(p, c * each, each)
        if parts == 1:
            _store(p, results[0])
        else:
            _store_state(p, results[1], results[2])
    return k.done()


def _attend(p: _RowAttention, start: Index, blocks: int) -> None:
    """``blocks`` blocks of keys from number ``start`` on."""
    k, s = p.k, p.s
    for row in range(s.group):
        p.top[row], p.total[row] = LEAST, 0.0
        for left, columns, lanes in lane_segments(s.channels, p.machine.lanes):
            with k.loop("c", columns) as c:
                p.sums.vec(lanes)[(*p.at, row, c + left // lanes)] = 0.0
    bounds = [(limit + (BLOCK - 1)) // BLOCK - start for limit in p.limits]
    with k.loop("n", blocks, *bounds) as n:
        first = (start + n) * BLOCK
        with k.when(*([first + (BLOCK + s.window - 2) - p.past] if s.window and not s.ring else [])):
            _scores(p, first)
            factors = [_exponentials(p, row) for row in range(s.group)]
            _add_values(p, first, factors)


def _counts(p: _RowAttention, first: Index) -> tuple[int | Index, ...]:
    """The bounds of a loop over the keys of a block."""
    return (BLOCK, *(limit - first for limit in p.limits))


def _scores(p: _RowAttention, first: Index) -> None:
    """The scores of a block of keys, -inf for those past the last.  Several rows share what is loaded of a key."""
    k, s = p.k, p.s
    rows = _ROWS if p.machine.registers >= 32 else _ROWS // 2
    with k.loop("j", *_counts(p, first)) as j:
        for start in range(0, s.group, rows):
            count = min(rows, s.group - start)
            for row, score in enumerate(_products(p, first + j, start, count), start):
                p.scores[row, j] = _score(p, row, first + j, score)
    for row in range(s.group):
        for limit in p.limits:
            with k.loop("j", BLOCK, first + BLOCK - limit) as j:
                p.scores[row, (BLOCK - 1) - j] = -np.inf


def _products(p: _RowAttention, key: Index, first: int, count: int) -> list[Expr]:
    """The products of a key and ``count`` rows from ``first`` on."""

    def parts(at: Index, lanes: int) -> list[Expr]:
        queries = [loaded(p.q.vec(lanes)[p.batch, p.head, first + i, at // lanes]) for i in range(count)]
        own = as_f32(p.keys.vec(lanes)[p.table, p.head, key, at // lanes])
        own = p.k.let("w", own) if count > 1 else own
        return [query * own for query in queries]

    return totals(p.k, "add", p.s.depth, p.machine.lanes, F32, parts, count)


def _score(p: _RowAttention, row: int, key: Index, product: Expr) -> Expr:
    """The score of a row and a key by their product."""
    s = p.s
    score = product * s.scale
    if s.scaled:
        score = score * p.scales[0][p.table, p.head, key]
    if s.softcap:
        score = math.tanh(score * (1 / s.softcap)) * s.softcap
    if p.mask is not None:
        score = _masked(p, row, key, score)
    if s.window:
        age = (p.past + s.keys - key) % s.keys if s.ring else p.past - key
        score = guarded(((s.window - 1) - age,), score, -np.inf)
    return score


def _masked(p: _RowAttention, row: int, key: Index, score: Expr) -> Expr:
    """A score with the mask added, or chosen by it."""
    m = p.s.mask
    assert m is not None
    assert p.mask is not None
    head = p.head * p.s.group + row if m.heads > 1 else 0
    number = p.mask[p.batch if m.batch > 1 else 0, head, key if m.keys > 1 else 0]
    if m.dtype is DType.BOOL:
        return select(op("not_equal", _wide(number), 0), score, Const(p.s.fill, Type(F32)))
    return score + loaded(number)


def _wide(number: Expr) -> Expr:
    return op("cast", number, type=Type(I32))


def _exponentials(p: _RowAttention, row: int) -> Expr:
    """The exponentials in the place of the scores; returns the factor of what was summed before."""
    k, lanes = p.k, p.machine.lanes
    greatest = total(k, "max", BLOCK, lanes, F32, lambda at, wide: p.scores.vec(wide)[row, at // wide])
    greatest = k.let("g", maximum(p.top[row], greatest))

    def exponential(at: Index, wide: int) -> Expr:
        e = k.let("e", math.exp_of_negative(p.scores.vec(wide)[row, at // wide] - greatest))
        p.scores.vec(wide)[row, at // wide] = e
        return e

    factor = k.let("f", math.exp_of_negative(p.top[row] - greatest))
    p.total[row] = p.total[row] * factor + total(k, "add", BLOCK, lanes, F32, exponential)
    p.top[row] = greatest
    return factor


def _add_values(p: _RowAttention, first: Index, factors: list[Expr]) -> None:
    """Add a block of values times the exponentials to the sums times their factors."""
    for start, columns, lanes in lane_segments(p.s.channels, p.machine.lanes):
        for left, across, vecs in segments(columns, _VECTORS):
            for row in range(0, p.s.group, _ROWS):
                with p.k.loop("c", across) as c:
                    column = c * vecs + left + start // lanes
                    _add_tile(p, first, factors[row : row + _ROWS], row, column, vecs, lanes)


def _add_tile(
    p: _RowAttention, first: Index, factors: list[Expr], row: int, column: Index, vecs: int, lanes: int
) -> None:
    k, values, sums = p.k, p.values.vec(lanes), p.sums.vec(lanes)
    acc = k.local("a", len(factors), vecs, lanes=lanes)
    for i, factor in enumerate(factors):
        for v in range(vecs):
            acc[i, v] = sums[(*p.at, row + i, column + v)] * broadcast(factor, lanes)
    with k.loop("j", *_counts(p, first)) as j:
        parts = [k.let("w", as_f32(values[p.table, p.head, first + j, column + v])) for v in range(vecs)]
        for i in range(len(factors)):
            e = p.scores[row + i, j]
            e = e * p.scales[1][p.table, p.head, first + j] if p.s.scaled else e
            e = k.let("e", broadcast(e, lanes))
            for v, value in enumerate(parts):
                acc[i, v] = acc[i, v] + e * value
    for i in range(len(factors)):
        for v in range(vecs):
            sums[(*p.at, row + i, column + v)] = acc[i, v]


def _store(p: _RowAttention, y: Tensor) -> None:
    """The results of a head of keys."""
    for row in range(p.s.group):
        scale = p.k.let("s", 1.0 / p.total[row])
        for first, columns, lanes in lane_segments(p.s.channels, p.machine.lanes):
            with p.k.loop("c", columns) as c:
                at = c + first // lanes
                value = p.sums.vec(lanes)[row, at] * broadcast(scale, lanes)
                y.vec(lanes)[p.batch, p.head, row, at] = stored(value, p.s.dtype)


def _store_state(p: _RowAttention, tops: Tensor, totals: Tensor) -> None:
    for row in range(p.s.group):
        tops[(*p.at, row)], totals[(*p.at, row)] = p.top[row], p.total[row]


@lru_cache(maxsize=128)
def joined_parts(s: HeadSizes, machine: Machine, parts: int) -> Kernel:
    """Parameters: the results of parts (``parts_shapes``), the results [batch, shared, group, channels]."""
    shared = s.count // s.group
    k = Builder(f"join_{s.batch * s.count}x{parts}", f"Joins the results of {parts} parts of the keys")
    sums, tops, totals = (k.param(name, *shape) for name, shape in parts_shapes(s, parts))
    y = k.param("y", s.batch, shared, s.group, s.channels, dtype=s.dtype, out=True)
    kinds, inside = deal(s.batch, shared, threads=machine.threads)
    with (
        k.loop("b", s.batch, kind=kinds[0]) as b,
        k.loop("h", shared, kind=kinds[1]) as h,
        k.loop("r", s.group, kind=inside) as row,
    ):
        greatest = k.let("g", joined("max", [tops[b, h, p, row] for p in range(parts)]))
        factors = [k.let("f", math.exp_of_negative(tops[b, h, p, row] - greatest)) for p in range(parts)]
        whole = joined("add", [totals[b, h, p, row] * factor for p, factor in enumerate(factors)])
        scale = k.let("s", 1.0 / whole)
        for first, columns, lanes in lane_segments(s.channels, machine.lanes):
            with k.loop("c", columns) as c:
                at = c + first // lanes
                wide = [sums.vec(lanes)[b, h, p, row, at] * broadcast(f, lanes) for p, f in enumerate(factors)]
                value = joined("add", wide)
                y.vec(lanes)[b, h, row, at] = stored(value * broadcast(scale, lanes), s.dtype)
    return k.done()
