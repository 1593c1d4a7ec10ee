"""``tenon validate``: against ONNX Runtime and recorded outputs, on this machine and on an emulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tenon
from installed import succeeds
from installed import tenon as command
from on_targets import skip_without_device
from onnx_models import model, node
from tenon.errors import InputError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, DType, Quant, TensorType, tensor
from tenon.network.passes.base import make
from tenon.options import Options
from tenon.tools.deployment import layers
from tenon.tools.deployment import validate as validation
from tenon.tools.deployment.layers import REFERENCES, CompiledLayers, compare_layers, diverging
from tenon.tools.deployment.limits import LIMITS
from tenon.tools.deployment.running import running
from tenon.tools.deployment.validate import reference, validate
from tenon.tools.quantization.comparison import BundleNetwork

IMAGE = [1, 2, 3, 4]
SAMPLES = np.random.default_rng(0).normal(size=(5, *IMAGE)).astype(np.float32)
EXPECTED = {"half": SAMPLES / 2, "relu": np.maximum(SAMPLES, 0)}


def network(folder: Path, half: float = 0.5) -> str:
    nodes = [node("Mul", ["x", "c"], ["half"]), node("Relu", ["x"], ["relu"])]
    made = model(nodes, {"x": IMAGE}, ["half", "relu"], {"c": np.array([half], np.float32)})
    (folder / "net.onnx").write_bytes(made.SerializeToString())
    np.save(folder / "samples.npy", SAMPLES)
    return str(folder / "net.onnx")


def test_equal_outputs_pass(tmp_path: Path) -> None:
    file = network(tmp_path)
    text = succeeds("validate", file, "--data", "samples.npy", "--against", "onnxruntime", cwd=tmp_path)
    assert text.count("passed") == 2
    assert text.count("0.00 %") == 2
    assert "5 sample(s), against onnxruntime:" in text


def test_the_models_own_framework_is_the_default_reference(tmp_path: Path) -> None:
    file = network(tmp_path)
    assert "against onnxruntime:" in succeeds("validate", file, "--data", "samples.npy", cwd=tmp_path)
    succeeds("optimize", file, "-o", "net.tmfile", cwd=tmp_path)
    done = command("validate", "net.tmfile", "--data", "samples.npy", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "no runtime here runs models of Tengine: give recorded outputs (--expected)" in " ".join(done.stderr.split())


def test_without_data_random_numbers_are_compared(tmp_path: Path) -> None:
    """A file with an open batch and a bundle are compared, too."""
    made = model([node("Gemm", ["x", "w"], ["y"])], {"x": ("batch", 4)}, ["y"], {"w": np.ones((4, 3), np.float32)})
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    done = command("validate", "net.onnx", "--samples", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 sample(s), against onnxruntime:" in done.stdout
    assert "3 samples of random numbers are compared" in done.stderr
    succeeds("compile", "net.onnx", "-o", "net", cwd=tmp_path)
    text = succeeds("validate", "net", "--against", "onnxruntime:net.onnx", "--samples", "2", cwd=tmp_path)
    assert "2 sample(s)" in text
    np.savez(tmp_path / "expected.npz", y=np.zeros((1, 3), np.float32))
    done = command("validate", "net.onnx", "--expected", "expected.npz", cwd=tmp_path)
    assert done.returncode == 2
    assert "--data is missing: recorded outputs are those of samples" in " ".join(done.stderr.split())


def test_without_data_on_another_processor(tmp_path: Path) -> None:
    skip_without_device("aarch64")
    file = network(tmp_path)
    assert succeeds("validate", file, "--target", "aarch64", cwd=tmp_path).count("passed") == 2


def test_recorded_outputs(tmp_path: Path) -> None:
    file = network(tmp_path)
    np.savez(tmp_path / "expected.npz", half=EXPECTED["half"], relu=EXPECTED["relu"])
    arguments = ("validate", file, "--data", "samples.npy", "--expected", "expected.npz")
    report = json.loads(succeeds(*arguments, "--json", cwd=tmp_path))
    assert (report["passed"], report["samples"], report["against"]) == (True, 5, "recorded outputs")
    assert [row["name"] for row in report["outputs"]] == ["half", "relu"]
    assert all(row["cosine"] > 0.999999 and row["sqnr"] is None and row["error"] == 0 for row in report["outputs"])
    np.savez(tmp_path / "expected.npz", half=EXPECTED["half"], relu=-SAMPLES)
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "output 'relu' differs from recorded outputs: cosine similarity" in " ".join(done.stderr.split())
    assert "below 0.999" in done.stdout


def test_the_error_of_every_output_is_measured(tmp_path: Path) -> None:
    graph = tenon.load(network(tmp_path))
    noisy = {name: array * np.float32(1.01) for name, array in EXPECTED.items()}

    def run(sample: Mapping[str, Array]) -> dict[str, Array]:
        return {"half": sample["x"] / 2, "relu": np.maximum(sample["x"], 0)}

    validation = validate(graph, run, SAMPLES, expected=noisy)
    for check in validation.outputs:
        assert check.cosine == pytest.approx(1)
        assert check.sqnr == pytest.approx(20 * np.log10(101), abs=0.01)
        assert check.error == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert validation.passed
    for cosine, sqnr, error in ((1.5, None, None), (None, 40.2, None), (None, None, 0.0098)):
        assert not validate(
            graph, run, SAMPLES, expected=noisy, limits=LIMITS["cpu"].changed(cosine, sqnr, error)
        ).passed
    assert validate(graph, run, SAMPLES, expected=noisy, limits=LIMITS["cpu"].changed(0.99)).passed


def test_results_of_another_scale_are_refused(tmp_path: Path) -> None:
    """Boxes that are 1.1 times too large have a cosine similarity of 1."""
    file = network(tmp_path)
    np.savez(tmp_path / "expected.npz", half=1.1 * EXPECTED["half"], relu=EXPECTED["relu"])
    arguments = ("validate", file, "--data", "samples.npy", "--expected", "expected.npz")
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "output 'half' differs from recorded outputs: SQNR 20.8 dB, at least 40.0 dB" in " ".join(
        done.stderr.split()
    )
    assert "below 40.0 dB" in done.stdout
    succeeds(*arguments, "--threshold", "0.99", cwd=tmp_path)
    succeeds(*arguments, "--min-sqnr", "20", "--max-error", "0.1", cwd=tmp_path)


def test_a_single_wrong_element_is_refused(tmp_path: Path) -> None:
    graph = tenon.load(network(tmp_path))
    wanted = {name: array.copy() for name, array in EXPECTED.items()}
    wanted["half"].flat[3] += 0.02 * np.abs(wanted["half"]).max()
    answers = lambda sample: {"half": sample["x"] / 2, "relu": np.maximum(sample["x"], 0)}  # noqa: E731
    half, relu = validate(graph, answers, SAMPLES, expected=wanted).outputs
    assert half.sqnr > 40
    assert (half.passed, half.verdict, relu.passed) == (False, "error above 0.01", True)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.U8, DType.BOOL])
def test_integers_have_to_be_equal(dtype: DType) -> None:
    """The cosine similarity hardly shows a single one that differs."""
    graph = Graph("net")
    x = graph.add_input("x", TensorType(dtype, (1, 1000)))
    graph.outputs = [graph.add(make("Identity"), [x], ["y"]).output]
    graph.outputs[0].type = x.type
    samples = [np.random.default_rng(i).integers(0, 2, (1, 1000)).astype(dtype.numpy) for i in range(3)]
    wanted = np.stack(samples)
    same = validate(graph, lambda sample: {"y": sample["x"]}, samples, expected={"y": wanted})
    assert same.passed
    wanted[1, 0, 7] = wanted[1, 0, 7] == 0
    (check,) = validate(graph, lambda sample: {"y": sample["x"]}, samples, expected={"y": wanted}).outputs
    assert check.cosine > 0.998
    assert (check.passed, check.verdict) == (False, "1 of 3000 differ")


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    """They have to stand in the same places; the rest is compared as usual."""
    graph = tenon.load(network(tmp_path))
    wanted = {name: array.copy() for name, array in EXPECTED.items()}
    wanted["half"].flat[3], wanted["relu"].flat[5] = np.nan, np.inf

    def answers(sample: Mapping[str, Array]) -> dict[str, Array]:
        number = next(i for i, each in enumerate(SAMPLES) if np.array_equal(each, sample["x"]))
        return {"half": wanted["half"][number], "relu": np.maximum(sample["x"], 0)}

    half, relu = validate(graph, answers, SAMPLES, expected=wanted).outputs
    assert half.passed
    assert half.cosine == pytest.approx(1)
    assert (relu.passed, relu.verdict) == (False, "error above 0.01")


def test_rows_whose_largest_element_is_another_one(tmp_path: Path) -> None:
    graph = tenon.load(network(tmp_path))
    rows = (SAMPLES / 2).reshape(-1, 4).copy()
    for row in rows[:6]:
        row[(row.argmax() + 1) % 4] = row.max() + 1
    wanted = {"half": rows.reshape(SAMPLES.shape), "relu": EXPECTED["relu"]}
    answers = lambda sample: {"half": sample["x"] / 2, "relu": np.maximum(sample["x"], 0)}  # noqa: E731
    checks = validate(graph, answers, SAMPLES, expected=wanted)
    assert [check.pixel_error for check in checks.outputs] == [pytest.approx(6 / 30), 0]
    assert validation.pixel_error([(np.ones((3, 1)), np.zeros((3, 1)))]) is None


class Peer:
    """A runtime that takes real numbers in another shape and gives those that its integers stand for."""

    inputs = (("input", tensor(F32, 4, 3), None),)
    outputs = ("output",)

    def run(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        assert sample["input"].dtype == np.float32
        return {"output": sample["input"] * 2}

    def close(self) -> None:
        pass


def test_quantised_outputs_are_compared_as_real_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours are integers with a scale; a runtime's and recorded ones may be integers or real."""
    graph = Graph("net")
    stored = TensorType(DType.I8, (1, 12))
    x = graph.add_input("x", replace(stored, quant=Quant((0.5,), (-3,))))
    graph.outputs = [graph.add(make("Identity"), [x], ["y"]).output]
    graph.outputs[0].type = replace(stored, quant=Quant((1.0,), (4,)))
    samples = [np.random.default_rng(i).integers(-60, 60, (1, 12), np.int8) for i in range(3)]

    def run(sample: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": (sample["x"] + 3 + 4).astype(np.int8)}

    monkeypatch.setattr(validation, "opened", lambda against, **more: Peer())
    (check,) = validate(graph, run, samples, against="litert:net.tflite").outputs
    assert check.cosine == pytest.approx(1)
    assert check.error == 0
    integers = np.stack([run({"x": sample})["y"] for sample in samples])
    for recorded in (integers, (integers - 4).astype(np.float32)):
        (check,) = validate(graph, run, samples, expected={"y": recorded}).outputs
        assert check.cosine == pytest.approx(1)
        assert check.error == 0


def test_damaged_archives_are_one_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", half=SAMPLES, relu=SAMPLES)
    data = (tmp_path / "whole.npz").read_bytes()
    graph = tenon.load(network(tmp_path))
    for cut in (3, 40, len(data) // 2, len(data) - 4):
        (tmp_path / "cut.npz").write_bytes(data[:cut])
        with pytest.raises(InputError, match=r"cut.npz: not a NumPy file"):
            validate(graph, lambda sample: EXPECTED, SAMPLES, expected=tmp_path / "cut.npz")
        with pytest.raises(InputError, match=r"cut.npz: not a NumPy file"):
            validate(graph, lambda sample: EXPECTED, tmp_path / "cut.npz", expected=EXPECTED)


def test_first_wrong_layer_is_named(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Mul", ["a", "c"], ["b"]), node("Sigmoid", ["b"], ["y"])]
    for name, factor in (("good", [[1.0, 1.0, 1.0, 1.0]]), ("bad", [[1.0, -3.0, 5.0, 0.0]])):
        made = model(nodes, {"x": IMAGE}, ["y"], {"c": np.array(factor, np.float32)})
        (tmp_path / f"{name}.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "samples.npy", SAMPLES)
    arguments = ("--data", "samples.npy", "--against", f"onnxruntime:{tmp_path / 'good.onnx'}", "--layers")
    done = command("validate", tmp_path / "bad.onnx", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "the first layer that differs is 'b'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    succeeds("validate", tmp_path / "good.onnx", *arguments, cwd=tmp_path)


def layered(folder: Path) -> str:
    """Two convolutions, with ReLU and Sigmoid, which the compiler fuses into them, and two poolings."""
    rng = np.random.default_rng(3)
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[1, 1]),
        node("Conv", ["p1", "w2"], ["c2"]),
        node("Sigmoid", ["c2"], ["s2"]),
        node("AveragePool", ["s2"], ["y"], kernel_shape=[2, 2]),
    ]
    shapes = {"w1": (4, 2, 3, 3), "w2": (5, 4, 1, 1)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    made = model(nodes, {"x": [1, 2, 6, 6]}, ["y"], weights)
    (folder / "layered.onnx").write_bytes(made.SerializeToString())
    np.save(folder / "layered.npy", rng.normal(size=(3, 1, 2, 6, 6)).astype(np.float32))
    return str(folder / "layered.onnx")


def with_negated_weights(graph: Graph) -> Graph:
    """The network of ``layered`` with another second convolution."""
    other = graph.copy()
    (weights,) = (v for v in other.constants() if v.name == "w2")
    assert weights.data is not None
    weights.data = -weights.data
    return other


@pytest.mark.parametrize("target", ["host", "aarch64"])
@pytest.mark.parametrize("against", ["onnxruntime", "recorded"])
def test_first_wrong_layer_of_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, against: str
) -> None:
    """Code compiled with other weights of a layer than the model's: that layer is named, with both tensors."""
    if target != "host":
        skip_without_device(target)
    file = layered(tmp_path)
    samples = np.load(tmp_path / "layered.npy")
    graph, options = tenon.load(file), Options.from_environment(target=target)
    recorded = {"y": np.stack([evaluate(graph, {"x": sample})["y"] for sample in samples])}
    settings: dict[str, Any] = (
        {"against": f"onnxruntime:{file}"} if against == "onnxruntime" else {"expected": recorded}
    )

    def checked(rewrite: Callable[[Graph], Graph]) -> tuple[bool, layers.LayerComparison]:
        with running(tenon.compile(graph, options, rewrite=rewrite)) as engine:
            run = BundleNetwork(engine).run
            validation = validate(graph, run, samples, layers=CompiledLayers(graph, options), **settings)
        assert validation.inside is not None
        return validation.passed, validation.inside

    passed, inside = checked(lambda graph: graph)
    assert (passed, inside.first_wrong, inside.divergence) == (True, None, None)
    monkeypatch.setattr(layers, "compile", partial(tenon.compile, rewrite=with_negated_weights))
    passed, inside = checked(with_negated_weights)
    assert not passed
    assert [noise.name for noise in inside.layers] == ["r1", "p1", "s2", "y"]
    assert inside.against == settings.get("against", REFERENCES)
    assert inside.first_wrong is not None
    assert inside.first_wrong.name == "s2"
    wrong = inside.divergence
    assert wrong is not None
    assert (wrong.layer, wrong.shape, wrong.size) == ("s2", (1, 5, 5, 5), 125)
    cut = tenon.load(file, outputs=["s2"])
    expected = evaluate(cut, {"x": samples[wrong.sample]})["s2"]
    computed = 1 - expected  # sigmoid(-x), in which 1e-7 is lost to the one
    differs = np.abs(computed - expected) > 0.01 * expected.max()
    assert wrong.index == tuple(np.argwhere(differs)[0])
    assert wrong.differing == differs.sum()
    first = int(np.ravel_multi_index(wrong.index, wrong.shape))
    for excerpt, array in ((wrong.wanted, expected), (wrong.got, computed)):
        assert excerpt.elements == pytest.approx(array.ravel()[first : first + 8].tolist(), rel=1e-4, abs=1e-6)
        statistics = (excerpt.minimum, excerpt.maximum, excerpt.mean, excerpt.deviation)
        wanted = [float(each) for each in (array.min(), array.max(), array.mean(), array.std())]
        assert list(statistics) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_layers_on_the_command_line(tmp_path: Path) -> None:
    """The first wrong layer with excerpts; recorded outputs need no runtime; the same on an emulated target."""
    file, other = layered(tmp_path), tmp_path / "other.onnx"
    network = onnx.load(file)
    (weights,) = (each for each in network.graph.initializer if each.name == "w2")
    weights.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weights), "w2"))
    onnx.save(network, other)
    arguments = ("--data", "layered.npy", "--layers")
    done = command("validate", file, *arguments, "--against", f"onnxruntime:{other}", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "the first layer that differs is 's2'" in " ".join(done.stderr.split())
    assert "the first layer that differs is 's2', [1, 5, 5, 5]: in sample" in done.stdout
    assert "elements from there on" in " ".join(done.stdout.split())
    graph = tenon.load(file)
    right = np.stack([evaluate(graph, {"x": sample})["y"] for sample in np.load(tmp_path / "layered.npy")])
    np.savez(tmp_path / "expected.npz", y=right)
    given = ("validate", file, *arguments, "--expected", "expected.npz")
    assert f"4 layer(s), against {REFERENCES}" in succeeds(*given, cwd=tmp_path)
    skip_without_device("aarch64")
    report = json.loads(succeeds(*given, "--target", "aarch64", "--json", cwd=tmp_path))
    assert [each["name"] for each in report["inside"]["layers"]] == ["r1", "p1", "s2", "y"]
    assert report["inside"]["first_wrong"] is None


def test_quantised_layers_are_compared_where_integers_are_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    graph = tenon.load(layered(tmp_path))
    samples = [rng.normal(size=(1, 2, 6, 6)).astype(np.float32) for _ in range(4)]
    quantised = tenon.quantize(graph, samples).graph
    options = Options.from_environment()
    comparison = compare_layers(
        CompiledLayers(quantised, options), quantised, None, None, [{"x": each} for each in samples], 0.98
    )
    assert comparison.against == REFERENCES
    assert comparison.first_wrong is None
    assert len(comparison.layers) > 3


def test_where_tensors_differ() -> None:
    wanted = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = wanted.copy()
    got[1, 2] = np.nan
    got[2, 0] += 0.05
    divergence = diverging("a", 3, got, wanted)
    assert divergence.index == (1, 2)
    assert (divergence.differing, divergence.sample) == (1, 3)
    assert list(divergence.wanted.elements) == [6, 7, 8, 9, 10, 11]
    assert str(divergence.got.elements[0]) == "nan"
    assert [divergence.wanted.minimum, divergence.wanted.maximum, divergence.wanted.mean] == [0, 11, 5.5]


def test_where_tensors_hardly_differ() -> None:
    """No element differs by 1 % of the largest: the one that differs most is shown."""
    wanted = np.arange(12, dtype=np.float32).reshape(3, 4)
    got = wanted.copy()
    got[2, 0] += 0.05
    divergence = diverging("a", 0, got, wanted)
    assert divergence.index == (2, 0)
    assert divergence.differing == 0


def test_validation_on_an_emulated_target(tmp_path: Path) -> None:
    skip_without_device("aarch64")
    file = network(tmp_path)
    arguments = ("--data", "samples.npy", "--samples", "1", "--against", "onnxruntime", "--target", "aarch64")
    assert succeeds("validate", file, *arguments, cwd=tmp_path).count("passed") == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "name one reference"),
        ({"expected": "absent.npz"}, "absent.npz"),
        ({"expected": "samples.npy"}, "not an .npz file"),
        ({"expected": "other.npz"}, "there is no output 'half'"),
        ({"expected": "short.npz"}, r"5 sample\(s\) of 24 elements"),
    ],
)
def test_references_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    graph = tenon.load(network(tmp_path))
    np.savez(tmp_path / "other.npz", other=SAMPLES)
    np.savez(tmp_path / "short.npz", half=SAMPLES[:1], relu=SAMPLES[:1])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        validate(graph, lambda sample: {name: array[:1] for name, array in EXPECTED.items()}, SAMPLES, **settings)


def test_unknown_runtime_is_one_error(tmp_path: Path) -> None:
    done = command("validate", network(tmp_path), "--data", "samples.npy", "--against", "caffe", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "choose one of litert, ncnn, onnxruntime" in " ".join(done.stderr.split())


def test_names_of_references() -> None:
    assert reference("onnxruntime", "a.onnx") == "onnxruntime:a.onnx"
    assert reference("litert:b.tflite", "a.onnx") == "litert:b.tflite"
    with pytest.raises(InputError, match="choose one of"):
        reference("caffe", "a.onnx")
