"""Arm's Helium (MVE): sums of sixteen products of bytes, added to a scalar.

VMLADAVA sums into an even register only, so that a tile of 2 positions x 4 channels takes all of these, and pointers
the odd ones; compilers spill what they are given as single instructions.  A step of the inner loops of
``kernels.integer_dots`` is 14 instructions for 128 multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.isa.base import Assembly, Form, Portable, Primitive, ProductUnit
from tenon.machine.isa.dsp import LANES_EVEN
from tenon.machine.isa.frame import LOCAL
from tenon.network.graph.dtype import DType

CHANNELS = 4
_HAS_MVE = "defined(__GNUC__) && defined(__ARM_FEATURE_MVE)"


def _tile(weights: str, inputs: str, sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """``sums`` by channel, then position; the inputs of the second position lie ``apart`` elements further on."""
    outer, inner, positions, apart = numbers
    lines = _step(positions) * inner
    pointers = {"w": weights, "p": inputs}
    if positions > 1:
        pointers["z"] = f"{LOCAL}p + {apart}"
    if outer > 1:
        lines = ["1:", *lines, "cmp %[p], %[e]", "bne 1b"]
        pointers["e"] = f"{LOCAL}p + {outer * inner * 4}"
    changed = ", ".join(f'[a{i}] "+Te"({name})' for i, name in enumerate(sums))
    moved = ", ".join(f'[{name}] "+r"({LOCAL}{name})' for name in pointers)
    return [
        "{",
        *(f"  const int32_t *{LOCAL}{name} = {value};" for name, value in pointers.items()),
        "  __asm__ volatile(",
        *(f'    "{line}\\n"' for line in lines),
        f"    : {changed},",
        f"      {moved}",
        '    : : "cc", "memory", "q0", "q1", "q2", "q3");',
        "}",
    ]


def _step(positions: int) -> list[str]:
    lines = [f"vldrw.u32 q{i}, [%[{'pz'[i]}]], #16" for i in range(positions)]
    for v in range(CHANNELS):
        weights = f"q{2 + v % 2}"
        lines.append(f"vldrw.u32 {weights}, [%[w]], #16")
        lines += [f"vmladava.s8 %[a{v * positions + i}], q{i}, {weights}" for i in range(positions)]
    return lines


DOT16 = ProductUnit("dot16", DType.I8, DType.I8, DType.I32, (1, 1, 16))

PRIMITIVES = {"dot16": Primitive(3, "given", products=16)}  # an i32 + the sixteen i8 * i8 of two vectors of four words
PORTABLE = {
    "dot16": Portable(
        "{V} acc, {Q} a, {Q} b",
        scalar=(
            "union {{ {Q} v; int8_t s[16]; }} x = {{ a }}, y = {{ b }};\n"
            "  for (int i = 0; i < 16; i++) acc += x.s[i] * y.s[i];\n"
            "  return acc;"
        ),
    )
}
FORMS = (
    Form("dot16", 1, _HAS_MVE, '__asm__("vmladava.s8 %0, %q1, %q2" : "+Te"(acc) : "w"(a), "w"(b));\n  return acc;'),
    # Clang has no instructions for it.
    Form(
        "select",
        4,
        "defined(__ARM_FEATURE_MVE)",
        "{V} r; for (int i = 0; i < {N}; i++) r[i] = m[i] ? a[i] : b[i]; return r;",
        DType.F64,
    ),
    Form(
        "shift_even",
        4,
        _HAS_MVE,
        "const {V} none = ({V}){{0}} - 1, low = t & ~({V})(({U})none << ({U})r);\n  {V} y = t >> r;\n"
        '  uint32_t least = 0xffffffffu;\n  __asm__("vminv.u32 %0, %q1" : "+r"(least) : "w"(low));\n'
        "  if (__builtin_expect(!least, 0)) " + LANES_EVEN + "\n  return y;",
    ),
)
ASSEMBLY = {"dot16_tile": Assembly(f"{_HAS_MVE} && defined(__OPTIMIZE__)", _tile)}
"""Numbers: iterations of the loop, steps of its body, positions, elements between the inputs of two positions."""
