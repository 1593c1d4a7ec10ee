"""Attention of 16-bit floats by a matrix unit, in one launch: products of queries and keys, softmax, sums of values.

A block has 16 queries of a head.  Its warps share the keys: each multiplies the queries by its own and keeps these
products in registers; the greatest product and the sum of exponentials of a row are combined in shared memory.  The
exponentials, as floats of 16 bits, are the factors of the second product, whose channels the warps share.  Keys lie in
shared memory as weights do (``kernels.tensor_staged``); values take their place, turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, maximum, vector4
from tenon.machine.kernels import math
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.machine.kernels.tensor_staged import OPERATIONS, K, M, N

_Place = Callable[[Index, Index], tuple[Tensor, tuple[Index, ...]]]
_Statements = Callable[[], None]
_Combine = Callable[[Expr, Expr], Expr]

_APART = 4
"""Rows past the 16 of a factor in shared memory, by which threads that load four rows reach all banks."""
_LEAST = -3.0e38
"""Stands for the products of keys past the last: its exponential is 0."""


def warps(s: HeadSizes) -> int:
    """Warps of a block."""
    return 4 if s.depth % 64 == 0 else 2


def padded(s: HeadSizes) -> int:
    """Keys, those that fill the tiles of all warps included."""
    each = K * warps(s)
    return -(-s.keys // each) * each


def shared_bytes(s: HeadSizes) -> int:
    """Bytes of shared memory of a block."""
    factors = (s.depth + padded(s)) * (M + _APART)
    return 2 * (s.depth * padded(s) + factors) + 2 * 4 * M * 4 * warps(s)


def supported(s: HeadSizes, machine: Machine) -> bool:
    """Whether a machine can compute heads so."""
    space = machine.space("shared")
    fits = space is not None and shared_bytes(s) <= space.bytes and s.depth % (2 * K) == 0
    return (
        fits and s.plain and s.dtype in OPERATIONS and machine.has(OPERATIONS[s.dtype]) and machine.launch is not None
    )


@dataclass(frozen=True, eq=False)
class _Context:
    """A kernel being built, and the numbers of the head, the warp and the thread: ``4 * group + member`` of a warp."""

    k: Builder
    s: HeadSizes
    head: Index
    first: Index  # query of the block
    warp: Index
    group: Index
    member: Index

    @property
    def thread(self) -> Index:
        return self.warp * 32 + self.group * 4 + self.member

    @property
    def threads(self) -> int:
        return 32 * warps(self.s)

    def row(self, half: int) -> Index:
        """A thread's row of a tile."""
        return self.group + 8 * half


@lru_cache(maxsize=64)
def attention(s: HeadSizes) -> Kernel:
    """Parameters: queries [batch * count, queries, depth], keys and values [batch * count, keys, depth], results."""
    count = s.batch * s.count
    k = Builder(
        f"attention_{count}x{s.queries}x{s.keys}x{s.depth}",
        f"Attention of {count} heads with {s.queries} queries and {s.keys} keys of {s.depth}; 16 queries of a block",
    )
    q = k.param("q", count, s.queries, s.depth, dtype=s.dtype)
    keys, values = (k.param(name, count, s.keys, s.depth, dtype=s.dtype) for name in ("k", "v"))
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    with (
        k.loop("head", count, kind="block") as head,
        k.loop("down", -(-s.queries // M), kind="block") as down,
    ):
        qs = k.local("qs", s.depth // 4, M + _APART, 4, dtype=s.dtype, space="shared")
        ps = k.local("ps", padded(s) // 4, M + _APART, 4, dtype=s.dtype, space="shared")
        kv = k.local("kv", s.depth * padded(s) // K, K, dtype=s.dtype, space="shared")
        tops, sums = (k.local(name, M, 4 * warps(s), space="shared") for name in ("tops", "sums"))
        with (
            k.loop("w", warps(s), kind="thread") as w,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            p = _Context(k, s, head, down * M, w, g, t)
            _copy_rows(p, q, s.queries, p.first, M, lambda row, part: (qs, (part, row, Index())))
            _copy_rows(
                p, keys, s.keys, Index(), padded(s), lambda row, part: (kv, (part // 4 * padded(s) + row, part % 4 * 4))
            )
            k.barrier()
            products = k.local("a", padded(s) // warps(s) // N, 4)
            _multiply(p, products, qs, kv, s.depth // K, padded(s))
            _exponentials(p, products, tops, sums, ps, lambda: _turn(p, values, kv))
            results = k.local("r", s.depth // warps(s) // N, 4)
            _multiply(p, results, ps, kv, padded(s) // K, s.depth)
            _store(p, results, sums, y)
    return k.done()


def _copy_rows(p: _Context, x: Tensor, rows: int, first: Index, count: int, place: _Place) -> None:
    """Copy ``count`` rows of a head from ``first`` on, four elements at a time, zeros past the last."""
    k, parts = p.k, p.s.depth // 4
    with k.unroll("e", -(-count * parts // p.threads)) as e:
        item = p.thread + e * p.threads
        row, part = item // parts, item % parts
        value = Load(x.buffer, (p.head, first + row, part * 4), Type(p.s.dtype, 4))
        shared, at = place(row, part)
        past = (first.span()[1] + count > rows) * [rows - 1 - first - row]
        k.store(shared.buffer, at, guarded(tuple(past), value, 0.0))


def _turn(p: _Context, values: Tensor, kv: Tensor) -> None:
    """Copy the values, in whose place in shared memory 16 of a channel lie side by side.  The threads of a warp take 8
    channels of 4 values, which lie in few lines of memory and in different banks.  Channels 16 a + 4 t + 2 b + e are at
    16 a + 8 b + 2 t + e, so that a thread has four neighbouring results."""
    k, s, g = p.k, p.s, p.group
    with (
        k.loop("y", padded(s) // (4 * warps(s))) as y,
        k.loop("x", s.depth // 16) as x,
        k.unroll("h", 2) as half,
    ):
        key, channel = (y * warps(s) + p.warp) * 4 + p.member, x * 16 + half * 8 + g
        past = [s.keys - 1 - key] if padded(s) > s.keys else []
        value = guarded(tuple(past), Load(values.buffer, (p.head, key, channel), Type(s.dtype)), 0.0)
        column = x * 16 + g // 2 % 2 * 8 + half * 4 + g // 2 // 2 * 2 + g % 2
        kv[key // K * s.depth + column, key % K] = value


def _multiply(p: _Context, acc: Tensor, rows: Tensor, columns: Tensor, steps: int, width: int) -> None:
    """The products of 16 rows by the warp's share of ``width`` columns, 16 at a time."""
    k, g, t, tiles = p.k, p.group, p.member, acc.buffer.shape[0].const
    for j in range(tiles):
        for c in range(4):
            acc[j, c] = 0.0
    with k.loop("d", steps) as d:
        for j in range(tiles):
            column = d * width + p.warp * (tiles * N) + j * N
            operands: list[Operand] = [(rows, (d * 4 + t, p.row(half), 0)) for half in range(2)]
            operands += [(columns, (column + g, t * 4))]
            operands += [(acc, (j, c)) for c in range(4)]
            with k.instruction(OPERATIONS[p.s.dtype], operands), k.loop("e", K) as e:
                for c in range(4):
                    left = loaded(rows[d * 4 + e // 4, p.row(c // 2), e % 4])
                    acc[j, c] = acc[j, c] + left * loaded(columns[column + t * 2 + c % 2, e])


def _exponentials(p: _Context, acc: Tensor, tops: Tensor, sums: Tensor, ps: Tensor, meanwhile: _Statements) -> None:
    """The exponentials of a thread's products in shared memory, and the sums of all in a row; ``meanwhile`` is for the
    time after which nobody reads the keys."""
    k, s, tiles = p.k, p.s, acc.buffer.shape[0].const
    mine = p.warp * 4 + p.member
    top, total = k.local("top", 2), k.local("total", 2)
    for half in range(2):
        top[half], total[half] = _LEAST, 0.0
    for j in range(tiles):
        for c in range(4):
            past = [s.keys - 1 - _key(p, tiles, j, c)] if padded(s) > s.keys else []
            acc[j, c] = guarded(tuple(past), acc[j, c] * s.scale, _LEAST)
            top[c // 2] = maximum(top[c // 2], acc[j, c])
    for half in range(2):
        tops[p.row(half), mine] = top[half]
    k.barrier()
    greatest = [k.let("m", _combined(tops, p.row(half), 4 * warps(s), maximum)) for half in range(2)]
    for j in range(tiles):
        for c in range(4):
            key = _key(p, tiles, j, c)
            e = k.let("x", math.exp_of_negative(acc[j, c] - greatest[c // 2]))
            total[c // 2] = total[c // 2] + e
            ps[key // 4, p.row(c // 2), key % 4] = stored(e, s.dtype)
    for half in range(2):
        sums[p.row(half), mine] = total[half]
    meanwhile()
    k.barrier()


def _key(p: _Context, tiles: int, j: int, c: int) -> Index:
    """The key of a thread's product."""
    return p.warp * (tiles * N) + j * N + p.member * 2 + c % 2


def _combined(cells: Tensor, row: Index, count: int, combine: _Combine) -> Expr:
    """A row of shared memory combined, in order."""
    value = cells[row, 0]
    for i in range(1, count):
        value = combine(value, cells[row, i])
    return value


def _store(p: _Context, acc: Tensor, sums: Tensor, y: Tensor) -> None:
    """Store a thread's results, four channels of a query at a time."""
    k, s, tiles = p.k, p.s, acc.buffer.shape[0].const
    for half in range(2):
        scale = k.let("s", 1.0 / _combined(sums, p.row(half), 4 * warps(s), lambda a, b: a + b))
        query = p.first + p.row(half)
        with k.when(*([s.queries - 1 - query] if s.queries % M else [])):
            for pair in range(tiles // 2):
                values: Sequence[Expr] = [acc[pair * 2 + b, half * 2 + e] * scale for b in range(2) for e in range(2)]
                channel = p.warp * (tiles * N) + pair * 16 + p.member * 4
                part, head = p.head // s.count, p.head % s.count
                middle = (query, head) if s.merged else (head, query)
                k.store(y.buffer, (part, *middle, channel), vector4(*(stored(value, s.dtype) for value in values)))
