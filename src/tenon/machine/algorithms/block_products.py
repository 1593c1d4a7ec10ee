"""Which kernel multiplies activations by weights in blocks: one by vectors, or one by tiles in registers."""

from __future__ import annotations

from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.kernels.block_tiles import ROWS, row_tiles, supported
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import DType

_GROUP_OF_A_ROW = 12.0
"""Time of a group of a row by a vector of outputs, in multiply-adds of a vector: eight products, and the scales."""

_UNPACKED = 20.0
"""Time to unpack the words of a group."""

_ROWS = 4
"""Rows that unpacked words are multiplied by, by vectors."""

_ENDS = 4.0
"""Time to scale the sums of a row that left the registers of tiles, and to add them."""


def in_tiles(s: BlockProduct, machine: Machine) -> bool:
    """Whether a product by tiles in registers takes less time: for several rows, as it computes all those of a tile."""
    unit = machine.tiles(DType.I8)
    if unit is None or not supported(s, machine):
        return False
    vectors = s.rows * _GROUP_OF_A_ROW + -(-s.rows // _ROWS) * _UNPACKED
    tiles = row_tiles(s) * (unit.time + ROWS * _ENDS) + 2 * _UNPACKED
    return tiles < vectors
