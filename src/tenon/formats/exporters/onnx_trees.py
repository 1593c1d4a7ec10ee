"""Decision trees as ONNX's TreeEnsembleRegressor, whose leaves may have several targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.network.graph.graph import Array, Node
from tenon.network.ops.trees import NAN_BELOW, WHOLE

DOMAIN, VERSION = "ai.onnx.ml", 3


def inexpressible(node: Node) -> str:
    """Why ONNX cannot express these trees, or nothing."""
    columns, _, _, children, roots = (node.input(i).array for i in range(1, 6))
    if (columns[:, 1] == WHOLE).any():
        return "ONNX's TreeEnsembleRegressor has no sets of members"
    parents = np.concatenate([children.reshape(-1), roots])
    if len(parents) != len(np.unique(parents)):
        return "ONNX's trees have no nodes of several parents, as comparisons for equality become"
    return ""


def regressor(node: Node) -> dict[str, Any]:
    """The attributes of a TreeEnsembleRegressor; numbers of f64 are tensors."""
    columns, tests, thresholds, children, roots, starts, targets, weights = (node.input(i).array for i in range(1, 9))
    op: Any = node.op
    inner, leaves = len(tests), len(starts) - 1
    tree = _trees(children, roots, inner, leaves)
    number = np.where(children < 0, inner + ~children, children)
    everywhere = np.isnan(thresholds)  # no number is at most NaN, and none is less than minus infinity
    is_root = np.zeros(inner + leaves, bool)
    is_root[np.where(roots < 0, inner + ~roots, roots)] = True
    order = np.lexsort((~is_root, tree))  # a tree is together, from its root on

    def ordered(values: Array) -> list[Any]:
        """Values of inner nodes, with zeros for the leaves, in the order in which nodes are written."""
        entries: list[Any] = np.concatenate([values, np.zeros(leaves, values.dtype)])[order].tolist()
        return entries

    modes = np.array(["BRANCH_LEQ", "BRANCH_LT", "LEAF"])[np.append(everywhere, np.full(leaves, 2))[order]]
    owners = inner + np.repeat(np.arange(leaves), np.diff(starts))
    splits = np.concatenate([np.where(everywhere, -np.inf, thresholds), np.zeros(leaves)]).astype(thresholds.dtype)
    return {
        "nodes_treeids": tree[order].tolist(),
        "nodes_nodeids": order.tolist(),
        "nodes_modes": modes.tolist(),
        "nodes_featureids": ordered(columns[tests, 0]),
        "nodes_truenodeids": ordered(number[:, 0]),
        "nodes_falsenodeids": ordered(number[:, 1]),
        "nodes_missing_value_tracks_true": ordered((columns[tests, 1] == NAN_BELOW).astype(int)),
        "target_treeids": tree[owners].tolist(),
        "target_nodeids": owners.tolist(),
        "target_ids": targets.tolist(),
        "n_targets": op.count,
        "aggregate_function": op.aggregate.upper(),
        **_numbers("nodes_values", splits[order]),
        **_numbers("target_weights", weights),
    }


def _trees(children: Array, roots: Array, inner: int, leaves: int) -> Array:
    """The tree of each inner node and each leaf."""
    tree = np.full(inner + leaves, -1)
    nodes, owners = np.where(roots < 0, inner + ~roots, roots), np.arange(len(roots))
    while nodes.size:
        tree[nodes] = owners
        below, owned = children[nodes[nodes < inner]].reshape(-1), np.repeat(owners[nodes < inner], 2)
        nodes, owners = np.where(below < 0, inner + ~below, below), owned
    return tree


def _numbers(name: str, values: Array) -> dict[str, Any]:
    return {f"{name}_as_tensor": values} if values.dtype == np.float64 else {name: values.tolist()}
