"""Arm's 32-bit cores with DSP instructions: products of pairs of 16 bits in words of 32, and roundings.

Inline assembly, because only some of the instructions have intrinsics that both GCC and Clang know; a compiler
schedules and allocates it like any other instruction.

The inner loops of ``kernels.integer_pairs`` and ``kernels.integer_winograd`` are assembly as a whole: a tile of 4
positions x 2 channels needs every register there is, 8 sums, 2 pointers and 4 operands, so that compilers spill some of
what they are given as single instructions; a step is 13 instructions for 16 multiply-adds.  A product of one vector
with 4 rows of weights takes 21 for 16, because weights are read two words at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.isa.base import Assembly, Form, Portable, Primitive, ProductUnit
from tenon.machine.isa.frame import Frame
from tenon.network.graph.dtype import DType

POSITIONS, CHANNELS = 4, 2

# ------------------------------------------------------------------------------------------------ operations
DOT2_I16 = ProductUnit("dot2_i16", DType.I16, DType.I16, DType.I32, (1, 1, 2))

PRIMITIVES = {
    # Words of 32 bits as pairs of 16: the low half first.
    "dot2_i16": Primitive(3, products=2),  # acc + both products; sums wrap around
    "even_bytes": Primitive(1),  # the first and the third byte of a word, each with its sign, as a pair
    "odd_bytes": Primitive(1),  # the second and the fourth
    "pair_i16": Primitive(2),  # the low halves of two words
    "add_i16x2": Primitive(2),  # of pairs, half by half; each wraps around
    "sub_i16x2": Primitive(2),
    "mulh_add": Primitive(3),  # (a * b + 2**31) >> 32 of i32 in 64 bits, plus c
    # Of t, s, m, c, r, i32 with m from 2**30 and r from 1 on: t >> r, but where the lowest r bits of t are zero, c >> r
    # plus the product of s and m / 2**(31 + r) in f32, rounded to the nearest integer, halves to even.
    "shift_even": Primitive(5),
    "saturate_i8": Primitive(1),  # an i32 clamped between -128 and 127
    # An f32 rounded to the nearest integer, halves to even, plus an i32; both results are saturated to i32.
    "nearest_add": Primitive(2, "arg1"),
    # The same with halves away from zero and a sum that wraps around; integers of 2**28 and more may be off by one, and
    # are saturated to 2**29.
    "nearest_away_add": Primitive(2, "arg1"),
}
_EVEN = "return ({V})((({U})(({V})(({U})a << 24) >> 24) & 65535) | (({U})(({V})(({U})a << 8) >> 24) << 16));"
_HALVES = "return ({V})(((({U})a %s ({U})b) & 65535) | (((({U})a >> 16) %s (({U})b >> 16)) << 16));"
_DOT2 = (
    "const {V} low = ({V})(({U})a << 16) >> 16, other = ({V})(({U})b << 16) >> 16;\n"
    "  return ({V})(({U})acc + ({U})(low * other) + ({U})((a >> 16) * (b >> 16)));"
)
_PAIR = "return ({V})((({U})a & 65535) | (({U})b << 16));"
_QUARTERS = (
    "  const int64_t w = q >= 2147483648.0f ? 2147483647 : q > -2147483648.0f ? (int64_t)q : -2147483647 - 1;\n"
    "  const int64_t n = (w * ((1 << 30) + 1) + (1LL << 31)) >> 32;\n"
)
"""An f32 in quarters, truncated, and the nearest integer: a little is added to positive ones and subtracted from
negative ones, so that halves are rounded away from zero."""

_TIE = """\
TENON_OUTLINE int32_t tie_even(int32_t s, int32_t m, int32_t c, int32_t r) {
  union { uint32_t bits; float value; } power, y;
  power.bits = (uint32_t)(96 - r) << 23; /* 2 to the power of -31 - r */
  y.value = (float)s * ((float)m * power.value);
  y.value = y.value > 2097152.0f ? 2097152.0f : y.value < -2097152.0f ? -2097152.0f : y.value;
  y.value += 12582912.0f; /* whose last digit counts ones */
  return (int32_t)(y.bits - 0x4b400000u) + (c >> r);
}"""
"""The rare case of ``shift_even``; a function of its own, because processors without an FPU call others in it."""

LANES_EVEN = "for (int i = 0; i < {N}; i++) if (!low[i]) y[i] = {tie}(s[i], m[i], c[i], r[i]);"
_NEAREST = (
    "const {V} p = a < 0 ? -a : a, r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
    "  const int64_t most = 2147483647, whole = r >= 2147483648.0f ? most + (a < 0) : (int64_t)r;\n"
    "  const int64_t sum = (a < 0 ? -whole : whole) + b;\n"
    "  return ({I})(sum > most ? most : sum < -most - 1 ? -most - 1 : sum);"
)
_NEAREST_EACH = (
    "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    const {E} x = a[i], p = x < 0 ? -x : x;\n"
    "    const {E} r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
    "    const int64_t most = 2147483647, whole = r >= 2147483648.0f ? most + (x < 0) : (int64_t)r;\n"
    "    const int64_t sum = (x < 0 ? -whole : whole) + b[i];\n"
    "    y[i] = (int32_t)(sum > most ? most : sum < -most - 1 ? -most - 1 : sum);\n  }}\n  return y;"
)
_AWAY_EACH = (
    "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    const {E} q = 4 * a[i];\n  "
    + _QUARTERS
    + "    y[i] = (int32_t)(n + b[i]);\n  }}\n  return y;"
)

PORTABLE = {
    "dot2_i16": Portable("{V} acc, {V} a, {V} b", _DOT2, _DOT2),
    "even_bytes": Portable("{V} a", _EVEN, _EVEN),
    "odd_bytes": Portable("{V} a", "a >>= 8;\n  " + _EVEN, "a >>= 8;\n  " + _EVEN),
    "pair_i16": Portable("{V} a, {V} b", _PAIR, _PAIR),
    "add_i16x2": Portable("{V} a, {V} b", _HALVES % ("+", "+"), _HALVES % ("+", "+")),
    "sub_i16x2": Portable("{V} a, {V} b", _HALVES % ("-", "-"), _HALVES % ("-", "-")),
    "mulh_add": Portable(
        "{V} a, {V} b, {V} c",
        "return ({V})(({U})c + __builtin_convertvector((__builtin_convertvector(a, {W}) *"
        " __builtin_convertvector(b, {W}) + (1LL << 31)) >> 32, {U}));",
        "return ({V})(({U})c + ({U})(((int64_t)a * b + (1LL << 31)) >> 32));",
    ),
    "shift_even": Portable(
        "{V} t, {V} s, {V} m, {V} c, {V} r",
        "const {V} none = ({V}){{0}} - 1, low = t & ~({V})(({U})none << ({U})r);\n  {V} y = t >> r;\n  "
        + LANES_EVEN
        + "\n  return y;",
        "return ({U})t << (32 - r) ? t >> r : {tie}(s, m, c, r);",
        helpers={"tie": ("tie_even", _TIE)},
    ),
    "saturate_i8": Portable(
        "{V} a",
        "const {V} above = a > 127, below = a < -128;\n"
        "  return (a & ~above & ~below) | (above & 127) | (below & -128);",
        "return a < -128 ? -128 : a > 127 ? 127 : a;",
    ),
    "nearest_add": Portable("{V} a, {I} b", _NEAREST_EACH, _NEAREST, "{I}"),
    "nearest_away_add": Portable(
        "{V} a, {I} b", _AWAY_EACH, "const {V} q = 4 * a;\n" + _QUARTERS + "  return ({I})(n + b);", "{I}"
    ),
}

# ----------------------------------------------------------------------------------------------------- forms
_DSP = "defined(__GNUC__) && defined(__ARM_FEATURE_DSP)"


def _instruction(text: str, *operands: str) -> str:
    given = ", ".join(f'"r"({name})' for name in operands)
    return f'{{V}} r;\n  __asm__("{text}" : "=r"(r) : {given});\n  return r;'


_ROUNDED = {
    # VCVTR rounds as the mode says, which is to nearest, and saturates.
    "nearest_add": ("vcvtr.s32.f32 %0, %0", "qadd %0, %0, %1", ""),
    # Quarters, truncated and saturated, times a fourth and a little; SMMLAR rounds the product and adds.
    "nearest_away_add": ("vcvt.s32.f32 %0, %0, #2", "smmlar %0, %0, %1, %2", '"r"((1 << 30) + 1), '),
}
"""The instructions that convert and add, and an operand of the second."""


def _rounded(convert: str, add: str, factor: str) -> str:
    return (
        f'{{I}} y;\n  __asm__("{convert}" : "+t"(a));\n  __asm__("vmov %0, %1" : "=r"(y) : "t"(a));\n'
        f'  __asm__("{add}" : "+r"(y) : {factor}"r"(b));\n  return y;'
    )


def _each_rounded(convert: str, add: str, factor: str) -> str:
    return (
        "{I} y;\n  for (int i = 0; i < {N}; i++) {{\n    {E} x = a[i];\n    int32_t r;\n"
        f'    __asm__("{convert}" : "+t"(x));\n    __asm__("vmov %0, %1" : "=r"(r) : "t"(x));\n'
        f'    __asm__("{add}" : "+r"(r) : {factor}"r"(b[i]));\n'
        "    y[i] = r;\n  }}\n  return y;"
    )


FORMS = (
    Form(
        "shift_even",
        1,
        "defined(__GNUC__)",
        "return __builtin_expect(({U})t << (32 - r) != 0, 1) ? t >> r : {tie}(s, m, c, r);",
    ),
    # The sum stays in its register.
    Form("dot2_i16", 1, _DSP, '__asm__("smlad %0, %1, %2, %0" : "+r"(acc) : "r"(a), "r"(b));\n  return acc;'),
    Form("even_bytes", 1, _DSP, _instruction("sxtb16 %0, %1", "a")),
    Form("odd_bytes", 1, _DSP, _instruction("sxtb16 %0, %1, ror #8", "a")),
    Form("add_i16x2", 1, _DSP, _instruction("sadd16 %0, %1, %2", "a", "b")),
    Form("sub_i16x2", 1, _DSP, _instruction("ssub16 %0, %1, %2", "a", "b")),
    Form("pair_i16", 1, _DSP, _instruction("pkhbt %0, %1, %2, lsl #16", "a", "b")),
    Form("mulh_add", 1, _DSP, _instruction("smmlar %0, %1, %2, %3", "a", "b", "c")),
    # Clang defines the feature for Armv8-M Baseline, too, which has Thumb-1's instructions.
    Form(
        "saturate_i8",
        1,
        "defined(__GNUC__) && defined(__ARM_FEATURE_SAT) && (defined(__thumb2__) || !defined(__thumb__))",
        _instruction("ssat %0, #8, %1", "a"),
    ),
    *(Form(name, 1, f"{_DSP} && defined(__ARM_FP)", _rounded(*lines)) for name, lines in _ROUNDED.items()),
    # Lane by lane: vector conversions neither round so nor saturate sums.
    *(Form(name, 0, f"{_DSP} && defined(__ARM_FP)", _each_rounded(*lines)) for name, lines in _ROUNDED.items()),
)

# ---------------------------------------------------------------------------------------------- inner loops
_HAS_REGISTERS = f"{_DSP} && defined(__thumb2__) && !defined(__ARM_FEATURE_MVE) && defined(__OPTIMIZE__)"
"""Without optimisation, compilers keep a register for frames; for Armv8.1-M with Helium, Clang keeps one always."""
_MOST_STEPS = 255
"""Most steps for an element of Winograd's tiles: the bytes of its inputs are an immediate operand."""
_PANEL_REGISTERS = "oxz"
"""Registers of a step besides the pointers, e and the sums."""


def _product(i: int, x: str, w: str) -> str:
    return f"smlad %[a{i}], %[{x}], %[{w}], %[a{i}]"


def _by_positions() -> list[str]:
    """Products of the pairs of four positions with those in e and o."""
    lines = []
    for i in range(0, POSITIONS, 2):
        lines.append("ldrd %[x], %[z], [%[p]], #8")
        for j, x in enumerate("xz"):
            lines += [_product(CHANNELS * (i + j) + v, x, w) for v, w in enumerate("eo")]
    return lines


def _panel_step() -> list[str]:
    """Four positions of a panel by two channels, whose weights are a word of bytes."""
    return ["ldr %[e], [%[w]], #4", "sxtb16 %[o], %[e], ror #8", "sxtb16 %[e], %[e]", *_by_positions()]


def _wide_step() -> list[str]:
    """The same with weights that are pairs, too: 11 instructions for 16 multiply-adds."""
    return ["ldrd %[e], %[o], [%[w]], #8", *_by_positions()]


def _vector_step() -> list[str]:
    """One vector of bytes by four channels."""
    lines = ["ldr %[x], [%[p]], #4", "sxtb16 %[z], %[x], ror #8", "sxtb16 %[x], %[x]"]
    for x in "xz":
        lines.append("ldrd %[v], %[u], [%[w]], #8")
        for i, word in enumerate("vu"):
            lines += [f"sxtb16 %[o], %[{word}], ror #8", f"sxtb16 %[{word}], %[{word}]"]
            lines += [_product(2 * i, x, word), _product(2 * i + 1, x, "o")]
    return lines


def _steps(
    step: list[str],
    registers: str,
    input_type: str,
    weights: str,
    inputs: str,
    sums: Sequence[str],
    steps: Sequence[int],
) -> list[str]:
    """Lines of C: ``steps`` are those of the loop and of its unrolled body, each of four inputs."""
    outer, inner = steps
    lines = step * inner
    if outer > 1:  # no register is left for the end of the inputs
        lines = ["push {%[e]}", "1:", *lines, "ldr %[e], [sp]", "cmp %[p], %[e]", "bne 1b", "add sp, #4"]
    return Frame(weights, inputs, outer * inner * POSITIONS, sums, registers, input_type=input_type).text(lines)


def _panel(weights: str, inputs: str, sums: Sequence[str], steps: Sequence[int]) -> list[str]:
    return _steps(_panel_step(), _PANEL_REGISTERS, "const int32_t", weights, inputs, sums, steps)


def _wide(weights: str, inputs: str, sums: Sequence[str], steps: Sequence[int]) -> list[str]:
    return _steps(_wide_step(), _PANEL_REGISTERS, "const int32_t", weights, inputs, sums, steps)


def _vector(weights: str, inputs: str, sums: Sequence[str], steps: Sequence[int]) -> list[str]:
    return _steps(_vector_step(), "xzvuo", "const int8_t", weights, inputs, sums, steps)


def _elements(weights: str, inputs: str, _: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """All elements of a tile of Winograd's in one piece: the sums of an element begin with a product, not at zero, and
    are stored behind its part of the panel, so that no register is saved between elements."""
    outer, inner, elements = numbers
    depth, sums, again = outer * inner, POSITIONS * CHANNELS, _wide_step()
    first = [line.replace("smlad", "smuad").rpartition(",")[0] if "smlad" in line else line for line in again]
    lines, end, words = ["push {%[e]}"], "[sp]", 1
    if outer > 1:  # no register is left for the ends of the inputs
        lines, end, words = [*lines, f"add %[e], %[p], #{depth * POSITIONS * 4}", "push {%[e]}"], "[sp, #4]", 2
    lines += ["1:", *first, *again * (inner - 1)]
    if outer > 1:
        lines += ["2:", *again * inner, "ldr %[e], [sp]", "cmp %[p], %[e]", "bne 2b"]
    for v in range(CHANNELS):
        lines += [f"strd %[a{CHANNELS * i + v}], %[a{CHANNELS * (i + 1) + v}], [%[p]], #8" for i in (0, 2)]
    if outer > 1:
        lines += [f"add %[e], %[p], #{depth * POSITIONS * 4}", "str %[e], [sp]"]
    lines += [f"ldr %[o], {end}", "cmp %[p], %[o]", "bne 1b", f"add sp, #{4 * words}"]
    names = [*(f"a{i}" for i in range(sums)), *_PANEL_REGISTERS]
    size = elements * (depth * POSITIONS + sums)
    return Frame(weights, inputs, size, written=names, input_type="int32_t").text(lines)


ASSEMBLY = {
    "pairs_panel": Assembly(_HAS_REGISTERS, _panel),
    "pairs_wide": Assembly(_HAS_REGISTERS, _wide),
    "pairs_vector": Assembly(_HAS_REGISTERS, _vector),
    "pairs_elements": Assembly(_HAS_REGISTERS, _elements),
}
"""Numbers: iterations of the loop, steps of its body; then of ``pairs_elements`` the elements."""
