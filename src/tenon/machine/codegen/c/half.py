"""Floats of 16 bits in C: conversions to f32 and back.

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
_BF16_TYPE = "typedef __bf16 bf16 __attribute__((vector_size(2 * {N}))); "
_HALF_TYPE = "typedef _Float16 half __attribute__((vector_size(2 * {N}))); "
_NEW_CLANG = "defined(__clang__) && __clang_major__ >= 17"
_CLANG_BF16 = f"{_NEW_CLANG} && defined(__AVX512BF16__) && defined(__AVX512VL__)"
_ZVFH = "defined(__riscv_zvfh)"
_CLANG_F16 = (
    f"(__clang_major__ >= 15 && defined(__F16C__)) || (defined(__clang__) && (defined(__aarch64__) || {_ZVFH}))"
)
_VFP = "defined(__GNUC__) && defined(__arm__) && defined(__ARM_FP) && defined(__ARM_FEATURE_FMA)"
"""VFPv4 and what came after it."""
_GCC_F16 = "defined(__GNUC__) && !defined(__clang__) && defined(__F16C__)"
_BY_PRODUCT = (
    "typedef short halves __attribute__((vector_size(2 * {N})));\n"
    "  typedef int whole __attribute__((vector_size(4 * {N})));\n"
    "  const {U} u = ({U})__builtin_convertvector((halves)a, whole) << 13 & 0x8fffe000;\n"
    "  const {U} special = ({U})((u & 0x0f800000) == 0x0f800000);\n"
    "  return ({F})(({U})(({F})u * 0x1p112f) | (special & 0x7f800000));"
)
"""f16 as f32 for vectors that do not take subnormal numbers for zeros: the exponent is in its place, less by 112."""


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
        {
            8: (
                (
                    "defined(__AVX2__) && !defined(__clang__)",
                    "typedef short words __attribute__((vector_size(16)));\n"
                    "  return ({F})(({U})__builtin_ia32_pmovzxwd256((words)a) << 16);",
                ),
            ),
            16: (
                (
                    "defined(__AVX512F__) && !defined(__clang__)",
                    "typedef short words __attribute__((vector_size(32)));\n"
                    "  typedef int whole __attribute__((vector_size(64)));\n"
                    "  return ({F})(({U})__builtin_ia32_pmovzxwd512_mask((words)a, (whole){{0}}, -1) << 16);",
                ),
            ),
        },
    ),
    (F32, BF16): Conversion(
        "const {U} u = ({U})a, nan = ({U})(a != a), high = u >> 16;\n"
        "  const {U} code = (u + (high & 1) + 0x7fff) >> 16;\n"
        "  return __builtin_convertvector((nan & (high | 0x40)) | (~nan & code), {H});",
        "const union {{ {F} f; {U} u; }} r = {{ a }};\n"
        "  const {U} high = r.u >> 16;\n"
        "  return ({H})(a != a ? high | 0x40 : (r.u + (high & 1) + 0x7fff) >> 16);",
        {
            0: ((_CLANG_BF16, _BF16_TYPE + "return ({H})__builtin_convertvector(a, bf16);"),),
            16: (
                ("defined(__AVX512BF16__) && !defined(__clang__)", "return ({H})__builtin_ia32_cvtneps2bf16_v16sf(a);"),
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
            1: (
                (
                    _VFP,
                    "union {{ {U} u; {F} f; }} r = {{ a }};\n"
                    '  __asm__("vcvtb.f32.f16 %0, %0" : "+t"(r.f));\n'
                    "  return r.f;",
                ),
            ),
            0: (
                (_CLANG_F16, _HALF_TYPE + "return __builtin_convertvector((half)a, {F});"),
                ("defined(__wasm_simd128__) || defined(__riscv_vector)", _BY_PRODUCT),
            ),
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
}
