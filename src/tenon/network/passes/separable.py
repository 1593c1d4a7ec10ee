"""Fusion of depthwise convolutions with the following 1x1 convolution, so that the intermediate result is never stored
as a whole.
"""

from __future__ import annotations

from tenon.network.graph.graph import Node
from tenon.network.graph.types import F32
from tenon.network.ops.conv import Conv
from tenon.network.ops.fused import Fused
from tenon.network.ops.separable import SeparableConv
from tenon.network.passes.base import Match, Result, rule, rules
from tenon.network.passes.patterns import IsOp

WHOLE = 16
"""Channels of a depthwise convolution must fill blocks of any size that a target has."""

MOST_CHANNELS, LEAST_POSITIONS = 64, 2500
"""With more output channels the time of the 1x1 convolution hides the memory traffic of the intermediate image, and its
faster algorithms need memory of their own.  A smaller intermediate image stays in the caches anyway."""


def _conv(node: Node) -> tuple[Conv, int] | None:
    """The convolution of a node, if it is 2-D and all f32, and its number of operands without those of fused steps."""
    op, count = (node.op.base, node.op.count) if isinstance(node.op, Fused) else (node.op, len(node.inputs))
    single = all(v is None or v.type.dtype is F32 for v in (*node.inputs, *node.outputs))
    constant = all(v is not None and v.constant for v in node.inputs[1:count])
    return (op, count) if type(op) is Conv and single and constant and node.output.type.rank == 4 else None


def _pointwise(node: Node, conv: Conv) -> bool:
    """A 1x1 convolution of stride 1: only sums over channels."""
    kernel, steps = node.input(1).type.dims[2:], {*conv.strides, *conv.dilations}
    return kernel == (1, 1) and steps <= {1} and not any(conv.pads) and conv.group == 1


def _depthwise(node: Node, conv: Conv, count: int) -> bool:
    """A depthwise convolution; its fused steps may read scalars only."""
    channels = node.output.type.dims[1]
    numbers = all(v is not None and v.constant and v.type.size == 1 for v in node.inputs[count:])
    alone = conv.group == channels == node.input(0).type.dims[1]
    return alone and numbers and channels % WHOLE == 0 and not any(p < 0 for p in conv.pads)


@rule(IsOp("*"))
def join_separable(match: Match) -> Result:
    """Conv 1x1 (depthwise Conv (x)) is fused to one operator"""
    node = match.root
    second = _conv(node)
    producer = node.input(0).producer if second else None
    if second is None or producer is None or not _pointwise(node, second[0]) or not match.sole(node.input(0)):
        return None
    _, channels, height, width = node.output.type.dims
    if channels > MOST_CHANNELS or height * width < LEAST_POSITIONS:
        return "the intermediate image is small"
    first = _conv(producer)
    if first is None or not _depthwise(producer, *first):
        return None
    op = SeparableConv(producer.op, node.op, len(producer.inputs))  # type: ignore[arg-type]
    return match.add(op, *producer.inputs, *node.inputs[1:], origin=producer.origin)


SEPARABLE = rules(
    "join depthwise and 1x1 convolutions",
    join_separable,
    level=2,
    ensures="results of depthwise convolutions that only a 1x1 convolution reads are not stored as a whole",
)
