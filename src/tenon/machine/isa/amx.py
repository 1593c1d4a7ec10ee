"""x86's AMX: products of tiles of up to 16 rows of 64 bytes, in eight registers of their own.

A tile of bf16 has 16 rows of 32 numbers of the left factor, or 16 pairs of rows by 16 columns of the right one, whose
pairs are words; f16 lies alike, and of bytes 64 numbers and fours.  ``tiles_begin`` says how large the tiles of the
registers are, and ``tiles_end`` gives them up.  Between these ``tile_bf16``, ``tile_f16``, ``tile_i8`` and ``tile_u8``
(left factors without sign) make a block of sums: from nothing, over all steps of a nest of loops, stored as rows of f32
or i32.

A step of bf16 or f16 adds the sum of the even products and that of the odd ones, each in order from zero, as TDPBF16PS
and TDPFP16PS do.  These take subnormal results for zeros, and TDPBF16PS subnormal operands, which the other forms keep.

Each factor of a product has one register, which the tiles of a step take in turn; where both factors have several
tiles, one of the right ones is loaded again for each further row of tiles, from the first cache.  Measured: while
another program runs on the core's second thread, a thread has some ten physical registers for the eight.  Where a block
uses all eight, loads wait for the products before them, and two by two tiles take 32 to 43 ns a product where six
registers take 20 to 21; where the core is not shared, both take 8 to 9.

Linux lets a process use the registers once it has asked to (ARCH_REQ_XCOMP_PERM), and refuses where a signal stack is
too small for them.  Kernels ask when the first of them runs, and compute by vectors where they are refused.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as iterations

from tenon.machine.isa.base import Assembly, ProductUnit, asked_once
from tenon.machine.isa.frame import LOCAL
from tenon.network.graph.dtype import DType

_TIME = 43.0
"""Measured on a Xeon of the fourth generation: 6.4 ns, where a multiply-add of a vector takes 0.148 ns."""

TILE_BF16 = ProductUnit("tile_bf16", DType.BF16, DType.BF16, DType.F32, (16, 16, 32), _TIME)
TILE_F16 = ProductUnit("tile_f16", DType.F16, DType.F16, DType.F32, (16, 16, 32), _TIME)
TILE_I8 = ProductUnit("tile_i8", DType.I8, DType.I8, DType.I32, (16, 16, 64), _TIME)
TILE_U8 = ProductUnit("tile_u8", DType.U8, DType.I8, DType.I32, (16, 16, 64), _TIME)

REGISTERS = 8
APIECE = 4
"""Most steps that have sums of their own: a register each."""
BEGIN, END = "tiles_begin", "tiles_end"
_PRODUCTS = {"tile_bf16": "tdpbf16ps", "tile_f16": "tdpfp16ps", "tile_i8": "tdpbssd", "tile_u8": "tdpbusd"}
_CONDITION = (
    "(defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) || "
    "defined(__AMXTILE__) && defined(__AMXBF16__) && defined(__AMXINT8__)) && defined(__linux__)"
)
"""Clang until version 14 has names of its own for the macros."""

_ASK = """\
long result = 158; /* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) */
__asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
if (result == 0) own = 1;"""
_READY = "\n".join(
    [
        f"#if {_CONDITION}",
        asked_once("tiles_ready", "1: the system lets this process use tiles, -1: it does not", _ASK),
        "#endif",
    ]
)


@dataclass(frozen=True)
class TileBlock:
    """The numbers of an instruction for a block of ``down x across`` tiles of sums, each of ``rows`` positions by 16
    channels.  A step multiplies ``words`` words of every position, which lie ``apart`` bytes after those of the
    position before; ``loops`` are (iterations, bytes from one to the next), outermost first.  Weights lie in the order
    of the steps, the tiles of a step side by side; those ``ahead`` bytes further on are prefetched, unless it is 0.
    Each step prefetches ``fetched`` lines of the next block's weights, those behind the place of one more operand.
    ``passing``: other positions are read before these are again, so that their lines need not stay in the first cache.

    With ``apiece`` the block is one tile, and each of at most ``APIECE`` steps has sums of its own, one behind the
    other: products of many steps are under way at once, as they are in different registers.
    """

    rows: int
    down: int
    across: int
    words: int
    apart: int = 0
    ahead: int = 0
    fetched: int = 0
    loops: tuple[tuple[int, int], ...] = ()
    apiece: bool = False
    passing: bool = False

    @classmethod
    def of(cls, numbers: Sequence[int]) -> TileBlock:
        """The inverse of ``numbers``."""
        rows, down, across, words, *rest = numbers
        apart, ahead, fetched, apiece, passing = rest[:5] or (0, 0, 0, 0, 0)
        loops = tuple(zip(rest[5::2], rest[6::2], strict=True))
        return cls(rows, down, across, words, apart, ahead, fetched, loops, bool(apiece), bool(passing))

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of ``tiles_begin``."""
        sizes = self.rows, self.down, self.across, self.words
        return (*sizes, 0, 0, 0, 1, 0) if self.apiece else sizes

    @property
    def numbers(self) -> tuple[int, ...]:
        sizes = self.rows, self.down, self.across, self.words
        rest = self.apart, self.ahead, self.fetched, int(self.apiece), int(self.passing)
        return (*sizes, *rest, *(n for loop in self.loops for n in loop))

    @property
    def sums(self) -> int:
        """How many tiles of sums it has: their registers are the first, those of a left and a right factor follow."""
        return APIECE if self.apiece else self.down * self.across

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(rows, bytes of a row) of every register in use."""
        return [*[(self.rows, 64)] * self.sums, (self.rows, 4 * self.words), (self.words, 64)]


def _begin(_weights: str, _inputs: str, _: Sequence[str], numbers: Sequence[int]) -> list[str]:
    shapes = TileBlock.of(numbers).shapes
    spare = REGISTERS - len(shapes)
    widths = [byte for _, width in shapes for byte in (width, 0)] + [0] * (2 * spare + 16)
    rows = [row for row, _ in shapes] + [0] * (spare + 8)
    table = ", ".join(map(str, [1, *[0] * 15, *widths, *rows]))
    return [
        "{",
        f"  static const uint8_t {LOCAL}shapes[64] __attribute__((aligned(64))) = {{{table}}};",
        f'  __asm__ volatile("ldtilecfg %0" : : "m"({LOCAL}shapes));',
        "}",
    ]


def _end(_weights: str, _inputs: str, _: Sequence[str], _numbers: Sequence[int]) -> list[str]:
    return ['__asm__ volatile("tilerelease" : : : "memory");']


def _products(product: str, weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """``rest``: the inputs of further rows of tiles, the sums, and what is prefetched."""
    block = TileBlock.of(numbers)
    if block.apiece:
        return _apiece(product, weights, inputs, rest[0], block)
    lefts, sums = [inputs, *rest[: block.down - 1]], rest[block.down - 1]
    nest = [(f"{LOCAL}{'abcdef'[i]}", n, step) for i, (n, step) in enumerate(block.loops) if n > 1]
    place = " + ".join(f"{name} * {step}" for name, _, step in nest) or "0"
    lines = [f"  const char *{LOCAL}w = (const char *)({weights});"]
    lines += [f"  const char *const {LOCAL}x{i} = (const char *)({left});" for i, left in enumerate(lefts)]
    lines += [f"  char *const {LOCAL}s = (char *)({sums});"]
    whole = math.prod(n for n, _ in block.loops) * block.across * block.words * 64
    lines += [f"  const char *{LOCAL}f = (const char *)({rest[-1]}) + {whole};"] if block.fetched else []
    lines += _assembly([f"tilezero %%tmm{i}" for i in range(block.sums)], [])
    lines += [f"  for (long {name} = 0; {name} < {n}; {name}++)" for name, n, _ in nest]
    tiles = [f'[x{i}] "r"({LOCAL}x{i} + {LOCAL}at)' for i in range(block.down)]
    strides = f'[apart] "r"({block.apart}L)', '[line] "r"(64L)'
    inside = [f"  const long {LOCAL}at = {place};"]
    moved = [f'[{name}] "r"({LOCAL}{name})' for name in ("w", "f")[: 1 + bool(block.fetched)]]
    inside += _assembly(_step(product, block), [*moved, *tiles, *strides])
    inside += [f"  {LOCAL}f += {64 * block.fetched};"] if block.fetched else []
    inside += [f"  {LOCAL}w += {block.across * block.words * 64};"]
    lines += ["  {", *(f"  {line}" for line in inside), "  }"]
    stores = [
        f"tilestored %%tmm{i * block.across + j}, {i * block.rows * block.across * 64 + 64 * j}(%[s],%[line],1)"
        for i in range(block.down)
        for j in range(block.across)
    ]
    lines += _assembly(stores, [f'[s] "r"({LOCAL}s)', f'[line] "r"({64 * block.across}L)'])
    return ["{", *lines, "}"]


def _apiece(product: str, weights: str, inputs: str, sums: str, block: TileBlock) -> list[str]:
    """Products of steps that have sums of their own.  They are stored last, as this waits for the products."""
    lines, stores, (left, right) = list[str](), list[str](), (block.sums, block.sums + 1)
    for number, steps in enumerate(iterations(*(range(n) for n, _ in block.loops))):
        place = sum(i * step for i, (_, step) in zip(steps, block.loops, strict=True))
        lines += [
            f"tilezero %%tmm{number}",
            f"tileloadd {number * block.words * 64}(%[w],%[line],1), %%tmm{right}",
            f"tileloadd {place}(%[x],%[apart],1), %%tmm{left}",
            f"{product} %%tmm{right}, %%tmm{left}, %%tmm{number}",
        ]
        stores.append(f"tilestored %%tmm{number}, {number * block.rows * 64}(%[s],%[line],1)")
    places = [f'[{name}] "r"({place})' for name, place in (("w", weights), ("x", inputs), ("s", sums))]
    strides = f'[apart] "r"({block.apart}L)', '[line] "r"(64L)'
    return ["{", *_assembly([*lines, *stores], [*places, *strides]), "}"]


def _step(product: str, block: TileBlock) -> list[str]:
    """A factor is loaded just before the first product that needs it.  Each row of tiles begins with the column that
    the one before ended with."""
    lines, (left, right), held = list[str](), (block.sums, block.sums + 1), -1
    if block.ahead:
        lines += [f"prefetcht0 {block.ahead + line}(%[w])" for line in range(0, block.across * block.words * 64, 64)]
    lines += [f"prefetcht1 {64 * line}(%[f])" for line in range(block.fetched)]
    load = "tileloaddt1" if block.passing else "tileloadd"
    for i in range(block.down):
        lines.append(f"{load} (%[x{i}],%[apart],1), %%tmm{left}")
        for j in range(block.across)[:: -1 if i % 2 else 1]:
            if j != held:
                lines.append(f"tileloadd {j * block.words * 64}(%[w],%[line],1), %%tmm{right}")
            lines.append(f"{product} %%tmm{right}, %%tmm{left}, %%tmm{i * block.across + j}")
            held = j
    return lines


def _assembly(lines: Sequence[str], operands: Sequence[str]) -> list[str]:
    text = "\\n".join(lines)
    return [f'  __asm__ volatile("{text}" : : {", ".join(operands)} : "memory");']


def _of(product: str) -> Assembly:
    def text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
        return _products(product, weights, inputs, rest, numbers)

    condition = f"{_CONDITION} && defined(__AMX_FP16__)" if product == "tdpfp16ps" else _CONDITION
    return Assembly(condition, text, test="tiles_ready", asks=_READY)


ASSEMBLY = {
    **{name: _of(product) for name, product in _PRODUCTS.items()},
    BEGIN: Assembly(_CONDITION, _begin, test="tiles_ready", asks=_READY),
    END: Assembly(_CONDITION, _end, test="tiles_ready", asks=_READY),
}
