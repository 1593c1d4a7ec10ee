"""Kernels cut short whose intermediate results are read and written again, tile by tile."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from interpret import interpret
from lowered import MACHINES, make_site
from parsed_kernels import with_parameters_of
from tenon.machine.algorithms.direct import Direct
from tenon.machine.algorithms.strassen import MOST_ROWS, Strassen, best_blockings
from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.clip import clipped
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.needed import CutShort, NeededAxis, NeededCount
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.strassen import StrassenBlocking, scratch, strassen, transform
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.machine.proofs.needed import LeftOutError, prove_needed
from tenon.network.graph.types import Layout
from tenon.network.ops.clipped import Clipped, NeededExtent, NeededPositions
from tenon.network.ops.conv import Conv as ConvOperator


def sums(columns: int = 12, width: int = 4) -> Kernel:
    """Results of one product that a second one reads, adds to and keeps, and a third one stores."""
    k = Builder("sums")
    x, t = k.param("x", columns), k.param("t", columns, 1, scratch=True)
    y = k.param("y", columns, out=True)

    def product(target: Tensor, *, add: bool) -> None:
        with k.loop("j", columns // width) as j, k.outline("tile"), k.unroll("q", width) as q:
            at = j * width + q
            value = t[at, 0] + x[at] * 2.0 if add else x[at] * 2.0
            target[(at, 0) if target is t else at] = value

    product(t, add=False)
    product(t, add=True)
    product(y, add=True)
    return k.done()


COLUMNS = (NeededAxis(2, 1, 12, 0, 12, (NeededCount(3),)),)
CUT, WHOLE = clipped(sums(), COLUMNS, 1)


def test_loops_over_tiles_end_together() -> None:
    assert show(CUT).count(" < min(3, (needed + 3 // 4)) {") == 3
    prove(CUT)
    assert prove_needed(CUT, CutShort(WHOLE, COLUMNS)) == 3


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "added_to", "result"])
@pytest.mark.parametrize("bound", ["(needed // 4)", "(needed + 3 // 4) + -1"], ids=["rounded_down", "one_less"])
def test_a_loop_that_ends_before_the_others_is_refused(which: int, bound: str) -> None:
    text, before = show(CUT), "min(3, (needed + 3 // 4))"
    start = -1
    for _ in range(which + 1):
        start = text.index(before, start + 1)
    text = text[:start] + text[start:].replace(before, f"min(3, {bound})", 1)
    whole = parse(show(WHOLE))
    kernel = with_parameters_of(text, whole)
    with pytest.raises((LeftOutError, OutOfRangeError)):
        prove_needed(kernel, CutShort(whole, COLUMNS))


@pytest.mark.parametrize("taps", [1, 3])
def test_strassen_computes_what_is_needed(taps: int) -> None:
    """Rows by blocks, columns by tiles; what is needed is that of the whole kernel, to the bit."""
    m, b, pad = MACHINES["lanes4"], StrassenBlocking(1, 2, 6, 1, OutputTile(1, 2, 1)), taps // 2
    channels, rng = 2 * m.block, np.random.default_rng(0)
    into = Image(1, channels, 4, 6, m.block, pad, pad, pad, pad)
    s = Conv(into, Image(1, channels, 4, 6, m.block, 0, 0, 0, 1), kernel=(taps, taps), top=pad, left=pad)
    whole = strassen(s, m, b)
    first, row = len(whole.params), 7 * m.block
    own, layout = first - 1, Layout(m.block, ((pad, pad),) * 2)
    axes = (
        NeededAxis(own, row, 4, 0, 4, (NeededCount(first),)),
        NeededAxis(own, m.block, 7, 0, 6, (NeededCount(first + 1),)),
    )
    kernel, split = clipped(whole, axes, 2, narrow=True)
    prove(kernel)
    prove_needed(kernel, CutShort(split, axes))
    assert "min(3, (needed2 + 1 // 2))" in show(kernel)
    x = layout.pack(rng.standard_normal((1, channels, 4, 6)).astype(np.float32)).ravel()
    w = rng.standard_normal((channels, channels, taps, taps)).astype(np.float32)
    given = [x, transform(w, s, m, b).ravel(), np.zeros(channels, np.float32)]

    def result(kernel: Kernel, *extents: int) -> np.ndarray:
        y = np.zeros(s.y.shape, np.float32)
        memory = [np.full(math.prod(shape), np.nan, np.float32) for shape in scratch(s, b)]
        interpret(kernel, [*given, *memory, y.ravel(), *(np.array([n]) for n in extents)])
        return y

    expected = result(whole)
    for rows, columns in ((3, 6), (4, 3), (1, 4), (0, 4)):
        got = result(kernel, rows, columns)
        np.testing.assert_array_equal(got[..., :rows, :columns, :], expected[..., :rows, :columns, :])


def test_blockings_of_kernels_that_are_cut_short() -> None:
    """Halves are of few rows, and tiles alike and narrow."""
    machine = replace(MACHINES["lanes16"], cut_short=True)
    s = Conv(Image(1, 512, 32, 32, 16), Image(1, 512, 32, 32, 16))
    blockings = best_blockings(s, machine, 20)
    assert blockings
    for b in blockings:
        assert (b.groups, b.rows % 2**b.levels, 32 % b.tile.cols) == (1, 0, 0)
        assert b.tile.cols <= 8
        assert b.rows <= MOST_ROWS
    few = Conv(Image(1, 64, 32, 32, 16), Image(1, 512, 32, 32, 16))
    assert not best_blockings(few, machine, 20)
    assert best_blockings(few, MACHINES["lanes16"], 20)


def test_tiles_that_other_loops_read_stay() -> None:
    """A reader that is not cut short needs all tiles."""
    k = Builder("read_twice")
    x, t, y, z = (k.param(n, 12, 1, scratch=n == "t", out=n in "yz") for n in "xtyz")
    with k.loop("j", 3) as j, k.unroll("q", 4) as q:
        t[j * 4 + q, 0] = x[j * 4 + q, 0] * 2.0
    for result in (y, z):
        with k.loop("j", 3) as j, k.unroll("q", 4) as q:
            result[j * 4 + q, 0] = t[j * 4 + q, 0] * 3.0
    axes = (NeededAxis(2, 1, 12, 0, 12, (NeededCount(4),)),)
    kernel, whole = clipped(k.done(), axes, 1)
    assert show(kernel).count("min(3, (needed + 3 // 4))") == 1
    prove_needed(kernel, CutShort(whole, axes))


def test_algorithms_with_blocks_of_whole_results_give_way() -> None:
    """Strassen's algorithm, which adds rows beyond the extents, keeps its levels if zeros lie there."""
    op = Clipped(ConvOperator(), 2, (NeededPositions(0, 3, (NeededExtent(0),)),))
    arrays = [np.zeros(shape, np.float32) for shape in ((1, 64, 4, 8), (64, 64, 1, 1))]
    site = make_site(op.base, arrays, MACHINES["lanes16"], (1,))
    chosen = Strassen(StrassenBlocking(1, 4, 8, 2, OutputTile(1, 8, 2)))
    for blocks, levels in ((False, 0), (True, 1)):
        inner = replace(op, blocks=blocks).inner(replace(site, algorithm=chosen))
        assert (inner.algorithm, inner.limits.strassen, inner.machine.cut_short) == (None, levels, True)
    direct = Direct(OutputTile(1, 8, 2))
    assert op.inner(replace(site, algorithm=direct)).algorithm is direct
