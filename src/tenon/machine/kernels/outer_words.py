"""Products of two matrices of bytes that a run computes, by outer products in tiles of a matrix unit (``isa.sme``).

The right matrix is packed in words of four rows each, [matrices, words, columns], of which a row is vectors of weights;
rows of the left one are put side by side as ``kernels.outer_matrices`` does.  What zero points add to sums, and what
sums become, is as of ``kernels.integer_matmul_words``.
"""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.isa.sme_blocks import KNOWN, SIDE
from tenon.machine.isa.sme_fours import FOURS, OuterFours
from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast
from tenon.machine.kernels import outer_matrices
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.image import Image, identity
from tenon.machine.kernels.integer_conv import ONES
from tenon.machine.kernels.integer_matmul import Results, batches, zero_points
from tenon.machine.kernels.integer_matmul_words import Words, word_of_rows
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_matrices import panel_of, panel_params, panel_side_by_side, row_runs
from tenon.machine.kernels.outer_products import (
    LANES,
    OuterContext,
    OuterTiles,
    about,
    block_of_results,
    byte_ends,
    cuts,
    unit_of,
)
from tenon.network.graph.types import I32, DType

_PARTS = 8
"""Most parts of a matrix that threads pack."""


def of_one(p: Words) -> Conv:
    """The product of one pair of matrices as a convolution of one row of positions."""
    (m, _, n), deep = p.s.size, 4 * p.deep
    x, y = Image(1, deep, 1, m, deep, dtype=p.s.dtypes[0]), Image(1, n, 1, m, n, dtype=p.s.to)
    return Conv(x, y, bias=False, weights=DType.I8)


def supported(p: Words, machine: Machine) -> bool:
    """Whether there is a kernel for a product."""
    return not (p.shifts[0] or p.filled) and outer_matrices.supported(of_one(p), machine)


@lru_cache(maxsize=256)
def outer_fours(p: Words) -> Kernel:
    """Parameters: b [matrices, K, N], and its rows of words i32 [matrices, words, N]."""
    (matrices, length, n), dtype = (p.s.matrices[1], *p.s.size[1:]), p.s.dtypes[1]
    k = Builder(f"outer_fours_{length}x{n}", f"[{length}, {n}] in words of four rows")
    b = k.param("b", matrices, length, n, dtype=dtype)
    words = k.param("w", matrices, p.deep, n, dtype=I32, out=True)
    whole = length // 4
    parts = next((count for count in range(_PARTS, 0, -1) if whole % count == 0), 1)
    with k.loop("i", matrices, kind="parallel") as i, k.loop("j", parts if whole else 0, kind="parallel") as j:
        _fours(k, p, (b, words), (i, j * (whole // parts)), whole // parts, 4)
    if p.ragged:
        with k.loop("i", matrices, kind="parallel") as i:
            _fours(k, p, (b, words), (i, Index((), whole)), 1, length % 4)
    return k.done()


def _fours(k: Builder, p: Words, of: tuple[Tensor, Tensor], at: tuple[Index, Index], count: int, rows: int) -> None:
    """Store ``count`` rows of words of a matrix, from the number ``at`` on, of ``rows`` rows each."""
    (b, words), (i, first), n = of, at, p.s.size[2]
    numbers = OuterFours(count, n, rows, int(p.shifts[1] != 0)).numbers
    operands = [(words, (i, first, 0)), (b, (i, first * 4, 0))]
    with k.instruction(FOURS, operands, *numbers), k.loop("d", count) as d, k.loop("v", n // LANES) as v:
        row = first + d
        own = [b.vec(LANES)[i, row * 4 + byte, v] for byte in range(rows)]
        words.vec(LANES)[i, row, v] = word_of_rows(own, p.shifts[1])


@lru_cache(maxsize=256)
def column_sums(p: Words) -> Kernel:
    """Parameters: the rows of words, dynamic zero points, i32 [matrices, N]: what every sum of a column has less for
    left zero points."""
    matrices, (_, length, n) = p.s.matrices[1], p.s.size
    k = Builder(f"column_sums_{length}x{n}", f"sums of the columns of [{length}, {n}]")
    words = k.param("w", matrices, p.deep, n, dtype=I32)
    zeros = zero_points(k, p.s.dynamic)
    sums = k.param("c", matrices, n, dtype=I32, out=True)
    with k.loop("i", matrices, kind="parallel") as i, k.loop("v", n // LANES, kind="parallel") as v:
        total, ones = k.local("s", 1, dtype=I32, lanes=LANES), broadcast(Const(ONES, Type(I32)), LANES)
        total[0] = 0
        with k.loop("d", p.deep) as d:
            total[0] = p.multiply_add(total[0], ones, words.vec(LANES)[i, d, v])
        less = (total[0] - p.whole(1, zeros[1]) * length) * (Const(0, Type(I32)) - p.whole(0, zeros[0]))
        sums.vec(LANES)[i, v] = less
    return k.done()


@lru_cache(maxsize=256)
def outer_words(p: Words, machine: Machine, tile: OuterTiles) -> Kernel:
    """Parameters: the left matrices in words, the right ones in rows of words, sums of columns and of rows where they
    are needed, the panels of ``outer_matrices.panel_bytes`` (scratch), operands, y."""
    (m, _, n), c = p.s.size, of_one(p)
    k = Builder(f"outer_words_{m}x{4 * p.deep}x{n}", f"[{m}, {4 * p.deep}] times [{4 * p.deep}, {n}]; {about(tile)}")
    a = k.param("a", *p.rows, dtype=DType.Q8)
    b = k.param("b", p.s.matrices[1], p.deep, n, dtype=I32)
    columns = k.param("c", p.s.matrices[1], n, dtype=I32) if p.offsets[0] else None
    sums = k.param("s", *p.rows[:2], dtype=I32) if p.offsets[1] else None
    own, unit = panel_params(k, c, tile), unit_of(c, machine)
    results, runs = Results.of(k, p.s), row_runs(c, tile)
    plain = columns is None and sums is None and p.s.epilogue is identity
    ends = byte_ends(c, p.s.requantize, KNOWN, p.s.factors[0][0]) if plain and len(p.s.factors) == 1 else None
    assert unit is not None
    with batches(k, p.s, sum(count for _, count, _ in runs)) as ((left, right, product), (kind,)):

        def store(n: Index, channel: Index, top: Index, row: Index, total: Expr) -> None:
            if columns is not None:
                total = total + columns.vec(LANES)[right, channel // LANES]
            if sums is not None:
                total = total + broadcast(sums[left, row], LANES)
            results.store(product * m + row, channel, LANES, k.let("t", total))

        def place(first: Index, row: Index) -> tuple[Index, ...]:
            return product * m + row, first * SIDE

        for (start, count, width), panel in zip(runs, own, strict=True):
            context = OuterContext(
                k, panel_of(c, tile), unit, panel, None, store, results.y, ends, place=place, pitch=4 * n
            )
            with k.loop("j", count, kind=kind) as j:
                first_row = j * width + start
                with k.outline(f"panel{width}", f"words of {width} rows side by side"):
                    panel_side_by_side(context, (c, a), (left, first_row), width)
                for first, groups, across in cuts(c, tile):
                    vectors = min(across * SIDE, n - first * SIDE) // LANES
                    outlined = k.outline(f"{width}x{vectors}", f"{width} rows by {across} tiles")
                    with k.loop("o", groups) as o, outlined:
                        at, size = (Index(), right, Index(), first_row), (width, first + o * across, vectors)
                        block_of_results(context, b, at, size, (Index(), Index(), Index()))
    return k.done()
