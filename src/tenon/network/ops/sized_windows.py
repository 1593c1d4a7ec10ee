"""The rules of operators with sliding windows, where extents of what they slide over are known only at run time.

Beyond the true extent lies what padding consists of, so windows that reach there read what they would in a tensor of
that extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression, extreme, quotient
from tenon.network.ops.sized_slices import padded_along
from tenon.network.ops.window import Ints, Window, same_pads


@dataclass(frozen=True)
class SizedWindows:
    """Explicit padding of all spatial axes, before and after, and how many windows there are along each."""

    before: Ints
    after: Ints
    counts: Sequence[Expression]
    reaching: Sequence[int]
    """The axes of the tensor along which windows reach beyond its extent."""

    @property
    def pads(self) -> Ints:
        """The attribute ``pads``."""
        return (*self.before, *self.after)


def sized_windows(window: Window, extents: Sequence[Expression], buffer: Ints) -> SizedWindows:
    """The windows over spatial axes of these extents, in a buffer of the largest ones.  Raises SizeRefusedError."""
    rank = len(extents)
    strides, dilations = window.strides or (1,) * rank, window.dilations or (1,) * rank
    pads = window.pads or (0,) * (2 * rank)
    if not len(window.kernel) == len(strides) == len(dilations) == len(pads) / 2 == rank:
        raise SizeRefusedError("its attributes do not fit its spatial axes", "")
    before, after, counts, reaching = list[int](), list[int](), list[Expression](), list[int]()
    for i, extent in enumerate(extents):
        span, stride = (window.kernel[i] - 1) * dilations[i] + 1, strides[i]
        low, high = _padding(window.auto_pad, extent, span, stride, (pads[i], pads[rank + i]))
        room = extent + (low + high - span)
        count = quotient(room, stride) + 1
        if window.ceil_mode:
            whole = -quotient(-room, stride) + 1
            count = extreme([whole, quotient(extent + (low - 1), stride) + 1], greatest=False)
            high = max(high, (int(count.most) - 1) * stride + span - low - buffer[i])
        if high > 0 or (window.ceil_mode and stride > 1):
            reaching.append(2 + i)
        before.append(low)
        after.append(high)
        counts.append(count if count.least >= 0 else extreme([count, 0], greatest=True))
    return SizedWindows(tuple(before), tuple(after), counts, reaching)


def _padding(auto: str, extent: Expression, span: int, stride: int, pads: tuple[int, int]) -> tuple[int, int]:
    if auto == "NOTSET":
        return pads
    if auto == "VALID":
        return 0, 0
    total = _same_total(extent, span, stride)
    if not total.known:
        what = f"auto_pad={auto} with a stride of {stride} pads by a number that depends on the extent in a run"
        raise SizeRefusedError(what, "export the model with explicit pads, or give the size a step of the stride")
    return same_pads(auto, total.number)


def _same_total(extent: Expression, span: int, stride: int) -> Expression:
    """The elements that auto_pad SAME adds to an axis."""
    return extreme([(-quotient(-extent, stride) - 1) * stride + (span - extent), 0], greatest=True)


def same_padded(node: SizedNode, value: Value, window: Window, fill: float) -> tuple[Value, Window]:
    """An image with ``fill`` around it along axes where auto_pad SAME adds as much as a run says, and the windows over
    it, with explicit padding of the other axes."""
    extents = node.sizes.of(value)
    rank = len(extents) - 2
    if not window.auto_pad.startswith("SAME") or len(window.kernel) != rank:
        return value, window
    strides, dilations = window.strides or (1,) * rank, window.dilations or (1,) * rank
    pads, given = [0] * (2 * rank), node.constant(np.array(fill, value.type.dtype.numpy))
    for i in range(rank):
        total = _same_total(extents[2 + i], (window.kernel[i] - 1) * dilations[i] + 1, strides[i])
        if total.known:
            pads[i], pads[rank + i] = same_pads(window.auto_pad, total.number)
            continue
        less, more = quotient(total, 2), total - quotient(total, 2)
        ends = (less, more) if window.auto_pad == "SAME_UPPER" else (more, less)
        value = padded_along(node, (value, extents), 2 + i, *ends, ("constant", given))
        extents[2 + i] = extents[2 + i] + total
        value = node.state(value, extents)
    return value, replace(window, auto_pad="NOTSET", pads=tuple(pads))


def over_images(node: SizedNode, windows: SizedWindows, channels: int | None, fill: float) -> list[Expression]:
    """Mask the first operand, an image, where windows reach beyond its extents; the extents of a result of
    ``channels``, None for as many as it has."""
    extents = node.extents(0)
    if not extents[1].known:
        raise SizeRefusedError("the number of its channels is known only at run time")
    node.with_masked(0, windows.reaching, fill)
    return [extents[0], extents[1] if channels is None else extents[1] * 0 + channels, *windows.counts]
