"""The tables of decision trees that kernels walk (``kernels.trees``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.trees import FloatBits, integers
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

SHARED = "two of its trees share nodes: the file is damaged"


def keys_of(thresholds: Array) -> Array:
    """The greatest key at or below each threshold; one of NaN has the key of NaN in columns that want it low."""
    dtype = DType.of(thresholds.dtype)
    limits, kind = FloatBits.of(dtype), integers(dtype).numpy
    bits = np.where(thresholds == 0, 0.0, thresholds).astype(thresholds.dtype).view(kind)
    ordered = bits ^ ((bits >> (8 * kind.itemsize - 1)) & np.array(limits.magnitude, kind))
    return np.where(np.isnan(thresholds), kind.type(limits.below), ordered)


@dataclass(frozen=True)
class Trees:
    """Decision trees: for each inner node the column that it compares, its threshold and its children (an inner node,
    or a leaf as its complement), and the roots."""

    tests: Array
    thresholds: Array
    children: Array
    roots: Array


@dataclass(frozen=True)
class Tables:
    """The tables of ``kernels.trees.walk``, and the original number of each tree in them."""

    thresholds: Array
    links: Array
    first: Array
    depths: Array
    order: Array
    reach: int


@dataclass(frozen=True)
class _Levels:
    """The pair of slots, of its tree, that has the children of each node; pairs and depth of each tree."""

    tree: Array
    pair: Array
    pairs: Array
    depths: Array


def _levels(trees: Trees, roots: Array) -> _Levels:
    """All trees at once, level by level.  Raises ShapeError for trees that share nodes, or lead in circles."""
    count = len(trees.tests)
    tree, pair = np.full(count, -1), np.zeros(count, np.int64)
    pairs, depths = np.ones(len(roots), np.int64), np.zeros(len(roots), np.int64)
    owners = np.flatnonzero(roots >= 0)
    level, nodes = 0, roots[owners]
    while nodes.size:
        level += 1
        if level > count:
            raise ShapeError("its trees lead in circles: the file is damaged")
        order = np.argsort(owners, kind="stable")
        nodes, owners = nodes[order], owners[order]
        depths[owners] = level
        known = tree[nodes]
        if ((known >= 0) & (known != owners)).any():
            raise ShapeError(SHARED)
        new, theirs = nodes[known < 0], owners[known < 0]
        tree[new] = theirs
        pair[new] = pairs[theirs] + np.arange(len(theirs)) - np.searchsorted(theirs, theirs)
        pairs += np.bincount(theirs, minlength=len(roots))
        below, owned = trees.children[nodes].reshape(-1), np.repeat(owners, 2)
        owned, below = owned[below >= 0], below[below >= 0]
        nodes, at, again = np.unique(below, return_index=True, return_inverse=True)
        owners = owned[at]
        if (owners[again] != owned).any():
            raise ShapeError(SHARED)
    return _Levels(tree, pair, pairs, depths)


def check(trees: Trees) -> None:
    """Raises ShapeError for trees that share nodes, or lead in circles."""
    _levels(trees, np.unique(trees.roots))


def laid_out(trees: Trees, leaves: Array, columns: int) -> Tables:
    """The tables; ``leaves`` are what walks find in the place of a threshold, and ``columns`` are counted without the
    two that leaves compare.  Raises ShapeError for trees that share nodes, or lead in circles."""
    roots, inverse = np.unique(trees.roots, return_inverse=True)
    levels = _levels(trees, roots)
    blocks = np.argsort(levels.pairs, kind="stable")  # the largest is the last: walks may read past the others
    base = np.zeros(len(roots), np.int64)
    base[blocks] = np.cumsum(levels.pairs[blocks]) - levels.pairs[blocks]
    reach = 1 << int(2 * levels.pairs.max() - 1).bit_length()
    slots = int(2 * base[blocks[-1]]) + reach
    most = max(columns + 1, reach - 1)
    links = np.zeros((slots, 2), np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.int32)
    thresholds = np.zeros(slots, leaves.dtype)
    keys = keys_of(trees.thresholds)

    def place(at: Array, targets: Array, own: Array) -> None:
        """Place ``targets`` in the slots ``at``; a leaf leads back to the pair ``own``."""
        side, inner = at % 2, targets >= 0
        node, leaf = np.where(inner, targets, 0), np.where(inner, 0, ~targets)
        if len(keys):
            thresholds[at] = np.where(inner, keys[node], leaves[leaf])
            links[at, 0] = np.where(inner, trees.tests[node], columns + side)
            links[at, 1] = 2 * np.where(inner, levels.pair[node], own)
        else:
            thresholds[at], links[at, 0], links[at, 1] = leaves[leaf], columns + side, 2 * own

    place(2 * base, roots, np.zeros(len(roots), np.int64))
    used = np.flatnonzero(levels.tree >= 0)
    for side in (0, 1):
        pair = levels.pair[used]
        place(2 * (base[levels.tree[used]] + pair) + side, trees.children[used, side], pair)
    depths = levels.depths[inverse]
    order = np.argsort(depths, kind="stable")
    first = 2 * base[inverse]
    return Tables(thresholds, links, first[order].astype(np.int32), depths[order].astype(np.int32), order, reach)
