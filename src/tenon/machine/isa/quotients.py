"""Quotients of floats rounded to integers, in C: by a product with the inverse of the divisor where that is enough.

A division takes as long as ten other instructions.  The product with the inverse, in 8192nds, is less than one of
these off; a quotient is divided out only where that may change to which integer it is rounded: beside a half, and from
512 on, where it has no 8192nds.  Vectors of a few quotients seldom have one.
"""

from __future__ import annotations

from tenon.machine.isa.base import Form, Portable, Primitive

_SCALAR = (
    "const {V} q = a / c, m = q > -1073741824.0f ? q : -1073741824.0f;\n"
    "  const {V} n = m < 1073741824.0f ? m : 1073741824.0f, p = n < 0 ? -n : n;\n"
    "  const {V} w = p >= {whole} ? p : (p + {whole}) - {whole};\n"
    "  (void)r;\n  return ({I})(n < 0 ? -w : w) + b;"
)

_DIVIDED = (
    "{V} q = a / c;\n"
    "  const {I} more = ({I})(q > -1073741824.0f);\n"
    "  q = ({V})((({I})q & more) | (({I})(({V}){{0}} - 1073741824.0f) & ~more));\n"
    "  const {I} less = ({I})(q < 1073741824.0f);\n"
    "  q = ({V})((({I})q & less) | (({I})(({V}){{0}} + 1073741824.0f) & ~less));\n"
    "  const {I} sign = ({I})q & ~{magnitude};\n"
    "  const {V} p = ({V})(({I})q & {magnitude}), w = (p + {whole}) - {whole};\n"
    "  const {I} big = ({I})(p >= {whole});\n"
    "  q = ({V})(sign | (({I})p & big) | (({I})w & ~big));\n"
    "  return __builtin_convertvector(q, {I}) + b;"
)

# The sum lies between 2**10 and 2**11, where the last digit of floats counts 8192nds; 1536 is 0x44c00000.
_MULTIPLIED = (
    "const {I} bits = ({I})(a * r + 1536.0f);\n"
    "  const {U} beside = ((({U})bits - 4095) & 0xff801fffu) - 0x44800003u;\n"
    "  const {I} odd = ({I})(beside >= 8189u);\n"
)
_NEAREST = "  if (__builtin_expect(!any, 1)) return ((bits - (0x44c00000 - 4096)) >> 13) + b;\n  "
_ANY = {
    16: ("defined(__AVX512F__)", "  const int any = __builtin_ia32_cmpd512_mask(odd, ({I}){{0}}, 4, -1);\n"),
    8: (
        "defined(__AVX2__)",
        "  typedef float floats __attribute__((vector_size(32)));\n"
        "  const int any = __builtin_ia32_movmskps256((floats)odd);\n",
    ),
    4: (
        "defined(__SSE2__)",
        "  typedef float floats __attribute__((vector_size(16)));\n"
        "  const int any = __builtin_ia32_movmskps((floats)odd);\n",
    ),
}
_ANY_OF_NEON = (
    "defined(__aarch64__)",
    "  typedef uint64_t halves __attribute__((vector_size(16)));\n  const halves h = (halves)odd;\n"
    "  const int any = (h[0] | h[1]) != 0;\n",
)

# Two steps of Newton's method make the product with the inverse the quotient, correctly rounded, without a division's
# branches (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).
_CUDA = """\
if (c >= 1e-25f && c <= 1e25f) {{
    const float most = c * 1073741824.0f, x = fminf(fmaxf(a, -most), most);
    float q = x * r;
    q = __fmaf_rn(__fmaf_rn(-q, c, x), r, q);
    return __float2int_rn(__fmaf_rn(__fmaf_rn(-q, c, x), r, q)) + b;
  }}
  return __float2int_rn(fminf(fmaxf(a / c, -1073741824.0f), 1073741824.0f)) + b;"""
DEVICES = {"cuda": {"nearest_quotient_add": _CUDA}}

PRIMITIVES = {
    # Of a, b, c, d: the quotient of f32 a / c, rounded to the nearest integer, halves to even, and clamped to 2**30, of
    # NaN the least, plus b, an i32 of up to 24 bits.  d is 1 / c, rounded.
    "nearest_quotient_add": Primitive(4, "arg1"),
}
PORTABLE = {
    "nearest_quotient_add": Portable("{V} a, {I} b, {V} c, {V} r", "(void)r;\n  " + _DIVIDED, _SCALAR, "{I}"),
}
FORMS = tuple(
    Form("nearest_quotient_add", lanes, test, _MULTIPLIED + any + _NEAREST + _DIVIDED)
    for lanes, (test, any) in (*_ANY.items(), (4, _ANY_OF_NEON))
)
