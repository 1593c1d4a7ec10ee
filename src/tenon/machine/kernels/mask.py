"""A number stored from a position on along an axis of a tensor, where the position is known at run time."""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast
from tenon.machine.kernels.image import Box
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import I64


@lru_cache(maxsize=512)
def mask(box: Box, dim: int, value: float, machine: Machine) -> Kernel:
    """Parameters: an i64, the tensor that ``box`` lies in.  The elements of ``box`` whose index along its dimension
    ``dim`` is at least the i64 are set to ``value``; all others are left unchanged."""
    k = Builder(f"mask_{'x'.join(map(str, box.size))}", f"Stores {value} from a position on along dimension {dim}")
    count = k.param("n", 1, dtype=I64)
    y = k.param("y", *box.shape, dtype=box.dtype, out=True)
    extent, inner = box.size[dim], box.size[dim + 1 :]
    with ExitStack() as stack:
        first = stack.enter_context(k.bind("first", count[0], extent + 1))
        kinds, inside = deal(*box.size[:dim])
        loops = (k.loop("i", n, kind=kind) for n, kind in zip(box.size[:dim], kinds, strict=True))
        outer = [stack.enter_context(loop) for loop in loops]
        at = stack.enter_context(k.loop("j", extent, extent - first, kind=inside)) + first
        middle = [stack.enter_context(k.loop("i", n)) for n in inner[:-1]]
        for start, iterations, lanes in lane_segments(inner[-1] if inner else 1, machine.lanes_of(box.dtype)):
            with k.loop("v", iterations) as v:
                places = (*outer, at, *middle, *([v * lanes + start] if inner else []))
                number = broadcast(Const(value, Type(box.dtype)), lanes)
                k.store(y.buffer, tuple(p + s for p, s in zip(places, box.start, strict=True)), number)
    return k.done()
