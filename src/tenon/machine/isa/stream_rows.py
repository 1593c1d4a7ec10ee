"""Arm's SME: products of one row of activations in bytes by weights in blocks, by vectors of the streaming mode.

``stream_row`` multiplies by up to four panels of sixteen outputs each, over all groups of 32 elements: a vector has a
word of each output of a panel, which SDOT multiplies by a word of the row.  ``stream_multi_row`` (SME2) multiplies the
words of four panels by one instruction; sums and results are vectors of the array that holds tiles.  The roundings are
those of ``kernels.block_product``: products are not fused with additions.  Codes of 4 bits are unpacked to bytes 16
times as large, and sums are divided by 16 before they are converted to floats, which is exact.

The streaming mode begins and ends with the instruction.  Source: as of ``isa.sme`` and ``isa.sme2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tenon.machine.isa.base import Assembly
from tenon.machine.isa.frame import LOCAL
from tenon.machine.isa.sme import CLOBBERED, CONDITION, FLOATS_READY, asks
from tenon.machine.isa.sme2 import ASKS, MULTI_CONDITION, READY, four
from tenon.machine.isa.sme_blocks import SIDE

ROW, MULTI_ROW = "stream_row", "stream_multi_row"
PANELS = 4
"""Most panels of an instruction."""
_UNROLLED = 2
"""Most groups that are written out."""
_X, _SCALE, _MASK, _LEFT, _RIGHT = 0, 2, 3, 4, 5
"""Vectors of the row, of its scale, and of what unpacks codes: a mask, and numbers of bits of bytes and of words."""


@dataclass(frozen=True)
class StreamRow:
    """The numbers of an instruction for ``panels`` panels, of which the last has ``outputs`` outputs, and ``groups``
    groups of codes of ``bits`` bits, 4 or 8."""

    panels: int
    outputs: int
    groups: int
    bits: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return astuple(self)

    @property
    def unrolled(self) -> int:
        """Groups that are written out."""
        return _UNROLLED if self.groups % _UNROLLED == 0 else 1

    @property
    def words(self) -> int:
        """Vectors of codes of a group of a panel."""
        return self.bits


def _at(name: str, panel: int) -> str:
    return f"{name}{panel}" if panel else name


def _row(group: int) -> list[str]:
    """A group of the row, and its scale."""
    lines = [f"ld1rqw {{z{_X + i}.s}}, p0/z, [%[x], #{32 * group + 16 * i}]" for i in (0, 1)]
    return [*lines, f"ld1rw {{z{_SCALE}.s}}, p0/z, [%[q], #{4 * group}]"]


def _word(number: int) -> str:
    """A word of the row in every lane, as the last operand of a product."""
    return f"z{_X + number // 4}.b[{number % 4}]"


def _panel(b: StreamRow, panel: int, group: int) -> list[str]:
    """A group of a panel, added to the results in vector 28 + ``panel``."""
    codes, low, scale, own = 16, 24, 8 + panel, 12 + panel
    at = [group * b.words + i - 8 for i in range(b.words)]
    lines = [f"dup z{own}.s, #0"]
    lines += [f"ld1w {{z{codes + i}.s}}, p0/z, [%[{_at('w', panel)}], #{place}, mul vl]" for i, place in enumerate(at)]
    lines.append(f"ld1h {{z{scale}.s}}, p0/z, [%[{_at('d', panel)}], #{group}, mul vl]")
    for i in range(b.words):
        if b.bits == 8:
            lines.append(f"sdot z{own}.s, z{codes + i}.b, {_word(i)}")
            continue
        lines.append(f"lsl z{low + i}.b, z{codes + i}.b, #4")
        lines.append(f"and z{codes + i}.b, z{codes + i}.b, #0xf0")
        lines.append(f"sdot z{own}.s, z{low + i}.b, {_word(2 * i)}")
        lines.append(f"sdot z{own}.s, z{codes + i}.b, {_word(2 * i + 1)}")
    lines += [f"asr z{own}.s, z{own}.s, #4"] if b.bits == 4 else []
    lines += [f"scvtf z{own}.s, p0/m, z{own}.s", f"fcvt z{scale}.s, p0/m, z{scale}.h"]
    lines += [f"fmul z{own}.s, z{own}.s, z{scale}.s", f"fmul z{own}.s, z{own}.s, z{_SCALE}.s"]
    return [*lines, f"fadd z{28 + panel}.s, z{28 + panel}.s, z{own}.s"]


def _four_panels(b: StreamRow, group: int) -> list[str]:
    """A group of four panels: vector i of codes of each is in one of four registers that lie side by side, which one
    instruction multiplies by a word.  Sums are the first vectors of tile 0, results those of tile 1."""
    lines = ["zero {za0.s}"]
    for half in range(b.words // 4):
        for panel in range(PANELS):
            registers = ", ".join(f"z{16 + panel + 4 * i}.s" for i in range(4))
            place = group * b.words + 4 * half
            lines.append(f"ld1w {{{registers}}}, pn8/z, [%[{_at('w', panel)}], #{place}, mul vl]")
        for i in range(4):
            codes = f"{{z{16 + 4 * i}.b-z{19 + 4 * i}.b}}"
            if b.bits == 8:
                lines.append(f"sdot za.s[w8, 0, vgx4], {codes}, {_word(4 * half + i)}")
                continue
            lines += [f"and z{8 + v}.d, z{16 + 4 * i + v}.d, z{_MASK}.d" for v in range(PANELS)]
            lines.append(f"srshl {codes}, {codes}, z{_LEFT}.b")
            lines.append(f"sdot za.s[w8, 0, vgx4], {codes}, {_word(2 * i)}")
            lines.append(f"sdot za.s[w8, 0, vgx4], {{z8.b-z11.b}}, {_word(2 * i + 1)}")
    sums = four(8)
    lines.append("mova {z8.d-z11.d}, za.d[w8, 0, vgx4]")
    lines += [f"srshl {sums}, {sums}, z{_RIGHT}.s"] if b.bits == 4 else []
    lines.append(f"scvtf {sums}, {sums}")
    lines += [f"ld1h {{z{12 + v}.s}}, p0/z, [%[{_at('d', v)}], #{group}, mul vl]" for v in range(PANELS)]
    lines += [f"fcvt z{12 + v}.s, p0/m, z{12 + v}.h" for v in range(PANELS)]
    lines += [f"fmul z{8 + v}.s, z{8 + v}.s, z{12 + v}.s" for v in range(PANELS)]
    lines += [f"fmul z{8 + v}.s, z{8 + v}.s, z{_SCALE}.s" for v in range(PANELS)]
    return [*lines, f"fadd za.s[w8, 1, vgx4], {sums}"]


def _advance(b: StreamRow) -> list[str]:
    lines = [f"add %[x], %[x], #{32 * b.unrolled}", f"add %[q], %[q], #{4 * b.unrolled}"]
    for panel in range(b.panels):
        lines.append(f"addvl %[{_at('w', panel)}], %[{_at('w', panel)}], #{b.words * b.unrolled}")
        lines.append(f"add %[{_at('d', panel)}], %[{_at('d', panel)}], #{2 * SIDE * b.unrolled}")
    return lines


def _stores(b: StreamRow) -> list[str]:
    predicates = ["p0"] * (b.panels - 1) + ["p1"]
    return [f"st1w {{z{28 + v}.s}}, {each}, [%[y], #{v}, mul vl]" for v, each in enumerate(predicates)]


def _text(name: str, places: Sequence[str], numbers: Sequence[int]) -> list[str]:
    b = StreamRow(*numbers)
    together = name == MULTI_ROW and b.panels == PANELS
    lines = ["smstart", "ptrue p0.b", f"mov %[n], #{b.outputs}", "whilelt p1.s, xzr, %[n]"]
    for panel in range(1, b.panels):
        lines += [f"add %[{_at(each, panel)}], %[{_at(each, panel - 1)}], %[{each}p]" for each in "wd"]
    if together:
        lines += ["ptrue pn8.s", "mov w8, #0", "zero {za}"]
        lines += [f"dup z{_MASK}.b, #-16", f"dup z{_LEFT}.b, #4", f"dup z{_RIGHT}.s, #-4"] if b.bits == 4 else []
    else:
        lines += [f"addvl %[{_at('w', panel)}], %[{_at('w', panel)}], #8" for panel in range(b.panels)]
        lines += [f"dup z{28 + panel}.s, #0" for panel in range(b.panels)]
    lines += [f"mov %[n], #{b.groups // b.unrolled}", "1:"]
    for group in range(b.unrolled):
        lines += _row(group)
        if together:
            lines += _four_panels(b, group)
        else:
            lines += [line for panel in range(b.panels) for line in _panel(b, panel, group)]
    lines += [*_advance(b), "subs %[n], %[n], #1", "b.ne 1b"]
    lines += ["mova {z28.d-z31.d}, za.d[w8, 1, vgx4]"] if together else []
    more = [_at(each, panel) for each in "wd" for panel in range(1, b.panels)]
    written = [f'[{each}] "+&r"({LOCAL}{each})' for each in "wxdqy"]
    written += [f'[{each}] "=&r"({LOCAL}{each})' for each in (*more, "n")]
    strides = {"w": 4 * SIDE * b.words * b.groups, "d": 2 * SIDE * b.groups}
    return [
        "{",
        *(f"  char *{LOCAL}{each} = (char *)({place});" for each, place in zip("wxdqy", places, strict=True)),
        *(f"  char *{LOCAL}{each};" for each in more),
        f"  long {LOCAL}n;",
        "  __asm__ volatile(",
        f'    ".arch_extension {"sme2" if name == MULTI_ROW else "sme"}\\n"',
        *(f'    "{line}\\n"' for line in (*lines, *_stores(b), "smstop")),
        f"    : {', '.join(written)}",
        "    : " + ", ".join(f'[{each}p] "r"({stride}L)' for each, stride in strides.items()),
        f"    : {CLOBBERED});",
        "}",
    ]


def _assembly(name: str, condition: str, test: str, asked: str) -> Assembly:
    def text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
        return _text(name, (weights, inputs, *rest), numbers)

    return Assembly(condition, text, test=test, asks=asked)


ASSEMBLY = {
    ROW: _assembly(ROW, CONDITION, FLOATS_READY, asks(of_bytes=False)),
    MULTI_ROW: _assembly(MULTI_ROW, MULTI_CONDITION, READY, ASKS),
}
