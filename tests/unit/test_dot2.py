"""bf16 dot products are used only where they are faster, by a measured property of the machine."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from onnx_models import model, node, random
from tenon.errors import ToolchainError
from tenon.formats import importers
from tenon.machine.isa.bf16 import DOT2
from tenon.machine.kernels.machine import with_product
from tenon.machine.plan.arithmetic import quickest, why_wide
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import runs_here
from tenon.network.graph.graph import Graph, Node
from tenon.network.graph.types import F32, DType
from tenon.options import Options
from tenon.runtime.engine.peak import pairs_time
from tenon.tools.tune import probe

ROW = "x86-64-avx512-bf16"
MACHINE = find(ROW).machine


def conv(outputs: int, inputs: int, taps: int, size: int, stride: int = 1) -> tuple[Any, dict[str, Any], list[int]]:
    made = node("Conv", ["x", "w"], ["y"], pads=[taps // 2] * 4, strides=[stride] * 2)
    return made, {"w": random(outputs, inputs, taps, taps)}, [1, inputs, size, size]


LAYERS = {
    "3x3": conv(64, 64, 3, 56),
    "3x3 of few": conv(512, 512, 3, 7),
    "5x5": conv(48, 48, 5, 28),
    "1x1": conv(256, 128, 1, 28),
    "1x1 of few": conv(1024, 1024, 1, 7),
    "first": conv(32, 3, 3, 112, 2),
    "stride": conv(128, 128, 3, 28, 2),
    "gemm": (node("Gemm", ["x", "w"], ["y"]), {"w": random(1024, 1000)}, [1, 1024]),
    "rows": (node("MatMul", ["x", "w"], ["y"]), {"w": random(192, 576)}, [1, 197, 192]),
}


def product(name: str) -> Node:
    made, weights, shape = LAYERS[name]
    graph: Graph = importers.load(model([made], {"x": shape}, ["y"], weights).SerializeToString())
    return next(iter(graph))


def time(node: Node, setting: Setting, x: DType, w: DType) -> float:
    here = site(node, setting)
    first, weights, *rest = here.inputs
    assert first is not None
    assert weights is not None
    inputs = (replace(first, dtype=x), replace(weights, dtype=w), *rest)
    outputs = (replace(here.output, dtype=x),)
    return operator(node).cost(replace(here, inputs=inputs, outputs=outputs)).time


@pytest.mark.parametrize("dot2", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_is_slower_than_in_fp32(name: str, dot2: float) -> None:
    layer, setting = product(name), Setting(with_product(MACHINE, replace(DOT2, time=dot2)))
    types = {"narrow": (DType.BF16, DType.BF16), "stored": (F32, DType.BF16), "wide": (F32, F32)}
    chosen = time(layer, setting, *types[quickest(layer, setting)])
    assert chosen <= 1.1 * time(layer, setting, F32, F32)
    if dot2 == 4 and math.prod(LAYERS[name][2][2:]) > 700:  # compute-bound: the size of the weights does not matter
        assert quickest(layer, setting) != "narrow"
        slower = r"(direct|strassen) in f32 takes \d+% of the estimated time of direct in bf16"
        assert re.fullmatch(rf"{slower}|winograd is faster, and computes in f32", why_wide(layer, setting))
    if dot2 == 1:
        assert quickest(layer, setting) == "narrow"


def test_memory_bound_layers_store_16_bit_weights() -> None:
    assert quickest(product("gemm"), Setting(with_product(MACHINE, replace(DOT2, time=4.0)))) != "wide"


def kinds(**changes: Any) -> set[str]:
    made, weights, shape = LAYERS["3x3"]
    file = model([made], {"x": shape}, ["y"], weights).SerializeToString()
    bundle = tenon.compile(file, target=ROW, precision="bf16", **changes)
    return {str(p.type.dtype) for call in bundle.program.calls for p in call.kernel.params}


def test_measured_dot2_cost_selects_the_arithmetic() -> None:
    assert "b2" in kinds(dot2=1)
    assert "b2" not in kinds(dot2=4)


def test_other_targets_use_the_value_of_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "measured", None)  # the measurement must not be called
    assert MACHINE.unit("dot2") == replace(DOT2, time=4)
    assert kinds() == kinds(dot2=4)


def test_a_processor_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def measured(target: Any, _: Any) -> float:
        asked.append(target.name)
        return 3.7

    monkeypatch.setattr(probe, "measured", measured)
    for _ in range(2):
        assert probe.probed(find(ROW), Options(cache=tmp_path)).machine.unit("dot2") == replace(DOT2, time=4)
    monkeypatch.setattr(probe, "model", lambda: "another")
    probe.probed(find(ROW), Options(cache=tmp_path))
    assert asked == [ROW, ROW]


def test_value_of_the_row_is_used_if_measuring_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measured(target: Any, _: Any) -> float:
        raise ToolchainError("no compiler")

    monkeypatch.setattr(probe, "measured", measured)
    assert probe.probed(find(ROW), Options(cache=tmp_path)) == find(ROW)
    assert not list(tmp_path.iterdir())


def test_measured_values_are_rounded_to_powers_of_two() -> None:
    assert [probe.rounded(r) for r in (0.4, 0.99, 1.3, 1.6, 2.7, 3.9, 4.2)] == [1, 1, 1, 2, 2, 4, 4]


@pytest.mark.skipif(not runs_here(ROW), reason="this processor has no products of bf16")
def test_this_processor_can_be_measured() -> None:
    assert 0.5 < pairs_time(find("host", bf16=True)) < 16
    unit = probe.probed(find("host", bf16=True), Options()).machine.unit("dot2")
    assert unit is not None
    assert np.log2(unit.time) in (0, 1, 2, 3, 4)
