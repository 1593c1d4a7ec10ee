"""Convolution of bytes by groups of four warps beside their copies, requantised: tiles as of ``tensor_warpgroups``, of
words of four channels.

Sums are exact, and so are results: the same bits as on processors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from tenon.machine.isa.warpgroups import WGMMA_I8, WGMMA_U8
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import group_tiles, integer_staged, integer_tiled
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import in_pairs, in_words
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import MatrixUnit, in_rows
from tenon.machine.kernels.tensor_warpgroups import WarpgroupTile, add_products
from tenon.network.graph.graph import Array

UNITS = {
    unit.x: MatrixUnit(unit.operation, own.k, 4, own.sums, own.product)
    for unit in (WGMMA_I8, WGMMA_U8)
    for own in (integer_staged.UNITS[unit.x],)
}


@dataclass(frozen=True)
class WordGroupTile(WarpgroupTile):
    """``k`` are words, a multiple of 8."""

    bytes: ClassVar[int] = 4


def supported(s: Conv, machine: Machine) -> bool:
    """Whether a layer can be computed so, if its weights have the zero point 0: bytes in blocks of one word."""
    return integer_staged.in_one_word(s, machine) and machine.has(UNITS[s.x.dtype].operation)


def pack(weights: Array, s: IntegerConv, tile: WordGroupTile) -> Array:
    """[blocks of channels][steps][k / 4][n][4] of words, from bytes [channels out, channels in, kh, kw]."""
    words = group_tiles.pack(integer_tiled.as_words(weights, s), in_pairs(in_words(s.conv)), tile, 0)
    return in_rows(words, tile, tile.each)


@lru_cache(maxsize=512)
def integer_warpgroups(s: IntegerConv, tile: WordGroupTile) -> Kernel:
    """Parameters: those of ``kernels.integer_staged``, weights as ``pack`` returns them."""
    k, operands, into = integer_staged.begun("integer_warpgroups", s, tile)
    fill = integer_tiled.repeated(s.fill)
    add_products(k, in_pairs(in_words(s.conv)), tile, UNITS[s.conv.x.dtype], operands, into, fill)
    return k.done()
