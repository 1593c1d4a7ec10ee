"""Layouts and tensor types: frozen values, compared with ``==``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tenon.ir.dtype import BOOL, F32, I32, I64, U8, U32, DType

__all__ = [
    "BOOL", "F32", "I32", "I64", "PLAIN", "U8", "U32", "DType", "Dim", "Layout", "Quant", "TensorType", "tensor",
]  # fmt: skip

Dim = int | str
"""An extent, or the name of one that the user has still to bind."""


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory.

    Axis 1 is cut into blocks of ``block`` channels and the block becomes the innermost dimension; every axis
    from 2 on may have a halo of elements (before, after) around it::

        logical   [N, C, H, W]
        physical  [N, ceil(C / block), top + H + bottom, left + W + right, block]

    The halo, and the channels that round C up to whole blocks, always hold zeros.  ``Layout()`` is row-major.
    """

    block: int = 1
    halo: tuple[tuple[int, int], ...] = ()

    @property
    def plain(self) -> bool:
        return self.block == 1 and not any(before or after for before, after in self.halo)

    def physical(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The extents of the buffer that holds a tensor of this logical shape."""
        if self.plain:
            return shape
        spatial = tuple(n + a + b for n, (a, b) in zip(shape[2:], self.halos(len(shape)), strict=True))
        return (shape[0], -(-shape[1] // self.block), *spatial, self.block)

    def halos(self, rank: int) -> tuple[tuple[int, int], ...]:
        """(before, after) for each axis from 2 on."""
        return self.halo or ((0, 0),) * (rank - 2)

    def pack(self, data: np.ndarray) -> np.ndarray:
        """The physical array that holds ``data``, zeros in halo and padding."""
        if self.plain:
            return np.ascontiguousarray(data)
        out = np.zeros(self.physical(data.shape), data.dtype)
        channels = data.shape[1]
        whole = np.zeros((data.shape[0], out.shape[1] * self.block, *data.shape[2:]), data.dtype)
        whole[:, :channels] = data
        split = whole.reshape(data.shape[0], out.shape[1], self.block, *data.shape[2:])
        inner = tuple(slice(a, a + n) for n, (a, _) in zip(data.shape[2:], self.halos(data.ndim), strict=True))
        out[(slice(None), slice(None), *inner, slice(None))] = np.moveaxis(split, 2, -1)
        return out

    def unpack(self, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The logical array of ``shape`` that the physical ``data`` holds."""
        if self.plain:
            return data.reshape(shape)
        data = data.reshape(self.physical(shape))
        inner = tuple(slice(a, a + n) for n, (a, _) in zip(shape[2:], self.halos(len(shape)), strict=True))
        split = np.moveaxis(data[(slice(None), slice(None), *inner, slice(None))], -1, 2)
        return np.ascontiguousarray(split.reshape(shape[0], -1, *shape[2:])[:, : shape[1]])

    def __str__(self) -> str:
        halo = ",".join(f"{a}+{b}" for a, b in self.halo) if any(a or b for a, b in self.halo) else ""
        return "" if self.plain else f"@{self.block}" + (f"({halo})" if halo else "")


PLAIN = Layout()


@dataclass(frozen=True)
class Quant:
    """Affine quantisation: real = scale * (stored - zero_point).  ``axis`` is None for per-tensor."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None


WHOLE = Quant((1.0,), (0,))
"""The grid of whole numbers.  Passes leave floats on it as they are: sums of their products are exact."""


LARGEST_BUFFER = 2**31
"""Bytes that no tensor may reach: offsets in generated code have 31 bits."""


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor before it exists."""

    dtype: DType
    shape: tuple[Dim, ...]
    layout: Layout = field(default=PLAIN)
    quant: Quant | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def bound(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as integers.  Raises ValueError while a dimension is symbolic."""
        if not self.bound:
            raise ValueError(f"shape {self.shape} has unbound dimensions")
        return tuple(int(d) for d in self.shape)

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
        return self.layout.physical(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, halo and padding included."""
        return math.prod(self.physical) * self.dtype.bytes

    def with_layout(self, layout: Layout) -> TensorType:
        return replace(self, layout=layout)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d) for d in self.shape)}]{self.layout}"


def tensor(dtype: DType, *shape: Dim) -> TensorType:
    """A row-major tensor type."""
    return TensorType(dtype, shape)
