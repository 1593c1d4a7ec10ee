"""Attention of bf16 on processors that multiply tiles of it in registers (``isa.amx``) or pairs of it in vectors.

Keys and values are copied as words of two bf16 first (``kernels.attention_words``), in the order in which both kinds of
instructions read their right factors.  A block has up to 32 queries, whose rows are left factors as they lie.  For each
block of keys its scores are made in scratch memory, then their exponentials by vectors along the keys, with an online
softmax of f32 (``kernels.blocked_attention``), then their products by the values.  A word has the exponentials of keys
n and n + 16 of 32 keys, so that those of two vectors are joined without moving lanes; values are copied alike.

Exponentials are rounded to bf16, halves up, before they are multiplied; their sum is that of the unrounded ones.  Dao,
"FlashAttention-2" (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.isa.amx import BEGIN, TileBlock
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Load,
    Type,
    bitcast,
    broadcast,
    cast,
    dot2,
    less,
    maximum,
    op,
    reduce_lanes,
    select,
)
from tenon.machine.kernels import math
from tenon.machine.kernels.attention_tiles import LEAST
from tenon.machine.kernels.attention_words import (
    COLUMNS,
    PairedTile,
    key_words_shape,
    value_words_shapes,
    word_tile,
)
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.machine.kernels.tile_blocks import CHANNELS as LANES
from tenon.machine.kernels.tile_blocks import TileRows, end, tile_runs, tile_sums
from tenon.network.graph.types import F32, I32, DType

_ROWS = 12
"""Queries whose sums of two vectors are in registers at a time."""

_FASTER = 1.5
"""Products of pairs that take longer, in multiply-adds of a vector, gain nothing."""

_HALF = 0x8000
"""Half of the last bit of a bf16, in the bits of an f32."""

Finish = Callable[[Index | int, Index | int, Index, Expr], None]
"""f(tile of queries, query of the tile, vector of channels, sums)."""


def unit_of(machine: Machine) -> ProductUnit | None:
    """The unit that multiplies: of tiles, else of pairs."""
    tiles, pairs = machine.tiles(DType.BF16), machine.multiplies(DType.BF16, 2)
    if tiles is not None:
        return tiles
    return pairs if pairs is not None and pairs.operation == "dot2" and pairs.time <= _FASTER else None


def supported(s: HeadSizes, machine: Machine) -> bool:
    """Whether there is a kernel for heads of these sizes.  Masks may differ by key only, of whole vectors of these."""
    able = s.dtype is DType.BF16 and machine.lanes == LANES and machine.own_memory and unit_of(machine) is not None
    even = s.depth % 2 == 0 and s.channels % LANES == 0 and s.queries > 1 and s.scale > 0
    even = even and not (s.causal and s.queries > s.keys)
    m = s.mask
    masked = m is None or (m.queries == 1 and m.keys == s.keys and s.keys % LANES == 0)
    return able and even and masked and not (s.length or s.past or s.softcap)


@dataclass(frozen=True)
class QueryTiles:
    """``blocks`` blocks of ``down`` tiles of ``rows`` queries from ``start`` on."""

    start: int
    blocks: int
    down: int
    rows: int

    @property
    def count(self) -> int:
        return self.down * self.rows


def query_tiles(s: HeadSizes, unit: ProductUnit) -> list[QueryTiles]:
    """Blocks of 32 queries, and the rest of them."""
    runs = []
    for start, blocks, count in segments(s.queries, COLUMNS):
        if unit.operation == "dot2":
            runs.append(QueryTiles(start, blocks, 1, count))
        elif count == COLUMNS:
            runs.append(QueryTiles(start, blocks, 2, LANES))
        else:
            runs += [QueryTiles(start + first, 1, 1, rows) for first, _, rows in segments(count, LANES)]
    return runs


def paired_scratch(s: HeadSizes, machine: Machine) -> list[tuple[str, tuple[int, ...]]]:
    """The scratch memory of a thread, in words, by parameter: scores, exponentials and, where there are several blocks
    of keys, sums of values, for each of ``query_tiles``."""
    (t, unit), shapes = (word_tile(s), unit_of(machine)), list[tuple[str, tuple[int, ...]]]()
    assert unit is not None
    for run in query_tiles(s, unit):
        shapes += [("scores", (t.block // COLUMNS, run.down, run.rows, COLUMNS)), ("terms", (run.count, t.block // 2))]
        if s.keys > t.block:
            shapes.append(("sums", (run.count, s.channels)))
    return shapes


def key_numbers(s: HeadSizes) -> int:
    """Numbers 0, 1, 2, ... that the kernel takes where queries do not see all keys of a vector; 0 if it takes none."""
    return -(-max(s.keys, s.queries) // COLUMNS) * COLUMNS if s.causal or s.keys % LANES else 0


@dataclass(frozen=True, eq=False)
class _Paired:
    """A kernel being built: operands in words."""

    k: Builder
    s: HeadSizes
    t: PairedTile
    unit: ProductUnit
    q: Tensor
    keys: Tensor
    values: list[Tensor]
    mask: Tensor | None
    numbers: Tensor | None
    y: Tensor

    @property
    def factor(self) -> float:
        """By what scores are multiplied to be exponents of two."""
        return math.LOG2E if self.mask is not None else self.s.scale * math.LOG2E


@dataclass(frozen=True, eq=False)
class _Block:
    """The queries of a head from ``first`` on; memory of the thread; state of each query."""

    batch: Index
    head: Index
    first: Index
    run: QueryTiles
    scores: Tensor
    terms: Tensor
    sums: Tensor | None
    top: Tensor
    total: Tensor
    factors: Tensor

    def shared(self, s: HeadSizes) -> Index:
        """The number of its keys and values."""
        return self.batch * (s.count // s.group) + self.head // s.group


@dataclass(frozen=True)
class _Keys:
    """``count`` keys from ``first`` on, in groups of 32."""

    first: Index
    count: int

    @property
    def groups(self) -> int:
        return -(-self.count // COLUMNS)


@lru_cache(maxsize=128)
def paired_attention(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: queries [batch, count, queries, depth] of bf16, the words of ``attention_words.key_words`` and those
    of ``value_words`` for each run; where there are any the mask, ``key_numbers`` i32; ``paired_scratch``; the
    results."""
    t, unit = word_tile(s), unit_of(machine)
    assert unit is not None
    name = f"paired_attention_{s.batch * s.count}x{s.queries}x{s.keys}x{s.depth}"
    about = f"Attention of {s.batch * s.count} heads with {s.queries} queries and {s.keys} keys of {s.depth} in bf16"
    k = Builder(name, f"{about}; {t.block} keys at a time")
    q = k.param("q", *s.asked[:-1], s.depth // 2, dtype=DType.B2)
    keys = k.param("k", *key_words_shape(s), dtype=DType.B2)
    values = [k.param("v", *shape, dtype=DType.B2) for shape in value_words_shapes(s)]
    m = s.mask
    mask = None if m is None else k.param("m", m.batch, m.heads, m.keys, dtype=m.dtype)
    numbers = k.param("numbers", key_numbers(s), dtype=I32) if key_numbers(s) else None
    room = [
        k.param(name, *shape, dtype=DType.B2 if name == "terms" else F32, scratch=True)
        for name, shape in paired_scratch(s, machine)
    ]
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    p = _Paired(k, s, t, unit, q, keys, values, mask, numbers, y)
    kinds, inside = deal(s.batch, s.count, threads=machine.threads)
    with ExitStack() as stack:
        b = stack.enter_context(k.loop("b", s.batch, kind=kinds[0]))
        h = stack.enter_context(k.loop("h", s.count, kind=kinds[1]))
        for run in query_tiles(s, unit):
            scores, terms = room.pop(0), room.pop(0)
            sums = room.pop(0) if s.keys > t.block else None
            with k.loop("i", run.blocks, kind=inside) as i:
                state = [k.local(name, run.count, space="stack") for name in ("top", "total", "factors")]
                _attend(p, _Block(b, h, i * run.count + run.start, run, scores, terms, sums, *state))
    return k.done()


def _attend(p: _Paired, b: _Block) -> None:
    """All keys for a block of queries."""
    k, s, t = p.k, p.s, p.t
    with k.loop("r", b.run.count) as r:
        b.top[r], b.total[r] = LEAST, 0.0
        if b.sums is not None:
            with k.loop("c", s.channels // LANES) as c:
                b.sums.vec(LANES)[r, c] = 0.0
    for start, blocks, count in segments(s.keys, t.block):
        seen = [(b.first + (b.run.count + t.block - 1 - start)) // t.block] if s.causal else []
        with k.loop("n", blocks, *seen) as n:
            keys = _Keys(n * t.block + start, count)
            with k.when(*([keys.first + (count + s.window - 2) - b.first] if s.window else [])):
                _scores(p, b, keys)
                with k.loop("i", b.run.down) as i, k.loop("r", b.run.rows) as r:
                    _exponentials(p, b, keys, i, r)
                _values(p, b, keys)
    if p.unit.operation != "dot2":
        end(k)
    if b.sums is not None:
        with k.loop("r", b.run.count) as r:
            scale = k.let("s", 1.0 / b.total[r])
            with k.loop("c", s.channels // LANES) as c:
                _store(p, b, r, c, b.sums.vec(LANES)[r, c] * scale)


def _query(p: _Paired, b: _Block, row: Index | int, word: Index | int) -> tuple[Index, ...]:
    """Where a word of a query of the block lies."""
    at = b.first + row
    middle = (at, b.head) if p.s.rows_first else (b.head, at)
    return (b.batch, *middle, index(word))


def _scores(p: _Paired, b: _Block, keys: _Keys) -> None:
    """The products of the queries and a block of keys."""
    k, s, words, run = p.k, p.s, p.t.words, b.run
    group = b.shared(s) * -(-s.keys // COLUMNS) + keys.first // COLUMNS
    if p.unit.operation == "dot2":
        for start, count, columns in segments(keys.count, COLUMNS):
            with k.loop("g", count) as g:
                _scores_by_pairs(p, b, (group, g + start // COLUMNS), -(-columns // LANES))
        return
    steps = s.depth // (2 * words)
    apart = 2 * s.depth * (s.count if s.rows_first else 1)
    left = TileRows(
        words,
        apart,
        ((steps, 4 * words),),
        lambda _, row: (p.q, _query(p, b, row, 0)),
        lambda _, row, turns, q: p.q[_query(p, b, row, turns[0] * words + q)],
    )
    block = TileBlock(run.rows, run.down, 2, words, apart, loops=left.loops)
    with k.instruction(BEGIN, (), *block.shape):
        pass
    with k.loop("g", keys.groups) as g, k.outline(f"scores{run.count}", f"scores of {run.count} queries"):
        places = [(Index(), Index((), i * run.rows)) for i in range(run.down)]
        operands = [(p.keys, (group + g, 0, 0, 0, 0)), *(left.first(*place) for place in places)]
        with k.instruction(p.unit.operation, (*operands, (b.scores, (g, 0, 0, 0))), *block.numbers):
            tile_sums(k, p.unit, block, (left, p.keys, group + g), places, (b.scores, (g,)))


def _scores_by_pairs(p: _Paired, b: _Block, of: tuple[Index, Index], vecs: int) -> None:
    """Scores of ``vecs`` vectors of keys; ``of`` is the first group of the block, and which of the block it is."""
    k, words, (group, g) = p.k, p.t.words, of
    steps = [(Index(), p.s.depth // (2 * words), words)]
    for start, tiles, height in segments(b.run.rows, _ROWS):
        about = f"the scores of {height} queries and {vecs * LANES} keys"
        with k.loop("j", tiles) as j, k.outline(f"scores{height}x{vecs}", about):
            row = j * height + start

            def word(i: Index, step: Index, number: Index, first: Index = row) -> Expr:
                return p.q[_query(p, b, first + i, step * words + number)]

            acc = _pair_sums(k, (height, vecs), steps, word, (p.keys, group + g, Index()))
            with k.unroll("p", height) as i, k.unroll("v", vecs) as v:
                b.scores.vec(LANES)[g, 0, row + i, v] = acc[i, v]


def _pair_sums(
    k: Builder,
    tile: tuple[int, int],
    parts: Sequence[tuple[Index, int, int]],
    word: Callable[[Index, Index, Index], Expr],
    right: tuple[Tensor, Index, Index],
) -> Tensor:
    """Sums in registers of products of pairs, of queries by vectors; ``parts`` are (first step, steps, words), and
    ``right`` words, their group and first step."""
    (height, vecs), (w, group, before) = tile, right
    acc = k.local("a", height, vecs, lanes=LANES)
    with k.unroll("p", height) as i, k.unroll("v", vecs) as v:
        acc[i, v] = 0.0
    for first, steps, words in parts:
        with k.loop("c", steps) as c, k.loop("q", words) as q:
            step = first + c
            ws = [k.let(f"w{v}", w.vec(LANES)[group, before + step, v, q, 0]) for v in range(vecs)]
            with k.unroll("p", height) as i:
                x = k.let("x", broadcast(word(i, step, q), LANES))
                for n, weights in enumerate(ws):
                    acc[i, n] = dot2(acc[i, n], weights, x)
    return acc


def _exponentials(p: _Paired, b: _Block, keys: _Keys, i: Index, r: Index) -> None:
    """The exponentials of a query's scores, rounded, in words; what was summed before gets its factor."""
    k, row = p.k, i * b.run.rows + r
    scores, terms = b.scores.vec(LANES), b.terms.vec(LANES)
    acc = k.local("m", 2, lanes=LANES)
    for v in range(2):
        acc[v] = LEAST
    for start, groups, count in segments(keys.count, COLUMNS):
        with k.loop("g", groups) as n:
            g = n + start // COLUMNS
            for v, present in enumerate((min(LANES, count), max(0, count - LANES))):
                _compare(p, b, keys, (g, i, r, v), present)
                acc[v] = maximum(acc[v], scores[g, i, r, v])
    top = k.let("t", maximum(b.top[row], reduce_lanes("max", maximum(acc[0], acc[1]))))
    factor = k.let("f", _power((b.top[row] - top) * p.factor))
    wide = k.let("w", broadcast(top, LANES))
    for v in range(2):
        acc[v] = 0.0
    with k.loop("g", keys.groups) as g:
        es = [k.let("e", _power((scores[g, i, r, v] - wide) * p.factor)) for v in range(2)]
        for v, e in enumerate(es):
            acc[v] = acc[v] + e
        low, high = (bitcast(e, I32) + _HALF for e in es)
        k.store(terms.buffer, (row, g * LANES), bitcast(op("or", low >> 16, op("and", high, -65536)), DType.B2))
    b.top[row], b.factors[row] = top, factor
    b.total[row] = b.total[row] * factor + reduce_lanes("add", acc[0] + acc[1])


def _power(x: Expr) -> Expr:
    """2**x of x <= 0, as exactly as 16 bits need; 1.2e-38 below -126."""
    return math.power_of_two(maximum(-126.0, x), math.EXP2_OF_16_BITS)


def _compare(p: _Paired, b: _Block, keys: _Keys, at: tuple[Index, Index, Index, int], present: int) -> None:
    """Scores of 16 keys, of which so many are there, as they are compared, in their place."""
    s, (g, i, r, v), scores = p.s, at, b.scores.vec(LANES)
    first, row = keys.first + g * COLUMNS + v * LANES, b.first + i * b.run.rows + r
    hidden, score = _wide(-np.inf), scores[g, i, r, v]
    if not present:
        scores[g, i, r, v] = hidden
        return
    if p.mask is not None:
        score = _masked(p, b, first, score)
    if p.numbers is not None and (s.causal or present < LANES):
        number = Load(p.numbers.buffer, (first,), Type(I32, LANES))
        own = broadcast(p.numbers[row] if s.causal else Const(s.keys - 1, Type(I32)), LANES)
        score = select(less(own, number), hidden, score)
        if s.window:
            score = select(less(own - s.window, number), score, hidden)
        scores[g, i, r, v] = score
    elif p.mask is not None:
        scores[g, i, r, v] = score


def _masked(p: _Paired, b: _Block, key: Index, score: Expr) -> Expr:
    """Scores with the mask added, or chosen by it."""
    s, mask = p.s, p.mask
    assert s.mask is not None
    assert mask is not None
    outer = (b.batch if s.mask.batch > 1 else index(0), b.head if s.mask.heads > 1 else index(0))
    number = Load(mask.buffer, (*outer, key), Type(s.mask.dtype, LANES))
    if s.mask.dtype is DType.BOOL:
        return select(op("not_equal", cast(number, I32), 0), score * s.scale, _wide(s.fill))
    return score * s.scale + loaded(number)


def _wide(value: float) -> Expr:
    return broadcast(Const(value, Type(F32)), LANES)


def _values(p: _Paired, b: _Block, keys: _Keys) -> None:
    """Products of the exponentials by the values of a block of keys: added to the sums before, or results."""
    k, s, run = p.k, p.s, b.run
    step = keys.first // COLUMNS
    if b.sums is None:
        with k.loop("r", run.count) as r:
            b.factors[r] = 1.0 / b.total[r]

    def finish(i: Index | int, r: Index | int, vector: Index, value: Expr) -> None:
        row = index(i) * run.rows + r
        factor = broadcast(b.factors[row], LANES)
        if b.sums is None:
            _store(p, b, row, vector, value * factor)
        else:
            b.sums.vec(LANES)[row, vector] = b.sums.vec(LANES)[row, vector] * factor + value

    for columns, w in zip(tile_runs(s.channels, 2), p.values, strict=True):
        with k.loop("o", columns.count) as o:
            group = b.shared(s) * columns.count + o
            vector = o * columns.across + columns.first
            place = (w, group, step, vector, columns.across)
            if p.unit.operation == "dot2":
                _values_by_pairs(p, b, keys, place, finish)
            else:
                _values_by_tiles(p, b, keys, place, finish)


_Place = tuple[Tensor, Index, Index, Index, int]
"""Words of values, their group and first step; the first vector of channels, and how many there are."""


def _values_by_pairs(p: _Paired, b: _Block, keys: _Keys, place: _Place, finish: Finish) -> None:
    k, (w, group, step, vector, across) = p.k, place
    whole, rest = divmod(keys.count, COLUMNS)
    parts = [(Index(), whole, LANES), *([(Index((), whole), 1, min(rest, LANES))] if rest else [])]
    for start, tiles, height in segments(b.run.rows, _ROWS):
        with k.loop("j", tiles) as j, k.outline(f"values{height}x{across}", f"values for {height} queries"):
            row = j * height + start

            def word(i: Index, c: Index, number: Index, first: Index = row) -> Expr:
                return b.terms[first + i, c * LANES + number]

            acc = _pair_sums(k, (height, across), parts, word, (w, group, step))
            with k.unroll("p", height) as i, k.unroll("v", across) as v:
                finish(0, row + i, vector + v, acc[i, v])


def _values_by_tiles(p: _Paired, b: _Block, keys: _Keys, place: _Place, finish: Finish) -> None:
    k, run, (w, group, step, vector, across) = p.k, b.run, place
    left = TileRows(
        LANES,
        2 * p.t.block,
        ((keys.groups, 64),),
        lambda _, row: (b.terms, (row, 0)),
        lambda _, row, turns, q: b.terms[row, turns[0] * LANES + q],
    )
    block = TileBlock(run.rows, run.down, across, LANES, left.apart, loops=left.loops)
    with k.instruction(BEGIN, (), *block.shape):
        pass
    with k.outline(f"values{run.count}x{across}", f"values for {run.count} queries"):
        sums = k.local("s", run.down, run.rows, across * LANES, space="stack")
        places = [(Index(), Index((), i * run.rows)) for i in range(run.down)]
        operands = [(w, (group, step, 0, 0, 0)), *(left.first(*at) for at in places), (sums, (0, 0, 0))]
        with k.instruction(p.unit.operation, operands, *block.numbers):
            tile_sums(k, p.unit, block, (left, w, group), places, (sums, ()), step)
        for i in range(run.down):
            with k.loop("r", run.rows) as r, k.unroll("v", across) as v:
                finish(i, r, vector + v, sums.vec(LANES)[i, r, v])


def _store(p: _Paired, b: _Block, row: Index, vector: Index, value: Expr) -> None:
    """Store results of a query."""
    query = b.first + row
    middle = (query, b.head) if p.s.merged else (b.head, query)
    p.y.vec(LANES)[(b.batch, *middle, vector)] = stored(value, p.s.dtype)
