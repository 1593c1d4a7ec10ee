"""SVE of 256 bits: its dot product of bytes, which compilers make of no portable code.

Vectors of a fixed length are cast to SVE's own types, whose length compilers are told (``-msve-vector-bits``).
Source: Arm Architecture Reference Manual (DDI 0487), SDOT (vectors).
"""

from __future__ import annotations

from tenon.machine.isa.base import Form

_DOT = """\
typedef __SVInt32_t words __attribute__((arm_sve_vector_bits(256)));
  const words x = (words)a, y = (words)b, z = (words)acc;
  __SVInt32_t sums = z;
  __asm__("sdot %0.s, %1.b, %2.b" : "+w"(sums) : "w"((__SVInt32_t)x), "w"((__SVInt32_t)y));
  const words r = sums;
  return ({V})r;"""

FORMS = (Form("dot4_signed", 8, "defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS == 256", _DOT),)
