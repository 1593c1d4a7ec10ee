"""Fusion of pointwise operators into the producer of their operand, so that results are stored once.

The fused node takes the position of the last of its operators, where all that it reads has been computed: a residual
addition fuses into the later of the two branches, with the other one as an operand.
"""

from __future__ import annotations

from tenon.network.graph.graph import Node
from tenon.network.ops.base import Operator
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.fused import Fused, can_fuse, fuse
from tenon.network.ops.move import Concat
from tenon.network.passes.base import Match, Result, rule, rules
from tenon.network.passes.patterns import IsOp


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.op, Pointwise) or (isinstance(node.op, Fused) and isinstance(node.op.base, Pointwise))


def _producers(match: Match) -> list[Node]:
    """Nodes whose result only ``match.root`` reads, the latest first, pointwise ones last."""
    node = match.root
    producers = {
        v.producer: None
        for v in node.inputs
        if v is not None and v.producer is not None and not match.graph.is_output(v) and set(v.uses) == {node}
    }
    return sorted(producers, key=lambda other: (_is_pointwise(other), -match.graph.position(other)))


@rule(IsOp("*"))
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


@rule(IsOp("*"))
def align_constants(match: Match) -> Result:
    """Constants per channel get the rank of the result, as an epilogue requires"""
    node = match.root
    if not isinstance(node.op, Pointwise) or len(node.outputs) != 1:
        return None
    rank, operands = node.output.type.rank, list(node.inputs)
    for i, value in enumerate(operands):
        if value is not None and value.data is not None and value.data.size > 1 and value.type.rank < rank:
            shape = (1,) * (rank - value.type.rank) + value.data.shape
            operands[i] = match.constant(value.name, value.data.reshape(shape))
    return match.add(node.op, *operands) if operands != list(node.inputs) else None


@rule(IsOp("*"))
def activation_before_concat(match: Match) -> Result:
    """f(Concat(a, b)) = Concat(f(a), f(b)), where the producers of a and b can apply f"""
    node = match.root
    concat = node.input(0).producer if len(node.inputs) == 1 and node.inputs[0] is not None else None
    if not isinstance(node.op, Pointwise) or concat is None or not isinstance(concat.op, Concat):
        return None
    if not match.sole(node.input(0)):
        return None
    parts = [v for v in concat.inputs if v is not None]
    makers = [v.producer.op for v in parts if v.producer is not None and match.sole(v)]
    if len(makers) < len(parts) or not all(isinstance(op, Operator) and op.takes_epilogue for op in makers):
        return "not all producers of the concatenation can fuse it"
    return match.add(concat.op, *(match.add(node.op, v) for v in parts), origin=concat.origin)


FUSE = rules(
    "fuse pointwise operators",
    align_constants,
    activation_before_concat,
    fuse_into_producer,
    level=2,
    ensures="pointwise operators follow only producers that cannot fuse them",
)
