"""Tree ensembles of ONNX-ML: their nodes by thresholds alone (``tree_nodes``), walked by ``DecisionTrees``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.errors import ShapeError
from tenon.formats.decompositions.onnx.ml import TRANSFORMS, exceeds, labels, of_two, transformed
from tenon.formats.decompositions.onnx.node import OnnxNode, Results
from tenon.formats.decompositions.onnx.tree_nodes import EQ, GT, GTE, LEQ, LT, MEMBER, NEQ, Branches, thresholds_of
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType
from tenon.network.ops.tree_tables import Trees, check

_NAMED = {"BRANCH_LEQ": LEQ, "BRANCH_LT": LT, "BRANCH_GTE": GTE, "BRANCH_GT": GT, "BRANCH_EQ": EQ, "BRANCH_NEQ": NEQ}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class Entries:
    """The weights of leaves: [E] leaves, targets and weights, in any order, and the number of leaves."""

    leaves: Array
    targets: Array
    weights: Array
    count: int


def _aggregated(
    node: OnnxNode, x: Value, branches: Branches, roots: Array, entries: Entries, targets: int, aggregate: str
) -> Value:
    """[rows, targets]: what all trees say.  Raises RefusedError for damaged trees."""
    order = np.argsort(entries.leaves, kind="stable")
    counts = np.bincount(entries.leaves, minlength=entries.count)
    tests, kind = thresholds_of(branches), x.type.dtype.numpy
    constants = (
        tests.columns,
        tests.tests,
        tests.thresholds.astype(kind),
        tests.children,
        roots.astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        entries.targets[order].astype(np.int32),
        entries.weights[order].astype(kind),
    )
    names = ("columns", "tests", "thresholds", "children", "roots", "starts", "targets", "weights")
    given = [node.constant(array, name) for array, name in zip(constants, names, strict=True)]
    how = "sum" if aggregate in ("SUM", "AVERAGE") else aggregate.lower()
    nodes = len(tests.tests)
    for ends in (tests.children, roots):
        if ends.size and not -entries.count <= ends.min() <= ends.max() < nodes:
            raise RefusedError("its children or roots are out of range: the file is damaged")
    try:
        check(Trees(tests.tests, tests.thresholds, tests.children, roots))
        total = node.add("DecisionTrees", x, *given, count=targets, aggregate=how)
    except ShapeError as error:
        raise RefusedError(str(error)) from error
    if aggregate != "AVERAGE":
        return total
    return node.add("Div", total, node.constant(np.array(len(roots), kind), "trees"))


def _rows(node: OnnxNode) -> Value:
    """The input as rows of f32, or of f64 where it is f64."""
    x = node.input(0)
    x = x if x.type.dtype in (DType.F32, DType.F64) else node.add("Cast", x, to="f32")
    return node.add("Reshape", x, node.int_constant("row", [1, -1])) if x.type.rank == 1 else x


# ---------------------------------------------------------------------------------------------- version 5
def tree_ensemble(node: OnnxNode) -> Sequence[Value]:
    """Raises RefusedError for damaged trees, and for values that the standard does not name."""
    a, x = node.attributes, _rows(node)
    aggregate, transform = a.get("aggregate_function", 1), a.get("post_transform", 0)
    if not (0 <= aggregate < len(_AGGREGATES) and 0 <= transform < len(TRANSFORMS)):
        raise RefusedError(f"aggregate_function={aggregate} or post_transform={transform} is not in the standard")
    kind, count = x.type.dtype.numpy, len(a["nodes_featureids"])
    sides = [_children(a, side) for side in ("true", "false")]
    modes = np.asarray(a["nodes_modes"]).reshape(-1).astype(np.int64)
    missing = a.get("nodes_missing_value_tracks_true") or [0] * count
    branches = Branches(
        _whole(a["nodes_featureids"]),
        modes,
        np.asarray(a["nodes_splits"]).reshape(-1).astype(kind),
        _whole(missing),
        np.stack(sides, 1),
        _sets(a, int((modes == MEMBER).sum())),
    )
    _check(branches)
    roots = _whole(a["tree_roots"])
    weights = np.asarray(a["leaf_weights"]).reshape(-1)
    entries = Entries(np.arange(len(weights)), _whole(a["leaf_targetids"]), weights, len(weights))
    total = _aggregated(node, x, branches, roots if count else ~roots, entries, a["n_targets"], _AGGREGATES[aggregate])
    return [transformed(node, total, TRANSFORMS[transform])]


def _children(a: Mapping[str, Any], side: str) -> Array:
    """The children on one side: inner nodes, or leaves as their complements."""
    numbers, is_leaf = _whole(a[f"nodes_{side}nodeids"]), _whole(a[f"nodes_{side}leafs"])
    if len(numbers) != len(is_leaf):
        raise RefusedError("its attributes of nodes have different lengths: the file is damaged")
    return np.where(is_leaf != 0, ~numbers, numbers)


def _whole(numbers: Any) -> Array:
    return np.asarray(numbers, np.int64).reshape(-1)


def _sets(a: Mapping[str, Any], count: int) -> list[Array]:
    """The sets of members, which stand one after the other with NaN behind each."""
    if not count:
        return []
    values = np.asarray(a.get("membership_values", [])).reshape(-1)
    ends = [-1, *np.flatnonzero(np.isnan(values)).tolist()]
    if ends[-1] + 1 < len(values):
        ends.append(len(values))  # the last needs none
    if len(ends) <= count:
        raise RefusedError(f"membership_values has {len(ends) - 1} sets for {count} nodes")
    return [values[i + 1 : j] for i, j in pairwise(ends)]


def _check(nodes: Branches) -> None:
    """Raises RefusedError where attributes have different lengths, or modes do not exist."""
    count = len(nodes.features)
    if {len(nodes.modes), len(nodes.splits), len(nodes.missing), len(nodes.children)} != {count}:
        raise RefusedError("its attributes of nodes have different lengths: the file is damaged")
    if count and not (nodes.modes.min() >= 0 and nodes.modes.max() <= MEMBER):
        raise RefusedError("a mode of its nodes is not in the standard")


# ------------------------------------------------------------------------------- the forms before version 5
class _Names:
    """The numbers of nodes, by the numbers of their trees and theirs in these."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self.span = int(nodes.max(initial=0)) + 1
        self.trees = np.unique(trees)
        known = self._of(trees, nodes)
        self.order = np.argsort(known, kind="stable")
        self.known = known[self.order]
        if (np.diff(self.known) == 0).any():
            raise RefusedError("two nodes have one number: the file is damaged")

    def _of(self, trees: Array, nodes: Array) -> Array:
        tree = np.searchsorted(self.trees, trees).clip(0, len(self.trees) - 1)
        inside = (self.trees[tree] == trees) & (nodes >= 0) & (nodes < self.span)
        return np.where(inside, tree * self.span + nodes, -1)

    def find(self, trees: Array, nodes: Array) -> Array:
        """Raises RefusedError where there is no such node."""
        wanted = self._of(trees, nodes)
        at = np.searchsorted(self.known, wanted).clip(0, len(self.known) - 1)
        if (self.known[at] != wanted).any():
            raise RefusedError("a node that it names is not there: the file is damaged")
        indices: Array = self.order[at]
        return indices


def _numbers(a: Mapping[str, Any], name: str) -> Array:
    """An attribute of floats, which may be a tensor."""
    tensor = a.get(f"{name}_as_tensor")
    return np.asarray(a[name] if tensor is None or not np.size(tensor) else tensor).reshape(-1)


def ensemble_sums(layer: OnnxNode, role: str, count: int, base: Array) -> Value:
    """[rows, count] f32 of a TreeEnsembleRegressor ("target") or TreeEnsembleClassifier ("class"), with base values.

    Raises RefusedError for damaged trees.
    """
    a, x = layer.attributes, _rows(layer)
    trees, modes = _whole(a["nodes_treeids"]), np.asarray(a["nodes_modes"])
    if not len(trees) or len(modes) != len(trees):
        raise RefusedError("its attributes of nodes have different lengths: the file is damaged")
    names, is_leaf = _Names(trees, _whole(a["nodes_nodeids"])), modes == "LEAF"
    if unknown := set(modes[~is_leaf].tolist()) - _NAMED.keys():
        raise RefusedError(f"its modes {', '.join(sorted(map(str, unknown)))} are not supported")
    number = np.where(is_leaf, ~(np.cumsum(is_leaf) - 1), np.cumsum(~is_leaf) - 1)
    inner = np.flatnonzero(~is_leaf)
    below = [names.find(trees[inner], _whole(a[f"nodes_{side}nodeids"])[inner]) for side in ("true", "false")]
    missing = a.get("nodes_missing_value_tracks_true") or [0] * len(trees)
    kind = x.type.dtype.numpy
    branches = Branches(
        _whole(a["nodes_featureids"])[inner],
        np.array([_NAMED[m] for m in modes[inner].tolist()], np.int64),
        _numbers(a, "nodes_values").astype(kind)[inner],
        _whole(missing)[inner],
        np.stack([number[i] for i in below], 1) if len(inner) else np.zeros((0, 2), np.int64),
    )
    _check(branches)
    is_child = np.zeros(len(trees), bool)
    is_child[np.concatenate(below)] = True
    roots = number[~is_child]
    if not len(roots):
        raise RefusedError("its trees lead in circles: the file is damaged")
    leaves = number[names.find(_whole(a[f"{role}_treeids"]), _whole(a[f"{role}_nodeids"]))]
    if (leaves >= 0).any():
        raise RefusedError("a node with a weight is no leaf: the file is damaged")
    entries = Entries(~leaves, _whole(a[f"{role}_ids"]), _numbers(a, f"{role}_weights"), int(is_leaf.sum()))
    total = _aggregated(layer, x, branches, roots, entries, count, _aggregate(a))
    total = layer.add("Add", total, layer.constant(base.astype(kind), "base")) if len(base) else total
    return total if kind == np.float32 else layer.add("Cast", total, to="f32")


def _aggregate(a: Mapping[str, Any]) -> str:
    """Raises RefusedError for one that is not in the standard."""
    name = str(a.get("aggregate_function", "SUM"))
    if name not in _AGGREGATES:
        raise RefusedError(f"aggregate_function={name} is not supported", f"supported are {', '.join(_AGGREGATES)}")
    return name


def _base(node: OnnxNode) -> Array:
    a = node.attributes
    known = a.get("base_values") or np.size(a.get("base_values_as_tensor", ()))
    return _numbers(a, "base_values") if known else np.array([])


def tree_regressor(node: OnnxNode, texts: set[int]) -> Results:
    """Scores."""
    return [transformed(node, ensemble_sums(node, "target", node.attributes["n_targets"], _base(node)))]


def tree_classifier(node: OnnxNode, texts: set[int]) -> Results:
    """(classes, scores).  Of two classes, leaves that weigh the first alone weigh the second, as exporters mean it."""
    a, base = node.attributes, _base(node)
    count = len(a.get("classlabels_strings") or a.get("classlabels_int64s") or ())
    single = count == 2 and set(a["class_ids"]) == {0}
    scores = ensemble_sums(node, "class", 1 if single else count, base[-1:] if single else base)
    if single:
        probability = bool(_numbers(a, "class_weights").min() >= 0)
        chosen = exceeds(node, scores, 0.5 if probability else 0)
        answer = of_two(node, scores, probability=probability)
    else:
        chosen, answer = node.add("ArgMax", scores, axis=1, keepdims=0), transformed(node, scores)
    return [labels(node, chosen, "classlabels_int64s", "classlabels_strings"), answer]
