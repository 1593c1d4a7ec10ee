"""Part of an operator's result computed by itself, from the parts of its operands that it reads.

This is what patch-based inference needs to know of an operator (Lin et al., "MCUNetV2: Memory-Efficient Patch-based
Inference for Tiny Deep Learning", 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenon.network.graph.graph import Operation
from tenon.network.graph.types import TensorType
from tenon.network.ops.window import Axis, Ints


@dataclass(frozen=True)
class Span:
    """The positions ``start .. stop`` along ``axis``."""

    axis: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def joined(self, other: Span) -> Span | None:
        """The least span with both in it; None along different axes."""
        if self.axis != other.axis:
            return None
        return Span(self.axis, min(self.start, other.start), max(self.stop, other.stop))


@dataclass(frozen=True)
class Patch:
    """``op`` of those parts of the operands, None being a whole operand, is the part of the result."""

    op: Operation
    reads: tuple[Span | None, ...]


Types = Sequence[TensorType | None]


def broadcast_reads(inputs: Types, output: TensorType, span: Span) -> tuple[Span | None, ...]:
    """Spans that an elementwise operator reads: of an operand that is broadcast along the axis, everything."""
    reads: list[Span | None] = []
    for type in inputs:
        axis = -1 if type is None else span.axis - (output.rank - type.rank)
        whole = type is None or axis < 0 or type.dims[axis] == 1
        reads.append(None if whole else Span(axis, span.start, span.stop))
    return tuple(reads)


def window_read(axes: Sequence[Axis], span: Span) -> tuple[Span, Ints] | None:
    """The input that the windows of ``span`` read, and the pads of all axes that this part of it needs; None where a
    window lies in the padding alone."""
    i = span.axis - 2
    if i < 0:
        return None
    a = axes[i]
    start = span.start * a.stride - a.before
    stop = (span.stop - 1) * a.stride - a.before + a.span
    read = Span(span.axis, max(0, start), min(a.size, stop))
    if read.length <= 0:
        return None
    before, after = [b.before for b in axes], [b.after for b in axes]
    before[i], after[i] = max(0, -start), max(0, stop - a.size)
    return read, (*before, *after)


def window_patch(op: Any, axes: Sequence[Axis], inputs: Types, span: Span, **changes: Any) -> Patch | None:
    """A patch of an operator with windows over its first operand; ``changes`` are further attributes to set."""
    window = window_read(axes, span)
    if window is None:
        return None
    read, pads = window
    return Patch(replace(op, pads=pads, **changes), (read, *(None for _ in inputs[1:])))
