"""The scores of a block of queries and a block of keys, and their exponentials (``kernels.blocked_attention``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
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
from tenon.machine.kernels.attention_tiles import AttentionTile, QueryRun
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import as_f32, loaded
from tenon.network.graph.types import F32, I32, DType

_UNROLL = 4


@dataclass(frozen=True, eq=False)
class BlockedAttention:
    """A kernel being built: sizes, tile, operands and scratch memory."""

    k: Builder
    s: HeadSizes
    t: AttentionTile
    machine: Machine
    q: Tensor
    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, ...]
    mask: Tensor | None
    places: Tensor | None
    y: Tensor


@dataclass(frozen=True, eq=False)
class QueryBlock:
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
    widened: Tensor | None
    top: Tensor
    total: Tensor
    limits: tuple[Index, ...]

    def asked(self, s: HeadSizes, query: Index) -> tuple[Index, Index, Index]:
        """Where the elements of a query of the block lie."""
        at = self.first + query
        return (self.batch, at, self.head) if s.rows_first else (self.batch, self.head, at)


@dataclass(frozen=True)
class KeyBlock:
    """A block of ``count`` keys from ``first`` on; ``limits`` bound how many of them the queries see."""

    first: Index
    count: int
    limits: tuple[Index, ...]

    def bounds(self) -> tuple[int | Index, ...]:
        """The bounds of a loop over the keys."""
        return (self.count, *(limit - self.first for limit in self.limits))


def widen(p: BlockedAttention, b: QueryBlock, x: Tensor, keys: KeyBlock, scale: int) -> None:
    """The keys or values of a block as f32 in scratch memory, where they are stored in another type; ``scale`` is the
    number of their scales among all."""
    if b.widened is None:
        return
    k, shared = p.k, b.head // p.s.group
    with k.loop("j", keys.count) as j:
        for start, count, lanes in lane_segments(x.buffer.shape[3].const, p.machine.lanes):
            with k.loop("c", count) as c:
                at = c + start // lanes
                number = as_f32(x.vec(lanes)[b.batch, shared, keys.first + j, at])
                if p.s.scaled:
                    number = number * broadcast(p.scales[scale][b.batch, shared, keys.first + j], lanes)
                b.widened.vec(lanes)[j, at] = number


def wide_row(
    p: BlockedAttention, b: QueryBlock, x: Tensor, lanes: int, keys: KeyBlock, j: Index, column: Index
) -> Expr:
    """Elements of key or value number ``j`` of a block as f32, as they lie or from scratch memory."""
    if b.widened is not None:
        return b.widened.vec(lanes)[j, column]
    return loaded(x.vec(lanes)[b.batch, b.head // p.s.group, keys.first + j, column])


def turn_queries(p: BlockedAttention, b: QueryBlock) -> None:
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
            b.turned[c, query] = loaded(p.q[(*b.asked(s, query), c)]) * scale
    rest = run.vecs * run.lanes - run.count
    if rest:
        with k.loop("c", s.depth) as c, k.loop("r", rest) as r:
            b.turned[c, r + run.count] = 0.0


def _turn_squares(p: BlockedAttention, b: QueryBlock, squares: int, scale: float) -> None:
    """The first queries, four by four of their elements."""
    k = p.k
    with k.loop("r", squares) as r, k.loop("c", p.s.depth // 4) as c:
        rows = [k.let("x", _load(p.q, b.asked(p.s, r * 4 + i), c * 4, 4) * scale) for i in range(4)]
        for j, column in enumerate(zip(*map(lanes_of, rows), strict=True)):
            k.store(b.turned.buffer, (c * 4 + j, r * 4), vector4(*column))


def multiply_keys(p: BlockedAttention, b: QueryBlock, keys: KeyBlock) -> None:
    """The products of the queries and a block of keys, in tiles of registers."""
    k = p.k
    for start, tiles, height in segments(keys.count, p.t.keys):
        with k.loop("j", tiles) as j:
            first = j * height + start
            seen = (limit - keys.first - first - 1 for limit in keys.limits)
            with k.when(*seen), k.outline(f"scores{height}x{b.run.vecs}v{b.run.lanes}", f"the scores of {height} keys"):
                _score_tile(p, b, keys, first, height)


def _score_tile(p: BlockedAttention, b: QueryBlock, keys: KeyBlock, place: Index, height: int) -> None:
    """The products of the queries and ``height`` keys from number ``place`` of a block on."""
    k = p.k
    acc = k.local("a", height, b.run.vecs, lanes=b.run.lanes)
    with k.unroll("p", height) as row, k.unroll("v", b.run.vecs) as v:
        acc[row, v] = 0.0
    for at, steps, unroll in segments(p.s.depth, _UNROLL):
        with k.loop("c", steps) as c, k.unroll("u", unroll) as u:
            channel = c * unroll + at + u
            queries = [k.let(f"q{i}", b.turned.vec(b.run.lanes)[channel, i]) for i in range(b.run.vecs)]
            with k.unroll("p", height) as row:
                key = wide_row(p, b, p.keys, 1, keys, place + row, channel)
                number = k.let("k", broadcast(key, b.run.lanes))
                for i, query in enumerate(queries):
                    acc[row, i] = acc[row, i] + query * number
    with k.unroll("p", height) as row, k.unroll("v", b.run.vecs) as v:
        b.scores.vec(b.run.lanes)[place + row, v] = acc[row, v]


def finish_scores(p: BlockedAttention, b: QueryBlock, keys: KeyBlock) -> Tensor:
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


def _masked(p: BlockedAttention, b: QueryBlock, key: Index, v: int, score: Expr) -> Expr:
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


def _seen(p: BlockedAttention, b: QueryBlock, key: Index, v: int, score: Expr) -> Expr:
    """A score, -inf where the query does not see the key."""
    assert p.places is not None
    if p.s.ring:  # numbers behind the past and the extent of the ring
        last = p.s.queries - 1
        age = (b.past + (last + p.s.keys) - key) % p.s.keys
        first, key = b.first + p.s.keys, (last + p.s.keys) - age
    else:
        first = b.first + b.past
    query = _load(p.places, (), first + v * b.run.lanes, b.run.lanes)
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


def exponentials(p: BlockedAttention, b: QueryBlock, keys: KeyBlock, greatest: Tensor) -> None:
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
