"""Transposes moved towards each other, past operators that treat every element alike, so that they cancel."""

from __future__ import annotations

import numpy as np

from tenon.ir.graph import Node, Value
from tenon.ops.elementwise import Pointwise
from tenon.passes.base import Match, Result, attribute, make, rule, rules
from tenon.passes.clean import drop_unchanging, merge_transposes, permutation
from tenon.passes.patterns import Apply


def _transposed(value: Value | None) -> tuple[Value, tuple[int, ...]] | None:
    """What a Transpose made ``value`` from, and its permutation."""
    node = value.producer if value is not None else None
    if node is None or node.op.name != "Transpose":
        return None
    return node.input(0), permutation(node.input(0), attribute(node, "perm"))


def _operand(match: Match, value: Value, perm: tuple[int, ...]) -> Value | None:
    """``value`` as it is before ``perm``: what was transposed alike, a number, or a constant turned back."""
    found = _transposed(value)
    if found is not None:
        return found[0] if found[1] == perm else None
    if value.data is None:
        return None
    if value.data.size == 1:
        return value if value.data.ndim <= 1 else match.constant(value.name, value.data.reshape(()))
    data = value.data.reshape((1,) * (len(perm) - value.data.ndim) + value.data.shape)
    return match.constant(value.name, np.ascontiguousarray(data.transpose(np.argsort(perm))))


def _pays(node: Node, match: Match) -> bool:
    """Whether moving the transposes behind ``node`` lets one of them go: two merge here, or one meets another."""
    ahead = [v for v in node.inputs if _transposed(v) is not None and v is not None and match.sole(v)]
    return len(ahead) > 1 or (len(ahead) == 1 and _meets(node, match))


def _meets(node: Node, match: Match) -> bool:
    """Whether a line of pointwise operators leads from ``node`` to a Transpose."""
    while match.sole(node.output):
        (node,) = node.output.uses
        if node.op.name == "Transpose":
            return True
        if not isinstance(node.op, Pointwise):
            return False
    return False


@rule(Apply("*"))
def transpose_after_pointwise(match: Match) -> Result:
    """f(Transpose(a), Transpose(b)) = Transpose(f(a, b))"""
    node = match.root
    if not isinstance(node.op, Pointwise) or not _pays(node, match):
        return None
    perm = next(found[1] for found in map(_transposed, node.inputs) if found is not None)
    if len(perm) != node.output.type.rank or node.op.name == "PRelu":
        return None
    operands = [None if v is None else _operand(match, v, perm) for v in node.inputs]
    if any(new is None and old is not None for new, old in zip(operands, node.inputs, strict=True)):
        return "its operands are not all transposed alike"
    return match.add(make("Transpose", perm=perm), match.add(node.op, *operands))


TRANSPOSES = rules(
    "move transposes together",
    transpose_after_pointwise, merge_transposes, drop_unchanging,
    level=2,
    ensures="no pointwise operator stands between transposes that could cancel",
)  # fmt: skip
