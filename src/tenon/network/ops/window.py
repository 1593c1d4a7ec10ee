"""Sliding windows: the geometry that convolution and pooling share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tenon.errors import ShapeError

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """Windows along one spatial axis: ``out`` of them, the first starting ``before`` elements outside the data."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def reach(self) -> int:
        """How many elements past the end of the data the last window reads."""
        return max(0, (self.out - 1) * self.stride + self.span - self.before - self.size)

    @property
    def span(self) -> int:
        """Elements from the first tap of a window to its last."""
        return (self.kernel - 1) * self.dilation + 1

    def inside(self, i: int) -> range:
        """The taps of window ``i`` inside the data."""
        start = i * self.stride - self.before
        first = min(max(0, -(start // self.dilation)), self.kernel)
        last = min(self.kernel, -((start - self.size) // self.dilation))
        return range(first, max(first, last))


@dataclass(frozen=True)
class Window:
    """The attributes, with ONNX's names; empty tuples stand for its defaults."""

    kernel: Ints
    strides: Ints = ()
    dilations: Ints = ()
    pads: Ints = ()
    auto_pad: str = "NOTSET"
    ceil_mode: bool = False

    def axes(self, name: str, sizes: Sequence[int]) -> tuple[Axis, ...]:
        """The windows along every spatial axis.  Raises ShapeError if the attributes do not fit ``sizes``."""
        rank = len(sizes)
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        pads = self.pads or (0,) * (2 * rank)
        counts = {
            "kernel_shape": len(self.kernel),
            "strides": len(strides),
            "dilations": len(dilations),
            "pads": len(pads) / 2,
        }
        for what, count in counts.items():
            if count != rank:
                raise ShapeError(f"{name}: {what} does not fit an input with {rank} spatial axes")
        if min((*strides, *dilations, *self.kernel), default=1) < 1:
            raise ShapeError(f"{name}: kernel_shape, strides and dilations must be positive")
        return tuple(
            self._axis(name, n, k, s, d, pads[i], pads[rank + i])
            for i, (n, k, s, d) in enumerate(zip(sizes, self.kernel, strides, dilations, strict=True))
        )

    def _axis(self, name: str, n: int, k: int, s: int, d: int, before: int, after: int) -> Axis:
        span = (k - 1) * d + 1
        if self.auto_pad == "VALID":
            before = after = 0
        elif self.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-n // s) - 1) * s + span - n)
            before, after = same_pads(self.auto_pad, total)
        elif self.auto_pad != "NOTSET":
            raise ShapeError(f"{name}: unknown auto_pad '{self.auto_pad}'")
        room = n + before + after - span
        out = room // s + 1
        if self.ceil_mode:  # also a single window that is larger than the axis with its padding
            out = -(-room // s) + 1
            if (out - 1) * s >= n + before:  # a window may not start in the padding on the right
                out -= 1
        if out < 1:
            raise ShapeError(f"{name}: a window of {span} elements does not fit an axis of {n} with its padding")
        return Axis(n, k, s, d, before, after, out)


def same_pads(auto_pad: str, total: int) -> tuple[int, int]:
    """(before, after) of an even split; the odd element goes after for SAME_UPPER, before for SAME_LOWER."""
    less = total // 2
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)


def last_axes(cuts: Iterable[slice]) -> tuple[Any, ...]:
    """The NumPy index that applies ``cuts`` to the last axes."""
    return (..., *cuts)


def planar(values: Ints, fill: int) -> tuple[int, int]:
    """A (rows, columns) pair of the attribute of a 1-D or 2-D operator."""
    rows, cols = ((fill,) * 2 + values)[-2:]
    return rows, cols
