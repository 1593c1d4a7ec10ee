"""Products of two matrices that a run computes, by outer products in tiles of a matrix unit (``isa.sme``).

A row of the right matrix has a word of neighbouring columns, which is a vector of weights: it is read as it lies.  Rows
of the left matrix are put side by side as ``kernels.outer_matrices`` does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache

from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import outer_matrices
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_matrices import panel_of, panel_params, panel_side_by_side, row_runs
from tenon.machine.kernels.outer_products import LANES, OuterTiles, about, block_of_results, cuts, float_context
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import F32


def one_by_packed(s: Conv) -> Conv:
    """The product of one pair of matrices, as if the right one were constant."""
    return replace(s, x=replace(s.x, n=1), y=replace(s.y, n=1), operands=(), batch=(), packed=True)


def supported(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a product: of two matrices in f32."""
    plain = not s.packed and s.x.dtype is s.weights is s.y.dtype is F32
    return plain and outer_matrices.supported(one_by_packed(s), machine)


@lru_cache(maxsize=512)
def outer_factors(s: Conv, machine: Machine, tile: OuterTiles) -> Kernel:
    """Parameters: x [matrices, rows, inputs], w [matrices, inputs, columns], the panels of ``panel_bytes`` (scratch),
    bias (padded), operands, y."""
    name = f"outer_factors_{s.y.n}x{s.y.w}x{s.x.channels}x{s.y.channels}"
    k, columns, one = Builder(name, f"{described(s)}; {about(tile)}"), s.y.channels, s.y.w == 1
    x = k.param("x", s.x.n, s.x.channels, 1, 1) if one else k.param("x", s.x.n, s.x.w, s.x.channels)
    w = k.param("w", s.matrices, s.x.channels, columns)
    own = [x] if one else panel_params(k, s, tile)
    context = replace(float_context(k, panel_of(s, tile), machine, own[0]), pitch=4 * columns)
    runs = row_runs(s, tile)
    (outer, inner), inside = deal(s.batches[0][0], sum(count for _, count, _ in runs), threads=machine.threads)
    with ExitStack() as stack:
        n = xn = wn = Index()
        for number, (extent, x_step, w_step) in enumerate(s.batches):
            i = stack.enter_context(k.loop("n", extent, kind="serial" if number else outer))
            n, xn, wn = n * extent + i, xn + i * x_step, wn + i * w_step
        for (start, count, width), panel in zip(runs, own, strict=True):
            p = replace(context, x=panel)
            with k.loop("j", count, kind=inner) as j:
                left, source = j * width + start, (xn if one else Index(), Index(), Index())
                if not one:
                    with k.outline(f"panel{width}", f"words of {width} rows side by side"):
                        panel_side_by_side(p, (s, x), (xn, left), width)
                for first, groups, across in cuts(s, tile):
                    vectors, shown = min(across * SIDE, columns - first * SIDE) // LANES, f"by {across} tiles"
                    outlined = k.outline(f"{width}x{vectors}", f"{width} rows {shown}")
                    with k.loop("o", groups, kind=inside if one else "serial") as o, outlined:
                        at, size = (n, wn, Index(), left), (width, first + o * across, vectors)
                        block_of_results(p, w, at, size, source)
    return k.done()
