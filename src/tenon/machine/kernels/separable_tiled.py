"""A depthwise convolution and the 1x1 convolution of its result in one launch: tiles in work groups.

In each step of products (``group_copies``) a block computes the depthwise results of its positions for a few channels
into shared memory, where the tiles of ``tiled`` and ``tensor_staged`` multiply them: the image between the two is not
in memory.  Blocks of other output channels of the same positions compute it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, lanes_of, vector4
from tenon.machine.kernels import tensor_staged, tiled
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.depthwise import DepthwiseTile, reach
from tenon.machine.kernels.depthwise_items import source
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.group_copies import GroupContext, Store, group_context, in_steps, own_parts, store_results
from tenon.machine.kernels.group_tiles import Depth, GroupTile, about, positions, wide
from tenon.machine.kernels.storage_types import NARROW, loaded, stored
from tenon.machine.kernels.tensor_staged import StagedTile
from tenon.network.graph.types import F32

UNROLLED = 256
"""Most multiply-adds of a thread that are unrolled."""


def supported(first: Conv, second: Conv) -> bool:
    """Whether two layers can be computed so: a depthwise convolution of floats in blocks of four channels, and a 1x1
    convolution of its result, without padding lanes that are not zero."""
    floats = {first.x.dtype, first.y.dtype, first.weights, second.x.dtype} <= {F32, *NARROW}
    layer = first.depthwise and first.taps > 0 and first.packed and not first.operands and not first.clear
    plain = first.y_step == (1, 1) and first.positions is None
    pointwise = second.kernel == second.stride == (1, 1) and not (second.top or second.left)
    same = second.x.block == first.x.block == FOUR and second.x.channels == first.y.channels
    able = tiled.supported(second) and second.packed and wide(second) == FOUR
    return floats and layer and plain and pointwise and same and able


def runs_of(first: Conv) -> list[int]:
    """How many neighbouring positions of a row a thread may compute at once."""
    able = (n for n in (2, 4) if first.extent[1] % n == 0 and unrolled(first, n))
    return [1, *(n for n in able if list(columns_of(first, n)) == [col for col, _ in reach(first, 1, n)])]


def unrolled(first: Conv, run: int) -> bool:
    """Whether taps are unrolled, so that an element is loaded once for all positions that it touches."""
    return run * FOUR * first.taps <= UNROLLED


def columns_of(first: Conv, run: int) -> range:
    """The columns of the image that neighbouring positions read, counted from the first, where they are evenly
    spaced."""
    read = [col for col, _ in reach(first, 1, run)]
    step = read[1] - read[0] if len(read) > 1 else 1
    return range(0, read[-1] + 1, step)


@lru_cache(maxsize=512)
def separable_tiled(first: Conv, second: Conv, tile: GroupTile, run: int) -> Kernel:
    """Parameters: x, the depthwise weights as ``depthwise.pack_blocks`` returns them for blocks of four, its bias
    (padded), the weights of the second as ``group_tiles.pack`` returns them, its bias (padded), mask when ``clear``,
    operands, y."""
    k = _builder(first, second, tile, run, "thread")
    depthwise, w, into = _parameters(k, first, second, tile)
    with group_context(k, second, tile, depthwise.x, w) as p:
        acc = k.local("a", tile.rows, tile.cols)
        with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols) as j:
            acc[i, j] = 0.0
        in_steps(p, lambda stage: tiled.multiply(p, acc, stage), _DepthwiseSource.of(p, first, run, depthwise))
        store_results(p, acc, into)
    return k.done()


@lru_cache(maxsize=512)
def separable_staged(first: Conv, second: Conv, tile: StagedTile, run: int) -> Kernel:
    """The same by a matrix unit; the weights of the second as ``tensor_staged.pack`` returns them."""
    k = _builder(first, second, tile, run, "warp")
    depthwise, w, into = _parameters(k, first, second, tile)
    tensor_staged.add_products(
        k,
        second,
        tile,
        tensor_staged.UNITS[second.x.dtype],
        (depthwise.x, w),
        into,
        staged=True,
        source=lambda p: _DepthwiseSource.of(p, first, run, depthwise),
    )
    return k.done()


def _builder(first: Conv, second: Conv, tile: GroupTile, run: int, owner: str) -> Builder:
    name = f"separable{first.kernel[0]}x{first.kernel[1]}_{second.x.channels}_{second.y.channels}"
    return Builder(
        f"{name}_{second.y.h}x{second.y.w}",
        f"Depthwise: {described(first)}, {run} positions of a thread at once; then {about(second, tile, owner)}",
    )


@dataclass(frozen=True, eq=False)
class _DepthwiseParameters:
    x: Tensor
    w: Tensor
    bias: Tensor | None


def _parameters(k: Builder, first: Conv, second: Conv, tile: GroupTile) -> tuple[_DepthwiseParameters, Tensor, Store]:
    """Declare the operands of the depthwise convolution, the weights of the second, and what takes its sums."""
    x = k.param("x", *first.x.shape, dtype=first.x.dtype)
    v = k.param("v", first.y.blocks, *first.kernel, FOUR, dtype=first.weights)
    depthwise = _DepthwiseParameters(x, v, k.param("b", first.padded) if first.bias else None)
    packed = -(-second.padded // tile.n), Depth.of(second, tile.k).steps, tile.k * tile.n
    w = k.param("w", *packed, dtype=second.weights)
    return depthwise, w, tiled.FloatStore(k, second, tiled.Ends.params(k, second))


@dataclass(frozen=True, eq=False)
class _DepthwiseSource:
    """The depthwise results that a block multiplies in a step.  A part of a thread is ``run`` neighbouring positions of
    a row by four channels, in ``sums`` until they are stored."""

    p: GroupContext
    first: Conv
    run: int
    depthwise: _DepthwiseParameters
    sums: Tensor

    @classmethod
    def of(cls, p: GroupContext, first: Conv, run: int, depthwise: _DepthwiseParameters) -> _DepthwiseSource:
        parts = p.depth.groups * p.tile.m // run
        sums = p.k.local("d", -(-parts // p.tile.threads), run, FOUR)
        if parts % p.tile.threads:  # threads without a part in the last turn
            with p.k.unroll("e", -(-parts // p.tile.threads)) as e:
                for q, lane in _elements(run):
                    sums[e, q, lane] = 0.0
        return cls(p, first, run, depthwise, sums)

    @property
    def parts(self) -> int:
        return self.p.depth.groups * self.each

    @property
    def each(self) -> int:
        """Parts of four channels."""
        return self.p.tile.m // self.run

    def load(self, step: Index) -> None:
        """Compute the results of a thread's parts; zeros past the last position and the last channel."""
        units = self.first.y.blocks
        with own_parts(self.p, self.parts) as (e, part):
            block = step * self.p.depth.groups + part // self.each
            (image, row, col), within = place_of_part(self.p, self.first, self.run, part % self.each)
            facts = [*within, *([units - 1 - block] if units % self.p.depth.groups else [])]
            for q, lane in _elements(self.run):
                self.sums[e, q, lane] = 0.0
            with self.p.k.when(*facts):
                b = self.depthwise.bias
                bias = None if b is None else lanes_of(self.p.k.let("b", b.vec(FOUR)[block]))
                add = self.add_unrolled if unrolled(self.first, self.run) else self.add_looped
                add(e, (image, block), (row, col))
                for q, lane in _elements(self.run):
                    total = self.sums[e, q, lane]
                    self.sums[e, q, lane] = self.first.epilogue(total if bias is None else total + bias[lane])

    def add_unrolled(self, e: Index, at: tuple[Index, Index], first: tuple[Index, Index]) -> None:
        """Compute a part of the image and block ``at``, whose first position is ``first``: all loads are on their way
        before anything waits for one."""
        k, s, (_, block) = self.p.k, self.first, at
        (height, width), columns = s.kernel, columns_of(s, self.run)
        elements = k.local("px", height, len(columns), dtype=s.x.dtype, lanes=FOUR)
        weights = k.local("pv", height, width, dtype=s.weights, lanes=FOUR)
        with k.unroll("ky", height) as ky:
            row = first[0] * s.stride[0] + ky * s.dilation[0]
            with k.unroll("j", len(columns)) as j:
                elements[ky, j] = self.element(at, row, first[1] * s.stride[1] + j * columns.step)
            with k.unroll("kx", width) as kx:
                weights[ky, kx] = self.weights(block, ky, kx)
        with k.unroll("ky", height) as ky:
            values = {col: lanes_of(k.let("x", loaded(elements[ky, i]))) for i, col in enumerate(columns)}
            factors = [lanes_of(k.let("v", loaded(weights[ky, i]))) for i in range(width)]
            for q, lane in _elements(self.run):
                total = self.sums[e, q, lane]
                for i, factor in enumerate(factors):
                    total = total + values[q * s.stride[1] + i * s.dilation[1]][lane] * factor[lane]
                self.sums[e, q, lane] = total

    def add_looped(self, e: Index, at: tuple[Index, Index], first: tuple[Index, Index]) -> None:
        """The same for one position, tap by tap."""
        k, s, (_, block) = self.p.k, self.first, at
        with k.loop("ky", s.kernel[0]) as ky, k.loop("kx", s.kernel[1]) as kx:
            row, col = (
                origin * step + tap * apart
                for origin, step, tap, apart in zip(first, s.stride, (ky, kx), s.dilation, strict=True)
            )
            value = lanes_of(k.let("x", loaded(self.element(at, row, col))))
            weights = lanes_of(k.let("v", loaded(self.weights(block, ky, kx))))
            for lane in range(FOUR):
                self.sums[e, 0, lane] = self.sums[e, 0, lane] + value[lane] * weights[lane]

    def element(self, at: tuple[Index, Index], row: Index, col: Index) -> Expr:
        """Four channels of the image at a row and column counted from the start of the padding, zeros beside it."""
        facts, where = source(self.first, DepthwiseTile(1, 1), (*at, Index()), (row, col))
        return guarded(facts, Load(self.depthwise.x.buffer, where, Type(self.first.x.dtype, FOUR)), 0.0)

    def weights(self, block: Index, ky: Index, kx: Index) -> Expr:
        return Load(self.depthwise.w.buffer, (block, ky, kx, Index()), Type(self.first.weights, FOUR))

    def store(self, stage: Index) -> None:
        """From registers to shared memory."""
        p = self.p
        with own_parts(p, self.parts) as (e, part), p.k.unroll("q", self.run) as q:
            values = [stored(self.sums[e, q, lane], p.dtype) for lane in range(FOUR)]
            where = p.x_place(stage, part // self.each, part % self.each * self.run + q)
            p.k.store(p.xs.buffer, where, vector4(*values))


def place_of_part(
    p: GroupContext, first: Conv, run: int, number: Index
) -> tuple[tuple[Index, Index, Index], list[Index]]:
    """The image, row and column of the first of ``run`` positions of a part of the block's, and what is negative past
    the last part."""
    height, width, each = first.extent[0], first.extent[1] // run, p.tile.m // run
    total = positions(p.s) // run
    at = p.down * each + number
    line = at // width
    image, row = (line // height, line % height) if first.y.n > 1 else (Index(), line)
    return (image, row, at % width * run), [total - 1 - at] if total % each else []


def _elements(run: int) -> Iterator[tuple[int, int]]:
    return ((q, lane) for q in range(run) for lane in range(FOUR))
