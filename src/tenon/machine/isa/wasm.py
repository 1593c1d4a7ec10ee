"""WebAssembly's SIMD: the product of pairs of i16, and with relaxed SIMD four products of bytes.

``i32x4.relaxed_dot_i8x16_i7x16_add_s`` may take its second factor for bytes with or without sign, and may saturate sums
of two products to 16 bits: it is exact where that factor is below 64, whatever the engine.
"""

from __future__ import annotations

from tenon.machine.isa.base import PRODUCT_ALONE, Form
from tenon.machine.isa.byte_products import by_pairs, moved_bytes

_RELAXED = """\
typedef signed char bytes __attribute__((vector_size(16)));
  acc = __builtin_wasm_relaxed_dot_i8x16_i7x16_add_s_i32x4((bytes)b, (bytes)a, acc);
  return __builtin_wasm_relaxed_dot_i8x16_i7x16_add_s_i32x4((bytes)d, (bytes)c, acc);"""

FORMS = (
    *(
        Form(name, 4, "defined(__wasm_simd128__)", by_pairs(name, "__builtin_wasm_dot_s_i32x4_i16x8(%s, %s)"))
        for name in ("dot4", "dot4_signed", "dot4_narrow")
    ),
    *moved_bytes("defined(__wasm_simd128__)"),
    Form("dot8_small", 4, "defined(__wasm_relaxed_simd__)", _RELAXED),
    Form("mul_rounded", 1, "defined(__GNUC__) && defined(__wasm__)", PRODUCT_ALONE % "r"),
    Form("mul_rounded", 4, "defined(__GNUC__) && defined(__wasm_simd128__)", PRODUCT_ALONE % "r"),
)
