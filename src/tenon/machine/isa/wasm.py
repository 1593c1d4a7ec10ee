"""WebAssembly's SIMD: the product of pairs of i16."""

from __future__ import annotations

from tenon.machine.isa.base import Form
from tenon.machine.isa.byte_products import by_pairs

FORMS = tuple(
    Form(name, 4, "defined(__wasm_simd128__)", by_pairs(name, "__builtin_wasm_dot_s_i32x4_i16x8(%s, %s)"))
    for name in ("dot4", "dot4_signed", "dot4_narrow")
)
