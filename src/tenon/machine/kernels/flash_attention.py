"""Attention of 16-bit floats by a matrix unit for any number of keys, with an online softmax, in one launch.

A block has some queries of a head, one or two tiles of 16 of each warp.  Keys and values come in chunks, those of the
next one on their way to shared memory while a chunk is computed.  Each warp multiplies its queries, which stay in
registers, by all keys of the chunk; the greatest scores and the sums of exponentials of its rows are in registers from
chunk to chunk, as the sums of values are, times exp2(old greatest - new greatest).  The sums of the first product are
the left factor of the second as they lie in registers.  Where a warp is ``ahead``, it multiplies by the next chunk's
keys while it computes the exponentials of this one.  Where queries are ``causal``, a block leaves out chunks that none
of its queries sees.  Dao, "FlashAttention-2" (2023); Shah et al., "FlashAttention-3" (2024).
"""

from __future__ import annotations

import math as numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tenon.machine.isa.subgroups import SHUFFLE_XOR
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, less, maximum, select, vector4
from tenon.machine.kernels import math
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.machine.kernels.tensor_staged import OPERATIONS, K, M, N

_STAGES = 2
_BESIDE = 8
"""Elements past a row in shared memory, by which rows of a column lie in different banks."""
_GROWTH = 8.0
"""Exponentials are powers of two of at most this: the greatest score is replaced by one that is greater by more."""
_LEAST = -3.0e38
"""Stands for the greatest score before the first key, and for scores of keys that a query does not see."""


@dataclass(frozen=True)
class FlashTile:
    """``tiles`` of 16 queries of each of ``warps``, and keys of a chunk, a multiple of 32."""

    warps: int = 4
    tiles: int = 1
    chunk: int = 64
    ahead: bool = False

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return self.warps * self.tiles * M

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def bytes(self, s: HeadSizes) -> int:
        """Bytes of shared memory of a block."""
        rows = 0 if self.rows <= _STAGES * self.chunk else self.rows * self.width(s)
        staged = _STAGES * self.chunk * (s.depth + _BESIDE + self.width(s))
        exchanged, statements = 4 * 4 * self.tiles * self.threads, 1 + self.leads(s)
        return 2 * (rows + staged + self.rows * self.chunk * (1 + statements)) + exchanged * (1 + statements)

    def leads(self, s: HeadSizes) -> bool:
        """Whether products are ahead: there is a chunk after the first, and no block leaves any out."""
        return self.ahead and s.keys > self.chunk and not s.causal

    @staticmethod
    def width(s: HeadSizes) -> int:
        """Elements from one row of values in shared memory to the next, in which queries lie as well."""
        return max(s.depth, s.channels) + _BESIDE

    def fits(self, s: HeadSizes, most: int) -> bool:
        """Whether shared memory of so many bytes is enough, and all threads copy equal parts."""
        copies = all(part // 8 % self.threads == 0 for part in (self.chunk * s.depth, self.chunk * s.channels))
        return copies and self.rows * s.depth // 8 % self.threads == 0 and self.bytes(s) <= most


_WIDE, _USUAL, _SMALL = 0.75, 0.2, 0.0
"""The least part of a device's units that blocks of 128, 64 and 32 queries have to occupy."""
_EVEN = 4.0
"""The least number of blocks of 128 causal queries for each unit of a device: such blocks take unequal times."""


def tile_of(s: HeadSizes, machine: Machine) -> FlashTile | None:
    """The tile for a head's sizes: blocks of many queries read keys and values less often, if there are enough of
    them."""
    space, launch = machine.space("shared"), machine.launch
    if space is None or launch is None:
        return None
    wide = _EVEN if s.causal else _WIDE
    for warps, part in ((8, wide), (4, _USUAL), (2, _SMALL)):
        for chunk in (64, 32):
            tile = FlashTile(warps, 1, chunk, ahead=chunk * s.channels <= 64 * 64)
            blocks = s.batch * s.count * -(-s.queries // tile.rows)
            if tile.fits(s, space.bytes) and (blocks >= part * launch.units):
                return tile
    return None


def supported(s: HeadSizes, machine: Machine) -> bool:
    """Whether a machine can compute heads so."""
    launch = machine.launch
    able = s.dtype in OPERATIONS and machine.has(OPERATIONS[s.dtype]) and launch is not None and launch.copies
    even = s.depth % K == 0 and s.channels % K == 0 and max(s.depth, s.channels) <= 128 and s.scale > 0
    simple = not (s.rows_first or s.window or s.past or s.softcap or s.mask or s.length)
    return able and even and simple and tile_of(s, machine) is not None


@dataclass(frozen=True, eq=False)
class _Flash:
    """A kernel being built: buffers, and the numbers of the head, the warp and the thread, 4 * group + member."""

    k: Builder
    s: HeadSizes
    tile: FlashTile
    q: Tensor
    keys: Tensor
    values: Tensor
    ks: Tensor
    vs: Tensor
    rows: Tensor
    results: Tensor
    ps: Tensor
    cells: Tensor
    batch: Index
    head: Index
    first: Index
    warp: Index
    group: Index
    member: Index

    @property
    def lane(self) -> Index:
        return self.group * 4 + self.member

    @property
    def thread(self) -> Index:
        return self.warp * 32 + self.lane

    @property
    def steps(self) -> int:
        return -(-self.s.keys // self.tile.chunk)

    def row(self, tile: int, half: int) -> Index:
        """A thread's row of the block."""
        return self.warp * (self.tile.tiles * M) + tile * M + self.group + 8 * half

    def at(self, row: Index, column: Index, stage: int = 0) -> tuple[Index, ...]:
        """Where an element of a row of the block lies in ``rows``."""
        if self.rows is not self.vs:
            return row, column
        chunk = self.tile.chunk
        return (Index((), stage), row, column) if self.tile.rows <= chunk else (row // chunk, row % chunk, column)

    def halves(self) -> Iterator[tuple[int, int]]:
        """A thread's rows: tile and half."""
        return ((i, half) for i in range(self.tile.tiles) for half in range(2))


@lru_cache(maxsize=64)
def flash_attention(s: HeadSizes, tile: FlashTile) -> Kernel:
    """Parameters: queries [batch, count, queries, depth], keys [batch, count / group, keys, depth], values [...,
    channels], the results."""
    count, chunk, shared = s.batch * s.count, tile.chunk, s.count // s.group
    k = Builder(
        f"flash_attention_{count}x{s.queries}x{s.keys}x{s.depth}",
        f"Attention of {count} heads with {s.queries} queries and {s.keys} keys of {s.depth}; {tile.rows} queries a "
        f"block, chunks of {chunk} keys",
    )
    q = k.param("q", s.batch, s.count, s.queries, s.depth, dtype=s.dtype)
    keys = k.param("k", s.batch, shared, s.keys, s.depth, dtype=s.dtype)
    values = k.param("v", s.batch, shared, s.keys, s.channels, dtype=s.dtype)
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    blocks = -(-s.queries // tile.rows)
    with k.loop("head", count, kind="block") as head, k.loop("down", blocks, kind="block") as down:
        ks = k.local("ks", _STAGES, chunk, s.depth + _BESIDE, dtype=s.dtype, space="shared")
        vs = k.local("vs", _STAGES, chunk, tile.width(s), dtype=s.dtype, space="shared")
        own = tile.rows > _STAGES * chunk
        rows = k.local("rows", tile.rows, tile.width(s), dtype=s.dtype, space="shared") if own else vs
        results = k.local("results", chunk // K, tile.rows, K, dtype=s.dtype, space="shared")
        statements = range(1 + tile.leads(s))  # that exchange what is in registers: each has memory of its own
        ps = [k.local("ps", chunk // K, tile.rows, K, dtype=s.dtype, space="shared") for _ in statements]
        cells = [k.local("cells", 4 * tile.tiles, tile.warps, 32, space="shared") for _ in (0, *statements)]
        with (
            k.loop("w", tile.warps, kind="thread") as w,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            batch, of = head // s.count, head % s.count
            first = (blocks - 1 - down if s.causal else down) * tile.rows  # the block with most keys begins first
            p = _Flash(k, s, tile, q, keys, values, ks, vs, rows, results, ps[0], cells[0], batch, of, first, w, g, t)
            sums = _attend(p, replace(p, ps=ps[-1], cells=cells[-2]))
            _store(replace(p, cells=cells[-1]), *sums, y)
    return k.done()


def _attend(p: _Flash, last: _Flash) -> tuple[Tensor, Tensor]:
    """All chunks for the queries of a block; ``last`` is for the last one, where products are ahead.  The sums of
    values, and those of exponentials."""
    k, s, tile = p.k, p.s, p.tile
    tiles, early = tile.tiles, tile.rows <= tile.chunk or p.rows is not p.vs
    _copy_queries(p)
    _copy_keys(p, Index(), Index())
    if early:
        _copy_values(p, Index(), Index())
    k.commit()
    top, total = k.local("top", tiles, 2), k.local("total", tiles, 2)
    sums = k.local("o", tiles, s.channels // N, 4)
    for i, half in p.halves():
        top[i, half], total[i, half] = _LEAST, 0.0
    _clear(sums)
    k.wait(0)
    k.barrier()
    factors = k.local("f", tiles, s.depth // K, 2, dtype=s.dtype, lanes=4)
    _load_queries(p, factors)
    if not early:
        k.barrier()
        _copy_values(p, Index(), Index())
        k.commit()
    state = top, total, sums
    if tile.leads(s):
        _chunks_ahead(p, last, factors, state)
    else:
        _chunks(p, factors, state)
    return sums, total


def _chunks(p: _Flash, factors: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> None:
    """One chunk after the other."""
    k, s, tile, steps = p.k, p.s, p.tile, p.steps
    with k.loop("n", steps) as n:
        k.wait(0)
        k.barrier()
        with k.when(*([steps - 2 - n] if steps > 1 else [Index((), -1)])):
            _copy_keys(p, (n + 1) % _STAGES, (n + 1) * tile.chunk)
            _copy_values(p, (n + 1) % _STAGES, (n + 1) * tile.chunk)
        k.commit()
        scores = k.local("a", tile.tiles, tile.chunk // N, 4)
        with k.when(*([p.first + (tile.rows - 1) - n * tile.chunk] if s.causal else [])):
            _clear(scores)
            _multiply_keys(p, factors, scores, n % _STAGES)
            _unseen(p, scores, n)
            _exponentials(p, scores, *state)
            _multiply_values(p, scores, state[2], n % _STAGES)


def _chunks_ahead(p: _Flash, last: _Flash, factors: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> None:
    """The same, with the products by the keys of a chunk before the exponentials of the one before."""
    k, tile, steps = p.k, p.tile, p.steps
    shape = tile.tiles, tile.chunk // N, 4
    scores = k.local("a", *shape)
    _copy_keys(p, Index((), 1), Index((), tile.chunk))
    k.commit()
    _clear(scores)
    _multiply_keys(p, factors, scores, Index())
    with k.loop("n", steps - 1) as n:
        k.wait(0)
        k.barrier()
        with k.when(*([steps - 3 - n] if steps > 2 else [Index((), -1)])):
            _copy_keys(p, n % _STAGES, (n + 2) * tile.chunk)
        _copy_values(p, (n + 1) % _STAGES, (n + 1) * tile.chunk)
        k.commit()
        following = k.local("b", *shape)
        _clear(following)
        _multiply_keys(p, factors, following, (n + 1) % _STAGES)
        _exponentials(p, scores, *state)
        _multiply_values(p, scores, state[2], n % _STAGES)
        for i, j, c in _cells(scores):
            scores[i, j, c] = following[i, j, c]
    k.wait(0)
    k.barrier()
    _unseen(p, scores, Index((), steps - 1))
    _exponentials(last, scores, *state)
    _multiply_values(last, scores, state[2], Index((), (steps - 1) % _STAGES))


def _cells(sums: Tensor) -> Iterator[tuple[int, int, int]]:
    """The indices of a thread's sums."""
    tiles, width = sums.buffer.shape[0].const, sums.buffer.shape[1].const
    return ((i, j, c) for i in range(tiles) for j in range(width) for c in range(4))


def _clear(sums: Tensor) -> None:
    for i, j, c in _cells(sums):
        sums[i, j, c] = 0.0


# ---------------------------------------------------------------------------------------------------- copies
def _copy_queries(p: _Flash) -> None:
    """Begin to copy the queries of a block to where values lie later, eight elements at a time, zeros past the last."""
    s, parts = p.s, p.s.depth // 8
    with p.k.unroll("e", p.tile.rows * parts // p.tile.threads) as e:
        item = p.thread + e * p.tile.threads
        row, part = item // parts, item % parts
        value = Load(p.q.buffer, (p.batch, p.head, p.first + row, part * 8), Type(s.dtype, 8))
        past = [s.queries - 1 - p.first - row] if s.queries % p.tile.rows else []
        p.k.copy(p.rows.buffer, p.at(row, part * 8, 1), guarded(tuple(past), value, 0.0))


def _copy_keys(p: _Flash, stage: Index, first: Index) -> None:
    _copy_chunk(p, p.keys, p.ks, p.s.depth, stage, first)


def _copy_values(p: _Flash, stage: Index, first: Index) -> None:
    _copy_chunk(p, p.values, p.vs, p.s.channels, stage, first)


def _copy_chunk(p: _Flash, x: Tensor, target: Tensor, width: int, stage: Index, first: Index) -> None:
    """Begin to copy keys or values from number ``first`` on, eight elements at a time, zeros past the last."""
    s, chunk, threads, parts = p.s, p.tile.chunk, p.tile.threads, width // 8
    with p.k.unroll("e", chunk * parts // threads) as e:
        item = p.thread + e * threads
        row, part = item // parts, item % parts
        value = Load(x.buffer, (p.batch, p.head // s.group, first + row, part * 8), Type(s.dtype, 8))
        past = [s.keys - 1 - first - row] if s.keys % chunk else []
        p.k.copy(target.buffer, (stage, row, part * 8), guarded(tuple(past), value, 0.0))


def _load_queries(p: _Flash, factors: Tensor) -> None:
    """A thread's part of the warp's queries, in registers."""
    k, s, t = p.k, p.s, p.member
    for i in range(p.tile.tiles):
        for d in range(s.depth // K):
            from_row = p.warp * (p.tile.tiles * M) + i * M + p.lane % 16
            operands: list[Operand] = [(p.rows, p.at(from_row, p.lane // 16 * 8 + d * K, 1))]
            operands += [(factors, (i, d, half)) for half in range(2)]
            with k.instruction(f"tile_{s.dtype}", operands):
                for half in range(2):
                    columns = [t * 2 + (d * K + 8 * b + e) for b in range(2) for e in range(2)]
                    factors[i, d, half] = vector4(*(p.rows[p.at(p.row(i, half), c, 1)] for c in columns))


# --------------------------------------------------------------------------------------------------- products
def _name(p: _Flash, what: str) -> str:
    return f"{what}_{p.s.dtype}" + "_twice" * (p.tile.tiles == 2)


def _in_pairs(p: _Flash, sums: Tensor) -> list[Operand]:
    """A thread's sums, for each 16 columns those of all tiles."""
    tiles, width = range(p.tile.tiles), sums.buffer.shape[1].const
    return [(sums, (i, j + b, c)) for j in range(0, width, 2) for i in tiles for b in range(2) for c in range(4)]


def _multiply_keys(p: _Flash, factors: Tensor, acc: Tensor, stage: Index) -> None:
    """The products of a warp's queries by the keys of a chunk."""
    k, s, lane = p.k, p.s, p.lane
    key = lane // 16 * 8 + lane % 8
    for d in range(s.depth // K):
        column = lane // 8 % 2 * 8 + d * K
        operands: list[Operand] = [(p.ks, (stage, key + below, column)) for below in (0, 16)]
        operands += [(factors, (i, d, half)) for i, half in p.halves()]
        operands += _in_pairs(p, acc)
        with k.instruction(_name(p, "scores"), operands), k.loop("e", K) as e:
            for i, j, c in _cells(acc):
                query = p.first + p.row(i, c // 2)
                past = [s.queries - 1 - query] if s.queries % p.tile.rows else []
                left = guarded(tuple(past), p.q[p.batch, p.head, query, e + d * K], 0.0)
                right = p.ks[stage, p.member * 2 + (j * N + c % 2), e + d * K]
                acc[i, j, c] = acc[i, j, c] + loaded(left) * loaded(right)


def _multiply_values(p: _Flash, shares: Tensor, acc: Tensor, stage: Index) -> None:
    """Add the products of a warp's exponentials, as floats of 16 bits, by the values of a chunk."""
    k, s, lane, t = p.k, p.s, p.lane, p.member
    for d in range(p.tile.chunk // K):
        operands: list[Operand] = [(p.vs, (stage, lane % 16 + d * K, lane // 16 * 8))]
        operands += [
            (shares, (i, 2 * d + b, half * 2 + e)) for i, half in p.halves() for b in range(2) for e in range(2)
        ]
        operands += _in_pairs(p, acc)
        with k.instruction(_name(p, "values"), operands):
            for i, half in p.halves():
                for b in range(2):
                    for e in range(2):
                        share = stored(shares[i, 2 * d + b, half * 2 + e], s.dtype)
                        p.ps[d, p.row(i, half), t * 2 + (8 * b + e)] = share
            k.barrier()
            with k.loop("x", K) as x:
                for i, j, c in _cells(acc):
                    right = p.vs[stage, x + d * K, t * 2 + (j * N + c % 2)]
                    acc[i, j, c] = acc[i, j, c] + loaded(p.ps[d, p.row(i, c // 2), x]) * loaded(right)


# ------------------------------------------------------------------------------------------------ exponentials
def _unseen(p: _Flash, scores: Tensor, n: Index) -> None:
    """The least score for keys past the last, of the last chunk, and for those that a query does not see."""
    k, s, tile = p.k, p.s, p.tile
    first = n * tile.chunk
    if s.keys % tile.chunk:
        with k.when(n - (p.steps - 1)):
            for i, j, c in _cells(scores):
                past = s.keys - 1 - first - (p.member * 2 + (j * N + c % 2))
                scores[i, j, c] = guarded((past,), scores[i, j, c], _LEAST)
    if s.causal:
        with k.when(first + (tile.chunk - 2) - p.first):
            for i, j, c in _cells(scores):
                before = p.first + p.row(i, c // 2) - first - (p.member * 2 + (j * N + c % 2))
                scores[i, j, c] = guarded((before,), scores[i, j, c], _LEAST)


def _exponentials(p: _Flash, acc: Tensor, top: Tensor, total: Tensor, sums: Tensor) -> None:
    """The exponentials of a thread's scores in their place, and their sums; what was summed before times its factor,
    where the greatest score has grown enough for that."""
    k, scale = p.k, p.s.scale * numbers.log2(numbers.e)
    places = [(j, e) for j in range(p.tile.chunk // N) for e in range(2)]
    factors = k.local("w", p.tile.tiles, 2)
    for i, half in p.halves():
        greatest, factor = k.local("m", 1), k.local("r", 1)
        greatest[0] = top[i, half]
        for j, e in places:
            _raise(p, greatest, (acc, (i, j, half * 2 + e)))
        _over_rows(p, greatest, i, half, _raise)
        factor[0] = (top[i, half] - greatest[0]) * scale
        grows = k.let("g", less(factor[0], -_GROWTH))
        _power(p, factor, (0,))
        factors[i, half] = select(grows, factor[0], 1.0)
        top[i, half] = select(grows, greatest[0], top[i, half])
        total[i, half] = total[i, half] * factors[i, half]
    operands: list[Operand] = [(factors, (i, half)) for i, half in p.halves()]
    with k.instruction("rescaled_16" + "_twice" * (p.tile.tiles == 2), [*operands, *_in_pairs(p, sums)]):
        for i, j, c in _cells(sums):
            sums[i, j, c] = sums[i, j, c] * factors[i, c // 2]
    for i, half in p.halves():
        shift = k.let("l", top[i, half] * scale)
        for j, e in places:
            acc[i, j, half * 2 + e] = acc[i, j, half * 2 + e] * scale - shift
            _power(p, acc, (i, j, half * 2 + e))
            total[i, half] = total[i, half] + acc[i, j, half * 2 + e]


def _power(p: _Flash, x: Tensor, at: tuple[int, ...]) -> None:
    """Two to the power of a register, in its place, as exactly as 16 bits need; 1.2e-38 below -126."""
    with p.k.instruction("power_of_two_16", [(x, at)]):
        x[at] = math.power_of_two(maximum(-126.0, x[at]), math.EXP2_OF_16_BITS)


def _raise(p: _Flash, greatest: Tensor, other: Operand) -> None:
    """Replace a register by another one that is greater."""
    tensor, at = other
    with p.k.instruction("greater_16", [(greatest, (0,)), other]):
        greatest[0] = maximum(greatest[0], tensor[at])


def _add(p: _Flash, total: Tensor, other: Operand) -> None:
    """Add to a register."""
    tensor, at = other
    total[0] = total[0] + tensor[at]


def _over_rows(
    p: _Flash, own: Tensor, tile: int, half: int, combine: Callable[[_Flash, Tensor, Operand], None]
) -> None:
    """Combine a register of the four threads of a row, in all of them."""
    k, cells, t = p.k, p.cells, p.member
    other = k.local("b", 1)
    for step, distance in enumerate((1, 2)):
        pair = 2 * distance
        partner = t // pair * pair + (t + distance) % pair
        cell = (tile * 2 + half) * 2 + step
        mine, theirs = (cell, p.warp, p.lane), (cell, p.warp, p.group * 4 + partner)
        operands: list[Operand] = [(cells, mine), (cells, theirs), (own, (0,)), (other, (0,))]
        with k.instruction(SHUFFLE_XOR, operands, distance):
            cells[mine] = own[0]
            k.barrier()
            other[0] = cells[theirs]
        combine(p, own, (other, (0,)))


def _scale(p: _Flash, total: Tensor, tile: int, half: int) -> Expr:
    """One over the sum of the exponentials of a row."""
    k, whole = p.k, p.k.local("h", 1)
    whole[0] = total[tile, half]
    _over_rows(p, whole, tile, half, _add)
    return k.let("s", 1.0 / whole[0])


def _store(p: _Flash, acc: Tensor, total: Tensor, y: Tensor) -> None:
    """Store a block's results, four elements at a time, by way of shared memory: as many channels as a chunk has keys
    at once."""
    k, s, tile = p.k, p.s, p.tile
    k.barrier()
    scales = {(i, half): _scale(p, total, i, half) for i, half in p.halves()}
    for first in range(0, s.channels, tile.chunk):
        width = min(tile.chunk, s.channels - first)
        if first:
            k.barrier()
        for i, half in p.halves():
            for j in range(width // N):
                for e in range(2):
                    value = acc[i, first // N + j, half * 2 + e] * scales[i, half]
                    p.results[j // 2, p.row(i, half), p.member * 2 + (j % 2 * N + e)] = stored(value, s.dtype)
        k.barrier()
        parts = width // 4
        with k.unroll("x", tile.rows * parts // tile.threads) as x:
            item = p.thread + x * tile.threads
            row, part = item // parts, item % parts
            query = p.first + row
            with k.when(*([s.queries - 1 - query] if s.queries % tile.rows else [])):
                middle = (query, p.head) if s.merged else (p.head, query)
                value = Load(p.results.buffer, (part // 4, row, part % 4 * 4), Type(s.dtype, 4))
                k.store(y.buffer, (p.batch, *middle, part * 4 + first), value)
