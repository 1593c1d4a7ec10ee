"""Checks of the kernels that multiply by weights in blocks, whichever unit of a machine computes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from check_kernels import check
from clipped_kernels import ProvedClipped, results
from lowered import make_site, run_lowered
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.types import I64, TensorType
from tenon.network.ops.block_product import BlockMatMul, quantised_case
from tenon.network.ops.clipped import NeededExtent, NeededPositions


def assert_bits_of_the_reference(name: str, sizes: tuple[int, int, int], machine: Machine, kernel: str) -> None:
    """A format's product of (rows, outputs, columns) is lowered to a kernel of that name, is proved, and has the bits
    of the reference."""
    rows, outputs, columns = sizes
    op, arrays = BlockMatMul(name), quantised_case(rows, columns, outputs, FORMATS[name])
    steps = op.lower(make_site(op, arrays, machine, (3,)))
    assert steps[-1].kernel.name.startswith(kernel)
    for step in steps:
        prove(step.kernel)
    np.testing.assert_array_equal(run_lowered(op, arrays, machine, (3,))[0], op.evaluate(arrays)[0])


def assert_second_check_accepts(name: str, sizes: tuple[int, int, int], machine: Machine) -> None:
    """The second check accepts all kernels of a format's product of (rows, outputs, columns)."""
    rows, outputs, columns = sizes
    op, arrays = BlockMatMul(name), quantised_case(rows, columns, outputs, FORMATS[name])
    for step in op.lower(make_site(op, arrays, machine, (3,))):
        check(show(step.kernel))


def assert_rows_are_left_out(machine: Machine) -> None:
    """Rows that are needed have the same bits, and the loop over tiles of 16 rows ends behind them."""
    op, arrays = BlockMatMul("q4_0"), quantised_case(64, 64, 32, FORMATS["q4_0"])
    site = make_site(op, arrays, machine, (3,))
    (expected,) = op.evaluate(arrays)
    for count in (0, 1, 17, 64):
        cut = ProvedClipped(op, 4, (NeededPositions(0, 0, (NeededExtent(0),)),))
        own = replace(site, inputs=(*site.inputs, TensorType(I64, ())), constants=(*site.constants, None))
        got = results(cut, own, [*arrays, np.array(count)])
        np.testing.assert_array_equal(got[:count], expected[:count])
        assert "< min(4, (needed + 15 // 16))" in show(cut.lower(own)[-1].kernel)
