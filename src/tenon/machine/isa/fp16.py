"""Multiply-adds of f16, rounded once: Arm's arithmetic in f16 (Armv8.2-A) and RISC-V's Zvfh and Zfh.

In C, f16 are their bits (uint16_t), so that every compiler takes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.isa.base import Form, Portable, Primitive, ProductUnit
from tenon.network.graph.dtype import DType

# The product is exact in f64, and so is the sum, but for what no result depends on.  Rounded to odd, an f32 keeps all
# that the second rounding needs (Boldo, Melquiond, "Emulation of FMA and Correctly Rounded Sums", 2008).
_ONE = (
    "const double sum = (double){widen}(a) * {widen}(b) + {widen}(acc);\n"
    "  union {{ float f; uint32_t u; }} r = {{ (float)sum }};\n"
    "  if (sum == sum && r.f != sum) {{\n"
    "    if ((r.f > sum) == (sum > 0)) r.u--;\n"
    "    r.u |= 1;\n"
    "  }}\n"
    "  return {narrow}(r.f);"
)
_BUILTIN = "__builtin_elementwise_fma"
_HALF_TYPE = "typedef _Float16 half __attribute__((vector_size(2 * {N}))); "
_NUMBER = "const union {{ uint16_t u; _Float16 f; }} number = {{ b }};\n  "
_FIRST_LANE = (
    "typedef _Float16 one __attribute__((vector_size(2)));\n"
    "  typedef _Float16 eight __attribute__((vector_size(16)));\n"
    "  const one alone = {{ number.f }};\n"
    "  const eight first = __builtin_shufflevector(alone, alone, 0, -1, -1, -1, -1, -1, -1, -1);\n  "
)
_NUMBERS = "union {{ uint16_t u; _Float16 f; }} x = {{ a }}, y = {{ b }}, r = {{ acc }};\n  "
_HAS_FMA = "defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)"
_HAS_ONE_FMA = "(defined(__ARM_FEATURE_FP16_SCALAR_ARITHMETIC) || defined(__riscv_zfh))"
_ZVFH = "defined(__riscv_zvfh)"
_ARM = f"{_HAS_FMA} && defined(__aarch64__)"


def _fma(factor: str, operand: str) -> str:
    """The instruction, whose last factor is written ``factor``, for the ``operand`` of C."""
    return f'__asm__("fmla %0.{{N}}h, %1.{{N}}h, {factor}" : "+w"(acc) : "w"(a), {operand});\n  return acc;'


def _vectors() -> Iterator[Form]:
    by_clang = f"{_HALF_TYPE}return ({{V}}){_BUILTIN}((half)a, (half)b, (half)acc);"
    yield Form("fma_f16", 0, f"({_HAS_FMA} || {_ZVFH}) && TENON_CLANG({_BUILTIN})", by_clang)
    for lanes in (4, 8):
        yield Form("fma_f16", lanes, _ARM, _fma("%2.{N}h", '"w"(b)'))


def _by_lane() -> Iterator[Form]:
    for lane in range(8):
        yield Form(f"fma_f16_lane{lane}", 8, _ARM, _fma(f"%2.h[{lane}]", '"x"(b)'))


def _by_number() -> Iterator[Form]:
    # Clang would spread the number over a register by an instruction that takes no offset of its address.  It knows
    # the constraint for vectors of 128 bits only.
    by_clang = _NUMBER + _FIRST_LANE + _fma("%2.h[0]", '"x"(first)')
    for lanes in (4, 8):
        yield Form("fma_f16_scalar", lanes, f"{_ARM} && defined(__clang__)", by_clang)
        yield Form("fma_f16_scalar", lanes, _ARM, _NUMBER + _fma("%2.h[0]", '"x"(number.f)'))
    spread = f"({{V}}){_BUILTIN}((half)a, number.f - (half){{{{0}}}}, (half)acc)"
    has = f"{_ZVFH} && TENON_CLANG({_BUILTIN})"
    yield Form("fma_f16_scalar", 0, has, f"{_HALF_TYPE}{_NUMBER}return {spread};")


FMA = ProductUnit("fma_f16", DType.F16, DType.F16, DType.F16, (1, 1, 1))
"""Vectors of twice as many f16 in the time of one of f32."""

PRIMITIVES = {
    "fma_f16": Primitive(3, products=1, computes=False),  # acc + a * b of f16
    "fma_f16_scalar": Primitive(3, "given", products=1, computes=False),  # the same, where b is one number
    # The same, where b is that element of a vector.
    **{f"fma_f16_lane{lane}": Primitive(3, products=1, computes=False) for lane in range(8)},
}
PRODUCTS = frozenset(PRIMITIVES)
"""The operations that add products of f16."""
PORTABLE = {
    "fma_f16": Portable(
        "{V} acc, {V} a, {V} b",
        "{V} r = acc;\n  for (int i = 0; i < {N}; i++) r[i] = {one}(acc[i], a[i], b[i]);\n  return r;",
        _ONE,
        calls=True,
    ),
    "fma_f16_scalar": Portable("{V} acc, {V} a, {E} b", "return {each}(acc, a, b - ({V}){{0}});", calls=True),
    **{
        f"fma_f16_lane{lane}": Portable(
            "{V} acc, {V} a, {V} b", f"return {{each}}(acc, a, b[{lane}] - ({{V}}){{{{0}}}});", calls=True
        )
        for lane in range(8)
    },
}
FORMS = (
    Form(
        "fma_f16",
        1,
        f"{_HAS_ONE_FMA} && defined(__GNUC__)",
        f"{_NUMBERS}r.f = __builtin_fmaf16(x.f, y.f, r.f);\n  return r.u;",
    ),
    *_vectors(),
    *_by_number(),
    *_by_lane(),
)
