"""Element types and the corresponding NumPy types."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class DType(StrEnum):
    """An element type; the values are the names in the text form."""

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
    # Storage formats: copied unchanged, and converted to a wider type for arithmetic.
    BF16 = "bf16"
    F8E4M3 = "f8e4m3fn"
    F8E4M3U = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2U = "f8e5m2fnuz"
    F8E8M0 = "f8e8m0"
    F4E2M1 = "f4e2m1"
    I4 = "i4"  # types narrower than a byte, and f4e2m1, are stored in the low bits of one byte each
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
        """The bits of a number in a storage format."""
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
        """The element type of a NumPy dtype.  Raises KeyError for an unsupported one."""
        dtype = np.dtype(dtype)
        return _FROM_NUMPY[dtype] if dtype in _FROM_NUMPY else _FROM_NAME[dtype.name]


_BYTES = {
    DType.F64: 8,
    DType.I64: 8,
    DType.U64: 8,
    DType.F32: 4,
    DType.I32: 4,
    DType.U32: 4,
    DType.Q8: 4,
    DType.F16: 2,
    DType.I16: 2,
    DType.U16: 2,
    DType.I8: 1,
    DType.U8: 1,
    DType.BOOL: 1,
    DType.BF16: 2,
    DType.B2: 4,
    DType.F8E4M3: 1,
    DType.F8E4M3U: 1,
    DType.F8E5M2: 1,
    DType.F8E5M2U: 1,
    DType.F8E8M0: 1,
    DType.F4E2M1: 1,
    DType.I4: 1,
    DType.U4: 1,
    DType.I2: 1,
    DType.U2: 1,
}
_NUMPY = {
    DType.F64: "float64",
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BOOL: "bool",
    DType.Q8: "int32",
    DType.B2: "int32",
    DType.I64: "int64",
    DType.I32: "int32",
    DType.I16: "int16",
    DType.I8: "int8",
    DType.U64: "uint64",
    DType.U32: "uint32",
    DType.U16: "uint16",
    DType.U8: "uint8",
}
_EXTENDED = {
    DType.BF16: "bfloat16",
    DType.F8E4M3: "float8_e4m3fn",
    DType.F8E4M3U: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2U: "float8_e5m2fnuz",
    DType.F8E8M0: "float8_e8m0fnu",
    DType.F4E2M1: "float4_e2m1fn",
    DType.I4: "int4",
    DType.U4: "uint4",
    DType.I2: "int2",
    DType.U2: "uint2",
}
_CARRIERS = {
    DType.BF16: DType.U16,
    DType.F8E4M3: DType.U8,
    DType.F8E4M3U: DType.U8,
    DType.F8E5M2: DType.U8,
    DType.F8E5M2U: DType.U8,
    DType.F8E8M0: DType.U8,
    DType.F4E2M1: DType.U8,
    DType.I4: DType.U8,
    DType.U4: DType.U8,
    DType.I2: DType.U8,
    DType.U2: DType.U8,
}
_FROM_NAME = {name: dtype for dtype, name in _EXTENDED.items()}
_FROM_NUMPY = {np.dtype(name): dtype for dtype, name in _NUMPY.items() if dtype not in (DType.Q8, DType.B2)}

F32, I32, U32, U8, I64, BOOL = DType.F32, DType.I32, DType.U32, DType.U8, DType.I64, DType.BOOL


def swapped(array: Array) -> Array:
    """A copy with the bytes of each element reversed: values of the other byte order, as memory of this one."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{array.dtype.itemsize}").byteswap().view(array.dtype).reshape(array.shape)
