"""Whether attention is computed in one kernel or as products and a softmax: by estimate."""

from __future__ import annotations

import math

from tenon.machine.algorithms.estimate import slowest, step_time, work_items
from tenon.machine.algorithms.registry import best
from tenon.machine.kernels import attention as tensor
from tenon.machine.kernels.attention_tiles import tile_of
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32

_EXPONENTIAL = 18.0
"""Time of the exponentials of a vector, their maximum and their sum, in multiply-adds of a vector."""

_MOVED = 1.5
"""Time to move one number to another place."""

_CACHED = 1 << 18
"""Bytes of scores that stay in the cache of a core."""

_PASSES = 5
"""How often the scores are read or written: by the products and by the softmax."""

_STREAM = 16.0
"""Bytes of scores that arrive from a larger cache in the time of one multiply-add of a vector."""


def attends(s: HeadSizes, machine: Machine) -> bool:
    """Whether a machine can compute attention of these sizes in one kernel."""
    if machine.launch is not None:
        return tensor.supported(s, machine)
    return s.dtype is F32 and machine.float_unit and machine.own_memory


def gains(s: HeadSizes, machine: Machine) -> bool:
    """Whether attention of these sizes takes less time by estimate in one kernel than as products and a softmax."""
    return attends(s, machine) and time_in_one(s, machine) < time_apart(s, machine)


def time_in_one(s: HeadSizes, machine: Machine) -> float:
    """The time of one kernel (``kernels.blocked_attention``), in multiply-adds of a vector."""
    t = tile_of(s, machine)
    keys = s.keys * (min(1.0, 0.5 + t.queries / max(1, s.queries)) if s.causal else 1.0)
    columns = max(1, math.ceil(s.channels / machine.lanes))
    scores = keys / t.keys * s.depth * step_time(t.keys, t.vecs, machine)
    tiles = t.queries / t.rows * columns / min(t.across, columns)
    values = tiles * keys * step_time(t.rows, min(t.across, columns), machine)
    sums = 3 * t.queries * columns * math.ceil(keys / t.block)
    block = scores + values + sums + keys * t.vecs * _EXPONENTIAL + _MOVED * t.queries * s.depth
    blocks = -(-s.queries // t.queries)
    items = work_items(s.batch, s.count, inside=blocks, threads=machine.threads)
    return s.batch * s.count * blocks * block * slowest(items, machine.threads)


def time_apart(s: HeadSizes, machine: Machine) -> float:
    """The time of two products and a softmax of all scores, in multiply-adds of a vector."""
    count, shared = s.batch * s.count, s.batch * s.count // s.group
    products = sum(
        best((_product(count, s.queries, inner, columns),), machine)
        .cost((_product(count, s.queries, inner, columns),), machine)
        .time
        for inner, columns in ((s.depth, s.keys), (s.keys, s.channels))
    )
    scores = count * s.queries * s.keys
    softmax = scores / machine.lanes * (_EXPONENTIAL + 4)
    moved = _MOVED * shared * s.keys * s.depth * (s.queries > 1)
    traffic = _PASSES * 4 * scores / _STREAM if 4 * scores > _CACHED else 0.0
    return (products + softmax + moved + traffic) * slowest(count, machine.threads)


def _product(count: int, rows: int, inner: int, columns: int) -> Conv:
    """A product of matrices that are both computed."""
    x, y = Image(count, inner, 1, rows, inner), Image(count, columns, 1, rows, columns)
    return Conv(x, y, bias=False, packed=False, batch=((count, 1, 1),))
