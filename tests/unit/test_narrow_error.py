"""16-bit weights of any magnitude: errors are within those stated by the program, for every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from onnx_models import model, node
from tenon.formats import importers
from tenon.machine.algorithms.base import Algorithm
from tenon.machine.algorithms.winograd import ERROR, Winograd
from tenon.machine.kernels.machine import Machine
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.machine.targets.host_cpu import processor, runs_here
from tenon.network import passes
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Limits
from tenon.network.passes.precision import precision
from tenon.options import Precision

SCALES = (1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4)
"""Scales of weights: f16 has its smallest numbers at 6e-8, whole ones from 6e-5 on, and ends at 65504."""

Form = Callable[[int, float], tuple[list[Any], dict[str, Array]]]
"""Nodes that make "y{i}" of "x" by weights of a scale."""


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv(outputs: int, inputs: int, kernel: tuple[int, int], *, bias: bool = True, **attributes: Any) -> Form:
    def form(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        names = ["x", f"w{i}", f"b{i}"][: 2 + bias]
        weights = {f"w{i}": normal(outputs, inputs, *kernel, seed=i) * np.float32(scale)}
        if bias:
            weights[f"b{i}"] = normal(outputs, seed=i) * np.float32(scale)
        return [node("Conv", names, [f"y{i}"], pads=pads, **attributes)], weights

    return form


def uneven(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    """Every output channel has a different scale."""
    nodes, weights = conv(48, 24, (3, 3))(i, scale)
    weights[f"w{i}"] *= np.float32(10.0) ** np.linspace(-3, 0, 48, dtype=np.float32).reshape(-1, 1, 1, 1)
    return nodes, weights


def transposed(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    weights = {f"w{i}": normal(24, 10, 3, 3, seed=i) * np.float32(scale), f"b{i}": normal(20) * np.float32(scale)}
    return [node("ConvTranspose", ["x", f"w{i}", f"b{i}"], [f"y{i}"], group=2, strides=[2, 2])], weights


def separable(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    weights = {f"d{i}": normal(24, 1, 3, 3, seed=i), f"w{i}": normal(32, 24, 1, 1, seed=i) * np.float32(scale)}
    nodes = [
        node("Conv", ["x", f"d{i}"], [f"m{i}"], group=24, pads=[1, 1, 1, 1]),
        node("Conv", [f"m{i}", f"w{i}"], [f"y{i}"]),
    ]
    return nodes, weights


def depthwise(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    weights = {f"w{i}": normal(24, 1, 3, 3, seed=i) * np.float32(scale)}
    return [node("Conv", ["x", f"w{i}"], [f"y{i}"], group=24, pads=[1, 1, 1, 1])], weights


def matmul(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    return [node("MatMul", ["x", f"w{i}"], [f"y{i}"])], {f"w{i}": normal(26, 40, seed=i) * np.float32(scale)}


def gemm(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    weights = {f"w{i}": normal(40, 24 * 26 * 26, seed=i) * np.float32(scale), f"c{i}": normal(40) * np.float32(scale)}
    nodes = [
        node("Flatten", ["x"], [f"f{i}"]),
        node("Gemm", [f"f{i}", f"w{i}", f"c{i}"], [f"y{i}"], transB=1, alpha=0.5, beta=2.0),
    ]
    return nodes, weights


def lstm(i: int, scale: float) -> tuple[list[Any], dict[str, Array]]:
    """Weights are at most 0.1, so that gates do not saturate."""
    hidden, scale = 8, min(scale, 0.1)
    weights = {
        f"w{i}": normal(1, 4 * hidden, 26, seed=i) * np.float32(scale),
        f"r{i}": normal(1, 4 * hidden, hidden, seed=i + 9) * np.float32(scale),
        f"s{i}": np.array([6, 104, 26]),
    }
    nodes = [
        node("Reshape", ["x", f"s{i}"], [f"t{i}"]),
        node("LSTM", [f"t{i}", f"w{i}", f"r{i}"], [f"y{i}"], hidden_size=hidden),
    ]
    return nodes, weights


FORMS: dict[str, tuple[Form, dict[str, Any]]] = {
    "direct": (conv(32, 24, (3, 3)), {"winograd": 0, "strassen": 0}),
    "pointwise": (conv(32, 24, (1, 1), bias=False), {"strassen": 0}),
    "strassen": (conv(32, 24, (1, 1)), {}),
    "grouped": (conv(32, 12, (3, 3), group=2), {}),
    "winograd_2": (conv(32, 24, (3, 3)), {"winograd": 2}),
    **{f"winograd_{h}x{w}": (conv(32, 24, (h, w)), {}) for a, b in ERROR for h, w in sorted({(a, b), (b, a)})},
    "uneven": (uneven, {}),
    "transposed": (transposed, {}),
    "separable": (separable, {}),
    "depthwise": (depthwise, {}),
    "matmul": (matmul, {}),
    "gemm": (gemm, {}),
    "lstm": (lstm, {}),
}


def furthest(got: Array, expected: Array) -> float:
    """The largest error over the RMS of its channel, or of all of a matrix."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    axes = tuple(i for i in range(got.ndim) if i != 1) if got.ndim == 4 else None
    return float((np.abs(got - expected).max(axes) / np.sqrt((expected**2).mean(axes))).max())


@pytest.mark.parametrize(("name", "target"), [("fp16", "host"), ("bf16", "host"), ("bf16", "x86-64")])
@pytest.mark.parametrize("form", FORMS)
def test_errors_are_within_the_stated_bound(form: str, name: Precision, target: str) -> None:
    if target != "host" and not (processor() == "x86-64" and runs_here(target)):
        pytest.skip(f"this processor is no {target}")
    make, options = FORMS[form]
    made = [make(i, scale) for i, scale in enumerate(SCALES)]
    nodes, weights = [n for each, _ in made for n in each], {k: v for _, each in made for k, v in each.items()}
    outputs = [f"y{i}" for i in range(len(SCALES))]
    file = model(nodes, {"x": [1, 24, 26, 26]}, outputs, weights).SerializeToString()
    x = normal(1, 24, 26, 26, seed=99)
    expected = evaluate(importers.load(file), {"x": x})
    bundle = tenon.compile(file, precision=name, target=target, **options)
    with tenon.open(bundle) as engine:
        got = engine.run(x)
    measured = {scale: furthest(got[y], expected[y]) for scale, y in zip(SCALES, outputs, strict=True)}
    assert max(measured.values()) <= bundle.program.error + 2e-5, measured  # errors of f32 arithmetic: up to 1e-5
    # Weights stay f32 in some forms, and where products of bf16 are slow; outputs of others are not plain sums.
    if form not in ("depthwise", "lstm") and bundle.program.error:
        assert bundle.program.error < 8 * max(measured.values()), "it should say something"


# -------------------------------------------------------------------------------------------- choices
def planned(kernel: tuple[int, int], name: str, limits: Limits = Limits()) -> tuple[Algorithm, ...]:  # noqa: B008
    nodes, weights = conv(64, 64, kernel)(0, 1.0)
    graph = importers.load(model(nodes, {"x": [1, 64, 28, 28]}, ["y0"], weights).SerializeToString())
    passes.optimize(graph, narrow=precision(name, arithmetic=False))
    setting = Setting(Machine(lanes=8, registers=16, block=8), limits)
    product = next(n for n in graph if "Conv" in n.op.name)
    return operator(product).candidates(site(product, setting))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("kernel", ERROR)
def test_only_small_winograd_transforms_are_stored_in_16_bits(kernel: tuple[int, int], name: str) -> None:
    sizes = {c.blocking.m for c in planned(kernel, name) if isinstance(c, Winograd)}
    assert sizes == ({2} if max(kernel) == 3 else set())
    assert 4 in {c.blocking.m for c in planned(kernel, "fp32") if isinstance(c, Winograd)}


def test_error_limit_includes_rounding_of_weights() -> None:
    for most, kept in ((1e-3, False), (1e-2, True)):
        program = planned((3, 3), "fp16", Limits(max_winograd_error=most))
        assert any(isinstance(c, Winograd) for c in program) == kept
        assert any(isinstance(c, Winograd) for c in planned((3, 3), "fp32", Limits(max_winograd_error=most)))


def test_weights_in_the_range_of_f16_are_not_scaled() -> None:
    nodes, weights = conv(8, 8, (3, 3))(0, 0.05)
    graph = importers.load(model(nodes, {"x": [1, 8, 5, 5]}, ["y0"], weights).SerializeToString())
    passes.optimize(graph, narrow=precision("fp16", arithmetic=False))
    assert [n.op.name for n in graph] == ["Conv"]


def test_shared_weights_are_stored_once() -> None:
    w = normal(24, 24, 1, 1) * np.float32(1e-6)
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Conv", ["a", "w"], ["y"])]
    graph = importers.load(model(nodes, {"x": [1, 24, 4, 4]}, ["y"], {"w": w}).SerializeToString())
    passes.optimize(graph, narrow=precision("fp16", arithmetic=False))
    assert len({id(n.inputs[1]) for n in graph if "Conv" in n.op.name}) == 1


@pytest.mark.parametrize("precision_name", ["fp16", "bf16"])
def test_empty_weights_are_unchanged(precision_name: Precision) -> None:
    made = model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 19)}, ["y"], {"w": np.zeros((19, 0), np.float32)})
    bundle = tenon.compile(made.SerializeToString(), precision=precision_name)
    assert tenon.open(bundle).run(np.zeros((2, 19), np.float32))["y"].shape == (2, 0)
