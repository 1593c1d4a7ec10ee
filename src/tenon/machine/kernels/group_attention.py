"""Attention of f32 in work groups, with an online softmax, in one launch.

A block has 32 or 16 queries of a head; its threads, 16 side by side, share the keys of a chunk and then the channels
of their values, four queries of a thread both times.  Queries, keys and values lie in shared memory as they are stored,
the exponentials of a chunk key by key.  The greatest scores, the sums of exponentials over a thread's own keys and its
sums of values are in registers from chunk to chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type, cast, lanes_of, maximum, op, select, vector4
from tenon.machine.kernel_ir.spaces import SHARED
from tenon.machine.kernels import math
from tenon.machine.kernels.attention_tiles import LEAST
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

SIDE = 16
"""Threads that share the keys and the channels of four queries."""

_EACH = 4
_BESIDE = 4
"""Elements past a row in shared memory, by which rows begin in different banks."""


@dataclass(frozen=True)
class GroupBlock:
    """``queries`` of a block, ``keys`` of a chunk: multiples of 16."""

    queries: int
    keys: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.queries // _EACH * SIDE

    def shared(self, s: HeadSizes) -> int:
        """Bytes of shared memory."""
        rows = self.queries * (s.depth + _BESIDE) + self.keys * (s.depth + _BESIDE + s.channels)
        return 4 * (rows + (self.keys + SIDE) * (self.queries + _BESIDE))


LARGEST = GroupBlock(32, 32)


def block_of(s: HeadSizes, machine: Machine) -> GroupBlock | None:
    """The largest block that fits a machine's shared memory and threads, of which a unit holds several."""
    space, launch = machine.space("shared"), machine.launch
    if space is None or launch is None:
        return None
    blocks = (LARGEST, GroupBlock(32, 16), GroupBlock(16, 16))
    return next(
        (b for b in blocks if b.shared(s) <= min(space.bytes, SHARED.bytes) and b.threads <= launch.group), None
    )


def supported(s: HeadSizes, machine: Machine) -> bool:
    """Whether a machine can compute heads so: whole groups of channels, no number of keys that a run knows."""
    even = s.depth % 4 == 0 and (s.channels % (4 * SIDE) == 0 or s.channels in (SIDE, 2 * SIDE))
    known = not (s.length or s.past or s.rows_first)
    return s.dtype is F32 and even and known and block_of(s, machine) is not None


@dataclass(frozen=True, eq=False)
class _GroupAttention:
    """A kernel being built: buffers, and the numbers of the head, the block's first query and the thread."""

    k: Builder
    s: HeadSizes
    block: GroupBlock
    q: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    qs: Tensor
    ks: Tensor
    vs: Tensor
    ps: Tensor
    parts: Tensor
    batch: Index
    head: Index
    first: Index
    y: Index
    x: Index

    @property
    def thread(self) -> Index:
        return self.y * SIDE + self.x

    @property
    def across(self) -> int:
        """Channels of a thread."""
        return self.s.channels // SIDE

    def channel(self, i: int) -> Index:
        """Channel number ``i`` of a thread: four side by side where it has as many."""
        wide = min(4, self.across)
        return self.x * wide + (i // wide * SIDE * wide + i % wide)


@lru_cache(maxsize=64)
def group_attention(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: queries [batch, count, queries, depth], keys [batch, count / group, keys, depth], values [...,
    channels], where ``s`` says so the mask, the results."""
    block = block_of(s, machine)
    assert block is not None
    count, shared = s.batch * s.count, s.count // s.group
    k = Builder(
        f"group_attention_{count}x{s.queries}x{s.keys}x{s.depth}",
        f"Attention of {count} heads with {s.queries} queries and {s.keys} keys of {s.depth};"
        f" {block.queries} queries by {block.keys} keys at a time",
    )
    q = k.param("q", s.batch, s.count, s.queries, s.depth)
    keys = k.param("k", s.batch, shared, s.keys, s.depth)
    values = k.param("v", s.batch, shared, s.keys, s.channels)
    m = s.mask
    mask = None if m is None else k.param("m", m.batch, m.heads, m.keys, m.queries, dtype=m.dtype)
    y = k.param("y", *s.result, out=True)
    with (
        k.loop("head", count, kind="block") as head,
        k.loop("down", -(-s.queries // block.queries), kind="block") as down,
    ):
        sizes = {
            "qs": (block.queries, s.depth + _BESIDE),
            "ks": (block.keys, s.depth + _BESIDE),
            "vs": (block.keys, s.channels),
            "ps": (block.keys, block.queries + _BESIDE),
            "parts": (SIDE, block.queries + _BESIDE),
        }
        qs, ks, vs, ps, parts = (k.local(name, *shape, space="shared") for name, shape in sizes.items())
        with k.loop("y", block.queries // _EACH, kind="thread") as ty, k.loop("x", SIDE, kind="thread") as tx:
            batch, of, first = head // s.count, head % s.count, down * block.queries
            place = (batch, of, first, ty, tx)
            _attend(_GroupAttention(k, s, block, q, keys, values, mask, qs, ks, vs, ps, parts, *place), y)
    return k.done()


def _attend(p: _GroupAttention, y: Tensor) -> None:
    """All chunks for the queries of a block."""
    k, s, block = p.k, p.s, p.block
    _copy(p, p.q, p.qs, p.head, p.first, (block.queries, s.queries, s.depth))
    top, total, sums = k.local("top", _EACH), k.local("total", _EACH), k.local("o", _EACH, p.across)
    for i in range(_EACH):
        top[i], total[i] = LEAST, 0.0
        for c in range(p.across):
            sums[i, c] = 0.0
    with k.loop("n", -(-s.keys // block.keys)) as n:
        first, shared = n * block.keys, p.head // s.group
        _copy(p, p.keys, p.ks, shared, first, (block.keys, s.keys, s.depth))
        _copy(p, p.values, p.vs, shared, first, (block.keys, s.keys, s.channels))
        k.barrier()
        scores = k.local("a", _EACH, block.keys // SIDE)
        _multiply_keys(p, scores)
        _finish_scores(p, scores, first)
        _exponentials(p, scores, top, total, sums)
        _multiply_values(p, sums)
        k.barrier()
    _store(p, sums, total, y)


def _copy(p: _GroupAttention, x: Tensor, into: Tensor, head: Index, first: Index, size: tuple[int, int, int]) -> None:
    """Copy rows from number ``first`` on to shared memory, four elements at a time, zeros past the last."""
    k, (rows, count, width) = p.k, size
    parts, threads = width // 4, p.block.threads
    with k.loop("e", -(-rows * parts // threads)) as e:
        item = p.thread + e * threads
        row, part = item // parts, item % parts
        past = [count - 1 - first - row] if count % rows else []
        value = Load(x.buffer, (p.batch, head, first + row, part * 4), Type(F32, 4))
        with k.when(*([rows * parts - 1 - item] if rows * parts % threads else [])):
            k.store(into.buffer, (row, part * 4), guarded(tuple(past), value, 0.0))


def _multiply_keys(p: _GroupAttention, acc: Tensor) -> None:
    """The products of a thread's queries by its keys: those whose number in the chunk is its own, and every 16th
    after it."""
    k, many = p.k, p.block.keys // SIDE
    for i in range(_EACH):
        for j in range(many):
            acc[i, j] = 0.0
    with k.loop("c", p.s.depth // 4) as c:
        rows = [lanes_of(k.let("q", p.qs.vec(4)[p.y * _EACH + i, c])) for i in range(_EACH)]
        for j in range(many):
            key = lanes_of(k.let("k", p.ks.vec(4)[p.x + j * SIDE, c]))
            for i, row in enumerate(rows):
                for a, b in zip(row, key, strict=True):
                    acc[i, j] = acc[i, j] + a * b


def _finish_scores(p: _GroupAttention, acc: Tensor, first: Index) -> None:
    """The scores as they are compared: scaled and masked, the lowest number for keys that a query does not see."""
    s = p.s
    for j in range(p.block.keys // SIDE):
        key = first + p.x + j * SIDE
        for i in range(_EACH):
            query = p.first + p.y * _EACH + i
            score = acc[i, j] * s.scale
            if s.softcap:
                score = math.tanh(score * (1 / s.softcap)) * s.softcap
            inside = [s.keys - 1 - key] if s.keys % p.block.keys else []
            if p.mask is not None:
                rows = [s.queries - 1 - query] if s.queries % p.block.queries else []
                score = guarded((*inside, *rows), _masked(p, key, query, score), LEAST)
            seen = [*inside, *([query - key] if s.causal else [])]
            seen += [key + (s.window - 1) - query] if s.window else []
            acc[i, j] = guarded(tuple(seen), score, LEAST)


def _masked(p: _GroupAttention, key: Index, query: Index, score: Expr) -> Expr:
    m, mask = p.s.mask, p.mask
    assert m is not None
    assert mask is not None
    at = (p.batch if m.batch > 1 else 0, p.head if m.heads > 1 else 0, key if m.keys > 1 else 0)
    number = mask[(*at, query if m.queries > 1 else 0)]
    if m.dtype is DType.BOOL:
        return select(op("not_equal", cast(number, I32), 0), score, Const(p.s.fill, Type(F32)))
    return score + number


def _exponentials(p: _GroupAttention, acc: Tensor, top: Tensor, total: Tensor, sums: Tensor) -> None:
    """The exponentials of a thread's scores in shared memory, and their sums; what was summed before times its
    factor."""
    k, many = p.k, p.block.keys // SIDE
    own = []
    for i in range(_EACH):
        value = acc[i, 0]
        for j in range(1, many):
            value = maximum(value, acc[i, j])
        own.append(value)
    p.parts.vec(4)[p.x, p.y] = vector4(*own)
    k.barrier()
    greatest = k.local("m", _EACH)
    for i in range(_EACH):
        greatest[i] = top[i]
    with k.loop("e", SIDE) as e:
        for i, value in enumerate(lanes_of(k.let("p", p.parts.vec(4)[e, p.y]))):
            greatest[i] = maximum(greatest[i], value)
    for i in range(_EACH):
        factor = k.let("f", math.exp_of_negative(top[i] - greatest[i]))
        total[i] = total[i] * factor
        for c in range(p.across):
            sums[i, c] = sums[i, c] * factor
        top[i] = greatest[i]
    for j in range(many):
        terms = [k.let("x", math.exp_of_negative(acc[i, j] - top[i])) for i in range(_EACH)]
        for i, term in enumerate(terms):
            total[i] = total[i] + term
        p.ps.vec(4)[p.x + j * SIDE, p.y] = vector4(*terms)
    k.barrier()


def _multiply_values(p: _GroupAttention, acc: Tensor) -> None:
    """Add the products of the exponentials by a thread's channels of the values."""
    k, wide = p.k, min(4, p.across)
    with k.loop("j", p.block.keys) as j:
        terms = lanes_of(k.let("e", p.ps.vec(4)[j, p.y]))
        for left in range(0, p.across, wide):
            place = p.channel(left)
            if wide == 4:
                values = lanes_of(k.let("v", Load(p.vs.buffer, (j, place), Type(F32, 4))))
            else:
                values = [k.let("v", p.vs[j, place + c]) for c in range(wide)]
            for i, term in enumerate(terms):
                for c, value in enumerate(values):
                    acc[i, left + c] = acc[i, left + c] + term * value


def _store(p: _GroupAttention, acc: Tensor, total: Tensor, y: Tensor) -> None:
    """Store a thread's results: sums over the sums of exponentials of all threads of its queries."""
    k, s, wide = p.k, p.s, min(4, p.across)
    p.parts.vec(4)[p.x, p.y] = vector4(*(total[i] for i in range(_EACH)))
    k.barrier()
    whole = k.local("w", _EACH)
    for i in range(_EACH):
        whole[i] = 0.0
    with k.loop("e", SIDE) as e:
        for i, value in enumerate(lanes_of(k.let("p", p.parts.vec(4)[e, p.y]))):
            whole[i] = whole[i] + value
    for i in range(_EACH):
        scale, query = k.let("s", 1.0 / whole[i]), p.first + p.y * _EACH + i
        middle = (query, p.head) if s.merged else (p.head, query)
        with k.when(*([s.queries - 1 - query] if s.queries % p.block.queries else [])):
            for left in range(0, p.across, wide):
                results = [acc[i, left + c] * scale for c in range(wide)]
                at = (p.batch, *middle, p.channel(left))
                if wide == 4:
                    k.store(y.buffer, at, vector4(*results))
                    continue
                for c, result in enumerate(results):
                    y[(*at[:-1], at[-1] + c)] = result
