"""Decision trees, walked from their roots to leaves without branches.

A walk takes as many steps as the tree is deep: a leaf leads to itself. A node is a slot of two tables: its threshold,
and the column that it compares and the slot of its first child, behind which the second one lies. What a node compares
are keys, integers in the order of floats, so that machines without floating-point units walk as fast as others and NaN
lies at the end that each column wants. Several walks are interleaved, because each waits for memory at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, cast, less, op, select
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import F32, I32, I64, DType

WALKS = 8
"""Walks that are interleaved where there are registers for them."""

SHALLOW = 8
"""Steps that walks always take all of."""

STRIDE, SHORT_STRIDE = 4, 2
"""Steps of walks in deeper trees between two tests whether all are at leaves: of several walks, and of one."""

CACHED = 1 << 16
"""Bytes of nodes that several blocks of rows walk before the next ones."""

BLOCKS = 16
"""Blocks of rows that do."""

Form = Literal["tree", "row", "list"]
"""How leaves are stored.  ``tree``: a leaf is a weight, in place of its threshold, for a target of its tree.  ``row``:
a weight for every target.  ``list``: a list of targets and weights."""


@dataclass(frozen=True)
class Keys:
    """Keys of rows of ``features`` numbers: of each kind (``ops.trees`` has them) so many columns.

    There are ``width`` columns in memory; the two behind the keys are less, and greater, than every threshold.
    """

    rows: int
    features: int
    kinds: tuple[int, int, int]
    width: int
    dtype: DType
    in_order: bool  # the columns are the features, NaN above all numbers

    @property
    def columns(self) -> int:
        return sum(self.kinds)


def integers(dtype: DType) -> DType:
    """The type of the keys of a type of floats."""
    return I64 if dtype is DType.F64 else I32


@dataclass(frozen=True)
class FloatBits:
    """Bits of a type of floats, as integers: all but the sign, and infinity."""

    magnitude: int
    infinity: int

    @classmethod
    def of(cls, dtype: DType) -> FloatBits:
        return cls((1 << 63) - 1, 0x7FF << 52) if dtype is DType.F64 else cls((1 << 31) - 1, 0x7F800000)

    @property
    def above(self) -> int:
        """The key of NaN where no threshold is to be reached."""
        return self.magnitude

    @property
    def below(self) -> int:
        """The key of NaN that is to be below all thresholds."""
        return -self.magnitude


@lru_cache(maxsize=64)
def keys(s: Keys, machine: Machine) -> Kernel:
    """Parameters: x [rows, features], the feature of each column (i32) unless these are in order, keys."""
    to, limits = integers(s.dtype), FloatBits.of(s.dtype)
    k = Builder(f"tree_keys_{s.rows}x{s.columns}", "Floats as integers of the same order, for decision trees")
    x = k.param("x", s.rows, s.features, dtype=s.dtype)
    features = None if s.in_order else k.param("f", s.columns, dtype=I32)
    y = k.param("y", s.rows, s.width, dtype=to, out=True)
    (kind,), _ = deal(s.rows)
    with k.loop("i", s.rows, kind=kind) as i:
        if features is None:
            for start, count, lanes in lane_segments(s.features, machine.lanes_of(s.dtype)):
                with k.loop("j", count) as j:
                    at = start // lanes + j
                    y.vec(lanes)[i, at] = key(k, x.vec(lanes)[i, at], limits, 0)
        else:
            first = 0
            for number, count in enumerate(s.kinds):
                with k.loop("j", count) as j, k.bind("c", features[first + j], s.features) as c:
                    y[i, first + j] = key(k, x[i, c], limits, number)
                first += count
        y[i, s.columns] = Const(-limits.magnitude - 1, Type(to))
        y[i, s.columns + 1] = Const(limits.magnitude, Type(to))
    return k.done()


def key(k: Builder, x: Expr, limits: FloatBits, kind: int) -> Expr:
    """The key of a number for a column of a kind (``ops.trees`` has them)."""
    to, x = integers(x.type.dtype), k.let("v", x)
    bits = k.let("bits", bitcast(x, to))
    ordered = op("xor", bits, op("and", bits >> (8 * to.bytes - 1), limits.magnitude))
    missing = less(Const(limits.infinity, Type(to)), op("and", bits, limits.magnitude))
    if kind == 2:
        ordered = select(op("equal", op("floor", x), x), ordered, limits.above)
    return select(missing, limits.below if kind == 1 else limits.above, ordered)


# --------------------------------------------------------------------------------------------- walks
@dataclass(frozen=True)
class Walk:
    """The walk to compute: for each of ``rows``, and for every target, the sum (``add``) or another combination of the
    weights of the leaves of all trees.

    Nodes are in ``slots``; a tree takes at most ``reach`` of them, a power of two, and ``depth`` steps.  ``links`` is
    the type of columns and children.  ``leaves`` and ``entries`` are those of the tables of leaves; ``longest`` is the
    most entries of a leaf.
    """

    rows: int
    targets: int
    trees: int
    slots: int
    reach: int
    depth: int
    width: int
    dtype: DType
    links: DType
    combine: str
    form: Form
    leaves: int = 1
    entries: int = 1
    longest: int = 1

    @property
    def at_once(self) -> int:
        """Trees whose nodes the nearest caches hold."""
        whole = self.slots * (integers(self.dtype).bytes + 2 * self.links.bytes)
        return self.trees if whole <= CACHED else max(1, self.trees * CACHED // whole)


@dataclass(frozen=True)
class _TreeTables:
    keys: Tensor
    thresholds: Tensor
    links: Tensor
    roots: Tensor
    depths: Tensor
    leaves: tuple[Tensor, ...]
    start: Tensor
    y: Tensor


@lru_cache(maxsize=64)
def walk(s: Walk, machine: Machine) -> Kernel:
    """Parameters: keys [rows, width], thresholds [slots], links [slots, 2], the first slot and the depth of each tree,
    sorted by depth, the tables of leaves, what each target begins with, y [rows, targets].

    The tables of leaves: for "tree" the target of each tree, if there are several; for "row" weights [leaves, targets];
    for "list" the first entry of each leaf [leaves + 1], and the targets and the weights of all entries.
    """
    k = Builder(f"trees_{s.rows}x{s.trees}", f"{s.trees} decision trees of {s.rows} rows, walked to their depths")
    t = _parameters(k, s)
    at_once = WALKS if machine.lanes > 1 else 1
    for start, count, rows in _rows(s.rows, at_once):
        blocks = BLOCKS if s.at_once < s.trees and rows > 1 else 1
        for first, tiles, size in segments(count, blocks):
            with k.loop("b", tiles, kind="parallel" if s.rows > 1 else "serial") as b:
                tile = _RowBlocks(start + (first + b * size) * rows, size, rows)
                _tile(k, s, t, tile, max(1, at_once // rows), machine)
    return k.done()


@dataclass(frozen=True)
class _RowBlocks:
    """Blocks of rows: the first row, how many blocks there are, and the rows of each, which are walked together."""

    first: Index
    blocks: int
    rows: int


@dataclass(frozen=True)
class _WalkedRows:
    """Rows that are walked together."""

    first: Index
    count: int


def _rows(rows: int, at_once: int) -> list[tuple[int, int, int]]:
    """Blocks of rows that are walked together, and the rest one by one: (first row, blocks, rows of a block)."""
    whole, rest = divmod(rows, at_once)
    return [each for each in ((0, whole, at_once), (whole * at_once, rest, 1)) if each[1]]


def _parameters(k: Builder, s: Walk) -> _TreeTables:
    to = integers(s.dtype)
    keyed = k.param("keys", s.rows, s.width, dtype=to)
    thresholds, links = k.param("thresholds", s.slots, dtype=to), k.param("links", s.slots, 2, dtype=s.links)
    roots, depths = k.param("roots", s.trees, dtype=I32), k.param("depths", s.trees, dtype=I32)
    leaves: tuple[Tensor, ...] = ()
    if s.form == "row":
        leaves = (k.param("w", s.leaves, s.targets, dtype=s.dtype),)
    elif s.form == "list":
        leaves = k.param("first", s.leaves + 1, dtype=I32), k.param("target", s.entries, dtype=I32)
        leaves += (k.param("w", s.entries, dtype=s.dtype),)
    elif s.targets > 1:
        leaves = (k.param("target", s.trees, dtype=I32),)
    start = k.param("start", s.targets, dtype=s.dtype)
    return _TreeTables(
        keyed, thresholds, links, roots, depths, leaves, start, k.param("y", s.rows, s.targets, dtype=s.dtype, out=True)
    )


def _tile(k: Builder, s: Walk, t: _TreeTables, tile: _RowBlocks, together: int, machine: Machine) -> None:
    """All trees of some blocks of rows: as many trees as caches hold, of all blocks, before the next ones."""
    with k.loop("i", tile.blocks * tile.rows) as i:
        _each_target(k, s, machine, lambda at, lanes: _begin(t, tile.first + i, at, lanes))
    for start, count, trees in segments(s.trees, s.at_once):
        with k.loop("q", count) as q, k.loop("i", tile.blocks) as i:
            rows = _WalkedRows(tile.first + i * tile.rows, tile.rows)
            _block(k, s, t, rows, (start + q * trees, trees), together, machine)
    if s.form == "list" and s.combine != "add":
        with k.loop("i", tile.blocks * tile.rows) as i, k.loop("j", s.targets) as j:
            old = t.y[tile.first + i, j]
            t.y[tile.first + i, j] = select(op("not_equal", old, old), 0.0, old)


def _block(
    k: Builder, s: Walk, t: _TreeTables, rows: _WalkedRows, trees: tuple[Index, int], together: int, machine: Machine
) -> None:
    """Some trees (the first, and how many) of the rows of a block, ``together`` trees at a time."""
    sums = k.local("sums", rows.count, dtype=s.dtype) if s.form == "tree" and s.targets == 1 else None
    if sums is not None:
        with k.unroll("r", rows.count) as r:
            sums[r] = t.y[rows.first + r, 0]
    for start, count, several in segments(trees[1], together):
        with k.loop("t", count) as n:
            _walks(k, s, t, rows, _Trees(trees[0] + start + n * several, several), sums, machine)
    if sums is not None:
        with k.unroll("r", rows.count) as r:
            t.y[rows.first + r, 0] = sums[r]


def _begin(t: _TreeTables, row: Index, at: IndexLike, lanes: int) -> None:
    t.y.vec(lanes)[row, at] = t.start.vec(lanes)[at]


def _each_target(k: Builder, s: Walk, machine: Machine, store: object) -> None:
    """``store`` all targets, in vectors: called with the position, in vectors, and the lanes."""
    assert callable(store)
    for start, count, lanes in lane_segments(s.targets, machine.lanes_of(s.dtype)):
        with k.loop("j", count) as j:
            store(start // lanes + j, lanes)


@dataclass(frozen=True)
class _Trees:
    """Trees that are walked together: the first, how many, and of one tree its first slot."""

    first: Index
    count: int
    base: Index | None = None

    def root(self, t: _TreeTables, g: Index) -> Expr | Index:
        return t.roots[self.first + g] if self.base is None else self.base


def _walks(
    k: Builder, s: Walk, t: _TreeTables, rows: _WalkedRows, trees: _Trees, sums: Tensor | None, machine: Machine
) -> None:
    """Some trees of some rows, from roots to leaves; the last tree is the deepest."""
    if trees.count > 1:
        return _walked(k, s, t, rows, trees, sums, machine)
    with k.bind("root", t.roots[trees.first], s.slots - s.reach + 1) as base:
        return _walked(k, s, t, rows, replace(trees, base=base), sums, machine)


def _walked(
    k: Builder, s: Walk, t: _TreeTables, rows: _WalkedRows, trees: _Trees, sums: Tensor | None, machine: Machine
) -> None:
    first, together = trees.first, trees.count
    at = k.local("at", rows.count * together, dtype=I32)
    with k.unroll("u", rows.count * together) as u:
        at[u] = 0
    last = t.depths[first + together - 1]
    if s.depth <= (SHALLOW if rows.count * together > 1 else SHORT_STRIDE):
        with k.bind("depth", last, s.depth + 1) as depth, k.loop("d", depth):
            _level(k, s, t, rows, trees, at)
    else:
        _until_leaves(k, s, t, rows, trees, at, last)
    with (
        k.unroll("r", rows.count) as r,
        k.unroll("g", together) as g,
        _node(k, s, at[r * together + g], trees.root(t, g)) as here,
    ):
        own = None if sums is None else (sums, r)
        _add_leaf(k, s, t, rows.first + r, here, first + g, own, machine)


def _level(k: Builder, s: Walk, t: _TreeTables, rows: _WalkedRows, trees: _Trees, at: Tensor) -> None:
    """A step of every walk."""
    together = trees.count
    with (
        k.unroll("r", rows.count) as r,
        k.unroll("g", together) as g,
        _node(k, s, at[r * together + g], trees.root(t, g)) as here,
    ):
        _step(k, s, t, rows.first + r, here, at, r * together + g)


def _until_leaves(
    k: Builder, s: Walk, t: _TreeTables, rows: _WalkedRows, trees: _Trees, at: Tensor, depth: Expr
) -> None:
    """Steps of walks, a few at a time, until all are at leaves: trees are seldom as deep everywhere."""
    together = trees.count
    left = k.local("left", 1, dtype=I32)
    left[0] = 1
    stride = STRIDE if rows.count * together > 1 else SHORT_STRIDE
    chunks = (s.depth + stride - 1) // stride
    with (
        k.bind("chunks", (depth + (stride - 1)) >> (stride // 2), chunks + 1) as count,
        k.loop("c", count),
        k.bind("walking", op("and", op("not_equal", left[0], 0), 1), 2) as walking,
        k.when(walking - 1),
    ):
        with k.loop("d", stride, kind="serial" if stride == STRIDE else "unroll"):
            _level(k, s, t, rows, trees, at)
        left[0] = 0
        with (
            k.unroll("r", rows.count) as r,
            k.unroll("g", together) as g,
            _node(k, s, at[r * together + g], trees.root(t, g)) as here,
        ):
            ahead = op("xor", cast(t.links[here, 1], I32), at[r * together + g])  # but for the side, 0 at a leaf
            left[0] = op("or", left[0], ahead >> 1)


@contextmanager
def _node(k: Builder, s: Walk, at: Expr, root: Expr | Index) -> Iterator[Index]:
    """The slot that a walk is at."""
    with k.bind("n", op("and", at, s.reach - 1), s.reach) as n:
        if isinstance(root, Index):
            yield root + n
        else:
            with k.bind("root", root, s.slots - s.reach + 1) as first:
                yield first + n


def _step(k: Builder, s: Walk, t: _TreeTables, row: Index, here: Index, at: Tensor, u: Index) -> None:
    """A step of walk ``u``: to the first child, or to the second where the key is above the threshold."""
    with k.bind("c", op("and", cast(t.links[here, 0], I32), s.width - 1), s.width) as c:
        above = cast(less(t.thresholds[here], t.keys[row, c]), I32)
        at[u] = op("scalar", op("add", cast(t.links[here, 1], I32), op("and", above, 1)))


def _add_leaf(
    k: Builder,
    s: Walk,
    t: _TreeTables,
    row: Index,
    here: Index,
    tree: Index,
    sums: tuple[Tensor, Index] | None,
    machine: Machine,
) -> None:
    """Combine the result with the weights of the leaf in slot ``here``."""
    value = t.thresholds[here]
    if sums is not None:
        total, r = sums
        total[r] = op(s.combine, total[r], bitcast(value, s.dtype))
    elif s.form == "tree":
        with k.bind("target", t.leaves[0][tree], s.targets) as j:
            t.y[row, j] = op(s.combine, t.y[row, j], bitcast(value, s.dtype))
    elif s.form == "row":
        with k.bind("leaf", value, s.leaves) as leaf:
            _each_target(k, s, machine, lambda at, lanes: _add_row(s, t, row, leaf, at, lanes))
    else:
        _add_list(k, s, t, row, value)


def _add_row(s: Walk, t: _TreeTables, row: Index, leaf: Index, at: IndexLike, lanes: int) -> None:
    y, w = t.y.vec(lanes), t.leaves[0].vec(lanes)
    y[row, at] = op(s.combine, y[row, at], w[leaf, at])


def _add_list(k: Builder, s: Walk, t: _TreeTables, row: Index, value: Expr) -> None:
    first, target, weight = t.leaves
    with (
        k.bind("leaf", value, s.leaves) as leaf,
        k.bind("from", first[leaf], s.entries - s.longest + 1) as start,
        k.bind("count", first[leaf + 1] - first[leaf], s.longest + 1) as count,
        k.loop("e", count) as e,
        k.bind("target", target[start + e], s.targets) as j,
    ):
        old, new = t.y[row, j], weight[start + e]
        combined = op(s.combine, old, new)
        t.y[row, j] = combined if s.combine == "add" else select(op("not_equal", old, old), new, combined)


__all__ = ["F32", "WALKS", "FloatBits", "Form", "Keys", "Walk", "integers", "keys", "walk"]
