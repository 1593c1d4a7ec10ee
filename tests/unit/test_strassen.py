"""Strassen's convolution compared with the definition in f64, for every vector width."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from interpret import interpret
from lowered import MACHINES
from tenon.machine.algorithms.strassen import Strassen, best_blockings, divisible
from tenon.machine.kernels import strassen
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.strassen import StrassenBlocking
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.types import Layout
from tenon.network.ops.conv import Conv as Operator


def _error(
    machine: Machine, b: StrassenBlocking, ins: int, outs: int, h: int, w: int, kernel: int = 1, stride: int = 1
) -> float:
    """The largest error over the RMS of the output; channels are counted in blocks."""
    block, pad = machine.block, kernel // 2
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, ins * block, h * stride, w * stride)).astype(np.float32)
    weights = rng.standard_normal((outs * block, ins * block, kernel, kernel)).astype(np.float32)
    bias = rng.standard_normal(outs * block).astype(np.float32)
    into, out = Layout(block, ((pad, pad + 1),) * 2), Layout(block, ((1, 1), (1, 0)))
    s = Conv(
        Image(1, ins * block, h * stride, w * stride, block, pad, pad + 1, pad, pad + 1),
        Image(1, outs * block, h, w, block, 1, 1, 1, 0),
        kernel=(kernel,) * 2,
        stride=(stride,) * 2,
        top=pad,
        left=pad,
    )
    assert divisible(s, machine, b.levels)
    assert b.divides
    built = strassen.strassen(s, machine, b)
    prove(built)
    y = np.zeros(s.y.shape, np.float32)
    own = [np.full(math.prod(shape), np.nan, np.float32) for shape in strassen.scratch(s, b)]
    packed = strassen.transform(weights, s, machine, b)
    interpret(built, [into.pack(x).ravel(), packed.ravel(), bias, *own, y.ravel()])
    wide = (each.astype(np.float64) for each in (x, weights, bias))
    truth = Operator(pads=(pad,) * 4, strides=(stride,) * 2).reference(*wide)[:, :, :h, :w]
    assert not y[:, :, -1].any(), "rows below the image are not written"
    got = out.unpack(y, truth.shape)
    return float(np.abs(got - truth).max() / np.sqrt((truth**2).mean()))


@pytest.mark.parametrize("name", MACHINES)
def test_one_level(name: str) -> None:
    machine = MACHINES[name]
    assert _error(machine, StrassenBlocking(1, 2, 3, 1, OutputTile(1, 2, 1)), 2, 2, 4, 3) < 5e-6


@pytest.mark.parametrize("name", ["lanes4", "lanes1"])
@pytest.mark.parametrize(
    ("blocking", "shape"),
    [
        (StrassenBlocking(2, 4, 2, 1, OutputTile(1, 2, 1)), (4, 4, 4, 2)),
        (StrassenBlocking(2, 1, 8, 2, OutputTile(1, 2, 1)), (4, 8, 1, 16)),
        (StrassenBlocking(1, 2, 3, 2, OutputTile(1, 3, 1)), (2, 4, 2, 3, 3, 2)),
        (StrassenBlocking(1, 1, 4, 1, OutputTile(1, 2, 1)), (2, 2, 2, 4, 1, 2)),
        (StrassenBlocking(1, 2, 2, 1, OutputTile(1, 2, 1)), (2, 2, 2, 2, 3, 1)),
        (StrassenBlocking(0, 1, 3, 1, OutputTile(1, 2, 1)), (1, 2, 2, 3)),
        (StrassenBlocking(1, 4, 3, 1, OutputTile(1, 2, 1)), (2, 2, 3, 3)),
        (StrassenBlocking(1, 2, 5, 2, OutputTile(2, 2, 1)), (2, 4, 5, 5, 3)),
        (StrassenBlocking(1, 4, 3, 2, OutputTile(1, 2, 1)), (2, 4, 7, 3)),
        (StrassenBlocking(1, 2, 3, 1, OutputTile(1, 3, 1)), (2, 2, 5, 3)),
        (StrassenBlocking(2, 4, 3, 1, OutputTile(1, 2, 1)), (4, 4, 3, 3)),
    ],
    ids=[
        *("two_levels", "columns_groups", "3x3_stride_2", "1x1_stride_2", "3x3", "no_level", "odd", "odd_3x3"),
        *("odd_blocks", "odd_pairs_of_rows", "odd_two_levels"),
    ],
)
def test_shapes(name: str, blocking: StrassenBlocking, shape: tuple[int, ...]) -> None:
    assert _error(MACHINES[name], blocking, *shape) < 1e-5


def test_odd_numbers_of_blocks_are_declined() -> None:
    machine = MACHINES["lanes4"]
    s = Conv(Image(1, 8, 4, 4, 4), Image(1, 8, 4, 4, 4))
    assert divisible(s, machine, 1)
    assert not divisible(s, machine, 2)
    assert not divisible(replace(s, x=replace(s.x, channels=12)), machine, 1)
    assert not divisible(replace(s, groups=2), machine, 1)
    assert not StrassenBlocking(1, 3, 5, 1, OutputTile(1, 1, 1)).divides


def test_blockings_fit_the_shape() -> None:
    machine = MACHINES["lanes16"]
    s = Conv(Image(1, 512, 14, 14, 16), Image(1, 512, 14, 14, 16))
    blockings = best_blockings(s, machine, 20)
    assert blockings
    for b in blockings:
        assert divisible(s, machine, b.levels)
        assert b.divides
        assert 14 // b.rows * b.groups >= 2, "two threads have something to do"


def test_the_last_row_of_maps_of_odd_size_has_four_products() -> None:
    """One level leaves a row for four products; with two levels the image gets one more row instead."""
    s = Conv(Image(1, 512, 19, 19, 16), Image(1, 512, 19, 19, 16))
    machine = MACHINES["lanes16"]
    blockings = best_blockings(s, machine, 20)
    assert blockings
    for b in blockings:
        assert (b.rows % 2, -(-19 // b.rows) * b.rows) == (0, 20)
        assert strassen.overhang(s, b) == (b.levels == 2)
        layout = Layout(16, ((0, 0), (0, 0)))
        below = Layout(16, ((0, b.levels - 1), (0, 0)))
        assert Strassen(b).layouts((s,), layout, layout) == (below, layout)
    assert {b.levels for b in blockings} == {1, 2}
    assert not best_blockings(s, replace(machine, cut_short=True), 1)
