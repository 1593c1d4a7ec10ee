"""Products of tiles by the tensor cores of NVIDIA GPUs, as instructions of a warp.

``mma_f16`` adds to 16 x 8 sums in f32 the products of 16 rows of eight f16 by eight columns of eight.  Thread ``4 * g +
t`` of the 32 has the sums of the rows g and g + 8 and of the columns 2 * t and 2 * t + 1.  Operands: where the elements
2 * t and 2 * t + 1 of the rows g and g + 8 and of column g lie, and the four sums (Turing or newer).

``mma_f16_k16`` and ``mma_bf16_k16`` add 16 products, ``mma_i8_k32`` and ``mma_u8_k32`` (rows without a sign) 32 of
bytes to sums in i32, on Ampere or newer.  Thread ``4 * g + t`` is given eight bytes of the rows g and g + 8 and of
column g, from byte 8 * t on.  The instruction has four of these bytes in a second half of the products; rows and
columns are cut alike, so that the sums are of the same products.  Source: the PTX ISA, "Matrix Fragments for
mma.m16n8k8", "m16n8k16" and "m16n8k32".

``mma_f16_k16_turned`` and ``mma_bf16_k16_turned`` take the columns from a matrix of 16 rows in shared memory that has
a column's elements below each other: threads ``i`` and ``i + 16`` are given where row ``i`` of its eight columns
begins, at a multiple of 16 bytes.  Of the other factor, element ``8 a + 2 t + b`` of a row is the number
``4 t + 2 a + b`` that lies there.  Source: the PTX ISA, "ldmatrix".
"""

from __future__ import annotations

from tenon.machine.isa.base import ProductUnit
from tenon.network.graph.dtype import DType

MMA_F16 = ProductUnit("mma_f16", DType.F16, DType.F16, DType.F32, (16, 8, 8))
MMA_F16_K16 = ProductUnit("mma_f16_k16", DType.F16, DType.F16, DType.F32, (16, 8, 16))
MMA_BF16_K16 = ProductUnit("mma_bf16_k16", DType.BF16, DType.BF16, DType.F32, (16, 8, 16))
MMA_I8_K32 = ProductUnit("mma_i8_k32", DType.I8, DType.I8, DType.I32, (16, 8, 32))
MMA_U8_K32 = ProductUnit("mma_u8_k32", DType.U8, DType.I8, DType.I32, (16, 8, 32))

_CUDA = """\
static __device__ __forceinline__ void mma_f16(const uint16_t *low, const uint16_t *high, const uint16_t *column,
                                               float &c0, float &c1, float &c2, float &c3) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(*(const uint32_t *)low), "r"(*(const uint32_t *)high), "r"(*(const uint32_t *)column));
}"""

_WORDS = """\
static __device__ __forceinline__ void {name}(const {element} *low, const {element} *high, const {column} *column,
                                              {sum} &c0, {sum} &c1, {sum} &c2, {sum} &c3) {{
  const uint2 a = *(const uint2 *)low, b = *(const uint2 *)high, w = *(const uint2 *)column;
  asm volatile("mma.sync.aligned.{shape}.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
               "{{%0, %1, %2, %3}};"
               : "+{register}"(c0), "+{register}"(c1), "+{register}"(c2), "+{register}"(c3)
               : "r"(a.x), "r"(b.x), "r"(a.y), "r"(b.y), "r"(w.x), "r"(w.y));
}}"""


_TURNED = """\
static __device__ __forceinline__ void {name}(const uint16_t *low, const uint16_t *high, const uint16_t *row,
                                              float &c0, float &c1, float &c2, float &c3) {{
  const uint2 a = *(const uint2 *)low, b = *(const uint2 *)high;
  uint32_t w0, w1;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%0, %1}}, [%2];"
               : "=r"(w0), "=r"(w1) : "r"((unsigned)__cvta_generic_to_shared(row)));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
               "{{%0, %1, %2, %3}};"
               : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
               : "r"(a.x), "r"(b.x), "r"(a.y), "r"(b.y), "r"(w0), "r"(w1));
}}"""


def _of_words(name: str, element: str, column: str, total: str, shape: str, types: str) -> str:
    """The function of an instruction whose operands are eight bytes of each row and column."""
    register = "f" if total == "float" else "r"
    words = {"name": name, "element": element, "column": column, "sum": total, "register": register}
    return _WORDS.format(**words, shape=shape, types=types)


DEVICE_INSTRUCTIONS = {
    "cuda": {
        "mma_f16": _CUDA,
        "mma_f16_k16": _of_words("mma_f16_k16", "uint16_t", "uint16_t", "float", "m16n8k16", "f32.f16.f16.f32"),
        "mma_bf16_k16": _of_words("mma_bf16_k16", "uint16_t", "uint16_t", "float", "m16n8k16", "f32.bf16.bf16.f32"),
        "mma_f16_k16_turned": _TURNED.format(name="mma_f16_k16_turned", types="f32.f16.f16.f32"),
        "mma_bf16_k16_turned": _TURNED.format(name="mma_bf16_k16_turned", types="f32.bf16.bf16.f32"),
        "mma_i8_k32": _of_words("mma_i8_k32", "int32_t", "int32_t", "int32_t", "m16n8k32", "s32.s8.s8.s32"),
        "mma_u8_k32": _of_words("mma_u8_k32", "int32_t", "int32_t", "int32_t", "m16n8k32", "s32.u8.s8.s32"),
    }
}
