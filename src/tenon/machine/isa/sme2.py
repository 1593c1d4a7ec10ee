"""Arm's SME2: the outer products of ``isa.sme``, whose vectors are loaded, taken out of tiles and clamped in fours.

The instructions are those of ``isa.sme`` with other names, numbers and results to the bit the same.  Bytes are rounded
to whole numbers and narrowed by instructions for that, where SME adds a number that has no fraction.

Kernels ask for vectors of 512 bits and one right product of bytes as those of SME do, and read the version of SME from
ID_AA64SMFR0_EL1, which Linux lets every process do; they compute by NEON where it is not 2.
Source: Arm Architecture Reference Manual, The Scalable Matrix Extension, version 2 (DDI 0616 B and later).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tenon.machine.isa.base import Assembly, ProductUnit
from tenon.machine.isa.sme import (
    BYTES_READY,
    CONDITION,
    FACTOR,
    HIGH,
    INFINITE,
    LOW,
    ONES,
    OUTER_BF16,
    OUTER_F32,
    OUTER_I8,
    OUTER_U8,
    PRODUCTS,
    SIDE,
    OuterBlock,
    OuterEnds,
    OuterWriter,
    Product,
    asks,
    begin,
    block_text,
    rows_of_results,
    spread,
    stored_row,
)
from tenon.network.graph.dtype import DType


def _unit(unit: ProductUnit) -> ProductUnit:
    return replace(unit, operation=multi(unit.operation))


def multi(operation: str) -> str:
    """The name of an instruction of SME, as one of SME2."""
    return operation.replace("outer_", "outer_multi_")


OUTER_MULTI = tuple(_unit(unit) for unit in (OUTER_F32, OUTER_BF16, OUTER_I8, OUTER_U8))

READY = "outer_multi_ready"
_ASKS = f"""\
#if {CONDITION}
static int {READY}_asked; /* 1: SME of version 2 or later, -1: not */
static inline int {READY}(void) {{
  int answer = __atomic_load_n(&{READY}_asked, __ATOMIC_RELAXED);
  if (!answer) {{
    int own = -1;
    if ({BYTES_READY}()) {{
      uint64_t features;
      __asm__("mrs %0, S3_0_C0_C4_5" : "=r"(features)); /* ID_AA64SMFR0_EL1 */
      own = (features >> 56 & 15) ? 1 : -1; /* SMEver */
    }}
    /* of threads that ask at the same time, one decides for all */
    if (__atomic_compare_exchange_n(&{READY}_asked, &answer, own, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) answer = own;
  }}
  return answer > 0;
}}
#endif"""

ASKS = f"{asks(of_bytes=True)}\n{_ASKS}"
MULTI_CONDITION = f"{CONDITION} && defined(__clang__)"
"""GCC 12's assembler does not know these instructions."""


def load(first: int, count: int, address: str, at: int) -> list[str]:
    """Vectors z(first) and on of words at an address, from the ``at``-th vector on, in as few loads as can be."""
    lines = list[str]()
    while count:
        n = next(n for n in (4, 2, 1) if n <= count and first % n == 0 and at % n == 0)
        registers = f"z{first}.s" if n == 1 else f"z{first}.s-z{first + n - 1}.s"
        predicate = "p0/z" if n == 1 else "pn8/z"
        lines.append(f"ld1w {{{registers}}}, {predicate}, [%[{address}], #{at}, mul vl]")
        first, count, at = first + n, count - n, at + n
    return lines


def four(first: int) -> str:
    """A list of four vectors."""
    return f"{{z{first}.s-z{first + 3}.s}}"


def _begin(block: OuterBlock, sums: DType) -> list[str]:
    smstart, *rest = begin(block, sums)
    return [smstart, "ptrue pn8.s", *rest]


def _step(block: OuterBlock, product: Product) -> list[str]:
    """As SME's, with weights from z16 on."""
    name, element = product
    words = "ld1w" if block.spread == 1 else f"ld{block.spread}w"
    lines = []
    for i in range(block.down):
        registers = ", ".join(f"z{i * block.spread + k}.s" for k in range(block.spread))
        lines.append(f"{words} {{{registers}}}, {block.columns(i)}/z, [%[x{i}], %[at], lsl #2]")
    lines += load(SIDE, block.vectors, "w", -8)
    for q in range(block.words):
        for i in range(block.down):
            for j in range(block.across):
                weights, x = 16 + j * block.words + q, i * block.spread + q
                into = f"za{block.tile(i, j)}.s, p0/m, {block.columns(i)}/m"
                lines.append(f"{name} {into}, z{weights}.{element}, z{x}.{element}")
    return [*lines, f"addvl %[w], %[w], #{block.vectors}"]


def _steps(block: OuterBlock, product: Product, count: int) -> list[str]:
    """The loop over vectors of positions that lie one after the other.  What lies beyond the positions of the last tile
    is loaded, too, from the same rows, and not multiplied."""
    (name, element), (turns,) = product, [n for n, _ in block.loops if n > 1]
    lines = ["mov %[at], %[x0]", f"mov %[turn0], #{turns // count}", "1:"]
    lines += load(0, count * block.down, "at", 0) + load(SIDE, count * block.across, "w", -8)
    for step in range(count):
        for i in range(block.down):
            for j in range(block.across):
                into = f"za{block.tile(i, j)}.s, p0/m, {block.columns(i)}/m"
                weights, x = 16 + step * block.across + j, step * block.down + i
                lines.append(f"{name} {into}, z{weights}.{element}, z{x}.{element}")
    lines += [f"addvl %[at], %[at], #{count * block.down}", f"addvl %[w], %[w], #{count * block.across}"]
    return [*lines, "subs %[turn0], %[turn0], #1", "b.ne 1b"]


def _stores(block: OuterBlock) -> list[str]:
    """As SME's, four rows of a tile at a time."""
    lines, stored = list[str](), 0
    for i in range(block.down):
        for j in range(block.across):
            for first in range(0, SIDE, 4):
                lines += [f"mov w12, #{first}", f"mova {four(0)}, za{block.tile(i, j)}h.s[w12, 0:3]"]
                if stored == 8:
                    lines += ["addvl %[s], %[s], #31", "addvl %[s], %[s], #1"]
                    stored = 0
                lines.append(f"st4w {{z0.s, z1.s, z2.s, z3.s}}, {block.columns(i)}, [%[s], #{4 * stored}, mul vl]")
                stored += 1
    return lines


_LOW, _HIGH, _ZERO, _FACTOR, _OWN = 12, 13, 14, 8, 16
"""Vectors of bounds and of the zero point, of factors from one on, and of sums."""


def _results(block: OuterBlock, ends: OuterEnds) -> list[str]:
    """The vectors of the results of some fours of channels are z0 and so on, and are stored by turns."""
    if ends.in_rows:
        return rows_of_results(block, ends, _row)
    count = ends.fours * ends.words
    store = f"st{count}w" if count > 1 else "st1w"
    registers = ", ".join(f"z{k}.s" for k in range(count))
    lines = [*spread(_LOW, ends.low), *spread(_HIGH, ends.high)]
    if ends.words == 1:
        lines += spread(_ZERO, ends.zero & 0xFFFFFFFF) if ends.zero else []
        lines += [f"ld1rw {{z{_FACTOR}.s}}, p0/z, [%[q]]"] if ends.single else []
    for i in range(block.down):
        lines.append(f"mov %[s], %[y{i}]")
        for channel in range(0, block.across * SIDE, 4 * ends.fours):
            for number in range(ends.fours):
                lines += _four(block, ends, i, channel + 4 * number, number * ends.words)
            lines.append(f"{store} {{{registers}}}, {block.columns(i)}, [%[s]]")
            lines.append("add %[s], %[s], %[plane]")
    return lines


def _narrowing(ends: OuterEnds) -> str:
    """The instruction that makes bytes of clamped whole numbers: with a sign where some are below zero."""
    (least,) = np.array([ends.low], np.uint32).view(np.float32)
    return "sqcvtn" if float(least) + ends.zero < 0 else "uqcvtn"


def _four(block: OuterBlock, ends: OuterEnds, i: int, channel: int, into: int) -> list[str]:
    """The results of four channels of a tile of positions, from vector ``into`` on."""
    own = into if ends.words == 4 else _OWN
    all_four, tile = four(own), block.tile(i, channel // SIDE)
    lines = [f"mov w12, #{channel % SIDE}", f"mova {all_four}, za{tile}h.s[w12, 0:3]"]
    if ends.words == 1:
        lines.append(f"scvtf {all_four}, {all_four}")
        if not ends.single:
            lines += [f"ld1rw {{z{_FACTOR + k}.s}}, p0/z, [%[q], #{4 * (channel + k)}]" for k in range(4)]
        lines += [f"fmul z{own + k}.s, z{own + k}.s, z{_FACTOR + (0 if ends.single else k)}.s" for k in range(4)]
    for name, bound, bits, none in (("fmax", _LOW, ends.low, INFINITE[0]), ("fmin", _HIGH, ends.high, INFINITE[1])):
        lines += [f"{name} {all_four}, {all_four}, z{bound}.s"] if bits != none else []
    if ends.words == 1:
        lines += [f"frintn {all_four}, {all_four}", f"fcvtzs {all_four}, {all_four}"]
        lines += [f"add {all_four}, {all_four}, z{_ZERO}.s"] if ends.zero else []
        lines.append(f"{_narrowing(ends)} z{into}.b, {all_four}")
    elif ends.words == 2:
        lines += [f"bfcvtn z{into + k}.h, {{z{own + 2 * k}.s-z{own + 2 * k + 1}.s}}" for k in (0, 1)]
    return lines


def _row(ends: OuterEnds, tile: int, first: int, count: int) -> list[str]:
    """Four columns of a tile at a time, of which ``count`` are stored."""
    all_four = four(0)
    lines = [f"mova {all_four}, za{tile}v.s[w12, 0:3]"]
    if ends.words == 1:
        lines.append(f"scvtf {all_four}, {all_four}")
        lines += [f"fmul z{k}.s, z{k}.s, z{FACTOR}.s" for k in range(count)]
    for name, bound, bits, none in (("fmax", LOW, ends.low, INFINITE[0]), ("fmin", HIGH, ends.high, INFINITE[1])):
        lines += [f"{name} z{k}.s, p0/m, z{k}.s, z{bound}.s" for k in range(count) if bits != none]
    if ends.words == 1:
        lines += [f"fadd z{k}.s, z{k}.s, z{ONES}.s" for k in range(count)]
        lines += [f"add z{k}.b, z{k}.b, #{ends.zero & 255}" for k in range(count) if ends.zero & 255]
    elif ends.words == 2:
        lines += [f"bfcvt z{k}.h, p0/m, z{k}.s" for k in range(count)]
    return [*lines, *(line for k in range(count) for line in stored_row(ends, k))]


_WRITER = OuterWriter("sme2", _begin, _step, 16, _steps, _stores, _results)


def _of(product: Product) -> Assembly:
    def text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
        return block_text(_WRITER, product, weights, inputs, rest, numbers)

    return Assembly(MULTI_CONDITION, text, test=READY, asks=ASKS)


ASSEMBLY = {multi(name): _of(product) for name, product in PRODUCTS.items()}
