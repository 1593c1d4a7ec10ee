"""Algorithms are chosen for the number of threads of a bundle, with enough work items for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from onnx_models import model, node, random
from tenon.formats import importers
from tenon.machine.algorithms.estimate import slowest, work_items
from tenon.machine.codegen.threads import Sharing
from tenon.machine.kernels.parallel import ENOUGH, deal, enough
from tenon.machine.plan.program import Program
from tenon.machine.proofs.count import count
from tenon.network.graph.graph import Array


def conv(outputs: int, inputs: int, taps: int, size: int, stride: int = 1, group: int = 1) -> bytes:
    weights = {"w": random(outputs, inputs // group, taps, taps) / np.float32(taps * inputs**0.5)}
    made = node("Conv", ["x", "w"], ["y"], pads=[taps // 2] * 4, strides=[stride] * 2, group=group)
    return bytes(model([made], {"x": [1, inputs, size, size]}, ["y"], weights).SerializeToString())


def separable(inputs: int, outputs: int, size: int) -> bytes:
    weights = {"d": random(inputs, 1, 3, 3), "w": random(outputs, inputs, 1, 1) / np.float32(inputs**0.5)}
    nodes = [
        node("Conv", ["x", "d"], ["m"], pads=[1] * 4, group=inputs),
        node("Relu", ["m"], ["r"]),
        node("Conv", ["r", "w"], ["y"]),
    ]
    return bytes(model(nodes, {"x": [1, inputs, size, size]}, ["y"], weights).SerializeToString())


LAYERS = {
    "winograd 56": conv(64, 64, 3, 56),
    "winograd 28": conv(128, 128, 3, 28),
    "winograd 14": conv(256, 256, 3, 14),
    "winograd 7": conv(512, 512, 3, 7),
    "strassen 14": conv(512, 512, 1, 14),
    "strassen 28": conv(256, 256, 1, 28),
    "stride": conv(256, 256, 3, 14, 2),
    "first": conv(64, 3, 7, 112, 2),
    "separable": separable(32, 64, 112),
    "depthwise": conv(128, 128, 3, 56, group=128),
    "depthwise of many": conv(512, 512, 3, 28, group=512),
}


def speedup(program: Program, threads: int) -> float:
    """The parallel speed-up, by counts of vector instructions."""
    sharing, alone, together = Sharing(program.threads), 0.0, 0.0
    for call in program.calls:
        work, slices = count(call.kernel).instructions, sharing.part(call).slices
        alone += work
        together += work * slowest(slices.length if slices else 1, threads)
    return alone / together


def compiled(file: bytes, **changes: Any) -> Program:
    return tenon.compile(file, target="x86-64-avx512", **changes).program


@pytest.mark.parametrize("threads", [4, 16, 32])
@pytest.mark.parametrize("name", LAYERS)
def test_there_is_work_for_every_thread(name: str, threads: int) -> None:
    assert speedup(compiled(LAYERS[name], threads=threads), threads) > 0.66 * threads


def test_algorithms_for_one_thread_do_not_scale_to_many() -> None:
    gains = {name: speedup(compiled(LAYERS[name]), 16) for name in LAYERS}
    assert min(gains.values()) < 8


@pytest.mark.parametrize("name", LAYERS)
def test_default_algorithms_are_the_best_for_one_thread(name: str) -> None:
    default, alone = compiled(LAYERS[name]), compiled(LAYERS[name], threads=1)
    assert [call.kernel.name for call in default.calls] == [call.kernel.name for call in alone.calls]
    assert (default.threads, alone.threads) == (8, 1)
    work = [sum(count(call.kernel).instructions for call in program.calls) for program in (default, alone)]
    assert work[0] == work[1]


@pytest.mark.parametrize("name", ["winograd 28", "strassen 14", "separable", "depthwise"])
def test_results_are_right_and_equal_for_any_number_of_threads(name: str) -> None:
    graph = importers.load(LAYERS[name])
    x = random(*graph.inputs[0].type.dims)
    bundle = tenon.compile(LAYERS[name], threads=16)
    results: list[Array] = []
    for threads in (1, 2, 16):
        with tenon.open(bundle, threads=threads) as engine:
            results.append(engine.run(x)["y"])
    (expected,) = evaluate(graph, {"x": x}).values()
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-4 * float(np.abs(expected).max()))
    assert {y.tobytes() for y in results} == {results[0].tobytes()}


def test_more_threads_need_more_work_items() -> None:
    assert enough(1) == enough(2) == ENOUGH
    assert enough(16) > ENOUGH
    assert deal(40, 10)[0] == ["parallel", "serial"]
    assert deal(40, 10, threads=16)[0] == ["parallel", "parallel"]
    assert work_items(40, 10) == 40
    assert work_items(40, 10, threads=16) == 400
    assert work_items(3, 2, inside=5) == 30


def test_the_slowest_thread_decides() -> None:
    assert slowest(17, 1) == 1.0
    assert slowest(16, 16) == 1 / 16
    assert slowest(17, 16) == 2 / 17
