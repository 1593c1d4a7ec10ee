"""Arm's products of blocks of bytes (I8MM): two rows of eight by two columns of eight, in vectors of four words."""

from __future__ import annotations

from tenon.machine.isa.base import Form, Portable, Primitive, ProductUnit
from tenon.network.graph.dtype import DType

_BLOCKS = (
    "union {{ {V} v; uint8_t u[16]; int8_t s[16]; }} x = {{ a }}, y = {{ b }};\n"
    "  for (int i = 0; i < 32; i++) acc[i / 8] += x.%s[i / 16 * 8 + i %% 8] * y.s[i / 8 %% 2 * 8 + i %% 8];\n"
    "  return acc;"
)
_SHUFFLES = {
    "low_words": "0, 4, 1, 5",
    "high_words": "2, 6, 3, 7",
    "low_halves": "0, 1, 4, 5",
    "high_halves": "2, 3, 6, 7",
    "outer_halves": "0, 1, 6, 7",
    "even_words": "0, 2, 4, 6",
    "odd_words": "1, 3, 5, 7",
}
_PRODUCT = '__asm__("%s %%0.4s, %%1.16b, %%2.16b" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;'

MMLA = ProductUnit("mmla", DType.U8, DType.I8, DType.I32, (2, 2, 8))
MMLA_SIGNED = ProductUnit("mmla_signed", DType.I8, DType.I8, DType.I32, (2, 2, 8))

PRIMITIVES = {
    # Four i32, of two rows by two columns, plus the products of two rows of eight u8 (``mmla_signed``: of i8) by two
    # rows of eight i8, four words each.
    "mmla": Primitive(3, products=8),
    "mmla_signed": Primitive(3, products=8),
    # Of vectors of four: the first or the last two lanes of both, by turns ("words") or side by side ("halves"); the
    # first two of the first and the last two of the second ("outer_halves"), every second one ("even_words").
    **{name: Primitive(2) for name in _SHUFFLES},
}
PORTABLE = {
    "mmla": Portable("{V} acc, {V} a, {V} b", _BLOCKS % "u"),
    "mmla_signed": Portable("{V} acc, {V} a, {V} b", _BLOCKS % "s"),
    **{
        name: Portable("{V} a, {V} b", f"return __builtin_shufflevector(a, b, {order});")
        for name, order in _SHUFFLES.items()
    },
}
FORMS = tuple(
    Form(name, 4, "defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)", _PRODUCT % instruction)
    for name, instruction in (("mmla", "usmmla"), ("mmla_signed", "smmla"))
)
