"""Attention of 16-bit floats by a matrix unit for any number of keys, with an online softmax, in one launch.

A block has 64 queries of a head, 16 of each warp.  Keys and values come in chunks, those of the next one on their way
to shared memory while a chunk is computed.  Each warp multiplies its queries by all keys of the chunk; the greatest
scores and the sums of exponentials of its rows are in registers from chunk to chunk, as the sums of values are, times
exp2(old greatest - new greatest).  The exponentials pass through shared memory as floats of 16 bits; values are read
as they are stored, turned by the load of the matrix unit.  Dao, "FlashAttention-2" (2023).
"""

from __future__ import annotations

import math as numbers
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.isa.subgroups import SHUFFLE_XOR
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, maximum, op, vector4
from tenon.machine.kernel_ir.spaces import SHARED
from tenon.machine.kernels import math
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.machine.kernels.tensor_staged import OPERATIONS, K, M, N
from tenon.network.graph.types import DType

TURNED = {DType.F16: "mma_f16_k16_turned", DType.BF16: "mma_bf16_k16_turned"}

WARPS = 4
ROWS = WARPS * M
"""Queries of a block."""
_THREADS = 32 * WARPS
_STAGES = 2
_APART = 4
"""Rows past those of a block's queries in shared memory, by which threads that load four rows reach all banks."""
_BESIDE = 8
"""Elements past a row of values in shared memory, by which rows of a column lie in different banks."""
_LEAST = -3.0e38
"""Stands for the greatest score before the first key, and for scores of keys past the last."""


def chunk_of(s: HeadSizes, most: int = SHARED.bytes) -> int:
    """Keys of a chunk: as many as fit shared memory and are copied in equal parts by all threads; 0 for none."""
    for chunk in (64, 48, 32, 16):
        equal = all(chunk * width // 8 % _THREADS == 0 for width in (s.depth, s.channels))
        if equal and shared_bytes(s, chunk) <= most:
            return chunk
    return 0


def shared_bytes(s: HeadSizes, chunk: int) -> int:
    """Bytes of shared memory of a block, with chunks of so many keys."""
    queries = s.depth * (ROWS + _APART)
    staged = _STAGES * chunk * (s.depth + s.channels + _BESIDE)
    return 2 * (queries + staged + ROWS * chunk) + 4 * 4 * _THREADS


def supported(s: HeadSizes, machine: Machine) -> bool:
    """Whether a machine can compute heads so."""
    space, launch = machine.space("shared"), machine.launch
    able = s.dtype in OPERATIONS and machine.has(OPERATIONS[s.dtype]) and launch is not None and launch.copies
    even = s.depth % K == 0 and s.channels % K == 0 and max(s.depth, s.channels) <= 128
    simple = not (s.rows_first or s.causal or s.softcap or s.mask or s.length)
    return bool(able and even and simple and space is not None and chunk_of(s, space.bytes))


@dataclass(frozen=True, eq=False)
class _Flash:
    """A kernel being built: buffers, and the numbers of the head, the warp and the thread, 4 * group + member."""

    k: Builder
    s: HeadSizes
    q: Tensor
    keys: Tensor
    values: Tensor
    qs: Tensor
    ks: Tensor
    vs: Tensor
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
    def chunk(self) -> int:
        return chunk_of(self.s)

    def row(self, half: int) -> Index:
        """A thread's row of the block."""
        return self.warp * M + self.group + 8 * half


@lru_cache(maxsize=64)
def flash_attention(s: HeadSizes) -> Kernel:
    """Parameters: queries [batch, count, queries, depth], keys [batch, count / group, keys, depth], values [...,
    channels], the results."""
    count, chunk, shared = s.batch * s.count, chunk_of(s), s.count // s.group
    k = Builder(
        f"flash_attention_{count}x{s.queries}x{s.keys}x{s.depth}",
        f"Attention of {count} heads with {s.queries} queries and {s.keys} keys of {s.depth}; {ROWS} queries a block",
    )
    q = k.param("q", s.batch, s.count, s.queries, s.depth, dtype=s.dtype)
    keys = k.param("k", s.batch, shared, s.keys, s.depth, dtype=s.dtype)
    values = k.param("v", s.batch, shared, s.keys, s.channels, dtype=s.dtype)
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    with (
        k.loop("head", count, kind="block") as head,
        k.loop("down", -(-s.queries // ROWS), kind="block") as down,
    ):
        qs = k.local("qs", s.depth // 4, ROWS + _APART, 4, dtype=s.dtype, space="shared")
        ks = k.local("ks", _STAGES, s.depth // K, chunk, K, dtype=s.dtype, space="shared")
        vs = k.local("vs", _STAGES, chunk, s.channels + _BESIDE, dtype=s.dtype, space="shared")
        ps = k.local("ps", chunk // K, ROWS, K, dtype=s.dtype, space="shared")
        cells = k.local("cells", 4, WARPS, 32, space="shared")
        with (
            k.loop("w", WARPS, kind="thread") as w,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            batch, of = head // s.count, head % s.count
            p = _Flash(k, s, q, keys, values, qs, ks, vs, ps, cells, batch, of, down * ROWS, w, g, t)
            _attend(p, y)
    return k.done()


def _attend(p: _Flash, y: Tensor) -> None:
    """All chunks for the queries of a block."""
    k, s, chunk = p.k, p.s, p.chunk
    steps = -(-s.keys // chunk)
    _copy_chunk(p, Index(), Index())
    k.commit()
    _copy_queries(p)
    top, total = k.local("top", 2), k.local("total", 2)
    sums = k.local("o", s.channels // N, 4)
    for half in range(2):
        top[half], total[half] = _LEAST, 0.0
    for j in range(s.channels // N):
        for c in range(4):
            sums[j, c] = 0.0
    with k.loop("n", steps) as n:
        k.wait(0)
        k.barrier()
        with k.when(*([steps - 2 - n] if steps > 1 else [Index((), -1)])):
            _copy_chunk(p, (n + 1) % _STAGES, (n + 1) * chunk)
        k.commit()
        scores = k.local("a", chunk // N, 4)
        _multiply_keys(p, scores, n % _STAGES)
        _exponentials(p, scores, top, total, sums, n * chunk)
        k.barrier()
        _multiply_values(p, sums, n % _STAGES)
    _store(p, sums, total, y)


def _copy_queries(p: _Flash) -> None:
    """Copy the queries of a block, four elements at a time, zeros past the last."""
    k, s, parts = p.k, p.s, p.s.depth // 4
    with k.unroll("e", ROWS * parts // _THREADS) as e:
        item = p.thread + e * _THREADS
        row, part = item // parts, item % parts
        value = Load(p.q.buffer, (p.batch, p.head, p.first + row, part * 4), Type(s.dtype, 4))
        past = [s.queries - 1 - p.first - row] if s.queries % ROWS else []
        k.store(p.qs.buffer, (part, row, Index()), guarded(tuple(past), value, 0.0))


def _copy_chunk(p: _Flash, stage: Index, first: Index) -> None:
    """Begin to copy keys and values from number ``first`` on, eight elements at a time, zeros past the last."""
    k, s, chunk, shared = p.k, p.s, p.chunk, p.head // p.s.group
    for x, target, width in ((p.keys, p.ks, s.depth), (p.values, p.vs, s.channels)):
        parts = width // 8
        with k.unroll("e", chunk * parts // _THREADS) as e:
            item = p.thread + e * _THREADS
            row, part = item // parts, item % parts
            value = Load(x.buffer, (p.batch, shared, first + row, part * 8), Type(s.dtype, 8))
            past = [s.keys - 1 - first - row] if s.keys % chunk else []
            at = (stage, part // 2, row, part % 2 * 8) if target is p.ks else (stage, row, part * 8)
            k.copy(target.buffer, at, guarded(tuple(past), value, 0.0))


def _multiply_keys(p: _Flash, acc: Tensor, stage: Index) -> None:
    """The products of a warp's queries by the keys of a chunk."""
    k, s, g, t = p.k, p.s, p.group, p.member
    for j in range(p.chunk // N):
        for c in range(4):
            acc[j, c] = 0.0
    with k.loop("d", s.depth // K) as d:
        for j in range(p.chunk // N):
            operands: list[Operand] = [(p.qs, (d * 4 + t, p.row(half), 0)) for half in range(2)]
            operands += [(p.ks, (stage, d, j * N + g, t * 4))]
            operands += [(acc, (j, c)) for c in range(4)]
            with k.instruction(OPERATIONS[s.dtype], operands), k.loop("e", K) as e:
                for c in range(4):
                    left = loaded(p.qs[d * 4 + e // 4, p.row(c // 2), e % 4])
                    acc[j, c] = acc[j, c] + left * loaded(p.ks[stage, d, t * 2 + (j * N + c % 2), e])


def _exponentials(p: _Flash, acc: Tensor, top: Tensor, total: Tensor, sums: Tensor, first: Index) -> None:
    """The exponentials of a thread's scores in shared memory, and their sums; what was summed before times its
    factor."""
    k, s, scale = p.k, p.s, p.s.scale * numbers.log2(numbers.e)
    greatest = k.local("m", 2)
    for half in range(2):
        greatest[half] = _LEAST
    for j in range(p.chunk // N):
        for c in range(4):
            past = [s.keys - 1 - first - (p.member * 2 + (j * N + c % 2))] if s.keys % p.chunk else []
            acc[j, c] = guarded(tuple(past), acc[j, c] * scale, _LEAST)
            greatest[c // 2] = maximum(greatest[c // 2], acc[j, c])
    for half in range(2):
        new = k.let("g", maximum(top[half], _over_rows(p, greatest[half], half, "max")))
        factor = k.let("f", _power(top[half] - new))
        total[half] = total[half] * factor
        for j in range(s.channels // N):
            for e in range(2):
                sums[j, half * 2 + e] = sums[j, half * 2 + e] * factor
        top[half] = new
    for pair in range(p.chunk // K):
        for half in range(2):
            terms = [
                k.let("x", _power(acc[pair * 2 + b, half * 2 + e] - top[half])) for b in range(2) for e in range(2)
            ]
            for term in terms:
                total[half] = total[half] + term
            value = vector4(*(stored(term, s.dtype) for term in terms))
            k.store(p.ps.buffer, (Index((), pair), p.row(half), p.member * 4), value)


def _power(x: Expr) -> Expr:
    """2**x of x <= 0, as exactly as 16 bits need; 1.2e-38 below -126."""
    return math.power_of_two(maximum(-126.0, x), math.EXP2_OF_16_BITS)


def _over_rows(p: _Flash, value: Expr, half: int, combine: str) -> Expr:
    """The combination of the values of the four threads of a row, in all of them."""
    k, cells, t = p.k, p.cells, p.member
    own, other = k.local("c", 1), k.local("b", 1)
    own[0] = value
    for step, distance in enumerate((1, 2)):
        pair = 2 * distance
        partner = t // pair * pair + (t + distance) % pair
        mine = (half * 2 + step, p.warp, p.lane)
        theirs = (half * 2 + step, p.warp, p.group * 4 + partner)
        operands: list[Operand] = [(cells, mine), (cells, theirs), (own, (0,)), (other, (0,))]
        with k.instruction(SHUFFLE_XOR, operands, distance):
            cells[mine] = own[0]
            k.barrier()
            other[0] = cells[theirs]
        own[0] = op(combine, own[0], other[0])
    return own[0]


def _multiply_values(p: _Flash, acc: Tensor, stage: Index) -> None:
    """Add the products of a warp's exponentials by the values of a chunk.  A thread's four of 16 keys lie side by side:
    key 8 a + 2 t + b at 4 t + 2 a + b."""
    k, s, t = p.k, p.s, p.member
    with k.loop("d", p.chunk // K) as d:
        for j in range(s.channels // N):
            operands: list[Operand] = [(p.ps, (d, p.row(half), t * 4)) for half in range(2)]
            operands += [(p.vs, (stage, d * K + p.lane % K, j * N))]
            operands += [(acc, (j, c)) for c in range(4)]
            with k.instruction(TURNED[s.dtype], operands), k.loop("e", K) as e:
                at = e % 8 // 2 * 4 + e // 8 * 2 + e % 2
                for c in range(4):
                    right = loaded(p.vs[stage, d * K + e, t * 2 + (j * N + c % 2)])
                    acc[j, c] = acc[j, c] + loaded(p.ps[d, p.row(c // 2), at]) * right


def _store(p: _Flash, acc: Tensor, total: Tensor, y: Tensor) -> None:
    """Store a thread's results."""
    k, s = p.k, p.s
    for half in range(2):
        scale = k.let("s", 1.0 / _over_rows(p, total[half], half, "add"))
        query = p.first + p.row(half)
        with k.when(*([s.queries - 1 - query] if s.queries % ROWS else [])):
            middle = (query, p.head) if s.merged else (p.head, query)
            for j in range(s.channels // N):
                for e in range(2):
                    value = stored(acc[j, half * 2 + e] * scale, s.dtype)
                    y[(p.batch, *middle, p.member * 2 + (j * N + e))] = value
