"""Ensembles of decision trees (ai.onnx.ml's TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tenon.errors import ShapeError, UnknownError
from tenon.machine.kernels import trees as kernels
from tenon.machine.kernels.trees import Form, Keys, Walk, integers
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, I32, ROW_MAJOR, DType, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
    ErrorBound,
    Input,
    Layouts,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    Weights,
    register,
    typed,
)
from tenon.network.ops.tree_tables import Tables, Trees, laid_out

NAN_ABOVE, NAN_BELOW, WHOLE = 0, 1, 2
"""Kinds of columns: NaN is above all thresholds; it is below all, even one of NaN; numbers that are not whole are NaN,
which is above."""

_COMBINE = {"sum": "add", "min": "min", "max": "max"}
_CONSTANTS = ("columns", "tests", "thresholds", "children", "roots", "starts", "targets", "weights")


@register
@dataclass(frozen=True)
class DecisionTrees(Operator):
    """y[i, j]: the sum, the least or the greatest of the weights for target j of the leaves that row i of x leads to,
    one leaf of each tree; zero where no leaf has one.

    Inputs: x [N, F] in f32 or f64; and constants: ``columns`` i32 [C, 2], a feature and a kind each; for each inner
    node ``tests`` i32 [M], a column, ``thresholds`` [M] of the type of x and ``children`` i32 [M, 2]: the first child
    is next where the column is at most the threshold, else the second, a leaf being the complement of its number;
    ``roots`` i32 [T] alike; for the leaves ``starts`` i32 [L + 1], the first entry of each and the end, and the
    entries' ``targets`` i32 [E] and ``weights`` [E] of the type of x.  Nodes may have several parents, all in one tree.
    """

    count: int = 1
    aggregate: Literal["sum", "min", "max"] = "sum"
    arity: ClassVar[tuple[int, int]] = (9, 9)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, *others = typed(inputs)
        if x.rank != 2 or x.dtype not in (F32, DType.F64) or self.count < 1:
            raise ShapeError(f"{self.name}: {x} is no matrix of f32 or f64, or there are no targets")
        wanted = (I32, I32, x.dtype, I32, I32, I32, I32, x.dtype)
        if any(t.dtype is not dtype for t, dtype in zip(others, wanted, strict=True)):
            raise ShapeError(f"{self.name}: {', '.join(map(str, others))} are no trees of {x.dtype}")
        known = [_constant(inputs[i], f"{self.name}: {name}") for i, name in enumerate(_CONSTANTS, 1)]
        if why := self.damage(x.dims[1], *known):
            raise ShapeError(f"{self.name}: {why}: the file is damaged")
        return (TensorType(x.dtype, (x.dims[0], self.count)),)

    def damage(self, features: int, *constants: Array) -> str:
        """The constants that do not fit each other, in words; empty if all fit."""
        columns, tests, thresholds, children, roots, starts, targets, weights = constants
        nodes, leaves, entries = len(tests), len(starts) - 1, len(weights)
        shapes = (columns.shape[1:], children.shape, thresholds.shape, targets.shape, roots.ndim, starts.ndim)
        if shapes != ((2,), (nodes, 2), (nodes,), (entries,), 1, 1) or not len(roots):
            return "its constants have other shapes"
        lists = len(starts) > 1 and starts[0] == 0 and starts[-1] == entries and (np.diff(starts) >= 0).all()
        checks = {
            "features": _inside(columns[:, 0], 0, features),
            "kinds": _inside(columns[:, 1], 0, 3),
            "columns": _inside(tests, 0, len(columns)),
            "children": _inside(children, -leaves, nodes),
            "roots": _inside(roots, -leaves, nodes),
            "targets": _inside(targets, 0, self.count),
            "leaves": lists,
        }
        return next((f"{name} are out of range" for name, right in checks.items() if not right), "")

    def reference(self, x: Array, *constants: Array) -> Array:
        columns, tests, thresholds, children, roots, starts, targets, weights = constants
        tables = laid_out(Trees(tests, thresholds, children, roots), np.zeros(len(starts) - 1, np.int32), len(columns))
        table, below = _columns(x, columns)
        at = np.broadcast_to(roots, (len(x), len(roots))).astype(np.int64)
        rows = np.arange(len(x))[:, None]
        for _ in range(int(tables.depths.max(initial=0))):
            node = np.maximum(at, 0)
            value, column = table[rows, tests[node]], tests[node]
            first = (value <= thresholds[node]) | (np.isnan(value) & below[column])
            at = np.where(at < 0, at, children[node, np.where(first, 0, 1)])
        return self.combined(~at, starts, targets, weights)

    def combined(self, leaves: Array, starts: Array, targets: Array, weights: Array) -> Array:
        """The result for the leaves [N, T] that rows lead to."""
        y = np.full((len(leaves), self.count), {"sum": 0, "min": np.inf, "max": -np.inf}[self.aggregate], np.float64)
        reached = np.zeros(y.shape, bool)
        combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[self.aggregate]
        counts = np.diff(starts)[leaves]
        rows = np.arange(len(leaves))[:, None]
        for i in range(int(counts.max(initial=0))):
            row, tree = np.nonzero(counts > i)
            entry = starts[leaves[row, tree]] + i
            combine.at(y, (rows[row, 0], targets[entry]), weights[entry])
            reached[rows[row, 0], targets[entry]] = True
        return np.where(reached, y, 0).astype(weights.dtype)

    # ------------------------------------------------------------------------------- how it is compiled
    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, *(None,) * len(_CONSTANTS)), (ROW_MAJOR,))

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        columns, tests, thresholds, children, roots, starts, targets, weights = (
            np.asarray(c) for c in site.constants[1:]
        )
        if not x.dims[0]:
            return []
        columns, tests = _by_kind(columns, tests)
        trees = Trees(tests, thresholds, children, roots)
        leaves = _Leaves.of(trees, starts, targets, weights, self.count)
        tables = laid_out(trees, leaves.values, len(columns))
        width = 1 << (len(columns) + 1).bit_length()
        kinds = tuple(int((columns[:, 1] == kind).sum()) for kind in (NAN_ABOVE, NAN_BELOW, WHOLE))
        in_order = kinds[0] == x.dims[1] == len(columns) and bool((columns[:, 0] == np.arange(x.dims[1])).all())
        spec = Keys(x.dims[0], x.dims[1], kinds, width, x.dtype, in_order)  # type: ignore[arg-type]
        scratch = Scratch("keys", x.dims[0] * width * integers(x.dtype).bytes)
        features: list[Arg] = [] if in_order else [Weights(np.ascontiguousarray(columns[:, 0]))]
        keys = Step(kernels.keys(spec, site.machine), (Input(0), *features, scratch))
        walk = Walk(
            x.dims[0],
            self.count,
            len(roots),
            len(tables.thresholds),
            tables.reach,
            int(tables.depths.max()),
            width,
            x.dtype,
            DType.of(tables.links.dtype),
            _COMBINE[self.aggregate],
            leaves.form,
            len(starts) - 1,
            max(1, len(weights)),
            max(1, int(np.diff(starts).max())),
        )
        own = (tables.thresholds, tables.links, tables.first, tables.depths, *leaves.tables(tables.order))
        args: list[Arg] = [scratch, *map(Weights, own), Weights(self.start(leaves, weights.dtype)), Output()]
        return [keys, Step(kernels.walk(walk, site.machine), tuple(args))]

    def start(self, leaves: _Leaves, dtype: np.dtype[Any]) -> Array:
        """The initial value of each target: of those that no tree has, nothing is left but that."""
        if self.aggregate == "sum":
            return np.zeros(self.count, dtype)
        if leaves.form == "list":
            return np.full(self.count, np.nan, dtype)
        limit = np.full(self.count, np.inf if self.aggregate == "min" else -np.inf, dtype)
        return np.where(leaves.has_targets(self.count), limit, 0).astype(dtype)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        return 0

    @classmethod
    def cases(cls) -> Iterable[Case]:
        constant = tuple(range(1, 9))
        for label, options in _CASES.items():
            rng = np.random.default_rng(17)
            trees, aggregate, dtype = forest(rng, **options), options.get("aggregate", "sum"), options.get("dtype", F32)
            x = rng.normal(0, 1, (options.get("rows", 11), 5)).astype(dtype.numpy)
            x[rng.random(x.shape) < 0.1] = np.nan
            x[rng.random(x.shape) < 0.3] = 1
            yield Case(cls(options.get("count", 1), aggregate), (x, *trees), constant, 1e-5, label=label)


def _constant(value: Value | None, what: str) -> Array:
    """The data of an input that must be known when compiling.  Raises UnknownError."""
    assert value is not None
    if value.data is None:
        raise UnknownError(
            f"{what} ('{value.name}') are computed at run time; they must be known when compiling", value
        )
    return value.data


def _inside(numbers: Array, low: int, high: int) -> bool:
    return not numbers.size or bool(low <= numbers.min() and numbers.max() < high)


def _columns(x: Array, columns: Array) -> tuple[Array, Array]:
    """(The numbers of all columns, [N, C], and whether NaN is below the thresholds of each)."""
    table, kinds = x[:, columns[:, 0]], columns[:, 1]
    broken = (kinds == WHOLE) & (np.floor(table) != table)
    return np.where(broken, np.nan, table).astype(x.dtype), kinds == NAN_BELOW


def _by_kind(columns: Array, tests: Array) -> tuple[Array, Array]:
    """The columns sorted by kind, and the tests of those."""
    order = np.lexsort((columns[:, 0], columns[:, 1]))
    moved = np.empty(len(order), np.int32)
    moved[order] = np.arange(len(order))
    return columns[order], moved[tests]


@dataclass(frozen=True)
class _Leaves:
    """Leaves in the form that suits them: ``values`` are what walks find in the place of a threshold."""

    form: Form
    values: Array
    of_tree: Array
    arrays: tuple[Array, ...]

    @classmethod
    def of(cls, trees: Trees, starts: Array, targets: Array, weights: Array, count: int) -> _Leaves:
        kind = integers(DType.of(weights.dtype)).numpy
        if (np.diff(starts) == 1).all() and (own := _targets_of_trees(trees, targets)) is not None:
            clean = np.where(np.isnan(weights), np.array(np.nan, weights.dtype), weights)
            return cls("tree", clean.view(kind), own, ())
        numbers, leaves = np.arange(len(starts) - 1, dtype=kind), len(starts) - 1
        if len(targets) == leaves * count and (targets.reshape(leaves, count) == np.arange(count)).all():
            return cls("row", numbers, np.array([], np.int32), (weights.reshape(leaves, count),))
        longest = int(np.diff(starts).max(initial=0))
        spare = 0 if len(weights) else 1
        assert longest <= max(1, len(weights))
        arrays = (starts, np.pad(targets, (0, spare)), np.pad(weights, (0, spare)))
        return cls("list", numbers, np.array([], np.int32), arrays)

    def tables(self, order: Array) -> tuple[Array, ...]:
        """The tables of leaves that the kernel takes, for trees in this order."""
        several = self.form == "tree" and bool(self.of_tree.any())
        return (self.of_tree[order],) if several else self.arrays

    def has_targets(self, count: int) -> Array:
        """Whether some tree has each target."""
        return np.isin(np.arange(count), self.of_tree) if self.form == "tree" else np.ones(count, bool)


def _targets_of_trees(trees: Trees, targets: Array) -> Array | None:
    """The target of each tree whose leaves have one entry each; None if the leaves of a tree differ."""
    nodes = len(trees.tests)
    least, most = np.full(nodes, len(targets)), np.full(nodes, -1)
    # A leaf's entry has its number.  Upwards from the leaves, until nothing changes.
    while True:
        low, high = (
            np.where(
                trees.children < 0,
                targets[np.where(trees.children < 0, ~trees.children, 0)],
                of[trees.children.clip(0)],
            )
            for of in (least, most)
        )
        low, high = low.min(1, initial=np.iinfo(np.int64).max), high.max(1, initial=-1)
        if (low == least).all() and (high == most).all():
            break
        least, most = low, high
    inner = trees.roots.clip(0)
    leaf = targets[np.where(trees.roots < 0, ~trees.roots, 0)]
    bounds = [np.where(trees.roots < 0, leaf, of[inner]) if nodes else leaf for of in (least, most)]
    return bounds[0].astype(np.int32) if (bounds[0] == bounds[1]).all() else None


# --------------------------------------------------------------------------------------------- test cases
_CASES: dict[str, dict[str, Any]] = {
    "one_target": {"trees": 9},
    "one_row": {"trees": 19, "rows": 1},
    "targets_of_trees": {"trees": 7, "count": 3},
    "rows_of_targets": {"trees": 5, "count": 19, "entries": "all"},
    "lists": {"trees": 5, "count": 4, "entries": "some", "rows": 9},
    "least": {"trees": 6, "count": 2, "aggregate": "min"},
    "greatest_of_lists": {"trees": 6, "count": 4, "entries": "some", "aggregate": "max"},
    "least_of_rows": {"trees": 3, "count": 2, "entries": "all", "aggregate": "min"},
    "f64": {"trees": 10, "dtype": DType.F64},
    "deep": {"trees": 3, "nodes": 300, "rows": 17},
    "leaves_alone": {"trees": 3, "nodes": 0},
    "in_order": {"trees": 4, "kinds": (0,)},
}


def forest(
    rng: np.random.Generator,
    trees: int,
    nodes: int = 9,
    count: int = 1,
    entries: str = "one",
    kinds: Sequence[int] = (0, 1, 2),
    dtype: DType = F32,
    rows: int = 0,
    aggregate: str = "",
) -> tuple[Array, ...]:
    """The constants of random trees of five features, with so many inner nodes each."""
    columns = np.array([(f, kind) for kind in kinds for f in range(5)], np.int32)
    children, roots, owners = list[list[int]](), list[int](), list[int]()
    for tree in range(trees):
        base = len(children)
        places: list[tuple[int, int]] = []
        for n in range(nodes):  # each new node takes the place of a leaf
            children.append([0, 0])
            if n:
                parent, side = places.pop(int(rng.integers(len(places))))
                children[parent][side] = base + n
            places += [(base + n, 0), (base + n, 1)]
        for parent, side in places:
            children[parent][side] = ~len(owners)
            owners.append(tree)
        roots.append(base if nodes else ~len(owners))
        owners += [] if nodes else [tree]
    lists = [_targets(rng, tree, count, entries) for tree in owners]
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    targets = np.array([t for each in lists for t in each], np.int32)
    thresholds = rng.normal(0, 1, len(children))
    thresholds[rng.random(len(children)) < 0.3] = 1
    thresholds[rng.random(len(children)) < 0.05] = np.nan
    return (
        columns,
        rng.integers(0, len(columns), len(children)).astype(np.int32),
        thresholds.astype(dtype.numpy),
        np.array(children, np.int32).reshape(-1, 2),
        np.array(roots, np.int32),
        starts,
        targets,
        rng.normal(0, 1, len(targets)).astype(dtype.numpy),
    )


def _targets(rng: np.random.Generator, tree: int, count: int, entries: str) -> list[int]:
    if entries == "all":
        return list(range(count))
    return sorted(rng.permutation(count)[: int(rng.integers(count))].tolist()) if entries == "some" else [tree % count]


__all__ = ["NAN_ABOVE", "NAN_BELOW", "WHOLE", "DecisionTrees", "Tables", "forest"]
