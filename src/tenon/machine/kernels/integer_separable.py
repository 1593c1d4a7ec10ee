"""A depthwise convolution of bytes and the 1x1 convolution of its result in one launch, requantised.

As ``separable_tiled``, of words: in each step of products a block computes the depthwise results of its positions for
some words of four channels, requantises them and puts them into shared memory, where the tiles of ``integer_staged``
multiply them.  Results are the same bits as those of two launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel
from tenon.machine.kernels import integer_depthwise_items, integer_staged
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.depthwise import DepthwiseTile
from tenon.machine.kernels.depthwise_items import source
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.group_copies import GroupContext, own_parts
from tenon.machine.kernels.group_tiles import Depth, about, in_words
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.integer_staged import WordTile
from tenon.machine.kernels.integer_tiled import by_words, byte_of, repeated, store, word_of
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.separable_tiled import columns_of, place_of_part, unrolled
from tenon.machine.kernels.tensor_staged import add_products
from tenon.network.graph.types import I32, DType


def supported(first: Conv, second: Conv, machine: Machine) -> bool:
    """Whether two layers can be computed so, if no weight has a zero point: channels of the depthwise one fill words,
    and its taps are unrolled."""
    layer = integer_depthwise_items.supported(first) and first.packed and not first.operands
    plain = first.y_step == (1, 1) and first.positions is None and unrolled(first, 1)
    whole = first.y.channels % FOUR == 0 and first.y.block == FOUR
    pointwise = second.kernel == second.stride == (1, 1) and not (second.top or second.left) and second.groups == 1
    same = second.x.dtype is first.y.dtype and second.x.channels == first.y.channels
    return layer and plain and whole and pointwise and same and integer_staged.supported(second, machine)


@lru_cache(maxsize=512)
def integer_separable(first: IntegerConv, second: IntegerConv, tile: WordTile, run: int) -> Kernel:
    """Parameters: x, the depthwise weights as ``integer_depthwise_items.pack`` returns them, its bias and rows of
    factors, the weights of the second as ``integer_staged.pack`` returns them, its bias, rows of factors, mask when
    ``conv.clear``, operands, y.  A thread computes ``run`` depthwise results of a row at once."""
    assert not first.weight_zero
    assert not second.weight_zero
    c, s = first.conv, in_words(second.conv)
    name = f"integer_separable{c.kernel[0]}x{c.kernel[1]}_{second.conv.x.channels}_{second.conv.y.channels}"
    k = Builder(
        f"{name}_{second.conv.y.h}x{second.conv.y.w}",
        f"Depthwise: {described(c)}, {run} positions of a thread at once; then {about(second.conv, tile, 'warp')}, in "
        "integers",
    )
    x = k.param("x", *c.x.shape[:-1], 1, dtype=I32)
    v = k.param("v", c.y.blocks, *c.kernel, dtype=I32)
    b = k.param("b", c.padded, dtype=I32)
    kinds = zip(first.single, first.row_types, strict=True)
    rows = [k.param("q", 1 if one else c.padded, dtype=dtype) for one, dtype in kinds]
    ends = IntegerEnds(k, first, b, rows, None, [], x)
    w = k.param("w", -(-s.padded // tile.n), Depth.of(s, tile.k).steps, tile.k * tile.n, dtype=I32)
    into = partial(store, IntegerEnds.params(k, second, y_words=by_words(second.conv)))
    unit = integer_staged.UNITS[second.conv.x.dtype]
    add_products(k, s, tile, unit, (x, w), into, staged=True, source=lambda p: _WordSource.of(p, first, run, v, ends))
    return k.done()


@dataclass(frozen=True, eq=False)
class _WordSource:
    """The depthwise results that a block multiplies in a step.  A part of a thread is ``run`` neighbouring positions of
    a row by a word of four channels, in ``words`` until they are stored."""

    p: GroupContext
    first: IntegerConv
    run: int
    x: Tensor
    w: Tensor
    ends: IntegerEnds
    words: Tensor

    @classmethod
    def of(cls, p: GroupContext, first: IntegerConv, run: int, w: Tensor, ends: IntegerEnds) -> _WordSource:
        turns = -(-p.depth.groups * p.tile.m // run // p.tile.threads)
        words = p.k.local("d", turns, run, dtype=I32)
        with p.k.unroll("e", turns) as e, p.k.unroll("q", run) as q:
            words[e, q] = 0
        return cls(p, first, run, p.x, w, ends, words)

    @property
    def each(self) -> int:
        """Parts of four channels."""
        return self.p.tile.m // self.run

    def load(self, step: Index) -> None:
        """Compute the results of a thread's parts; zeros past the last position and the last channel."""
        p, c = self.p, self.first.conv
        units = c.y.blocks
        with own_parts(p, p.depth.groups * self.each) as (e, part):
            block = step * p.depth.groups + part // self.each
            (image, row, col), within = place_of_part(p, c, self.run, part % self.each)
            for q in range(self.run):
                self.words[e, q] = 0
            with p.k.when(*within, *([units - 1 - block] if units % p.depth.groups else [])):
                sums = self.sums((image, block), (row, col))
                for q in range(self.run):
                    results: list[Expr] = []
                    for lane in range(FOUR):
                        channel = block * FOUR + lane
                        total = sums[q, lane] + self.ends.b[channel]
                        results.append(p.k.let("r", self.ends.result(channel, 1, total, [])))
                    self.words[e, q] = word_of(results)

    def sums(self, at: tuple[Index, Index], first: tuple[Index, Index]) -> Tensor:
        """The sums of ``run`` positions of the image and block ``at`` from ``first`` on: all loads are on their way
        before anything waits for one."""
        k, c, (_, block) = self.p.k, self.first.conv, at
        (height, width), columns = c.kernel, columns_of(c, self.run)
        elements = k.local("px", height, len(columns), dtype=I32)
        weights = k.local("pv", height, width, dtype=I32)
        acc = k.local("t", self.run, FOUR, dtype=I32)
        with k.unroll("ky", height) as ky:
            row = first[0] * c.stride[0] + ky * c.dilation[0]
            with k.unroll("j", len(columns)) as j:
                elements[ky, j] = self.element(at, row, first[1] * c.stride[1] + j * columns.step)
            with k.unroll("kx", width) as kx:
                weights[ky, kx] = self.w[block, ky, kx]
        for q in range(self.run):
            for lane in range(FOUR):
                acc[q, lane] = 0
        signed = c.x.dtype is DType.I8
        with k.unroll("ky", height) as ky:
            for lane in range(FOUR):
                values = {
                    col: k.let("x", byte_of(elements[ky, i], lane, signed=signed)) for i, col in enumerate(columns)
                }
                factors = [k.let("v", byte_of(weights[ky, i], lane)) for i in range(width)]
                for q in range(self.run):
                    total = acc[q, lane]
                    for i, factor in enumerate(factors):
                        total = total + values[q * c.stride[1] + i * c.dilation[1]] * factor
                    acc[q, lane] = total
        return acc

    def element(self, at: tuple[Index, Index], row: Index, col: Index) -> Expr:
        """A word of the image at a row and column counted from the start of the padding, the zero point beside it."""
        facts, where = source(self.first.conv, DepthwiseTile(1, 1), (*at, Index()), (row, col))
        return guarded(facts, self.x[where], repeated(self.first.fill))

    def store(self, stage: Index) -> None:
        """From registers to shared memory."""
        p = self.p
        with own_parts(p, p.depth.groups * self.each) as (e, part), p.k.unroll("q", self.run) as q:
            p.xs[p.x_place(stage, part // self.each, part % self.each * self.run + q)] = self.words[e, q]
