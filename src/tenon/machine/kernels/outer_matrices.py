"""Matrix products by outer products in tiles of a matrix unit (``isa.sme``).

Rows of the left matrix are positions, whose words lie far apart: those of up to two tiles of positions are put side by
side in memory of the thread, once for all output channels, by tiles whose rows are loaded and whose columns are stored.
A single row is read as it lies.
What follows is as of ``kernels.outer_products``.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import lru_cache

from tenon.machine.isa.sme import TURN, OuterTurn
from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import outer_products
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_products import (
    LANES,
    OuterContext,
    OuterTiles,
    about,
    block_of_results,
    cuts,
    float_context,
    integer_context,
    types_of,
    weight_params,
)
from tenon.machine.kernels.product_blocks import is_matrix


def panel_of(c: Conv, tile: OuterTiles) -> Conv:
    """The product as the convolution of a panel: an image of one row, with a word of a position in a block."""
    width = SIDE * tile.down if c.y.w > 1 else 1
    return replace(c, x=Image(1, c.x.channels, 1, width, 4 // c.x.dtype.bytes, dtype=c.x.dtype))


def supported(c: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a matrix product: with rows of whole words."""
    whole = is_matrix(c) and c.x.channels * c.x.dtype.bytes % 4 == 0
    return whole and outer_products.supported(panel_of(c, OuterTiles(1, 1)), machine)


def row_runs(c: Conv, tile: OuterTiles) -> list[tuple[int, int, int]]:
    """(first row, times, rows) of the loops over panels."""
    return segments(c.y.w, SIDE * tile.down)


def panel_bytes(c: Conv, tile: OuterTiles) -> list[int]:
    """Bytes of the panels, of whole sixteens of words: one for each of ``row_runs``, which threads share in different
    ways; none where there is one row, whose words are side by side."""
    size = -(-_words(c) // SIDE) * SIDE * SIDE * tile.down * 4
    return [size] * (len(row_runs(c, tile)) if c.y.w > 1 else 0)


def panel_params(k: Builder, c: Conv, tile: OuterTiles) -> list[Tensor]:
    """The panels as images of words."""
    shape = 1, -(-_words(c) // SIDE) * SIDE, 1, SIDE * tile.down
    return [k.param("p", *shape, dtype=types_of(c)[0], scratch=True) for _ in panel_bytes(c, tile)]


def _words(c: Conv) -> int:
    return c.x.channels * c.x.dtype.bytes // 4


@lru_cache(maxsize=512)
def outer_matrices(c: Conv, machine: Machine, tile: OuterTiles) -> Kernel:
    """Parameters: x, the packed weights of each cut, the panels of ``panel_bytes`` (scratch), bias (padded), mask when
    ``clear``, operands, y."""
    k = Builder(f"outer_rows_{c.y.w}x{c.x.channels}x{c.y.channels}", f"{described(c)}, in rows; {about(tile)}")
    x, ws, own = _factors(k, c, tile)
    return _rows(float_context(k, panel_of(c, tile), machine, own[0]), (c, x, ws, own), tile)


@lru_cache(maxsize=512)
def integer_outer_matrices(s: IntegerConv, machine: Machine, tile: OuterTiles) -> Kernel:
    """Parameters: as of ``outer_matrices``, after the panels those of ``kernels.outer_products``."""
    c = s.conv
    k = Builder(f"integer_outer_rows_{c.y.w}x{c.x.channels}x{c.y.channels}", f"{described(c)}, in rows; {about(tile)}")
    x, ws, own = _factors(k, c, tile)
    described_panel = replace(s, conv=panel_of(c, tile))
    return _rows(integer_context(k, described_panel, machine, own[0]), (c, x, ws, own), tile)


def _factors(k: Builder, c: Conv, tile: OuterTiles) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The parameters x, weights and panels, in words; the panel of a single row is x."""
    dtype, words = types_of(c)[0], _words(c)
    if c.y.w == 1:
        x = k.param("x", c.x.n, words, 1, 1, dtype=dtype)
        return x, weight_params(k, panel_of(c, tile), tile), [x]
    x = k.param("x", c.x.n, c.x.w, words, dtype=dtype)
    ws = weight_params(k, panel_of(c, tile), tile)
    return x, ws, panel_params(k, c, tile)


def _rows(context: OuterContext, of: tuple[Conv, Tensor, list[Tensor], list[Tensor]], tile: OuterTiles) -> Kernel:
    k, (c, x, ws, own) = context.k, of
    shared = "parallel" if c.y.w == 1 else "serial"  # the threads of several rows have rows of their own
    with k.loop("n", c.y.n) as n:
        for (start, count, width), panel in zip(row_runs(c, tile), own, strict=True):
            p = replace(context, x=panel)
            with k.loop("j", count, kind="parallel") as j:
                left = j * width + start
                if c.y.w > 1:
                    with k.outline(f"panel{width}", f"words of {width} rows side by side"):
                        panel_side_by_side(p, (c, x), (n, left), width)
                source = (n if c.y.w == 1 else Index(), Index(), Index())
                for (first, groups, across), w in zip(cuts(c, tile), ws, strict=True):
                    vectors, shown = (
                        min(across * SIDE, c.padded - first * SIDE) // LANES,
                        f"{width} rows by {across} tiles",
                    )
                    with k.loop("o", groups, kind=shared) as o, k.outline(f"{width}x{vectors}", shown):
                        block_of_results(p, w, (n, o, Index(), left), (width, first + o * across, vectors), source)
    return k.done()


def panel_side_by_side(p: OuterContext, of: tuple[Conv, Tensor], at: tuple[Index, Index], width: int) -> None:
    """The words of ``width`` rows from ``at`` on."""
    k, (c, x), (n, left) = p.k, of, at
    pitch = p.c.x.w * 4
    for start, count, rows in segments(width, SIDE):
        for tile in range(count):
            first = start + tile * rows
            numbers = OuterTurn(rows, _words(c), _words(c) * 4, pitch)
            operands = [(p.x, (0, 0, 0, first)), (x, (n, left + first, 0))]
            with k.instruction(TURN, operands, *astuple(numbers)), k.loop("r", rows) as r, k.loop("q", _words(c)) as q:
                p.x[0, q, 0, r + first] = x[n, left + first + r, q]
