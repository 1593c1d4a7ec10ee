"""Fusion of depthwise convolutions with the following 1x1 convolution, so that the intermediate result is never stored
as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.integer_separable import IntegerSeparable
from tenon.machine.kernels import conv as kernels
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Node
from tenon.network.graph.types import F32, DType
from tenon.network.ops.conv import Conv
from tenon.network.ops.fused import Fused
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_product import ADDED
from tenon.network.ops.separable import SeparableConv
from tenon.network.passes.base import Match, Pass, Result, Rule, rules
from tenon.network.passes.neighbours import neighbours
from tenon.network.passes.patterns import IsOp
from tenon.network.passes.quantised_images import quantised_images


@dataclass(frozen=True)
class SeparableLimits:
    """Conditions for fusing a pair: images of ``dtypes``, channels of the depthwise convolution a multiple of
    ``whole``, at most ``channels`` of output and at least ``positions`` of an image of it."""

    dtypes: frozenset[DType]
    whole: int
    channels: float
    positions: int


PROCESSORS = SeparableLimits(frozenset({F32}), 16, 64, 2500)
"""Channels fill blocks of any size that a target has.  With more output channels the time of the 1x1 convolution hides
the memory traffic of the intermediate image, and its faster algorithms need memory of their own.  A smaller
intermediate image stays in the caches anyway."""

DEVICES = SeparableLimits(frozenset({F32, DType.F16, DType.BF16}), 1, float("inf"), 2)
"""Every launch costs time, so that all pairs become one operator, whose algorithms include two launches; vectors have
faster ones."""


def _conv(node: Node, limits: SeparableLimits) -> tuple[Conv, int] | None:
    """The convolution of a node, if it is 2-D and all that it reads and writes has types of the limits, and how many
    operands it has without those of fused steps."""
    op, count = (node.op.base, node.op.count) if isinstance(node.op, Fused) else (node.op, len(node.inputs))
    if type(op) is not Conv or node.output.type.rank != 4:
        return None
    constant = all(v is not None and v.constant for v in node.inputs[1:count])
    types = {v.type.dtype for v in (*node.inputs, *node.outputs) if v is not None}
    return (op, count) if constant and types <= limits.dtypes else None


def _pointwise(node: Node, conv: Conv) -> bool:
    """A 1x1 convolution of stride 1: only sums over channels."""
    kernel, steps = node.input(1).type.dims[2:], {*conv.strides, *conv.dilations}
    return kernel == (1, 1) and steps <= {1} and not any(conv.pads) and conv.group == 1


def _depthwise(node: Node, conv: Conv, count: int, whole: int) -> bool:
    """A depthwise convolution; its fused steps may read scalars only."""
    channels = node.output.type.dims[1]
    numbers = all(v is not None and v.constant and v.type.size == 1 for v in node.inputs[count:])
    alone = conv.group == channels == node.input(0).type.dims[1]
    return alone and numbers and channels % whole == 0 and not any(p < 0 for p in conv.pads)


def _integers(node: Node) -> IntegerConv | None:
    """The 2-D convolution of a node that requantises bytes by weights without a zero point, if it is one."""
    op = node.op.base if isinstance(node.op, Fused) else node.op
    if type(op) is not IntegerConv or op.rounding == "none" or op.w_zero or node.output.type.rank != 4:
        return None
    bytes = {node.input(0).type.dtype, node.output.type.dtype} <= {DType.I8, DType.U8}
    return op if bytes and node.input(1).constant and node.input(1).type.dtype is DType.I8 else None


def _problem(node: Node, op: IntegerConv, machine: Machine) -> kernels.Conv:
    """The convolution in blocks of a machine, without halos and what is fused to it."""
    x, y = (
        Image(n, c, h, w, machine.block, dtype=v.type.dtype)
        for v in (node.input(0), node.output)
        for n, c, h, w in [v.type.dims]
    )
    rows, cols = op.axes(node.input(0).type.dims, node.input(1).type.dims)
    kernel, stride, dilation = ((getattr(rows, n), getattr(cols, n)) for n in ("kernel", "stride", "dilation"))
    return kernels.Conv(x, y, kernel, stride, dilation, rows.before, cols.before, op.group, weights=DType.I8)


def _joined_integers(match: Match, machine: Machine) -> Result:
    """A pair of bytes, where it takes less time in one launch by estimate."""
    node = match.root
    second = _integers(node)
    producer = node.input(0).producer if second else None
    first = _integers(producer) if producer is not None else None
    if second is None or first is None or producer is None or not match.sole(node.input(0)):
        return None
    alone = len(producer.inputs) <= ADDED and not isinstance(producer.op, Fused)
    if not alone or first.group != producer.output.type.dims[1] or any(p < 0 for p in first.pads):
        return None
    problem = _problem(producer, first, machine), _problem(node, second, machine)
    if not IntegerSeparable.applies(problem, machine):
        return None
    if not IntegerSeparable.candidates(problem, machine, Limits(), 1):
        return "two launches take less time"
    op = SeparableConv(producer.op, node.op, len(producer.inputs))  # type: ignore[arg-type]
    return match.add(op, *producer.inputs, *node.inputs[1:], origin=producer.origin)


def _joined(match: Match, limits: SeparableLimits) -> Result:
    node = match.root
    second = _conv(node, limits)
    producer = node.input(0).producer if second else None
    if second is None or producer is None or not _pointwise(node, second[0]) or not match.sole(node.input(0)):
        return None
    _, channels, height, width = node.output.type.dims
    if channels > limits.channels or height * width < limits.positions:
        return "the intermediate image is small"
    first = _conv(producer, limits)
    if first is None or not _depthwise(producer, *first, limits.whole):
        return None
    op = SeparableConv(producer.op, node.op, len(producer.inputs))  # type: ignore[arg-type]
    return match.add(op, *producer.inputs, *node.inputs[1:], origin=producer.origin)


def separable(machine: Machine) -> Pass:
    """A pass that joins the pairs that are within the limits for a machine."""
    limits = PROCESSORS if machine.launch is None else DEVICES

    def join_separable(match: Match) -> Result:
        """Conv 1x1 (depthwise Conv (x)) is fused to one operator"""
        return _joined(match, limits)

    def join_integers(match: Match) -> Result:
        """IntegerConv 1x1 (depthwise IntegerConv (x)) is fused to one operator"""
        return _joined_integers(match, machine)

    integers = [Rule("join_integers", IsOp("*"), join_integers)] * (machine.launch is not None)
    return rules(
        "join convolutions",
        Rule("join_separable", IsOp("*"), join_separable),
        *integers,
        *neighbours(machine),
        *quantised_images(machine),
        level=2,
        ensures="results of depthwise convolutions that only a 1x1 convolution reads are not stored as a whole",
    )


SEPARABLE = separable(Machine())
