"""NEON's products of activations in bytes by weights in blocks: up to four rows by up to four panels of four outputs.

``panel_dots`` (SDOT) and ``panel_blocks`` (SMMLA, of an even number of rows) multiply tiles over all groups of 32
elements: a group of activations stays in registers, and the weights of a panel are loaded, unpacked and multiplied by
all rows, panel after panel, so that sums take few registers; compilers compute many of them at the same time and spill
others.  The roundings are those of ``kernels.block_product``: products are not fused with additions.  Codes of 4 bits
are unpacked to bytes 16 times as large, and their sums are divided by 16 as they are converted to floats.

Source: Arm Architecture Reference Manual (DDI 0487), SDOT by element, SMMLA and SCVTF with fractional bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from tenon.machine.isa.base import Assembly
from tenon.machine.isa.frame import LOCAL

DOTS, BLOCKS = "panel_dots", "panel_blocks"
_LANES, _WORDS = 4, 8
_REGISTERS = 32


@dataclass(frozen=True)
class PanelGroups:
    """The numbers of an instruction for ``rows`` rows by ``panels`` panels, at most four each, and ``groups`` groups.

    Codes have ``bits`` bits, 4 or 8; the rows of results lie ``pitch`` bytes apart; ``ahead``: the weights of the next
    panels are prefetched.
    """

    rows: int
    panels: int
    groups: int
    bits: int
    pitch: int
    ahead: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return astuple(self)

    @property
    def strides(self) -> dict[str, int]:
        """Bytes between panels of words and of scales, and between rows of words, of scales and of results."""
        panel = self.groups * self.bits * _LANES * 4
        return {"w": panel, "d": 2 * self.groups * _LANES, "x": 4 * self.groups * _WORDS, "q": 4 * self.groups}


def fits(rows: int, panels: int, *, blocks: bool) -> bool:
    """Whether there is an instruction for so many rows and panels."""
    return 0 < rows <= 4 and 0 < panels <= (3 if rows > 2 else 4) and (rows % 2 == 0 or not blocks)


class _Tile:
    """The registers of a tile, and the lines of a group."""

    def __init__(self, b: PanelGroups) -> None:
        self.b = b
        self.x = list(range(2 * b.rows))
        self.results = [[_REGISTERS - 1 - r * b.panels - v for v in range(b.panels)] for r in range(b.rows)]
        self.together = b.panels if b.rows == 1 else 1  # panels, of which one row has a sum each
        first = len(self.x)
        self.sums = list(range(first, first + b.rows * self.together))
        self.row_scales = first + len(self.sums)
        self.mask = self.row_scales + 1
        self.free = list(range(self.mask + (b.bits == 4), _REGISTERS - b.rows * b.panels))

    def begin(self) -> list[str]:
        lines = [f"movi v{self.mask}.16b, #0xf0"] if self.b.bits == 4 else []
        lines += [f"movi v{each}.2d, #0" for row in self.results for each in row]
        for name, count in (("w", self.b.panels), ("d", self.b.panels), ("x", self.b.rows), ("q", self.b.rows)):
            lines += [f"add %[{_at(name, i)}], %[{_at(name, i - 1)}], %[{name}p]" for i in range(1, count)]
        return lines

    def row_scale(self) -> list[str]:
        lines = [f"ldr s{self.row_scales}, [%[q]], #4"]
        return lines + [f"ld1 {{v{self.row_scales}.s}}[{r}], [%[q{r}]], #4" for r in range(1, self.b.rows)]

    def prefetched(self) -> list[str]:
        if not self.b.ahead:
            return []
        lines = list[str]()
        for v in range(self.b.panels):
            lines += [f"prfm pldl2keep, [%[{_at('w', v)}], %[wa]]", f"prfm pldl2keep, [%[{_at('d', v)}], %[da]]"]
        return lines

    def dots(self) -> list[str]:
        """A group by dot products with words of activations."""
        b = self.b
        lines = [f"ldp q{self.x[2 * r]}, q{self.x[2 * r + 1]}, [%[{_at('x', r)}]], #32" for r in range(b.rows)]
        lines += self.row_scale()
        for first in range(0, b.panels, self.together):
            panels = range(first, first + self.together)
            lines += [f"movi v{each}.2d, #0" for each in self.sums]
            for word in range(0, _WORDS, 16 // b.bits):
                lines += self._words(panels, word)
            for i, v in enumerate(panels):
                lines += self._ended(v, self.sums[i * b.rows :][: b.rows], self.free[0])
        return lines

    def _words(self, panels: range, word: int) -> list[str]:
        """The products of the words that two vectors of each panel hold, from number ``word`` on."""
        held = [self.free[3 * i :][:3] for i in range(len(panels))]
        lines = [f"ldp q{a}, q{b}, [%[{_at('w', v)}]], #32" for v, (a, b, _) in zip(panels, held, strict=True)]
        for vector in (0, 1):
            if self.b.bits == 8:
                lines += self._multiplied([each[vector] for each in held], word + vector)
                continue
            for each in held:
                lines += [f"shl v{each[2]}.16b, v{each[vector]}.16b, #4"]
                lines += [f"and v{each[vector]}.16b, v{each[vector]}.16b, v{self.mask}.16b"]
            lines += self._multiplied([each[2] for each in held], word + 2 * vector)
            lines += self._multiplied([each[vector] for each in held], word + 2 * vector + 1)
        return lines

    def _multiplied(self, weights: Sequence[int], word: int) -> list[str]:
        """A word of all rows by that of some panels."""
        return [
            f"sdot v{self.sums[i * self.b.rows + r]}.4s, v{own}.16b, v{self.x[2 * r + word // 4]}.4b[{word % 4}]"
            for i, own in enumerate(weights)
            for r in range(self.b.rows)
        ]

    def blocks(self) -> list[str]:
        """A group by products of two rows by two outputs, every second word of four at a time."""
        b, held = self.b, self.free
        lines = list[str]()
        for two in range(b.rows // 2):
            for i in (0, 1):
                lines.append(f"ldp q{held[2 * i]}, q{held[2 * i + 1]}, [%[{_at('x', 2 * two + i)}]], #32")
            for i in range(4):
                pair = f"v{held[i // 2]}.4s, v{held[2 + i // 2]}.4s"
                lines.append(f"uzp{1 + i % 2} v{self.x[4 * two + i]}.4s, {pair}")
        lines += self.row_scale()
        for v in range(b.panels):
            lines += [f"movi v{each}.2d, #0" for each in self.sums]
            for four in (0, 1):
                lines += self._four(v, four)
            for two in range(b.rows // 2):
                pair = f"v{self.sums[2 * two]}.4s, v{self.sums[2 * two + 1]}.4s"
                lines += [f"uzp{1 + i} v{held[2 * two + i]}.4s, {pair}" for i in (0, 1)]
            lines += self._ended(v, held[: b.rows], held[4])
        return lines

    def _four(self, panel: int, four: int) -> list[str]:
        """The products of four words of a panel."""
        a, b, c, d, e, f = self.free[:6]
        at = f"[%[{_at('w', panel)}]], #32"
        if self.b.bits == 8:
            lines = [f"ldp q{a}, q{b}, {at}", f"ldp q{c}, q{d}, {at}"]
            lines += [f"zip1 v{e}.4s, v{a}.4s, v{c}.4s", f"zip1 v{f}.4s, v{b}.4s, v{d}.4s"]
            lines += [f"zip2 v{a}.4s, v{a}.4s, v{c}.4s", f"zip2 v{b}.4s, v{b}.4s, v{d}.4s"]
            return [*lines, *self._block((e, f), 0, four), *self._block((a, b), 1, four)]
        lines = [f"ldp q{a}, q{b}, {at}", f"zip1 v{c}.4s, v{a}.4s, v{b}.4s", f"zip2 v{d}.4s, v{a}.4s, v{b}.4s"]
        for low, both in ((e, c), (f, d)):
            lines += [f"shl v{low}.16b, v{both}.16b, #4", f"and v{both}.16b, v{both}.16b, v{self.mask}.16b"]
        return [*lines, *self._block((e, c), 0, four), *self._block((f, d), 1, four)]

    def _block(self, weights: Sequence[int], half: int, four: int) -> list[str]:
        """Two vectors of two outputs by all rows."""
        return [
            f"smmla v{self.sums[2 * two + half]}.4s, v{own}.16b, v{self.x[4 * two + 2 * four + i]}.16b"
            for i, own in enumerate(weights)
            for two in range(self.b.rows // 2)
        ]

    def _ended(self, panel: int, sums: Sequence[int], scale: int) -> list[str]:
        """The sums of all rows, scaled and added to the results of a panel."""
        lines = [f"ldr d{scale}, [%[{_at('d', panel)}]], #8", f"fcvtl v{scale}.4s, v{scale}.4h"]
        part = ", #4" if self.b.bits == 4 else ""
        lines += [f"scvtf v{own}.4s, v{own}.4s{part}" for own in sums]
        lines += [f"fmul v{own}.4s, v{own}.4s, v{scale}.4s" for own in sums]
        lines += [f"fmul v{own}.4s, v{own}.4s, v{self.row_scales}.s[{r}]" for r, own in enumerate(sums)]
        results = [row[panel] for row in self.results]
        return [*lines, *(f"fadd v{to}.4s, v{to}.4s, v{own}.4s" for to, own in zip(results, sums, strict=True))]

    def stores(self) -> list[str]:
        lines = list[str]()
        for r, row in enumerate(self.results):
            lines += ["add %[y], %[y], %[yp]"] if r else []
            lines += [f"str q{own}, [%[y], #{16 * v}]" for v, own in enumerate(row)]
        return lines


def _at(name: str, number: int) -> str:
    """The pointer to a row or panel of an operand."""
    return f"{name}{number}" if number else name


def _text(name: str, places: Sequence[str], numbers: Sequence[int]) -> list[str]:
    b = PanelGroups(*numbers)
    tile = _Tile(b)
    step = tile.dots() if name == DOTS else tile.blocks()
    loop = [f"mov %[n], #{b.groups}", "1:", *tile.prefetched(), *step, "subs %[n], %[n], #1", "b.ne 1b"]
    counts = {"w": b.panels, "x": b.rows, "d": b.panels, "q": b.rows, "y": 1}
    more = [_at(each, i) for each, count in counts.items() for i in range(1, count)]
    given = {f"{each}p": stride for each, stride in (b.strides | {"y": b.pitch}).items()}
    given |= {f"{each}a": b.panels * b.strides[each] for each in "wd"} if b.ahead else {}
    pointers = ", ".join(f'[{each}] "+&r"({LOCAL}{each})' for each in counts)
    written = ", ".join(f'[{each}] "=&r"({LOCAL}{each})' for each in (*more, "n"))
    return [
        "{",
        *(f"  char *{LOCAL}{each} = (char *)({place});" for each, place in zip(counts, places, strict=True)),
        *(f"  char *{LOCAL}{each};" for each in more),
        f"  long {LOCAL}n;",
        "  __asm__ volatile(",
        *(f'    "{line}\\n"' for line in (*tile.begin(), *loop, *tile.stores())),
        f"    : {pointers},",
        f"      {written}",
        "    : " + ", ".join(f'[{each}] "r"({value}L)' for each, value in given.items()),
        '    : "cc", "memory", ' + ", ".join(f'"v{i}"' for i in range(_REGISTERS)) + ");",
        "}",
    ]


def _assembly(name: str, feature: str) -> Assembly:
    def text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
        return _text(name, (weights, inputs, *rest), numbers)

    return Assembly(f"defined(__GNUC__) && defined(__aarch64__) && defined(__ARM_FEATURE_{feature})", text)


ASSEMBLY = {DOTS: _assembly(DOTS, "DOTPROD"), BLOCKS: _assembly(BLOCKS, "MATMUL_INT8")}
