"""Codes of weights in blocks as numbers in f32, without a conversion of each.

A code at bit ``p`` of a word, behind the exponent of 2**(23 - p), is the number 2**(23 - p) + code.  Times a scale,
less 2**(23 - p) times the scale, that is code times scale.  Both products are exact where 24 - p bits and those of the
scale are at most 24 together, so that all processors have the same bits, with fused multiply-adds and without.  Codes
of a word that one shift brings to such places share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Const, Expr, Type, bitcast, broadcast, op
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_packing import BlockPacking
from tenon.network.graph.types import F32, I32

_MANTISSA, _BIAS = 23, 127
_SCALE, _FINE = 11, 6
"""Bits of a scale in f16, and further ones of its product with one of 6 bits."""


@dataclass(frozen=True)
class CodePlace:
    """A code at bit ``start`` of a word, which is moved by ``shift`` bits, to the left where that is positive."""

    start: int
    shift: int

    @property
    def place(self) -> int:
        return self.start + self.shift

    @property
    def one(self) -> int:
        """The number that the bits before the code stand for."""
        return 1 << _MANTISSA - self.place


def code_places(width: int, least: int) -> list[CodePlace]:
    """Where the codes of ``width`` bits of a word go: to bit ``least`` or above, within the mantissa."""
    most, result = _MANTISSA - width, list[CodePlace]()
    for start in range(0, 32, width):
        shared = (each.shift for each in result if least <= start + each.shift <= most)
        result.append(CodePlace(start, next(shared, least - start)))
    return result


def least_place(p: BlockPacking) -> int:
    """The lowest bit that codes of a format may go to; 0 for formats whose codes are unpacked otherwise."""
    f = p.format
    least = _SCALE + (_FINE if f.fine else 0)
    plain = f.bits in (4, 8) and p.times == 1 and not f.zeros and not f.wide and f.fine in (0, GROUP)
    return least if plain and least <= _MANTISSA - f.bits else 0


@dataclass(frozen=True, eq=False)
class PlacedCodes:
    """Codes of a group times its scale, less the offset of codes times the scale."""

    k: Builder
    p: BlockPacking
    scale: Expr
    placed: list[CodePlace]
    subtracted: dict[int, Expr] = field(default_factory=dict)
    """By place what is subtracted from products."""

    @classmethod
    def of(cls, k: Builder, p: BlockPacking, scale: Expr) -> PlacedCodes:
        return cls(k, p, scale, code_places(p.format.bits, least_place(p)))

    def values(self, stored: Callable[[int], Expr], pair: int) -> Iterator[Expr]:
        """The products of the codes of two words of a group, in order; ``stored`` gives the words in memory."""
        halves = 8 // self.p.format.bits  # codes of 4 bits: the low halves of a word's bytes, then the high ones
        shifts = {at.shift for at in self.placed}
        for number in range(2 * pair // halves, 2 * (pair + 1) // halves):
            word = bitcast(stored(number), I32)
            moved = {shift: self._moved(word, shift) for shift in sorted(shifts)}
            for half in range(halves):
                for at in self.placed[half::halves]:
                    yield self._value(moved[at.shift], at)

    def _moved(self, word: Expr, shift: int) -> Expr:
        return self.k.let("c", word << shift if shift > 0 else word >> -shift) if shift else word

    def _value(self, word: Expr, at: CodePlace) -> Expr:
        f, signed = self.p.format, self.p.format.bits == 8 and self.p.signed
        exponent = _BIAS + _MANTISSA - at.place << _MANTISSA
        if at.place not in self.subtracted:
            less = at.one + (128 if signed else self.p.offset)
            product = op("mul_rounded", self.scale, broadcast(Const(float(less), Type(F32)), self.scale.type.lanes))
            self.subtracted[at.place] = self.k.let("d", product)
        bits = op("and", word, (1 << f.bits) - 1 << at.place)
        bits = op("xor", bits, exponent | 128 << at.place) if signed else op("or", bits, exponent)
        return bitcast(bits, F32) * self.scale - self.subtracted[at.place]
