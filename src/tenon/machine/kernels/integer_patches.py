"""Convolution of planes of f32, quantised as they are read, by a matrix unit: for images of few channels.

A block quantises the patch of the image that its positions read, once, into words of four channels in shared memory.
Instructions take their rows from there, pairs of neighbouring words: those of neighbouring positions overlap, and no
tap is copied again.  The numbers are those of a quantised image that lies in memory, and so are results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type
from tenon.machine.kernels import group_tiles, integer_staged
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.group_tiles import (
    around,
    in_pairs,
    in_rows_of_taps,
    in_words,
    name_of,
    past_quads,
)
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.integer_staged import UNITS, WORDS, WordTile
from tenon.machine.kernels.integer_tiled import as_words, by_words, store, word_of
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.quantize import nearest_integer
from tenon.machine.kernels.tensor_staged import M, N, in_rows
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

PAIRS = WORDS // 2
"""Pairs of neighbouring words of an instruction."""


@dataclass(frozen=True)
class PatchTile:
    """``rows`` rows of 16 positions by ``n`` channels of a block, a multiple of 16; a warp has ``own`` of the rows."""

    rows: int
    own: int
    n: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.own * 32

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.own * self.n // 2


@dataclass(frozen=True)
class ImagePatch:
    """The part of an image that a block reads: ``rows`` rows of ``pairs`` pairs of columns, each row ``apart`` pairs
    after the one before, by which threads that read two rows reach all banks; it has products in ``steps``
    instructions."""

    rows: int
    pairs: int
    apart: int
    steps: int

    @classmethod
    def of(cls, c: Conv, tile: PatchTile) -> ImagePatch:
        """For a layer in pairs of words."""
        height, width = c.kernel
        steps = -(-height * width // PAIRS)
        rows, pairs = (tile.rows - 1) * c.stride[0] + steps * PAIRS // width, (M - 1) * c.stride[1] + width
        return cls(rows, pairs, pairs + (PAIRS * 2 - pairs) % (PAIRS * 4) if width < PAIRS else pairs, steps)

    def shared(self, tile: PatchTile) -> int:
        """Bytes of shared memory of a block, but for bias and factors."""
        return 4 * (2 * self.rows * self.apart + self.steps * WORDS * tile.n)


def supported(s: Conv, machine: Machine) -> bool:
    """Whether a layer can be computed so, if its weights have the zero point 0: bytes in one word, an even stride, and
    rows of four or eight taps with those that ``in_rows_of_taps`` adds."""
    if not integer_staged.supported(s, machine) or s.x.blocks > 1 or s.taps == 1 or s.dilation != (1, 1):
        return False
    plain = s.y_step == (1, 1) and s.positions is None and s.y.block == FOUR
    c = paired(s)
    return plain and c.two_columns and c.kernel[1] in (PAIRS // 2, PAIRS)


def paired(s: Conv) -> Conv:
    """The layer in pairs of words, of an image that has all that taps read."""
    (top, bottom), (left, right) = around(in_rows_of_taps(s), 0), around(in_rows_of_taps(s), 1)
    right += -(left + s.x.w + right) % 2
    whole = replace(s, x=replace(s.x, top=top, bottom=bottom, left=left, right=right))
    return in_pairs(in_words(in_rows_of_taps(whole)))


def pack(weights: Array, s: IntegerConv, tile: PatchTile) -> Array:
    """[blocks of channels][instructions][n][8] of words, from bytes [channels out, channels in, kh, kw]."""
    step = WordTile(M, tile.n, WORDS, M, M)
    return in_rows(group_tiles.pack(as_words(weights, s), paired(s.conv), step), step, WORDS)


@lru_cache(maxsize=64)
def integer_patches(s: IntegerConv, tile: PatchTile) -> Kernel:
    """Parameters: planes in f32, weights as ``pack`` returns them, bias (padded), rows of factors, mask when
    ``conv.clear``, operands, y."""
    assert not s.weight_zero
    assert s.conv.image_scale
    c, x = paired(s.conv), s.conv.x
    patch = ImagePatch.of(c, tile)
    held = f"{tile.rows} x {M} positions x {tile.n} channels of a block, {tile.own} rows of a warp"
    k = Builder(f"integer_patches_{name_of(s.conv)}", f"{described(s.conv)} of planes of f32; {held}, in integers")
    planes = k.param("x", *Image(x.n, x.channels, x.h, x.w).shape[:4])
    w = k.param("w", -(-s.conv.padded // tile.n), patch.steps, WORDS * tile.n, dtype=I32)
    ends = IntegerEnds.params(k, s, y_words=by_words(s.conv))
    height, width = s.conv.extent
    with (
        k.loop("n", s.conv.y.n, kind="block") as image,
        k.loop("across", -(-s.conv.padded // tile.n), kind="block") as across,
        k.loop("down", -(-height // tile.rows), kind="block") as down,
        k.loop("right", -(-width // M), kind="block") as right,
    ):
        xs = k.local("xs", patch.rows, patch.apart, 2, dtype=I32, space="shared")
        ws = k.local("ws", patch.steps * WORDS * tile.n, dtype=I32, space="shared")
        own = _in_shared_memory(k, ends)
        with (
            k.loop("ty", tile.rows // tile.own, kind="thread") as ty,
            k.loop("g", 8, kind="thread") as group,
            k.loop("t", 4, kind="thread") as member,
        ):
            warp = ty if tile.rows > tile.own else Index()
            p = PatchContext(
                k, s, c, tile, patch, planes, w, xs, ws, own, (image, across, down, right), warp, group, member
            )
            p.copy_weights(ends)
            p.quantise_patch()
            k.wait(0)
            k.barrier()
            p.store_results(p.products())
    return k.done()


def _in_shared_memory(k: Builder, ends: IntegerEnds) -> IntegerEnds:
    """The same with the bias, and rows of a factor for each channel, in shared memory."""
    own = [
        k.local("s", ends.s.conv.padded, dtype=each.buffer.type.dtype, space="shared") if several else each
        for each, several in zip((ends.b, *ends.rows), (True, *(not one for one in ends.s.single)), strict=True)
    ]
    return replace(ends, b=own[0], rows=own[1:])


@dataclass(frozen=True, eq=False)
class PatchContext:
    """A thread of a block; ``c`` is the layer in pairs of words, and ``block`` its image, channels, rows and
    columns."""

    k: Builder
    s: IntegerConv
    c: Conv
    tile: PatchTile
    patch: ImagePatch
    x: Tensor
    w: Tensor
    xs: Tensor
    ws: Tensor
    ends: IntegerEnds
    block: tuple[Index, Index, Index, Index]
    warp: Index
    group: Index
    member: Index

    @contextmanager
    def own_parts(self, parts: int) -> Iterator[tuple[Index, Index]]:
        """A thread's share of so many parts: (number among its own, number)."""
        threads = self.tile.threads
        thread = self.warp * 32 + self.group * 4 + self.member
        with self.k.unroll("e", -(-parts // threads)) as e:
            part = thread + e * threads
            with self.k.when(*([parts - 1 - part] if parts % threads else [])):
                yield e, part

    def copy_weights(self, ends: IntegerEnds) -> None:
        """Copy the weights of the block's channels, asynchronously, and what turns sums into results, which threads
        would wait for after each store."""
        each, across = WORDS * self.tile.n, self.block[1]
        with self.own_parts(self.patch.steps * each // FOUR) as (_, part):
            first = part * FOUR
            value = Load(self.w.buffer, (across, first // each, first % each), Type(I32, FOUR))
            self.k.copy(self.ws.buffer, (first,), value)
        for source, target in zip((ends.b, *ends.rows), (self.ends.b, *self.ends.rows), strict=True):
            if target is not source:
                with self.own_parts(self.s.conv.padded // FOUR) as (_, part):
                    value = Load(source.buffer, (part * FOUR,), Type(source.buffer.type.dtype, FOUR))
                    self.k.copy(target.buffer, (part * FOUR,), value)
        self.k.commit()

    def quantise_patch(self) -> None:
        """Quantise pairs of neighbouring columns; zeros beside the image become its zero point.  All loads are on their
        way before anything waits for one."""
        k, channels, pairs = self.k, self.s.conv.x.channels, self.patch.pairs
        parts = self.patch.rows * pairs
        elements = k.local("px", -(-parts // self.tile.threads), 2, channels)
        if parts % self.tile.threads:
            with (
                k.unroll("e", elements.buffer.shape[0].const) as e,
                k.unroll("f", 2) as f,
                k.unroll("c", channels) as c,
            ):
                elements[e, f, c] = 0.0
        with self.own_parts(parts) as (e, part):
            for column in range(2):
                for channel in range(channels):
                    value = self.element(channel, part // pairs, part % pairs * 2 + column)
                    elements[e, Index((), column), Index((), channel)] = value
        with self.own_parts(parts) as (e, part):
            for column in range(2):
                bytes: list[Expr] = [k.let("v", self.quantised(elements[e, column, each])) for each in range(channels)]
                word = word_of([*bytes, *[Const(0, Type(I32))] * (FOUR - channels)])
                self.xs[part // pairs, part % pairs, column] = word

    def element(self, channel: int, row: Index, col: Index) -> Expr:
        """An element of the patch, zero beside the image."""
        s, (image, _, down, right) = self.s.conv, self.block
        row = down * (self.tile.rows * s.stride[0]) + row - s.top
        col = right * (M * s.stride[1]) + col - s.left
        facts = (row, s.x.h - 1 - row, col, s.x.w - 1 - col)
        where = image, Index((), channel), row, col
        return guarded(facts, Load(self.x.buffer, where, Type(F32)), 0.0)

    def quantised(self, value: Expr) -> Expr:
        """The integer of a number."""
        scale, least = np.float32(self.s.conv.image_scale), -128 if self.s.conv.x.dtype is DType.I8 else 0
        zero, divisor, inverse = (
            Const(self.s.fill, Type(I32)),
            *(Const(float(n), Type(F32)) for n in (scale, 1 / scale)),
        )
        return nearest_integer(value, (zero, divisor, inverse), (least, least + 255))

    def products(self) -> Tensor:
        """The sums of a thread's results."""
        k, tile, unit = self.k, self.tile, UNITS[self.s.conv.x.dtype]
        (down, right), width, (g, t) = self.c.stride, self.c.kernel[1], (self.group, self.member)
        acc = k.local("a", tile.own, tile.n // N, 4, dtype=I32)
        with k.unroll("i", tile.own) as i, k.unroll("j", tile.n // N) as j, k.unroll("c", 4) as c:
            acc[i, j, c] = 0

        def place(line: int, step: Index, pair: Index, position: Index) -> tuple[Index, Index]:
            """Where a pair of an instruction lies that a position of a row reads."""
            row, col = (step, pair) if width == PAIRS else (step * (PAIRS // width) + pair // width, pair % width)
            return (self.warp * tile.own + line) * down + row, position * right + col

        with k.loop("d", self.patch.steps) as d:
            for line in range(tile.own):
                for cell in range(tile.n // N):
                    column = d * tile.n + cell * N
                    operands: list[Operand] = [(self.xs, (*place(line, d, t, g + 8 * half), 0)) for half in range(2)]
                    operands += [(self.ws, ((column + g) * WORDS + t * 2,))]
                    operands += [(acc, (Index((), line), Index((), cell), Index((), c))) for c in range(4)]
                    with k.instruction(unit.operation, operands), k.loop("e", WORDS) as e:
                        for sum in range(4):
                            left = self.xs[*place(line, d, e // 2, g + sum // 2 * 8), e % 2]
                            weight = self.ws[(column + t * 2 + sum % 2) * WORDS + e]
                            acc[line, cell, sum] = unit.product(acc[line, cell, sum], left, weight)
        return acc

    def store_results(self, acc: Tensor) -> None:
        """Store four channels of a position at a time."""
        k, tile, (height, width) = self.k, self.tile, self.s.conv.extent
        image, across, down, right = self.block
        with k.unroll("i", tile.own) as i, k.unroll("h", 2) as half, k.unroll("j", tile.n // (2 * N)) as j:
            row = down * tile.rows + self.warp * tile.own + i
            col = right * M + half * 8 + self.group
            quad = across * (tile.n // FOUR) + j * 4 + self.member
            facts = [height - 1 - row] * (height % tile.rows > 0) + [width - 1 - col] * (width % M > 0)
            with k.when(*facts, *past_quads(self.s.conv, quad, tile.n)):
                sums = [acc[i, j * 2 + b, half * 2 + e] for b in range(2) for e in range(2)]
                store(self.ends, (image, row, col), quad, sums)
