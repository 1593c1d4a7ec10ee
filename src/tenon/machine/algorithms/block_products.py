"""The kernel that multiplies activations by weights in blocks: one by vectors, or one by tiles of a matrix unit."""

from __future__ import annotations

from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernels import block_tiles, block_tiles_bf16, outer_groups, stream_rows
from tenon.machine.kernels.block_packing import WORDS
from tenon.machine.kernels.block_sums import BlockProduct, streams
from tenon.machine.kernels.block_tiles import ROWS
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import DType

_GROUP_OF_A_ROW = 12.0
"""Time of a group of a row by a vector of outputs, in multiply-adds of a vector: eight products, and the scales."""

_UNPACKED = 20.0
"""Time to unpack the words of a group."""

_ROWS = 4
"""Rows that unpacked words are multiplied by, by vectors."""

_ENDS = 4.0
"""Time to scale the sums of a row that left the registers of tiles, and to add them, while next ones are made."""

_FEW_TILES = 2
"""Tiles of rows for which weights are not unpacked to bf16."""

_OUTER_ENDS = 10.0
"""The same of a row of sixteen sums of outer products: five instructions over long vectors."""

_VECTORS = SIDE // outer_groups.LANES
"""Vectors of outputs of a tile of outer products."""


def in_tiles(s: BlockProduct, machine: Machine) -> bool:
    """Whether a product by tiles in registers takes less time: for several rows, as it computes all those of a tile."""
    unit = machine.tiles(DType.I8)
    if unit is None or not block_tiles.supported(s, machine):
        return False
    tiles = block_tiles.row_tiles(s) * max(unit.time, ROWS * _ENDS) + 2 * _UNPACKED
    return tiles < _by_vectors(s)


def in_bf16(format: str, rows: int, columns: int, outputs: int, machine: Machine) -> bool:
    """Whether a product is computed in bf16 by tiles in registers: where that is asked for, of so many rows that
    weights which are unpacked to bf16 for all of them take less time than sums that are scaled."""
    s = BlockProduct(format, rows, columns, outputs)
    return machine.bf16_tiles and block_tiles_bf16.supported(s, machine) and block_tiles.row_tiles(s) > _FEW_TILES


def by_outer_products(s: BlockProduct, machine: Machine) -> bool:
    """Whether a product by outer products takes less time: for several rows, as it computes all those of a tile."""
    unit = machine.outer(DType.I8)
    if unit is None or not outer_groups.supported(s, machine) or in_stream(s, machine):
        return False
    if streams(s.format, machine):
        return True  # these weights lie as only long vectors read them, and are unpacked by the same instruction
    tiles = outer_groups.row_tiles(s) * (WORDS * unit.time + SIDE * _OUTER_ENDS) + 2 * _VECTORS * _UNPACKED
    return tiles < _VECTORS * _by_vectors(s)


def in_stream(s: BlockProduct, machine: Machine) -> bool:
    """Whether a product is computed by long vectors of a streaming mode: of one row, with which an outer product fills
    one row of a tile."""
    return stream_rows.supported(s, machine)


def _by_vectors(s: BlockProduct) -> float:
    """Time of a group of all rows by a vector of outputs."""
    return s.rows * _GROUP_OF_A_ROW + -(-s.rows // _ROWS) * _UNPACKED
