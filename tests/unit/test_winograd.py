"""Winograd's algorithm in the interpreter, against the reference, and its error against exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tenon
from interpret import interpret
from lowered import MACHINES, Ask, make_site, run_site, settle
from tenon.machine.algorithms.winograd import ERROR, Winograd
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernels.cook_toom import Short
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.winograd import WinogradBlocking
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.activation import Relu, Sigmoid
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv
from tenon.network.ops.elementwise import Apply
from tenon.network.ops.fused import Fused
from tenon.network.ops.pointwise import Add

PADDED = Conv(pads=(1, 1, 1, 1))


def padded(kernel: tuple[int, int]) -> Conv:
    down, across = (taps // 2 for taps in kernel)
    return Conv(pads=(down, across, down, across))


def run(op: Operator, arrays: list[Array | None], machine: Machine, b: WinogradBlocking, surplus: int = 0) -> Array:
    site = make_site(op, arrays, machine, (1, 2))
    site = settle(op, replace(site, algorithm=Winograd(b)), surplus)
    for step in op.lower(site):
        assert step.kernel.name.startswith(f"winograd{b.m}") or step.kernel.name.startswith("halo")
        prove(step.kernel)
    return run_site(op, site, arrays, Ask(surplus=surplus))[0]


def arrays(c: int, m: int, h: int, w: int, batch: int = 1, *, kernel: tuple[int, int] = (3, 3)) -> list[Array | None]:
    rng = np.random.default_rng(c + m + h + w)
    shapes = ((batch, c, h, w), (m, c, *kernel), (m,))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("surplus", [0, 1])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    ("shape", "blocking"),
    [
        ((5, 9, 7, 6), (3, 2, 2)),  # partial tiles in both axes, partial channel blocks
        ((5, 4, 8, 8), (2, 2, 1)),  # whole tiles
        ((7, 20, 5, 9), (16, 4, 1)),  # fewer tiles than the block
        ((6, 5, 4, 5, 2), (4, 3, 2)),  # a batch
    ],
)
def test_winograd(shape: tuple[int, ...], blocking: tuple[int, ...], m: int, machine: str, surplus: int) -> None:
    given = arrays(*shape)
    tiles, cols, vecs = blocking
    got = run(PADDED, given, MACHINES[machine], WinogradBlocking(m, tiles, cols, vecs), surplus)
    expected = PADDED.evaluate(given)[0]
    np.testing.assert_allclose(got, expected, atol=3e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("machine", MACHINES)
def test_epilogue_with_an_operand_and_cleared_lanes(machine: str) -> None:
    """sigmoid(0) is 0.5, so padding channels must be cleared (``run_site`` checks it)."""
    op = Fused(PADDED, 3, (Apply(Add(), (0, 1)), Apply(Relu(), (2,)), Apply(Sigmoid(), (3,))))
    given = [*arrays(6, 5, 6, 7), np.random.default_rng(1).standard_normal((1, 5, 6, 7)).astype(np.float32)]
    got = run(op, given, MACHINES[machine], WinogradBlocking(4, 3, 3, 1))
    np.testing.assert_allclose(got, op.evaluate(given)[0], atol=2e-5, rtol=0)


KERNELS = [(kernel, m) for kernel, errors in ERROR.items() for m in errors]


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize(("kernel", "m"), [each for each in KERNELS if each[0] != (3, 3)])
def test_other_kernels(kernel: tuple[int, int], m: int, upright: bool) -> None:
    turned = (kernel[1], kernel[0]) if upright else kernel
    given = arrays(5, 6, 7, 6, kernel=turned)
    op = padded(turned)
    for tiles in (3, 40):
        got, expected = run(op, given, MACHINES["lanes4"], WinogradBlocking(m, tiles, 2, 1)), op.evaluate(given)[0]
        np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize(("kernel", "m"), KERNELS)
def test_stated_error(kernel: tuple[int, int], m: int) -> None:
    """The largest error over the RMS of the output, for random data and 32 input channels, is below the stated one and
    at least a tenth of it.
    """
    given, op = arrays(32, 8, 16, 16, kernel=kernel), padded(kernel)
    exact = op.evaluate([a if a is None else a.astype(np.float64) for a in given])[0]
    got = run(op, given, MACHINES["lanes8"], WinogradBlocking(m, 16, 4, 1))
    error = np.abs(got - exact).max() / np.sqrt((exact**2).mean())
    assert ERROR[kernel][m] / 10 < error < ERROR[kernel][m]


@pytest.mark.parametrize(("m", "taps"), [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (2, 7), (4, 7)])
def test_transforms_correlate(m: int, taps: int) -> None:
    """A^T [(G g) * (B^T d)] is the correlation of d and g."""
    short = Short(m, taps)
    k = Builder("transform")
    d, g = k.param("d", short.side), k.param("g", short.side)
    y = k.param("y", m, out=True)
    products = [e * g[i] for i, e in enumerate(short.forward(k, [d[i] for i in range(short.side)]))]
    for i, value in enumerate(short.backward(k, products)):
        y[i] = value
    rng = np.random.default_rng(0)
    inputs, filters = rng.standard_normal(short.side), rng.standard_normal(taps)
    buffers = [inputs.astype(np.float32), (short.taps() @ filters).astype(np.float32), np.zeros(m, np.float32)]
    interpret(k.done(), buffers)
    np.testing.assert_allclose(buffers[2], np.correlate(inputs, filters), atol=2e-5)


def test_microcontrollers_use_winograd_on_request_only() -> None:
    graph = Graph("conv")
    x = graph.add_input("x", tensor(F32, 1, 16, 16, 16))
    weights = graph.constant("w", np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32))
    graph.outputs = [graph.add(PADDED, [x, weights], ["y"]).output]
    for wanted in (None, 4):
        bundle = tenon.compile(graph, target="cortex-m7", winograd=wanted, tuning="none.db")
        names = [call.kernel.name for call in bundle.program.calls]
        assert any(name.startswith("winograd") for name in names) == (wanted == 4)
        assert bundle.manifest({}, compiled=False).options["winograd"] == wanted
