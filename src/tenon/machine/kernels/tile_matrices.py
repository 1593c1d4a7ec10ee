"""Products of two matrices that a run computes, by a matrix unit whose tiles are in registers (``isa.amx``).

The right factor is copied into the order in which tiles read weights, pairs of rows as words, and rows of the left one
are copied so that they end with whole words and begin at a cache line.  What lies beyond both is zero.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type, broadcast, cast, op
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.tile_blocks import (
    CHANNELS,
    RegisterTiles,
    TileContext,
    TileRun,
    end,
    float_ends,
    group,
    pitch,
    tile_runs,
)
from tenon.machine.kernels.tile_products import about, rows_of, steps_of, unit_of, words_of
from tenon.network.graph.types import I32, DType

_PAIRS = 16
"""Pairs of products of a step."""


def supported(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a product: of two matrices of the type that the unit multiplies."""
    rows = s.x.block == s.x.channels and s.y.block == s.y.channels and s.x.h == s.y.h == 1
    return not s.packed and s.x.dtype is DType.BF16 and unit_of(s, machine) is not None and rows and s.taps == 1


def padded(s: Conv) -> Conv:
    """The product with rows of the left factor of whole steps."""
    pairs = -(-s.x.channels // 2)
    width = 2 * (pairs if pairs <= _PAIRS else -(-pairs // _PAIRS) * _PAIRS)
    return replace(s, x=replace(s.x, channels=width, block=width))


@dataclass(frozen=True)
class PackedColumns:
    """The right factors in words, [matrices][blocks][steps][tiles of columns][words][16] for a run of columns."""

    matrices: int
    run: TileRun
    steps: int
    words: int

    @property
    def shape(self) -> tuple[int, ...]:
        """With the blocks of all matrices on one axis."""
        return self.matrices * self.run.count, self.steps, self.run.across, self.words, CHANNELS

    @property
    def nbytes(self) -> int:
        return 4 * self.matrices * self.run.count * self.steps * self.run.across * self.words * CHANNELS


def packed_columns(s: Conv, tile: RegisterTiles) -> list[PackedColumns]:
    """The buffers that ``tile_columns`` writes, one for every run of columns."""
    wide = padded(s)
    return [
        PackedColumns(s.matrices, run, steps_of(wide), words_of(wide)) for run in tile_runs(s.y.channels, tile.across)
    ]


@lru_cache(maxsize=128)
def tile_rows(s: Conv, machine: Machine) -> Kernel:
    """Parameters: x [matrices, rows, channels], and the rows with what they end with."""
    (n, rows, width), wide = (s.x.n, s.x.w, s.x.channels), padded(s).x.channels
    k = Builder(f"tile_rows_{n}x{rows}x{width}", f"Rows of {width} bf16 that end with {wide - width} zeros")
    x, y = k.param("x", n, rows, width, dtype=DType.U16), k.param("y", n, rows, wide, dtype=DType.U16, out=True)
    (matrices, each), _ = deal(n, rows, threads=machine.threads)
    with k.loop("n", n, kind=matrices) as i, k.loop("r", rows, kind=each) as row:
        for start, count, lanes in lane_segments(width, 2 * machine.lanes):
            with k.loop("v", count) as v:
                value = Load(x.buffer, (i, row, v * lanes + start), Type(DType.U16, lanes))
                k.store(y.buffer, (i, row, v * lanes + start), value)
        for start, count, lanes in lane_segments(wide - width, CHANNELS):
            with k.loop("v", count) as v:
                k.store(y.buffer, (i, row, v * lanes + (width + start)), _zeros(DType.U16, lanes))
    return k.done()


@lru_cache(maxsize=128)
def tile_columns(s: Conv, machine: Machine, tile: RegisterTiles, number: int) -> Kernel:
    """The run ``number`` of the columns of the right factors.  Parameters: w [matrices, rows, columns] of bf16, and
    the words."""
    packed = packed_columns(s, tile)[number]
    name = f"tile_columns{number}_{s.matrices}x{s.x.channels}x{s.y.channels}"
    k = Builder(name, f"Columns of [{s.matrices}, {s.x.channels}, {s.y.channels}] bf16 as pairs in tiles")
    w = k.param("w", s.matrices, s.x.channels, s.y.channels, dtype=DType.U16)
    y = k.param("y", *packed.shape, out=True, dtype=I32)
    run = packed.run
    (matrices, blocks), _ = deal(s.matrices, run.count, threads=machine.threads)
    loops = k.loop("m", s.matrices, kind=matrices), k.loop("o", run.count, kind=blocks), k.loop("a", run.across)
    with loops[0] as m, loops[1] as o, loops[2] as a:
        _columns(k, (w, y), packed, (m, o, a))
    return k.done()


def _columns(k: Builder, memory: tuple[Tensor, Tensor], packed: PackedColumns, at: tuple[Index, Index, Index]) -> None:
    """One tile of columns: whole pairs of rows, a last row alone, and nothing beyond these."""
    (w, y), (m, o, a), words = memory, at, packed.words
    channels, run = w.buffer.shape[1].const, packed.run
    column = (o * run.across + a + run.first) * CHANNELS

    def store(pair: Index, parts: int) -> None:
        place = (m * run.count + o, pair // words, a, pair % words)
        for start, count, lanes in lane_segments(run.stored if parts else CHANNELS, CHANNELS):
            for v in range(count):
                first = start + v * lanes
                value: Expr = broadcast(Const(0, Type(I32)), lanes)
                for part in range(parts):
                    read = tuple(map(index, (m, pair * 2 + part, column + first)))
                    half = cast(Load(w.buffer, read, Type(DType.U16, lanes)), I32)
                    value = op("or", value, half << 16) if part else half
                k.store(y.buffer, (*place, index(first)), value)
        for start, count, lanes in lane_segments(CHANNELS - run.stored if parts else 0, CHANNELS):
            for v in range(count):
                zero = broadcast(Const(0, Type(I32)), lanes)
                k.store(y.buffer, (*place, index(run.stored + start + v * lanes)), zero)

    whole = channels // 2
    with k.loop("q", whole) as q:
        store(q, 2)
    if channels % 2:
        store(index(whole), 1)
    beyond = packed.steps * words - -(-channels // 2)
    with k.loop("z", beyond) as z:
        store(z + -(-channels // 2), 0)


def _zeros(dtype: DType, lanes: int) -> Expr:
    return broadcast(Const(0, Type(dtype)), lanes)


@lru_cache(maxsize=128)
def tile_matrices(s: Conv, machine: Machine, tile: RegisterTiles) -> Kernel:
    """Parameters: the rows of ``tile_rows``, the words of ``tile_columns`` for each run, bias (padded), operands, y."""
    k = Builder(f"tiles_{s.y.n}x{s.y.w}x{s.x.channels}x{s.y.channels}", f"{described(s)}; {about(tile)}")
    wide, unit = padded(s), unit_of(s, machine)
    assert unit is not None
    columns = packed_columns(s, tile)
    x = k.param("x", wide.x.n, 1, wide.x.w, wide.x.channels // 2, dtype=DType.B2)
    ws = [k.param("w", *each.shape, dtype=DType.B2) for each in columns]
    p = TileContext(k, tile, unit, s.extent, pitch(s), float_ends(k, s)[0], ahead=False)
    with ExitStack() as stack:
        n = xn = wn = Index()
        for extent, x_step, w_step in s.batches:
            i = stack.enter_context(k.loop("n", extent))
            n, xn, wn = n * extent + i, xn + i * x_step, wn + i * w_step
        left = rows_of(wide, x, xn)
        for each, w in zip(columns, ws, strict=True):
            run = each.run
            (outer,), rest = deal(run.count, threads=machine.threads)
            with k.loop("o", run.count, kind=outer) as o:
                channel = (o * run.across + run.first) * CHANNELS
                group(p, left, (w, wn * run.count + o), (n, channel, Index()), run, rest)
                end(k)
    return k.done()
