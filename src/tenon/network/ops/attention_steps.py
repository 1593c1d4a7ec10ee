"""The kernels of attention and their arguments, which its operators share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import attention_tiles as tiles
from tenon.machine.kernels import attention_words as words
from tenon.machine.kernels import cache_scores
from tenon.machine.kernels import paired_attention as pairs
from tenon.machine.kernels import row_attention as rows
from tenon.machine.kernels.attention import attention
from tenon.machine.kernels.blocked_attention import blocked_attention
from tenon.machine.kernels.flash_attention import flash_attention, supported, tile_of
from tenon.machine.kernels.group_attention import group_attention
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.softmax import Softmax, softmax_rows
from tenon.network.graph.types import F32
from tenon.network.ops.base import Arg, Input, Output, Scratch, Step, Weights


def attention_steps(s: HeadSizes, operands: Sequence[Input], machine: Machine) -> list[Step]:
    """Attention of these sizes.  Operands: queries, keys, values, where there are any a mask, the number of keys and
    of those of the past."""
    if machine.launch is not None and s.rows_first:
        return _cache_steps(s, operands, machine)
    if machine.launch is not None:
        return [Step(_on_device(s, machine), (*operands, Output()))]
    if s.dtype is not F32 or s.factors:
        return _paired_steps(s, operands, machine)
    if s.queries == 1:
        return _row_steps(s, operands, machine)
    places = [Weights(np.arange(tiles.places(s), dtype=np.int32))] if s.causal else []
    # Names of their own: memory of a thread that others of its parameters overlap is not divided alike among threads.
    shapes = enumerate(tiles.scratch(s, machine))
    room = [Scratch(f"{name}{i}", 4 * math.prod(shape), True) for i, (name, shape) in shapes]
    args: tuple[Arg, ...] = (*operands, *places, *room, Output())
    return [Step(blocked_attention(s, machine), args)]


def _paired_steps(s: HeadSizes, operands: Sequence[Input], machine: Machine) -> list[Step]:
    """Attention of bf16, or of f32 in bf16: keys and values in words, then the heads.  Operands: queries,
    keys, values, maybe a mask, maybe the number of keys before the first query."""
    queries, keys, values, *others = operands
    key_room = Scratch("keys", 4 * math.prod(words.key_words_shape(s)))
    value_room = [Scratch(f"values{i}", 4 * math.prod(shape)) for i, shape in enumerate(words.value_words_shapes(s))]
    if s.factors:
        args: tuple[Arg, ...] = (keys, values, *others, key_room, *value_room)
        steps = [Step(words.rounded_words(s, machine), args)]
    else:
        steps = [Step(words.key_words(s, machine), (keys, key_room))]
        for number, each in enumerate(value_room):
            steps.append(Step(words.value_words(s, machine, number), (values, each)))
    count = pairs.key_numbers(s)
    numbers = [Weights(np.arange(count, dtype=np.int32))] if count else []
    shapes = enumerate(pairs.paired_scratch(s, machine))
    room = [Scratch(f"{name}{i}", 4 * math.prod(shape), True) for i, (name, shape) in shapes]
    args = (queries, key_room, *value_room, *others, *numbers, *room, Output())
    return [*steps, Step(pairs.paired_attention(s, machine), args)]


def _on_device(s: HeadSizes, machine: Machine) -> Kernel:
    """The kernel of a machine that runs work groups."""
    if s.dtype is F32:
        return group_attention(s, machine)
    tile = tile_of(s, machine) if supported(s, machine) else None
    return attention(s) if tile is None else flash_attention(s, tile)


def _cache_steps(s: HeadSizes, operands: Sequence[Input], machine: Machine) -> list[Step]:
    """Attention over a cache by work groups.  Operands: queries, keys, values, maybe the number of keys that each query
    sees, the number of keys before the first query (with slots before each) and maybe scales of keys and of values,
    maybe the slot of each query."""
    queries, keys, values, *others = operands
    seen, others = (others[:1], others[1:]) if s.length else ([], others)
    past, *others = others
    scales, slots = (others[:2], others[2:]) if s.scaled else ([], others)
    count, rows, n = cache_scores.scores_shape(s)
    scores, terms = (Scratch(name, 4 * count * rows * n) for name in ("scores", "terms"))
    return [
        Step(cache_scores.cache_scores(s), (queries, keys, *seen, past, *scales[:1], *slots, scores)),
        Step(softmax_rows(Softmax(count * rows, n, 1), machine), (scores, terms)),
        Step(cache_scores.cache_values(s), (terms, values, *seen, past, *scales[1:], *slots, Output())),
    ]


def _row_steps(s: HeadSizes, operands: Sequence[Input], machine: Machine) -> list[Step]:
    """Attention of one query: one kernel, or one for parts of the keys and one that joins their results."""
    parts = rows.parts_of(s)
    room = [Scratch(name, 4 * math.prod(shape), True) for name, shape in rows.row_scratch(s, parts)]
    if parts == 1:
        return [Step(rows.row_attention(s, machine), (*operands, *room, Output()))]
    results = [Scratch(name, 4 * math.prod(shape)) for name, shape in rows.parts_shapes(s, parts)]
    kernel, join = rows.row_attention(s, machine, parts), rows.joined_parts(s, machine, parts)
    return [Step(kernel, (*operands, *room, *results)), Step(join, (*results, Output()))]
