"""First layers by a matrix unit with tiles in registers: the few channels of an image in patches.

The taps of a row of the kernel, of all channels, are copied side by side for every position of a row of the output, so
that they are one row of a tile.  A band of rows of the output, which all are cut into, has its patches in memory of the
thread.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, bitcast
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.machine import Machine
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
    integer_ends,
    runs_of,
    weight_params,
)
from tenon.machine.kernels.tile_products import about, in_runs, name_of
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

_LINE = 16
"""Most words of a patch: a cache line."""
_VECTOR = 8
"""Elements that are copied at once."""


def supported(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of blocks of one bf16, or of one word of bytes."""
    unit = machine.tiles(s.x.dtype)
    if unit is None or unit.weights is not s.weights or s.padded % CHANNELS or s.taps < 2 or not s.packed:
        return False
    plain = s.y_step == (1, 1) and s.positions is None and s.groups == 1 and s.dilation[1] == 1 and not s.batch
    plain = plain and s.x.dtype is not DType.F16
    few = s.x.block == (1 if s.x.dtype is DType.BF16 else 4) and (s.x.block == 1 or s.x.blocks == 1)
    return plain and few and not s.paired and words_of(s) <= _LINE


def _span(s: Conv) -> int:
    """Elements that are copied of a row of the kernel: of bf16 pairs, of bytes words."""
    return s.kernel[1] + s.kernel[1] % 2 if s.x.dtype is DType.BF16 else s.kernel[1]


def words_of(s: Conv) -> int:
    """Words of a patch."""
    return s.x.channels * _span(s) // 2 if s.x.dtype is DType.BF16 else _span(s)


def apart(s: Conv) -> int:
    """Words from one patch to the next: a part of a cache line, so that none lies in two."""
    return 1 << (words_of(s) - 1).bit_length()


def lines(s: Conv, rows: int) -> int:
    """Rows of the input that so many rows of the output read."""
    return (rows - 1) * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0] + 1


def patch_bytes(s: Conv, rows: int) -> int:
    """Bytes of the patches of so many rows of the output."""
    return lines(s, rows) * s.extent[1] * 4 * apart(s)


def pack(weights: Array, s: Conv, tile: RegisterTiles) -> list[Array]:
    """As ``tile_products.pack``; a step is a row of the kernel."""
    out, channels, kh, kw = weights.shape
    if s.x.dtype is DType.BF16:
        whole = np.zeros((s.padded, kh, channels, _span(s)), s.weights.numpy)
        whole[:out, :, :, :kw] = weights.transpose(0, 2, 1, 3)
    else:
        whole = np.zeros((s.padded, kh, kw, s.x.block), s.weights.numpy)
        whole[:out, :, :, :channels] = weights.transpose(0, 2, 3, 1)
    split = whole.reshape(s.padded // CHANNELS, CHANNELS, kh, words_of(s), -1).transpose(0, 2, 3, 1, 4)
    return in_runs(np.ascontiguousarray(split).view(np.int32)[..., 0], s, tile)


@lru_cache(maxsize=512)
def tile_patches(s: Conv, machine: Machine, tile: RegisterTiles, rows: int) -> Kernel:
    """Parameters: x, the packed weights of each run, the patches of ``rows`` rows of the output (scratch), bias
    (padded), mask when ``clear``, operands, y."""
    k = Builder(f"tile_patches_{name_of(s)}", f"{described(s)}; {about(tile)}, in patches")
    x = k.param("x", *s.x.shape[:-1], dtype=s.x.dtype)
    ws = weight_params(k, s, tile, s.kernel[0], words_of(s))
    patches = k.param("p", lines(s, rows), s.extent[1], 2 * apart(s), dtype=s.x.dtype, scratch=True)
    return _bands(k, s, machine, tile, (x, ws, patches), rows, float_ends(k, s))


@lru_cache(maxsize=512)
def integer_tile_patches(s: IntegerConv, machine: Machine, tile: RegisterTiles, rows: int) -> Kernel:
    """Parameters: as of ``tile_patches``, between the patches and y those of ``tile_blocks.integer_ends``."""
    c = s.conv
    k = Builder(f"integer_tile_patches_{name_of(c)}", f"{described(c)}, in integers; {about(tile)}, in patches")
    x = k.param("x", *c.x.shape[:-1], dtype=DType.Q8)
    ws = weight_params(k, c, tile, c.kernel[0], words_of(c))
    patches = k.param("p", lines(c, rows), c.extent[1], apart(c), dtype=DType.Q8, scratch=True)
    return _bands(k, c, machine, tile, (x, ws, patches), rows, integer_ends(k, s))


def _bands(
    k: Builder,
    s: Conv,
    machine: Machine,
    tile: RegisterTiles,
    memory: tuple[Tensor, list[Tensor], Tensor],
    rows: int,
    ends: tuple[Store, Clear],
) -> Kernel:
    unit, (x, ws, patches), (store, clear) = machine.tiles(s.x.dtype), memory, ends
    assert isinstance(unit, ProductUnit)
    left = _rows(s, patches)
    with k.loop("n", s.y.n) as n:
        p = TileContext(k, tile, unit, (rows, s.extent[1]), s.extent[1], store, clear=clear)
        with k.loop("i", s.extent[0] // rows, kind="parallel") as i:
            with k.outline(f"patches{rows}", f"the patches of {rows} rows"):
                _copy(k, s, (x, patches), (n, i * rows), rows)
            for run, w in zip(runs_of(s, tile.across), ws, strict=True):
                with k.loop("o", run.count) as o:
                    group(p, left, (w, o), (n, (o * run.across + run.first) * CHANNELS, i * rows), run)
            end(k)
    return k.done()


def _copy(k: Builder, s: Conv, memory: tuple[Tensor, Tensor], at: tuple[Index, Index], height: int) -> None:
    """The patches of ``height`` rows of the output from row ``at[1]`` on."""
    (x, patches), (n, first) = memory, at
    down, right = s.x.top - s.top, s.x.left - s.left
    with k.loop("l", lines(s, height)) as line, k.loop("c", s.x.blocks) as c, k.loop("j", s.extent[1]) as j:
        for start, count, lanes in lane_segments(_span(s), _VECTOR):
            for turn in range(count):
                tap = start + turn * lanes
                read = (n, c, first * s.stride[0] + line + down, j * s.stride[1] + (tap + right))
                value = Load(x.buffer, tuple(map(index, read)), Type(x.buffer.type.dtype, lanes))
                k.store(patches.buffer, (line, j, c * _span(s) + tap), value)


def _rows(s: Conv, patches: Tensor) -> TileRows:
    """The rows of tiles of patches."""
    row = s.extent[1] * 4 * apart(s)

    def first(row: Index, col: Index) -> Operand:
        return patches, (row * s.stride[0], col, 0)

    def word(row: Index, col: Index, turns: list[Index], q: Index) -> Expr:
        line = row * s.stride[0] + turns[0] * s.dilation[0]
        if s.x.dtype is not DType.BF16:
            return patches[line, col, q]
        return bitcast(Load(patches.buffer, (line, col, q * 2), Type(DType.BF16, 2)), DType.B2)

    return TileRows(words_of(s), 4 * apart(s), ((s.kernel[0], s.dilation[0] * row),), first, word)
