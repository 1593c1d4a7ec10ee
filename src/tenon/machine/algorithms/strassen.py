"""Strassen's algorithm: seven products of halves where the definition takes eight, in Winograd's variant.

See ``kernels.strassen``, which names the papers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Algorithm, Cost, Limits, Output, Problem, Scratch, Stage, Step, Weights
from tenon.machine.algorithms.direct import best_tiles
from tenon.machine.algorithms.estimate import gathered, overlapped, slowest, step_time
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.rows import LONGEST_PRODUCT
from tenon.machine.kernels.strassen import StrassenBlocking, down, odd, overhang, scratch, strassen, transform
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, Layout

_CACHE = 600_000
"""Most bytes of quarters: they should stay near the processor, and every thread has its own."""

ERROR = {1: 9e-6, 2: 1.9e-5}
"""The largest error over the RMS of the output, by levels: measured against float64 on random data, 3x3 over 128
channels (direct: 6e-6).  1x1 over 512 channels: 7e-6 and 1.2e-5 (direct: 4e-6)."""

_SHARES = 2
"""Threads that should find equally much to do."""

_SUM, _RESULT = 22.0, 5.0
"""Time to make the four sums of a vector of inputs, and to keep what becomes two vectors of results."""

_CODE = 30_000.0
"""Time until the code of a level, of which no other layer has a use, has arrived."""


_LEAST_POSITIONS = 64
"""Positions of an image of odd size below which 7/4 as many weights take longer to arrive than an eighth of the
products: 1x1 over 512 channels into 1024 at 7x7 takes 241 us in place of 204."""

MOST_ROWS = 8
"""Rows of a block at most in kernels that are cut short: the last block reaches up to one less beyond what is needed,
where zeros have to be."""

_LEAST_CHANNELS = 128
"""Channels of input and of output for which kernels that are cut short use the algorithm."""


@dataclass(frozen=True)
class Strassen(Algorithm):
    """Strassen's products, with levels, blocks and tiles of ``blocking``."""

    blocking: StrassenBlocking
    name: ClassVar[str] = "strassen"
    own_memory: ClassVar[bool] = True
    cut_alike: ClassVar[bool] = False
    offered: ClassVar[int] = 6

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """All in f32, channels that can be halved, and sums that need not be cut into blocks."""
        return len(problem) == 1 and divisible(problem[0], machine, 1) and problem[0].x.channels <= LONGEST_PRODUCT

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,) = problem
        return [cls(b) for b in best_blockings(s, machine, count, limits.strassen)]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(blocking_of(numbers))

    @property
    def numbers(self) -> Mapping[str, int]:
        return numbers_of(self.blocking)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.levels, self.blocking.groups, self.blocking.tile.vecs

    @property
    def numerics(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.levels

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,), levels = problem, self.blocking.levels
        weights = s.padded * s.taps * s.x.channels * s.weights.bytes
        return Cost(estimate(s, machine, self.blocking), weights * 7**levels // 4**levels)

    def error(self, problem: Problem, weights: Array | None) -> float:
        return ERROR[self.blocking.levels]

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """The last block may reach below the image."""
        (s,) = problem
        if not (over := overhang(s, self.blocking)):
            return x, y
        *before, (top, bottom), across = x.halo
        return replace(x, halo=(*before, (top, max(bottom, over)), across)), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), b = stages, self.blocking
        kernel = strassen(stage.conv, machine, b)
        packed = Weights(transform(stage.constant, stage.conv, machine, b))
        sizes = enumerate(map(math.prod, scratch(stage.conv, b)))
        own = [Scratch(f"quarters{i}", 4 * size, per_thread=True) for i, size in sizes]
        return [Step(kernel, (stage.left, packed, *stage.epilogue_args(), *own, Output()))]


def numbers_of(b: StrassenBlocking) -> Mapping[str, int]:
    """Parameters that set a blocking apart from others, by name."""
    tile = {"tile_rows": b.tile.rows, "tile_cols": b.tile.cols, "vecs": b.tile.vecs}
    return {"levels": b.levels, "rows": b.rows, "cols": b.cols, "groups": b.groups, **tile}


def blocking_of(numbers: Mapping[str, int]) -> StrassenBlocking:
    """The inverse of ``numbers_of``."""
    tile = OutputTile(numbers["tile_rows"], numbers["tile_cols"], numbers["vecs"])
    return StrassenBlocking(numbers["levels"], numbers["rows"], numbers["cols"], numbers["groups"], tile)


def worthwhile(inputs: int, outputs: int) -> bool:
    """Whether kernels that are cut short may use the algorithm: with fewer channels the zeros that have to be stored
    cost more than it saves."""
    return min(inputs, outputs) >= _LEAST_CHANNELS


def divisible(s: Conv, machine: Machine, levels: int) -> bool:
    """Whether a convolution can be computed by so many levels."""
    plain = s.y_step == (1, 1) and s.positions is None and s.groups == 1 and s.packed and not s.batch and s.taps > 0
    whole = s.x.block % machine.lanes == 0 and s.y.block % machine.lanes == 0
    single = {s.x.dtype, s.y.dtype, s.weights, *(i.dtype for i in s.operands)} == {F32}
    halves = s.x.channels % (s.x.block << levels) == 0 and (not levels or s.y.channels % (s.y.block << levels) == 0)
    return plain and whole and single and halves


def best_blockings(s: Conv, machine: Machine, count: int, most: int = 2, least: int = 1) -> list[StrassenBlocking]:
    """The ``count`` blockings with the least estimated time, best first, of ``least`` to ``most`` levels."""
    blockings = []
    if machine.cut_short and not worthwhile(s.x.channels, s.y.channels):
        most = 0
    for levels in range(least, most + 1):
        if divisible(s, machine, levels):
            for rows, cols in _blocks(s.extent, levels):
                if machine.cut_short and (rows % (1 << levels) or s.y.h % rows or (levels and rows > MOST_ROWS)):
                    continue  # halves of columns are not cut short
                for groups in (
                    g for g in _groups(machine) if s.y.channels % (g * s.y.block << levels) == 0 or g << levels == 1
                ):
                    blockings += _tiled(s, machine, StrassenBlocking(levels, rows, cols, groups, OutputTile(1, 1, 1)))
    return sorted(blockings, key=lambda b: estimate(s, machine, b))[:count]


def _groups(machine: Machine) -> tuple[int, ...]:
    """Into how many parts the output channels may be cut: each makes the sums of inputs for itself."""
    if machine.cut_short:
        return (1,)
    return (1, 2) if machine.threads <= 2 else (1, 2, 4, 8)


def _blocks(extent: tuple[int, int], levels: int) -> list[tuple[int, int]]:
    """Sizes of blocks that tile an image: whole rows, or part of a single one.  Where both numbers are odd, nothing can
    be halved, but for one more row below the image."""
    rows, cols = extent
    if rows == 1:
        return [(1, n) for n in range(2, cols + 1) if cols % n == 0]
    rows += rows * cols % 2 * (levels > 0)
    return [(n, cols) for n in range(1, rows + 1) if rows % n == 0]


def _tiled(s: Conv, machine: Machine, b: StrassenBlocking) -> list[StrassenBlocking]:
    """Blockings with good tiles; none where the quarters are too large, or two threads would not share evenly."""
    parts = s.y.n * down(s, b) * (s.y.w // b.cols) * b.groups
    uneven = machine.threads <= 2 and parts % 2 and parts < 4 * _SHARES
    if uneven or not b.divides or 4 * sum(map(math.prod, scratch(s, b))) > _CACHE:
        return []
    leaf = _leaf(s, b)
    vectors = leaf.padded // machine.lanes
    tiles = [t for t in best_tiles(leaf, machine, 100 if machine.cut_short else 12) if vectors % t.vecs == 0]
    if odd(s, b):
        if math.prod(s.extent) < _LEAST_POSITIONS:
            return []
        tiles = [t for t in tiles if t.rows == 1]
    return [replace(b, tile=t) for t in tiles if not machine.cut_short or _cuts_well(leaf, t)][:3]


def _cuts_well(leaf: Conv, tile: OutputTile) -> bool:
    """Whether columns can be cut short: tiles are alike, so that as many of them are needed of every intermediate
    result, and narrow."""
    whole = leaf.y.w % tile.cols == 0 and leaf.y.h % tile.rows == 0
    return whole and tile.cols <= max(2, leaf.y.w // 4)


def _leaf(s: Conv, b: StrassenBlocking) -> Conv:
    """An innermost product as a convolution."""
    rows, cols = b.extent(b.levels)
    x = Image(1, s.x.channels >> b.levels, rows, cols, s.x.block)
    y = Image(1, -(-s.y.channels // b.groups) >> b.levels, rows, cols, s.y.block)
    return Conv(x, y, kernel=s.kernel)


def estimate(s: Conv, machine: Machine, b: StrassenBlocking) -> float:
    """Time of the convolution, the unit being one multiply-add of a vector."""
    leaf, lanes = _leaf(s, b), machine.lanes
    iterations = leaf.padded // lanes // b.tile.vecs
    steps = leaf.taps * leaf.x.channels
    products = 0.0
    for _, rn, height in segments(leaf.y.h, b.tile.rows):
        for _, cn, width in segments(leaf.y.w, b.tile.cols):
            m = height * width
            products += iterations * rn * cn * (steps * step_time(m, b.tile.vecs, machine) + 4.0 * m * b.tile.vecs + 20)
    blocks = s.y.n * down(s, b) * (s.y.w // b.cols) * b.groups
    shapes = scratch(s, b)
    sums = sum(
        float(7 ** (i // 2)) * math.prod(shape[1:]) / lanes * (_RESULT if i % 2 else _SUM)
        for i, shape in enumerate(shapes)
    )
    weights = 4.0 * s.taps * s.x.channels * s.y.channels * 1.75**b.levels
    passes = blocks // b.groups
    again = 10 if weights < _CACHE else 2.5
    memory = weights / machine.stream + (passes - 1) * weights / (again * machine.stream)
    threads, shared = machine.threads, slowest(blocks, machine.threads)
    single = odd(s, b)
    if threads > 1:
        own = -(-blocks // threads)  # blocks of a thread: neighbours are of other parts of the weights, or all of one
        image = math.prod(s.x.shape) * s.x.dtype.bytes * min(b.groups, threads)
        parts, more = min(1.0, own / b.groups), (-(-own // b.groups) - 1) / again
        if single:
            parts = -(-own // down(s, b)) / b.groups
            more = parts * (min(own, down(s, b)) - 1) / again
        memory = gathered(image, weights, threads, machine.stream, parts, more)
    multiplied = float(7**b.levels) * products
    if single and (down(s, b) == 1 or b.groups % threads == 0):  # each thread has as many last rows
        multiplied -= 3 * products / (b.rows // 2) / down(s, b)
    time = overlapped(blocks * multiplied * shared, memory)
    return time + blocks * sums * machine.sums * shared + b.levels * _CODE
