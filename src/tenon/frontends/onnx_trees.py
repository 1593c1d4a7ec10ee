"""Tree ensembles of ONNX-ML as two products: all conditions at once, the leaves that they lead to, their weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tenon.frontends.onnx_upgrade import Layer, RefusedError
from tenon.ir.graph import Array, Value

_MODES = {0: "LessOrEqual", 1: "Less", 2: "GreaterOrEqual", 3: "Greater", 4: "Equal"}
_DIFFERS, _MEMBER = 5, 6


def _paths(attributes: dict[str, list[int]], root: int) -> list[tuple[int, list[tuple[int, bool]]]]:
    """(leaf, conditions on the way with what each must be) of every leaf of a tree."""
    found, todo = [], [(root, list[tuple[int, bool]]())]
    while todo:
        node, way = todo.pop()
        for side in (True, False):
            word = "true" if side else "false"
            child, here = attributes[f"nodes_{word}nodeids"][node], [*way, (node, side)]
            if attributes[f"nodes_{word}leafs"][node]:
                found.append((child, here))
            else:
                todo.append((child, here))
    return found


def tree_ensemble(layer: Layer) -> Sequence[Value]:
    """Raises RefusedError for aggregates other than sum and average, and for post-transforms."""
    a, x = layer.attributes, layer.input(0)
    trees, dtype = a["tree_roots"], x.type.dtype.numpy
    if a.get("aggregate_function", 1) not in (0, 1) or a.get("post_transform", 0) not in (0, 2):
        raise RefusedError("only sums and averages, plain or logistic, are supported")
    conditions = layer.emit("Cast", _conditions(layer, x), to=x.type.dtype.value)
    leaves = [path for root in trees for path in _paths(a, root)]
    way = np.zeros((len(a["nodes_featureids"]), len(leaves)), dtype)
    weights = np.zeros((len(leaves), a["n_targets"]), dtype)
    for i, (leaf, steps) in enumerate(leaves):
        for node, side in steps:
            way[node, i] = 1 if side else -1
        weights[i, a["leaf_targetids"][leaf]] = a["leaf_weights"][leaf]
    if a.get("aggregate_function", 1) == 0:
        weights /= len(trees)
    met = layer.emit("MatMul", conditions, layer.constant("ways", way))  # most where every condition is as it must be
    reached = layer.emit("Equal", met, layer.constant("all", (way > 0).sum(0).astype(dtype)))
    total = layer.emit("MatMul", layer.emit("Cast", reached, to=x.type.dtype.value), layer.constant("leaves", weights))
    return [layer.emit("Sigmoid", total) if a.get("post_transform", 0) == 2 else total]


def _conditions(layer: Layer, x: Value) -> Value:
    """[rows, nodes]: the condition of every node of every tree."""
    a = layer.attributes
    features = layer.emit("Gather", x, layer.ints("features", a["nodes_featureids"]), axis=1)
    modes, splits = np.asarray(a["nodes_modes"]), np.asarray(a["nodes_splits"]).astype(x.type.dtype.numpy)
    limit = layer.constant("splits", splits)
    result: Value | None = None
    for mode in sorted(set(modes.tolist())):
        if mode == _MEMBER:
            found = _membership(layer, features, modes, np.asarray(a["membership_values"]))
        elif mode == _DIFFERS:
            found = layer.emit("Not", layer.emit("Equal", features, limit))
        else:
            found = layer.emit(_MODES[mode], features, limit)
        result = found if result is None else layer.emit("Where", layer.constant("mode", modes == mode), found, result)
    assert result is not None
    return result


def _membership(layer: Layer, features: Value, modes: Array, values: Array) -> Value:
    """Whether each feature is in its node's set; the sets stand one after the other, NaN between them."""
    ends = [-1, *np.flatnonzero(np.isnan(values)).tolist()]
    sets = [values[i + 1 : j] for i, j in pairwise(ends)]
    width = max(len(s) for s in sets)
    table = np.full((len(modes), width), np.nan, features.type.dtype.numpy)  # NaN equals nothing
    for node, members in zip(np.flatnonzero(modes == _MEMBER), sets, strict=True):
        table[node, : len(members)] = members
    wide = layer.emit("Unsqueeze", features, layer.ints("last", [2]))
    same = layer.emit("Cast", layer.emit("Equal", wide, layer.constant("sets", table)), to="i32")
    return layer.emit("Cast", layer.emit("ReduceMax", same, layer.ints("axes", [2]), keepdims=0), to="bool")
