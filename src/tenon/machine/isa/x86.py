"""x86: SSE, AVX, AVX-512 and its VNNI, BF16 and VBMI; floats rounded to integers by its conversion.

Builtins of Clang and GCC differ in their names and operands.  VNNI multiplies bytes; without it they are widened to i16
for ``pmaddwd``.  VBMI selects any of 128 bytes; without it AVX-512 selects any of 64 words, of which the right byte is
taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.isa.base import PRODUCT_ALONE, Form, Portable, Primitive
from tenon.machine.isa.byte_products import by_pairs, in_order
from tenon.network.graph.dtype import DType

_SIZES = {4: "128", 8: "256", 16: "512"}
_PAIRS: dict[int, tuple[tuple[str, str], ...]] = {
    16: (
        ("defined(__AVX512BW__) && defined(__clang__)", "__builtin_ia32_pmaddwd512(%s, %s)"),
        ("defined(__AVX512BW__)", "__builtin_ia32_pmaddwd512_mask(%s, %s, ({V}){{0}}, -1)"),
    ),
    8: (("defined(__AVX2__)", "__builtin_ia32_pmaddwd256(%s, %s)"),),
    4: (("defined(__SSE2__)", "__builtin_ia32_pmaddwd128(%s, %s)"),),
}


# --------------------------------------------------------------------------------------------- products of bytes
def _vnni(lanes: int) -> Iterator[Form]:
    has = "defined(__AVX512VNNI__)"
    if lanes < 16:
        has = f"(({has} && defined(__AVX512VL__)) || defined(__AVXVNNI__))"
    clang, gcc = f"__builtin_ia32_vpdpbusd{_SIZES[lanes]}", f"__builtin_ia32_vpdpbusd_v{lanes}si"
    yield Form("dot4", lanes, f"{has} && defined(__clang__)", f"return ({{V}}){clang}(acc, a, b);")
    yield Form("dot4", lanes, has, f"return ({{V}}){gcc}(acc, a, b);")


_SUMS_OF_PAIRS = (
    (16, "defined(__AVX512BW__) && defined(__clang__)", "pmaddubsw512(%s)", "pmaddwd512(%s)"),
    (16, "defined(__AVX512BW__)", "pmaddubsw512_mask(%s, (words){{0}}, -1)", "pmaddwd512_mask(%s, ({V}){{0}}, -1)"),
    (8, "defined(__AVX2__) && defined(__clang__)", "pmaddubsw256(%s)", "pmaddwd256(%s)"),
    (8, "defined(__AVX2__)", "pmaddubsw256(%s)", "pmaddwd256(%s)"),
)
"""Lanes, condition, and what adds up pairs of products of bytes and of i16."""


def _pmaddubsw() -> Iterator[Form]:
    """Two words of small bytes: sums of pairs in i16, those of both words added, and pairs of these."""
    for lanes, test, of_bytes, of_words in _SUMS_OF_PAIRS:
        ab, cd = (f"(words)__builtin_ia32_{of_bytes % f'(bytes){x}, (bytes){y}'}" for x, y in ("ab", "cd"))
        body = (
            "typedef char bytes __attribute__((vector_size(4 * {N})));\n"
            "  typedef short words __attribute__((vector_size(4 * {N})));\n"
            f"  const words pairs = {ab} + {cd}, ones = (words){{{{0}}}} + 1;\n"
            f"  acc = ({{V}})(({{U}})acc + ({{U}})__builtin_ia32_{of_words % 'pairs, ones'});\n"
        )
        register = "v" if lanes == 16 else "x"
        wall = "" if "__clang__" in test else f'  __asm__("" : "+{register}"(acc));\n'
        yield Form("dot8_small", lanes, test, f"{body}{wall}  return acc;")


def _pmaddwd(name: str, lanes: int) -> Iterator[Form]:
    """By products of pairs, of which the second form is GCC's."""
    for test, product in _PAIRS[lanes]:
        ordered = in_order(name, product, "v" if lanes == 16 else "x")
        if "defined(__clang__)" in test:
            yield Form(name, lanes, test, by_pairs(name, product))
        elif lanes == 16:
            yield Form(name, lanes, test, ordered)
        else:
            yield Form(name, lanes, f"{test} && defined(__clang__)", by_pairs(name, product))
            yield Form(name, lanes, test, ordered)


def _pairs_of_words(lanes: int) -> Iterator[Form]:
    """Products of pairs of i16.  Compilers would add those of several steps before they add them to the sums, and
    spill."""
    typedef = "typedef short words __attribute__((vector_size(4 * {N})));\n  "
    for test, product in _PAIRS[lanes]:
        total = f"({{V}})(({{U}})acc + ({{U}}){product % ('(words)a', '(words)b')})"
        wall = f'  __asm__("" : "+{"v" if lanes == 16 else "x"}"(acc));\n'
        yield Form("madd_i16", lanes, test, f"{typedef}acc = {total};\n{wall}  return acc;")


# ------------------------------------------------------------------------------------------------ pairs of bf16
def _dpbf16ps(lanes: int) -> Iterator[Form]:
    """Compilers differ in what they call a pair."""
    typedef = "typedef __bf16 bf16 __attribute__((vector_size(4 * {N})));\n  "
    words = "typedef short words __attribute__((vector_size(4 * {N})));\n  "
    has = "defined(__AVX512BF16__)" + ("" if lanes == 16 else " && defined(__AVX512VL__)")
    clang, gcc = f"__builtin_ia32_dpbf16ps_{32 * lanes}", f"__builtin_ia32_dpbf16ps_v{lanes}sf"
    new, old = "(acc, (bf16)a, (bf16)b);", "(acc, a, b);"
    new_clang = f"{has} && defined(__clang__) && __clang_major__ >= 17"
    yield Form("dot2", lanes, new_clang, f"{typedef}return ({{V}}){clang}{new}")
    yield Form("dot2", lanes, f"{has} && defined(__clang__)", f"return ({{V}}){clang}{old}")
    yield Form("dot2", lanes, f"{has} && __GNUC__ >= 13", f"{typedef}return ({{V}}){gcc}{new}")
    yield Form("dot2", lanes, has, f"{words}return ({{V}}){gcc}(acc, (words)a, (words)b);")


# ---------------------------------------------------------------------------------------------- tables of bytes
_WIDE = "union {{ {T} v; {V} part[{P}]; }} wide = {{.part = {{x}}}};\n  "
_BYTES = (
    "typedef char bytes __attribute__((vector_size(64)));\n"
    "  const {T} low = ({T})%s;\n"
    "  const {T} high = ({T})%s;\n"
    "  const {T} upper = ({T})((bytes)wide.v < 0);\n"
    "  wide.v = (low & ~upper) | (high & upper);"
)
_WORDS = (
    "typedef short words __attribute__((vector_size(64)));\n"
    "  typedef unsigned short uwords __attribute__((vector_size(64)));\n"
    "  uwords found[2];\n"
    "  for (int odd = 0; odd < 2; odd++) {{\n"
    "    const uwords code = odd ? (uwords)wide.v >> 8 : (uwords)wide.v & 255;\n"
    "    const uwords low = (uwords)%s;\n"
    "    const uwords high = (uwords)%s;\n"
    "    const uwords upper = (uwords)(code > 127);\n"
    "    found[odd] = ((low & ~upper) | (high & upper)) >> (code & 1) * 8;\n"
    "  }}\n"
    "  wide.v = ({T})((found[0] & 255) | found[1] << 8);"
)


def _tables() -> Iterator[Form]:
    for feature, body, code, vector, kind in (
        ("AVX512VBMI", _BYTES, "wide.v", "bytes", "qi"),
        ("AVX512BW", _WORDS, "code >> 1", "words", "hi"),
    ):
        clang, gcc = f"__builtin_ia32_vpermi2var{kind}512", f"__builtin_ia32_vpermt2var{kind}512_mask"
        v = f"({vector})"
        by_clang = [f"{clang}({v}t{i}, {v}({code}), {v}t{i + 1})" for i in (0, 2)]
        by_gcc = [f"{gcc}({v}({code}), {v}t{i}, {v}t{i + 1}, -1)" for i in (0, 2)]
        for test, calls in ((" && defined(__clang__)", by_clang), ("", by_gcc)):
            text = f"{_WIDE}{body % tuple(calls)}\n  return wide.part[0];"
            yield Form("lookup4", 0, f"defined(__{feature}__){test}", text)


# --------------------------------------------------------------------------------------------------------- floats
def _each(name: str, lanes: int, has: str, clang: str, gcc: str) -> Iterator[Form]:
    yield Form(name, lanes, f"{has} && defined(__clang__)", f"return ({{V}}){clang};", DType.F32)
    yield Form(name, lanes, has, f"return ({{V}}){gcc};", DType.F32)


def _floats() -> Iterator[Form]:
    for name in ("max", "min"):
        call = f"__builtin_ia32_{name}ps"
        yield from _each(name, 16, "defined(__AVX512F__)", f"{call}512(a, b, 4)", f"{call}512_mask(a, b, a, -1, 4)")
        yield Form(name, 8, "defined(__AVX__)", f"return ({{V}}){call}256(a, b);", DType.F32)
        yield Form(name, 4, "defined(__SSE__)", f"return ({{V}}){call}(a, b);", DType.F32)
    call = "__builtin_ia32_sqrtps"
    yield from _each("sqrt", 16, "defined(__AVX512F__)", f"{call}512(a, 4)", f"{call}512_mask(a, a, -1, 4)")
    yield Form("sqrt", 8, "defined(__AVX__)", f"return ({{V}}){call}256(a);", DType.F32)
    yield Form("sqrt", 4, "defined(__SSE__)", f"return ({{V}}){call}(a);", DType.F32)
    for lanes, test, register in (
        (1, "defined(__GNUC__) && defined(__x86_64__)", "x"),
        (4, "defined(__SSE2__)", "x"),
        (8, "defined(__AVX__)", "x"),
        (16, "defined(__AVX512F__)", "v"),
    ):
        yield Form("mul_rounded", lanes, test, PRODUCT_ALONE % register)


# ----------------------------------------------------------------------------------------- floats as nearest integers
PRIMITIVES = {
    # An f32 of less than 2**31 rounded to the nearest integer, halves to even.
    "nearest": Primitive(1, "mask"),
}
PORTABLE = {
    "nearest": Portable(
        "{V} a",
        "const {I} sign = ({I})a & ~{magnitude};\n"
        "  const {V} p = ({V})(({I})a & {magnitude}), r = (p + {whole}) - {whole};\n"
        "  const {I} big = ({I})(p >= {whole});\n"
        "  return __builtin_convertvector(({V})(sign | (({I})p & big) | (({I})r & ~big)), {I});",
        "const {V} p = a < 0 ? -a : a, r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
        "  return ({I})(a < 0 ? -r : r);",
        "{I}",
    )
}


def _nearest() -> Iterator[Form]:
    call = "__builtin_ia32_cvtps2dq"
    yield Form("nearest", 16, "defined(__AVX512F__)", f"return ({{I}}){call}512_mask(a, ({{I}}){{{{0}}}}, -1, 4);")
    yield Form("nearest", 8, "defined(__AVX__)", f"return ({{I}}){call}256(a);")
    yield Form("nearest", 4, "defined(__SSE2__)", f"return ({{I}}){call}(a);")


# -------------------------------------------------------------------------------------------------- maxima of integers
def _whole() -> Iterator[Form]:
    """Maxima of 32 bits for GCC, which compares and selects where it is not told the instruction."""
    for name in ("max", "min"):
        call = f"__builtin_ia32_p{name}sd"
        for lanes, feature, size, more in (
            (16, "AVX512F", "512_mask", ", a, -1"),
            (8, "AVX2", "256", ""),
            (4, "SSE4_1", "128", ""),
        ):
            has = f"defined(__{feature}__) && !defined(__clang__)"
            yield Form(name, lanes, has, f"return {call}{size}(a, b{more});", DType.I32)


def _words() -> Iterator[Form]:
    """Maxima of 16 bits for GCC, likewise."""
    typedef = "typedef short words __attribute__((vector_size(2 * {N})));\n  "
    for name, dtype, code, first in (
        ("max", DType.I16, "pmaxsw", "SSE2"),
        ("min", DType.I16, "pminsw", "SSE2"),
        ("max", DType.U16, "pmaxuw", "SSE4_1"),
        ("min", DType.U16, "pminuw", "SSE4_1"),
    ):
        for lanes, feature, size, more in (
            (32, "AVX512BW", "512_mask", ", (words)a, -1"),
            (16, "AVX2", "256", ""),
            (8, first, "128", ""),
        ):
            has = f"defined(__{feature}__) && !defined(__clang__)"
            call = f"__builtin_ia32_{code}{size}((words)a, (words)b{more})"
            yield Form(name, lanes, has, f"{typedef}return ({{V}}){call};", dtype)


FORMS = (
    *(form for lanes in _SIZES for form in _vnni(lanes)),
    *(form for name in ("dot4", "dot4_signed", "dot4_narrow") for lanes in _PAIRS for form in _pmaddwd(name, lanes)),
    *_pmaddubsw(),
    *(form for lanes in _PAIRS for form in _pairs_of_words(lanes)),
    *(form for lanes in _SIZES for form in _dpbf16ps(lanes)),
    *_tables(),
    *_floats(),
    *_nearest(),
    *_whole(),
    *_words(),
)
