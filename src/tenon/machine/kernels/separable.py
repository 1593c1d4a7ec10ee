"""A depthwise convolution and the 1x1 convolution of its result in one kernel.

A block of the depthwise result is written to per-thread scratch memory that stays in cache, from which the products
read it (``kernels.strassen``, of zero or more levels): the intermediate image is never stored as a whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import depthwise, strassen
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.depthwise import DepthwiseTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.strassen import Given, MatrixView, StrassenBlocking


def between(first: Conv, b: StrassenBlocking) -> Image:
    """A block of the depthwise result."""
    return Image(1, first.y.channels, b.rows, b.cols, first.y.block)


def block_rows(first: Conv, b: StrassenBlocking) -> Conv:
    """The depthwise convolution of one block."""
    return replace(first, y=between(first, b))


def scratch(first: Conv, second: Conv, b: StrassenBlocking) -> list[tuple[int, ...]]:
    """Shapes of the block between the convolutions, and of the scratch of its products."""
    return [between(first, b).shape, *strassen.scratch(second, b)]


@lru_cache(maxsize=512)
def separable(first: Conv, second: Conv, machine: Machine, b: StrassenBlocking, tile: DepthwiseTile) -> Kernel:
    """Parameters: x, the depthwise weights, its bias (padded), the packed weights of the second, its bias, mask when
    ``clear``, operands, ``scratch``, y."""
    k = Builder(
        f"separable{b.levels}_{first.y.channels}_{second.y.channels}_{second.y.h}x{second.y.w}",
        f"Depthwise convolution, then a pointwise one by Strassen: {first.x.shown} to {second.y.shown}",
    )
    lanes, image = machine.lanes, between(first, b)
    x = k.param("x", *first.x.shape)
    v = k.param("v", first.padded // lanes, *first.kernel, lanes)
    bias = k.param("b", first.padded) if first.bias else None
    middle = k.param("d", *image.shape, scratch=True)
    given = Given.of(k, replace(second, x=image), machine, b)
    rows = block_rows(first, b)
    tensors = depthwise.Tensors(k, x, v, bias, None, [], middle)
    zero = Index()
    with k.loop("n", second.y.n) as n, strassen.blocks(k, second, b) as (group, top, _):
        depthwise.walk(tensors, rows, machine, tile, n, zero, top)
        given.multiply(MatrixView(middle, 0, zero, zero, zero), n, group, top, zero)
    return k.done()
