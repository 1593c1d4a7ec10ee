"""Products of pairs of 16 bits in words of 32: portable C, and the DSP instructions of Arm's 32-bit cores.

Inline assembly, because only some of them have intrinsics that both GCC and Clang know; a compiler schedules and
allocates it like any other instruction.
"""

from __future__ import annotations

_WORD = "{V} a"
TAKES = {
    "dot2_i16": "{V} acc, {V} a, {V} b",
    "even_bytes": _WORD,
    "odd_bytes": _WORD,
    "pair_i16": "{V} a, {V} b",
    "add_i16x2": "{V} a, {V} b",
    "sub_i16x2": "{V} a, {V} b",
    "mulh_add": "{V} a, {V} b, {V} c",
    "shift_even": "{V} t, {V} s, {V} m, {V} c, {V} r",
    "saturate_i8": _WORD,
    "nearest_add": "{V} a, {I} b",
    "nearest_away_add": "{V} a, {I} b",
}

_EVEN = "return ({V})((({U})(({V})(({U})a << 24) >> 24) & 65535) | (({U})(({V})(({U})a << 8) >> 24) << 16));"
_HALVES = "return ({V})(((({U})a %s ({U})b) & 65535) | (((({U})a >> 16) %s (({U})b >> 16)) << 16));"
PORTABLE = {
    "dot2_i16": (
        "const {V} low = ({V})(({U})a << 16) >> 16, other = ({V})(({U})b << 16) >> 16;\n"
        "  return ({V})(({U})acc + ({U})(low * other) + ({U})((a >> 16) * (b >> 16)));"
    ),
    "even_bytes": _EVEN,
    "odd_bytes": "a >>= 8;\n  " + _EVEN,
    "pair_i16": "return ({V})((({U})a & 65535) | (({U})b << 16));",
    "add_i16x2": _HALVES % ("+", "+"),
    "sub_i16x2": _HALVES % ("-", "-"),
}
"""Bodies that do for any number of lanes."""

_QUARTERS = (
    "  const int64_t w = q >= 2147483648.0f ? 2147483647 : q > -2147483648.0f ? (int64_t)q : -2147483647 - 1;\n"
    "  const int64_t n = (w * ((1 << 30) + 1) + (1LL << 31)) >> 32;\n"
)
"""An f32 in quarters, truncated, and the nearest integer: a little is added to positive ones and subtracted from
negative ones, so that halves are rounded away from zero."""

TIE = """\
TENON_OUTLINE int32_t tie_even(int32_t s, int32_t m, int32_t c, int32_t r) {
  union { uint32_t bits; float value; } power, y;
  power.bits = (uint32_t)(96 - r) << 23; /* 2 to the power of -31 - r */
  y.value = (float)s * ((float)m * power.value);
  y.value = y.value > 2097152.0f ? 2097152.0f : y.value < -2097152.0f ? -2097152.0f : y.value;
  y.value += 12582912.0f; /* whose last digit counts ones */
  return (int32_t)(y.bits - 0x4b400000u) + (c >> r);
}"""
"""The rare case of ``shift_even``; a function of its own, because processors without an FPU call others in it."""

SCALAR = {
    **PORTABLE,
    "shift_even": "return ({U})t << (32 - r) ? t >> r : {tie}(s, m, c, r);",
    "mulh_add": "return ({V})(({U})c + ({U})(((int64_t)a * b + (1LL << 31)) >> 32));",
    "saturate_i8": "return a < -128 ? -128 : a > 127 ? 127 : a;",
    "nearest_add": (
        "const {V} p = a < 0 ? -a : a, r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
        "  const int64_t most = 2147483647, whole = r >= 2147483648.0f ? most + (a < 0) : (int64_t)r;\n"
        "  const int64_t sum = (a < 0 ? -whole : whole) + b;\n"
        "  return ({I})(sum > most ? most : sum < -most - 1 ? -most - 1 : sum);"
    ),
    "nearest_away_add": "const {V} q = 4 * a;\n" + _QUARTERS + "  return ({I})(n + b);",
}
_LANES_EVEN = "for (int i = 0; i < {N}; i++) if (!low[i]) y[i] = {tie}(s[i], m[i], c[i], r[i]);"
VECTOR = {
    **PORTABLE,
    "shift_even": (
        "const {V} none = ({V}){{0}} - 1, low = t & ~({V})(({U})none << ({U})r);\n  {V} y = t >> r;\n  "
        + _LANES_EVEN
        + "\n  return y;"
    ),
    "mulh_add": (
        "return ({V})(({U})c + __builtin_convertvector((__builtin_convertvector(a, {W}) *"
        " __builtin_convertvector(b, {W}) + (1LL << 31)) >> 32, {U}));"
    ),
    "saturate_i8": (
        "const {V} above = a > 127, below = a < -128;\n  return (a & ~above & ~below) | (above & 127) | (below & -128);"
    ),
    "nearest_add": (
        "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    const {E} x = a[i], p = x < 0 ? -x : x;\n"
        "    const {E} r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
        "    const int64_t most = 2147483647, whole = r >= 2147483648.0f ? most + (x < 0) : (int64_t)r;\n"
        "    const int64_t sum = (x < 0 ? -whole : whole) + b[i];\n"
        "    y[i] = (int32_t)(sum > most ? most : sum < -most - 1 ? -most - 1 : sum);\n  }}\n  return y;"
    ),
    "nearest_away_add": (
        "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    const {E} q = 4 * a[i];\n  "
        + _QUARTERS
        + "    y[i] = (int32_t)(n + b[i]);\n  }}\n  return y;"
    ),
}

_DSP = "defined(__GNUC__) && defined(__ARM_FEATURE_DSP)"


def _instruction(text: str, *operands: str) -> str:
    given = ", ".join(f'"r"({name})' for name in operands)
    return f'{{V}} r;\n  __asm__("{text}" : "=r"(r) : {given});\n  return r;'


NATIVE = {
    "shift_even": [
        (
            "defined(__GNUC__)",
            "return __builtin_expect(({U})t << (32 - r) != 0, 1) ? t >> r : {tie}(s, m, c, r);",
        ),
    ],
    # The sum stays in its register.
    "dot2_i16": [(_DSP, '__asm__("smlad %0, %1, %2, %0" : "+r"(acc) : "r"(a), "r"(b));\n  return acc;')],
    "even_bytes": [(_DSP, _instruction("sxtb16 %0, %1", "a"))],
    "odd_bytes": [(_DSP, _instruction("sxtb16 %0, %1, ror #8", "a"))],
    "add_i16x2": [(_DSP, _instruction("sadd16 %0, %1, %2", "a", "b"))],
    "sub_i16x2": [(_DSP, _instruction("ssub16 %0, %1, %2", "a", "b"))],
    "pair_i16": [(_DSP, _instruction("pkhbt %0, %1, %2, lsl #16", "a", "b"))],
    "mulh_add": [
        (_DSP, _instruction("smmlar %0, %1, %2, %3", "a", "b", "c")),
        # Without products of 64 bits, by halves; the lower half of the lowest product does not change what is rounded.
        (
            "defined(__thumb__) && !defined(__thumb2__)",
            "const {V} a1 = a >> 16, b1 = b >> 16, a0 = a & 65535, b0 = b & 65535;\n"
            "  const {V} left = a1 * b0 + ({V})(({U})a0 * ({U})b0 >> 16), right = a0 * b1;\n"
            "  const {V} whole = a1 * b1 + (left >> 16) + (right >> 16);\n"
            "  return ({V})(({U})c + ({U})whole + (((left & 65535) + (right & 65535) + 32768) >> 16));",
        ),
    ],
    "saturate_i8": [
        # Clang defines the feature for Armv8-M Baseline, too, which has Thumb-1's instructions.
        (
            "defined(__GNUC__) && defined(__ARM_FEATURE_SAT) && (defined(__thumb2__) || !defined(__thumb__))",
            _instruction("ssat %0, #8, %1", "a"),
        ),
    ],
    # VCVTR rounds as the mode says, which is to nearest, and saturates.
    "nearest_add": [
        (
            f"{_DSP} && defined(__ARM_FP)",
            '{I} y;\n  __asm__("vcvtr.s32.f32 %0, %0" : "+t"(a));\n  __asm__("vmov %0, %1" : "=r"(y) : "t"(a));\n'
            '  __asm__("qadd %0, %0, %1" : "+r"(y) : "r"(b));\n  return y;',
        ),
    ],
    # Quarters, truncated and saturated, times a fourth and a little; SMMLAR rounds the product and adds.
    "nearest_away_add": [
        (
            f"{_DSP} && defined(__ARM_FP)",
            '{I} y;\n  __asm__("vcvt.s32.f32 %0, %0, #2" : "+t"(a));\n  __asm__("vmov %0, %1" : "=r"(y) : "t"(a));\n'
            '  __asm__("smmlar %0, %0, %1, %2" : "+r"(y) : "r"((1 << 30) + 1), "r"(b));\n  return y;',
        ),
    ],
}
"""(preprocessor condition, body), for one lane."""

LANE_BY_LANE = {
    "nearest_add": [
        (
            f"{_DSP} && defined(__ARM_FP)",
            "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    {E} x = a[i];\n    int32_t r;\n"
            '    __asm__("vcvtr.s32.f32 %0, %0" : "+t"(x));\n    __asm__("vmov %0, %1" : "=r"(r) : "t"(x));\n'
            '    __asm__("qadd %0, %0, %1" : "+r"(r) : "r"(b[i]));\n    y[i] = r;\n  }}\n  return y;',
        ),
    ],
    "nearest_away_add": [
        (
            f"{_DSP} && defined(__ARM_FP)",
            "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    {E} x = a[i];\n    int32_t r;\n"
            '    __asm__("vcvt.s32.f32 %0, %0, #2" : "+t"(x));\n    __asm__("vmov %0, %1" : "=r"(r) : "t"(x));\n'
            '    __asm__("smmlar %0, %0, %1, %2" : "+r"(r) : "r"((1 << 30) + 1), "r"(b[i]));\n'
            "    y[i] = r;\n  }}\n  return y;",
        ),
    ],
}
"""The same for vectors whose lanes are computed one by one: vector conversions neither round so nor saturate sums."""

FOUR_LANES = {
    "shift_even": [
        (
            "defined(__GNUC__) && defined(__ARM_FEATURE_MVE)",
            "const {V} none = ({V}){{0}} - 1, low = t & ~({V})(({U})none << ({U})r);\n  {V} y = t >> r;\n"
            '  uint32_t least = 0xffffffffu;\n  __asm__("vminv.u32 %0, %q1" : "+r"(least) : "w"(low));\n'
            "  if (__builtin_expect(!least, 0)) " + _LANES_EVEN + "\n  return y;",
        ),
    ],
}
"""For vectors of four words."""
