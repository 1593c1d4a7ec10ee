"""Kernels of sums of products of bytes, four to a word, and operands at the ends of their ranges."""

from __future__ import annotations

import numpy as np

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, bitcast, interleave4, op
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

NAMES = ("dot4", "dot4_signed", "dot4_narrow", "dot8_small")


def products(name: str, lanes: int) -> Kernel:
    k = Builder(f"{name}_{lanes}")
    a, b = (k.param(p, 1024, dtype=DType.Q8) for p in "ab")
    y = k.param("y", 1024, dtype=I32, out=True)
    with k.loop("i", 1024 // lanes) as i:
        words = (a.vec(lanes)[i], b.vec(lanes)[i]) * (2 if name == "dot8_small" else 1)
        y.vec(lanes)[i] = op(name, y.vec(lanes)[i], *words)
    return k.done()


def interleaved(lanes: int) -> Kernel:
    k = Builder(f"interleave4_{lanes}")
    a = k.param("a", 4096, dtype=DType.I8)
    y = k.param("y", 1024, dtype=I32, out=True)
    with k.loop("i", 1024 // lanes) as i:
        y.vec(lanes)[i] = bitcast(interleave4(a.vec(4 * lanes)[i]), I32)
    return k.done()


def operands(name: str) -> tuple[Array, Array, Array]:
    """Random bytes, and all combinations of the least and the greatest: pairs of products that saturate 16 bits, or
    that nearly do where a product takes no -128."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, 4096).astype(np.int8) for _ in "ab")
    ends = np.array(np.meshgrid(*[[-128, -1, 127]] * 4)).reshape(4, -1).T.reshape(-1).astype(np.int8)
    a[: len(ends)], b[: len(ends)] = ends, -128
    a[512 : 512 + len(ends)], b[512 : 512 + len(ends)] = ends, 127
    if name == "dot4_narrow":
        b = np.maximum(b, -127)
    if name == "dot8_small":
        a = (a & 63).astype(np.int8)
    start = rng.integers(-(2**31), 2**31, 1024).astype(np.int32)
    return a.view(np.int32), b.view(np.int32), start
