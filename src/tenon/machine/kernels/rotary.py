"""Rotary position embedding: pairs of elements of heads turned by the angles of their positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal


@dataclass(frozen=True)
class RotaryHeads:
    """The first ``turned`` elements of every head of [positions, heads, depth]: pairs i and i + turned / 2, or
    neighbours if ``interleaved``."""

    positions: int
    heads: int
    depth: int
    turned: int
    interleaved: bool


@lru_cache(maxsize=64)
def rotary(s: RotaryHeads, machine: Machine) -> Kernel:
    """Parameters: x [positions, heads, depth], cosines and sines [positions, turned / 2], y."""
    half = s.turned // 2
    k = Builder(
        f"rotary_{s.positions}x{s.heads}x{s.depth}",
        f"{s.turned} elements of {s.heads} heads turned by the angles of {s.positions} positions",
    )
    x = k.param("x", s.positions, s.heads, s.depth)
    cosine, sine = (k.param(name, s.positions, half) for name in ("c", "s"))
    y = k.param("y", s.positions, s.heads, s.depth, out=True)
    lanes = 1 if s.interleaved else math.gcd(machine.lanes, half, s.depth)
    kinds, _ = deal(s.positions, s.heads)
    with k.loop("i", s.positions, kind=kinds[0]) as i, k.loop("h", s.heads, kind=kinds[1]) as h:
        with k.loop("v", half // lanes) as v:
            first, second = (v * 2, v * 2 + 1) if s.interleaved else (v, v + half // lanes)
            a, b = (k.let("a", x.vec(lanes)[i, h, place]) for place in (first, second))
            c, d = (k.let("c", table.vec(lanes)[i, v]) for table in (cosine, sine))
            y.vec(lanes)[i, h, first] = a * c - b * d
            y.vec(lanes)[i, h, second] = a * d + b * c
        if s.turned < s.depth:
            with k.loop("v", (s.depth - s.turned) // lanes) as v:
                y.vec(lanes)[i, h, v + s.turned // lanes] = x.vec(lanes)[i, h, v + s.turned // lanes]
    return k.done()
