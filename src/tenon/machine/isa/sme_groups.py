"""Arm's SME: products of activations in bytes by weights in blocks, of 16 rows by 16 outputs (``isa.sme``).

``outer_groups`` sums the products of a group of 32 elements in a tile, takes the sums out row by row, scales them and
adds them to results in vectors, one for each row, group after group.  The roundings are those of
``kernels.block_product``: products are not fused with additions.  Scales of outputs are vectors; those of rows are
lanes of vectors, four to each 128 bits, which a multiplication takes one of.

Vectors of words, of a row or output each, lie side by side: of rows as ``outer_turn`` leaves them.  The streaming mode
begins and ends with a tile of results.  Source: as of ``isa.sme``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tenon.machine.isa.base import Assembly
from tenon.machine.isa.frame import LOCAL
from tenon.machine.isa.sme import BYTES_READY, CLOBBERED, CONDITION, asks
from tenon.machine.isa.sme_blocks import SIDE

GROUPS = "outer_groups"
WORDS = 8
"""Words of a group."""
_SCALE, _FINE, _SHIFT, _TERM = 12, 13, 15, 14
"""Vectors of scales, of those of both parts, of shifts, and of what shifts add."""


@dataclass(frozen=True)
class OuterGroups:
    """The numbers of ``outer_groups`` for ``rows`` rows by ``outputs`` outputs, of ``groups`` groups: at most 16 each,
    of SME2 up to 32 outputs of groups of one part.

    A group has ``parts`` parts, 1 or 2, which have scales of their own where there are two; ``shifts``: results also
    get the sums of activations times shifts, which is subtracted where these are of two parts.  ``begun``: results
    begin with what is stored instead of zero.  The rows of results lie ``pitch`` bytes apart.  ``bits``: weights are
    codes of so many bits as they lie in panels of sixteen outputs, with scales in f16; 0: bytes, with scales in f32.
    """

    rows: int
    outputs: int
    groups: int
    parts: int
    shifts: int
    begun: int
    pitch: int
    bits: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        return astuple(self)

    @property
    def strides(self) -> dict[str, int]:
        """Words of codes and halves of scales between two panels."""
        return {"wp": SIDE * self.bits * self.groups, "dp": SIDE * self.groups}


def _begin(b: OuterGroups) -> list[str]:
    lines = ["smstart", "ptrue p0.b"]
    for predicate, count in (("p1", b.rows), ("p2", b.outputs)):
        lines += [f"mov %[n], #{count}", f"whilelt {predicate}.s, xzr, %[n]"]
    if not b.begun:
        return [*lines, *(f"dup z{SIDE + row}.s, #0" for row in range(b.rows))]
    lines.append("mov %[n], %[y]")
    for row in range(b.rows):
        lines += [f"ld1w {{z{SIDE + row}.s}}, p2/z, [%[n]]", "add %[n], %[n], %[pitch]"]
    return lines


def _products(b: OuterGroups) -> list[str]:
    """The sums of both parts in tiles of their own, and what shifts of two parts add in another."""
    tiles = b.parts + (b.shifts and b.parts > 1)
    lines = [f"zero {{{', '.join(f'za{tile}.s' for tile in range(tiles))}}}"]
    for word in range(WORDS):
        lines.append(f"ld1w {{z{WORDS + word}.s}}, p1/z, [%[x], #{word}, mul vl]")
        if b.bits != 4:
            lines.append(f"ld1w {{z{word}.s}}, p0/z, [%[w], #{word}, mul vl]")
        elif word % 2:
            lines.append(f"ld1w {{z{word}.s}}, p0/z, [%[w], #{word // 2}, mul vl]")
            lines.append(f"lsl z{word - 1}.b, z{word}.b, #4")
            lines.append(f"and z{word}.b, z{word}.b, #0xf0")
    lines += [f"smopa za{word * b.parts // WORDS}.s, p0/m, p0/m, z{WORDS + word}.b, z{word}.b" for word in range(WORDS)]
    if tiles > b.parts:
        for part in range(b.parts):
            lines.append(f"ld1w {{z{part}.s}}, p1/z, [%[t], #{part}, mul vl]")
            lines.append(f"ld1w {{z{2 + part}.s}}, p0/z, [%[m], #{1 + part}, mul vl]")
        lines += [f"fmopa za{b.parts}.s, p0/m, p0/m, z{part}.s, z{2 + part}.s" for part in range(b.parts)]
    return lines


def _scales(b: OuterGroups) -> list[str]:
    fours = range(-(-b.rows // 4))
    if b.bits:
        lines = [f"ld1h {{z{_SCALE}.s}}, p0/z, [%[d]]", f"fcvt z{_SCALE}.s, p0/m, z{_SCALE}.h"]
        sixteenth = f"fscale z{_SCALE}.s, p0/m, z{_SCALE}.s, z{_TERM}.s"
        lines += [f"dup z{_TERM}.s, #-4", sixteenth] if b.bits == 4 else []
    else:
        lines = [f"ld1w {{z{_SCALE}.s}}, p0/z, [%[d]]"]
    lines += [f"ld1rqw {{z{4 + i}.s}}, p0/z, [%[q], #{16 * i}]" for i in fours]
    if b.parts > 1:
        lines += [f"ld1w {{z{_FINE + part}.s}}, p0/z, [%[f], #{part}, mul vl]" for part in range(b.parts)]
    if b.shifts:
        lines.append(f"ld1w {{z{_SHIFT}.s}}, p0/z, [%[m]]")
        lines += [f"ld1rqw {{z{i}.s}}, p0/z, [%[t], #{16 * i}]" for i in fours] if b.parts == 1 else []
    return lines


def _rows(b: OuterGroups, first: int) -> list[str]:
    """The sums of up to four rows, scaled and added to their results."""
    rows = range(min(4, b.rows - first))
    lines = [f"mov w12, #{first}", *(f"mova z{8 + k}.s, p0/m, za0h.s[w12, {k}]" for k in rows)]
    if b.parts > 1:
        lines += [f"mova z{k}.s, p0/m, za1h.s[w12, {k}]" for k in rows]
        lines += [f"mul z{8 + k}.s, z{8 + k}.s, z{_FINE}.s" for k in rows]
        lines += [f"mla z{8 + k}.s, p0/m, z{k}.s, z{_FINE + 1}.s" for k in rows]
    lines += [f"scvtf z{8 + k}.s, p0/m, z{8 + k}.s" for k in rows]
    lines += [f"fmul z{8 + k}.s, z{8 + k}.s, z{_SCALE}.s" for k in rows]
    if b.shifts and b.parts > 1:
        lines += [f"mova z{k}.s, p0/m, za{b.parts}h.s[w12, {k}]" for k in rows]
        lines += [f"fmul z{k}.s, z{k}.s, z{_SHIFT}.s" for k in rows]
        lines += [f"fsub z{8 + k}.s, z{8 + k}.s, z{k}.s" for k in rows]
    elif b.shifts:
        for k in rows:
            lines.append(f"fmul z{_TERM}.s, z{_SHIFT}.s, z{first // 4}.s[{k}]")
            lines.append(f"fadd z{8 + k}.s, z{8 + k}.s, z{_TERM}.s")
    lines += [f"fmul z{8 + k}.s, z{8 + k}.s, z{4 + first // 4}.s[{k}]" for k in rows]
    return [*lines, *(f"fadd z{SIDE + first + k}.s, z{SIDE + first + k}.s, z{8 + k}.s" for k in rows)]


def columns_of(b: OuterGroups) -> list[int]:
    """Outputs of each sixteen of a block."""
    return [min(SIDE, b.outputs - first) for first in range(0, b.outputs, SIDE)]


def _advance(b: OuterGroups) -> list[str]:
    width = len(columns_of(b))
    vectors = {"x": WORDS, "w": b.bits or WORDS * width, "q": 1} | ({} if b.bits else {"d": width})
    vectors |= {"f": b.parts} if b.parts > 1 else {}
    vectors |= {"m": 1 + b.parts if b.parts > 1 else width, "t": b.parts} if b.shifts else {}
    lines = [f"addvl %[{name}], %[{name}], #{count}" for name, count in vectors.items()]
    return [*lines, *([f"add %[d], %[d], #{2 * SIDE}"] if b.bits else [])]


def groups_text(
    extension: str, b: OuterGroups, places: Sequence[str], parts: tuple[list[str], list[str], list[str]]
) -> list[str]:
    """The assembly of an extension as a loop over groups: ``parts`` are lines ahead of it, for a group, and behind it.

    ``places``: weights and inputs; scales of outputs and of rows; those of parts where there are two; shifts, before
    those of their parts, and sums of rows where there are such; results.
    """
    names = ["w", "x", "d", "q", *(["f"] if b.parts > 1 else []), *(["m", "t"] if b.shifts else []), "y"]
    before, step, after = parts
    loop = [f"mov %[turn], #{b.groups}", "1:", *step, *_advance(b), "subs %[turn], %[turn], #1", "b.ne 1b"]
    written = [f'[{name}] "+&r"({LOCAL}{name})' for name in names]
    written += [f'[{name}] "=&r"({LOCAL}{name})' for name in ("n", "turn")]
    given = {"pitch": b.pitch, "side": SIDE} | (b.strides if b.bits else {})
    return [
        "{",
        *(f"  char *{LOCAL}{name} = (char *)({place});" for name, place in zip(names, places, strict=True)),
        f"  long {LOCAL}n, {LOCAL}turn;",
        "  __asm__ volatile(",
        f'    ".arch_extension {extension}\\n"',
        *(f'    "{line}\\n"' for line in (*before, *loop, *after, "smstop")),
        f"    : {', '.join(written)}",
        "    : " + ", ".join(f'[{name}] "r"({value}L)' for name, value in given.items()),
        f"    : {CLOBBERED});",
        "}",
    ]


def _text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
    b = OuterGroups(*numbers)
    step = [*_products(b), *_scales(b)]
    for first in range(0, b.rows, 4):
        step += _rows(b, first)
    stores = list[str]()
    for row in range(b.rows):
        stores += [f"st1w {{z{SIDE + row}.s}}, p2, [%[y]]", "add %[y], %[y], %[pitch]"]
    return groups_text("sme", b, (weights, inputs, *rest), (_begin(b), step, stores))


ASSEMBLY = {GROUPS: Assembly(CONDITION, _text, test=BYTES_READY, asks=asks(of_bytes=True))}
