"""Attention on processors in one pass over the keys: blocks of queries by blocks of keys, with an online softmax.

The vectors of scores run along the queries, so that keys and values are read as they are stored, a number for all
queries of a vector.  For a block of queries, the scores of a block of keys are in scratch memory; the greatest score
and the sum of exponentials of a query are kept from block to block, and what was summed before is multiplied by
exp(old greatest - new greatest).  So there is no matrix of all scores.  Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018); Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021).

Each block of keys rounds what was summed before once more, by the factor: at most n / ``AttentionTile.block``
roundings besides those of the sums themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    Expr,
    Kernel,
    broadcast,
)
from tenon.machine.kernels.attention_scores import (
    BlockedAttention,
    KeyBlock,
    QueryBlock,
    exponentials,
    finish_scores,
    multiply_keys,
    turn_queries,
    wide_row,
    widen,
)
from tenon.machine.kernels.attention_tiles import LEAST, AttentionTile, places, query_runs, scratch, tile_of
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import stored
from tenon.network.graph.types import I32, I64

_Store = Callable[[Index, Index, int, Expr], None]
"""f(query of the block, vector of channels, lanes, value)."""


@lru_cache(maxsize=128)
def blocked_attention(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: queries [batch, count, queries, depth], keys [batch, count / group, keys, depth], values
    [batch, count / group, keys, channels]; where ``s`` says so the mask, the number of keys (i64 [1]), the number of
    keys before the first query (i64 [1]), the scales of keys and those of values (f32 [batch, count / group, keys]),
    ``places`` i32; ``scratch``; the results."""
    t = tile_of(s, machine)
    k = Builder(
        f"attention_{s.batch * s.count}x{s.queries}x{s.keys}x{s.depth}",
        f"Attention of {s.batch * s.count} heads with {s.queries} queries and {s.keys} keys of {s.depth};"
        f" {t.queries} queries by {t.block} keys at a time",
    )
    with ExitStack() as stack:
        context, room, length, past = _parameters(k, s, t, machine, stack)
        kinds, inside = deal(s.batch, s.count, threads=machine.threads)
        b = stack.enter_context(k.loop("b", s.batch, kind=kinds[0]))
        h = stack.enter_context(k.loop("h", s.count, kind=kinds[1]))
        for run in query_runs(s, t):
            turned, scores, factors = (room.pop(0) for _ in range(3))
            sums = room.pop(0) if s.keys > t.block else None
            widened = room.pop(0) if s.cache is not None else None
            with k.loop("i", run.blocks, kind=inside) as i:
                first = i * run.count + run.start
                limits = [] if length is None else [length]
                if s.causal:
                    limits.append(past + s.queries if s.ring else first + past + run.count)
                top, total = (k.local(name, run.vecs, lanes=run.lanes) for name in ("top", "total"))
                room_of = (turned, scores, factors, sums, widened)
                block = QueryBlock(b, h, first, past, run, *room_of, top, total, tuple(limits))
                _attend(context, block)
    return k.done()


def _parameters(
    k: Builder, s: HeadSizes, t: AttentionTile, machine: Machine, stack: ExitStack
) -> tuple[BlockedAttention, list[Tensor], Index | None, Index]:
    """The context, scratch memory, the number of keys if a run says it, and that of keys before the first query."""
    shared = s.count // s.group
    q = k.param("q", *s.asked, dtype=s.dtype)
    keys = k.param("k", s.batch, shared, s.keys, s.depth, dtype=s.stored)
    values = k.param("v", s.batch, shared, s.keys, s.channels, dtype=s.stored)
    m = s.mask
    mask = None if m is None else k.param("m", m.batch, m.heads, m.keys, m.queries, dtype=m.dtype)
    length = k.param("length", 1, dtype=I64) if s.length else None
    past = k.param("past", 1, dtype=I64) if s.past else None
    scales = tuple(k.param(name, s.batch, shared, s.keys) for name in ("ks", "vs") if s.scaled)
    numbers = k.param("places", places(s), dtype=I32) if s.causal else None
    room = [k.param(name, *shape, scratch=True) for name, shape in scratch(s, machine)]
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    context = BlockedAttention(k, s, t, machine, q, keys, values, scales, mask, numbers, y)
    before = Index() if past is None else stack.enter_context(k.bind("before", past[0], s.pasts))
    limit = None if length is None else stack.enter_context(k.bind("limit", length[0], s.keys + 1))
    return context, room, limit, before


def _attend(p: BlockedAttention, b: QueryBlock) -> None:
    """All keys for a block of queries."""
    k, s, t = p.k, p.s, p.t
    turn_queries(p, b)
    with k.unroll("v", b.run.vecs) as v:
        b.top[v], b.total[v] = LEAST, 0.0
    if b.sums is not None:
        for start, count, lanes in lane_segments(s.channels, p.machine.lanes):
            with k.loop("r", b.run.count) as r, k.loop("c", count) as c:
                b.sums.vec(lanes)[r, c + start // lanes] = 0.0
    for start, blocks, count in segments(s.keys, t.block):
        bounds = [(limit + (t.block - 1)) // t.block - start // t.block for limit in b.limits]
        with k.loop("n", blocks, *bounds) as n:
            keys = KeyBlock(n * t.block + start, count, b.limits)
            unseen = s.window and not s.ring
            with k.when(*([keys.first + (count + s.window - 2) - b.first - b.past] if unseen else [])):
                widen(p, b, p.keys, keys, 0)
                multiply_keys(p, b, keys)
                greatest = finish_scores(p, b, keys)
                exponentials(p, b, keys, greatest)
                widen(p, b, p.values, keys, 1)
                if b.sums is not None:
                    _add_values(p, b, keys, b.sums)
    if b.sums is None:
        _store_products(p, b, KeyBlock(Index(), s.keys, b.limits))
    else:
        _store_sums(p, b, b.sums)


def _products(p: BlockedAttention, b: QueryBlock, keys: KeyBlock, sums: Tensor | None, store: _Store) -> None:
    """Sums of values by the exponentials, in tiles of registers, behind the sums before times their factors."""
    k = p.k
    for first, columns, lanes in lane_segments(p.s.channels, p.machine.lanes):
        for left, across, vecs in segments(columns, p.t.across):
            for top, tiles, height in segments(b.run.count, p.t.rows):
                with k.loop("c", across) as c, k.loop("r", tiles) as r:
                    tile = _ValueTile(r * height + top, c * vecs + left + first // lanes, height, vecs, lanes)
                    with k.outline(f"values{height}x{vecs}v{lanes}", f"sums of values for {height} queries"):
                        _product_tile(p, b, keys, tile, sums, store)


@dataclass(frozen=True)
class _ValueTile:
    """Results of ``height`` queries from ``row`` on, in ``vecs`` vectors of channels from ``column`` on."""

    row: Index
    column: Index
    height: int
    vecs: int
    lanes: int


def _product_tile(
    p: BlockedAttention, b: QueryBlock, keys: KeyBlock, t: _ValueTile, sums: Tensor | None, store: _Store
) -> None:
    """A tile of ``_products``."""
    k = p.k
    acc = k.local("a", t.height, t.vecs, lanes=t.lanes)
    with k.unroll("p", t.height) as i, k.unroll("v", t.vecs) as v:
        before = None if sums is None else sums.vec(t.lanes)[t.row + i, t.column + v] * b.factors[t.row + i]
        acc[i, v] = 0.0 if before is None else before
    with k.loop("j", *keys.bounds()) as j:
        values = [k.let(f"w{v}", wide_row(p, b, p.values, t.lanes, keys, j, t.column + v)) for v in range(t.vecs)]
        with k.unroll("p", t.height) as i:
            e = k.let("e", broadcast(b.scores[j, t.row + i], t.lanes))
            for n, value in enumerate(values):
                acc[i, n] = acc[i, n] + e * value
    with k.unroll("p", t.height) as i, k.unroll("v", t.vecs) as v:
        store(t.row + i, t.column + v, t.lanes, acc[i, v])


def _add_values(p: BlockedAttention, b: QueryBlock, keys: KeyBlock, sums: Tensor) -> None:
    """Add a block of values to the sums in scratch memory."""

    def store(row: Index, column: Index, lanes: int, value: Expr) -> None:
        sums.vec(lanes)[row, column] = value

    _products(p, b, keys, sums, store)


def _reciprocals(p: BlockedAttention, b: QueryBlock) -> None:
    for v in range(b.run.vecs):
        b.factors.vec(b.run.lanes)[v] = 1.0 / b.total[v]


def _result(p: BlockedAttention, b: QueryBlock, row: Index, column: Index, lanes: int, value: Expr) -> None:
    """Store results of a query."""
    query = b.first + row
    middle = (query, b.head) if p.s.merged else (b.head, query)
    p.y.vec(lanes)[(b.batch, *middle, column)] = stored(value * b.factors[row], p.s.dtype)


def _store_products(p: BlockedAttention, b: QueryBlock, keys: KeyBlock) -> None:
    """The results where all keys are in one block."""
    _reciprocals(p, b)
    _products(p, b, keys, None, lambda row, column, lanes, value: _result(p, b, row, column, lanes, value))


def _store_sums(p: BlockedAttention, b: QueryBlock, sums: Tensor) -> None:
    """The results of what was summed in scratch memory."""
    _reciprocals(p, b)
    for first, columns, lanes in lane_segments(p.s.channels, p.machine.lanes):
        with p.k.loop("r", b.run.count) as r, p.k.loop("c", columns) as c:
            column = c + first // lanes
            _result(p, b, r, column, lanes, sums.vec(lanes)[r, column])
