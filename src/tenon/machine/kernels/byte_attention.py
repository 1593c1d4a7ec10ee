"""Attention of 8-bit integers on processors that multiply bytes four at a time: both products and the softmax between
them for blocks of queries, whose scores stay in the cache.

Results are those of ``integer_matmul_words``, ``lookup``, ``byte_softmax`` and ``integer_matmul_words`` one after the
other.  Scores are rounded to bytes, so that a row of them is known as a whole before its softmax: no online softmax is
needed, and a block has all keys.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type, bitcast, broadcast
from tenon.machine.kernels.byte_softmax import ByteSoftmax, SoftmaxTables
from tenon.machine.kernels.conv import OutputTile, runs
from tenon.machine.kernels.integer_matmul import IntegerMatMul, Results, requantised
from tenon.machine.kernels.integer_matmul_words import (
    ProductRows,
    Words,
    applies,
    less_of_row,
    product_tile,
    right_params,
)
from tenon.machine.kernels.lookup import CODES, lowest
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal, enough
from tenon.network.graph.types import I32, DType

_ROWS = 96
"""Most queries of a block: more would gain nothing."""

_CACHED = 1 << 17
"""Bytes of scores of a block, which should stay in the second cache with the keys and values of a head."""


@dataclass(frozen=True)
class ByteAttention:
    """Products ``scores`` of queries and keys, whose bytes a table replaces if ``recoded``, their softmax, and products
    ``values`` of that and the values.

    ``floor`` is the byte that the softmax gets for ``LEAST`` as a sum, where no other byte is below it.
    """

    scores: IntegerMatMul
    softmax: ByteSoftmax
    values: IntegerMatMul
    recoded: bool
    floor: int | None = None

    @property
    def keys(self) -> int:
        return self.scores.size[2]


def first_product(s: ByteAttention, machine: Machine) -> Words:
    """The product of queries and keys: of whole vectors of keys, where those beyond the last get the least score."""
    words = Words(s.scores, machine)
    return replace(words, filled=s.floor is not None and words.offsets[0])


def supported(s: ByteAttention, machine: Machine) -> bool:
    """Whether a machine computes it so."""
    both = applies(s.scores, machine) and applies(s.values, machine)
    alike = s.scores.to is s.softmax.dtype is s.softmax.stage.dtype is s.values.dtypes[0]
    outer = [[extent for extent, *_ in each.batch] for each in (s.scores, s.values)]
    rows = s.values.matrices[0] == s.scores.products and outer[0] == outer[1]
    return both and alike and rows and machine.launch is None and machine.own_memory


@dataclass(frozen=True)
class AttentionBlocks:
    """Blocks of ``rows`` queries, whose scores have ``width`` bytes each, and the tiles of both products."""

    rows: int
    width: int
    tiles: tuple[OutputTile, OutputTile]


def blocks_of(s: ByteAttention, machine: Machine, tiles: tuple[OutputTile, OutputTile]) -> AttentionBlocks:
    """As many queries as fit the cache, whole tiles of them, and blocks for all threads."""
    queries, width = s.scores.size[0], -(-s.keys // 64) * 64
    step = max(tile.cols for tile in tiles)
    most = min(_ROWS, max(step, _CACHED // width))
    if machine.threads > 1:
        most = min(most, max(step, queries * s.scores.products // enough(machine.threads)))
    blocks = math.ceil(queries / max(step, most // step * step))
    return AttentionBlocks(min(queries, math.ceil(queries / blocks / step) * step), width, tiles)


def scratch_shapes(s: ByteAttention, blocks: AttentionBlocks) -> list[tuple[str, tuple[int, int]]]:
    """The memory of a thread, in bytes: scores, and the results of every row by distance.  Whole blocks of queries and
    the rest of them have parameters of their own, which may be the same memory."""
    heights = [height for _, _, height in segments(s.scores.size[0], blocks.rows)]
    return [each for rows in heights for each in (("codes", (rows, blocks.width)), ("ends", (rows, CODES)))]


@lru_cache(maxsize=128)
def byte_attention(s: ByteAttention, machine: Machine, tiles: tuple[OutputTile, OutputTile]) -> Kernel:
    """Parameters: the queries in words; panels of keys (``right_params``), sums of rows where they are needed; tables
    of the softmax, if ``recoded`` the table of scores; panels of values (``right_params``); memory of a thread for
    scores and for results by distance; y."""
    first, second, blocks = first_product(s, machine), Words(s.values, machine), blocks_of(s, machine, tiles)
    m, deep, n = s.scores.size
    k = Builder(
        f"byte_attention_{s.scores.products}x{m}x{n}x{deep}",
        f"Attention of {s.scores.products} heads in bytes: {m} queries, {blocks.rows} at a time, {n} keys of {deep}",
    )
    a = k.param("a", *first.rows, dtype=DType.Q8)
    keys = right_params(k, first)
    sums = k.param("s", *first.rows[:2], dtype=I32) if first.offsets[1] else None
    tables = SoftmaxTables.of(k, s.softmax, machine)
    recoding = k.param("r", CODES, dtype=s.scores.to) if s.recoded else None
    values = right_params(k, second)
    room = [
        k.param(name, *shape, dtype=s.scores.to if name == "codes" else DType.U8, scratch=True)
        for name, shape in scratch_shapes(s, blocks)
    ]
    y = Results.of(k, s.values)
    outer = [extent for extent, _, _ in s.scores.batch]
    parts = segments(m, blocks.rows)
    kinds, inside = deal(*outer, threads=machine.threads)
    with ExitStack() as stack:
        own = key = value = row = index(0)
        for kind, (extent, of_own, of_key), (_, _, of_value) in zip(kinds, s.scores.batch, s.values.batch, strict=True):
            i = stack.enter_context(k.loop("i", extent, kind=kind))
            own, key, value, row = own + i * of_own, key + i * of_key, value + i * of_value, row * extent + i
        for start, count, height in parts:
            codes, ends = room.pop(0), room.pop(0)
            with k.loop("j", count, kind=inside) as j:
                top = j * height + start

                def query(r: Index, number: Index, top: Index = top) -> Expr:
                    return a[own, top + r, number]

                def less(r: Index, top: Index = top) -> Expr:
                    assert sums is not None
                    return sums[own, top + r]

                def store_code(r: Index, column: Index, lanes: int, total: Expr, codes: Tensor = codes) -> None:
                    codes.vec(lanes)[r, column // lanes] = requantised(s.scores, total)

                scores = ProductRows(k, first, query, *keys, None if sums is None else less, store_code)
                n = _counted(s, first, tables)
                if n > first.columns:
                    _fill(k, codes, height, (n, tables.entries))
                _product(scores, blocks.tiles[0], key, height)
                totals = _softmax(k, s, tables, recoding, (codes, ends), (height, n, second))

                def share(r: Index, number: Index, codes: Tensor = codes) -> Expr:
                    return bitcast(Load(codes.buffer, (r, number * 4), Type(codes.buffer.type.dtype, 4)), I32)

                def store(r: Index, column: Index, lanes: int, total: Expr, top: Index = top) -> None:
                    y.store(row * m + (top + r), column, lanes, total)

                total = None if totals is None else lambda r, totals=totals: totals[r]
                _product(ProductRows(k, second, share, *values, total, store), blocks.tiles[1], value, height)
    return k.done()


def _product(t: ProductRows, tile: OutputTile, matrix: Index, rows: int) -> None:
    """All columns of a block of rows."""
    k, p = t.k, t.p
    for r in runs(p.conv, p.machine, tile.vecs):
        with k.loop("o", r.iterations) as o:
            for start, count, height in segments(rows, tile.cols):
                with (
                    k.loop("u", count) as u,
                    k.outline(f"{height}x{r.vecs}v{r.lanes}", f"{height} rows by {r.width} columns"),
                ):
                    product_tile(t, r, matrix, (o * r.width + r.start, u * height + start), height)


def _counted(s: ByteAttention, p: Words, tables: SoftmaxTables) -> int:
    """Elements of a row of scores that the softmax takes."""
    return -(-s.keys // tables.entries) * tables.entries if p.filled and tables.entries else s.keys


def _fill(k: Builder, codes: Tensor, rows: int, end: tuple[int, int]) -> None:
    """The least score in the last vector of each row, whose end and length ``end`` has."""
    n, lanes = end
    dtype = codes.buffer.type.dtype
    with k.loop("r", rows) as r:
        codes.vec(lanes)[r, n // lanes - 1] = broadcast(Const(lowest(dtype), Type(dtype)), lanes)


def _softmax(
    k: Builder,
    s: ByteAttention,
    tables: SoftmaxTables,
    recoding: Tensor | None,
    room: tuple[Tensor, Tensor],
    of: tuple[int, int, Words],
) -> Tensor | None:
    """Turn the scores of a block to shares; gives the amounts that zero points of values lower sums of rows by, if
    any."""
    (codes, ends), (rows, n, p) = room, of
    totals = k.local("z", rows, dtype=I32, space="stack") if p.offsets[1] else None
    tops = k.local("m", rows, dtype=I32, space="stack")
    with k.loop("r", rows) as r:
        if recoding is not None:
            tables.recode(codes, (r,), n, recoding)
        tops[r] = tables.greatest(codes, (r,), n)
        most = k.let("most", tops[r])
        total = tables.sum(codes, (r,), n, most)
        if n > s.keys:
            assert s.floor is not None
            total = total - tables.filling(most, s.floor, n - s.keys)
        tables.results(ends, (r,), k.let("factor", s.softmax.factor(total)))
    with k.loop("r", rows) as r:
        tables.look_up(codes, (r,), n, k.let("most", tops[r]), ends, (r,), codes)
        for byte in range(s.keys, 4 * p.deep):
            codes[r, byte] = Const(-p.shifts[0], Type(codes.buffer.type.dtype))
        if totals is not None:

            def words(at: Index, lanes: int, r: Index = r) -> Expr:
                return bitcast(Load(codes.buffer, (r, at * 4), Type(codes.buffer.type.dtype, 4 * lanes)), DType.Q8)

            totals[r] = less_of_row(k, p, words, None)
    return totals
