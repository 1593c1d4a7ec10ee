"""Pointwise operators fused into whatever makes their operand, so that results are stored once.

The fused node stands where the last of its operators stood, so everything it reads has been computed by then: a
residual addition fuses into the later of the two branches, with the other one as an operand.
"""

from __future__ import annotations

from tenon.ir.graph import Node
from tenon.ops.elementwise import Pointwise
from tenon.ops.fused import Fused, can_fuse, fuse
from tenon.passes.base import Match, Result, rule, rules
from tenon.passes.patterns import Apply


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.op, Pointwise) or (isinstance(node.op, Fused) and isinstance(node.op.base, Pointwise))


def _producers(match: Match) -> list[Node]:
    """Nodes whose result only ``match.root`` reads, the latest first, those that do real work before pointwise ones."""
    node = match.root
    made = {
        v.producer: None
        for v in node.inputs
        if v is not None and v.producer is not None and not match.graph.is_output(v) and set(v.uses) == {node}
    }
    order = {other: i for i, other in enumerate(match.graph.nodes)} if len(made) > 1 else {}
    return sorted(made, key=lambda other: (_is_pointwise(other), -order.get(other, 0)))


@rule(Apply("*"))
def fuse_into_producer(match: Match) -> Result:
    """f(g(x), y) is one operator where g can apply f to what it stores"""
    if not _is_pointwise(match.root) or len(match.root.outputs) != 1:
        return None
    reasons = []
    for producer in _producers(match):
        why = can_fuse(producer, match.root)
        if not why:
            op, inputs = fuse(producer, match.root)
            return match.add(op, *inputs, origin=producer.origin)
        reasons.append(f"into {producer.origin}: {why}")
    return "; ".join(reasons) or None


FUSE = rules(
    "fuse pointwise operators",
    fuse_into_producer,
    level=2,
    ensures="a pointwise operator follows only what cannot apply it itself",
)
