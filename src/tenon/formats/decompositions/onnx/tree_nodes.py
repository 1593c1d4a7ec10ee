"""The nodes of ONNX's tree ensembles with conditions of one kind, "at most a threshold", as in ``DecisionTrees``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.ops.trees import NAN_ABOVE, NAN_BELOW, WHOLE

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
"""The numbers of modes in TreeEnsemble."""

LARGEST_WHOLE = float(1 << 24)
"""Up to this, f32 has all whole numbers."""


@dataclass(frozen=True)
class Branches:
    """Inner nodes: [M] features, modes and splits, whether NaN tracks the true branch, and children [M, 2] for true and
    false (an inner node, or a leaf as its complement); and the sets of the nodes with the mode MEMBER, in order."""

    features: Array
    modes: Array
    splits: Array
    missing: Array
    children: Array
    sets: Sequence[Array] = ()


@dataclass(frozen=True)
class Thresholds:
    """The constants of ``DecisionTrees`` for inner nodes; the node of each original one has its number."""

    columns: Array
    tests: Array
    thresholds: Array
    children: Array


def thresholds_of(nodes: Branches) -> Thresholds:
    """The same decisions by thresholds alone."""
    made = _Thresholds(nodes)
    made.expand()
    columns, tests = np.unique(np.stack([made.features, made.kinds], 1), axis=0, return_inverse=True)
    return Thresholds(
        columns.astype(np.int32), tests.reshape(-1).astype(np.int32), made.thresholds, made.children.astype(np.int32)
    )


def just_below(splits: Array) -> Array:
    """The greatest number below each; NaN, which none is below or equal to, for minus infinity."""
    return np.where(splits == -np.inf, np.nan, np.nextafter(splits, -np.inf, dtype=splits.dtype)).astype(splits.dtype)


@dataclass
class _More:
    """Nodes behind the original ones."""

    features: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    children: list[tuple[int, int]] = field(default_factory=list)


class _Thresholds:
    def __init__(self, nodes: Branches) -> None:
        """Nodes that compare with ``<``, ``<=``, ``>`` and ``>=`` are one threshold each."""
        self.nodes, self.more = nodes, _More()
        turned = np.isin(nodes.modes, (GTE, GT))
        below = np.isin(nodes.modes, (LT, GTE))
        self.features = nodes.features
        self.kinds = np.where(nodes.missing.astype(bool) == turned, NAN_ABOVE, NAN_BELOW)
        self.thresholds = np.where(below, just_below(nodes.splits), nodes.splits).astype(nodes.splits.dtype)
        self.thresholds[turned & np.isnan(nodes.splits)] = np.inf  # no number is above NaN
        self.children = np.where(turned[:, None], nodes.children[:, ::-1], nodes.children)

    def expand(self) -> None:
        """Replace nodes that compare for equality or look for members."""
        sets = iter(self.nodes.sets)
        for i in np.flatnonzero(self.nodes.modes >= EQ).tolist():
            yes, no = self.nodes.children[i].tolist()
            if self.nodes.modes[i] == NEQ:
                self._equal(i, no, yes, tracked=False)  # NaN differs from every number
            elif self.nodes.modes[i] == EQ:
                self._equal(i, yes, no, tracked=bool(self.nodes.missing[i]))
            else:
                self._member(i, next(sets), yes, no)
        more, dtype = self.more, self.thresholds.dtype
        self.features = np.concatenate([self.features, np.array(more.features, self.features.dtype)])
        self.kinds = np.concatenate([self.kinds, np.array(more.kinds, self.kinds.dtype)])
        self.thresholds = np.concatenate([self.thresholds, np.array(more.thresholds, dtype)])
        self.children = np.concatenate([self.children, np.array(more.children, np.int64).reshape(-1, 2)])

    def _equal(self, i: int, yes: int, no: int, *, tracked: bool) -> None:
        split = self.nodes.splits[i : i + 1]
        exact = self._add(i, NAN_ABOVE, just_below(split)[0], no, yes)
        self._start(i, NAN_ABOVE, split[0], exact, no, yes, tracked=tracked)

    def _member(self, i: int, members: Array, yes: int, no: int) -> None:
        """Bisect the runs of the set; where all members are whole numbers, those that follow each other are one run."""
        numbers = np.unique(members[~np.isnan(members)]).astype(self.thresholds.dtype)
        whole = bool((np.floor(numbers) == numbers).all() and (np.abs(numbers) < LARGEST_WHOLE).all())
        step = np.diff(numbers) if whole else np.full(max(0, len(numbers) - 1), 2.0)
        ends, kind = np.flatnonzero(step > 1), WHOLE if whole else NAN_ABOVE
        firsts = just_below(numbers[[0, *(ends + 1)]] if len(numbers) else numbers)
        lasts = numbers[[*ends, len(numbers) - 1]] if len(numbers) else numbers
        tracked = bool(self.nodes.missing[i])
        if not len(numbers):
            return self._start(i, NAN_ABOVE, np.nan, no, no, yes, tracked=tracked)
        inside = self._runs(i, kind, firsts, lasts, yes, no)
        return self._start(i, kind, lasts[-1], inside, no, yes, tracked=tracked)

    def _runs(self, i: int, kind: int, firsts: Array, lasts: Array, yes: int, no: int) -> int:
        """A node for numbers up to the end of the last of some runs."""
        if len(firsts) == 1:
            return self._add(i, kind, firsts[0], no, yes)
        half = len(firsts) // 2
        parts = [self._runs(i, kind, firsts[part], lasts[part], yes, no) for part in (slice(half), slice(half, None))]
        return self._add(i, kind, lasts[half - 1], *parts)

    def _start(self, i: int, kind: int, threshold: float, first: int, second: int, yes: int, *, tracked: bool) -> None:
        """Make node ``i`` one with this threshold, or where NaN tracks the true branch one for NaN before it."""
        if tracked:
            first, second = yes, self._add(i, kind, threshold, first, second)
            kind, threshold = NAN_BELOW, np.nan
        self.kinds[i], self.thresholds[i], self.children[i] = kind, threshold, (first, second)

    def _add(self, i: int, kind: int, threshold: float, first: int, second: int) -> int:
        """The number of a new node for the feature of node ``i``."""
        more = self.more
        more.features.append(int(self.nodes.features[i]))
        more.kinds.append(kind)
        more.thresholds.append(float(threshold))
        more.children.append((first, second))
        return len(self.nodes.modes) + len(more.kinds) - 1
