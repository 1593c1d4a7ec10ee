"""Arm's 32-bit cores without DSP instructions, in Thumb-2 and in Thumb: the inner loops of ``kernels.integer_scalar``.

A tile of 4 positions x 2 channels needs every register that Thumb-2 has, 8 sums, 2 pointers and 4 operands: 12
instructions for 8 multiply-adds.  In Thumb, products overwrite an operand and take r0 to r7 only: 4 inputs are loaded
at once and overwritten, sums lie in the other registers; 43 instructions for 16 multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.isa.base import Assembly, Form, Portable, Primitive, ProductUnit
from tenon.machine.isa.frame import Frame
from tenon.network.graph.dtype import DType

_THUMB2 = "defined(__GNUC__) && defined(__thumb2__) && defined(__OPTIMIZE__)"
_SMALL = "defined(__OPTIMIZE_SIZE__) && !defined(__clang__)"
"""GCC for size leaves registers after r7 alone."""
_THUMB1 = f"defined(__GNUC__) && defined(__thumb__) && !defined(__thumb2__) && defined(__OPTIMIZE__) && !({_SMALL})"
_FOUR = 4
"""Steps that read one word of weights, or of a vector, in Thumb."""


def _next_byte(to: str, word: str, i: int) -> list[str]:
    """The next byte of a word with its sign."""
    if i % _FOUR == _FOUR - 1:
        return [f"asrs %[{to}], %[{word}], #8"]
    shift = [f"asrs %[{word}], %[{word}], #8"] if i % _FOUR else []
    return [*shift, f"sxtb %[{to}], %[{word}]"]


def _product(i: int, x: str, w: str) -> str:
    return f"mla %[a{i}], %[{x}], %[{w}], %[a{i}]"


def _panel2(elements: int, count: int) -> list[str]:
    """``count`` steps of so many positions of a panel by 2 channels, in Thumb-2."""
    lines = []
    for _ in range(count):
        lines += [f"ldrsb %[{w}], [%[w]], #1" for w in "oe"]
        for i in range(0, elements, 2):
            both = i + 1 < elements
            lines.append("ldrd %[x], %[z], [%[p]], #8" if both else "ldr %[x], [%[p]], #4")
            for j, x in enumerate("xz" if both else "x"):
                lines += [_product(2 * (i + j) + v, x, w) for v, w in enumerate("oe")]
    return lines


def _panel1(elements: int, count: int) -> list[str]:
    """``count`` steps of so many positions of a panel by one channel, in Thumb."""
    lines = []
    names = [f"r{i}" for i in range(elements)]
    for step in range(count):
        if step % _FOUR == 0:
            lines.append("ldmia %[w]!, {%[z]}")
        lines += [f"ldmia %[p]!, {{{', '.join(names)}}}", *_next_byte("o", "z", step)]
        lines += [f"muls {name}, %[o], {name}" for name in names]
        lines += [f"add %[a{i}], {name}" for i, name in enumerate(names)]
    return lines


def _vector4(count: int) -> list[str]:
    """``count`` bytes of one vector by 4 channels, in Thumb-2."""
    step = ["ldrsb %[x], [%[p]], #1"]
    for v in range(4):
        step += ["ldrsb %[o], [%[w]], #1", _product(v, "x", "o")]
    return step * count


def _vector4_thumb(count: int) -> list[str]:
    """The same in Thumb."""
    lines = []
    for step in range(count):
        if step % _FOUR == 0:
            lines.append("ldmia %[p]!, {%[y]}")
        lines += [*_next_byte("x", "y", step), "ldmia %[w]!, {%[z]}"]
        for v in range(4):
            lines += [*_next_byte("o", "z", v), "muls %[o], %[x], %[o]", f"add %[a{v}], %[o]"]
    return lines


def _looped(lines: list[str], outer: int, end: str, last: str) -> list[str]:
    """``outer`` iterations; no register is left for the end of the inputs."""
    if outer > 1:
        lines = [
            f"push {{%[{end}]}}",
            "1:",
            *lines,
            f"ldr %[{last}], [sp]",
            f"cmp %[p], %[{last}]",
            "bne 1b",
            "add sp, #4",
        ]
    return [".syntax unified", *lines]


def _of_panel2(weights: str, inputs: str, sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    outer, inner, elements = numbers
    lines = _looped(_panel2(elements, inner), outer, "o", "e")
    return Frame(weights, inputs, outer * inner * elements, sums, "exz", "o", "const int8_t").text(lines)


def _of_panel1(weights: str, inputs: str, sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    outer, inner, elements = numbers
    lines = _looped(_panel1(elements, inner), outer, "o", "z")
    size, clobbered = outer * inner * elements, ("r0", "r1", "r2", "r3")
    return Frame(
        weights, inputs, size, sums, "z", "o", "const int8_t", sum_register="h", register="l", clobbered=clobbered
    ).text(lines)


def _of_vector4(weights: str, inputs: str, sums: Sequence[str], numbers: Sequence[int]) -> list[str]:
    outer, inner, _ = numbers
    size, bytes = outer * inner, "const int8_t"
    large = Frame(weights, inputs, size, sums, "x", "o", bytes, bytes)
    small = Frame(weights, inputs, size, sums, "xyz", "o", bytes, bytes, "h", "l")
    by_large, by_small = _vector4(inner), _vector4_thumb(inner)
    return [
        f"#if {_THUMB2}",
        *large.text(_looped(by_large, outer, "o", "x")),
        "#else",
        *small.text(_looped(by_small, outer, "o", "x")),
        "#endif",
    ]


MUL = ProductUnit("mul", DType.I8, DType.I8, DType.I32, (1, 1, 1))
"""One by one, in few registers: also of other cores that have neither vectors nor an FPU."""

PRIMITIVES = {
    "scalar": Primitive(1),  # the operand, a scalar, which compilers do not compute together with others as a vector
}
PORTABLE = {"scalar": Portable("{V} a", scalar="return a;")}
FORMS = (
    Form("scalar", 1, "defined(__GNUC__)", '__asm__("" : "+r"(a));\n  return a;', DType.I32),
    # Without products of 64 bits, by halves; the lower half of the lowest product does not change what is rounded.
    Form(
        "mulh_add",
        1,
        "defined(__thumb__) && !defined(__thumb2__)",
        "const {V} a1 = a >> 16, b1 = b >> 16, a0 = a & 65535, b0 = b & 65535;\n"
        "  const {V} left = a1 * b0 + ({V})(({U})a0 * ({U})b0 >> 16), right = a0 * b1;\n"
        "  const {V} whole = a1 * b1 + (left >> 16) + (right >> 16);\n"
        "  return ({V})(({U})c + ({U})whole + (((left & 65535) + (right & 65535) + 32768) >> 16));",
    ),
)
ASSEMBLY = {
    "bytes_panel2": Assembly(_THUMB2, _of_panel2),
    "bytes_panel1": Assembly(_THUMB1, _of_panel1),
    "bytes_vector4": Assembly(f"({_THUMB2}) || ({_THUMB1})", _of_vector4),
}
"""Numbers: iterations of the loop, steps of its body, inputs of a step."""
