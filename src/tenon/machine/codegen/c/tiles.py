"""All loops with a form in assembly."""

from __future__ import annotations

from tenon.machine.codegen.c import dot_tile, element_tile, pair_tile, scalar_tile
from tenon.machine.codegen.c.assembly_tile import Tile
from tenon.machine.kernel_ir.loops import Loop


def matched(loop: Loop) -> Tile | None:
    """The tile that a loop computes, if it is one."""
    return element_tile.matched(loop) or dot_tile.matched(loop) or pair_tile.matched(loop) or scalar_tile.matched(loop)
