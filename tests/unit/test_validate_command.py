"""``tenon validate``: against ONNX Runtime and recorded outputs, on this machine and on an emulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from installed import succeeds
from installed import tenon as command
from on_targets import skip_without_device
from onnx_models import model, node
from tenon.deployment import validate as validation
from tenon.deployment.validate import reference, validate
from tenon.errors import InputError
from tenon.ir.graph import Array, Graph
from tenon.ir.types import F32, DType, Quant, TensorType, tensor
from tenon.passes.base import make

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
    assert "no runtime here runs models of Tengine: give recorded outputs" in " ".join(done.stderr.split())


def test_recorded_outputs(tmp_path: Path) -> None:
    file = network(tmp_path)
    np.savez(tmp_path / "expected.npz", half=EXPECTED["half"], relu=EXPECTED["relu"])
    arguments = ("validate", file, "--data", "samples.npy", "--expected", "expected.npz")
    found = json.loads(succeeds(*arguments, "--json", cwd=tmp_path))
    assert (found["passed"], found["samples"], found["against"]) == (True, 5, "recorded outputs")
    assert [row["name"] for row in found["outputs"]] == ["half", "relu"]
    assert all(row["cosine"] > 0.999999 and row["sqnr"] is None and row["error"] == 0 for row in found["outputs"])
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

    found = validate(graph, run, SAMPLES, expected=noisy)
    for check in found.outputs:
        assert check.cosine == pytest.approx(1)
        assert check.sqnr == pytest.approx(20 * np.log10(101), abs=0.01)
        assert check.error == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert found.passed
    assert not validate(graph, run, SAMPLES, expected=noisy, threshold=1.5).passed


def test_rows_whose_largest_element_is_another_one(tmp_path: Path) -> None:
    graph = tenon.load(network(tmp_path))
    rows = (SAMPLES / 2).reshape(-1, 4).copy()
    for row in rows[:6]:
        row[(row.argmax() + 1) % 4] = row.max() + 1
    wanted = {"half": rows.reshape(SAMPLES.shape), "relu": EXPECTED["relu"]}
    answers = lambda sample: {"half": sample["x"] / 2, "relu": np.maximum(sample["x"], 0)}  # noqa: E731
    found = validate(graph, answers, SAMPLES, expected=wanted)
    assert [check.pixel_error for check in found.outputs] == [pytest.approx(6 / 30), 0]
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
    (found,) = validate(graph, run, samples, against="litert:net.tflite").outputs
    assert found.cosine == pytest.approx(1)
    assert found.error == 0
    integers = np.stack([run({"x": sample})["y"] for sample in samples])
    for recorded in (integers, (integers - 4).astype(np.float32)):
        (found,) = validate(graph, run, samples, expected={"y": recorded}).outputs
        assert found.cosine == pytest.approx(1)
        assert found.error == 0


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


def test_validation_on_an_emulated_target(tmp_path: Path) -> None:
    skip_without_device("aarch64")
    file = network(tmp_path)
    arguments = ("--data", "samples.npy", "--samples", "1", "--against", "onnxruntime", "--target", "aarch64")
    assert succeeds("validate", file, *arguments, cwd=tmp_path).count("passed") == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "name one reference"), ({"expected": "absent.npz"}, "absent.npz"),
        ({"expected": "samples.npy"}, "not an .npz file"), ({"expected": "other.npz"}, "there is no output 'half'"),
        ({"expected": "short.npz"}, r"5 sample\(s\) of 24 elements"),
        ({"expected": "other.npz", "layers": True}, "--layers needs a runtime"),
    ],
)  # fmt: skip
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
