"""Transposes are moved towards each other, past operators that do not depend on the order of axes, so that they cancel.

A rule always moves a Transpose from the operands of a node to its results, never back, so the rules terminate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tenon.network.graph.graph import Node, Operation, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Operator
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.move import Concat, Transpose
from tenon.network.ops.quantize import Quantisation
from tenon.network.ops.reduce import Reduce
from tenon.network.ops.shape import Reshape
from tenon.network.ops.slice_gather import Pad, Slice
from tenon.network.passes.base import Match, Result, attribute, make, rule, rules
from tenon.network.passes.canonicalize import (
    drop_unchanging,
    merge_transposes,
    permutation,
    reshape,
    transpose_to_reshape,
)
from tenon.network.passes.patterns import IsOp

Perm = tuple[int, ...]

PRODUCTS = (Gemm, IntegerGemm)
"""Operators that multiply rows by weights."""

FARTHEST = 200
"""The limit of nodes visited to find out whether a Transpose would reach another."""


@dataclass(frozen=True)
class Moved:
    """A node without the Transpose of its operands, and the permutation of its results that compensates for it."""

    op: Operation
    inputs: Sequence[Value | None]
    perm: Perm


def _transposed(value: Value | None) -> tuple[Value, Perm] | None:
    """The operand of the Transpose that computes ``value``, and its permutation."""
    node = value.producer if value is not None else None
    if node is None or not isinstance(node.op, Transpose):
        return None
    return node.input(0), permutation(node.input(0), attribute(node, "perm"))


def _operand(match: Match, value: Value, perm: Perm) -> Value | None:
    """``value`` without ``perm``: the operand of an equal Transpose, a scalar, a constant transposed back, or a tensor
    of which only axes of one element would move.
    """
    transposed = _transposed(value)
    if transposed is not None:
        return transposed[0] if transposed[1] == perm else None
    back = [int(i) for i in np.argsort(perm)]
    if value.data is None:
        if value.type.rank != len(perm):
            return None
        dims = value.type.dims
        moved = [i for i in back if dims[i] != 1]
        return reshape(match, value, tuple(dims[i] for i in back)) if moved == sorted(moved) else None
    if value.data.size == 1:
        return value if value.data.ndim <= 1 else match.constant(value.name, value.data.reshape(()))
    data = value.data.reshape((1,) * (len(perm) - value.data.ndim) + value.data.shape)
    return match.constant(value.name, np.ascontiguousarray(data.transpose(back)))


# ------------------------------------------------------------------------------ nodes without the Transpose
def _same(match: Match, node: Node, perm: Perm) -> Moved | str | None:
    """Elementwise operators."""
    if len(perm) != node.output.type.rank:
        return None
    operands = [None if v is None else _operand(match, v, perm) for v in node.inputs]
    if any(new is None and old is not None for new, old in zip(operands, node.inputs, strict=True)):
        return "its operands are not all transposed alike"
    return Moved(node.op, operands, perm)


def _number_by_number(match: Match, node: Node, perm: Perm) -> Moved | str | None:
    """Quantisation by one scale."""
    if node.input(1).type.size != 1:
        return "it has a scale per channel"
    source = _operand(match, node.input(0), perm)
    return None if source is None else Moved(node.op, [source, *node.inputs[1:]], perm)


def _along_axis(match: Match, node: Node, perm: Perm) -> Moved | str | None:
    """The first operand, or all of a Concat, is transposed; an attribute names an axis of it."""
    op: Any = node.op
    if node.output.type.rank != len(perm):  # axes are removed or added: reductions, and gathers from a table
        return None
    axis = attribute(node, "axis") % len(perm)
    turned = len(node.inputs) if isinstance(node.op, Concat) else 1
    sources = [_operand(match, node.input(i), perm) if i < turned else node.inputs[i] for i in range(len(node.inputs))]
    if any(new is None and old is not None for new, old in zip(sources, node.inputs, strict=True)):
        return "its operands are not all transposed alike"
    return Moved(replace(op, axis=perm[axis]), sources, perm)


def _reduction(match: Match, node: Node, perm: Perm) -> Moved | str | None:
    axes = node.inputs[1].data if len(node.inputs) > 1 and node.inputs[1] is not None else None
    source = _operand(match, node.input(0), perm)
    if axes is None or source is None or not axes.size:
        return None
    gone = {int(a) % len(perm) for a in axes.ravel()}
    turned = match.constant(f"{node.output.name}_axes", np.array(sorted(perm[a] for a in gone), np.int64))
    if attribute(node, "keepdims"):
        return Moved(node.op, [source, turned], perm)
    left = [perm[i] for i in range(len(perm)) if i not in gone]
    return Moved(node.op, [source, turned], tuple(sorted(left).index(a) for a in left))


def _pad(match: Match, node: Node, perm: Perm) -> Moved | str | None:
    pads, source = node.input(1).data, _operand(match, node.input(0), perm)
    given = node.inputs[3] if len(node.inputs) > 3 else None
    if pads is None or source is None or (given is not None and given.data is None):
        return None
    axes = np.arange(len(perm)) if given is None or given.data is None else given.data % len(perm)
    full = np.zeros((2, len(perm)), np.int64)
    full[:, np.array(perm)[axes]] = pads.reshape(2, -1)
    value = node.inputs[2] if len(node.inputs) > 2 else None
    return Moved(node.op, [source, match.constant(f"{node.output.name}_pads", full.ravel()), value], perm)


def _slice(match: Match, node: Node, perm: Perm) -> Moved | str | None:
    source, starts = _operand(match, node.input(0), perm), node.input(1)
    given = node.inputs[3] if len(node.inputs) > 3 else None
    if source is None or (given is not None and given.data is None):
        return None
    axes = np.arange(starts.type.size) if given is None or given.data is None else given.data % len(perm)
    turned = match.constant(f"{node.output.name}_axes", np.array(perm, np.int64)[axes])
    return Moved(node.op, [source, starts, node.input(2), turned, *node.inputs[4:]], perm)


Mover = Callable[[Match, Node, Perm], Moved | str | None]

MOVERS: tuple[tuple[type[Operator], Mover], ...] = (
    (Quantisation, _number_by_number),
    (Pointwise, _same),
    (Reduce, _reduction),
    (Pad, _pad),
    (Slice, _slice),
)
"""Functions that give an operator without the Transpose, by class; the first match is used."""


def _mover(node: Node) -> Mover | None:
    op = node.op
    if isinstance(op, Operator) and op.along_axis:
        return _along_axis
    return next((mover for kind, mover in MOVERS if isinstance(op, kind)), None)


# ------------------------------------------------------------------------------------------------- profitability
def _pays(node: Node, match: Match) -> bool:
    """Whether moving the transposes behind ``node`` removes one of them: two merge here, or one reaches another."""
    ahead = [v for v in node.inputs if v is not None and _transposed(v) is not None and match.sole(v)]
    return len(ahead) > 1 or _meets(node)


def _meets(node: Node) -> bool:
    """Whether there is a path from ``node`` to a Transpose, or to an operator that absorbs one, through nodes that can
    be moved.
    """
    seen, todo = {node}, [node]
    while todo and len(seen) < FARTHEST:
        here = todo.pop()
        if _absorbs(here):
            return True
        for user in dict.fromkeys(user for v in here.outputs for user in v.uses):
            if isinstance(user.op, Transpose) or _into_product(user):
                return True
            if user not in seen and _mover(user) is not None:
                seen.add(user)
                todo.append(user)
    return False


def _absorbs(node: Node) -> bool:
    """A reduction to the batch and one more axis does not depend on the order of the others."""
    return isinstance(node.op, Reduce) and not node.op.keepdims and node.output.type.rank <= 2


def _into_product(node: Node) -> bool:
    """A reshape to rows for a product with constant weights."""
    if not isinstance(node.op, Reshape) or node.output.type.rank != 2 or len(node.output.uses) != 1:
        return False
    (user,) = node.output.uses
    return isinstance(user.op, PRODUCTS) and user.input(0) is node.output and user.input(1).constant


# ---------------------------------------------------------------------------------------------------------- rules
@rule(IsOp("*"))
def transpose_after(match: Match) -> Result:
    """f(Transpose(a), Transpose(b)) = Transpose(f(a, b)), with f's axes renamed"""
    node, mover = match.root, _mover(match.root)
    perm = next((transposed[1] for transposed in map(_transposed, node.inputs) if transposed is not None), None)
    if mover is None or perm is None or not _pays(node, match):
        return None
    moved = mover(match, node, perm)
    if not isinstance(moved, Moved):
        return moved
    if len(node.outputs) == 1:
        return match.add(make("Transpose", perm=moved.perm), match.add(moved.op, *moved.inputs))
    made = match.graph.add(
        moved.op, moved.inputs, [match.names.fresh(v.name) for v in node.outputs], node.origin, before=node
    )
    match.made.append(made)
    return [match.add(make("Transpose", perm=moved.perm), v) for v in made.outputs]


@rule(IsOp("|".join(each.__name__ for each in PRODUCTS)))
def transpose_into_weights(match: Match) -> Result:
    """Rows of transposed elements times weights = rows times weights with their rows in that order"""
    node = match.root
    rows = node.input(0).producer
    if rows is None or not isinstance(rows.op, Reshape) or not match.sole(node.input(0)):
        return None
    transposed, weights = _transposed(rows.input(0)), node.input(1)
    integers = isinstance(node.op, IntegerGemm)
    if transposed is None or weights.data is None or not match.sole(rows.input(0)):
        return None
    if not integers and attribute(node, "transA"):
        return None
    (x, perm), dims = transposed, rows.input(0).type.dims
    if perm[0] != 0 or node.input(0).type.dims != (dims[0], int(np.prod(dims[1:]))):
        return None
    order = [int(i) for i in np.argsort(perm[1:])]
    turned = integers or bool(attribute(node, "transB"))
    data = weights.data if turned else weights.data.T
    data = data.reshape(-1, *dims[1:]).transpose(0, *(1 + i for i in order)).reshape(data.shape)
    value = match.constant(weights.name, np.ascontiguousarray(data if turned else data.T))
    value.type = TensorType(value.type.dtype, value.type.shape, quant=weights.type.quant)
    return match.add(node.op, reshape(match, x, node.input(0).type.dims), value, *node.inputs[2:])


TRANSPOSES = rules(
    "move transposes together",
    transpose_after,
    transpose_into_weights,
    merge_transposes,
    transpose_to_reshape,
    drop_unchanging,
    level=2,
    ensures="no movable operator is between transposes that would cancel",
)
