"""Tree ensembles of ai.onnx.ml compared with onnxruntime: every mode, aggregate and transform, and damaged files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.errors import FormatError, ModelError, UnsupportedError
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array

FEATURES = 4
NAMES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
MEMBER = 6


@dataclass
class Forest:
    """Random trees, unbalanced, whose splits are among the numbers that rows have."""

    seed: int = 0
    trees: int = 5
    nodes: int = 12
    targets: int = 1
    modes: tuple[int, ...] = (0,)
    missing: bool = False
    dtype: Any = np.float32
    per_leaf: int = 1
    members: Sequence[Array] = ()
    sets: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng = np.random.default_rng(self.seed)
        self.features, self.mode, self.split, self.track = list[int](), list[int](), list[float](), list[int]()
        self.children, self.roots, self.leaf_trees = list[list[int]](), list[int](), list[int]()
        for tree in range(self.trees):
            self._grow(tree, len(self.mode))
        self.weights = rng.normal(0, 1, (len(self.leaf_trees), self.targets)).astype(self.dtype)
        self.of_leaf = rng.integers(0, self.targets, len(self.leaf_trees))

    def _grow(self, tree: int, base: int) -> None:
        places, rng = list[tuple[int, int]](), self.rng
        for n in range(self.nodes):
            self.features.append(int(rng.integers(FEATURES)))
            self.mode.append(int(rng.choice(self.modes)))
            self.split.append(float(rng.choice(SPLITS)))
            self.track.append(int(self.missing and rng.random() < 0.5))
            self.children.append([0, 0])
            if self.mode[-1] == MEMBER:
                self.sets.append(self._set())
            if n:
                parent, side = places.pop(int(rng.integers(len(places))))
                self.children[parent][side] = base + n
            places += [(base + n, 0), (base + n, 1)]
        for parent, side in places:
            self.children[parent][side] = ~len(self.leaf_trees)
            self.leaf_trees.append(tree)
        self.roots.append(base)

    def _set(self) -> Array:
        given = self.members or MEMBERS[:1]
        return self.rng.choice(given[int(self.rng.integers(len(given)))], int(self.rng.integers(1, 7)), replace=False)

    def rows(self, count: int = 60) -> Array:
        x = self.rng.choice([*SPLITS, *MEMBERS[0], *MEMBERS[1], 0.3, 1.5, -7.0], (count, FEATURES)).astype(self.dtype)
        if MEMBER in self.modes and not self.members:  # onnxruntime looks for the whole part of a number
            x = np.trunc(np.clip(x, -9, 9)).astype(self.dtype)
        x[self.rng.random(x.shape) < 0.15] = np.nan
        return x

    def walked(self, x: Array) -> Array:
        """The sums of the first target, by walking each tree."""
        member = iter(self.sets)
        sets = [next(member) if mode == MEMBER else () for mode in self.mode]

        def leaf(row: Array, node: int) -> int:
            while node >= 0:
                value, split = row[self.features[node]], self.split[node]
                yes = value in sets[node] if self.mode[node] == MEMBER else value <= split
                node = self.children[node][0 if yes or (self.track[node] and np.isnan(value)) else 1]
            return ~node

        return np.array([[sum(float(self.weights[leaf(row, root), 0]) for root in self.roots)] for row in x])

    # ---------------------------------------------------------------------------------------- files
    def version_5(self, rows: int, aggregate: int = 1, transform: int = 0) -> bytes:
        children = np.array(self.children)
        more: dict[str, Any] = {}
        if self.sets:
            values = np.concatenate([np.append(s, np.nan) for s in self.sets]).astype(self.dtype)
            more["membership_values"] = numpy_helper.from_array(values, "v")
        if self.missing:
            more["nodes_missing_value_tracks_true"] = self.track
        weights = self.weights[np.arange(len(self.of_leaf)), self.of_leaf]
        node = helper.make_node(
            "TreeEnsemble",
            ["x"],
            ["y"],
            domain="ai.onnx.ml",
            n_targets=self.targets,
            aggregate_function=aggregate,
            post_transform=transform,
            tree_roots=self.roots,
            nodes_featureids=self.features,
            nodes_modes=numpy_helper.from_array(np.array(self.mode, np.uint8), "m"),
            nodes_splits=numpy_helper.from_array(np.array(self.split, self.dtype), "s"),
            nodes_truenodeids=np.where(children[:, 0] < 0, ~children[:, 0], children[:, 0]).tolist(),
            nodes_trueleafs=(children[:, 0] < 0).astype(int).tolist(),
            nodes_falsenodeids=np.where(children[:, 1] < 0, ~children[:, 1], children[:, 1]).tolist(),
            nodes_falseleafs=(children[:, 1] < 0).astype(int).tolist(),
            leaf_targetids=self.of_leaf.tolist(),
            leaf_weights=numpy_helper.from_array(weights, "w"),
            **more,
        )
        kind = TensorProto.DOUBLE if self.dtype is np.float64 else TensorProto.FLOAT
        return model(node, [("x", kind, (rows, FEATURES))], [("y", kind)], 5)

    def older(self, type: str, **more: Any) -> bytes:
        """A TreeEnsembleRegressor or a TreeEnsembleClassifier, each leaf with some of the targets."""
        role, kind = ("target", "FLOAT") if type.endswith("Regressor") else ("class", "FLOAT")
        ids = list[int]()
        for tree, root in enumerate(self.roots):
            ids += [tree] * (self.nodes + self.nodes + 1)
            assert root == tree * self.nodes
        local = {i: i % self.nodes for i in range(len(self.mode))}
        local |= {~leaf: self.nodes + leaf % (self.nodes + 1) for leaf in range(len(self.leaf_trees))}
        table: dict[str, list[Any]] = {name: [] for name in ("nodeids", "modes", "featureids", "values")}
        sides: tuple[list[int], list[int]] = ([], [])
        tracks = list[int]()
        for tree in range(self.trees):
            for n in range(self.nodes):
                at = tree * self.nodes + n
                row = (n, f"BRANCH_{NAMES[self.mode[at]]}", self.features[at], self.split[at])
                for name, value in zip(table, row, strict=True):
                    table[name].append(value)
                tracks.append(self.track[at])
                for side, child in zip(sides, self.children[at], strict=True):
                    side.append(local[child])
            for leaf in range(self.nodes + 1):
                for name, value in zip(table, (self.nodes + leaf, "LEAF", 0, 0.0), strict=True):
                    table[name].append(value)
                tracks.append(0)
                for side in sides:
                    side.append(0)
        entries = [
            (self.leaf_trees[leaf], local[~leaf], t, float(self.weights[leaf, t]))
            for leaf in range(len(self.leaf_trees))
            for t in ((self.of_leaf[leaf] + np.arange(self.per_leaf)) % self.targets).tolist()
        ]
        names = ("treeids", "nodeids", "ids", "weights")
        given: dict[str, Any] = {
            f"{role}_{name}": list(column) for name, column in zip(names, zip(*entries, strict=True), strict=True)
        }
        given |= {f"nodes_{name}": column for name, column in table.items()}
        given |= {"n_targets": self.targets} if role == "target" else {}
        if self.missing:
            given["nodes_missing_value_tracks_true"] = tracks
        node = helper.make_node(
            type,
            ["x"],
            ["y"] if role == "target" else ["label", "y"],
            domain="ai.onnx.ml",
            nodes_treeids=ids,
            nodes_truenodeids=sides[0],
            nodes_falsenodeids=sides[1],
            **given,
            **more,
        )
        x = TensorProto.DOUBLE if self.dtype is np.float64 else TensorProto.FLOAT
        outputs = [("y", getattr(TensorProto, kind))]
        outputs = outputs if role == "target" else [("label", TensorProto.INT64), *outputs]
        return model(node, [("x", x, (60, FEATURES))], outputs, 3)


SPLITS = (-1.0, 0.0, -0.0, 0.5, 1.0, 2.0, 1e-40, np.inf, -np.inf)
MEMBERS = (np.array([0, 1, 2, 3, 5, 6, 9, -4], np.float32), np.array([0.5, 1.0, 2.5, 7.25, -3.0, 2.0, 0.0], np.float32))


def model(node: Any, inputs: Any, outputs: Any, version: int) -> bytes:
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", version)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def agrees(data: bytes, x: Array, *, compiled: bool = False) -> None:
    expected = onnxruntime.InferenceSession(data).run(None, {"x": x})
    results = [tuple(evaluate(tenon.load(data), {"x": x}).values())]
    if compiled:
        results.append(tuple(tenon.open(tenon.compile(data)).run({"x": x}).values()))
    for result in results:
        for ours, theirs in zip(result, expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("mode", range(7))
def test_modes(mode: int, missing: bool, dtype: Any) -> None:
    for seed, modes in enumerate(((mode,), (0, mode), (mode, 3, 1))):
        forest = Forest(seed, modes=modes, missing=missing, dtype=dtype, targets=1 + seed % 2)
        x = forest.rows()
        agrees(forest.version_5(len(x)), x, compiled=seed == 1)


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("targets", [1, 3])
def test_aggregates(aggregate: int, targets: int) -> None:
    forest = Forest(3, targets=targets, modes=(0, 2, 4), trees=9, missing=True)
    x = forest.rows()
    agrees(forest.version_5(len(x), aggregate), x, compiled=True)
    for per_leaf in {targets, max(1, targets - 1)}:
        older = Forest(4, targets=targets, modes=(0, 1), per_leaf=per_leaf)
        name = ("AVERAGE", "SUM", "MIN", "MAX")[aggregate]
        base = [0.5, -1.0, 2.0][:targets]
        file = older.older("TreeEnsembleRegressor", aggregate_function=name, base_values=base)
        agrees(file, older.rows(), compiled=True)


@pytest.mark.parametrize("transform", ["SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
def test_transforms(transform: str) -> None:
    """Numbers of version 5 are the standard's, which onnxruntime 1.2x confuses: its 1 is LOGISTIC."""
    forest = Forest(5, targets=3, trees=7, per_leaf=3)
    forest.weights = np.where(forest.weights < 0.5, 0, forest.weights / 30).astype(np.float32)
    x = forest.rows()
    file = forest.older("TreeEnsembleRegressor", post_transform=transform)
    agrees(file, x, compiled=True)
    number = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT").index(transform)
    reached = evaluate(tenon.load(forest.version_5(60)), {"x": x})["y"]
    graph = tenon.load(forest.version_5(60, transform=number))
    assert graph.nodes[-1].op.name != "DecisionTrees"
    if transform == "SOFTMAX":
        exps = np.exp(reached)
        np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], exps / exps.sum(1, keepdims=True), 1e-5)


@pytest.mark.parametrize("missing", [False, True])
def test_classifiers(missing: bool) -> None:
    forest = Forest(7, targets=4, modes=(0, 1, 2, 3, 4, 5), missing=missing, per_leaf=4)
    file = forest.older("TreeEnsembleClassifier", classlabels_int64s=[10, 11, 12, 13])
    agrees(file, forest.rows(), compiled=True)


def test_sets_of_fractions() -> None:
    """Members that are no whole numbers, which onnxruntime refuses, and numbers between members that are."""
    for seed in range(4):
        forest = Forest(seed, modes=(MEMBER, 0), missing=bool(seed % 2), members=MEMBERS)
        x = forest.rows()
        file = forest.version_5(60)
        np.testing.assert_allclose(evaluate(tenon.load(file), {"x": x})["y"], forest.walked(x), 1e-5, 1e-6)


def test_doubles_are_compared_as_doubles() -> None:
    """Numbers between two neighbours of f32 lie on the side of their own split."""
    forest = Forest(8, trees=1, nodes=1, dtype=np.float64)
    forest.split[0] = float(np.float32(0.1))
    x = np.full((3, FEATURES), forest.split[0])
    x[0], x[2] = np.nextafter(x[0], -1), np.nextafter(x[2], 1)
    agrees(forest.version_5(3), x, compiled=True)
    agrees(forest.older("TreeEnsembleRegressor"), np.repeat(x, 20, 0), compiled=True)


def test_weights_grow_with_the_nodes() -> None:
    """The bundle has no more bytes than the file."""
    forest = Forest(9, trees=40, nodes=200)
    file = forest.version_5(4)
    bundle = tenon.compile(file)
    assert bundle.program.memory.constant < len(file)


@pytest.mark.parametrize("targets", [1, 3])
def test_many_rows_of_more_nodes_than_caches_hold(targets: int) -> None:
    forest = Forest(14, trees=40, nodes=300, targets=targets)
    x = forest.rows(300)
    agrees(forest.version_5(300), x, compiled=True)
    file = forest.version_5(300)
    (expected,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    y = tenon.open(tenon.compile(file, threads=3)).run({"x": x})["y"]
    np.testing.assert_allclose(y, expected, 1e-5, 1e-5)


def test_a_row_alone_gives_what_it_gives_among_others() -> None:
    forest = Forest(10, trees=21, nodes=30, missing=True)
    x = forest.rows(19)
    whole = tenon.open(tenon.compile(forest.version_5(19))).run({"x": x})["y"]
    one = tenon.open(tenon.compile(forest.version_5(1)))
    np.testing.assert_array_equal(whole, np.concatenate([one.run({"x": row[None]})["y"] for row in x]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("targets", [1, 3])
def test_written_files_give_the_same(targets: int, dtype: Any) -> None:
    forest = Forest(12, targets=targets, modes=(0, 1, 2, 3), missing=True, dtype=dtype)
    x = forest.rows()
    graph = tenon.load(forest.version_5(len(x)))
    (expected,) = evaluate(graph, {"x": x}).values()
    written = to_onnx(graph).SerializeToString()
    agrees(written, x)
    (again,) = evaluate(tenon.load(written), {"x": x}).values()
    np.testing.assert_allclose(again, expected, 1e-6, 1e-6)


def test_trees_that_cannot_be_written() -> None:
    for modes, message in (((4,), "several parents"), ((MEMBER,), "sets of members")):
        with pytest.raises(UnsupportedError, match=message):
            to_onnx(tenon.load(Forest(13, modes=modes).version_5(3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": [0] * 12}, "circles|share"),
        ({"nodes_featureids": [FEATURES] * 12}, "features are out of range"),
        ({"nodes_featureids": [-1] * 12}, "features are out of range"),
        ({"tree_roots": [99]}, "children or roots are out of range"),
        ({"nodes_falsenodeids": [0] * 3}, "different lengths"),
        ({"leaf_targetids": [5] * 13}, "targets are out of range"),
        ({"aggregate_function": 9}, "not in the standard"),
    ],
)
def test_damaged_trees_are_refused(change: dict[str, Any], message: str) -> None:
    proto = onnx.load_from_string(Forest(11, trees=1).version_5(3))
    node = proto.graph.node[0]
    kept = [a for a in node.attribute if a.name not in change]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in change.items())])
    if "nodes_truenodeids" in change:
        next(a for a in node.attribute if a.name == "nodes_trueleafs").ints[:] = [0] * 12
    with pytest.raises((UnsupportedError, FormatError, ModelError), match=message):
        tenon.load(proto.SerializeToString())
