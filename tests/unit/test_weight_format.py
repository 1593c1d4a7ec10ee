"""Weights in fewer bits, multiplied in f32: what is stored, the budget for the error, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
import tenon.cli
from command_line import run_main
from onnx_models import model, node, random
from tenon.errors import InputError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType
from tenon.network.passes.precision import can_store, rounded_weights
from tenon.network.passes.weight_format import StoredWeights, stored_weights

I8, F16 = DType.I8, DType.F16
WEIGHTS = {"w": random(48, 3, 3, 3), "v": random(48, 48, 1, 1), "d": random(48, 1, 3, 3), "u": random(48, 100)}


def network() -> bytes:
    """A first layer, a 1x1, a depthwise convolution and a classifier of twice its matrix plus a bias."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["e"]),
        node("Conv", ["e", "d"], ["f"], group=48),
        node("GlobalAveragePool", ["f"], ["g"]),
        node("Flatten", ["g"], ["h"]),
        node("Gemm", ["h", "u", "s"], ["y"]),
    ]
    constants = {**WEIGHTS, "b": random(48), "s": random(100)}
    made: bytes = model(nodes, {"x": [1, 3, 9, 9]}, ["y"], constants).SerializeToString()
    return made


def feeds(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {v.name: rng.standard_normal(v.type.dims).astype(np.float32) for v in graph.inputs}


# ------------------------------------------------------------------------------------------ what is stored
@pytest.mark.parametrize("axis_first", [True, False])
def test_the_largest_weight_of_a_channel_is_127_steps(axis_first: bool) -> None:
    weights = random(5, 7) if axis_first else random(7, 5)
    text = model([node("Gemm", ["x", "w"], ["y"], transB=int(axis_first))], {"x": [2, 7]}, ["y"], {"w": weights})
    (product,) = tenon.load(text.SerializeToString())
    rounded, rows = rounded_weights(product, I8), weights if axis_first else weights.T
    steps = (rounded if axis_first else rounded.T) / (np.abs(rows).max(1, keepdims=True) / 127)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert np.abs(rounded - weights).max() <= np.abs(weights).max() / 254 * 1.001


def test_groups_of_a_transposed_convolution_have_scales_of_their_own() -> None:
    weights = random(4, 3, 2, 2) * np.array([1, 1, 100, 100], np.float32).reshape(4, 1, 1, 1)
    text = model([node("ConvTranspose", ["x", "w"], ["y"], group=2)], {"x": [1, 4, 3, 3]}, ["y"], {"w": weights})
    (layer,) = tenon.load(text.SerializeToString())
    error = np.abs(rounded_weights(layer, I8) - weights)
    assert error[:2].max() <= 1 / 254 * 1.001
    assert 1 / 254 < error[2:].max() <= 100 / 254 * 1.001


def test_a_bundle_computes_in_f32_with_integer_weights() -> None:
    graph = tenon.load(network())
    bundle = tenon.compile(network(), weight_format="int8", no_tuning=True, strassen=0, winograd=0)
    reading = [call.op for call in bundle.program.calls if any(b.type.dtype is I8 for b in call.kernel.params)]
    assert len(reading) == 3  # not the depthwise convolution
    assert bundle.program.stored == StoredWeights({"i8": 3}, {"i8": 48 * 27 + 48 * 48 + 48 * 100})

    def step(layer: Any, arrays: Any) -> Any:
        stored = [arrays[0], rounded_weights(layer, I8), *arrays[2:]] if can_store(layer) else arrays
        return layer.evaluate(stored)

    given = feeds(graph)
    expected, plain = evaluate(graph, given, step)["y"], evaluate(graph, given)["y"]
    with tenon.open(bundle) as engine:
        got = engine.run(given)["y"]
        assert engine.manifest.stored is not None
        assert engine.manifest.stored.layers == {"i8": 3}
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5 * float(np.abs(expected).max()))
    assert np.abs(plain - expected).max() > 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("target", ["x86-64-avx2", "aarch64", "cortex-m4", "riscv64", "wasm32"])
def test_weights_take_a_quarter_on_every_kind_of_processor(target: str) -> None:
    sizes = {}
    for form in ("fp32", "int8"):
        made = tenon.compile(network(), weight_format=form, target=target, no_tuning=True, winograd=0, strassen=0)
        sizes[form] = made.program.memory.constant
    assert sizes["int8"] < 0.4 * sizes["fp32"]  # biases, scales and depthwise weights stay f32


def test_what_stays_in_f32() -> None:
    nodes = [node("Gemm", ["x", "w"], ["a"], alpha=0.5), node("MatMul", ["a", "n"], ["y"])]
    broken = random(16, 8)
    broken[0, 0] = np.nan
    text = model(nodes, {"x": [1, 8]}, ["y"], {"w": random(8, 16), "n": broken}).SerializeToString()
    report = StoredWeights()
    graph = tenon.load(text)
    assert stored_weights(lambda layer: [I8], report=report).run(graph, lambda line: None) == 0
    assert report.layers == {}


# ------------------------------------------------------------------------------------------ the budget
def chosen(most: float) -> StoredWeights:
    report, graph = StoredWeights(), tenon.load(network())
    stored_weights(lambda layer: [I8, F16], most, report).run(graph, lambda line: None)
    return report


def test_a_budget_is_met_by_wider_types() -> None:
    generous, tight, none = chosen(0.5), chosen(0.004), chosen(0.0)
    assert generous.layers == {"i8": 3}
    assert generous.error is not None
    assert 0.004 < generous.error < 0.05
    assert set(tight.layers) > {"f16"} or tight.layers == {"f16": 3}
    assert tight.error is not None
    assert tight.error <= 0.004
    assert none.layers == {"f32": 3}
    assert none.error == 0.0


def test_auto_stores_what_comes_from_memory_in_fewer_bits() -> None:
    """A large matrix for one row is faster in fewer bits, a convolution with many positions is not."""
    weights = {"w": random(64, 64, 3, 3), "u": random(4096, 1024) / 64}
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Resize", ["g", "", "", "size"], ["k"], mode="nearest"),
        node("Flatten", ["k"], ["h"]),
        node("MatMul", ["h", "u"], ["y"]),
    ]
    constants = {**weights, "size": np.array([1, 64, 8, 8], np.int64)}
    text = model(nodes, {"x": [1, 64, 28, 28]}, ["y"], constants).SerializeToString()
    made = tenon.compile(text, weight_format="auto", max_weight_error=0.1, target="x86-64-avx2", no_tuning=True)
    assert made.program.stored is not None
    assert made.program.stored.layers == {"f32": 1, "i8": 1}


# ------------------------------------------------------------------------------------------ refusals, commands
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight_format": "int8", "precision": "fp16"}, "leave out precision=fp16"),
        ({"weight_format": "auto", "target": "cuda"}, "give precision=fp16"),
        ({"max_weight_error": 0.1}, "give that too"),
        ({"weight_format": "int4"}, "weight_format='int4'"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tenon.compile(network(), **options)


def test_the_error_is_measured_on_inputs_of_one_size() -> None:
    text = model([node("Conv", ["x", "v"], ["y"])], {"x": [1, 48, "H", 8]}, ["y"], WEIGHTS).SerializeToString()
    with pytest.raises(InputError, match=r"max_weight_error=0.1: .* give numbers for H"):
        tenon.compile(text, shapes={"H": "2..8"}, weight_format="int8", max_weight_error=0.1)


def test_the_command_prints_what_it_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(network())
    words = ["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net"), "--target", "cortex-m4"]
    assert run_main(tenon.cli.main, [*words, "--weight-format", "int8", "--max-weight-error", "0.5"]) == 0
    assert "3 layer(s) in i8, error of the outputs" in capsys.readouterr().out
    assert run_main(tenon.cli.main, ["inspect", str(tmp_path / "net")]) == 0
    assert "3 layer(s) in i8" in capsys.readouterr().out
    assert run_main(tenon.cli.main, ["inspect", str(tmp_path / "net.onnx"), "--weight-format", "fp16"]) == 0
    assert "3 layer(s) in f16" in capsys.readouterr().out
