"""Products of f32 by a matrix unit for bf16: each number as the sum of two of bf16, of which three products are added.

An image is copied as three of bf16, one after the other in channels: its rounded numbers, what is left of them, and the
rounded numbers again.  The weights of these are the rounded ones twice, and what is left of them.  So one convolution
of three times as many channels adds high by high, low by high and high by low; low by low is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, segments
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast, cast
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.tile_products import supported as supports_bf16
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType

_LANES = 16
_BLOCK = 32
"""Channels of a block of the copies: a row of a tile."""


def supported(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of blocks that are whole vectors."""
    floats = s.x.dtype is F32 and s.weights is F32 and s.taps > 0
    return floats and s.x.block in (_LANES, _BLOCK) and supports_bf16(split(s), machine)


def split(s: Conv) -> Conv:
    """The convolution of the copies."""
    return replace(s, x=replace(s.x, channels=3 * _width(s), block=_BLOCK, dtype=DType.BF16), weights=DType.BF16)


def _width(s: Conv) -> int:
    """Channels of a copy."""
    return -(-s.x.blocks * s.x.block // _BLOCK) * _BLOCK


def split_bytes(s: Conv) -> int:
    """Bytes of the copies."""
    return s.x.n * 3 * _width(s) * s.x.shape[2] * s.x.shape[3] * 2


def split_weights(weights: Array, s: Conv) -> Array:
    """The weights of the copies, from [channels out, channels in, kh, kw] of f32."""
    out, channels, *kernel = weights.shape
    bf16 = DType.BF16.numpy
    high = weights.astype(bf16)
    low = (weights - high.astype(np.float32)).astype(bf16)
    whole = np.zeros((out, 3, _width(s), *kernel), bf16)
    for i, part in enumerate((high, high, low)):
        whole[:, i, :channels] = part
    return whole.reshape(out, -1, *kernel)


@lru_cache(maxsize=128)
def split_image(s: Conv, machine: Machine) -> Kernel:
    """Parameters: x with its halo, and the copies [n][3 copies of blocks][rows][columns][32]."""
    n, blocks, rows, cols, block = s.x.shape
    vectors, copies = blocks * block // _LANES, _width(s) // _BLOCK
    k = Builder(f"split_{s.x.channels}_{s.x.h}x{s.x.w}", f"{s.x.shown} as three images of bf16 whose products add up")
    x = k.param("x", *s.x.shape).vec(_LANES)
    y = k.param("y", n, 3 * copies, rows, cols, _BLOCK, dtype=DType.BF16, out=True).vec(_LANES)
    with k.loop("n", n) as image:
        for first, count, each in segments(vectors, _BLOCK // _LANES):
            (outer, inner), rest = deal(count, rows, threads=machine.threads)
            loops = k.loop("c", count, kind=outer), k.loop("i", rows, kind=inner), k.loop("j", cols, kind=rest)
            with loops[0] as c, loops[1] as row, loops[2] as col:
                for v in range(_BLOCK // _LANES):
                    at = (c * each + (first + v)) * _LANES
                    beyond = broadcast(Const(0.0, Type(F32)), _LANES)
                    value = x[image, at // block, row, col, at % block // _LANES] if v < each else beyond
                    high = k.let("h", cast(value, DType.BF16))
                    low = cast(value - cast(high, F32), DType.BF16)
                    for copy, part in enumerate((high, low, high)):
                        y[image, c + (first * _LANES // _BLOCK + copy * copies), row, col, v] = part
    return k.done()
