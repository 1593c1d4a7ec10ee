"""Formats of weights in blocks: integers of a few bits that share scales, as files of language models hold them.

A row of a matrix is a sequence of blocks; a block has the integers of consecutive elements and their scales.  The
formats are those of ggml (ggml-quants, ggml-common), of which ``q4_0`` to ``q8_0`` and ``iq4_nl`` have blocks of 32
elements and the others blocks of 256 with scales of their own for every 16 or 32 elements.

Every format is the same arithmetic with some parts left out: element j of a row is
``scale * fine[j] * (code[j] - offset - zero) + shift * fine_shift[j]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from tenon.network.graph.graph import Array

GROUP = 32
"""Elements that activations are quantised together: every format's blocks are whole groups."""


@dataclass(frozen=True, eq=False)
class BlockParts:
    """The parts of a matrix of ``rows`` in blocks, [rows, ...].

    ``codes`` is u8 [rows, columns]; ``scale`` and ``shift`` f16 or f32 [rows, columns / span], ``shift`` None where
    there is none; ``zero`` is u8 [rows, columns / span], what is subtracted from codes besides the format's offset;
    ``fine`` i8 or u8 [rows, columns / fine], and ``fine_shift`` likewise, None where there are none.
    """

    codes: Array
    scale: Array
    zero: Array | None = None
    shift: Array | None = None
    fine: Array | None = None
    fine_shift: Array | None = None


@dataclass(frozen=True)
class BlockFormat:
    """``nbytes`` hold ``span`` elements, with one scale, of which codes have ``bits`` in memory, less ``offset``.

    ``fine`` elements have a scale of their own as well, 0 for none; ``shifts``: a number is added to the elements of
    a block; ``zeros``: a block has a zero point, which is subtracted from codes; ``wide``: scales are f32, not f16.
    """

    name: str
    nbytes: int
    span: int
    bits: int
    offset: int
    shifts: bool = False
    fine: int = 0
    zeros: bool = False
    wide: bool = False

    @property
    def signed_fine(self) -> bool:
        """Whether scales of parts of a block have a sign."""
        return self.fine == 16

    @property
    def fine_shifts(self) -> bool:
        """Whether parts of a block have numbers of their own that are added, which are subtracted in fact."""
        return self.shifts and bool(self.fine)

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row.  Raises ValueError for a row that is not made of whole blocks."""
        if columns <= 0 or columns % self.span:
            raise ValueError(f"a row of {columns} elements is not made of whole blocks of {self.span}")
        return columns // self.span * self.nbytes

    def columns(self, row_bytes: int) -> int:
        """Elements of a row of so many bytes.  Raises ValueError as ``row_bytes`` does."""
        if row_bytes <= 0 or row_bytes % self.nbytes:
            raise ValueError(f"a row of {row_bytes} bytes is not made of whole blocks of {self.nbytes}")
        return row_bytes // self.nbytes * self.span


def _halves(data: Array, start: int) -> Array:
    """The f16 at a byte of every block, [rows, blocks]."""
    return np.ascontiguousarray(data[..., start : start + 2]).view("<f2")[..., 0]


def _nibbles(data: Array) -> Array:
    """The low halves of bytes, then the high ones, along the last axis."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _bits(data: Array) -> Array:
    """The bits of bytes, the lowest first, along the last axis."""
    return np.unpackbits(data, axis=-1, bitorder="little")


def _flat(codes: Array) -> Array:
    return codes.reshape(codes.shape[0], -1)


def _q8_0(b: Array) -> BlockParts:
    return BlockParts(_flat(b[..., 2:] ^ 128), _halves(b, 0))


def _q4_0(b: Array) -> BlockParts:
    return BlockParts(_flat(_nibbles(b[..., 2:])), _halves(b, 0))


def _q4_1(b: Array) -> BlockParts:
    return BlockParts(_flat(_nibbles(b[..., 4:])), _halves(b, 0), shift=_halves(b, 2))


def _q5_0(b: Array) -> BlockParts:
    return BlockParts(_flat(_nibbles(b[..., 6:]) | _bits(b[..., 2:6]) << 4), _halves(b, 0))


def _q5_1(b: Array) -> BlockParts:
    return BlockParts(_flat(_nibbles(b[..., 8:]) | _bits(b[..., 4:8]) << 4), _halves(b, 0), shift=_halves(b, 2))


def _sixes(scales: Array) -> tuple[Array, Array]:
    """The scales and shifts, of six bits, of eight parts of a block, from 12 bytes."""
    low, middle, high = scales[..., :4], scales[..., 4:8], scales[..., 8:]
    fine = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    shifts = np.concatenate([middle & 63, high >> 4 | (middle >> 6) << 4], axis=-1)
    return fine, shifts


def _lines(data: Array, width: int) -> Array:
    """The last axis as [parts, width]."""
    return data.reshape(*data.shape[:-1], -1, width)


def _q4_k(b: Array) -> BlockParts:
    fine, shifts = _sixes(b[..., 4:16])
    codes = _nibbles(_lines(b[..., 16:], 32))
    return BlockParts(_flat(codes), _halves(b, 0), None, _halves(b, 2), _flat(fine), _flat(shifts))


def _q5_k(b: Array) -> BlockParts:
    fine, shifts = _sixes(b[..., 4:16])
    high = _bits(b[..., 16:48, None]).swapaxes(-1, -2)  # bit p of byte j belongs to element j of part p
    codes = _nibbles(_lines(b[..., 48:], 32)).reshape(high.shape) | high << 4
    return BlockParts(_flat(codes), _halves(b, 0), None, _halves(b, 2), _flat(fine), _flat(shifts))


def _q6_k(b: Array) -> BlockParts:
    low = _nibbles(_lines(b[..., :128], 64))  # [rows, blocks, 2, 128]
    pairs = _lines(b[..., 128:192], 32)
    high = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    fine = np.ascontiguousarray(b[..., 192:208]).view(np.int8)
    return BlockParts(_flat(low | high << 4), _halves(b, 208), fine=_flat(fine))


_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)
"""The elements that the codes of the "iq4" formats stand for, before scales."""


def _non_linear(codes: Array) -> Array:
    """The bytes, with 128 added, that codes of 4 bits stand for."""
    return (_NON_LINEAR + 128).astype(np.uint8)[codes]


def _iq4_nl(b: Array) -> BlockParts:
    return BlockParts(_flat(_non_linear(_nibbles(b[..., 2:]))), _halves(b, 0))


def _iq4_xs(b: Array) -> BlockParts:
    # The scales of eight parts have six bits: the lowest four in bytes 4 to 7, two others in the u16 at byte 2.
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], -1).reshape(*b.shape[:-1], 8)
    pairs = _bits(b[..., 2:4]).reshape(*low.shape, 2)
    fine = (low | (pairs[..., 0] | pairs[..., 1] << 1) << 4).astype(np.int8) - 32
    codes = _non_linear(_nibbles(_lines(b[..., 8:], 16)))
    return BlockParts(_flat(codes), _halves(b, 0), fine=_flat(np.repeat(fine, 2, -1)))


def _q2_k(b: Array) -> BlockParts:
    # The scales of sixteen parts are the low halves of bytes 0 to 15, their shifts the high halves; codes have two bits
    # in bytes 16 to 79.
    pairs = _lines(b[..., 16:80], 32)  # [rows, blocks, 2, 32]
    codes = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    fine, shifts = ((b[..., :16] >> place & 15).astype(np.int8) for place in (0, 4))
    return BlockParts(_flat(codes), _halves(b, 80), None, _halves(b, 82), _flat(fine), _flat(shifts))


def _q3_k(b: Array) -> BlockParts:
    # Codes have their lowest two bits in bytes 32 to 95 and the third in bytes 0 to 31; the scales of sixteen parts
    # have the lowest four of six bits in bytes 96 to 103 and two others in bytes 104 to 107.
    pairs = _lines(b[..., 32:96], 32)  # [rows, blocks, 2, 32]
    low = np.concatenate([pairs >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    high = (
        _bits(b[..., :32, None]).swapaxes(-1, -2).reshape(low.shape)
    )  # bit p of byte j belongs to element j of part p
    scales, rest = b[..., 96:104], b[..., 104:108]
    tops = np.concatenate([rest >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    fine = (np.concatenate([scales & 15, scales >> 4], axis=-1) | tops << 4).astype(np.int8) - 32
    return BlockParts(_flat(low | high << 2), _halves(b, 108), fine=_flat(fine))


def _n_bits(b: Array, bits: int, *, zeros: bool) -> BlockParts:
    """Blocks of an f32 scale, a zero point and codes one behind the other, the first in the lowest bits of a byte."""
    codes = b[..., 8:]
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1)
    scale = np.ascontiguousarray(b[..., :4]).view("<f4")[..., 0]
    return BlockParts(_flat(codes), scale, b[..., 4] if zeros else None)


def n_bits_name(bits: int, span: int, *, zeros: bool) -> str:
    """The name of a format of codes of ``bits`` in blocks of ``span`` with f32 scales and, maybe, zero points."""
    return f"n{bits}_{span}{'_zeros' if zeros else ''}"


_N_BITS = {
    n_bits_name(bits, span, zeros=zeros): (
        BlockFormat(
            n_bits_name(bits, span, zeros=zeros),
            8 + span * bits // 8,
            span,
            bits,
            0 if zeros else 1 << (bits - 1),
            zeros=zeros,
            wide=True,
        ),
        partial(_n_bits, bits=bits, zeros=zeros),
    )
    for bits, span, zeros in product((4, 8), (32, 64, 128, 256), (False, True))
}

FORMATS: Mapping[str, BlockFormat] = {
    f.name: f
    for f in (
        *(format for format, _ in _N_BITS.values()),
        BlockFormat("q8_0", 34, 32, 8, 128),
        BlockFormat("q4_0", 18, 32, 4, 8),
        BlockFormat("q4_1", 20, 32, 4, 0, shifts=True),
        BlockFormat("q5_0", 22, 32, 5, 16),
        BlockFormat("q5_1", 24, 32, 5, 0, shifts=True),
        BlockFormat("q4_k", 144, 256, 4, 0, shifts=True, fine=32),
        BlockFormat("q5_k", 176, 256, 5, 0, shifts=True, fine=32),
        BlockFormat("q6_k", 210, 256, 6, 32, fine=16),
        BlockFormat("q2_k", 84, 256, 2, 0, shifts=True, fine=16),
        BlockFormat("q3_k", 110, 256, 4, 4, fine=16),
        BlockFormat("iq4_nl", 18, 32, 8, 128),
        BlockFormat("iq4_xs", 136, 256, 8, 128, fine=16),
    )
}
"""Formats by name."""

_PARTS: Mapping[str, Callable[[Array], BlockParts]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    **{name: parts for name, (_, parts) in _N_BITS.items()},
}


def block_parts(format: BlockFormat, data: Array) -> BlockParts:
    """The parts of rows of blocks, u8 [rows, bytes of a row]."""
    return _PARTS[format.name](data.reshape(len(data), -1, format.nbytes))


def dequantised(format: BlockFormat, data: Array) -> Array:
    """The elements of rows of blocks, f32 [rows, columns]: each product and sum is rounded to f32."""
    parts = block_parts(format, data)
    values = parts.codes.astype(np.float32) - np.float32(format.offset)

    def spread(part: Array) -> Array:
        return np.repeat(part.astype(np.float32), values.shape[1] // part.shape[1], axis=1)

    if parts.zero is not None:
        values = values - spread(parts.zero)
    if parts.fine is not None:
        values = values * spread(parts.fine)
    values = values * spread(parts.scale)
    if parts.shift is None:
        return values
    if parts.fine_shift is None:
        return values + spread(parts.shift)
    less: Array = spread(parts.fine_shift) * spread(parts.shift)
    return np.asarray(values - less)
