"""Lower bounds of networks' times: the arithmetic of multiplies, bytes and launches, and what bounds a layer."""

from __future__ import annotations

from typing import Literal

import pytest

import tenon
from onnx_models import model, node, random
from tenon.machine.plan.program import Program, walk
from tenon.machine.targets import find
from tenon.options import Options
from tenon.pipeline import find_target
from tenon.runtime.engine.floors import (
    LayerShape,
    LowerBound,
    MachineRates,
    Work,
    floor,
    layer_work,
    meetings,
    network_floor,
    reason,
    resident_bytes,
)
from tenon.runtime.engine.peak import barrier_seconds, chain, read_bandwidth

RATES = MachineRates(macs=1e9, bandwidth=lambda nbytes: 1e10 if nbytes <= 1000 else 1e9, launch=2e-6)


def program(options: Options, *, kernel: int, extent: int) -> Program:
    """A convolution of 64 to 64 channels."""
    weights = {"w": random(64, 64, kernel, kernel)}
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)]
    text: bytes = model(nodes, {"x": [1, 64, extent, extent]}, ["y"], weights).SerializeToString()
    return tenon.compile(text, options).program


def work_of(made: Program) -> Work:
    calls = [call for call, _ in walk(made.items)]
    return layer_work(calls, meetings(made, on_device=False), find("x86-64-avx2").machine)


def direct(winograd: Literal[0, 4] = 0) -> Options:
    return Options(target="x86-64-avx2", winograd=winograd, strassen=0, no_tuning=True)


# ------------------------------------------------------------------------------------------ arithmetic
def test_the_longer_of_multiplies_and_bytes_and_the_launches() -> None:
    work = Work(products=4_000_000, executed=4_000_000, rate=2.0, weights=500, activations=3000, launches=3)
    least = floor(work, 1000, RATES)
    assert least.multiplies == pytest.approx(2.0)
    assert least.weights == pytest.approx(500 / 1e10 * 1e3)  # all that a run touches fits the cache
    assert least.bytes == pytest.approx(least.weights + 3000 / 1e9 * 1e3)
    assert least.launches == pytest.approx(6e-3)
    assert least.time == pytest.approx(2.006)
    assert least.bound == "multiplies"


def test_weights_come_from_memory_where_a_run_touches_more_than_caches_hold() -> None:
    work = Work(weights=500)
    assert floor(work, 2000, RATES).weights == pytest.approx(10 * floor(work, 1000, RATES).weights)


def test_layers_of_a_network_run_one_after_the_other() -> None:
    total, parts = network_floor([LowerBound(2.0, 1.0, 0.5, 0.25), LowerBound(1.0, 3.0, 0.5, 2.0)])
    assert total == 6.0
    assert parts == LowerBound(3.0, 4.0, 1.0, 2.25)


# ------------------------------------------------------------------------------------------ what layers need
def test_bytes_and_products_of_a_convolution() -> None:
    made = program(direct(), kernel=1, extent=12)
    work = work_of(made)
    assert work.products == 64 * 64 * 12 * 12 <= work.executed
    assert work.rate == 1.0
    assert work.weights >= 4 * 64 * 64
    assert work.activations >= 2 * 4 * 64 * 12 * 12
    assert resident_bytes(made) >= work.weights


def test_winograd_needs_fewer_products() -> None:
    all_of_them, fewer = (work_of(program(direct(tile), kernel=3, extent=56)) for tile in (0, 4))
    assert all_of_them.products == 9 * 64 * 64 * 56 * 56
    assert fewer.products == fewer.executed < all_of_them.products / 2


def test_pairs_of_bf16_in_the_time_of_one_product() -> None:
    options = Options(target="x86-64-avx512-bf16", precision="bf16", dot2=1.0, winograd=0, strassen=0, no_tuning=True)
    made = program(options, kernel=1, extent=16)
    calls = [call for call, _ in walk(made.items) if call.macs]
    assert layer_work(calls, [False] * len(calls), find_target(options).machine).rate == pytest.approx(2.0)


def test_barriers_and_launches() -> None:
    assert sum(meetings(chain(5, 1 << 16, 1), on_device=False)) == 0
    assert sum(meetings(chain(5, 1 << 16, 2), on_device=False)) == 4
    assert sum(meetings(chain(5, 64, 2), on_device=False)) == 0  # too small to be divided
    assert sum(meetings(chain(5, 64, 1), on_device=True)) == 5


def test_measured_rates() -> None:
    assert barrier_seconds(1) == 0.0
    assert read_bandwidth(1 << 14, threads=2) > 1e8


# ------------------------------------------------------------------------------------------ reasons
CONV = LayerShape("Conv", ("conv3x3",), (1, 64, 56, 56), (64, 64, 3, 3))


@pytest.mark.parametrize(
    ("shape", "work", "least", "words"),
    [
        (CONV, Work(100, 100), LowerBound(1.0, 0.1, 0.0), "loads and stores beside the multiplies"),
        (CONV, Work(100, 150), LowerBound(1.0, 0.1, 0.0), "tiles larger than the result: 50% more products"),
        (CONV, Work(100, 100), LowerBound(0.1, 1.0, 0.0, 0.9), "weights from memory"),
        (CONV, Work(100, 100), LowerBound(0.1, 0.1, 1.0), "a launch or barrier takes longer than the work"),
        (LayerShape("Conv", ("w",), (1, 64, 7, 7), (64, 64, 1, 1)), Work(9, 9), LowerBound(1.0, 0.1, 0.0), "small map"),
        (
            LayerShape("Conv", ("d",), (1, 8, 56, 56), (8, 1, 3, 3), 8),
            Work(9, 9),
            LowerBound(1.0, 0.1, 0.0),
            "depthwise",
        ),
        (
            LayerShape("Conv", ("c",), (1, 8, 56, 56), (8, 3, 3, 3)),
            Work(9, 9),
            LowerBound(1.0, 0.1, 0.0),
            "first layer",
        ),
        (LayerShape("Reorder", ("reorder",), (1, 3, 4, 4), ()), Work(), LowerBound(0.0, 0.1, 0.0), "another layout"),
        (
            LayerShape("Sigmoid", ("sigmoid",), (1, 3, 4, 4), ()),
            Work(),
            LowerBound(0.0, 0.1, 0.0),
            "element by element",
        ),
    ],
)
def test_reasons(shape: LayerShape, work: Work, least: LowerBound, words: str) -> None:
    assert words in reason(shape, work, least, 2.5)


def test_a_layer_near_its_floor() -> None:
    assert reason(CONV, Work(100, 100), LowerBound(1.0, 0.1, 0.0), 1.1) == "near its floor"
