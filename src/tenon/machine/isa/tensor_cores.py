"""Products of tiles of f16 by the tensor cores of NVIDIA GPUs (Turing or newer), as an instruction of a warp.

``mma_f16`` adds to 16 x 8 sums in f32 the products of 16 rows of eight f16 by eight columns of eight.  Thread ``4 * g +
t`` of the 32 has the sums of the rows g and g + 8 and of the columns 2 * t and 2 * t + 1.  Operands: where the elements
2 * t and 2 * t + 1 of the rows g and g + 8 and of column g lie, and the four sums.  Source: the PTX ISA, "Matrix
Fragments for mma.m16n8k8".
"""

from __future__ import annotations

from tenon.machine.isa.base import ProductUnit
from tenon.network.graph.dtype import DType

MMA_F16 = ProductUnit("mma_f16", DType.F16, DType.F16, DType.F32, (16, 8, 8))

_CUDA = """\
static __device__ __forceinline__ void mma_f16(const uint16_t *low, const uint16_t *high, const uint16_t *column,
                                               float &c0, float &c1, float &c2, float &c3) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(*(const uint32_t *)low), "r"(*(const uint32_t *)high), "r"(*(const uint32_t *)column));
}"""

DEVICE_INSTRUCTIONS = {"cuda": {"mma_f16": _CUDA}}
