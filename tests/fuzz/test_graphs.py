"""Random graphs, compiled at every optimisation level, compared with the references and onnxruntime: a small sample of
``scripts/fuzz``, and regression tests of its findings.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuzzing.generate import Sample, catalogue, endless, sample
from fuzzing.judge import Batch, Configuration, Report, judge
from fuzzing.known import excused
from fuzzing.peer import answer
from tenon.errors import ShapeError
from tenon.machine.targets import find as find_target
from tenon.machine.toolchain.compiler import Compiler, find
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops import registry
from tenon.network.ops.region import RoiAlign
from tenon.options import Options, Precision, child_environment

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return find(Options.from_environment(compiler="gcc"))


@pytest.mark.parametrize(("first", "target"), [(0, "host"), (20, "x86-64")])
def test_random_graphs_have_no_findings(first: int, target: str, compiler: Compiler) -> None:
    report = judge(
        range(first, first + 20), Configuration(find_target(target).name, 1 + 2 * (first > 0), "fp32", compiler)
    )
    assert report.findings == []
    assert report.programs == 60
    # onnxruntime answers for 64 % of the graphs (300 seeds; the others have operators that ONNX lacks), so for fewer
    # than 7 of 20 in one draw of 300.
    assert report.answered >= 7


def test_graphs_are_reproducible() -> None:
    for seed in range(20):
        a, b = sample(seed), sample(seed)
        assert [str(n.op) for n in a.graph] == [str(n.op) for n in b.graph]
        assert all(a.feeds[name].tobytes() == b.feeds[name].tobytes() for name in a.feeds)


def test_generator_covers_every_operator() -> None:
    drawn = {node.op.name for seed in range(3000) for node in sample(seed).graph}
    assert catalogue().keys() <= drawn | {"DetectionPostProcess"}


# ------------------------------------------------------------------------------------ what it would find
def graph_of(inputs: dict[str, Array], *nodes: tuple[str, tuple[str, ...], dict[str, object]]) -> Sample:
    """A list of nodes (operator, inputs, attributes); the output of node i is "v{i}"; inputs that begin with c are
    constants.
    """
    graph, values = Graph("made"), dict[str, Value]()
    for name, data in inputs.items():
        type = TensorType(DType.of(data.dtype), data.shape)
        values[name] = graph.constant(name, data) if name.startswith("c") else graph.add_input(name, type)
    for i, (name, operands, attributes) in enumerate(nodes):
        origin = Origin("", f"v{i}", name)
        values[f"v{i}"] = graph.add(
            registry()[name](**attributes), [values[o] for o in operands], [f"v{i}"], origin
        ).output
    graph.outputs = [values[f"v{len(nodes) - 1}"]]
    return Sample(0, graph, {v.name: inputs[v.name] for v in graph.inputs}, wild=False)


def judged(made: Sample, compiler: Compiler) -> Report:
    batch = Batch(Configuration(find_target("host").name, 1, "fp32", compiler))
    batch.work([made])
    return batch.report


def test_wrong_kernel_is_detected(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenon.network.ops.pointwise import Neg

    # Kernels are cached by shape: no other test has this one.
    made = graph_of({"x": np.ones((41, 7, 43), np.float32)}, ("Neg", ("x",), {}), ("Exp", ("v0",), {}))
    monkeypatch.setattr(Neg, "scalar", lambda self, x: x)
    kinds = [(finding.kind, finding.level) for finding in judged(made, compiler).findings]
    assert kinds == [("wrong", 0), ("wrong", 1), ("wrong", 2)]


def test_wrong_reference_is_detected(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenon.network.ops.pointwise import Ceil

    monkeypatch.setattr(Ceil, "reference", lambda self, x: np.floor(x))
    made = graph_of({"x": np.full((3, 5), 0.5, np.float32)}, ("Ceil", ("x",), {}))
    assert "onnxruntime" in {finding.kind for finding in judged(made, compiler).findings}


# ----------------------------------------------------------------------------------------- what it found
def test_residual_of_convolution_without_bias(compiler: Compiler) -> None:
    x, w = np.ones((1, 5, 4, 4), np.float32), np.ones((5, 5, 1, 1), np.float32)
    made = graph_of({"x": x, "cw": w}, ("Conv", ("x", "cw"), {}), ("Add", ("v0", "x"), {}))
    assert judged(made, compiler).findings == []


@pytest.mark.parametrize(
    ("operator", "number"), [("Sin", 3e38), ("Cos", -3e38), ("Acosh", -2147483904.0), ("Acosh", 3e38), ("LRN", np.nan)]
)
def test_functions_of_large_arguments(operator: str, number: float, compiler: Compiler) -> None:
    x = np.full((1, 4, 2, 2), number, np.float32)
    attributes: dict[str, object] = {"size": 9, "alpha": 1.0, "beta": 0.6} if operator == "LRN" else {}
    assert judged(graph_of({"x": x}, (operator, ("x",), attributes)), compiler).findings == []


@pytest.mark.parametrize(("reach", "answered"), [(40.0, 1), (9e5, 0)])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_of_regions_of_any_size(reach: float, answered: int, mode: str, compiler: Compiler) -> None:
    """onnxruntime evaluates all samples of a region, so the largest regions are not run with it."""
    x = np.random.default_rng(0).uniform(1, 2, (1, 2, 5, 7)).astype(np.float32)
    rois = np.array([[-reach, -3.2, reach, 7.1], [2, 3, 1, 1], [0, 0, 21, 28]], np.float32)
    attributes: dict[str, object] = {"output_height": 7, "output_width": 7, "mode": mode}
    made = graph_of({"x": x, "r": rois, "cb": np.zeros(3, np.int64)}, ("RoiAlign", ("x", "r", "cb"), attributes))
    report = judged(replace(made, endless=endless(RoiAlign(**attributes), rois)), compiler)  # type: ignore[arg-type]
    assert report.findings == []
    assert report.answered == answered


def test_strides_larger_than_the_kernel(compiler: Compiler) -> None:
    """By ONNX the output of SAME padding has input times stride elements; onnxruntime gives fewer."""
    x, w = np.ones((2, 1, 1, 1), np.float32), np.ones((1, 1, 1, 5), np.float32)
    attributes: dict[str, object] = {"auto_pad": "SAME_LOWER", "strides": (2, 2)}
    made = graph_of({"x": x, "cw": w}, ("ConvTranspose", ("x", "cw"), attributes))
    report = judged(made, compiler)
    assert made.graph.outputs[0].type.dims == (2, 1, 2, 2)
    assert report.findings == []
    assert list(report.excused.elements()) == [excused(made)]


def test_one_hot_of_float_indices(compiler: Compiler) -> None:
    """ONNX casts them to integers; onnxruntime does so on some machines only."""
    x, values = np.array([0, 1.5, 2.9, -0.5, -1.5, 3.5], np.float32), np.array([2, 5], np.float32)
    made = graph_of({"x": x, "cd": np.array([3], np.float32), "v": values}, ("OneHot", ("x", "cd", "v"), {}))
    report = judged(made, compiler)
    assert report.findings == []
    assert report.answered == 1
    assert "OneHot" in excused(made)
    assert set(report.excused) <= {excused(made)}


def test_overflowing_variances(compiler: Compiler) -> None:
    """ONNX computes them in f32; onnxruntime in f64 where it broadcasts the scale."""
    inputs = {"x": np.array([[1e20, 0, 0, 0]], np.float32), "cs": np.ones(1, np.float32), "cb": np.zeros(4, np.float32)}
    made = graph_of(inputs, ("LayerNormalization", ("x", "cs", "cb"), {}))
    report = judged(replace(made, wild=True), compiler)
    assert report.findings == []
    assert list(report.excused) == [excused(replace(made, wild=True))]


def test_max_pool_of_large_negative_bf16_values(compiler: Compiler) -> None:
    x = np.full((1, 3, 5, 5), -1e9).astype(DType.BF16.numpy)
    made = graph_of({"x": x}, ("MaxPool", ("x",), {"kernel_shape": (3, 1), "pads": (1, 1, 1, 1)}))
    actual = evaluate(made.graph, made.feeds)["v0"].astype(np.float32)
    assert np.isneginf(actual[..., 0]).all()
    assert (actual[..., 1:-1] == np.float32(x[0, 0, 0, 0])).all()
    assert judged(made, compiler).findings == []


def test_sum_of_a_single_input(compiler: Compiler) -> None:
    assert judged(graph_of({"x": np.ones(3, np.float32)}, ("Sum", ("x",), {})), compiler).findings == []


def test_scalar_constants_stay_scalars_in_onnx() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = graph_of({"x": x, "ci": np.array(1, np.int64)}, ("Gather", ("x", "ci"), {"axis": 1}))
    assert answer(made.graph, made.feeds)["v0"].tolist() == [1, 4]


def test_arrays_are_attributes_in_onnx() -> None:
    shape, value = np.array([2], np.int64), np.array([7], np.int64)
    made = graph_of({"x": shape, "cs": shape}, ("ConstantOfShape", ("cs",), {"value": value}))
    assert answer(made.graph, made.feeds)["v0"].tolist() == [7, 7]


def test_celu_with_zero_alpha() -> None:
    with pytest.raises(ShapeError, match="alpha is 0"):
        graph_of({"x": np.ones(3, np.float32)}, ("Celu", ("x",), {"alpha": 0.0}))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_weights_of_16_bits_along_three_axes(precision: Precision, compiler: Compiler) -> None:
    x, w = np.ones((1, 2, 3, 3, 2), np.float32), np.full((2, 3, 2, 1, 2), 0.3, np.float32)
    made = graph_of({"x": x, "cw": w}, ("ConvTranspose", ("x", "cw"), {}))
    batch = Batch(Configuration(find_target("host").name, 1, precision, compiler))
    batch.work([made])
    assert batch.report.findings == []
    assert batch.report.programs == 3


# ------------------------------------------------------------------------------------------ command line
def test_the_command_resumes_and_reports(tmp_path: Path) -> None:
    root, log = Path(__file__).parents[2], tmp_path / "log"
    environment = child_environment(PYTHONPATH=f"{root}/src:{root}/tests")

    def run(count: int) -> dict[str, object]:
        command = [sys.executable, "-m", "fuzzing", "--graphs", str(count), "--seed", "0", "--log", str(log), "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
        report: dict[str, object] = json.loads(done.stdout)
        return report

    assert run(2)["graphs"] == 2
    assert run(3)["graphs"] == 3
    assert [json.loads(line)["next"] for line in log.read_text().splitlines()] == [2, 3]
