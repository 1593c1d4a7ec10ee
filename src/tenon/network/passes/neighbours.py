"""Convolutions of one image whose results lie side by side, as the 1x1 and 3x3 ones of SqueezeNet, joined to one.

A smaller kernel becomes the middle of the larger one, with zeros around it: on devices a launch takes as long as many
products, and channels of one result need not be copied behind each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.estimate import DEVICE_BYTES, DEVICE_CYCLES, DEVICE_LATENCY, DEVICE_LAUNCH
from tenon.machine.kernels import conv as kernels
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array, Node, Value
from tenon.network.ops.conv import Conv
from tenon.network.ops.fused import Fused
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_product import ADDED
from tenon.network.ops.move import Concat
from tenon.network.ops.window import Axis
from tenon.network.passes.base import Match, Result, Rule
from tenon.network.passes.patterns import IsOp

_CHANNELS = 1
"""The axis of channels."""


@dataclass(frozen=True)
class _Side:
    """A convolution whose result is part of another one: its node, its operator without fused steps, and the window
    along rows and columns."""

    node: Node
    op: Conv | IntegerConv
    axes: tuple[Axis, ...]

    @property
    def weights(self) -> Array:
        value = self.node.input(1)
        return value.array

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(a.kernel for a in self.axes)

    def with_op(self, op: Conv | IntegerConv) -> Conv | IntegerConv | Fused:
        """The node's operator with another convolution in it."""
        whole = self.node.op
        return replace(whole, base=op) if isinstance(whole, Fused) else op


def _side(match: Match, value: Value | None) -> _Side | None:
    """The convolution of one group that a value is the result of, if only the matched node reads it and weights and
    what follows are constants."""
    node = None if value is None else value.producer
    if value is None or node is None or value.type.rank != 4 or not match.sole(value):
        return None
    op = node.op.base if isinstance(node.op, Fused) else node.op
    if isinstance(node.op, Fused) and node.op.count != len(node.inputs):
        return None
    if not isinstance(op, Conv | IntegerConv) or op.group != 1 or len(node.inputs) > ADDED:
        return None
    known = all(v is None or v.constant for v in node.inputs[1:])
    if not known or (isinstance(op, IntegerConv) and op.rounding == "none"):
        return None
    return _Side(node, op, op.axes(node.input(0).type.dims, node.input(1).type.dims))


def _alike(side: _Side, other: _Side) -> bool:
    """Whether convolutions differ in their weights and windows only: all that is not their window is the same."""
    if side.node.inputs[0] is not other.node.inputs[0] or len(side.node.inputs) != len(other.node.inputs):
        return False
    ops = (each.with_op(_without_window(each.op)) for each in (side, other))
    types = (tuple(v and v.type.dtype for v in each.node.inputs) for each in (side, other))
    return len({*ops}) == 1 and len({*types}) == 1


def _without_window(op: Conv | IntegerConv) -> Conv | IntegerConv:
    bare = replace(op, dilations=(), pads=(), strides=())
    return replace(bare, auto_pad="NOTSET", kernel_shape=()) if isinstance(bare, Conv) else bare


def _inside(small: _Side, large: _Side) -> bool:
    """Whether the taps of the smaller kernel are some of the larger one's, for each position."""
    return all(
        a.stride == b.stride
        and (a.dilation == b.dilation == 1 or a.kernel == 1 == b.dilation)
        and 0 <= b.before - a.before <= b.kernel - a.kernel
        for a, b in zip(small.axes, large.axes, strict=True)
    )


def _enlarged(small: _Side, large: _Side) -> Array:
    """The weights of a kernel among zeros, in the window of a larger one."""
    rows, cols = (
        (b.before - a.before, b.kernel - a.kernel - (b.before - a.before))
        for a, b in zip(small.axes, large.axes, strict=True)
    )
    zero = small.op.w_zero if isinstance(small.op, IntegerConv) else 0
    return np.pad(small.weights, ((0, 0), (0, 0), rows, cols), constant_values=zero)


def _problem(side: _Side, channels: int, machine: Machine) -> kernels.Conv:
    """The convolution to so many channels in blocks of a machine, without what is fused to it."""
    x, y = (
        Image(n, own, h, w, machine.block, dtype=value.type.dtype)
        for value, own in ((side.node.input(0), side.node.input(0).type.dims[_CHANNELS]), (side.node.output, channels))
        for n, _, h, w in [value.type.dims]
    )
    kernel, stride, dilation, before = (
        (getattr(side.axes[0], name), getattr(side.axes[1], name))
        for name in ("kernel", "stride", "dilation", "before")
    )
    stored = side.node.input(1).type.dtype
    return kernels.Conv(x, y, kernel, stride, dilation, *before, weights=stored).flattened()


def _cycles(side: _Side, channels: int, machine: Machine) -> float:
    """Cycles of a device for so many channels, by estimate."""
    problem = (_problem(side, channels, machine),)
    return registry.candidates(problem, machine, Limits())[0].cost(problem, machine).time * DEVICE_CYCLES


def _copied(side: _Side, other: _Side, machine: Machine) -> float:
    """Cycles of the launches that copy results of several images behind each other."""
    types = [each.node.output.type for each in (side, other)]
    if types[0].dims[0] == 1 or machine.launch is None:
        return 0.0
    return sum(DEVICE_LAUNCH + DEVICE_LATENCY + 2 * t.nbytes / (machine.launch.units * DEVICE_BYTES) for t in types)


def _pays(side: _Side, other: _Side, large: _Side, machine: Machine) -> bool:
    """Whether one launch takes less time than two, by estimate."""
    counts = [each.node.output.type.dims[_CHANNELS] for each in (side, other)]
    apart = sum(_cycles(each, count, machine) for each, count in zip((side, other), counts, strict=True))
    apart += DEVICE_LAUNCH + _copied(side, other, machine)
    return _cycles(large, sum(counts), machine) < apart


def _operands(side: _Side, other: _Side, weights: Sequence[Array]) -> Iterator[Array | None]:
    """Weights, bias, factors and shifts of both, one behind the other."""
    yield np.concatenate(weights)
    for values in zip(side.node.inputs[2:], other.node.inputs[2:], strict=True):
        dtype = next((v.array.dtype for v in values if v is not None), None)
        yield (
            None
            if dtype is None
            else np.concatenate([_of_channels(v, each, dtype) for v, each in zip(values, (side, other), strict=True)])
        )


def _of_channels(value: Value | None, side: _Side, dtype: np.dtype[Any]) -> Array:
    """A number for each channel: of a constant that has one for each or one for all, or zeros in place of none."""
    count = side.node.output.type.dims[_CHANNELS]
    return np.zeros(count, dtype) if value is None else np.broadcast_to(value.array.reshape(-1), (count,))


def _joined(match: Match, machine: Machine) -> Result:
    node = match.root
    if not isinstance(node.op, Concat) or node.output.type.rank != 4 or node.op.axis % 4 != _CHANNELS:
        return None
    sides = [_side(match, value) for value in node.inputs]
    for i, (side, other) in enumerate(pairwise(sides)):
        if side is None or other is None or side.node is other.node or not _alike(side, other):
            continue
        large, small = (side, other) if _inside(other, side) else (other, side)
        if not _inside(small, large) or side.node.input(0).type.dims[_CHANNELS] < machine.block:
            continue
        if not _pays(side, other, large, machine):
            return "two launches take less time"
        weights = [_enlarged(each, large) for each in (side, other)]
        stems = (v.name if v is not None else "" for v in large.node.inputs[1:])
        constants = [
            None if array is None else match.constant(f"{stem}_joined", array)
            for stem, array in zip(stems, _operands(side, other, weights), strict=True)
        ]
        whole = match.add(large.node.op, large.node.inputs[0], *constants, origin=large.node.origin)
        rest = [*node.inputs[:i], whole, *node.inputs[i + 2 :]]
        return whole if len(rest) == 1 else match.add(node.op, *rest)
    return None


def neighbours(machine: Machine) -> list[Rule]:
    """The rule for machines that launch kernels."""

    def join_neighbours(match: Match) -> Result:
        """Concat (Conv (x), Conv (x)) is one convolution to the channels of both"""
        return _joined(match, machine)

    return [Rule("join_neighbours", IsOp("Concat"), join_neighbours)] * (machine.launch is not None)
