"""Weights in blocks, rearranged when compiling: panels of as many rows as a vector has lanes, group after group.

A group is 32 elements of a row, 8 words of 4 bytes; the words of a panel's rows lie side by side and are one vector.
Codes of 4 bits are two to a byte, of word 2i in the low half and of word 2i + 1 in the high half; those of 2 bits are
four to a byte, of words 4i to 4i + 3 from the lowest bits on.  Codes of 5 and 6 bits have their further bits in words
behind those of 4: bit i of a byte belongs to word i, and two bits at 2i to words i and 4 + i of two such words.  Bytes
are in the order of elements on every processor.

Where products are of bytes with a sign, codes of 4 bits less 8 are stored in two's complement: moved to the high half
of a byte, which takes one instruction, they are bytes with a sign, 16 times as large.  Scales make up for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernel_ir.loops import Expr, bitcast, op
from tenon.machine.kernels.block_formats import GROUP, BlockFormat, BlockParts, block_parts
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

WORDS = GROUP // 4
"""Words of a group."""


@dataclass(frozen=True)
class BlockPacking:
    """How rows of a format lie in memory: in panels of ``lanes`` rows.

    ``signed``: codes of 8 bits have a sign, and those of 4 bits where ``times`` is not 1.
    """

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
        return 0 if (self.format.bits == 8 and self.signed) or self.times > 1 else self.format.offset

    @property
    def times(self) -> int:
        """How many times as large as codes the bytes of unpacked words are.

        Scales in f16 are divided by it as f32, which is exact; those in f32 might be too small for that.
        """
        f = self.format
        return 16 if self.signed and f.bits == 4 and f.offset == 8 and not f.zeros and not f.wide else 1

    @property
    def plain(self) -> bool:
        """Whether codes have 4 or 8 bits and are bytes with a sign once unpacked, and groups have one scale, in f16."""
        f = self.format
        further = f.shifts or f.zeros or f.wide or f.fine
        return f.span == GROUP and not further and f.bits in (4, 8) and not self.offset

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
        step = self.lanes * max(1, _AT_ONCE // (self.lanes * self.format.columns(data.shape[1])))
        results = list[Array]()
        for start in range(0, len(data), step):
            packed = self._packed(data[start : start + step])
            if not results:
                results = [np.empty((self.panels(len(data)), *part.shape[1:]), part.dtype) for part in packed]
            for result, part in zip(results, packed, strict=True):
                result[start // self.lanes :][: len(part)] = part
        return results

    def _packed(self, data: Array) -> list[Array]:
        parts = block_parts(self.format, data)
        zero = parts.zero
        if zero is not None and self.format.bits == 8 and self.signed:
            zero = zero ^ np.uint8(128)
        further = (parts.scale, zero, parts.shift, parts.fine, parts.fine_shift)
        return [self._codes(parts), *(self._panels(part) for part in further if part is not None)]

    def _panels(self, part: Array) -> Array:
        """[rows, ...] as [panels, ..., lanes], zeros for the rows that fill the last one."""
        rows = len(part)
        whole = part
        if rows % self.lanes:
            whole = np.zeros((self.panels(rows) * self.lanes, *part.shape[1:]), part.dtype)
            whole[:rows] = part
        return np.moveaxis(whole.reshape(-1, self.lanes, *part.shape[1:]), 1, -1)

    def _codes(self, parts: BlockParts) -> Array:
        codes = np.ascontiguousarray(parts.codes)
        words = codes.view(np.uint32).reshape(len(codes), -1, WORDS)  # bytes of a word stay together
        if self.format.bits == 8 and self.signed:
            words = words ^ np.uint32(0x80808080)
        if self.times > 1:
            words = words ^ np.uint32(0x08080808)
        if self.format.bits == 2:
            words = _joined(words, 2)
        elif self.format.bits < 8:
            low = words & _LOW
            pairs = low[..., ::2] | low[..., 1::2] << 4
            words = np.concatenate([pairs, *_further(words >> 4 & _LOW, self.format.bits)], 2)
        panels = np.ascontiguousarray(self._panels(words))
        return panels.view(np.uint8).reshape(*panels.shape, 4)


_LOW = np.uint32(0x0F0F0F0F)
"""The low halves of the bytes of a word."""

_AT_ONCE = 1 << 18
"""Elements that are rearranged at once: what is computed on the way stays in the processor's caches."""


def _further(high: Array, bits: int) -> Sequence[Array]:
    """The bits above the lowest four of words [rows, groups, 8], as words [rows, groups, 1 or 2]."""
    if bits == 4:
        return []
    return [_joined(high, bits - 4)]


def _joined(words: Array, width: int) -> Array:
    """Words [rows, groups, 8], whose bytes have ``width`` bits, as many to a byte as fit, [rows, groups, width]."""
    count = 8 // width
    shifted = words << (np.arange(WORDS, dtype=np.uint32) % count * width)
    joined: Array = np.bitwise_or.reduce(shifted.reshape(*words.shape[:2], -1, count), axis=3)
    return joined


def _masked(words: Expr, shift: int, mask: int) -> Expr:
    """Bits of every byte of words of i32, at the lowest place."""
    return op("and", words >> shift, mask * 0x01010101)


def unpacked_pair(p: BlockPacking, stored: Callable[[int], Expr], pair: int) -> list[Expr]:
    """Words 2 ``pair`` and 2 ``pair`` + 1 of a group, as bytes in words; ``stored`` gives the words in memory."""
    f = p.format
    if f.bits == 8:
        return [stored(2 * pair + i) for i in (0, 1)]
    if f.bits == 2:
        four = bitcast(stored(pair // 2), I32)
        return [bitcast(_masked(four, pair % 2 * 4 + shift, 3), DType.Q8) for shift in (0, 2)]
    both = bitcast(stored(pair), I32)
    if f.bits == 4:
        return nibbles(p, both)
    pairs = [_masked(both, 0, 15), op("bytes_right4", both)]
    width = f.bits - 4
    per_word = 8 // width
    for i in (0, 1):
        number = 2 * pair + i
        plane = bitcast(stored(4 + number // per_word), I32)
        shift = number % per_word * width
        moved = plane >> shift - 4 if shift >= 4 else plane << 4 - shift
        pairs[i] = op("or", pairs[i], op("and", moved, ((1 << width) - 1 << 4) * 0x01010101))
    return [bitcast(words, DType.Q8) for words in pairs]


def nibbles(p: BlockPacking, both: Expr) -> list[Expr]:
    """The two words of bytes that a word of i32 holds codes of 4 bits of."""
    if p.times > 1:
        words = op("bytes_left4", both), op("and", both, _four_times(0xF0))
    else:
        words = _masked(both, 0, 15), op("bytes_right4", both)
    return [bitcast(word, DType.Q8) for word in words]


def signed(word: Expr, offset: int) -> Expr:
    """Bytes less ``offset``, as bytes with a sign: no byte of a word borrows of the next one while 128 is added."""
    if not offset:
        return word
    value = bitcast(word, I32)
    if offset != 128:
        value = value + _four_times(128 - offset)
    return bitcast(op("xor", value, _four_times(128)), DType.Q8)


def _four_times(value: int) -> int:
    """A byte four times, as i32."""
    word = value * 0x01010101
    return word - (word >> 31 << 32)
