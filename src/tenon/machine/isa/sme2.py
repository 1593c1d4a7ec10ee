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

from tenon.machine.isa.base import Assembly, ProductUnit, asked_once
from tenon.machine.isa.sme import (
    BYTES_READY,
    CONDITION,
    OUTER_BF16,
    OUTER_F32,
    OUTER_I8,
    OUTER_U8,
    PRODUCTS,
    OuterWriter,
    Product,
    asks,
    begin,
    block_text,
)
from tenon.machine.isa.sme_blocks import INFINITE, SIDE, OuterBlock, OuterEnds, factor_of, finished_row, spread
from tenon.network.graph.dtype import DType


def _unit(unit: ProductUnit) -> ProductUnit:
    return replace(unit, operation=multi(unit.operation))


def multi(operation: str) -> str:
    """The name of an instruction of SME, as one of SME2."""
    return operation.replace("outer_", "outer_multi_")


OUTER_MULTI = tuple(_unit(unit) for unit in (OUTER_F32, OUTER_BF16, OUTER_I8, OUTER_U8))

READY = "outer_multi_ready"
_ASK = f"""\
if ({BYTES_READY}()) {{
  uint64_t features;
  __asm__("mrs %0, S3_0_C0_C4_5" : "=r"(features)); /* ID_AA64SMFR0_EL1 */
  if (features >> 56 & 15) own = 1; /* SMEver */
}}"""
_ASKS = asked_once(READY, "1: SME of version 2 or later, -1: not", _ASK)

ASKS = f"{asks(of_bytes=True)}\n#if {CONDITION}\n{_ASKS}\n#endif"
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


def _weights(first: int, count: int) -> list[str]:
    return load(SIDE + first, count, "w", -8)


def _positions(block: OuterBlock, count: int) -> list[str]:
    """Positions beyond those of the last tile are loaded, too, from the same rows, and not multiplied."""
    return load(0, count * block.down, "at", 0)


def _sums(tile: int) -> list[str]:
    return [f"mova {four(0)}, za{tile}h.s[w12, 0:3]"]


_LOW, _HIGH, _ZERO, _FACTOR, _OWN = 12, 13, 14, 8, 16
"""Vectors of bounds and of the zero point, of factors from one on, and of sums."""


def _constants(ends: OuterEnds) -> list[str]:
    lines = [*spread(_LOW, ends.low), *spread(_HIGH, ends.high)]
    if ends.words == 1:
        lines += spread(_ZERO, ends.zero & 0xFFFFFFFF) if ends.zero else []
        lines += factor_of(ends, _FACTOR) if ends.single else []
    return [*lines, *(spread(_FACTOR, ends.factor) if ends.scaled else [])]


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
    elif ends.scaled:
        lines += [f"fmul z{own + k}.s, z{own + k}.s, z{_FACTOR}.s" for k in range(4)]
    for name, bound, bits, none in (("fmax", _LOW, ends.low, INFINITE[0]), ("fmin", _HIGH, ends.high, INFINITE[1])):
        lines += [f"{name} {all_four}, {all_four}, z{bound}.s"] if bits != none else []
    if ends.words == 1:
        lines += [f"frintn {all_four}, {all_four}", f"fcvtzs {all_four}, {all_four}"]
        lines += [f"add {all_four}, {all_four}, z{_ZERO}.s"] if ends.zero else []
        lines.append(f"{_narrowing(ends)} z{into}.b, {all_four}")
    elif ends.words == 2:
        lines += [f"bfcvtn z{into + k}.h, {{z{own + 2 * k}.s-z{own + 2 * k + 1}.s}}" for k in (0, 1)]
    return lines


def _row(ends: OuterEnds, tile: int, count: int, predicate: str) -> list[str]:
    """Four columns of a tile at a time, of which ``count`` are stored."""
    lines = [f"mova {four(0)}, za{tile}v.s[w12, 0:3]"]
    lines += [f"scvtf {four(0)}, {four(0)}"] if ends.words == 1 else []
    return [*lines, *finished_row(ends, count, predicate)]


_WRITER = OuterWriter("sme2", _begin, _weights, _positions, 16, _sums, _constants, _four, _row)


def _of(product: Product) -> Assembly:
    def text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
        return block_text(_WRITER, product, weights, inputs, rest, numbers)

    return Assembly(MULTI_CONDITION, text, test=READY, asks=ASKS)


ASSEMBLY = {multi(name): _of(product) for name, product in PRODUCTS.items()}
