"""The shuffle of channels between grouped convolutions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.move import Piece, along, move
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Case, Input, Layouts, Operator, Output, Site, Step, register, typed
from tenon.network.ops.move import own
from tenon.network.ops.window import Ints


@register
@dataclass(frozen=True)
class ChannelShuffle(Operator):
    """Channels as [groups, C / groups], transposed: channel g * C / groups + i goes to i * groups + g.

    Tenon's own, not ONNX's: Reshape, Transpose and Reshape in ShuffleNet.  The groups may be separate inputs in place
    of a preceding concatenation; with ``parts``, the result is split into these numbers of channels.
    """

    groups: int = 2
    parts: Ints = ()
    arity: ClassVar[tuple[int, int]] = (1, 1 << 16)
    moves: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, *others = typed(inputs)
        channels = x.dims[1] * len(inputs) if x.rank > 1 else 0
        if not channels or channels % self.groups or len(inputs) not in (1, self.groups):
            raise ShapeError(f"ChannelShuffle: {list(x.dims)} has no {self.groups} equal groups of channels")
        if any(other != x for other in others):
            raise ShapeError("ChannelShuffle: groups that are inputs of their own must be alike")
        if sum(self.parts or (channels,)) != channels:
            raise ShapeError(f"ChannelShuffle: parts {list(self.parts)} are not all of {channels} channels")
        return tuple(TensorType(x.dtype, (x.dims[0], n, *x.dims[2:])) for n in self.parts or (channels,))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        x = np.concatenate(inputs, axis=1)
        split = x.reshape(x.shape[0], self.groups, -1, *x.shape[2:])
        whole = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(x.shape)
        return tuple(np.split(whole, list(accumulate(self.parts[:-1])), axis=1))

    def layouts(self, site: Site) -> Layouts:
        layout = own(site.input(0))
        return Layouts((layout,) * len(site.inputs), (layout,) * len(site.outputs))

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        per, alone = sum(y.dims[1] for y in site.outputs) // self.groups, len(site.inputs) == 1
        steps, sources = [], [range(self.groups)] if alone else [(g,) for g in range(self.groups)]
        for i, groups in enumerate(sources):  # threads wait between the sources of a part, which interleave
            for part, y in enumerate(site.outputs):
                first = sum(self.parts[:part])
                pieces = (_piece(y, first, per, g, self.groups, source=g * per if alone else 0) for g in groups)
                kernel = move("channel_shuffle", x, y, tuple(pieces), site.machine)
                steps.append(Step(kernel, (Input(i), Output(part))))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(2), ((1, 32, 2, 3),), label="blocks")
        yield Case(cls(2), ((2, 58, 2, 3),), label="shufflenet")
        yield Case(cls(3), ((1, 15, 4),), label="one_axis")
        yield Case(cls(4), ((1, 8, 1, 2),), label="quarters")
        yield Case(cls(2, (29, 29)), ((1, 58, 2, 3),), label="halves")
        yield Case(cls(2), ((1, 29, 2, 3),) * 2, label="joined")
        yield Case(cls(2, (29, 29)), ((2, 29, 2, 3),) * 2, label="joined_halves")
        yield Case(cls(3, (1, 7, 4)), ((1, 4, 2, 2),) * 3, label="joined_parts")
        yield Case(cls(2), ((1, 29, 2, 3),) * 2, tolerance=0, label="bf16", dtypes=(DType.BF16,) * 2)


def _piece(y: TensorType, first: int, per: int, group: int, groups: int, *, source: int) -> Piece:
    """The piece from one group of ``per`` channels, which lie from ``source`` on, into the channels of ``y``, which
    are those from ``first`` on."""
    low, high = (max(0, -(-(c - group) // groups)) for c in (first, first + y.dims[1]))
    extents = (y.dims[0], *y.dims[2:], min(high, per) - low)
    i = len(extents) - 1
    spatial = tuple(along(d - 1) for d in range(2, y.rank))
    target = (along(0), along(i, low * groups + group - first, groups), *spatial)
    return Piece(extents, target, (along(0), along(i, source + low), *spatial), unrolled=1)
