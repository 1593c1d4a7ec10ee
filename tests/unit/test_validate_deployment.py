"""Validation of the models of a deployment file, and MACE's commands for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from command_line import run_main
from onnx_models import model, node
from tenon.cli import main
from tenon.compat.mace.__main__ import main as mace
from tenon.errors import InputError
from tenon.tools.deployment import read_deployment, validate_deployment
from tenon.tools.peers import PEERS, Runtime

IMAGE = (1, 3, 4, 6)
IN_NHWC = [1, 4, 6, 3]
X, Y = (np.random.default_rng(seed).normal(size=IMAGE).astype(np.float32) for seed in (0, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images, of which the second is subtracted; data in NHWC, recorded outputs."""
    made = model([node("Sub", ["x", "y"], ["z"])], {"x": IMAGE, "y": IMAGE}, ["z"])
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    for name, array in {"x": X, "y": Y, "z": X - Y}.items():
        np.save(tmp_path / f"{name}.npy", array.transpose(0, 2, 3, 1))
    return tmp_path


def deployment(folder: Path, **more: Any) -> Path:
    ports = {n: {"format": "NHWC", "shape": IN_NHWC, "data": f"{n}.npy"} for n in "yx"}
    content = {"model": "net.onnx", "inputs": ports, "outputs": {"z": {"format": "NHWC", "data": "z.npy"}}, **more}
    path = folder / "deploy.yml"
    path.write_text(yaml.safe_dump({"models": {"net": content}}))
    return path


def test_recorded_outputs_in_the_order_of_axes_of_the_file(folder: Path) -> None:
    (outcome,) = validate_deployment(read_deployment(deployment(folder)))
    assert outcome.validation is not None
    assert (outcome.validation.passed, outcome.validation.against) == (True, "recorded outputs")
    np.save(folder / "z.npy", X - Y)  # not in NHWC
    (outcome,) = validate_deployment(read_deployment(deployment(folder)))
    assert outcome.validation is not None
    assert not outcome.validation.passed


def test_framework_of_the_format(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs that the file names in another order than the model are still those of the same name."""
    path = deployment(folder, outputs=["z"])
    assert run_main(main_ends(["validate", str(path), "--json"]), []) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["validation"]["against"].startswith("onnxruntime:")
    assert row["validation"]["outputs"][0]["error"] == 0


def main_ends(words: list[str]) -> Any:
    def call() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["tenon", *words])
            main()

    return call


def test_thresholds_of_targets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = (X - Y).transpose(0, 2, 3, 1) + 0.2 * np.random.default_rng(2).normal(size=IN_NHWC).astype(np.float32)
    np.save(folder / "z.npy", noise)
    path = deployment(folder, validate={"cpu": 0.9, "targets": {"host": 0.999}})
    assert run_main(main_ends(["validate", str(path)]), []) == 2
    done = capsys.readouterr()
    assert "below 0.999" in done.out
    assert "net on host: output 'z' differs from recorded outputs: cosine" in " ".join(done.err.split())
    deployment(folder, validate={"cpu": 0.9, "targets": {"wasm32": 0.999}})
    assert run_main(main_ends(["validate", str(path)]), []) == 0
    assert run_main(main_ends(["validate", str(path), "--threshold", "0.9999"]), []) == 2


def test_a_framework_that_is_not_installed_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "onnxruntime", Runtime("onnx_runtime:OnnxRuntime", ("no_such",), "ort", ("ONNX",)))
    path = deployment(folder, outputs=["z"])
    (outcome,) = validate_deployment(read_deployment(path))
    assert (outcome.validation, outcome.skipped) == (None, "onnxruntime is not installed: pip install ort")
    monkeypatch.delitem(PEERS, "onnxruntime")
    (outcome,) = validate_deployment(read_deployment(path))
    assert outcome.skipped == "no runtime here runs models of ONNX: give recorded outputs (--expected)"
    assert run_main(main_ends(["validate", str(path)]), []) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"inputs": {"x": {"data": "x.npy"}, "y": {"data": ["y.npy", "y.npy"]}}},
            "has 1 files of data, another input 2",
        ),
        ({"inputs": {"x": {"data": "short.npy"}, "y": {}}}, "short.npy: it has 3 elements"),
        ({"inputs": {"x": {"data": "absent.npy"}, "y": {}}}, "absent.npy"),
        ({"inputs": {"x": {"data": "net.onnx"}, "y": {}}}, "net.onnx: not a NumPy file"),
        ({"validate": {"targets": {"host": 2}}}, "less than or equal to 1"),
    ],
)
def test_data_that_does_not_fit(folder: Path, change: dict[str, Any], words: str) -> None:
    np.save(folder / "short.npy", np.zeros(3))
    with pytest.raises(InputError, match=re.escape(words)):
        validate_deployment(read_deployment(deployment(folder, **change)))


def mace_file(folder: Path, **more: Any) -> str:
    network = {
        "platform": "onnx",
        "model_file_path": "net.onnx",
        "data_type": "fp32_fp32",
        "runtime": "cpu",
        "subgraphs": [
            {
                "input_tensors": ["x", "y"],
                "input_shapes": ["1,4,6,3"] * 2,
                "output_tensors": "z",
                "output_shapes": "1,4,6,3",
                "validation_inputs_data": ["x.npy", "y.npy"],
                "validation_outputs_data": "z.npy",
                **more,
            }
        ],
    }
    path = folder / "mace.yml"
    path.write_text(yaml.safe_dump({"library_name": "lib", "target_abis": ["host"], "models": {"net": network}}))
    return str(path)


def test_commands_of_mace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = mace_file(folder)
    assert mace(["run", "--config", path, "--round", "2", "--validate", "--gpu_perf_hint", "3"]) == 0
    done = capsys.readouterr().out
    assert re.search(r"^net host: avg \d+\.\d+ ms, min .* 2 run\(s\)$", done, re.MULTILINE)
    number = r"-?\d[\d.e+-]*"
    line = rf"z MACE VS training platform similarity: {number} , sqnr: {number} , pixel_accuracy: 1.0"
    stars = r"\*{42}"
    assert re.search(rf"^{line}\n{stars}\n {{10}}Similarity Test Passed {{10}}\n{stars}\n$", done, re.MULTILINE), done
    assert mace(["validate", "--config", path, "--model_name", "nothing"]) == 2
    assert "there is no model 'nothing'" in capsys.readouterr().err
    np.save(folder / "z.npy", (Y - X).transpose(0, 2, 3, 1))
    assert mace(["validate", "--config", path]) == 2
    output = capsys.readouterr()
    assert "output 'z' differs" in output.err
    assert re.search(r"^z MACE VS training platform similarity: -(1.0|0.99\d*) , sqnr: 0.2[45]\d* , ", output.out)
    assert "Similarity Test Failed" in output.out
    assert mace(["validate", "--config", path, "--validate_threshold", "-1"]) == 0


def test_accuracy_scripts_of_mace_are_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of axes that the file names."""
    (folder / "accuracy.py").write_text(
        "import numpy as np\n"
        "class AccuracyValidator:\n"
        "    def sample_size(self): return 1\n"
        "    def batch_size(self): return 1\n"
        "    def preprocess(self, start, end, **more):\n"
        f"        return {{n: np.load({str(folder)!r} + f'/{{n}}.npy').tolist() for n in 'xy'}}\n"
        "    def postprocess(self, start, end, output_map, **more):\n"
        f"        self.right = np.allclose(output_map['z'], np.load({str(folder)!r} + '/z.npy'))\n"
        "    def result(self): return float(self.right)\n"
    )
    assert mace(["validate", "--config", mace_file(folder, accuracy_validation_script="accuracy.py")]) == 0
    assert "net on host, accuracy.py: result 100.00 %" in capsys.readouterr().out
