"""Arm's SME2: products of activations in bytes by weights in blocks, of 16 rows by 16 or 32 outputs (``isa.sme2``).

``outer_multi_groups`` is ``outer_groups`` of ``isa.sme_groups`` with results in tiles, too: a group of vectors of the
array that holds all tiles, of which neighbours are 16 vectors apart, has every fourth row of one tile.  Four rows leave
a tile by one instruction and are added to results by another.  Sums of 16 outputs are in tile 0 and those of the next
16 in tile 1, their results in tiles 2 and 3; where the parts of a group have scales of their own, both have tiles for
the same 16 outputs, and tile 2 has what shifts add.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.isa.base import Assembly
from tenon.machine.isa.sme2 import ASKS, MULTI_CONDITION, READY, four, load, multi
from tenon.machine.isa.sme_groups import GROUPS, WORDS, OuterGroups, columns_of, groups_text

MULTI_GROUPS = multi(GROUPS)
_ROW, _TEMPORARY, _SECOND = 4, 8, 12
"""Vectors of scales of rows, of sums that are scaled, and of those of the second part."""
_SCALE, _FINE, _SHIFT = 24, 26, 28
"""Vectors of scales, of those of both parts, and of shifts; each of up to two."""
_LEAST, _MASK = 30, 31
"""Vectors of the exponent that makes a sixteenth of scales, and of the mask of the higher of two codes of 4 bits."""


def _result(b: OuterGroups, column: int) -> int:
    """The tile of results."""
    return 2 + column if b.parts == 1 else 3


def _place(row: int, tile: int) -> str:
    """Rows ``row``, + 4, + 8 and + 12 of a tile as vectors of the array."""
    first = 4 * row + tile
    return f"[{'w8' if first < 8 else 'w9'}, {first % 8}, vgx4]"


def _begin(b: OuterGroups) -> list[str]:
    lines = ["smstart", "ptrue p0.b", "ptrue pn8.s", f"mov %[n], #{b.rows}", "whilelt p1.s, xzr, %[n]"]
    for column, outputs in enumerate(columns_of(b)):
        lines += [f"mov %[n], #{outputs}", f"whilelt p{2 + column}.s, xzr, %[n]"]
    lines += ["mov w8, #0", "mov w9, #8", "zero {za}"]
    lines += [f"dup z{_LEAST}.s, #-4", f"dup z{_MASK}.b, #-16"] if b.bits == 4 else []
    return [*lines, *(_moved(b, "ld1w", "/z") if b.begun else [])]


def _moved(b: OuterGroups, name: str, ending: str) -> list[str]:
    """Results between memory and their tiles."""
    lines = ["mov %[n], %[y]"]
    for row in range(b.rows):
        lines += [f"mov w12, #{row}"] if row % 4 == 0 else []
        for column in range(len(columns_of(b))):
            at = "%[n]" if column == 0 else "%[n], %[side], lsl #2"
            lines.append(f"{name} {{za{_result(b, column)}h.s[w12, {row % 4}]}}, p{2 + column}{ending}, [{at}]")
        lines.append("add %[n], %[n], %[pitch]")
    return lines


def _products(b: OuterGroups) -> list[str]:
    width = len(columns_of(b))
    tiles = width if b.parts == 1 else b.parts + bool(b.shifts)
    lines = [f"zero {{{', '.join(f'za{tile}.s' for tile in range(tiles))}}}"]
    lines += load(0, WORDS, "x", 0)
    if b.bits:
        lines += [line for column in range(width) for line in _panel(b, column)]
    elif width == 2:
        lines += load(8, 8, "w", 0) + load(16, 8, "w", 8)
    else:
        lines += load(16, WORDS, "w", 0)
    for word in range(WORDS):
        for column in range(width):
            tile = column if b.parts == 1 else word * b.parts // WORDS
            weights = 8 + 8 * column + word if b.bits else (8 if width == 2 else 16) + word * width + column
            lines.append(f"smopa za{tile}.s, p0/m, p0/m, z{word}.b, z{weights}.b")
    if tiles > width and b.shifts:
        lines += [f"ld1w {{z{part}.s}}, p0/z, [%[t], #{part}, mul vl]" for part in range(b.parts)]
        lines += [f"ld1w {{z{2 + part}.s}}, p0/z, [%[m], #{1 + part}, mul vl]" for part in range(b.parts)]
        lines += [f"fmopa za2.s, p1/m, p0/m, z{part}.s, z{2 + part}.s" for part in range(b.parts)]
    return lines


def _panel(b: OuterGroups, column: int) -> list[str]:
    """The words of a group of a panel, from codes, in eight vectors."""
    first, address = 8 + 8 * column, "n" if column else "w"
    lines = ["add %[n], %[w], %[wp], lsl #2"] if column else []
    if b.bits == 8:
        return lines + load(first, WORDS, address, 0)
    lines += load(24, 4, address, 0)
    for i in range(4):
        lines.append(f"lsl z{first + 2 * i}.b, z{24 + i}.b, #4")
        lines.append(f"and z{first + 2 * i + 1}.d, z{24 + i}.d, z{_MASK}.d")
    return lines


def _scales(b: OuterGroups) -> list[str]:
    width, fours = len(columns_of(b)), range(-(-b.rows // 4))
    lines = [] if b.bits else load(_SCALE, width, "d", 0)
    for column in range(width if b.bits else 0):
        own = f"z{_SCALE + column}"
        lines.append(f"ld1h {{{own}.s}}, p0/z, [%[d]{', %[dp], lsl #1' if column else ''}]")
        lines.append(f"fcvt {own}.s, p0/m, {own}.h")
        lines += [f"fscale {own}.s, p0/m, {own}.s, z{_LEAST}.s"] if b.bits == 4 else []
    lines += [f"ld1rqw {{z{_ROW + i}.s}}, p0/z, [%[q], #{16 * i}]" for i in fours]
    lines += load(_FINE, b.parts, "f", 0) if b.parts > 1 else []
    if b.shifts:
        lines += load(_SHIFT, width, "m", 0)
        lines += [f"ld1rqw {{z{i}.s}}, p0/z, [%[t], #{16 * i}]" for i in fours] if b.parts == 1 else []
    return lines


def _rows(b: OuterGroups, row: int, column: int) -> list[str]:
    """Rows ``row``, + 4, + 8 and + 12, scaled and added to their results."""
    own, second = _TEMPORARY, _SECOND
    each = [k for k in range(4) if row + 4 * k < b.rows]
    array = f"{{z{own}.d-z{own + 3}.d}}"
    lines = [f"mova {array}, za.d{_place(row, column if b.parts == 1 else 0)}"]
    if b.parts > 1:
        lines.append(f"mova {{z{second}.d-z{second + 3}.d}}, za.d{_place(row, 1)}")
        lines += [f"mul z{own + k}.s, z{own + k}.s, z{_FINE}.s" for k in each]
        lines += [f"mla z{own + k}.s, p0/m, z{second + k}.s, z{_FINE + 1}.s" for k in each]
    lines.append(f"scvtf {four(own)}, {four(own)}")
    lines += [f"fmul z{own + k}.s, z{own + k}.s, z{_SCALE + column}.s" for k in each]
    if b.shifts and b.parts > 1:
        lines.append(f"mova {{z{second}.d-z{second + 3}.d}}, za.d{_place(row, 2)}")
        lines += [f"fmul z{second + k}.s, z{second + k}.s, z{_SHIFT}.s" for k in each]
        lines += [f"fsub z{own + k}.s, z{own + k}.s, z{second + k}.s" for k in each]
    elif b.shifts:
        lines += [f"fmul z{second + k}.s, z{_SHIFT + column}.s, z{k}.s[{row}]" for k in each]
        lines += [f"fadd z{own + k}.s, z{own + k}.s, z{second + k}.s" for k in each]
    lines += [f"fmul z{own + k}.s, z{own + k}.s, z{_ROW + k}.s[{row}]" for k in each]
    return [*lines, f"fadd za.s{_place(row, _result(b, column))}, {four(own)}"]


def _text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
    b = OuterGroups(*numbers)
    step = [*_products(b), *_scales(b)]
    for row in range(min(4, b.rows)):
        for column in range(len(columns_of(b))):
            step += _rows(b, row, column)
    return groups_text("sme2", b, (weights, inputs, *rest), (_begin(b), step, _moved(b, "st1w", "")))


ASSEMBLY = {MULTI_GROUPS: Assembly(MULTI_CONDITION, _text, test=READY, asks=ASKS)}
