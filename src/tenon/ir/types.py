"""Element types, layouts and tensor types: frozen values, compared with ``==``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np


class DType(StrEnum):
    """An element type, named as the text form spells it."""

    F32 = "f32"
    F64 = "f64"
    F16 = "f16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"
    # Formats to store numbers in: they are copied as they are, and widened before anything is computed.
    BF16 = "bf16"
    F8E4M3 = "f8e4m3fn"
    F8E4M3U = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2U = "f8e5m2fnuz"
    F8E8M0 = "f8e8m0"
    F4E2M1 = "f4e2m1"
    I4 = "i4"  # integers of less than a byte, and f4e2m1, lie in the lowest bits of a byte each
    U4 = "u4"
    I2 = "i2"
    U2 = "u2"
    Q8 = "q8"  # loop IR only: four bytes in one 32-bit word
    B2 = "b2"  # loop IR only: two bf16 in one 32-bit word, the first in the low half

    @property
    def bytes(self) -> int:
        return _BYTES[self]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        if self in _EXTENDED:
            import ml_dtypes

            held: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, _EXTENDED[self]))
            return held
        return np.dtype(_NUMPY[self])

    @property
    def carrier(self) -> DType:
        """The type whose elements hold this type's bits: itself, but for storage formats."""
        return _CARRIERS.get(self, self)

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.F32, DType.F64)

    def bits(self, value: float) -> int:
        """How a storage format spells a number."""
        return int(np.asarray(value, np.float32).astype(self.numpy).reshape(1).view(self.carrier.numpy)[0])

    @property
    def is_small_float(self) -> bool:
        """A float that kernels load and store as bits."""
        return self in _CARRIERS and self not in (DType.I4, DType.U4, DType.I2, DType.U2)

    @property
    def is_signed(self) -> bool:
        """A signed integer."""
        return self in (DType.I64, DType.I32, DType.I16, DType.I8, DType.I4, DType.I2)

    @classmethod
    def of(cls, dtype: np.dtype[np.generic] | type) -> DType:
        """The element type of a NumPy dtype.  Raises KeyError for one that Tenon does not hold."""
        dtype = np.dtype(dtype)
        return _FROM_NUMPY[dtype] if dtype in _FROM_NUMPY else _FROM_NAME[dtype.name]


_BYTES = {
    DType.F64: 8, DType.I64: 8, DType.U64: 8, DType.F32: 4, DType.I32: 4, DType.U32: 4, DType.Q8: 4,
    DType.F16: 2, DType.I16: 2, DType.U16: 2, DType.I8: 1, DType.U8: 1, DType.BOOL: 1, DType.BF16: 2, DType.B2: 4,
    DType.F8E4M3: 1, DType.F8E4M3U: 1, DType.F8E5M2: 1, DType.F8E5M2U: 1, DType.F8E8M0: 1, DType.F4E2M1: 1,
    DType.I4: 1, DType.U4: 1, DType.I2: 1, DType.U2: 1,
}  # fmt: skip
_NUMPY = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BOOL: "bool", DType.Q8: "int32",
    DType.B2: "int32", DType.I64: "int64", DType.I32: "int32", DType.I16: "int16", DType.I8: "int8",
    DType.U64: "uint64", DType.U32: "uint32", DType.U16: "uint16", DType.U8: "uint8",
}  # fmt: skip
_EXTENDED = {
    DType.BF16: "bfloat16", DType.F8E4M3: "float8_e4m3fn", DType.F8E4M3U: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2", DType.F8E5M2U: "float8_e5m2fnuz", DType.F8E8M0: "float8_e8m0fnu",
    DType.F4E2M1: "float4_e2m1fn", DType.I4: "int4", DType.U4: "uint4", DType.I2: "int2", DType.U2: "uint2",
}  # fmt: skip
_CARRIERS = {
    DType.BF16: DType.U16, DType.F8E4M3: DType.U8, DType.F8E4M3U: DType.U8, DType.F8E5M2: DType.U8,
    DType.F8E5M2U: DType.U8, DType.F8E8M0: DType.U8, DType.F4E2M1: DType.U8,
    DType.I4: DType.U8, DType.U4: DType.U8, DType.I2: DType.U8, DType.U2: DType.U8,
}  # fmt: skip
_FROM_NAME = {name: dtype for dtype, name in _EXTENDED.items()}
_FROM_NUMPY = {np.dtype(name): dtype for dtype, name in _NUMPY.items() if dtype not in (DType.Q8, DType.B2)}

F32, I32, U32, U8, I64, BOOL = DType.F32, DType.I32, DType.U32, DType.U8, DType.I64, DType.BOOL

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
