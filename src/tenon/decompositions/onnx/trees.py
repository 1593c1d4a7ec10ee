"""Tree ensembles of ONNX-ML as two products: all conditions, then the leaves that they lead to and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.decompositions.onnx.ml import exceeds, f32, floats, labels, of_two, transformed
from tenon.decompositions.onnx.node import OnnxNode, Results
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value

_MODES = {0: "LessOrEqual", 1: "Less", 2: "GreaterOrEqual", 3: "Greater", 4: "Equal"}
_DIFFERS, _MEMBER = 5, 6


_Path = list[tuple[int, bool]]
"""The conditions on the path to a leaf, and their required outcomes."""


def _paths(attributes: dict[str, list[int]], root: int) -> list[tuple[int, _Path]]:
    """(leaf, path) of every leaf of a tree."""
    leaves, todo = [], [(root, list[tuple[int, bool]]())]
    while todo:
        node, steps_to_leaf = todo.pop()
        for side in (True, False):
            branch = "true" if side else "false"
            child, here = attributes[f"nodes_{branch}nodeids"][node], [*steps_to_leaf, (node, side)]
            if attributes[f"nodes_{branch}leafs"][node]:
                leaves.append((child, here))
            else:
                todo.append((child, here))
    return leaves


def tree_ensemble(node: OnnxNode) -> Sequence[Value]:
    """Raises RefusedError for aggregates other than sum and average, and for post-transforms."""
    a, x = node.attributes, node.input(0)
    trees = a["tree_roots"]
    if a.get("aggregate_function", 1) not in (0, 1) or a.get("post_transform", 0) not in (0, 2):
        raise RefusedError("only sums and averages, plain or logistic, are supported")
    leaves = [path for root in trees for path in _paths(a, root)]
    weights = np.zeros((len(leaves), a["n_targets"]))
    for i, (leaf, _) in enumerate(leaves):
        weights[i, a["leaf_targetids"][leaf]] = a["leaf_weights"][leaf]
    if a.get("aggregate_function", 1) == 0:
        weights /= len(trees)
    total = _summed(node, x, a, [steps_to_leaf for _, steps_to_leaf in leaves], weights)
    return [node.add("Sigmoid", total) if a.get("post_transform", 0) == 2 else total]


def _summed(layer: OnnxNode, x: Value, a: Mapping[str, Any], paths_to_leaves: Sequence[_Path], weights: Array) -> Value:
    """The weights of the leaves that are reached, summed over the trees; each has one path."""
    dtype = x.type.dtype.numpy
    if not len(a["nodes_featureids"]):  # every tree is a leaf
        total = layer.constant(weights.sum(0).astype(dtype), "total")
        return layer.add("Expand", total, layer.int_constant("rows", [x.type.dims[0], weights.shape[1]]))
    conditions = layer.add("Cast", _conditions(layer, x, a), to=x.type.dtype.value)
    steps_to_leaf = np.zeros((len(a["nodes_featureids"]), len(paths_to_leaves)), dtype)
    for i, steps in enumerate(paths_to_leaves):
        for node, side in steps:
            steps_to_leaf[node, i] = 1 if side else -1
    conditions_met = layer.add(
        "MatMul", conditions, layer.constant(steps_to_leaf, "paths")
    )  # equal to the number of true conditions on the path where all outcomes match
    reached = layer.add("Equal", conditions_met, layer.constant((steps_to_leaf > 0).sum(0).astype(dtype), "all"))
    leaves = layer.constant(weights.astype(dtype), "leaves")
    return layer.add("MatMul", layer.add("Cast", reached, to=x.type.dtype.value), leaves)


def _conditions(node: OnnxNode, x: Value, a: Mapping[str, Any]) -> Value:
    """[rows, nodes]: the condition of every node of every tree."""
    features = node.add("Gather", x, node.int_constant("features", a["nodes_featureids"]), axis=1)
    modes, splits = np.asarray(a["nodes_modes"]), np.asarray(a["nodes_splits"]).astype(x.type.dtype.numpy)
    limit = node.constant(splits, "splits")
    result: Value | None = None
    for mode in sorted(set(modes.tolist())):
        if mode == _MEMBER:
            conditions = _membership(node, features, modes, np.asarray(a["membership_values"]))
        elif mode == _DIFFERS:
            conditions = node.add("Not", node.add("Equal", features, limit))
        else:
            conditions = node.add(_MODES[mode], features, limit)
        result = (
            conditions
            if result is None
            else node.add("Where", node.constant(modes == mode, "mode"), conditions, result)
        )
    assert result is not None
    return result


def _membership(layer: OnnxNode, features: Value, modes: Array, values: Array) -> Value:
    """Whether each feature is in its node's set; the sets stand one after the other, NaN between them."""
    ends = [-1, *np.flatnonzero(np.isnan(values)).tolist()]
    sets = [values[i + 1 : j] for i, j in pairwise(ends)]
    width = max(len(s) for s in sets)
    table = np.full((len(modes), width), np.nan, features.type.dtype.numpy)  # NaN equals nothing
    for node, members in zip(np.flatnonzero(modes == _MEMBER), sets, strict=True):
        table[node, : len(members)] = members
    wide = layer.add("Unsqueeze", features, layer.int_constant("last", [2]))
    same = layer.add("Cast", layer.add("Equal", wide, layer.constant(table, "sets")), to="i32")
    return layer.add("Cast", layer.add("ReduceMax", same, layer.int_constant("axes", [2]), keepdims=0), to="bool")


# ------------------------------------------------------------------------------- the forms before version 5
_NAMED = {"BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4, "BRANCH_NEQ": _DIFFERS}


def ensemble_sums(layer: OnnxNode, role: str, count: int) -> Value:
    """[rows, count] f32 of a TreeEnsembleRegressor ("target") or TreeEnsembleClassifier ("class"), before base values.

    Raises RefusedError for nodes that say where missing values go.
    """
    a, x = layer.attributes, floats(layer)
    if any(a.get("nodes_missing_value_tracks_true") or ()):
        raise RefusedError("nodes_missing_value_tracks_true is not supported")
    names = list(zip(a["nodes_treeids"], a["nodes_nodeids"], strict=True))
    inner = [i for i, mode in enumerate(a["nodes_modes"]) if mode != "LEAF"]
    values = a.get("nodes_values_as_tensor")
    splits = a["nodes_values"] if values is None else values.tolist()
    conditions = {
        "nodes_featureids": [a["nodes_featureids"][i] for i in inner],
        "nodes_modes": [_NAMED[a["nodes_modes"][i]] for i in inner],
        "nodes_splits": [splits[i] for i in inner],
    }
    paths_to_leaves = _leaf_paths(a, names, {i: k for k, i in enumerate(inner)})
    given_weights = a.get(f"{role}_weights_as_tensor")
    given = a[f"{role}_weights"] if given_weights is None else given_weights.tolist()
    weights, row = np.zeros((len(paths_to_leaves), count)), {name: i for i, name in enumerate(paths_to_leaves)}
    leaves = zip(a[f"{role}_treeids"], a[f"{role}_nodeids"], a[f"{role}_ids"], given, strict=True)
    for tree, node, column, weight in leaves:
        weights[row[tree, node], column] += weight
    if a.get("aggregate_function", "SUM") == "AVERAGE":
        weights /= len(set(a["nodes_treeids"]))
    return _summed(layer, x, conditions, list(paths_to_leaves.values()), weights)


def _leaf_paths(
    a: Mapping[str, Any], names: Sequence[tuple[int, int]], inner: Mapping[int, int]
) -> dict[tuple[int, int], _Path]:
    """The path to every leaf, by its tree and its index."""
    positions = {name: i for i, name in enumerate(names)}
    sides = ((True, a["nodes_truenodeids"]), (False, a["nodes_falsenodeids"]))
    children = {(names[i][0], ids[i]) for i in inner for _, ids in sides}
    todo: list[tuple[int, _Path]] = [(i, []) for i, name in enumerate(names) if name not in children]
    paths: dict[tuple[int, int], _Path] = {}
    while todo:
        i, steps_to_leaf = todo.pop()
        if i not in inner:
            paths[names[i]] = steps_to_leaf
            continue
        if len(steps_to_leaf) > len(names):
            raise RefusedError("its trees lead in circles; the file is damaged")
        todo += [(positions[names[i][0], ids[i]], [*steps_to_leaf, (inner[i], side)]) for side, ids in sides]
    return paths


def _base(node: OnnxNode) -> list[float]:
    given = node.attributes.get("base_values_as_tensor")
    return node.attributes.get("base_values") or [] if given is None else given.tolist()


def tree_regressor(node: OnnxNode, texts: set[int]) -> Results:
    if node.attributes.get("aggregate_function", "SUM") not in ("SUM", "AVERAGE"):
        raise RefusedError("only sums and averages are supported")
    total, base = ensemble_sums(node, "target", node.attributes["n_targets"]), _base(node)
    return [transformed(node, node.add("Add", total, f32(node, "base", base)) if base else total)]


def tree_classifier(node: OnnxNode, texts: set[int]) -> Results:
    """(classes, scores).  Of two classes, leaves that weigh the first alone weigh the second, as exporters mean it."""
    a, base = node.attributes, _base(node)
    count = len(a.get("classlabels_strings") or a.get("classlabels_int64s") or ())
    single = count == 2 and set(a["class_ids"]) == {0}
    total = ensemble_sums(node, "class", 1 if single else count)
    scores = node.add("Add", total, f32(node, "base", base[-1:] if single else base)) if base else total
    if single:
        weights = a.get("class_weights") or a["class_weights_as_tensor"].tolist()
        probability = min(weights) >= 0
        chosen = exceeds(node, scores, 0.5 if probability else 0)
        answer = of_two(node, scores, probability=probability)
    else:
        chosen, answer = node.add("ArgMax", scores, axis=1, keepdims=0), transformed(node, scores)
    return [labels(node, chosen, "classlabels_int64s", "classlabels_strings"), answer]
