"""Sums of four products of bytes in C: one instruction of VNNI or of ARM's dot product, or products of pairs of i16.

x86 without VNNI has no exact product of bytes: ``pmaddubsw`` saturates.  The even and the odd bytes of every word are
widened to i16 and multiplied by ``pmaddwd``; compilers widen what several products share once.
"""

from __future__ import annotations

import re

Native = tuple[tuple[str, str], ...]
"""(preprocessor condition, body) pairs: the first that holds is compiled."""

_BYTES = (
    "union {{ {V} v; uint8_t u[4 * {N}]; int8_t s[4 * {N}]; }} x = {{ a }}, y = {{ b }};\n"
    "  for (int i = 0; i < 4 * {N}; i++) acc[i / 4] += x.%s[i] * y.s[i];\n"
    "  return acc;"
)
VECTOR = {"dot4": _BYTES % "u", "dot4_signed": _BYTES % "s"}
SCALAR = {
    "dot4": "for (int i = 0; i < 32; i += 8) acc += ((a >> i) & 255) * (int8_t)(b >> i);\n  return acc;",
    "dot4_signed": "for (int i = 0; i < 32; i += 8) acc += (int8_t)(a >> i) * (int8_t)(b >> i);\n  return acc;",
}
TAKES = dict.fromkeys(VECTOR, "{V} acc, {V} a, {V} b")

_SIZES = {4: "128", 8: "256", 16: "512"}
_WORDS = (
    "typedef short words __attribute__((vector_size(4 * {N})));\n"
    "  typedef unsigned short uwords __attribute__((vector_size(4 * {N})));\n"
    "  const words b0 = (words)((uwords)b << 8) >> 8, b1 = (words)b >> 8;\n"
)
_LEFT = {
    "dot4": "  const words a0 = (words)((uwords)a & 255), a1 = (words)((uwords)a >> 8);\n",
    "dot4_signed": "  const words a0 = (words)((uwords)a << 8) >> 8, a1 = (words)a >> 8;\n",
}
_PAIRS: dict[int, Native] = {
    16: (
        ("defined(__AVX512BW__) && defined(__clang__)", "__builtin_ia32_pmaddwd512(%s, %s)"),
        ("defined(__AVX512BW__)", "__builtin_ia32_pmaddwd512_mask(%s, %s, ({V}){{0}}, -1)"),
    ),
    8: (("defined(__AVX2__)", "__builtin_ia32_pmaddwd256(%s, %s)"),),
    4: (("defined(__SSE2__)", "__builtin_ia32_pmaddwd128(%s, %s)"),),
}


def native(name: str, lanes: int) -> Native:
    """What processors have for ``lanes`` sums at once."""
    pairs = tuple((test, _by_pairs(name, product)) for test, product in _PAIRS.get(lanes, ()))
    if name == "dot4" and lanes in _SIZES:
        return _vnni(lanes) + pairs
    if name == "dot4_signed" and lanes == 4:
        dot = '__asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;'
        return (("defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)", dot), *pairs)
    return pairs


def native_scalar(name: str) -> Native:
    """On x86 the first of four lanes.  clang 22 vectorises sums of shifted bytes itself, to wrong ones."""
    return tuple((test, _first_lane(body)) for test, body in native(name, 4) if "aarch64" not in test)


def _first_lane(body: str) -> str:
    of_four = re.sub(r"\b(acc|a|b)\b", r"\1_4", body).replace("return ", "const four r = ")
    unsigned = "  typedef {U} ufour __attribute__((vector_size(16)));\n" if "{U}" in body else ""
    of_four = of_four.replace("{V}", "four").replace("{U}", "ufour").replace("{N}", "4")
    return (
        f"typedef {{V}} four __attribute__((vector_size(16)));\n{unsigned}"
        "  const four acc_4 = {{ acc }}, a_4 = {{ a }}, b_4 = {{ b }};\n"
        f"  {of_four.strip()}\n  return r[0];"
    )


def _vnni(lanes: int) -> Native:
    has = "defined(__AVX512VNNI__)"
    if lanes < 16:
        has = f"(({has} && defined(__AVX512VL__)) || defined(__AVXVNNI__))"
    return (
        (f"{has} && defined(__clang__)", f"return ({{V}})__builtin_ia32_vpdpbusd{_SIZES[lanes]}(acc, a, b);"),
        (has, f"return ({{V}})__builtin_ia32_vpdpbusd_v{lanes}si(acc, a, b);"),
    )


def _by_pairs(name: str, product: str) -> str:
    even, odd = (product % (f"a{i}", f"b{i}") for i in (0, 1))
    return f"{_WORDS}{_LEFT[name]}  return ({{V}})(({{U}})acc + ({{U}}){even} + ({{U}}){odd});"
