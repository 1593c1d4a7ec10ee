"""Keys and values of bf16 as words of two numbers, in the order of the right factors of ``kernels.paired_attention``.

A group has 32 columns, as two tiles of 16.  Keys are turned round: a word has two neighbouring elements of one key.  A
word of values has those of two keys, n and n + 16 of 32.  What lies beyond the last key is zero.

Where products of f32 are asked for in bf16, one kernel rounds keys and values and copies them (``rounded_words``); the
words of keys and queries have other pairs of elements then, which need no moving of lanes (``rounded_row``).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
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
    lanes_of,
    op,
    vector4,
)
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import loaded
from tenon.machine.kernels.tile_blocks import CHANNELS as LANES
from tenon.machine.kernels.tile_blocks import TileRun, paired, tile_runs
from tenon.network.graph.types import F32, I32, I64, DType

COLUMNS = 2 * LANES
"""Keys of a group, and most channels of one."""

_BLOCK, _CAUSAL_BLOCK, _WHOLE = 256, 128, 384
"""Keys of a block, also where queries see some of them; most keys that are one block."""

_DEALT = 16
"""Neighbouring groups of keys that different threads copy, as only the first groups may be needed."""


@dataclass(frozen=True)
class PairedTile:
    """``block`` keys at a time, whole groups; a step multiplies ``words`` words of a query by those of the keys."""

    block: int
    words: int


def word_tile(s: HeadSizes) -> PairedTile:
    """The tile for heads of these sizes."""
    groups = -(-s.keys // COLUMNS)
    most = _CAUSAL_BLOCK if s.causal else _WHOLE if s.keys <= _WHOLE else _BLOCK
    pairs = s.depth // 2
    words = next(n for n in range(min(LANES, pairs), 0, -1) if pairs % n == 0)
    return PairedTile(min(groups * COLUMNS, most), words)


def key_words_shape(s: HeadSizes) -> tuple[int, ...]:
    """[groups of all heads][steps][tiles of columns][words][16]."""
    words = word_tile(s).words
    heads = s.batch * (s.count // s.group)
    return heads * -(-s.keys // COLUMNS), s.depth // (2 * words), 2, words, LANES


def value_words_shapes(s: HeadSizes) -> list[tuple[int, ...]]:
    """[groups of channels of all heads][groups of keys][tiles of columns][16][16], for every run of channels."""
    heads, groups = s.batch * (s.count // s.group), -(-s.keys // COLUMNS)
    return [(heads * run.count, groups, run.across, LANES, LANES) for run in tile_runs(s.channels, 2)]


@lru_cache(maxsize=128)
def rounded_words(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: keys and values of f32 or 16 bits [batch, count / group, keys, depth or channels], where there is one
    the number of keys before the first query, i64 [1]; the words of both rounded to bf16, of values for each run.  Of
    the keys behind the last query those of its block are words, too."""
    heads, (whole, rest) = s.batch * (s.count // s.group), divmod(s.keys, COLUMNS)
    name = f"rounded_words_{heads}x{s.keys}x{s.depth}"
    k = Builder(name, f"Keys and values of [{heads}, {s.keys}, {s.depth}] rounded to bf16, in the order of tiles")
    x, v = k.param("k", heads, s.keys, s.depth, dtype=s.stored), k.param("v", heads, s.keys, s.channels, dtype=s.stored)
    with ExitStack() as stack:
        seen = list[Index]()
        if s.past:
            past, block = k.param("past", 1, dtype=I64), word_tile(s).block
            before = stack.enter_context(k.bind("before", past[0], s.pasts))
            seen.append((before + (s.queries + block - 1)) // block * (block // COLUMNS))
        keys = k.param("wk", *key_words_shape(s), dtype=I32, out=True)
        values = [k.param("wv", *shape, dtype=I32, out=True) for shape in value_words_shapes(s)]
        (outer, inner), _ = deal(heads, whole or 1, threads=machine.threads)
        dealt = next(n for n in range(min(_DEALT, whole), 0, -1) if whole % n == 0) if whole and s.past else 1
        with k.loop("h", heads, kind=outer) as h:
            for first, count, present, bounds in ((0, whole, COLUMNS, seen), (whole, min(rest, 1), rest, [])):
                if not count:
                    continue
                near = dealt if count == whole else 1
                with ExitStack() as inside:
                    own = inside.enter_context(k.loop("a", near, kind=inner))
                    ends = [(bound - own + (near - 1)) // near for bound in bounds]
                    g = inside.enter_context(k.loop("g", count // near, *ends)) * near + own + first
                    room = k.local("r", 1, COLUMNS, s.depth // 2, dtype=I32, space="stack")
                    with k.loop("j", present) as j:
                        rounded_row(k, x, (h, g * COLUMNS + j), room, (Index(), j))
                    place = h * (whole + min(rest, 1)) + g
                    _turned_group(k, (room, keys), word_tile(s), (Index(), Index(), place), present)
                    for run, y in zip(tile_runs(s.channels, 2), values, strict=True):
                        _rounded_values(k, (v, y), run, (h, g), present)
    return k.done()


def _rounded_values(
    k: Builder, memory: tuple[Tensor, Tensor], run: TileRun, at: tuple[Index, Index], present: int
) -> None:
    """The words of a group of values, of which so many are there; ``at`` are its head and number."""
    (x, y), (h, g), second = memory, at, max(0, present - LANES)
    nothing = broadcast(Const(0.0, Type(F32)), LANES)
    with k.loop("o", run.count) as o, k.loop("a", run.across) as a:
        column = o * run.across + a + run.first
        for start, count, parts in ((0, second, 2), (second, min(present, LANES) - second, 1)):
            with k.loop("w", count) as i:
                w = i + start
                pair = [loaded(x.vec(LANES)[h, g * COLUMNS + half * LANES + w, column]) for half in range(parts)]
                k.store(y.buffer, (h * run.count + o, g, a, w, Index()), paired(*[*pair, nothing][:2]))
        with k.loop("w", max(0, LANES - present)) as i:
            y.vec(LANES)[h * run.count + o, g, a, i + present, 0] = 0


def rounded_row(
    k: Builder, x: Tensor, at: tuple[Index, ...], y: Tensor, into: tuple[Index, ...], factor: float = 1.0
) -> None:
    """A row of floats, times ``factor``, rounded to bf16: words of elements n and n + 16 of 32 (of 16, 8 apart)."""
    for start, count, width in lane_segments(x.buffer.shape[-1].const, COLUMNS):
        lanes = width // 2
        with k.loop("c", count) as c:
            place = c + start // width
            halves = [loaded(x.vec(lanes)[(*at, place * 2 + i)]) for i in (0, 1)]
            words = k.let("w", paired(*([half * factor for half in halves] if factor != 1 else halves)))
            own = words if y.buffer.type.dtype is I32 else bitcast(words, DType.B2)
            k.store(y.buffer, (*into, place * lanes), own)


@lru_cache(maxsize=128)
def key_words(s: HeadSizes, machine: Machine) -> Kernel:
    """Parameters: keys [batch, count / group, keys, depth] of bf16, and their words."""
    heads, groups = s.batch * (s.count // s.group), -(-s.keys // COLUMNS)
    k = Builder(f"key_words_{heads}x{s.keys}x{s.depth}", f"Keys of [{heads}, {s.keys}, {s.depth}] bf16, turned round")
    x = k.param("x", heads, s.keys, s.depth // 2, dtype=I32)
    y = k.param("y", *key_words_shape(s), dtype=I32, out=True)
    (outer, inner), _ = deal(heads, s.keys // COLUMNS or 1, threads=machine.threads)
    with k.loop("h", heads, kind=outer) as h:
        with k.loop("g", s.keys // COLUMNS, kind=inner) as g:
            _turned_group(k, (x, y), word_tile(s), (h, g, h * groups + g), COLUMNS)
        if s.keys % COLUMNS:
            with k.loop("g", 1, kind=inner) as g:
                last = g + (groups - 1)
                _turned_group(k, (x, y), word_tile(s), (h, last, h * groups + last), s.keys % COLUMNS)
    return k.done()


def _turned_group(
    k: Builder, memory: tuple[Tensor, Tensor], t: PairedTile, at: tuple[Index, Index, Index], count: int
) -> None:
    """A group of keys, of which ``count`` are there; ``at`` is their head, the number of the group in it and in all."""
    (x, y), (h, g, place), square = memory, at, t.words % 4 == 0
    steps = y.buffer.shape[1].const
    for v in range(2):
        present = min(LANES, max(0, count - v * LANES))
        whole = present // 4 * 4 if square else 0
        first = g * COLUMNS + v * LANES
        if whole:
            with k.loop("s", steps) as s, k.loop("q", t.words // 4) as q, k.loop("j", whole // 4) as j:
                word = s * t.words + q * 4
                rows = [k.let("x", Load(x.buffer, (h, first + j * 4 + i, word), Type(I32, 4))) for i in range(4)]
                for i, column in enumerate(zip(*map(lanes_of, rows), strict=True)):
                    k.store(y.buffer, (place, s, index(v), q * 4 + i, j * 4), vector4(*column))
        with k.loop("s", steps) as s, k.loop("q", t.words) as q:
            with k.loop("j", present - whole) as j:
                y[place, s, v, q, j + whole] = x[h, first + whole + j, s * t.words + q]
            with k.loop("j", LANES - present) as j:
                y[place, s, v, q, j + present] = Const(0, Type(I32))


@lru_cache(maxsize=128)
def value_words(s: HeadSizes, machine: Machine, number: int) -> Kernel:
    """The run ``number`` of channels.  Parameters: values [batch, count / group, keys, channels] of bf16, their
    words."""
    heads, run = s.batch * (s.count // s.group), tile_runs(s.channels, 2)[number]
    name = f"value_words{number}_{heads}x{s.keys}x{s.channels}"
    k = Builder(name, f"Values of [{heads}, {s.keys}, {s.channels}] bf16 as pairs of keys in tiles")
    x = k.param("x", heads, s.keys, s.channels, dtype=DType.U16)
    y = k.param("y", *value_words_shapes(s)[number], dtype=I32, out=True)
    whole, rest = divmod(s.keys, COLUMNS)
    (outer, inner), _ = deal(heads, run.count, threads=machine.threads)
    with k.loop("h", heads, kind=outer) as h, k.loop("o", run.count, kind=inner) as o, k.loop("a", run.across) as a:
        with k.loop("g", whole) as g, k.loop("w", LANES) as w:
            _pair(k, (x, y), run, (h, o, a), (g, w, 2))
        second = max(0, rest - LANES)
        for start, count, parts in ((0, second, 2), (second, min(rest, LANES) - second, 1)):
            with k.loop("w", count) as w:
                _pair(k, (x, y), run, (h, o, a), (index(whole), w + start, parts))
        if rest < LANES and rest:
            with k.loop("w", LANES - rest) as w:
                _pair(k, (x, y), run, (h, o, a), (index(whole), w + rest, 0))
    return k.done()


def _pair(
    k: Builder,
    memory: tuple[Tensor, Tensor],
    run: TileRun,
    at: tuple[Index, Index, Index],
    of: tuple[Index, Index, int],
) -> None:
    """The words of 16 channels of a pair of keys, of which ``parts`` are there."""
    (x, y), (h, o, a), (g, w, parts) = memory, at, of
    channel = (o * run.across + a + run.first) * LANES
    value: Expr = broadcast(Const(0, Type(I32)), LANES)
    for part in range(parts):
        half = cast(Load(x.buffer, (h, g * COLUMNS + part * LANES + w, channel), Type(DType.U16, LANES)), I32)
        value = op("or", value, half << 16) if part else half
    k.store(y.buffer, (h * run.count + o, g, a, w, Index()), value)
