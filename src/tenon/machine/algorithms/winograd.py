"""Winograd's algorithm: tiles of outputs by fewer multiplications, transforms before and after them.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015); see ``kernels.winograd``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import ClassVar, Self

from tenon.machine.algorithms import rounding
from tenon.machine.algorithms.base import (
    Algorithm,
    Cost,
    Limits,
    Output,
    Problem,
    Scratch,
    Stage,
    Step,
    Weights,
    in_floats,
)
from tenon.machine.algorithms.estimate import (
    IN_F32,
    Arithmetic,
    barrier,
    fits,
    gathered,
    overlapped,
    pair_time,
    slowest,
    step_time,
    work_items,
)
from tenon.machine.algorithms.estimate import arithmetic as direct_arithmetic
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import EXCHANGED
from tenon.machine.kernels.rows import LONGEST_PRODUCT
from tenon.machine.kernels.storage_types import NARROW
from tenon.machine.kernels.winograd import (
    WinogradBlocking,
    axes,
    between,
    elements,
    in_phases,
    overhang,
    phases,
    roundable,
    stored_as,
    tiles_of,
    transform,
    transformed,
    winograd,
)
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType, Layout

ERROR = {
    (3, 3): {2: 3e-6, 4: 4.4e-5},
    (5, 5): {2: 3.5e-5, 4: 5.4e-5},
    (1, 3): {2: 3.3e-6, 4: 1e-5},
    (1, 5): {2: 9e-6, 4: 1.1e-5},
    (1, 7): {2: 9.5e-6, 4: 4.9e-5},
}
"""The largest error over the RMS of the output, by kernel (on its side or upright) and m: measured against float64 on
random data (direct: 9e-6).  Numbers of 16 bits add to that (``rounding``)."""

LARGEST_TILE = max(m for errors in ERROR.values() for m in errors)
"""Positions along an axis that a tile has at most."""

_CACHE = 600_000
"""Bytes of transformed inputs and products that stay near the processor."""


@dataclass(frozen=True)
class Winograd(Algorithm):
    """Winograd's convolution with tiles and blocks of ``blocking``."""

    blocking: WinogradBlocking
    name: ClassVar[str] = "winograd"
    own_memory: ClassVar[bool] = True
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """Stride 1 and no groups, blocks of whole vectors, and sums that need not be cut into blocks."""
        s = problem[0]
        plain = _taps(s) in ERROR and s.stride == s.dilation == s.y_step == (1, 1) and s.positions is None
        whole = s.x.block % machine.lanes == 0 and s.y.block % machine.lanes == 0
        short = s.x.channels <= LONGEST_PRODUCT
        layer = len(problem) == 1 and s.groups == 1 and s.packed and not s.batch
        return layer and in_floats(problem) and plain and whole and short

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,) = problem
        return [cls(b) for b in best_blockings(s, machine, count, limits)]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        pairs = bool(numbers["pairs"])
        return cls(WinogradBlocking(numbers["m"], numbers["tiles"], numbers["cols"], numbers["vecs"], pairs))

    @property
    def numbers(self) -> Mapping[str, int]:
        b = self.blocking
        return {"m": b.m, "tiles": b.tiles, "cols": b.cols, "vecs": b.vecs, "pairs": int(b.pairs)}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.m, self.blocking.vecs, self.blocking.pairs

    @property
    def numerics(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.m, self.blocking.pairs

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        count = s.padded * s.taps * s.x.channels
        grown = count * stored_as(s, self.blocking).bytes * elements(s, self.blocking.m) // s.taps
        return Cost(estimate(s, machine, self.blocking), grown)

    def error(self, problem: Problem, weights: Array | None) -> float:
        (s,), b = problem, self.blocking
        exact, dtype = ERROR[_taps(s)][b.m], stored_as(s, b)
        if weights is None or not (b.pairs or dtype in NARROW):
            return exact
        left, right = (axis.output_power() * axis.input_power() for axis in axes(s, b.m))
        rounded = DType.BF16 if b.pairs else F32
        return exact + rounding.transformed(transformed(weights, s, b), dtype, rounded, left, right, weights)

    def most_error(self, limits: Limits) -> float:
        return limits.max_winograd_error

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """Tiles reach over the image's edges."""
        (s,) = problem
        over = overhang(s, self.blocking.m)[-len(x.halo) :]
        halo = ((before, max(after, more)) for (before, after), more in zip(x.halo, over, strict=True))
        return replace(x, halo=tuple(halo)), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), b = stages, self.blocking
        s, shared = stage.conv, in_phases(stage.conv, b)
        packed = map(Weights, transform(stage.constant, s, machine, b))
        inputs, products = (
            Scratch(name, 4 * math.prod(shape), per_thread=not shared)
            for name, shape in zip(("inputs", "products"), between(s, machine, b), strict=True)
        )
        rest = stage.epilogue_args()
        if not shared:
            return [Step(winograd(s, machine, b), (stage.left, *packed, *rest, inputs, products, Output()))]
        args = (stage.left, inputs), (inputs, *packed, products), (products, *rest, Output())
        return list(starmap(Step, zip(phases(s, machine, b), args, strict=True)))


def _taps(s: Conv) -> tuple[int, int]:
    """Height and width of the kernel, the smaller first."""
    return min(s.kernel), max(s.kernel)


def worthwhile(s: Conv, m: int) -> bool:
    """Whether tiles of ``m`` are worth considering: weights in 8 or 16 bits that were asked for to save memory, with
    images in f32, shall not be kept as f32."""
    if s.weights is DType.I8:
        return False
    return roundable(s, m) or s.weights not in NARROW or s.x.dtype is not F32


def best_blockings(s: Conv, machine: Machine, count: int, limits: Limits) -> list[WinogradBlocking]:
    """The ``count`` blockings with the least estimated time, best first, within the limits in f32."""
    listed: list[WinogradBlocking] = []
    most, max_winograd_error = limits.winograd, limits.max_winograd_error
    for m in (m for m, e in ERROR[_taps(s)].items() if m <= most and e <= max_winograd_error and worthwhile(s, m)):
        pairs = m == 2 and s.kernel == (3, 3) and machine.lanes > 1 and s.pairs(machine) == "channels"
        listed += (replace(b, pairs=pairs) for b in blockings(s, m, machine, IN_F32))
    return sorted(listed, key=lambda b: estimate(s, machine, b))[:count]


def blockings(s: Conv, m: int, machine: Machine, a: Arithmetic) -> Iterator[WinogradBlocking]:
    """The blockings whose register tiles fit."""
    vectors = s.padded // machine.lanes
    for tiles in shared_evenly(tiles_of(s, m), machine.threads):
        for vecs in (v for v in (1, 2, 3, 4) if v <= vectors):
            for cols in range(1, tiles + 1):
                # Few tiles that remain are slow: they are a small share of more than four.
                if fits(cols, vecs, machine, a) and (tiles % cols == 0 or a.operands * cols > 4):
                    yield WinogradBlocking(m, tiles, cols, vecs)


def shared_evenly(total: int, threads: int) -> set[int]:
    """How many of ``total`` tiles may be a block, so that two threads have about as many blocks each; more threads
    choose for themselves (``estimate``)."""
    sizes = {min(t, total) for t in (7, 8, 14, 16, 28, 49, 56, *(-(-total // n) for n in (2, 4, 6, 8)))}
    if threads > 2:
        sizes |= {-(-total // (n * threads)) for n in (1, 2, 3, 4)}
        return {t for t in sizes if t <= 64}
    return {t for t in sizes if t <= 64 and ((blocks := -(-total // t)) == 1 or blocks % 2 == 0 or blocks > 16)}


def estimate(s: Conv, machine: Machine, b: WinogradBlocking) -> float:
    """Time of the convolution, the unit being one multiply-add of a vector."""
    total, inputs, outputs = tiles_of(s, b.m), s.x.blocks * s.x.block, s.padded // machine.lanes
    steps = inputs // 2 if b.pairs else inputs
    # Transformed inputs are as the products want them; only weights may have to be widened.
    arithmetic = (
        Arithmetic(pair_time(machine))
        if b.pairs
        else direct_arithmetic(replace(s, x=replace(s.x, dtype=F32), weights=stored_as(s, b)), machine)
    )
    count = elements(s, b.m)
    turns = 0.7 * sum(axis.side for axis in axes(s, b.m) if not axis.trivial)
    transforms = total * (inputs // machine.lanes + outputs) * turns * count
    products = 0.0
    for vecs, iterations in ((b.vecs, outputs // b.vecs), (outputs % b.vecs, 1)):
        for _, n, cols in segments(min(b.tiles, total), b.cols):
            if vecs:
                products += (
                    n * iterations * (steps * step_time(cols, vecs, machine, arithmetic) + 2.0 * cols * vecs + 20)
                )
    products *= count * -(-total // b.tiles)
    weights = stored_as(s, b).bytes * count * s.x.channels * s.padded
    kept = 4.0 * count * (steps + s.padded) * min(b.tiles, total)
    passes = -(-total // b.tiles)
    threads = machine.threads
    memory = weights / machine.stream + (passes - 1) * weights / (10 * machine.stream)
    spill = passes * kept / (8 * machine.stream) if kept > _CACHE else 0.0
    barriers = 0.0
    if threads > 1:
        shares, image = slowest(work_items(passes, threads=threads), threads), math.prod(s.x.shape) * s.x.dtype.bytes
        own = -(-passes // threads)  # every block reads all weights
        again = (own - 1) / (10 if weights < _CACHE else 2.5)
        memory = gathered(image, weights, threads, machine.stream, 1.0, again)
        if in_phases(s, b):
            memory = gathered(image, weights, threads, machine.stream, 1 / threads)
            shares = slowest(work_items(count, -(-outputs // b.vecs), threads=threads), threads)
            vectors = min(inputs // machine.lanes, outputs)
            transforms *= slowest(work_items(vectors, total, threads=threads), threads) / shares
            barriers = 2 * barrier(threads)
            spill += kept * (1 - 1 / threads) / EXCHANGED
        transforms, spill, products = transforms * shares, spill * shares, products * shares
    return transforms + spill + barriers + overlapped(products, memory)
