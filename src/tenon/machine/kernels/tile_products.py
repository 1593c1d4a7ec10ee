"""Convolution and matrix product by a matrix unit whose tiles are in registers of the processor (``isa.amx``).

The rows of a tile are neighbouring positions of a row of the image, or of a matrix, which a tap reads from another
place; ``kernels.tile_blocks`` has what follows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.tile_blocks import (
    CHANNELS,
    Clear,
    RegisterTiles,
    Store,
    TileContext,
    TileRows,
    end,
    float_ends,
    group,
    inside,
    integer_ends,
    pitch,
    runs_of,
    weight_params,
    word_type,
)
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

_WORDS = 16
"""Most words of a row of a tile."""


def unit_of(s: Conv, machine: Machine) -> ProductUnit | None:
    """The unit that multiplies the images and weights of a convolution in tiles of registers."""
    unit = machine.tiles(s.x.dtype)
    return unit if unit is not None and unit.weights is s.weights else None


def supported(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of whole words, into whole vectors or rows."""
    plain = s.y_step == (1, 1) and s.positions is None and s.packed and s.groups == 1 and s.taps > 0
    single = len(s.batches) == 1 and s.batches[0][1:] == (1, 1)
    if unit_of(s, machine) is None or not (plain and single) or s.paired:
        return False
    return s.x.block * s.x.dtype.bytes % 4 == 0 and (s.padded % CHANNELS == 0 or s.y.block == s.y.channels)


def words_of(s: Conv) -> int:
    """Words of a position that a step multiplies: as many as fit of which all steps have equally many."""
    words = max(1, s.x.block * s.x.dtype.bytes // 4)
    return next(n for n in range(min(_WORDS, words), 0, -1) if words % n == 0)


def steps_of(s: Conv) -> int:
    """Steps of a block: taps, and parts of the input channels."""
    return s.taps * s.x.blocks * (s.x.block * s.x.dtype.bytes // (4 * words_of(s)))


def block_of(s: Conv) -> int:
    """The channels of a block of the input that makes rows of tiles as long as they can be: a line of 64 bytes, or
    half of one or a fourth if there are no more channels.  Rows of matrices and first layers stay as they are."""
    if s.x.block in (1, 4, s.x.channels) or s.x.blocks == 1 == s.x.h == s.x.w:
        return s.x.block
    each, most = 4 * _WORDS // s.x.dtype.bytes, max(s.x.block, CHANNELS)
    while most < each and most < s.x.channels:
        most *= 2
    return max(s.x.block, most)


def reblocked(s: Conv) -> Conv:
    """The convolution of an image in the layout that it wants."""
    return replace(s, x=replace(s.x, block=block_of(s)))


def pack(weights: Array, s: Conv, tile: RegisterTiles) -> list[Array]:
    """Words of i32 [blocks][steps][tiles of channels][words][16] for every run of ``runs``, from weights [channels out,
    channels in, kh, kw]."""
    out, channels, kh, kw = weights.shape
    tiles = -(-s.padded // CHANNELS)
    whole = np.zeros((tiles * CHANNELS, s.x.blocks * s.x.block, kh, kw), s.weights.numpy)
    whole[:out, :channels] = weights
    words, each = words_of(s), 4 // s.weights.bytes
    split = whole.reshape(tiles, CHANNELS, -1, words, each, kh, kw).transpose(0, 2, 5, 6, 3, 1, 4)
    lying = np.ascontiguousarray(split).view(np.int32).reshape(tiles, -1, words, CHANNELS)
    return in_runs(lying, s, tile)


def in_runs(tiles: Array, s: Conv, tile: RegisterTiles) -> list[Array]:
    """[blocks][steps][tiles of channels][words][16] for every run, from [tiles of channels][steps][words][16]."""
    packed = []
    for run in runs_of(s, tile.across):
        own = tiles[run.first : run.first + run.count * run.across].reshape(run.count, run.across, *tiles.shape[1:])
        packed.append(np.ascontiguousarray(own.swapaxes(1, 2)))
    return packed


@lru_cache(maxsize=512)
def tile_products(s: Conv, machine: Machine, tile: RegisterTiles) -> Kernel:
    """Parameters: x, the packed weights of each run, bias (padded), mask when ``clear``, operands, y."""
    k = Builder(f"tiles_{name_of(s)}", f"{described(s)}; {about(tile)}")
    factors = _factors(k, s, tile, word_type(s.x.dtype))
    return _blocks(k, s, machine, tile, factors, float_ends(k, s))


@lru_cache(maxsize=512)
def integer_tile_products(s: IntegerConv, machine: Machine, tile: RegisterTiles) -> Kernel:
    """Parameters: x, the packed weights of each run, bias in i32 (padded), rows of factors, mask when ``conv.clear``,
    operands, y."""
    c = s.conv
    k = Builder(f"integer_tiles_{name_of(c)}", f"{described(c)}, in integers; {about(tile)}")
    factors = _factors(k, c, tile, DType.Q8)
    return _blocks(k, c, machine, tile, factors, integer_ends(k, s))


def _factors(k: Builder, s: Conv, tile: RegisterTiles, dtype: DType) -> tuple[Tensor, list[Tensor]]:
    """The parameters x, whose rows and columns are one axis, and weights, both in words."""
    words = s.x.block * s.x.dtype.bytes // 4
    x = k.param("x", s.x.n, s.x.blocks, s.x.shape[2] * s.x.shape[3], words, dtype=dtype)
    return x, weight_params(k, s, tile, steps_of(s), words_of(s))


def _blocks(
    k: Builder,
    s: Conv,
    machine: Machine,
    tile: RegisterTiles,
    factors: tuple[Tensor, list[Tensor]],
    ends: tuple[Store, Clear],
) -> Kernel:
    unit, (x, ws), (store, clear) = unit_of(s, machine), factors, ends
    assert unit is not None
    p = TileContext(k, tile, unit, s.extent, pitch(s), store, clear=clear)
    with k.loop("n", s.y.n) as n:
        left = rows_of(s, x, n)
        for run, w in zip(runs_of(s, tile.across), ws, strict=True):
            each = inside(s, run)
            (outer, inner), rest = deal(run.count // each, each, threads=machine.threads)
            with k.loop("o", run.count // each, kind=outer) as block_of:
                with k.loop("u", each, kind=inner) as part:
                    number = block_of * each + part
                    channel = (number * run.across + run.first) * CHANNELS
                    group(p, left, (w, number), (n, channel, Index()), run, rest)
                end(k)
    return k.done()


def rows_of(s: Conv, x: Tensor, n: Index) -> TileRows:
    """The rows of tiles of an image."""
    position = s.x.block * s.x.dtype.bytes
    words, row = words_of(s), pitch(s) * position
    loops = (
        (s.x.blocks, s.x.shape[2] * row),
        (position // (4 * words), 4 * words),
        (s.kernel[0], s.dilation[0] * row),
        (s.kernel[1], s.dilation[1] * position),
    )

    def place(row: Index, col: Index) -> Index:
        down, right = s.x.top - s.top, s.x.left - s.left
        return (row * s.stride[0] + down) * pitch(s) + col * s.stride[1] + right

    def first(row: Index, col: Index) -> Operand:
        return x, (n, 0, place(row, col), 0)

    def word(row: Index, col: Index, turns: list[Index], q: Index) -> Expr:
        block, part, ky, kx = turns
        tap = ky * (s.dilation[0] * pitch(s)) + kx * s.dilation[1]
        return x[n, block, place(row, col) + tap, part * words + q]

    return TileRows(words, s.stride[1] * position, loops, first, word)


def name_of(s: Conv) -> str:
    """The part of a kernel's name that describes its convolution."""
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"{size}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}"


def about(tile: RegisterTiles) -> str:
    """The tiles, for comments in generated code."""
    return f"blocks of {tile.down} x {tile.across} tiles of {tile.rows} positions by {CHANNELS} channels"
