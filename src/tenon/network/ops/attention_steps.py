"""The kernels of attention and their arguments, which its operators share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.machine.algorithms.attention import fills
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import attention_tiles as tiles
from tenon.machine.kernels import row_attention as rows
from tenon.machine.kernels.attention import attention
from tenon.machine.kernels.blocked_attention import blocked_attention
from tenon.machine.kernels.flash_attention import flash_attention
from tenon.machine.kernels.group_attention import group_attention
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32
from tenon.network.ops.base import Arg, Input, Output, Scratch, Step, Weights


def attention_steps(s: HeadSizes, operands: Sequence[Input], machine: Machine) -> list[Step]:
    """Attention of these sizes.  Operands: queries, keys, values, where there are any a mask, the number of keys and
    of those of the past."""
    if machine.launch is not None:
        return [Step(_on_device(s, machine), (*operands, Output()))]
    if s.queries == 1:
        return _row_steps(s, operands, machine)
    places = [Weights(np.arange(tiles.places(s), dtype=np.int32))] if s.causal else []
    # Names of their own: memory of a thread that others of its parameters overlap is not divided alike among threads.
    shapes = enumerate(tiles.scratch(s, machine))
    room = [Scratch(f"{name}{i}", 4 * math.prod(shape), True) for i, (name, shape) in shapes]
    args: tuple[Arg, ...] = (*operands, *places, *room, Output())
    return [Step(blocked_attention(s, machine), args)]


def _on_device(s: HeadSizes, machine: Machine) -> Kernel:
    """The kernel of a machine that runs work groups."""
    if s.dtype is F32:
        return group_attention(s, machine)
    return flash_attention(s) if fills(s, machine) else attention(s)


def _row_steps(s: HeadSizes, operands: Sequence[Input], machine: Machine) -> list[Step]:
    """Attention of one query: one kernel, or one for parts of the keys and one that joins their results."""
    parts = rows.parts_of(s)
    room = [Scratch(name, 4 * math.prod(shape), True) for name, shape in rows.row_scratch(s, parts)]
    if parts == 1:
        return [Step(rows.row_attention(s, machine), (*operands, *room, Output()))]
    results = [Scratch(name, 4 * math.prod(shape)) for name, shape in rows.parts_shapes(s, parts)]
    kernel, join = rows.row_attention(s, machine, parts), rows.joined_parts(s, machine, parts)
    return [Step(kernel, (*operands, *room, *results)), Step(join, (*results, Output()))]
