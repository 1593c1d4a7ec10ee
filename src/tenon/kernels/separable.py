"""A depthwise convolution and the 1x1 convolution of its result in one kernel.

A block of the depthwise result goes to memory of the thread's own that stays near the processor, and the products
take it from there (``kernels.strassen``, of any number of levels, none included): what lies between the two is never
stored whole.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from tenon.ir.build import Builder
from tenon.ir.index import Index
from tenon.ir.loops import Kernel
from tenon.ir.types import F32
from tenon.kernels import depthwise, strassen
from tenon.kernels.conv import Conv
from tenon.kernels.image import Image
from tenon.kernels.machine import Machine
from tenon.kernels.parallel import slowest
from tenon.kernels.strassen import Blocking, Given, View

_NEAR, _CACHE = 32_000, 100_000
"""Bytes of a thread's own memory that stay nearest to the processor, and the most that it may be."""


def applies(first: Conv, second: Conv, machine: Machine) -> bool:
    """Whether ``second`` of what ``first`` makes can be computed so; the image between them is as the first's."""
    single = {first.x.dtype, first.y.dtype, first.weights} == {F32}
    plain = second.kernel == second.stride == (1, 1) and not (second.top or second.left) and not first.operands
    return single and plain and first.depthwise and not first.clear and strassen.applies(second, machine, 0)


def between(first: Conv, b: Blocking) -> Image:
    """A block of the depthwise result."""
    return Image(1, first.y.channels, b.rows, b.cols, first.y.block)


def scratch(first: Conv, second: Conv, b: Blocking) -> list[tuple[int, ...]]:
    """Shapes of the block between the convolutions, and of what its products need."""
    return [between(first, b).shape, *strassen.scratch(second, b)]


def best_blockings(first: Conv, second: Conv, machine: Machine, count: int, most: int = 2) -> list[Blocking]:
    """The ``count`` blockings of the products with the least estimated time, best first."""
    if not applies(first, second, machine):
        return []
    found = strassen.best_blockings(second, machine, 64, most, least=0)
    found = [b for b in found if b.cols == first.y.w and _own(first, second, b) <= _CACHE]
    return sorted(found, key=lambda b: estimate(first, second, machine, b))[:count]


def estimate(first: Conv, second: Conv, machine: Machine, b: Blocking) -> float:
    """Time of both, the unit being one multiply-add of a vector.  Every group makes the block between for itself."""
    vectors = first.y.n * first.y.h * first.y.w * first.padded / machine.lanes
    far = 1.0 if _own(first, second, b) > _NEAR else 0.0
    rows = ((b.rows - 1) * first.stride[0] + first.kernel[0]) / b.rows  # of input, for one of output
    loads = rows * first.stride[1] + 3 + far
    blocks = second.y.n * (second.y.h // b.rows) * (second.y.w // b.cols) * b.groups
    own = b.groups * vectors * (1.2 * first.taps + loads) * slowest(blocks, machine.threads)
    return strassen.estimate(second, machine, b) + own


def _own(first: Conv, second: Conv, b: Blocking) -> int:
    """Bytes of a thread's own memory."""
    return 4 * sum(map(math.prod, scratch(first, second, b)))


@lru_cache(maxsize=512)
def separable(first: Conv, second: Conv, machine: Machine, b: Blocking) -> Kernel:
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
    rows = replace(first, y=image)
    tensors = depthwise.Tensors(k, x, v, bias, None, [], middle)
    zero = Index()
    with k.loop("n", second.y.n) as n, strassen.blocks(k, second, b) as (group, top, _):
        depthwise.walk(tensors, rows, machine, depthwise.choose_tile(rows, machine), n, zero, top)
        given.multiply(View(middle, 0, zero, zero, zero), n, group, top, zero)
    return k.done()
