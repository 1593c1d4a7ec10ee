"""Winograd's algorithm under the interpreter, against the reference, and its error against exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowered import MACHINES, Ask, make_site, run_site, settle
from tenon.codegen.bounds import prove
from tenon.ir.graph import Array
from tenon.kernels.machine import Machine
from tenon.kernels.winograd import Blocking
from tenon.ops.activation import Relu, Sigmoid
from tenon.ops.base import Operator
from tenon.ops.conv import Conv
from tenon.ops.elementwise import Apply
from tenon.ops.fused import Fused
from tenon.ops.pointwise import Add

PADDED = Conv(pads=(1, 1, 1, 1))


def run(op: Operator, arrays: list[Array | None], machine: Machine, b: Blocking, surplus: int = 0) -> Array:
    site = make_site(op, arrays, machine, (1, 2))
    site = settle(op, replace(site, choice=b), surplus)
    for step in op.lower(site):
        assert step.kernel.name.startswith(f"winograd{b.m}") or step.kernel.name.startswith("halo")
        prove(step.kernel)
    return run_site(op, site, arrays, Ask(surplus=surplus))[0]


def arrays(c: int, m: int, h: int, w: int, batch: int = 1) -> list[Array | None]:
    rng = np.random.default_rng(c + m + h + w)
    shapes = ((batch, c, h, w), (m, c, 3, 3), (m,))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("surplus", [0, 1])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    ("shape", "blocking"),
    [
        ((5, 9, 7, 6), (3, 2, 2)),  # ragged in both axes, channels that fill no block
        ((5, 4, 8, 8), (2, 2, 1)),  # whole tiles
        ((7, 20, 5, 9), (16, 4, 1)),  # fewer tiles than the block
        ((6, 5, 4, 5, 2), (4, 3, 2)),  # a batch
    ],
)
def test_winograd(shape: tuple[int, ...], blocking: tuple[int, ...], m: int, machine: str, surplus: int) -> None:
    given = arrays(*shape)
    tiles, cols, vecs = blocking
    got = run(PADDED, given, MACHINES[machine], Blocking(m, tiles, cols, vecs), surplus)
    expected = PADDED.evaluate(given)[0]
    np.testing.assert_allclose(got, expected, atol=3e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("machine", MACHINES)
def test_epilogue_with_an_operand_and_cleared_lanes(machine: str) -> None:
    """Sigmoid makes 0.5 of nothing, so the channels past the last must be cleared (``run_site`` checks it)."""
    op = Fused(PADDED, 3, (Apply(Add(), (0, 1)), Apply(Relu(), (2,)), Apply(Sigmoid(), (3,))))
    given = [*arrays(6, 5, 6, 7), np.random.default_rng(1).standard_normal((1, 5, 6, 7)).astype(np.float32)]
    got = run(op, given, MACHINES[machine], Blocking(4, 3, 3, 1))
    np.testing.assert_allclose(got, op.evaluate(given)[0], atol=2e-5, rtol=0)


@pytest.mark.parametrize(("m", "bound"), [(2, 3e-6), (4, 4.4e-5)])
def test_stated_error(m: int, bound: float) -> None:
    """The largest error over the RMS of the output, random data, 32 channels in."""
    given = arrays(32, 8, 16, 16)
    exact = PADDED.evaluate([a if a is None else a.astype(np.float64) for a in given])[0]
    got = run(PADDED, given, MACHINES["lanes8"], Blocking(m, 16, 4, 1))
    error = np.abs(got - exact).max() / np.sqrt((exact**2).mean())
    assert error < bound
