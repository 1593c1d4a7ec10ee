"""Names in C, and types in comments, as Glow writes them."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from tenon.machine.plan.program import Port
from tenon.network.graph.dtype import Array
from tenon.network.graph.types import DType

_ELEMENTS = {
    DType.F32: "float",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F64: "float64",
    DType.I8: "i8",
    DType.U8: "ui8",
    DType.I16: "i16",
    DType.I32: "index32",
    DType.I64: "index64",
    DType.BOOL: "bool",
}


_BY_NUMPY = {dtype.numpy: text for dtype, text in _ELEMENTS.items() if dtype is not DType.BF16}


def array_type_text(data: Array) -> str:
    """The type of a constant: ``float<16 x 3>``."""
    return f"{_BY_NUMPY.get(data.dtype, str(data.dtype))}<{' x '.join(map(str, data.shape))}>"


def legal_name(name: str) -> str:
    """``name`` with everything but letters of ASCII, digits and ``_`` replaced by ``_``; a digit in front gets an A."""
    legal = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return "A" + legal if not legal or legal[0].isdigit() else legal


def type_text(port: Port) -> str:
    """The type of an input or output: ``float<1 x 10>``, ``i8[S:0.500000000 O:-3][-62.500,65.000]<1 x 10>``."""
    dtype, quant = port.type.dtype, port.quant
    text = _ELEMENTS.get(dtype, str(dtype))
    if quant is not None:
        scale, offset = quant.scale[0], quant.zero_point[0]
        info = np.iinfo(dtype.numpy)  # type: ignore[type-var]  # integers, as ``Port.quant`` says
        low, high = (scale * (int(limit) - offset) for limit in (info.min, info.max))
        text += f"[S:{scale:.9f} O:{offset}][{low:.3f},{high:.3f}]"
    return f"{text}<{' x '.join(map(str, port.type.dims))}>"


def elements(port: Port) -> int:
    """The number of elements."""
    return prod(port.type.dims)
