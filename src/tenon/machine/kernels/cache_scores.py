"""Attention over a cache on devices that run work groups: all scores in memory, their softmax, and sums of values.

The three kernels have a thread for each score, the threads of ``kernels.softmax`` for each row, and one for each
element of the result, which reads the keys that its query sees.  Scores of other keys are -inf.
"""

from __future__ import annotations

import math as numbers
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import math
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.storage_types import as_f32
from tenon.network.graph.types import I64


def scores_shape(s: HeadSizes) -> tuple[int, int, int]:
    """The extents of the scores, of one batch, or with slots of as many queries as there are batches."""
    return s.count, s.batch if s.slots else s.queries, s.keys


@lru_cache(maxsize=128)
def cache_scores(s: HeadSizes) -> Kernel:
    """Parameters: queries f32 [1, queries, heads, depth], keys [1, key heads, keys, depth], the keys before the first
    query (i64 [1]), where these have them the scales of keys [1, key heads, keys], scores [heads, queries, keys].

    With slots: queries [queries, 1, heads, depth], as many tables of keys and of scales as there are slots, the keys
    before each query (i64 [queries]) and, before the scores, the slot of each query (i64 [queries]); where ``s`` has a
    length, before those the keys that each query sees (i64 [queries])."""
    _, queries, _ = scores_shape(s)
    k = Builder(f"cache_scores_{s.count}x{queries}x{s.keys}", f"Scores of {queries} queries and {s.keys} keys")
    q = k.param("q", *s.asked)
    keys = k.param("k", s.slots or 1, s.count // s.group, s.keys, s.depth, dtype=s.stored)
    length = k.param("length", queries, dtype=I64) if s.length else None
    past = k.param("past", queries if s.slots else 1, dtype=I64)
    scales = k.param("ks", s.slots or 1, s.count // s.group, s.keys) if s.scaled else None
    slots = k.param("slots", queries, dtype=I64) if s.slots else None
    y = k.param("y", *scores_shape(s), out=True)
    with (
        k.loop("h", s.count, kind="parallel") as h,
        k.loop("i", queries, kind="parallel") as i,
        k.loop("j", s.keys, kind="parallel") as j,
        _query(k, s, i, past, slots) as (table, position),
        _end(k, s, i, length, position) as end,
    ):
        head, at = h // s.group, (i, 0) if s.slots else (0, i)
        age = (position + (s.keys - j)) % s.keys if s.ring else position - j
        seen = [position - age if s.ring else end - 1 - j, *([s.window - 1 - age] if s.window else [])]
        score = k.local("s", 1)
        score[0] = -numbers.inf
        with k.when(*seen):
            total = k.local("t", 1)
            total[0] = 0.0
            with k.loop("c", s.depth) as c:
                total[0] = total[0] + q[(*at, h, c)] * as_f32(keys[table, head, j, c])
            value = total[0] * s.scale
            if scales is not None:
                value = value * scales[table, head, j]
            if s.softcap:
                value = math.tanh(value * (1 / s.softcap)) * s.softcap
            score[0] = value
        y[h, i, j] = score[0]
    return k.done()


@lru_cache(maxsize=128)
def cache_values(s: HeadSizes) -> Kernel:
    """Parameters: the softmax of scores [heads, queries, keys], values [1, key heads, keys, channels], the keys before
    the first query (i64 [1]), where these have them the scales of values, results [1, queries, heads, channels]; with
    slots as ``cache_scores``."""
    _, queries, _ = scores_shape(s)
    k = Builder(f"cache_values_{s.count}x{queries}x{s.keys}", f"Sums of {s.keys} values for {queries} queries")
    x = k.param("x", *scores_shape(s))
    values = k.param("v", s.slots or 1, s.count // s.group, s.keys, s.channels, dtype=s.stored)
    length = k.param("length", queries, dtype=I64) if s.length else None
    past = k.param("past", queries if s.slots else 1, dtype=I64)
    scales = k.param("vs", s.slots or 1, s.count // s.group, s.keys) if s.scaled else None
    slots = k.param("slots", queries, dtype=I64) if s.slots else None
    y = k.param("y", *s.result, out=True)
    with (
        k.loop("i", queries, kind="parallel") as i,
        k.loop("h", s.count, kind="parallel") as h,
        k.loop("c", s.channels, kind="parallel") as c,
        _query(k, s, i, past, slots) as (table, position),
        _end(k, s, i, length, position) as end,
    ):
        head, at = h // s.group, (i, 0) if s.slots else (0, i)
        total = k.local("t", 1)
        total[0] = 0.0
        with k.loop("j", s.keys, end) as j:
            factor = x[h, i, j] if scales is None else x[h, i, j] * scales[table, head, j]
            total[0] = total[0] + factor * as_f32(values[table, head, j, c])
        y[(*at, h, c)] = total[0]
    return k.done()


@contextmanager
def _end(k: Builder, s: HeadSizes, i: Index, length: Tensor | None, position: Index) -> Iterator[Index]:
    """How many keys query number ``i`` sees: as many as ``length`` says, else those up to its position."""
    if length is None:
        yield position + 1
        return
    with k.bind("length", length[i], s.keys + 1) as seen:
        yield seen


@contextmanager
def _query(k: Builder, s: HeadSizes, i: Index, past: Tensor, slots: Tensor | None) -> Iterator[tuple[Index, Index]]:
    """The table of keys that query number ``i`` looks at, and its position: the number of keys before its own."""
    with ExitStack() as stack:
        before = stack.enter_context(k.bind("past", past[i if s.slots else 0], s.pasts))
        if slots is None:
            yield Index(), before + i
        else:
            yield stack.enter_context(k.bind("slot", slots[i], s.slots)), before
