"""Arm's SME: rows of bytes as rows of words of four bytes each, in the streaming mode.

``outer_fours`` reads four rows of a matrix at a time and stores a row of words, whose bytes are of these rows: the
weights of outer products of bytes (``isa.sme``).  Source: as of ``isa.sme``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tenon.machine.isa.base import Assembly
from tenon.machine.isa.frame import LOCAL
from tenon.machine.isa.sme import CLOBBERED, CONDITION, FLOATS_READY, asks
from tenon.machine.isa.sme_blocks import SIDE

FOURS = "outer_fours"
_BYTES = 4 * SIDE
"""Bytes of a vector."""


@dataclass(frozen=True)
class OuterFours:
    """The numbers of ``outer_fours`` for ``words`` rows of words of ``columns`` columns each, of rows of bytes that lie
    one after the other.  The last row of words has ``rows`` rows, 1 to 4, and zeros; the highest bits of bytes are
    turned over where they have no sign (``flipped``)."""

    words: int
    columns: int
    rows: int
    flipped: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return astuple(self)


def _columns(b: OuterFours, rows: int, left: int) -> list[str]:
    """The words of some columns, at most a vector of bytes, from ``at`` on."""
    predicate = "p0" if left == _BYTES else "p1"
    lines = [f"ld1b {{z{i}.b}}, {predicate}/z, [%[x{i}], %[at]]" for i in range(rows)]
    lines += [f"eor z{i}.b, z{i}.b, #0x80" for i in range(rows if b.flipped else 0)]
    lines += [f"dup z{i}.b, #0" for i in range(rows, 4)]
    lines += [f"zip{1 + half} z{4 + 2 * half + i}.b, z{i}.b, z{2 + i}.b" for half in (0, 1) for i in (0, 1)]
    for vector in range(-(-left // SIDE)):
        half, number = divmod(vector, 2)
        lines.append(f"zip{1 + number} z{8 + vector}.b, z{4 + 2 * half}.b, z{5 + 2 * half}.b")
        whole = left - vector * SIDE >= SIDE
        lines.append(f"st1w {{z{8 + vector}.s}}, {'p0' if whole else 'p2'}, [%[y], #{vector}, mul vl]")
    return [*lines, f"add %[y], %[y], #{4 * left}"]


def _row(b: OuterFours, rows: int, label: int) -> list[str]:
    """A row of words."""
    whole, left = divmod(b.columns, _BYTES)
    lines = ["mov %[at], #0"]
    if whole:
        step = [*_columns(b, rows, _BYTES), f"add %[at], %[at], #{_BYTES}", "subs %[turn], %[turn], #1"]
        lines += [f"mov %[turn], #{whole}", f"{label}:", *step, f"b.ne {label}b"]
    return [*lines, *(_columns(b, rows, left) if left else [])]


def _text(into: str, inputs: str, _: Sequence[str], numbers: Sequence[int]) -> list[str]:
    b = OuterFours(*numbers)
    left, whole = b.columns % _BYTES, b.words if b.rows == 4 else b.words - 1
    lines = ["smstart", "ptrue p0.b", f"mov %[n], #{left}", "whilelt p1.b, xzr, %[n]"]
    lines += [f"mov %[n], #{left % SIDE}", "whilelt p2.s, xzr, %[n]"]
    lines += [f"add %[x{i}], %[x{i - 1}], %[pitch]" for i in range(1, 4)]
    if whole:
        moved = [f"add %[x{i}], %[x{i}], %[pitch], lsl #2" for i in range(4)]
        lines += [f"mov %[n], #{whole}", "1:", *_row(b, 4, 2), *moved, "subs %[n], %[n], #1", "b.ne 1b"]
    lines += _row(b, b.rows, 3) if b.rows < 4 else []
    names = ("x1", "x2", "x3", "at", "n", "turn")
    written = [f'[y] "+&r"({LOCAL}y)', f'[x0] "+&r"({LOCAL}x0)', *(f'[{each}] "=&r"({LOCAL}{each})' for each in names)]
    return [
        "{",
        f"  char *{LOCAL}y = (char *)({into});",
        f"  const char *{LOCAL}x0 = (const char *)({inputs}), *{LOCAL}x1, *{LOCAL}x2, *{LOCAL}x3;",
        f"  long {LOCAL}at, {LOCAL}n, {LOCAL}turn;",
        "  __asm__ volatile(",
        '    ".arch_extension sme\\n"',
        *(f'    "{line}\\n"' for line in (*lines, "smstop")),
        f"    : {', '.join(written)}",
        f'    : [pitch] "r"({b.columns}L)',
        f"    : {CLOBBERED});",
        "}",
    ]


ASSEMBLY = {FOURS: Assembly(CONDITION, _text, test=FLOATS_READY, asks=asks(of_bytes=False))}
