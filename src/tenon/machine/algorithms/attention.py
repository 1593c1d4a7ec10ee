"""Whether attention is computed in one kernel or as products and a softmax: by estimate."""

from __future__ import annotations

import math
from dataclasses import replace

from tenon.machine.algorithms.estimate import barrier, overlapped, slowest, step_time, streamed, work_items
from tenon.machine.algorithms.registry import best
from tenon.machine.kernels import attention as tensor
from tenon.machine.kernels import flash_attention as flash
from tenon.machine.kernels import group_attention as groups
from tenon.machine.kernels import paired_attention as paired
from tenon.machine.kernels.attention_tiles import QueryRun, query_runs, tile_of
from tenon.machine.kernels.byte_attention import ByteAttention
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.row_attention import parts_of
from tenon.network.graph.types import F32, DType

_EXPONENTIAL = 18.0
"""Time of the exponentials of a vector, their maximum and their sum, in multiply-adds of a vector."""

_ACROSS = 8.0
"""Time to add the lanes of a vector."""

_MOVED = 1.5
"""Time to move one number to another place."""

_CACHED = 1 << 18
"""Bytes of scores that stay in the cache of a core."""

_PASSES = 5
"""How often the scores are read or written: by the products and by the softmax."""

_MEETINGS = 3
"""How often threads meet between two products, a softmax and what turns the keys round."""

_STREAM = 16.0
"""Bytes of scores that arrive from a larger cache in the time of one multiply-add of a vector."""


def attends(s: HeadSizes, machine: Machine) -> bool:
    """Whether a machine can compute attention of these sizes in one kernel."""
    if machine.launch is not None:
        return any(kernel.supported(s, machine) for kernel in (tensor, flash, groups))
    if s.dtype is not F32:
        return paired.supported(s, machine)
    return machine.float_unit and machine.own_memory


_FEW_QUERIES = 32
"""Queries for which keys and values are not rounded and copied: less time is saved than that takes."""


def rounded(s: HeadSizes, machine: Machine) -> HeadSizes:
    """Attention of f32 of several queries over a cache with factors in bf16, where that is asked for and a machine can
    compute it by tiles; else as it is."""
    if not machine.bf16_tiles or s.queries <= _FEW_QUERIES:
        return s
    changed = replace(s, factors=DType.BF16)
    return changed if paired.supported(changed, machine) else s


_FEW = 16
"""The part of a device's units that blocks of f32 have to occupy: a launch less counts for more than units do."""


def occupies(s: HeadSizes, machine: Machine) -> bool:
    """Whether ``kernels.group_attention`` takes less time on a device than two products and a softmax: with its largest
    block, whose numbers are read often enough, and for enough blocks."""
    block = groups.block_of(s, machine)
    assert block is not None
    assert machine.launch is not None
    blocks = s.batch * s.count * -(-s.queries // block.queries)
    return block == groups.LARGEST and blocks * _FEW >= machine.launch.units


def gains(s: HeadSizes, machine: Machine) -> bool:
    """Whether attention of these sizes takes less time by estimate in one kernel than as products and a softmax."""
    if machine.launch is not None:
        return s.dtype is F32 and attends(s, machine) and occupies(s, machine)
    return attends(s, machine) and time_in_one(s, machine) < time_apart(s, machine)


def keeps_scores_out(s: ByteAttention) -> bool:
    """Whether all scores of attention in bytes would not stay in the cache of a core: those of blocks do.  Products and
    softmax are the same work in one kernel and in several."""
    return s.scores.products * s.scores.size[0] * s.keys > _CACHED


def time_in_one(s: HeadSizes, machine: Machine) -> float:
    """The time of one kernel, in multiply-adds of a vector."""
    return _of_a_row(s, machine) if s.queries == 1 else _of_blocks(s, machine)


def _of_blocks(s: HeadSizes, machine: Machine) -> float:
    """The time of ``kernels.blocked_attention``."""
    t = tile_of(s, machine)
    keys = s.keys * (min(1.0, 0.5 + t.queries / max(1, s.queries)) if s.causal else 1.0)
    columns = max(1, math.ceil(s.channels / machine.lanes))

    def block(run: QueryRun) -> float:
        scores = keys / t.keys * s.depth * step_time(t.keys, run.vecs, machine)
        tiles = run.count / t.rows * columns / min(t.across, columns)
        values = tiles * keys * step_time(t.rows, min(t.across, columns), machine)
        sums = 3 * run.count * columns * math.ceil(keys / t.block)
        return scores + values + sums + keys * run.vecs * _EXPONENTIAL + _MOVED * run.count * s.depth

    runs = list(query_runs(s, t))
    items = work_items(s.batch, s.count, inside=sum(run.blocks for run in runs), threads=machine.threads)
    return s.batch * s.count * sum(run.blocks * block(run) for run in runs) * slowest(items, machine.threads)


def _of_a_row(s: HeadSizes, machine: Machine) -> float:
    """The time of ``kernels.row_attention``."""
    shared, lanes = s.batch * s.count // s.group, machine.lanes
    sums = math.ceil(s.depth / lanes) + math.ceil(s.channels / lanes) + (_ACROSS if lanes > 1 else 0)
    compute = shared * s.group * s.keys * (sums + _EXPONENTIAL / lanes)
    items = shared * parts_of(s)
    return overlapped(compute, _reading(s, machine)) * slowest(items, machine.threads)


def _reading(s: HeadSizes, machine: Machine) -> float:
    """The time until all keys and values have arrived."""
    return s.batch * s.count // s.group * s.keys * (s.depth + s.channels) * s.dtype.bytes / machine.stream


def time_apart(s: HeadSizes, machine: Machine) -> float:
    """The time of two products and a softmax of all scores, in multiply-adds of a vector.  Keys are turned round for
    several queries, and multiplied as they lie by one (``passes.row_products``); their results need no merging.
    Threads share each product."""
    count = s.batch * s.count
    row = s.queries == 1
    first = _product(count, s.keys, s.depth, 1) if row else _product(count, s.queries, s.depth, s.keys)
    problems = (first, _product(count, s.queries, s.keys, s.channels))
    products = sum(best((problem,), machine).cost((problem,), machine).time for problem in problems)
    scores = count * s.queries * s.keys
    softmax = scores / machine.lanes * (_EXPONENTIAL + 4)
    merged = s.merged and not row
    turned = 0 if row else count // s.group * s.keys * s.depth
    moved = _MOVED * (turned + merged * count * s.queries * s.channels)
    traffic = _PASSES * 4 * scores / _STREAM if 4 * scores > _CACHED else 0.0
    shared = (softmax + moved + traffic) * slowest(count * s.queries, machine.threads)
    compute = products + shared + (_MEETINGS + merged) * barrier(machine.threads)
    return overlapped(compute, _reading(s, machine) / streamed(machine.threads)) if row else compute


def _product(count: int, rows: int, inner: int, columns: int) -> Conv:
    """A product of matrices that are both computed."""
    x, y = Image(count, inner, 1, rows, inner), Image(count, columns, 1, rows, columns)
    return Conv(x, y, bias=False, packed=False, batch=((count, 1, 1),))
