"""Generated tree ensembles as exporters of LightGBM, XGBoost and scikit-learn write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
LEQ, MEMBER = 0, 6


@dataclass(frozen=True)
class Kind:
    """Trees with so many leaves, grown at the best leaf (``skew`` 1 is at any, more prefers the latest); ``targets`` is
    the number of weights of a leaf; of ``members`` in 1 nodes look for a set of categories."""

    trees: int
    leaves: int
    features: int
    targets: int = 1
    skew: float = 1.0
    members: float = 0.0
    about: str = ""


KINDS = {
    "small": Kind(300, 16, 20, about="300 trees of 16 leaves"),
    "lightgbm": Kind(300, 31, 28, skew=2.0, about="LightGBM's default: leaf-wise, 31 leaves, missing values"),
    "lightgbm-large": Kind(500, 127, 50, skew=2.0, about="500 trees of 127 leaves"),
    "categories": Kind(100, 31, 28, skew=2.0, members=0.3, about="a third of the nodes look for categories"),
    "xgboost": Kind(200, 64, 30, about="XGBoost's depth of about 6"),
    "forest": Kind(100, 1000, 40, targets=10, about="a random forest: deep, unbalanced, 10 classes in each leaf"),
    "forest-regressor": Kind(100, 1000, 40, skew=1.5, about="a random forest of one target"),
}


@dataclass
class Trees:
    """Nodes: features, thresholds, missing, modes, children (leaves as complements); the tree of each node and leaf."""

    features: Array
    splits: Array
    missing: Array
    modes: Array
    children: Array
    node_trees: Array
    leaf_trees: Array
    roots: Array


def grown(kind: Kind, rng: np.random.Generator) -> Trees:
    """Random trees; a new node takes the place of a leaf."""
    children, node_trees, leaf_trees, roots = list[list[int]](), list[int](), list[int](), list[int]()
    for tree in range(kind.trees):
        places, base = list[tuple[int, int]](), len(children)
        roots.append(base)
        for n in range(kind.leaves - 1):
            children.append([0, 0])
            node_trees.append(tree)
            if n:
                at = int(len(places) * (1 - (1 - rng.random()) ** kind.skew))
                parent, side = places.pop(min(at, len(places) - 1))
                children[parent][side] = base + n
            places += [(base + n, 0), (base + n, 1)]
        for parent, side in places:
            children[parent][side] = ~len(leaf_trees)
            leaf_trees.append(tree)
    count = len(children)
    modes = np.where(rng.random(count) < kind.members, MEMBER, LEQ)
    splits = rng.normal(0, 1, count).astype(np.float32)
    return Trees(
        rng.integers(0, kind.features, count), splits, rng.integers(0, 2, count), modes, np.array(children),
        np.array(node_trees), np.array(leaf_trees), np.array(roots),
    )  # fmt: skip


def file(name: str, rows: int) -> bytes:
    """The ONNX file of a kind for a number of rows."""
    kind, rng = KINDS[name], np.random.default_rng(7)
    trees = grown(kind, rng)
    write: Callable[[Kind, Trees, np.random.Generator], Any] = _newest if kind.members else _regressor
    node = write(kind, trees, rng)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, kind.features])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, kind.targets])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5 if kind.members else 3)]
    model = helper.make_model(helper.make_graph([node], name, [x], [y]), opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def rows_of(name: str, count: int) -> Array:
    """Random rows, a tenth of them missing."""
    rng = np.random.default_rng(8)
    x = rng.normal(0, 1, (count, KINDS[name].features)).astype(np.float32)
    if KINDS[name].members:
        x = np.round(np.abs(x) * 10)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def _regressor(kind: Kind, t: Trees, rng: np.random.Generator) -> Any:
    """A TreeEnsembleRegressor: the nodes of a tree, then its leaves."""
    inner, leaves = len(t.features), len(t.leaf_trees)
    tree = np.concatenate([t.node_trees, t.leaf_trees])
    order = np.argsort(tree, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.searchsorted(tree[order], tree[order])
    below = number[np.where(t.children < 0, inner + ~t.children, t.children)]

    def both(values: Array) -> Any:
        return np.concatenate([values, np.zeros(leaves, values.dtype)])[order].tolist()

    modes = np.array(["BRANCH_LEQ"] * inner + ["LEAF"] * leaves)[order].tolist()
    owners = np.repeat(np.arange(leaves), kind.targets)
    return helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=kind.targets, nodes_modes=modes,
        nodes_treeids=tree[order].tolist(), nodes_nodeids=number[order].tolist(), nodes_featureids=both(t.features),
        nodes_values=both(t.splits), nodes_truenodeids=both(below[:, 0]), nodes_falsenodeids=both(below[:, 1]),
        nodes_hitrates=[1.0] * len(order), nodes_missing_value_tracks_true=both(t.missing),
        target_treeids=t.leaf_trees[owners].tolist(), target_nodeids=number[inner + owners].tolist(),
        target_ids=np.tile(np.arange(kind.targets), leaves).tolist(),
        target_weights=rng.normal(0, 0.1, leaves * kind.targets).astype(np.float32).tolist(),
    )  # fmt: skip


def _newest(kind: Kind, t: Trees, rng: np.random.Generator) -> Any:
    """A TreeEnsemble of version 5, with sets of members."""
    sets = [rng.choice(30, int(rng.integers(2, 15)), replace=False) for _ in range(int((t.modes == MEMBER).sum()))]
    values = np.concatenate([np.append(s, np.nan) for s in sets]).astype(np.float32)
    sides = {}
    for side, column in zip(("true", "false"), t.children.T, strict=True):
        sides[f"nodes_{side}nodeids"] = np.where(column < 0, ~column, column).tolist()
        sides[f"nodes_{side}leafs"] = (column < 0).astype(int).tolist()
    return helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=kind.targets, tree_roots=t.roots.tolist(),
        nodes_featureids=t.features.tolist(), nodes_modes=numpy_helper.from_array(t.modes.astype(np.uint8), "m"),
        nodes_splits=numpy_helper.from_array(t.splits, "s"), membership_values=numpy_helper.from_array(values, "v"),
        nodes_missing_value_tracks_true=t.missing.tolist(), leaf_targetids=[0] * len(t.leaf_trees),
        leaf_weights=numpy_helper.from_array(rng.normal(0, 0.1, len(t.leaf_trees)).astype(np.float32), "w"),
        aggregate_function=1, post_transform=0, **sides,
    )  # fmt: skip
