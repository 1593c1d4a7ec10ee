"""Weights in blocks, rearranged when compiling: panels of as many rows as a vector has lanes, group after group.

A group is 32 elements of a row, 8 words of 4 bytes; the words of a panel's rows lie side by side and are one vector.
Array of 4 bits are two to a byte, of word 2i in the low half and of word 2i + 1 in the high half.  Array of 5 and 6
bits have their further bits in words behind these: bit i of a byte belongs to word i, and two bits at 2i to words i and
4 + i of two such words.  Bytes are in the order of elements on every processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernel_ir.build import Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, bitcast, op
from tenon.machine.kernels.block_formats import GROUP, BlockFormat, BlockParts, block_parts
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

WORDS = GROUP // 4
"""Words of a group."""


@dataclass(frozen=True)
class BlockPacking:
    """How rows of a format lie in memory: in panels of ``lanes`` rows; ``signed``: codes of 8 bits have a sign."""

    format: BlockFormat
    lanes: int
    signed: bool

    @property
    def stored_words(self) -> int:
        """Words of a group in memory."""
        return self.format.bits

    @property
    def offset(self) -> int:
        """The amount by which codes in memory are too large, besides zero points."""
        return 0 if self.format.bits == 8 and self.signed else self.format.offset

    @property
    def zero_type(self) -> DType:
        """The type of zero points."""
        return DType.I8 if self.format.bits == 8 and self.signed else DType.U8

    def panels(self, rows: int) -> int:
        """The panels of so many rows."""
        return -(-rows // self.lanes)

    def pack(self, data: Array) -> list[Array]:
        """The arrays of rows of blocks: codes u8 [panels, groups, words, lanes, 4], scales [panels, blocks, lanes],
        and further ones [panels, parts, lanes] as the format has them: zero points, shifts, fine scales and shifts."""
        parts = block_parts(self.format, data)
        zero = parts.zero
        if zero is not None and self.format.bits == 8 and self.signed:
            zero = zero ^ np.uint8(128)
        further = (parts.scale, zero, parts.shift, parts.fine, parts.fine_shift)
        return [self._codes(parts), *(self._panels(part) for part in further if part is not None)]

    def _panels(self, part: Array) -> Array:
        """[rows, ...] as [panels, ..., lanes], zeros for the rows that fill the last one."""
        rows = len(part)
        whole = np.zeros((self.panels(rows) * self.lanes, *part.shape[1:]), part.dtype)
        whole[:rows] = part
        return np.ascontiguousarray(np.moveaxis(whole.reshape(-1, self.lanes, *part.shape[1:]), 1, -1))

    def _codes(self, parts: BlockParts) -> Array:
        codes = parts.codes
        if self.format.bits == 8 and self.signed:
            codes = codes ^ np.uint8(128)
        words = codes.reshape(len(codes), -1, WORDS, 4)  # [rows, groups, words, bytes]
        if self.format.bits < 8:
            low = words & 15
            words = np.concatenate([low[:, :, ::2] | low[:, :, 1::2] << 4, *_further(words >> 4, self.format.bits)], 2)
        return np.ascontiguousarray(np.moveaxis(self._panels(words), -1, -2))


def _further(high: Array, bits: int) -> Sequence[Array]:
    """The bits above the lowest four of [rows, groups, 8, 4], as words [rows, groups, 1 or 2, 4]."""
    if bits == 4:
        return []
    width = bits - 4
    count = 8 // width
    shifted = high << (np.arange(WORDS, dtype=np.uint8) % count * width)[:, None]
    lines = shifted.reshape(*high.shape[:2], -1, count, 4)
    return [np.bitwise_or.reduce(lines, axis=3)]


def _masked(words: Expr, shift: int, mask: int) -> Expr:
    """Bits of every byte of words of i32, at the lowest place."""
    return op("and", words >> shift, mask * 0x01010101)


def unpacked_pair(f: BlockFormat, word: Tensor, at: tuple[Index, ...], pair: int, lane: Index) -> list[Expr]:
    """Words 2 ``pair`` and 2 ``pair`` + 1 of a group, as bytes in words; ``at`` is the place of the group, and ``lane``
    that of the vector in the panel."""
    if f.bits == 8:
        return [word[(*at, Index((), 2 * pair + i), lane)] for i in (0, 1)]
    stored = bitcast(word[(*at, Index((), pair), lane)], I32)
    pairs = [_masked(stored, shift, 15) for shift in (0, 4)]
    if f.bits > 4:
        width = f.bits - 4
        per_word = 8 // width
        for i in (0, 1):
            number = 2 * pair + i
            plane = bitcast(word[(*at, Index((), 4 + number // per_word), lane)], I32)
            shift = number % per_word * width
            moved = plane >> shift - 4 if shift >= 4 else plane << 4 - shift
            pairs[i] = op("or", pairs[i], op("and", moved, ((1 << width) - 1 << 4) * 0x01010101))
    return [bitcast(words, DType.Q8) for words in pairs]
