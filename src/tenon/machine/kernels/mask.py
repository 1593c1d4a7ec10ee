"""A number stored from a position on along an axis of a tensor, where the position is known at run time."""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache
from itertools import product

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast
from tenon.machine.kernels.image import Box
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import I64


@lru_cache(maxsize=512)
def mask(box: Box, dim: int, value: float, machine: Machine, *, halo: bool = False) -> Kernel:
    """Parameters: an i64, the tensor that ``box`` lies in.  The elements of ``box`` whose index along its dimension
    ``dim`` is at least the i64 are set to ``value``, with ``halo`` also what lies around them in other dimensions; all
    others are left unchanged."""
    k = Builder(f"mask_{'x'.join(map(str, box.size))}", f"Stores {value} from a position on along dimension {dim}")
    count = k.param("n", 1, dtype=I64)
    y = k.param("y", *box.shape, dtype=box.dtype, out=True)
    around = [(0, n) for n in box.shape] if halo else list(zip(box.start, box.size, strict=True))
    with k.bind("first", count[0], box.size[dim] + 1) as first:
        for outer in product(*(_bands(box, d) if halo else [(box.start[d], box.size[d])] for d in range(dim))):
            _fill(k, y, box, (*outer, (box.start[dim], box.size[dim]), *around[dim + 1 :]), dim, first, value, machine)
    return k.done()


def _bands(box: Box, dim: int) -> list[tuple[int, int]]:
    """(start, extent) of the halo before the content of a dimension, the content, and the halo behind it."""
    start, end = box.start[dim], box.start[dim] + box.size[dim]
    return [(a, n) for a, n in ((0, start), (start, box.size[dim]), (end, box.shape[dim] - end)) if n]


def _fill(
    k: Builder,
    y: Tensor,
    box: Box,
    ranges: tuple[tuple[int, int], ...],
    dim: int,
    first: Index,
    value: float,
    machine: Machine,
) -> None:
    """Store ``value`` at positions of ``ranges``, (start, extent) of each dimension, along one from ``first`` on."""
    number, extent = Const(value, Type(box.dtype)), ranges[dim][1]
    kinds, inside = deal(*(n for _, n in ranges[:dim]))
    with ExitStack() as stack:
        loops = (k.loop("i", n, kind=kind) for (_, n), kind in zip(ranges[:dim], kinds, strict=True))
        outer = [stack.enter_context(loop) for loop in loops]
        at = stack.enter_context(k.loop("j", extent, extent - first, kind=inside)) + first
        *middle, last = (*ranges[dim + 1 :], (0, 1))[: max(1, len(ranges) - dim - 1)]
        indices = [stack.enter_context(k.loop("i", n)) for _, n in middle]
        for start, iterations, lanes in lane_segments(last[1], machine.lanes_of(box.dtype)):
            with k.loop("v", iterations) as v:
                places = (*outer, at, *indices, v * lanes + start)[: len(ranges)]
                moved = tuple(p + s for p, (s, _) in zip(places, ranges, strict=True))
                k.store(y.buffer, moved, broadcast(number, lanes))
