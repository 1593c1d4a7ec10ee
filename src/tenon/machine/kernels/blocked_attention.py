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

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Load,
    Type,
    broadcast,
    cast,
    lanes_of,
    less,
    maximum,
    op,
    select,
    vector4,
)
from tenon.machine.kernels import math
from tenon.machine.kernels.attention_tiles import LEAST, AttentionTile, QueryRun, places, query_runs, scratch, tile_of
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.network.graph.types import F32, I32, I64, DType

_UNROLL = 4

_Store = Callable[[Index, Index, int, Expr], None]
"""f(query of the block, vector of channels, lanes, value)."""


@dataclass(frozen=True, eq=False)
class _Attention:
    """A kernel being built: sizes, tile, operands and scratch memory."""

    k: Builder
    s: HeadSizes
    t: AttentionTile
    machine: Machine
    q: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    places: Tensor | None
    y: Tensor


@dataclass(frozen=True, eq=False)
class _QueryBlock:
    """The queries of a head from ``first`` on; scratch memory; the greatest scores and the sums of exponentials.
    ``limits`` are numbers of keys beyond which it sees none."""

    batch: Index
    head: Index
    first: Index
    past: Index
    run: QueryRun
    turned: Tensor
    scores: Tensor
    factors: Tensor
    sums: Tensor | None
    top: Tensor
    total: Tensor
    limits: tuple[Index, ...]


@dataclass(frozen=True)
class _KeyBlock:
    """A block of ``count`` keys from ``first`` on; ``limits`` bound how many of them the queries see."""

    first: Index
    count: int
    limits: tuple[Index, ...]

    def bounds(self) -> tuple[int | Index, ...]:
        """The bounds of a loop over the keys."""
        return (self.count, *(limit - self.first for limit in self.limits))


@lru_cache(maxsize=128)
def blocked_attention(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: queries [batch, count, queries, depth], keys [batch, count / group, keys, depth], values
    [batch, count / group, keys, channels]; where ``s`` says so the mask, the number of keys (i64 [1]), the number of
    keys before the first query (i64 [1]), ``places`` i32; ``scratch``; the results."""
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
            with k.loop("i", run.blocks, kind=inside) as i:
                first = i * run.count + run.start
                limits = [] if length is None else [length]
                if s.causal:
                    limits.append(first + past + run.count)
                top, total = (k.local(name, run.vecs, lanes=run.lanes) for name in ("top", "total"))
                room_of = (turned, scores, factors, sums)
                block = _QueryBlock(b, h, first, past, run, *room_of, top, total, tuple(limits))
                _attend(context, block)
    return k.done()


def _parameters(
    k: Builder, s: HeadSizes, t: AttentionTile, machine: Machine, stack: ExitStack
) -> tuple[_Attention, list[Tensor], Index | None, Index]:
    """The context, scratch memory, the number of keys if a run says it, and that of keys before the first query."""
    shared = s.count // s.group
    q = k.param("q", s.batch, s.count, s.queries, s.depth, dtype=s.dtype)
    keys = k.param("k", s.batch, shared, s.keys, s.depth, dtype=s.dtype)
    values = k.param("v", s.batch, shared, s.keys, s.channels, dtype=s.dtype)
    m = s.mask
    mask = None if m is None else k.param("m", m.batch, m.heads, m.keys, m.queries, dtype=m.dtype)
    length = k.param("length", 1, dtype=I64) if s.length else None
    past = k.param("past", 1, dtype=I64) if s.past else None
    numbers = k.param("places", places(s), dtype=I32) if s.causal else None
    room = [k.param(name, *shape, scratch=True) for name, shape in scratch(s, machine)]
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    context = _Attention(k, s, t, machine, q, keys, values, mask, numbers, y)
    before = Index() if past is None else stack.enter_context(k.bind("before", past[0], s.keys + 1))
    limit = None if length is None else stack.enter_context(k.bind("limit", length[0], s.keys + 1))
    return context, room, limit, before


def _attend(p: _Attention, b: _QueryBlock) -> None:
    """All keys for a block of queries."""
    k, s, t = p.k, p.s, p.t
    _turn(p, b)
    with k.unroll("v", b.run.vecs) as v:
        b.top[v], b.total[v] = LEAST, 0.0
    if b.sums is not None:
        for start, count, lanes in lane_segments(s.channels, p.machine.lanes):
            with k.loop("r", b.run.count) as r, k.loop("c", count) as c:
                b.sums.vec(lanes)[r, c + start // lanes] = 0.0
    for start, blocks, count in segments(s.keys, t.block):
        bounds = [(limit + (t.block - 1)) // t.block - start // t.block for limit in b.limits]
        with k.loop("n", blocks, *bounds) as n:
            keys = _KeyBlock(n * t.block + start, count, b.limits)
            with k.when(*([keys.first + (count + s.window - 2) - b.first - b.past] if s.window else [])):
                _scores(p, b, keys)
                greatest = _finish_scores(p, b, keys)
                _exponentials(p, b, keys, greatest)
                if b.sums is not None:
                    _add_values(p, b, keys, b.sums)
    if b.sums is None:
        _store_products(p, b, _KeyBlock(Index(), s.keys, b.limits))
    else:
        _store_sums(p, b, b.sums)


def _turn(p: _Attention, b: _QueryBlock) -> None:
    """The queries times the scale, turned round: vectors along the queries, zeros past the last.  Squares of four by
    four are turned in registers where there are vectors."""
    k, s, run = p.k, p.s, b.run
    scale = s.scale * (math.LOG2E if _binary(s) else 1.0)
    squares = run.count // 4 if p.machine.lanes >= 4 and s.depth % 4 == 0 and s.dtype is F32 else 0
    if squares:
        _turn_squares(p, b, squares, scale)
    if run.count > 4 * squares:
        with k.loop("r", run.count - 4 * squares) as r, k.loop("c", s.depth) as c:
            query = r + 4 * squares
            b.turned[c, query] = loaded(p.q[b.batch, b.head, b.first + query, c]) * scale
    rest = run.vecs * run.lanes - run.count
    if rest:
        with k.loop("c", s.depth) as c, k.loop("r", rest) as r:
            b.turned[c, r + run.count] = 0.0


def _turn_squares(p: _Attention, b: _QueryBlock, squares: int, scale: float) -> None:
    """The first queries, four by four of their elements."""
    k = p.k
    with k.loop("r", squares) as r, k.loop("c", p.s.depth // 4) as c:
        rows = [k.let("x", _load(p.q, (b.batch, b.head, b.first + r * 4 + i), c * 4, 4) * scale) for i in range(4)]
        for j, column in enumerate(zip(*map(lanes_of, rows), strict=True)):
            k.store(b.turned.buffer, (c * 4 + j, r * 4), vector4(*column))


def _scores(p: _Attention, b: _QueryBlock, keys: _KeyBlock) -> None:
    """The products of the queries and a block of keys, in tiles of registers."""
    k = p.k
    for start, tiles, height in segments(keys.count, p.t.keys):
        with k.loop("j", tiles) as j:
            first = j * height + start
            seen = (limit - keys.first - first - 1 for limit in keys.limits)
            with k.when(*seen), k.outline(f"scores{height}x{b.run.vecs}v{b.run.lanes}", f"the scores of {height} keys"):
                _score_tile(p, b, keys.first + first, first, height)


def _score_tile(p: _Attention, b: _QueryBlock, key: Index, place: Index, height: int) -> None:
    """The products of the queries and ``height`` keys from ``key`` on, the scores from ``place`` on."""
    k, shared = p.k, b.head // p.s.group
    acc = k.local("a", height, b.run.vecs, lanes=b.run.lanes)
    with k.unroll("p", height) as row, k.unroll("v", b.run.vecs) as v:
        acc[row, v] = 0.0
    for at, steps, unroll in segments(p.s.depth, _UNROLL):
        with k.loop("c", steps) as c, k.unroll("u", unroll) as u:
            channel = c * unroll + at + u
            queries = [k.let(f"q{i}", b.turned.vec(b.run.lanes)[channel, i]) for i in range(b.run.vecs)]
            with k.unroll("p", height) as row:
                number = k.let("k", broadcast(loaded(p.keys[b.batch, shared, key + row, channel]), b.run.lanes))
                for i, query in enumerate(queries):
                    acc[row, i] = acc[row, i] + query * number
    with k.unroll("p", height) as row, k.unroll("v", b.run.vecs) as v:
        b.scores.vec(b.run.lanes)[place + row, v] = acc[row, v]


def _finish_scores(p: _Attention, b: _QueryBlock, keys: _KeyBlock) -> Tensor:
    """The scores as they are compared, in their place; the greatest so far of each query."""
    k, s = p.k, p.s
    greatest = k.local("greatest", b.run.vecs, lanes=b.run.lanes)
    for v in range(b.run.vecs):
        greatest[v] = b.top[v]
    changed = bool(s.softcap or s.mask is not None or s.causal)
    with k.loop("j", *keys.bounds()) as j:
        for v in range(b.run.vecs):
            score = b.scores.vec(b.run.lanes)[j, v]
            if s.softcap:
                score = math.tanh(score * (1 / s.softcap)) * s.softcap
            if p.mask is not None:
                score = _masked(p, b, keys.first + j, v, score)
            if p.places is not None:
                score = _seen(p, b, keys.first + j, v, score)
            if changed:
                score = k.let("s", score)
                b.scores.vec(b.run.lanes)[j, v] = score
            greatest[v] = maximum(greatest[v], score)
    return greatest


def _masked(p: _Attention, b: _QueryBlock, key: Index, v: int, score: Expr) -> Expr:
    """A score with the mask added, or chosen by it."""
    s, mask = p.s, p.mask
    assert s.mask is not None
    assert mask is not None
    m = s.mask
    outer = (b.batch if m.batch > 1 else 0, b.head if m.heads > 1 else 0, key if m.keys > 1 else 0)
    if m.queries == 1:
        number = mask[(*outer, 0)]
    else:
        lanes = min(b.run.lanes, max(1, b.run.count - v * b.run.lanes))
        number = _vector(mask, outer, b.first + v * b.run.lanes, lanes, b.run.lanes)
    if m.dtype is DType.BOOL:
        kept = op("not_equal", cast(number, I32), 0)
        return select(
            broadcast(kept, b.run.lanes), score, broadcast(Const(s.fill, Type(score.type.dtype)), b.run.lanes)
        )
    return score + broadcast(loaded(number), b.run.lanes)


def _vector(x: Tensor, outer: Sequence[Index | int], first: Index, count: int, lanes: int) -> Expr:
    """Elements ``first`` and the next of a row, of which ``count`` are there, as a vector."""
    k, dtype = x.build, x.buffer.type.dtype
    if count == lanes:
        return k.let("m", _load(x, outer, first, lanes))
    part = k.local("part", lanes, dtype=dtype, space="stack")
    for i in range(lanes):
        part[i] = x[(*outer, first + i)] if i < count else Const(0, Type(dtype))
    return k.let("m", _load(part, (), Index(), lanes))


def _load(x: Tensor, outer: Sequence[Index | int], first: Index, lanes: int) -> Expr:
    return Load(x.buffer, (*map(index, outer), first), Type(x.buffer.type.dtype, lanes))


def _seen(p: _Attention, b: _QueryBlock, key: Index, v: int, score: Expr) -> Expr:
    """A score, -inf where the query does not see the key."""
    assert p.places is not None
    query = _load(p.places, (), b.first + b.past + v * b.run.lanes, b.run.lanes)
    number = broadcast(p.places[key], b.run.lanes)
    hidden = Const(-np.inf, Type(score.type.dtype))
    score = select(less(query, number), broadcast(hidden, b.run.lanes), score)
    if p.s.window:
        score = select(less(query - p.s.window, number), score, broadcast(hidden, b.run.lanes))
    return score


def _binary(s: HeadSizes) -> bool:
    """Whether scores are logarithms to the base of 2: where they are nothing but products."""
    return not s.softcap and s.mask is None


def _exponential(s: HeadSizes, x: Expr) -> Expr:
    return math.exp2_of_negative(x) if _binary(s) else math.exp_of_negative(x)


def _exponentials(p: _Attention, b: _QueryBlock, keys: _KeyBlock, greatest: Tensor) -> None:
    """The exponentials in the place of the scores, and their sums; the factors of what was summed before."""
    k, s = p.k, p.s
    for v in range(b.run.vecs):
        factor = k.let("f", _exponential(s, b.top[v] - greatest[v]))
        b.total[v] = b.total[v] * factor
        b.factors.vec(b.run.lanes)[v] = factor
        b.top[v] = greatest[v]
    with k.loop("j", *keys.bounds()) as j:
        for v in range(b.run.vecs):
            e = k.let("e", _exponential(s, b.scores.vec(b.run.lanes)[j, v] - b.top[v]))
            b.scores.vec(b.run.lanes)[j, v] = e
            b.total[v] = b.total[v] + e


def _products(p: _Attention, b: _QueryBlock, keys: _KeyBlock, sums: Tensor | None, store: _Store) -> None:
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
    p: _Attention, b: _QueryBlock, keys: _KeyBlock, t: _ValueTile, sums: Tensor | None, store: _Store
) -> None:
    """A tile of ``_products``."""
    k, shared = p.k, b.head // p.s.group
    acc = k.local("a", t.height, t.vecs, lanes=t.lanes)
    with k.unroll("p", t.height) as i, k.unroll("v", t.vecs) as v:
        before = None if sums is None else sums.vec(t.lanes)[t.row + i, t.column + v] * b.factors[t.row + i]
        acc[i, v] = 0.0 if before is None else before
    with k.loop("j", *keys.bounds()) as j:
        place = (b.batch, shared, keys.first + j)
        values = [k.let(f"w{v}", loaded(p.values.vec(t.lanes)[(*place, t.column + v)])) for v in range(t.vecs)]
        with k.unroll("p", t.height) as i:
            e = k.let("e", broadcast(b.scores[j, t.row + i], t.lanes))
            for n, value in enumerate(values):
                acc[i, n] = acc[i, n] + e * value
    with k.unroll("p", t.height) as i, k.unroll("v", t.vecs) as v:
        store(t.row + i, t.column + v, t.lanes, acc[i, v])


def _add_values(p: _Attention, b: _QueryBlock, keys: _KeyBlock, sums: Tensor) -> None:
    """Add a block of values to the sums in scratch memory."""

    def store(row: Index, column: Index, lanes: int, value: Expr) -> None:
        sums.vec(lanes)[row, column] = value

    _products(p, b, keys, sums, store)


def _reciprocals(p: _Attention, b: _QueryBlock) -> None:
    for v in range(b.run.vecs):
        b.factors.vec(b.run.lanes)[v] = 1.0 / b.total[v]


def _result(p: _Attention, b: _QueryBlock, row: Index, column: Index, lanes: int, value: Expr) -> None:
    """Store results of a query."""
    query = b.first + row
    middle = (query, b.head) if p.s.merged else (b.head, query)
    p.y.vec(lanes)[(b.batch, *middle, column)] = stored(value * b.factors[row], p.s.dtype)


def _store_products(p: _Attention, b: _QueryBlock, keys: _KeyBlock) -> None:
    """The results where all keys are in one block."""
    _reciprocals(p, b)
    _products(p, b, keys, None, lambda row, column, lanes, value: _result(p, b, row, column, lanes, value))


def _store_sums(p: _Attention, b: _QueryBlock, sums: Tensor) -> None:
    """The results of what was summed in scratch memory."""
    _reciprocals(p, b)
    for first, columns, lanes in lane_segments(p.s.channels, p.machine.lanes):
        with p.k.loop("r", b.run.count) as r, p.k.loop("c", columns) as c:
            column = c + first // lanes
            _result(p, b, r, column, lanes, sums.vec(lanes)[r, column])
