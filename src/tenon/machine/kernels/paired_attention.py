"""Attention of bf16 on processors that multiply tiles of it in registers (``isa.amx``) or pairs of it in vectors.

Keys and values are copied as words of two bf16 first (``kernels.attention_words``), in the order in which both kinds of
instructions read their right factors.  A block has up to 32 queries, whose rows are left factors as they lie.  For each
block of keys its scores are made in scratch memory, then their exponentials by vectors along the keys, with an online
softmax of f32 (``kernels.blocked_attention``), then their products by the values.  A word has the exponentials of keys
n and n + 16 of 32 keys, so that those of two vectors are joined without moving lanes; values are copied alike.

Exponentials are rounded to bf16, halves up, before they are multiplied; their sum is that of the unrounded ones.  Dao,
"FlashAttention-2" (2023).

Queries, keys and values of f32 are rounded to bf16 where ``HeadSizes.factors`` says so; results are of f32 then.
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
    reduced_each,
    select,
)
from tenon.machine.kernels import math
from tenon.machine.kernels.attention_tiles import LEAST
from tenon.machine.kernels.attention_words import (
    COLUMNS,
    PairedTile,
    key_words_shape,
    rounded_row,
    value_words_shapes,
    word_tile,
)
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import NARROW, loaded, stored
from tenon.machine.kernels.tile_blocks import CHANNELS as LANES
from tenon.machine.kernels.tile_blocks import TileRows, end, paired, tile_runs, tile_sums
from tenon.network.graph.types import F32, I32, I64, DType

_ROWS = 12
"""Queries whose sums of two vectors are in registers at a time."""

_FASTER = 1.5
"""Products of pairs that take longer, in multiply-adds of a vector, gain nothing."""

_TURNS = 4
"""How often a thread goes through causal queries: early ones, which see few keys, and late ones are shared alike."""

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
    able = machine.lanes == LANES and machine.own_memory and unit_of(machine) is not None
    if s.factors is DType.BF16:
        plain = s.mask is None and not (s.ring or s.slots) and s.cache in (None, *NARROW)
        able = able and s.dtype is F32 and plain and machine.tiles(DType.BF16) is not None
    else:
        able = able and s.dtype is DType.BF16 and not (s.past or s.factors)
    even = s.depth % (LANES if s.factors else 2) == 0 and s.channels % LANES == 0 and s.queries > 1 and s.scale > 0
    even = even and not (s.causal and s.queries > s.keys)
    m = s.mask
    masked = m is None or (m.queries == 1 and m.keys == s.keys and s.keys % LANES == 0)
    return able and even and masked and not (s.length or s.softcap)


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
    """The scratch memory of a thread, in words, by parameter: scores, exponentials, rounded queries of f32 and, where
    there are several blocks of keys, sums of values, for each of ``query_tiles``."""
    (t, unit), shapes = (word_tile(s), unit_of(machine)), list[tuple[str, tuple[int, ...]]]()
    assert unit is not None
    for run in query_tiles(s, unit):
        shapes += [("scores", (t.block // COLUMNS, run.down, run.rows, COLUMNS)), ("terms", (run.count, t.block // 2))]
        if s.factors:
            shapes.append(("queries", (run.count, s.depth // 2)))
        if s.keys > t.block:
            shapes.append(("sums", (run.count, s.channels)))
    return shapes


def key_numbers(s: HeadSizes) -> int:
    """Numbers 0, 1, 2, ... that the kernel takes where queries do not see all keys of a vector; 0 if it takes none."""
    queries = s.queries + (s.pasts if s.past else 0)
    return -(-max(s.keys, queries) // COLUMNS) * COLUMNS if s.causal or s.keys % LANES else 0


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
    past: Index

    @property
    def factor(self) -> float:
        """By what scores are multiplied to be exponents of two."""
        if self.s.factors:
            return 1.0
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
    rounded: Tensor | None
    sums: Tensor | None
    top: Tensor
    total: Tensor
    factors: Tensor

    def shared(self, s: HeadSizes) -> Index:
        """The number of its keys and values."""
        return self.batch * (s.count // s.group) + self.head // s.group


@dataclass(frozen=True)
class _Keys:
    """``count`` keys from ``first`` on, in groups of 32, of which queries may see the first ``seen`` only."""

    first: Index
    count: int
    seen: Index | None = None

    @property
    def groups(self) -> int:
        return -(-self.count // COLUMNS)

    def bounds(self, start: int, groups: int) -> tuple[int, *tuple[Index, ...]]:
        """The extent of a loop over so many groups from the one at key ``start`` on, without those that no query
        sees."""
        return (groups,) if self.seen is None else (groups, self.seen - start // COLUMNS)


@lru_cache(maxsize=128)
def paired_attention(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: queries [batch, count, queries, depth] of bf16, or of f32, the words of
    ``attention_words.key_words`` and those of ``value_words`` for each run; where there are any the mask, the number of
    keys before the first query, i64 [1], ``key_numbers`` i32; ``paired_scratch``; the results."""
    t, unit = word_tile(s), unit_of(machine)
    assert unit is not None
    name = f"paired_attention_{s.batch * s.count}x{s.queries}x{s.keys}x{s.depth}"
    about = f"Attention of {s.batch * s.count} heads with {s.queries} queries and {s.keys} keys of {s.depth} in bf16"
    k = Builder(name, f"{about}; {t.block} keys at a time")
    q = k.param("q", *s.asked) if s.factors else k.param("q", *s.asked[:-1], s.depth // 2, dtype=DType.B2)
    keys = k.param("k", *key_words_shape(s), dtype=DType.B2)
    values = [k.param("v", *shape, dtype=DType.B2) for shape in value_words_shapes(s)]
    m = s.mask
    mask = None if m is None else k.param("m", m.batch, m.heads, m.keys, dtype=m.dtype)
    past = k.param("past", 1, dtype=I64) if s.past else None
    numbers = k.param("numbers", key_numbers(s), dtype=I32) if key_numbers(s) else None
    room = [
        k.param(name, *shape, dtype=F32 if name in ("scores", "sums") else DType.B2, scratch=True)
        for name, shape in paired_scratch(s, machine)
    ]
    y = k.param("y", *s.result, dtype=s.dtype, out=True)
    kinds, inside = deal(s.batch, s.count, threads=machine.threads)
    with ExitStack() as stack:
        before = Index() if past is None else stack.enter_context(k.bind("before", past[0], s.pasts))
        p = _Paired(k, s, t, unit, q, keys, values, mask, numbers, y, before)
        b = stack.enter_context(k.loop("b", s.batch, kind=kinds[0]))
        h = stack.enter_context(k.loop("h", s.count, kind=kinds[1]))
        for run in query_tiles(s, unit):
            scores, terms = room.pop(0), room.pop(0)
            rounded = room.pop(0) if s.factors else None
            sums = room.pop(0) if s.keys > t.block else None
            turns = _TURNS if s.causal and inside == "parallel" and run.blocks % _TURNS == 0 else 1
            apart = run.blocks // turns
            with k.loop("a", apart, kind=inside) as own, k.loop("i", turns, kind=inside) as turn:
                i = turn * apart + own
                lines = -(-run.count // LANES) * LANES
                top, factors = (k.local(name, lines, space="stack") for name in ("top", "factors"))
                total = k.local("total", run.count, LANES, space="stack")
                room_of = (scores, terms, rounded, sums)
                _attend(p, _Block(b, h, i * run.count + run.start, run, *room_of, top, total, factors))
    return k.done()


def _attend(p: _Paired, b: _Block) -> None:
    """All keys for a block of queries."""
    k, s, t = p.k, p.s, p.t
    if b.rounded is not None:
        with k.loop("r", b.run.count) as r:
            rounded_row(k, p.q, _query(p, b, r)[:-1], b.rounded, (r,), s.scale * math.LOG2E)
    with k.loop("r", -(-b.run.count // LANES)) as r:
        b.top.vec(LANES)[r], b.factors.vec(LANES)[r] = LEAST, 0.0
    with k.loop("r", b.run.count) as r:
        b.total.vec(LANES)[r, 0] = 0.0
        if b.sums is not None:
            with k.loop("c", s.channels // LANES) as c:
                b.sums.vec(LANES)[r, c] = 0.0
    if p.unit.operation != "dot2" and _alike(p):
        with k.instruction(BEGIN, (), *TileBlock(b.run.rows, b.run.down, 2, LANES).shape):
            pass
    for start, blocks, count in segments(s.keys, t.block):
        seen = [(p.past + b.first + (b.run.count + t.block - 1 - start)) // t.block] if s.causal else []
        with k.loop("n", blocks, *seen) as n:
            groups = (p.past + b.first + (b.run.count + COLUMNS - 1)) // COLUMNS
            before = n * (t.block // COLUMNS) + start // COLUMNS
            keys = _Keys(n * t.block + start, count, groups - before if s.causal else None)
            with k.when(*([keys.first + (count + s.window - 2) - b.first - p.past] if s.window else [])):
                _scores(p, b, keys)
                _hide(p, b, keys)
                with k.loop("i", b.run.down) as i:
                    for first, sixteenths, height in segments(b.run.rows, LANES):
                        with k.loop("t", sixteenths) as sixteenth:
                            _exponentials(p, b, keys, (i, sixteenth + first // LANES), height)
                _values(p, b, keys)
    if p.unit.operation != "dot2":
        end(k)
    if b.sums is not None:
        with k.loop("r", b.run.count) as r:
            scale = k.let("s", 1.0 / reduce_lanes("add", b.total.vec(LANES)[r, 0]))
            with k.loop("c", s.channels // LANES) as c:
                _store(p, b, r, c, b.sums.vec(LANES)[r, c] * scale)


def _query(p: _Paired, b: _Block, row: Index | int, word: Index | int = 0) -> tuple[Index, ...]:
    """Where a word of a query of the block lies, before it is copied."""
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
    apart = 2 * s.depth * (s.count if s.rows_first and b.rounded is None else 1)

    def word(row: Index, number: Index) -> tuple[Tensor, tuple[Index, ...]]:
        return (p.q, _query(p, b, row, number)) if b.rounded is None else (b.rounded, (row, number))

    def value(row: Index, number: Index) -> Expr:
        tensor, place = word(row, number)
        return tensor[place]

    left = TileRows(
        words,
        apart,
        ((steps, 4 * words),),
        lambda _, row: word(row, Index()),
        lambda _, row, turns, q: value(row, turns[0] * words + q),
    )
    block = TileBlock(run.rows, run.down, 2, words, apart, loops=left.loops)
    _begin(p, b, block)
    about = f"scores of {run.count} queries"
    with k.loop("g", *keys.bounds(0, keys.groups)) as g, k.outline(f"scores{run.count}", about):
        places = [(Index(), Index((), i * run.rows)) for i in range(run.down)]
        operands = [(p.keys, (group + g, 0, 0, 0, 0)), *(left.first(*place) for place in places)]
        with k.instruction(p.unit.operation, (*operands, (b.scores, (g, 0, 0, 0))), *block.numbers):
            tile_sums(k, p.unit, block, (left, p.keys, group + g), places, (b.scores, (g,)))


def _alike(p: _Paired) -> bool:
    """Whether all products of a block of queries have tiles of one size."""
    return p.t.words == LANES and all(run.across == 2 for run in tile_runs(p.s.channels, 2))


def _begin(p: _Paired, b: _Block, block: TileBlock) -> None:
    """Say how large tiles are, unless that was said before all keys."""
    if not _alike(p):
        with p.k.instruction(BEGIN, (), *block.shape):
            pass


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


def _hide(p: _Paired, b: _Block, keys: _Keys) -> None:
    """The scores of a block as they are compared, where they change: in blocks of which not every query sees all keys,
    if nothing else is added to them."""
    k, s = p.k, p.s
    if p.mask is None and not s.causal and keys.count % COLUMNS == 0:
        return
    always = p.mask is not None or s.window or not s.causal or keys.count % COLUMNS
    hidden = keys.first + (keys.count - 2) - b.first - p.past
    with k.when(*([] if always else [hidden])), k.loop("i", b.run.down) as i, k.loop("r", b.run.rows) as r:
        for start, groups, count in segments(keys.count, COLUMNS):
            with k.loop("g", *keys.bounds(start, groups)) as n:
                for v, present in enumerate((min(LANES, count), max(0, count - LANES))):
                    _compare(p, b, keys, (n + start // COLUMNS, i, r, v), present)


def _exponentials(p: _Paired, b: _Block, keys: _Keys, at: tuple[Index, Index], height: int) -> None:
    """The exponentials of the scores of up to 16 queries, rounded, in words; what was summed before gets its factor.
    ``at``: which tile of queries, and how many queries of it come before, by 16."""
    k, (i, sixteenth) = p.k, at
    scores, terms, total = b.scores.vec(LANES), b.terms.vec(LANES), b.total.vec(LANES)
    greatest = k.local("g", LANES, LANES, space="stack")
    acc = k.local("m", 2, lanes=LANES)
    with k.loop("r", height) as r:
        for v in range(2):
            acc[v] = LEAST
        with k.loop("g", *keys.bounds(0, keys.groups)) as g:
            for v in range(2):
                acc[v] = maximum(acc[v], scores[g, i, sixteenth * LANES + r, v])
        greatest.vec(LANES)[r, 0] = maximum(acc[0], acc[1])
    place = i * (b.run.rows // LANES) + sixteenth
    (own,) = reduced_each(maximum, [greatest.vec(LANES)[r, 0] for r in range(height)])
    before = k.let("b", b.top.vec(LANES)[place])
    top = k.let("t", maximum(before, own))
    b.top.vec(LANES)[place], b.factors.vec(LANES)[place] = top, _power((before - top) * p.factor)
    with k.loop("r", height) as r:
        own_row = sixteenth * LANES + r
        row = i * b.run.rows + own_row
        wide = k.let("w", broadcast(b.top[row], LANES))
        for v in range(2):
            acc[v] = 0.0
        with k.loop("g", *keys.bounds(0, keys.groups)) as g:
            es = [k.let("e", _power((scores[g, i, own_row, v] - wide) * p.factor)) for v in range(2)]
            for v, e in enumerate(es):
                acc[v] = acc[v] + e
            k.store(terms.buffer, (row, g * LANES), bitcast(paired(*es), DType.B2))
        if keys.seen is not None:
            with k.loop("z", keys.groups, keys.groups - keys.seen) as n:
                nothing = bitcast(broadcast(Const(0, Type(I32)), LANES), DType.B2)
                k.store(terms.buffer, (row, (keys.groups - 1 - n) * LANES), nothing)
        total[row, 0] = total[row, 0] * broadcast(b.factors[row], LANES) + (acc[0] + acc[1])


def _power(x: Expr) -> Expr:
    """2**x of x <= 0, as exactly as 16 bits need; 2.4e-38 below -125: no subnormal number, by which many processors
    multiply slowly."""
    return math.power_of_two(maximum(-125.0, x), math.EXP2_OF_16_BITS)


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
        own = broadcast(p.numbers[row + p.past] if s.causal else Const(s.keys - 1, Type(I32)), LANES)
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
            b.factors[r] = 1.0 / reduce_lanes("add", b.total.vec(LANES)[r, 0])

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
    _begin(p, b, block)
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
