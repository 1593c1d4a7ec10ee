"""Floats of 16 bits in C: conversions to f32 and back, the product of pairs of bf16, and multiply-adds of f16.

In C both kinds are their bits (uint16_t), so that every compiler takes them.  Conversions round to nearest, ties to
even.  Processors that have them do bf16 with subnormal numbers taken for zeros; the portable bodies keep them.
Integer expansions after F. Giesen, "float->half variants" (2012).
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.network.graph.types import F32, DType

BF16, F16 = DType.BF16, DType.F16
Native = tuple[tuple[str, str], ...]
"""(preprocessor condition, body) pairs: the first that holds is compiled."""

# F: floats, U: their bits, I: the same with a sign, H: halves (bits), N: lanes; S: what clang calls that width
_BRAIN_TYPE = "typedef __bf16 brain __attribute__((vector_size(2 * {N}))); "
_HALF_TYPE = "typedef _Float16 half __attribute__((vector_size(2 * {N}))); "
_NEW_CLANG = "defined(__clang__) && __clang_major__ >= 17"
_CLANG_BF16 = f"{_NEW_CLANG} && defined(__AVX512BF16__) && defined(__AVX512VL__)"
_ZVFH = "defined(__riscv_zvfh)"
_CLANG_F16 = (
    f"(__clang_major__ >= 15 && defined(__F16C__)) || (defined(__clang__) && (defined(__aarch64__) || {_ZVFH}))"
)
_GCC_F16 = "defined(__GNUC__) && !defined(__clang__) && defined(__F16C__)"


@dataclass(frozen=True)
class Conversion:
    """A function's body for vectors and for single elements; ``native`` has what processors spell, by lanes (0: any
    number of them above one)."""

    vector: str
    scalar: str
    native: dict[int, Native]


CONVERSIONS: dict[tuple[DType, DType], Conversion] = {
    (BF16, F32): Conversion(
        "return ({F})(__builtin_convertvector(a, {U}) << 16);",
        "const union {{ {U} u; {F} f; }} r = {{ ({U})a << 16 }};\n  return r.f;",
        {},
    ),
    (F32, BF16): Conversion(
        "const {U} u = ({U})a, nan = ({U})(a != a), high = u >> 16;\n"
        "  const {U} code = (u + (high & 1) + 0x7fff) >> 16;\n"
        "  return __builtin_convertvector((nan & (high | 0x40)) | (~nan & code), {H});",
        "const union {{ {F} f; {U} u; }} r = {{ a }};\n"
        "  const {U} high = r.u >> 16;\n"
        "  return ({H})(a != a ? high | 0x40 : (r.u + (high & 1) + 0x7fff) >> 16);",
        {
            0: ((_CLANG_BF16, _BRAIN_TYPE + "return ({H})__builtin_convertvector(a, brain);"),),
            16: (
                (
                    "defined(__AVX512BF16__) && !defined(__clang__)",
                    "return ({H})__builtin_ia32_cvtneps2bf16_v16sf(a);",
                ),
            ),
        },
    ),
    (F16, F32): Conversion(
        "const {U} h = __builtin_convertvector(a, {U}), u = (h & 0x7fff) << 13, exponent = u & 0x0f800000;\n"
        "  const {U} high = u + (112u << 23) + (({U})(exponent == 0x0f800000) & (112u << 23));\n"
        "  const {U} low = ({U})(({F})(u + (113u << 23)) - 0x1p-14f), small = ({U})(exponent == 0);\n"
        "  return ({F})((small & low) | (~small & high) | (h & 0x8000) << 16);",
        "const {U} u = (a & 0x7fffu) << 13, exponent = u & 0x0f800000;\n"
        "  union {{ {U} u; {F} f; }} r;\n"
        "  r.u = u + (112u << 23) + (exponent == 0x0f800000 ? 112u << 23 : exponent ? 0 : 1u << 23);\n"
        "  if (exponent == 0) r.f -= 0x1p-14f;\n"
        "  r.u |= ({U})(a & 0x8000) << 16;\n"
        "  return r.f;",
        {
            0: ((_CLANG_F16, _HALF_TYPE + "return __builtin_convertvector((half)a, {F});"),),
            8: (
                (
                    _GCC_F16,
                    "typedef short words __attribute__((vector_size(16)));\n"
                    "  return ({F})__builtin_ia32_vcvtph2ps256((words)a);",
                ),
            ),
            16: (
                (
                    "defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)",
                    "typedef short words __attribute__((vector_size(32)));\n"
                    "  return ({F})__builtin_ia32_vcvtph2ps512_mask((words)a, ({F}){{0}}, -1, 4);",
                ),
            ),
        },
    ),
    (F32, F16): Conversion(
        "const {U} u = ({U})a & 0x7fffffff, sign = (({U})a >> 16) & 0x8000;\n"
        "  const {U} low = ({U})(({F})u + 0.5f) - 0x3f000000, small = ({U})(u < 0x38800000);\n"
        "  const {U} high = (u - (112u << 23) + 0xfff + ((u >> 13) & 1)) >> 13;\n"
        "  const {U} huge = ({U})(u >= 0x47800000), nan = ({U})(u > 0x7f800000);\n"
        "  const {U} finite = (small & low) | (~small & high);\n"
        "  return __builtin_convertvector((huge & (0x7c00 | (nan & 0x200))) | (~huge & finite) | sign, {H});",
        "union {{ {F} f; {U} u; }} r = {{ a }};\n"
        "  const {U} sign = (r.u >> 16) & 0x8000, u = r.u &= 0x7fffffff;\n"
        "  if (u >= 0x47800000) return ({H})(sign | 0x7c00 | (u > 0x7f800000 ? 0x200 : 0));\n"
        "  r.f += 0.5f;\n"
        "  const {U} high = (u - (112u << 23) + 0xfff + ((u >> 13) & 1)) >> 13;\n"
        "  return ({H})(sign | (u < 0x38800000 ? r.u - 0x3f000000 : high));",
        {0: ((_CLANG_F16, _HALF_TYPE + "return ({H})__builtin_convertvector(a, half);"),)},
    ),
}  # fmt: skip


DOT2_TAKES = "{V} acc, {I} a, {I} b"
DOT2_VECTOR = (
    "acc += ({V})(a & -65536) * ({V})(b & -65536);\n"
    "  return acc + ({V})(({U})a << 16) * ({V})(({U})b << 16);"
)  # fmt: skip
DOT2_SCALAR = (
    "union {{ uint32_t u; float f; }} x, y;\n"
    "  x.u = (uint32_t)a & 0xffff0000u, y.u = (uint32_t)b & 0xffff0000u;\n"
    "  acc += x.f * y.f;\n"
    "  x.u = (uint32_t)a << 16, y.u = (uint32_t)b << 16;\n"
    "  return acc + x.f * y.f;"
)


def dot2_native(lanes: int) -> Native:
    """One instruction for vectors of 512, 256 and 128 bits; compilers differ in what they call a pair."""
    if lanes not in (4, 8, 16):
        return ()
    brains = "typedef __bf16 brain __attribute__((vector_size(4 * {N})));\n  "
    has = "defined(__AVX512BF16__)" + ("" if lanes == 16 else " && defined(__AVX512VL__)")
    clang, gcc = f"__builtin_ia32_dpbf16ps_{32 * lanes}", f"__builtin_ia32_dpbf16ps_v{lanes}sf"
    words = "typedef short words __attribute__((vector_size(4 * {N})));\n  "
    new, old = "(acc, (brain)a, (brain)b);", "(acc, a, b);"
    return (
        (f"{has} && {_NEW_CLANG}", f"{brains}return ({{V}}){clang}{new}"),
        (f"{has} && defined(__clang__)", f"return ({{V}}){clang}{old}"),
        (f"{has} && __GNUC__ >= 13", f"{brains}return ({{V}}){gcc}{new}"),
        (has, f"{words}return ({{V}}){gcc}(acc, (words)a, (words)b);"),
    )


FMA_TAKES = {"fma_f16": "{V} acc, {V} a, {V} b", "fma_f16_scalar": "{V} acc, {V} a, {E} b"}
# The product is exact in f64, and so is the sum, but for what no result depends on.  Rounded to odd, an f32 keeps all
# that the second rounding needs (Boldo, Melquiond, "Emulation of FMA and Correctly Rounded Sums", 2008).
FMA_ONE = (
    "const double sum = (double){widen}(a) * {widen}(b) + {widen}(acc);\n"
    "  union {{ float f; uint32_t u; }} r = {{ (float)sum }};\n"
    "  if (sum == sum && r.f != sum) {{\n"
    "    if ((r.f > sum) == (sum > 0)) r.u--;\n"
    "    r.u |= 1;\n"
    "  }}\n"
    "  return {narrow}(r.f);"
)
FMA_VECTOR = {
    "fma_f16": "{V} r;\n  for (int i = 0; i < {N}; i++) r[i] = {one}(acc[i], a[i], b[i]);\n  return r;",
    "fma_f16_scalar": "return {each}(acc, a, b - ({V}){{0}});",
}
_FMA_BUILTIN = "__builtin_elementwise_fma"
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


def _fma(factor: str, operand: str) -> str:
    """The instruction, whose last factor is written ``factor``, for the ``operand`` of C."""
    return f'__asm__("fmla %0.{{N}}h, %1.{{N}}h, {factor}" : "+w"(acc) : "w"(a), {operand});\n  return acc;'


def fma_native(name: str, lanes: int) -> Native:
    """One instruction for vectors of 128 and 64 bits and for single numbers."""
    if lanes == 1:
        has = f"{_HAS_ONE_FMA} && defined(__GNUC__)"
        return ((has, f"{_NUMBERS}r.f = __builtin_fmaf16(x.f, y.f, r.f);\n  return r.u;"),)
    arm = f"{_HAS_FMA} && defined(__aarch64__)"
    if name == "fma_f16":
        by_clang = f"{_HALF_TYPE}return ({{V}}){_FMA_BUILTIN}((half)a, (half)b, (half)acc);"
        named = ((arm, _fma("%2.{N}h", '"w"(b)')),) if lanes in (4, 8) else ()
        return ((f"({_HAS_FMA} || {_ZVFH}) && TENON_CLANG({_FMA_BUILTIN})", by_clang), *named)
    # Clang would spread the number over a register by an instruction that takes no offset of its address.  It knows
    # the constraint for vectors of 128 bits only.
    by_clang = _NUMBER + _FIRST_LANE + _fma("%2.h[0]", '"x"(first)')
    by_gcc = _NUMBER + _fma("%2.h[0]", '"x"(number.f)')
    on_arm = ((f"{arm} && defined(__clang__)", by_clang), (arm, by_gcc)) if lanes in (4, 8) else ()
    spread = f"({{V}}){_FMA_BUILTIN}((half)a, number.f - (half){{{{0}}}}, (half)acc)"
    return (*on_arm, (f"{_ZVFH} && TENON_CLANG({_FMA_BUILTIN})", f"{_HALF_TYPE}{_NUMBER}return {spread};"))
