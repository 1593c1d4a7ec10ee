"""Winograd's F(2x2, 3x3) in integers by vectors of pairs of 16 bits (``kernels.integer_vector_winograd``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Algorithm,
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Scratch,
    Stage,
    Step,
    Weights,
    in_floats,
)
from tenon.machine.algorithms.direct import best_tiles
from tenon.machine.algorithms.estimate import (
    overlapped,
    slowest,
    step_time,
    work_items,
)
from tenon.machine.algorithms.integer_inner_products import four_products
from tenon.machine.algorithms.integers import FINISH, IntegerDirect, IntegerStage
from tenon.machine.algorithms.winograd import blockings
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels import integer_vector_winograd
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.integer_vector_winograd import ELEMENTS, between
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.winograd import WinogradBlocking, overhang, tiles_of
from tenon.network.graph.types import Layout

_CACHE = 600_000
"""Bytes of transformed inputs and products that stay near the processor."""
_INPUT, _OUTPUT = 40.0, 30.0
"""Time to transform a vector of inputs of a tile, and one of sums, without requantising it."""
_PIXELS = 16.0
"""Time to multiply a vector of transformed inputs of a tile with those of the next block."""


@dataclass(frozen=True)
class IntegerWinograd(Algorithm):
    """Winograd's convolution in integers with blocks of ``blocking``, whose tiles are of 2x2 outputs."""

    blocking: WinogradBlocking
    name: ClassVar[str] = "integer-winograd"
    own_memory: ClassVar[bool] = True
    offered: ClassVar[int] = 6

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """One convolution of bytes that is neither depthwise nor by pairs of scalars."""
        s = problem[0]
        plain = len(problem) == 1 and not in_floats(problem) and not s.paired and machine.lanes > 1
        return plain and integer_vector_winograd.applies(s, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,) = problem
        if limits.winograd < 2 or _weights(s) > limits.integer_winograd:
            return []
        return [cls(b) for b in _best_blockings(s, machine)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(WinogradBlocking(2, numbers["tiles"], numbers["cols"], numbers["vecs"]))

    @property
    def numbers(self) -> Mapping[str, int]:
        b = self.blocking
        return {"tiles": b.tiles, "cols": b.cols, "vecs": b.vecs}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.vecs

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        return Cost(estimate(s, machine, self.blocking) * machine.instruction, _weights(s))

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """Tiles reach over the image's edges."""
        over = overhang(problem[0], 2)[-len(x.halo) :]
        halo = ((before, max(after, more)) for (before, after), more in zip(x.halo, over, strict=True))
        return replace(x, halo=tuple(halo)), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), b = stages, self.blocking
        assert isinstance(stage, IntegerStage)
        s = stage.described
        if s.nibbles:  # two weights of 4 bits are a byte
            tile = best_tiles(s.conv, machine, 1)[0]
            return IntegerDirect(tile).lower(problem, stages, machine)
        packed = map(Weights, integer_vector_winograd.pack(stage.constant, s, machine, b.vecs))
        own = [
            Scratch(name, 4 * math.prod(shape), per_thread=True)
            for name, shape in zip(("inputs", "products", "pixels"), between(s.conv, machine, b), strict=True)
        ]
        kernel = integer_vector_winograd.conv(s, machine, b)
        return [Step(kernel, (Input(0), *packed, *stage.operands, Output(), *own))]


def _weights(s: Conv) -> int:
    """Bytes of transformed weights."""
    return 2 * ELEMENTS * s.padded * s.x.blocks * s.x.block


def _best_blockings(s: Conv, machine: Machine) -> list[WinogradBlocking]:
    """Blockings with the least estimated time first."""
    vectors = s.padded // machine.lanes
    listed = (b for b in blockings(s, 2, machine, four_products(machine)) if vectors % b.vecs == 0)
    return sorted(listed, key=lambda b: estimate(s, machine, b))


def estimate(s: Conv, machine: Machine, b: WinogradBlocking) -> float:
    """Time of the convolution, the unit being one multiply-add of a vector of f32."""
    total, outputs = tiles_of(s, 2), s.padded // machine.lanes
    transforms = total * (s.x.blocks * (_INPUT + _PIXELS) + outputs * (_OUTPUT + 4 * FINISH))
    steps, passes = -(-s.x.blocks // 2) * s.x.block // 2, -(-total // b.tiles)
    products = 0.0
    for _, count, cols in segments(min(b.tiles, total), b.cols):
        step = step_time(cols, b.vecs, machine, four_products(machine))
        products += count * (outputs // b.vecs) * (steps * step + 2.0 * cols * b.vecs + 20)
    products *= ELEMENTS * passes
    weights, kept = _weights(s), 4.0 * sum(map(math.prod, between(s, machine, b)))
    own = -(-passes // machine.threads)  # blocks of a thread, each of which reads all weights
    memory = (weights + (own - 1) * weights / 10) / machine.stream
    spill = passes * kept / (8 * machine.stream) if kept > _CACHE else 0.0
    shares = slowest(work_items(passes, threads=machine.threads), machine.threads)
    return (transforms + spill) * shares + overlapped(products * shares, memory)
