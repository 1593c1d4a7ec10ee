"""Layouts and tensor types: frozen values, compared with ``==``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from tenon.network.graph.dtype import BOOL, F32, I32, I64, U8, U32, DType
from tenon.network.graph.size_range import Size

__all__ = [
    "ALL_CHANNELS",
    "BOOL",
    "F32",
    "I32",
    "I64",
    "ROW_MAJOR",
    "U8",
    "U32",
    "DType",
    "Dim",
    "Halo",
    "Layout",
    "LayoutKind",
    "Quant",
    "TensorType",
    "tensor",
]

Dim = int | str | Size
"""An extent, the name of one that the user has still to bind, or one that every run chooses."""


class LayoutKind(StrEnum):
    """How the axes of a tensor [N, C, spatial...] follow each other in memory."""

    ROW_MAJOR = "row-major"  # the last axis is innermost: planes, one channel after the other
    BLOCKED = "blocked"  # blocks of channels are innermost
    CHANNELS_LAST = "channels-last"  # all channels are innermost


ALL_CHANNELS = 0
"""The block of ``LayoutKind.CHANNELS_LAST``."""

Halo = tuple[tuple[int, int], ...]
"""Elements (before, after) each axis from 2 on."""

_LAYOUT = re.compile(r"(?:@(\d+|channels-last)(?:\((\d+\+\d+(?:,\d+\+\d+)*)(?:=(-?[1-9]\d*))?\))?)?")


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory.

    Axis 1 is cut into blocks of ``block`` channels and the block becomes the innermost dimension; every axis
    from 2 on may have a halo of elements (before, after) around it::

        logical   [N, C, H, W]
        physical  [N, ceil(C / block), top + H + bottom, left + W + right, block]

    The channels that round C up to whole blocks always hold zeros; the halo holds ``fill``, which is the zero point
    of quantised activations and zero for all others.  ``ROW_MAJOR`` has blocks of one
    channel and no halo; an image of such blocks says so by a halo, if only of zeros.  Two layouts that differ have
    different texts.
    """

    block: int = 1
    halo: Halo = ()
    fill: int = 0

    @classmethod
    def channels_last(cls, halo: Halo = ()) -> Layout:
        """One block of all channels."""
        return cls(ALL_CHANNELS, halo)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The inverse of ``str``.  Raises ValueError."""
        match = _LAYOUT.fullmatch(text)
        if match is None:
            raise ValueError(f"'{text}' is not a layout")
        block = {None: 1, LayoutKind.CHANNELS_LAST.value: ALL_CHANNELS}.get(match[1])
        pairs = (pair.split("+") for pair in (match[2] or "").split(",") if pair)
        halo = tuple((int(a), int(b)) for a, b in pairs)
        return cls(int(match[1]) if block is None else block, halo, int(match[3] or 0))

    @property
    def kind(self) -> LayoutKind:
        if self.block == ALL_CHANNELS:
            return LayoutKind.CHANNELS_LAST
        return LayoutKind.BLOCKED if self.block > 1 or self.halo else LayoutKind.ROW_MAJOR

    @property
    def image(self) -> bool:
        """Whether axes may have a halo."""
        return self.kind is not LayoutKind.ROW_MAJOR

    @property
    def in_order(self) -> bool:
        """Whether elements lie as in ``ROW_MAJOR``: single channels without a halo."""
        return self.block == 1 and not any(before or after for before, after in self.halo)

    def block_of(self, channels: int) -> int:
        """The channels of a block, of a tensor that has so many."""
        return self.block or channels

    def physical(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The extents of the buffer that holds a tensor of this logical shape."""
        if self.in_order:
            return shape
        block = self.block_of(shape[1])
        spatial = tuple(n + a + b for n, (a, b) in zip(shape[2:], self.halos(len(shape)), strict=True))
        return (shape[0], -(-shape[1] // block) if block else 1, *spatial, block)

    def halos(self, rank: int) -> Halo:
        """(before, after) for each axis from 2 on."""
        return self.halo or ((0, 0),) * (rank - 2)

    def pack(self, data: np.ndarray) -> np.ndarray:
        """The physical array that holds ``data``, ``fill`` in the halo and zeros in the padding lanes."""
        if self.in_order:
            return np.ascontiguousarray(data)
        out = np.zeros(self.physical(data.shape), data.dtype)
        channels, blocks, block = data.shape[1], out.shape[1], out.shape[-1]
        whole = np.zeros((data.shape[0], blocks * block, *data.shape[2:]), data.dtype)
        whole[:, :channels] = data
        split = whole.reshape(data.shape[0], blocks, block, *data.shape[2:])
        inner = tuple(slice(a, a + n) for n, (a, _) in zip(data.shape[2:], self.halos(data.ndim), strict=True))
        if self.fill:
            out[...] = self.fill
        out[(slice(None), slice(None), *inner, slice(None))] = np.moveaxis(split, 2, -1)
        return out

    def unpack(self, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The logical array of ``shape`` that the physical ``data`` holds."""
        if self.in_order:
            return data.reshape(shape)
        physical = self.physical(shape)
        data = data.reshape(physical)
        inner = tuple(slice(a, a + n) for n, (a, _) in zip(shape[2:], self.halos(len(shape)), strict=True))
        split = np.moveaxis(data[(slice(None), slice(None), *inner, slice(None))], -1, 2)
        return np.ascontiguousarray(split.reshape(shape[0], physical[1] * physical[-1], *shape[2:])[:, : shape[1]])

    def __str__(self) -> str:
        """Nothing for ``ROW_MAJOR``, "@16(1+1,1+2)" for blocks and a halo, "@4(1+1,1+1=-128)" for one of
        another number than zero, "@channels-last" for one block."""
        if self.kind is LayoutKind.ROW_MAJOR:
            return ""
        halo, fill = ",".join(f"{a}+{b}" for a, b in self.halo), f"={self.fill}" if self.fill else ""
        return f"@{self.block or LayoutKind.CHANNELS_LAST}" + (f"({halo}{fill})" if halo else "")


ROW_MAJOR = Layout()


@dataclass(frozen=True)
class Quant:
    """Affine quantisation: real = scale * (stored - zero_point).  ``axis`` is None for per-tensor.

    A tensor of floats may have one too: its numbers lie on that grid, as real numbers, or with ``steps`` as whole
    numbers of steps, real / scale.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None
    steps: bool = False

    @property
    def scalar(self) -> bool:
        """Whether one scale and one zero point hold for the whole tensor."""
        return self.axis is None and len(self.scale) == 1


WHOLE = Quant((1.0,), (0,), steps=True)
"""The grid of whole numbers."""


LARGEST_BUFFER = 2**31
"""Bytes that no tensor may reach: offsets in generated code have 31 bits."""


@dataclass(frozen=True)
class TensorType:
    """Knowledge of a tensor before it exists."""

    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout = field(default=ROW_MAJOR)
    quant: Quant | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def bound(self) -> bool:
        """Whether all extents are numbers."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as integers.  Raises ValueError while a dimension is symbolic."""
        if not self.bound:
            raise ValueError(f"shape {self.shape} has unbound dimensions")
        return tuple(d for d in self.shape if isinstance(d, int))

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return math.prod(self.dims)

    @property
    def addressable(self) -> bool:
        """Whether generated code, whose offsets have 31 bits, reaches every byte."""
        return self.nbytes < LARGEST_BUFFER

    @property
    def physical(self) -> tuple[int, ...]:
        """The extents as they lie in memory, with blocks and halos."""
        return self.layout.physical(self.dims)

    @property
    def block(self) -> int:
        """Channels that lie side by side."""
        return self.layout.block_of(self.dims[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, halo and padding included."""
        return math.prod(self.physical) * self.dtype.bytes

    def with_layout(self, layout: Layout) -> TensorType:
        """This type in another memory layout."""
        return replace(self, layout=layout)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d) for d in self.shape)}]{self.layout}"


def tensor(dtype: DType, *shape: Dim) -> TensorType:
    """A row-major tensor type."""
    return TensorType(dtype, shape)
