"""Transposed convolutions between DequantizeLinear and QuantizeLinear, as convolutions in integers.

With a stride of s, every s-th element of the result is a convolution of the input by every s-th tap, turned round: all
of them are one convolution to s channels for each channel (on each axis), whose results are then interleaved.
Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?" (2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.ops.window import Axis
from tenon.network.passes.base import Match, make

LARGEST_SPREAD = 64
"""The most channels that one channel becomes."""


def unsupported(node: Node) -> str:
    """Why a ConvTranspose has no integer form, or nothing."""
    axes = _axes(node)
    if any(a.dilation > 1 for a in axes):
        return "transposed convolutions with dilations are computed in float"
    if any(a.before < 0 or a.after < 0 for a in axes):
        return "negative pads"
    if math.prod(a.stride for a in axes) > LARGEST_SPREAD:
        return "its strides are too large"
    return ""


def _axes(node: Node) -> tuple[Axis, ...]:
    axes: tuple[Axis, ...] = node.op.axes(node.input(0).type.dims, node.input(1).type.dims)  # type: ignore[attr-defined]
    return axes


def by_output(weights: Array, group: int) -> Array:
    """Weights [in, out / group, kernel...] as [out, in / group, kernel...]."""
    inputs, outs, *kernel = weights.shape
    split = weights.reshape(group, inputs // group, outs, *kernel)
    return np.ascontiguousarray(np.swapaxes(split, 1, 2)).reshape(group * outs, inputs // group, *kernel)


@dataclass(frozen=True)
class Spread:
    """A transposed convolution as a convolution to ``count`` channels for each of ``outs``."""

    axes: tuple[Axis, ...]
    outs: int

    @classmethod
    def of(cls, node: Node, outs: int) -> Spread:
        return cls(_axes(node), outs)

    @property
    def count(self) -> int:
        return math.prod(a.stride for a in self.axes)

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(-(-a.kernel // a.stride) for a in self.axes)

    def weights(self, data: Array, zero: int) -> Array:
        """[out, in, kernel...] as [out * count, in, taps...], ``zero`` where there is no tap."""
        whole = np.full(
            (*data.shape[:2], *(t * a.stride for t, a in zip(self.taps, self.axes, strict=True))), zero, data.dtype
        )
        whole[(slice(None), slice(None), *(slice(a.kernel) for a in self.axes))] = data
        split = [n for t, a in zip(self.taps, self.axes, strict=True) for n in (t, a.stride)]
        cut = whole.reshape(*data.shape[:2], *split)
        rank = len(self.axes)
        phases, rows = [3 + 2 * i for i in range(rank)], [2 + 2 * i for i in range(rank)]
        turned = np.flip(cut.transpose(0, *phases, 1, *rows), tuple(range(rank + 2, 2 * rank + 2)))
        return np.ascontiguousarray(turned.reshape(len(data) * self.count, data.shape[1], *self.taps))

    def spread(self, parameter: Array) -> Array:
        """One number for each channel, or for all, for the channels of the convolution."""
        return np.repeat(parameter, self.count) if parameter.size > 1 else parameter

    def window(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Padding before and after the input."""
        before = tuple(t - 1 for t in self.taps)
        after = tuple(max(0, n - a.size) for n, a in zip(self.lengths, self.axes, strict=True))
        return before, after

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of the convolution along each axis that the result needs."""
        return tuple((a.before + a.out - 1) // a.stride + 1 for a in self.axes)

    def interleaved(self, match: Match, y: Value) -> Value:
        """The result of the convolution, [n, out * count, ...], as that of the transposed one."""
        n, sizes, rank = y.type.dims[0], y.type.dims[2:], len(self.axes)
        strides = [a.stride for a in self.axes]

        def add(op: str, x: Value, name: str, numbers: list[list[int]], **attributes: object) -> Value:
            constants = [match.constant(name, np.array(each, np.int64)) for each in numbers]
            return match.add(make(op, **attributes), x, *constants)

        y = add("Reshape", y, "phases", [[n, self.outs, *strides, *sizes]])
        perm = (0, 1, *(k for i in range(rank) for k in (2 + rank + i, 2 + i)))
        y = add("Transpose", y, "", [], perm=perm)
        y = add("Reshape", y, "image", [[n, self.outs, *(a * b for a, b in zip(sizes, strides, strict=True))]])
        starts, ends = [a.before for a in self.axes], [a.before + a.out for a in self.axes]
        return add("Slice", y, "window", [starts, ends, list(range(2, 2 + rank))])
