"""Products of pairs of bf16, which x86 has instructions for (AVX-512 BF16)."""

from __future__ import annotations

from tenon.machine.isa.base import Portable, Primitive, ProductUnit
from tenon.network.graph.dtype import DType

DOT2 = ProductUnit("dot2", DType.BF16, DType.BF16, DType.F32, (1, 1, 2))

PRIMITIVES = {
    # (acc + the product of the second bf16s) + that of the first, per 32-bit lane; a processor's own instruction
    # takes subnormal operands, products and sums for zeros.
    "dot2": Primitive(3, products=2),
}
PORTABLE = {
    "dot2": Portable(
        "{V} acc, {I} a, {I} b",
        "acc += ({V})(a & -65536) * ({V})(b & -65536);\n  return acc + ({V})(({U})a << 16) * ({V})(({U})b << 16);",
        "union {{ uint32_t u; float f; }} x, y;\n"
        "  x.u = (uint32_t)a & 0xffff0000u, y.u = (uint32_t)b & 0xffff0000u;\n"
        "  acc += x.f * y.f;\n"
        "  x.u = (uint32_t)a << 16, y.u = (uint32_t)b << 16;\n"
        "  return acc + x.f * y.f;",
    )
}
