"""Attention over a cache on devices that run work groups: all scores in memory, their softmax, and sums of values.

The three kernels have a thread for each score, the threads of ``kernels.softmax`` for each row, and one for each
element of the result, which reads the keys that its query sees.  Scores of other keys are -inf.
"""

from __future__ import annotations

import math as numbers
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import math
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.storage_types import as_f32
from tenon.network.graph.types import I64


def scores_shape(s: HeadSizes) -> tuple[int, int, int]:
    """The extents of the scores, of one batch."""
    return s.count, s.queries, s.keys


@lru_cache(maxsize=128)
def cache_scores(s: HeadSizes) -> Kernel:
    """Parameters: queries f32 [1, queries, heads, depth], keys [1, key heads, keys, depth], the keys before the first
    query (i64 [1]), where these have them the scales of keys [1, key heads, keys], scores [heads, queries, keys]."""
    k = Builder(f"cache_scores_{s.count}x{s.queries}x{s.keys}", f"Scores of {s.queries} queries and {s.keys} keys")
    q = k.param("q", *s.asked)
    keys = k.param("k", 1, s.count // s.group, s.keys, s.depth, dtype=s.stored)
    past = k.param("past", 1, dtype=I64)
    scales = k.param("ks", 1, s.count // s.group, s.keys) if s.scaled else None
    y = k.param("y", *scores_shape(s), out=True)
    with (
        k.bind("past", past[0], s.pasts) as before,
        k.loop("h", s.count, kind="parallel") as h,
        k.loop("i", s.queries, kind="parallel") as i,
        k.loop("j", s.keys, kind="parallel") as j,
    ):
        head = h // s.group
        age = (before + i + (s.keys - j)) % s.keys if s.ring else before + i - j
        seen = [before + i - age if s.ring else age, *([s.window - 1 - age] if s.window else [])]
        score = k.local("s", 1)
        score[0] = -numbers.inf
        with k.when(*seen):
            total = k.local("t", 1)
            total[0] = 0.0
            with k.loop("c", s.depth) as c:
                total[0] = total[0] + q[0, i, h, c] * as_f32(keys[0, head, j, c])
            value = total[0] * s.scale
            if scales is not None:
                value = value * scales[0, head, j]
            if s.softcap:
                value = math.tanh(value * (1 / s.softcap)) * s.softcap
            score[0] = value
        y[h, i, j] = score[0]
    return k.done()


@lru_cache(maxsize=128)
def cache_values(s: HeadSizes) -> Kernel:
    """Parameters: the softmax of scores [heads, queries, keys], values [1, key heads, keys, channels], the keys before
    the first query (i64 [1]), where these have them the scales of values, results [1, queries, heads, channels]."""
    k = Builder(f"cache_values_{s.count}x{s.queries}x{s.keys}", f"Sums of {s.keys} values for {s.queries} queries")
    x = k.param("x", *scores_shape(s))
    values = k.param("v", 1, s.count // s.group, s.keys, s.channels, dtype=s.stored)
    past = k.param("past", 1, dtype=I64)
    scales = k.param("vs", 1, s.count // s.group, s.keys) if s.scaled else None
    y = k.param("y", *s.result, out=True)
    with (
        k.bind("past", past[0], s.pasts) as before,
        k.loop("i", s.queries, kind="parallel") as i,
        k.loop("h", s.count, kind="parallel") as h,
        k.loop("c", s.channels, kind="parallel") as c,
    ):
        head = h // s.group
        total = k.local("t", 1)
        total[0] = 0.0
        with k.loop("j", s.keys, before + i + 1) as j:
            factor = x[h, i, j] if scales is None else x[h, i, j] * scales[0, head, j]
            total[0] = total[0] + factor * as_f32(values[0, head, j, c])
        y[0, i, h, c] = total[0]
    return k.done()
