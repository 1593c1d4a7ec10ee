"""Canonicalization: constant folding, common subexpression elimination, and removal of no-ops."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tenon.network.graph.graph import Graph, Operation, Value
from tenon.network.graph.writer import can_fold, evaluate
from tenon.network.ops.base import Operator
from tenon.network.ops.move import Transpose
from tenon.network.ops.pointwise import Sum
from tenon.network.ops.shape import Reshape, Same, View
from tenon.network.passes.base import Log, Match, Pass, Result, attribute, make, rule, rules, substitute
from tenon.network.passes.patterns import IsOp

FOLD_BYTES = 1 << 28
"""Results larger than this, and than four times their inputs, are computed at run time."""


# ------------------------------------------------------------------------------------- constant folding
@rule(IsOp("*"))
def fold_constants(match: Match) -> Result:
    """A node all of whose inputs are constants is its results"""
    node = match.root
    if not can_fold(node):
        return None
    size = sum(v.type.nbytes for v in node.outputs)
    if size > max(FOLD_BYTES, 4 * sum(v.type.nbytes for v in node.inputs if v is not None)):
        return f"the result would take {size} bytes"
    return [match.constant(v.name, a) for v, a in zip(node.outputs, evaluate(node), strict=True)]


# ------------------------------------------------------------------------------ common subexpressions
def share_equal_nodes(graph: Graph, log: Log) -> int:
    """Merge nodes with equal operators and inputs; returns the number of nodes removed."""
    seen: dict[Hashable, tuple[Value, ...]] = {}
    content: dict[int, Hashable] = {}
    count = 0
    for node in graph:
        if node.bodies:
            continue
        try:
            inputs = tuple(None if v is None else content.setdefault(id(v), _identity(v)) for v in node.inputs)
            key = (type(node.op), node.op, inputs, len(node.outputs))
            first = seen.setdefault(key, node.outputs)
        except TypeError:  # an attribute that cannot be hashed, such as an array
            continue
        if first is not node.outputs and not any(graph.is_output(v) for v in node.outputs):
            for old, new in zip(node.outputs, first, strict=True):
                substitute(graph, old, new)
            graph.remove(node)
            count += 1
    return count


def _identity(value: Value) -> Hashable:
    """The key by which two values are equal: their identity, or the data of small constants."""
    if value.data is None or value.data.nbytes > 4096:
        return id(value)
    return value.type, value.data.tobytes()


# ---------------------------------------------------------------------------------------------- no-ops
@rule(IsOp("ArithmeticChoice"))
def choose_first_arithmetic(match: Match) -> Result:
    """A tensor in several arithmetics, of which none was chosen: the first"""
    return match.root.input(0)


@rule(IsOp("*", where=lambda op: isinstance(op, Same)))
def drop_identity(match: Match) -> Result:
    """Identity, and Dropout when not training"""
    return match.root.input(0) if len(match.root.outputs) == 1 else None


@rule(IsOp("*", where=lambda op: type(op).unchanging is not Operator.unchanging))
def drop_unchanging(match: Match) -> Result:
    """An operator that moves data, yet moves nothing"""
    node, op = match.root, match.root.op
    x = node.inputs[0] if node.inputs else None
    if x is None or not isinstance(op, Operator) or len(node.outputs) != 1:
        return None
    if (x.type.dtype, x.type.shape) != (node.output.type.dtype, node.output.type.shape):
        return None
    return x if op.unchanging(node.inputs) else None


@rule(IsOp("*", where=lambda op: op.one_is_itself))
def drop_single(match: Match) -> Result:
    """An operator of many operands that has one"""
    return match.root.input(0) if len(match.root.inputs) == 1 else None


@rule(IsOp("Concat"))
def drop_empty_parts(match: Match) -> Result:
    """Operands of no elements add nothing to a concatenation"""
    parts = [v for v in match.root.inputs if v is not None]
    kept = [v for v in parts if v.type.size]
    return match.add(match.root.op, *kept) if 0 < len(kept) < len(parts) else None


@rule(IsOp("Sum"))
def sum_to_add(match: Match) -> Result:
    """Sum is Add, one after the other"""
    total, *rest = (match.root.input(i) for i in range(len(match.root.inputs)))
    for value in rest:
        total = match.add("Add", total, value)
    return total if rest else match.add("Identity", total)


@rule(IsOp("*", where=lambda op: op.neutral is not None))
def drop_neutral(match: Match) -> Result:
    """x * 1, x / 1, x + 0, x - 0, x ** 1"""
    node, op = match.root, match.root.op
    assert isinstance(op, Operator)
    for a, b in ((0, 1), (1, 0)) if op.commutative else ((0, 1),):
        x, data = node.input(a), node.input(b).data
        if data is not None and x.type == node.output.type and data.size and (data == op.neutral).all():
            return x
    return None


# --------------------------------------------------------------------------------- reshapes and transposes
def _is_view(op: Operation) -> bool:
    return isinstance(op, View) and not isinstance(op, Reshape)


@rule(IsOp("*", where=_is_view))
def to_reshape(match: Match) -> Result:
    """Flatten, Squeeze and Unsqueeze are reshapes once shapes are known"""
    return reshape(match, match.root.input(0), match.root.output.type.dims)


def reshape(match: Match, x: Value, dims: tuple[int, ...]) -> Value:
    """x in another shape; empty dimensions are meant as they stand."""
    shape = match.constant(f"{match.root.output.name}_dims", np.array(dims, np.int64))
    return match.add(make("Reshape", allowzero=int(0 in dims)), x, shape)


@rule(IsOp("Reshape"))
def merge_reshapes(match: Match) -> Result:
    """A reshape of a reshape is one"""
    before = match.root.input(0).producer
    if before is None or not isinstance(before.op, Reshape):
        return None
    return reshape(match, before.input(0), match.root.output.type.dims)


def _permutation(match: Match) -> tuple[int, ...]:
    return permutation(match.root.input(0), attribute(match.root, "perm"))


def permutation(x: Value, perm: tuple[int, ...]) -> tuple[int, ...]:
    """A Transpose's permutation; none given reverses all axes."""
    return tuple(perm) or tuple(reversed(range(x.type.rank)))


@rule(IsOp("Transpose"))
def merge_transposes(match: Match) -> Result:
    """A transpose of a transpose is one"""
    before = match.root.input(0).producer
    if before is None or not isinstance(before.op, Transpose):
        return None
    inner, outer = permutation(before.input(0), attribute(before, "perm")), _permutation(match)
    return match.add(make("Transpose", perm=tuple(inner[i] for i in outer)), before.input(0))


@rule(IsOp("Transpose"))
def transpose_to_reshape(match: Match) -> Result:
    """A transpose that only moves axes of one element is a reshape"""
    x = match.root.input(0)
    moved = [i for i in _permutation(match) if x.type.dims[i] != 1]
    return reshape(match, x, match.root.output.type.dims) if moved == sorted(moved) else None


CONSTANTS = rules("fold constants", fold_constants, level=1, ensures="no node has only constant inputs")
COMMON = Pass("share equal nodes", share_equal_nodes, 1, "no two nodes compute the same from the same")
DEAD = Pass("remove dead nodes", lambda graph, _: graph.prune(), 0, "every node leads to an output")
IDENTITIES = rules(
    "remove what does nothing",
    choose_first_arithmetic,
    drop_identity,
    drop_unchanging,
    drop_single,
    drop_empty_parts,
    drop_neutral,
    sum_to_add,
    level=1,
    ensures="no node returns its input unchanged",
    leaves=lambda op: isinstance(op, Sum),
)
MOVES = rules(
    "merge reshapes and transposes",
    to_reshape,
    merge_reshapes,
    merge_transposes,
    transpose_to_reshape,
    drop_unchanging,
    level=1,
    ensures="no reshape follows a reshape and no transpose a transpose",
    leaves=_is_view,
)
