"""Products of bf16, in pairs: x86's (AVX-512 BF16) and Arm's (BF16), which also multiplies blocks of 2 by 2.

Arm's instructions add the two products of a pair, then that sum to the accumulator, and round both sums to odd
(FPCR.EBF is 0, as systems set it): a sum that is not exact becomes the one of its two neighbours whose last bit is 1.
Processors take subnormal operands, products and sums for zeros, which the other forms keep, and differ from these
within half a unit of the largest float.  Source: Arm Architecture Reference Manual, BFDotAdd.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.isa.base import Form, Portable, Primitive, ProductUnit
from tenon.network.graph.dtype import DType

DOT2 = ProductUnit("dot2", DType.BF16, DType.BF16, DType.F32, (1, 1, 2))
DOT2_ODD = ProductUnit("dot2_odd", DType.BF16, DType.BF16, DType.F32, (1, 1, 2))
MMLA_BF16 = ProductUnit("mmla_bf16", DType.BF16, DType.BF16, DType.F32, (2, 2, 4))

PRIMITIVES = {
    # (acc + the product of the second bf16s) + that of the first, per 32-bit lane; a processor's own instruction
    # takes subnormal operands, products and sums for zeros.
    "dot2": Primitive(3, products=2),
    # acc + (the product of the first bf16s + that of the second), both sums rounded to odd, per 32-bit lane.
    "dot2_odd": Primitive(3, products=2),
    # Four f32, of two rows by two columns, plus the products of two rows of four bf16 by two rows of four: those of the
    # first two and those of the last two, one after the other, as ``dot2_odd``.
    "mmla_bf16": Primitive(3, products=4),
}

_ODD_SUM = (
    "  {{ /* acc + r rounded to odd */\n"
    "    const {V} whole = acc + r, back = whole - acc, error = (acc - (whole - back)) + (r - back);\n"
    "    const {I} bits = ({I})whole;\n"
    "    const {I} inexact = (error != 0) & (whole - whole == 0) & ((bits & 1) == 0);\n"
    "    acc = ({V})(bits + (inexact & (((({I})error ^ bits) >> 31) | 1)));\n"
    "  }}\n"
)
"""Neither addend's error is lost (Knuth's sum of two), and of a sum with an even last bit the neighbour on the side of
the error has an odd one."""

_PAIR = (
    "  {V} first = acc, r = ({V})(({U})%(b)s << 16) * ({V})(({U})%(a)s << 16);\n"
    "  acc = ({V})(%(a)s & -65536) * ({V})(%(b)s & -65536);\n"
)


def _odd_pair(a: str, b: str) -> str:
    """The statements that add the products of a pair of vectors to ``acc``."""
    return f"{_PAIR % {'a': a, 'b': b}}{_ODD_SUM}  r = first;\n{_ODD_SUM}"


def _blocks() -> str:
    """Both factors spread to the four sums, a pair of each at a time."""
    spread = "__builtin_shufflevector(%s, %s, %s)"
    text = ""
    for pair in (0, 1):
        rows = spread % ("a", "a", ", ".join(str(pair + 2 * (i // 2)) for i in range(4)))
        columns = spread % ("b", "b", ", ".join(str(pair + 2 * (i % 2)) for i in range(4)))
        text += f"  {{{{\n  const {{I}} x = {rows}, y = {columns};\n{_odd_pair('x', 'y')}  }}}}\n"
    return f"{text}  return acc;"


_ONE = (
    "union {{ uint32_t u; int32_t i; float f; }} x, y, s, e;\n"
    "  x.u = (uint32_t)a << 16, y.u = (uint32_t)b << 16;\n"
    "  float total = x.f * y.f;\n"
    "  x.u = (uint32_t)a & 0xffff0000u, y.u = (uint32_t)b & 0xffff0000u;\n"
    "  const float added[2] = {{x.f * y.f, acc}};\n"
    "  for (int i = 0; i < 2; i++) {{\n"
    "    s.f = total + added[i];\n"
    "    const float back = s.f - total;\n"
    "    e.f = (total - (s.f - back)) + (added[i] - back);\n"
    "    if (e.f != 0 && s.f - s.f == 0 && !(s.u & 1)) s.i += (e.i ^ s.i) < 0 ? -1 : 1;\n"
    "    total = s.f;\n"
    "  }}\n"
    "  return total;"
)
_TAKES = "{V} acc, {I} a, {I} b"
PORTABLE = {
    "dot2": Portable(
        _TAKES,
        "acc += ({V})(a & -65536) * ({V})(b & -65536);\n  return acc + ({V})(({U})a << 16) * ({V})(({U})b << 16);",
        "union {{ uint32_t u; float f; }} x, y;\n"
        "  x.u = (uint32_t)a & 0xffff0000u, y.u = (uint32_t)b & 0xffff0000u;\n"
        "  acc += x.f * y.f;\n"
        "  x.u = (uint32_t)a << 16, y.u = (uint32_t)b << 16;\n"
        "  return acc + x.f * y.f;",
    ),
    "dot2_odd": Portable(_TAKES, f"{_odd_pair('a', 'b').strip()}\n  return acc;", _ONE),
    "mmla_bf16": Portable(_TAKES, _blocks().strip()),
}


def _arm() -> Iterator[Form]:
    has = "defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)"
    for name, lanes, text in (
        ("dot2_odd", 4, "bfdot %0.4s, %1.8h, %2.8h"),
        ("dot2_odd", 2, "bfdot %0.2s, %1.4h, %2.4h"),
        ("mmla_bf16", 4, "bfmmla %0.4s, %1.8h, %2.8h"),
    ):
        yield Form(name, lanes, has, f'__asm__("{text}" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;')
    words = "const union {{ int32_t i; float f; }} x = {{ a }}, y = {{ b }};\n  "
    text = '__asm__("bfdot %0.2s, %1.4h, %2.4h" : "+w"(acc) : "w"(x.f), "w"(y.f));\n  return acc;'
    yield Form("dot2_odd", 1, has, words + text)


FORMS = tuple(_arm())
