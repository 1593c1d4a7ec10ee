"""Sums of four products of bytes in C: one instruction of VNNI or of ARM's dot product, or products of pairs of i16.

x86 without VNNI has no exact product of bytes: ``pmaddubsw`` saturates.  The even and the odd bytes of every word are
widened to i16 and multiplied by ``pmaddwd``; compilers widen what several products share once.  WebAssembly has the
same product.  NEON without dot product adds up neighbouring products in 16 bits, which one factor without -128 fits.
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
_BLOCKS = (
    "union {{ {V} v; uint8_t u[16]; int8_t s[16]; }} x = {{ a }}, y = {{ b }};\n"
    "  for (int i = 0; i < 32; i++) acc[i / 8] += x.%s[i / 16 * 8 + i %% 8] * y.s[i / 8 %% 2 * 8 + i %% 8];\n"
    "  return acc;"
)
BLOCKS = {"mmla": _BLOCKS % "u", "mmla_signed": _BLOCKS % "s"}
"""Products of blocks of 2x8 bytes, in vectors of four words only."""
SHUFFLES = {
    "low_words": "0, 4, 1, 5",
    "high_words": "2, 6, 3, 7",
    "low_halves": "0, 1, 4, 5",
    "high_halves": "2, 3, 6, 7",
}
VECTOR = {"dot4": _BYTES % "u", "dot4_signed": _BYTES % "s", "dot4_narrow": _BYTES % "s"}
_SIGNED = "for (int i = 0; i < 32; i += 8) acc += (int8_t)(a >> i) * (int8_t)(b >> i);\n  return acc;"
SCALAR = {
    "dot16": (
        "union {{ {Q} v; int8_t s[16]; }} x = {{ a }}, y = {{ b }};\n"
        "  for (int i = 0; i < 16; i++) acc += x.s[i] * y.s[i];\n"
        "  return acc;"
    ),
    "dot4": "for (int i = 0; i < 32; i += 8) acc += ((a >> i) & 255) * (int8_t)(b >> i);\n  return acc;",
    "dot4_signed": _SIGNED,
    "dot4_narrow": _SIGNED,
}
TAKES = (
    dict.fromkeys((*VECTOR, *BLOCKS), "{V} acc, {V} a, {V} b")
    | dict.fromkeys(SHUFFLES, "{V} a, {V} b")
    | {"dot16": "{V} acc, {Q} a, {Q} b"}
)

_DOT16: Native = (
    (
        "defined(__GNUC__) && defined(__ARM_FEATURE_MVE)",
        '__asm__("vmladava.s8 %0, %q1, %q2" : "+Te"(acc) : "w"(a), "w"(b));\n  return acc;',
    ),
)
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
_LEFT["dot4_narrow"] = _LEFT["dot4_signed"]
_PAIRS: dict[int, Native] = {
    16: (
        ("defined(__AVX512BW__) && defined(__clang__)", "__builtin_ia32_pmaddwd512(%s, %s)"),
        ("defined(__AVX512BW__)", "__builtin_ia32_pmaddwd512_mask(%s, %s, ({V}){{0}}, -1)"),
    ),
    8: (("defined(__AVX2__)", "__builtin_ia32_pmaddwd256(%s, %s)"),),
    4: (
        ("defined(__SSE2__)", "__builtin_ia32_pmaddwd128(%s, %s)"),
        ("defined(__wasm_simd128__)", "__builtin_wasm_dot_s_i32x4_i16x8(%s, %s)"),
    ),
}

_NEON_WORDS = (
    "typedef signed char half __attribute__((vector_size(8)));\n"
    "  typedef short words __attribute__((vector_size(16)));\n"
    "  union {{ {V} v; half h[2]; }} x = {{ a }}, y = {{ b }};\n"
    "  const words low = __builtin_convertvector(x.h[0], words) * __builtin_convertvector(y.h[0], words);\n"
    "  const words high = __builtin_convertvector(x.h[1], words) * __builtin_convertvector(y.h[1], words);\n"
)
_NEON: Native = (
    # GCC widens bytes one by one.
    (
        "defined(__aarch64__) && !defined(__clang__)",
        "typedef short words __attribute__((vector_size(16)));\n  words low, high;\n"
        '  __asm__("smull %0.8h, %1.8b, %2.8b" : "=w"(low) : "w"(a), "w"(b));\n'
        '  __asm__("smull2 %0.8h, %1.16b, %2.16b" : "=w"(high) : "w"(a), "w"(b));\n'
        '  __asm__("addp %0.8h, %0.8h, %1.8h" : "+w"(low) : "w"(high));\n'
        '  __asm__("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(low));\n  return acc;',
    ),
    (
        "defined(__aarch64__)",
        _NEON_WORDS + "  words sums;\n"
        '  __asm__("addp %0.8h, %1.8h, %2.8h" : "=w"(sums) : "w"(low), "w"(high));\n'
        '  __asm__("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(sums));\n  return acc;',
    ),
    (
        "defined(__ARM_NEON)",
        _NEON_WORDS + "  words sums;\n"
        '  __asm__("vpadd.i16 %e0, %e1, %f1\\n\\tvpadd.i16 %f0, %e2, %f2" : "=&w"(sums) : "w"(low), "w"(high));\n'
        '  __asm__("vpadal.s16 %q0, %q1" : "+w"(acc) : "w"(sums));\n  return acc;',
    ),
)


def native(name: str, lanes: int) -> Native:
    """What processors have for ``lanes`` sums at once."""
    if name in BLOCKS:
        instruction = "usmmla" if name == "mmla" else "smmla"
        product = f'__asm__("{instruction} %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;'
        return (("defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)", product),)
    pairs = tuple(each for test, product in _PAIRS.get(lanes, ()) for each in _pairs(name, test, product, lanes))
    arm = _arm(name) if lanes == 4 else ()
    return (_vnni(lanes) if name == "dot4" and lanes in _SIZES else ()) + arm + pairs


def _pairs(name: str, test: str, product: str, lanes: int) -> Native:
    """By a product of pairs, of which the second form is GCC's on x86."""
    if "__builtin_ia32" not in product or "defined(__clang__)" in test:
        return ((test, _by_pairs(name, product)),)
    ordered = _in_order(name, product, "v" if lanes == 16 else "x")
    if lanes == 16:
        return ((test, ordered),)
    return ((f"{test} && defined(__clang__)", _by_pairs(name, product)), (test, ordered))


def _arm(name: str) -> Native:
    mixed = name == "dot4"
    feature, instruction = ("MATMUL_INT8", "usdot") if mixed else ("DOTPROD", "sdot")
    dot = f'__asm__("{instruction} %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;'
    found: Native = ((f"defined(__aarch64__) && defined(__ARM_FEATURE_{feature})", dot),)
    return found + (_NEON if name == "dot4_narrow" else ())


def native_scalar(name: str) -> Native:
    """The first of four lanes.  clang 22 vectorises sums of shifted bytes itself, on x86 to wrong ones."""
    return _DOT16 if name == "dot16" else tuple((test, _first_lane(body)) for test, body in native(name, 4))


def _first_lane(body: str) -> str:
    of_four = re.sub(r"\b(acc|a|b)\b", r"\1_4", body).replace("return ", "const four r = ")
    unsigned = "  typedef {U} ufour __attribute__((vector_size(16)));\n" if "{U}" in body else ""
    of_four = of_four.replace("{V}", "four").replace("{U}", "ufour").replace("{N}", "4")
    return (
        f"typedef {{V}} four __attribute__((vector_size(16)));\n{unsigned}"
        "  four acc_4 = {{ acc }}, a_4 = {{ a }}, b_4 = {{ b }};\n"
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


def _in_order(name: str, product: str, register: str) -> str:
    """The same for GCC, which would compute the products of many sums before it adds any, and spill them."""
    even, odd = (product % (f"a{i}", f"b{i}") for i in (0, 1))
    wall = f'  __asm__("" : "+{register}"(acc));\n'
    adds = "".join(f"  acc = ({{V}})(({{U}})acc + ({{U}}){each});\n{wall}" for each in (even, odd))
    return f"{_WORDS}{_LEFT[name]}{adds}  return acc;"
