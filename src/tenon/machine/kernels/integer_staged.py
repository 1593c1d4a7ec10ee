"""Convolution of bytes by a matrix unit, requantised: tiles as of ``tensor_staged``, of words of four channels.

Sums are exact, and so are results: the same bits as on processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.loops import Kernel, op
from tenon.machine.kernels import group_tiles, integer_tiled
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import Store
from tenon.machine.kernels.group_tiles import Depth, about, batched, in_pairs, in_words, name_of, sums_shape
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import MatrixUnit, StagedTile, add_products, in_rows
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

OPERATIONS = {DType.I8: "mma_i8_k32", DType.U8: "mma_u8_k32"}
WORDS = 8
"""Words of an instruction: 32 products."""
UNITS = {
    dtype: MatrixUnit(OPERATIONS[dtype], WORDS, 2, I32, partial(op, name))
    for dtype, name in ((DType.I8, "dot4_signed"), (DType.U8, "dot4"))
}


@dataclass(frozen=True)
class WordTile(StagedTile):
    """``k`` are words, a multiple of 8."""

    bytes: ClassVar[int] = 4


def supported(s: Conv, machine: Machine) -> bool:
    """Whether a layer can be computed so, if its weights have the zero point 0: bytes in blocks of one word."""
    return in_one_word(s, machine) and machine.has(OPERATIONS[s.x.dtype])


def in_one_word(s: Conv, machine: Machine) -> bool:
    """Whether a matrix unit can multiply a layer's words of four channels, if it has the instruction."""
    return integer_tiled.supported(s, machine) and s.x.block == 4 and not batched(s)


def pack(weights: Array, s: IntegerConv, tile: WordTile) -> Array:
    """[blocks of channels][steps][k / 8][n][8] of words, from bytes [channels out, channels in, kh, kw]."""
    words = group_tiles.pack(integer_tiled.as_words(weights, s), in_pairs(in_words(s.conv)), tile, 0)
    return in_rows(words, tile, WORDS)


@lru_cache(maxsize=512)
def integer_staged(s: IntegerConv, tile: WordTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), rows of factors, mask when ``conv.clear``,
    operands, y; with splits only x, weights and the sums in i32 [splits, channels / 4, positions, 4]."""
    k, operands, into = begun("integer_tensor", s, tile)
    c, fill = in_pairs(in_words(s.conv)), integer_tiled.repeated(s.fill)
    add_products(k, c, tile, UNITS[s.conv.x.dtype], operands, into, staged=True, fill=fill)
    return k.done()


def begun(name: str, s: IntegerConv, tile: StagedTile) -> tuple[Builder, tuple[Tensor, Tensor], Store | Tensor]:
    """A kernel whose name begins so, its image and weights in words, and what takes sums."""
    assert not s.weight_zero
    c = in_pairs(in_words(s.conv))
    k = Builder(f"{name}_{name_of(s.conv)}", f"{about(s.conv, tile, 'warp')}, in integers")
    x = k.param("x", *c.x.shape, dtype=I32)
    w = k.param("w", -(-c.padded // tile.n), Depth.of(c, tile.k).steps, tile.k * tile.n, dtype=I32)
    into = (
        k.param("sums", *sums_shape(c, tile), dtype=I32, out=True)
        if tile.splits > 1
        else partial(integer_tiled.store, IntegerEnds.params(k, s, y_words=integer_tiled.by_words(s.conv)))
    )
    return k, (x, w), into
