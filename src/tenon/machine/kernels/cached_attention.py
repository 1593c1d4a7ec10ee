"""Attention of the newest tokens of a decoder over its cache of keys and values, whose length only a run knows.

A work item is one query of one head: its products with the keys up to its own position, their softmax in memory of the
thread, and the sum of the values.  Heads of a group read the same keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, broadcast, cast, maximum, reduce_lanes
from tenon.machine.kernels import math
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import I64

_LOWEST = -3.0e38
"""Below every score: its exponential is 0."""


@dataclass(frozen=True)
class CachedHeads:
    """``length`` queries of ``heads`` heads of ``depth`` elements over caches [key heads, room, depth].

    ``window``: how many keys each query looks at, 0 for all; ``softcap``: c for scores c * tanh(score / c), 0 for none.
    """

    length: int
    heads: int
    key_heads: int
    room: int
    depth: int
    scale: float
    window: int = 0
    softcap: float = 0.0

    def scores(self, machine: Machine) -> int:
        """Elements of memory that a thread needs: whole vectors."""
        return -(-self.room // machine.lanes) * machine.lanes


@dataclass(frozen=True, eq=False)
class _Item:
    """A query of a head, and the keys that it looks at: ``count`` from ``first`` on."""

    k: Builder
    s: CachedHeads
    lanes: int
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    query: Index
    head: Index
    key_head: Index
    first: Index
    count: Index

    def attend(self) -> None:
        """Store the result of the query."""
        self._sum_values(self._exponentials(self._scores()))

    def _scores(self) -> Expr:
        """Products of the query with its keys, followed by such of no effect up to a whole vector; the greatest."""
        k, s = self.k, self.s
        q, keys, _, scores, _ = self.tensors
        top = k.local("top", 1)
        top[0] = _LOWEST
        with k.loop("t", s.room, self.count) as t:
            parts: list[Expr] = []
            for start, iterations, width in lane_segments(s.depth, self.lanes):
                acc = k.local("a", 1, lanes=width)
                acc[0] = 0.0
                with k.loop("d", iterations) as d:
                    at = d + start // width
                    key = keys.vec(width)[self.key_head, t + self.first, at]
                    acc[0] = acc[0] + q.vec(width)[self.query, self.head, at] * key
                parts.append(reduce_lanes("add", acc[0]))
            score = parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])
            score = k.let("score", self._capped(score * s.scale))
            scores[t] = score
            top[0] = maximum(top[0], score)
        with k.loop("t", self.lanes, (self.count + (self.lanes - 1)) // self.lanes * self.lanes - self.count) as t:
            scores[self.count + t] = _LOWEST
        return k.let("top", top[0])

    def _capped(self, score: Expr) -> Expr:
        c = self.s.softcap
        return math.tanh(score * (1 / c)) * c if c else score

    def _exponentials(self, top: Expr) -> Expr:
        """Replace scores by their exponentials; the reciprocal of the sum of these."""
        k, lanes = self.k, self.lanes
        vectors = self.tensors[3].vec(lanes)
        total = k.local("sum", 1, lanes=lanes)
        total[0] = 0.0
        with k.loop("t", self.s.room // lanes + 1, (self.count + (lanes - 1)) // lanes) as t:
            value = k.let("x", math.exp_of_negative(vectors[t] - broadcast(top, lanes)))
            vectors[t] = value
            total[0] = total[0] + value
        return k.let("r", 1.0 / reduce_lanes("add", total[0]))

    def _sum_values(self, factor: Expr) -> None:
        """Store the sum of the values by their weights."""
        k, s = self.k, self.s
        _, _, values, scores, y = self.tensors
        for start, iterations, width in lane_segments(s.depth, self.lanes):
            acc = k.local("y", iterations, lanes=width)
            with k.unroll("d", iterations) as d:
                acc[d] = 0.0
            with k.loop("t", s.room, self.count) as t:
                weight = k.let("w", broadcast(scores[t], width))
                with k.unroll("d", iterations) as d:
                    value = values.vec(width)[self.key_head, t + self.first, d + start // width]
                    acc[d] = acc[d] + weight * value
            with k.unroll("d", iterations) as d:
                y.vec(width)[self.query, self.head, d + start // width] = acc[d] * factor


@lru_cache(maxsize=64)
def cached_attention(s: CachedHeads, machine: Machine) -> Kernel:
    """Parameters: queries [length, heads, depth], keys and values [key heads, room, depth], tokens before the first
    query (i64), y as the queries, memory of the thread."""
    k = Builder(
        f"cached_attention_{s.length}x{s.heads}x{s.depth}",
        f"Attention of {s.length} queries of {s.heads} heads over a cache of {s.room} tokens",
    )
    q = k.param("q", s.length, s.heads, s.depth)
    keys, values = (k.param(name, s.key_heads, s.room, s.depth) for name in ("k", "v"))
    past = k.param("past", 1, dtype=I64)
    y = k.param("y", s.length, s.heads, s.depth, out=True)
    scores = k.param("e", s.scores(machine), scratch=True)
    group = s.heads // s.key_heads
    with (
        k.loop("i", s.length, kind="parallel") as i,
        k.loop("h", s.key_heads, kind="parallel") as h,
        k.loop("g", group, kind="parallel") as g,
        k.bind("p", cast(past[0], I64), max(1, s.room - s.length + 1)) as p,
    ):
        end = p + i + 1

        def attend(first: Index, count: Index) -> None:
            tensors = (q, keys, values, scores, y)
            _Item(k, s, machine.lanes, tensors, i, h * group + g, h, first, count).attend()

        if not s.window or s.window >= s.room:
            attend(index(0), end)
        else:
            with k.when(s.window - end):
                attend(index(0), end)
            with k.when(end - s.window - 1):
                attend(end - s.window, index(s.window))
    return k.done()
