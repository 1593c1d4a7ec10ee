"""Elementwise kernels over any number of operands, broadcast as in NumPy.

Dimensions that are contiguous in all operands are merged; the innermost is split into vectors, its tail into
successively narrower ones, and an operand with a single element along it is loaded as a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, broadcast, cast, lanes_of, select, vector4
from tenon.machine.kernels.fours import FOUR, VECTORS, aligned, loops_over
from tenon.machine.kernels.image import Box, Epilogue, collapse
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.network.graph.types import F32, I32, DType, Layout


@dataclass(frozen=True)
class Pointwise:
    """The function to compute: ``output = function(*inputs)`` over boxes of one rank.

    ``clear`` adds a parameter after the inputs: an i32 mask per element of the box ``mask``, broadcast like any
    operand; where it is 0 the output is 0.
    """

    name: str
    inputs: tuple[Box, ...]
    output: Box
    function: Epilogue
    mask: Box | None = None


def image_box(dims: tuple[int, ...], layout: Layout, channels: int, dtype: DType = F32) -> Box:
    """The box of an image whose every spatial axis may have a halo, even where it has none.

    One channel that is broadcast to ``channels`` is one lane, however wide its block.
    """
    halos = layout.halos(len(dims))
    block = layout.block_of(dims[1])
    blocks = -(-dims[1] // block)
    spatial = tuple(n + before + after for n, (before, after) in zip(dims[2:], halos, strict=True))
    lanes = 1 if dims[1] == 1 < channels else block
    return Box(
        (dims[0], blocks, *spatial, block),
        (0, 0, *(before for before, _ in halos), 0),
        (dims[0], blocks, *dims[2:], lanes),
        dtype,
    )


def mask_box(output: Box) -> Box:
    """The box of a mask over the channels of an image."""
    size = (1, output.size[1], *(1,) * (len(output.size) - 3), output.size[-1])
    return Box(size, (0,) * len(size), size, I32)


def vectors(k: Builder, n: int, lanes: int, unroll: int = 4, kind: str = "serial") -> Iterator[tuple[Index, int]]:
    """Loops of a kind over n elements in vectors of ``lanes`` and narrower: (first element, lanes)."""
    for start, iterations, width in lane_segments(n, lanes):
        for first, count, step in segments(iterations, unroll if iterations >= 2 * unroll else 1):
            with k.loop("j", count, kind=kind) as j, k.unroll("u", step) as u:
                yield (j * step + u + first) * width + start, width


@lru_cache(maxsize=1024)
def pointwise(s: Pointwise, machine: Machine) -> Kernel:
    """Parameters: the inputs, the mask if there is one, the output."""
    *boxes, out = collapse([*s.inputs, *([s.mask] if s.mask else []), s.output])
    k = Builder(f"{s.name}_{'x'.join(str(n) for n in out.size)}", "Element by element: " + s.name.replace("_", " "))
    names = ["x"] * len(s.inputs) + ["m"] * (s.mask is not None)
    tensors = [k.param(name, *b.shape, dtype=b.dtype) for name, b in zip(names, boxes, strict=True)]
    y = k.param("y", *out.shape, dtype=out.dtype, out=True)
    if 0 in out.size:  # axes of one element may be broadcast to zero elements
        return k.done()

    if machine.launch is not None and _by_fours(boxes, tensors, out, y):
        _fours(k, s, boxes, tensors, out, y)
        return k.done()
    with ExitStack() as stack:
        kinds, inside = deal(*out.size[:-1])
        loops = (k.loop("i", n, kind=kind) for n, kind in zip(out.size[:-1], kinds, strict=True))
        outer = tuple(stack.enter_context(loop) for loop in loops)
        widest = machine.lanes_of(*(box.dtype for box in (*boxes, out)))
        for inner, lanes in vectors(k, out.size[-1], widest, kind=inside):
            at = (*outer, inner)
            values = [load_elements(t, b, at, lanes) for t, b in zip(tensors, boxes, strict=True)]
            value = s.function(*values[: len(s.inputs)])
            if s.mask is not None:
                wide = (
                    loaded(value) if value.type.dtype.is_float or value.type.dtype.is_small_float else cast(value, I32)
                )
                value = stored(select(values[-1], wide, 0), out.dtype)
            k.store(y.buffer, place(out, at), broadcast(value, lanes))
    return k.done()


FEWEST = 1 << 13
"""Elements of which a fourth still occupies a device."""


def _by_fours(boxes: Sequence[Box], tensors: Sequence[Tensor], out: Box, y: Tensor) -> bool:
    """Whether an item can compute four neighbouring elements, which all operands load at once or as one."""
    if out.size[-1] % FOUR or math.prod(out.size) < FEWEST:
        return False
    at = tuple(loops_over(out.size, len(out.size) - 1))
    return all(
        box.size[-1] == 1 or (box.dtype in VECTORS and aligned(tensor.buffer, place(box, at)))
        for box, tensor in zip((*boxes, out), (*tensors, y), strict=True)
    )


def _fours(k: Builder, s: Pointwise, boxes: Sequence[Box], tensors: Sequence[Tensor], out: Box, y: Tensor) -> None:
    """An item for every four elements; floats of 16 bits are computed in f32, and rounded once."""
    with ExitStack() as stack:
        counts = (*out.size[:-1], out.size[-1] // FOUR)
        *outer, last = (stack.enter_context(k.loop("i", n, kind="parallel")) for n in counts)
        at = (*outer, last * FOUR)
        loads = (load_elements(t, b, at, FOUR) for t, b in zip(tensors, boxes, strict=True))
        values = [lanes_of(k.let("v", loaded(value))) for value in loads]
        results = []
        for lane in range(FOUR):
            value = s.function(*(each[lane] for each in values[: len(s.inputs)]))
            if s.mask is not None:
                value = select(values[-1][lane], loaded(value), 0)
            results.append(stored(value, out.dtype))
        k.store(y.buffer, place(out, at), vector4(*results))


def place(box: Box, at: tuple[Index, ...]) -> tuple[Index, ...]:
    """Where an element of a box lies in its tensor."""
    return tuple(index(i) for i in box.spread(at))


def load_elements(tensor: Tensor, box: Box, at: tuple[Index, ...], lanes: int) -> Expr:
    """``lanes`` elements of a box from ``at`` on; what is broadcast along the last axis is loaded once."""
    return Load(tensor.buffer, place(box, at), Type(box.dtype, lanes if box.size[-1] > 1 else 1))
