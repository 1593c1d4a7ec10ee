"""Images of few channels: planes of f32 to blocks of floats of 16 bits, as convolutions of work groups read them."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, vector4
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.quantize import blocks_of_planes
from tenon.machine.kernels.storage_types import stored
from tenon.machine.kernels.tensor_staged import OPERATIONS
from tenon.network.graph.types import F32, DType


def reads_blocks(machine: Machine, dtype: DType, channels: int) -> bool:
    """Whether convolutions of an image of so many channels read them in a block, although some are padding: a work
    group copies a block at once, and elements of planes one by one."""
    launch, operation = machine.launch, OPERATIONS.get(dtype)
    staged = launch is not None and launch.copies and operation is not None and machine.has(operation)
    return staged and machine.block == 4 and 3 <= channels <= 4


@lru_cache(maxsize=64)
def narrow_image(x: Image, y: Image) -> Kernel:
    """Planes of at most four channels to blocks of four, zeros past the last channel, of which an item stores one, or
    four where rows of y have so many; its halo gets zeros.

    Parameters: x f32, y in 16 bits.
    """
    assert x.block == 1
    assert y.blocks == 1
    k = Builder(f"narrow_{x.n * x.channels * x.h * x.w}", f"{x.shown} rounded to {y.dtype} in blocks of {y.block}")
    source, target = k.param("x", *x.shape[:4]), k.param("y", *y.shape, dtype=y.dtype, out=True)
    with blocks_of_planes(k, source, x, y, around=True) as ((*outer, column), positions):
        for e, planes in enumerate(positions):
            block = [*planes, *[Const(0.0, Type(F32))] * (y.block - x.channels)]
            at = *outer, column + e, Index()
            k.store(target.buffer, at, vector4(*(stored(v, y.dtype) for v in block)))
    return k.done()
