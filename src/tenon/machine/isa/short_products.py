"""Products of pairs of 16-bit integers in vectors of words, which x86 has an instruction for (``pmaddwd``)."""

from __future__ import annotations

from typing import Any

from tenon.machine.isa.base import Portable, Primitive, ProductUnit
from tenon.network.graph.dtype import DType

MADD_I16 = ProductUnit("madd_i16", DType.I16, DType.I16, DType.I32, (1, 1, 2), time=1.3)


def pairs(acc: Any, a: Any, b: Any) -> Any:
    """``acc`` plus the products of the low and of the high halves of every word."""
    return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16)


PRIMITIVES = {"madd_i16": Primitive(3, products=2, meaning=pairs)}
_TEXT = (
    "const {V} a0 = ({V})(({U})a << 16) >> 16, b0 = ({V})(({U})b << 16) >> 16;\n"
    "  return ({V})(({U})acc + ({U})(a0 * b0) + ({U})((a >> 16) * (b >> 16)));"
)
PORTABLE = {"madd_i16": Portable("{V} acc, {V} a, {V} b", _TEXT, _TEXT)}
