"""Real models as compiled bundles, run on photos and compared with the expected results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import tenon
from real import ROOT, shared
from tenon.cli.app import app
from tenon.runtime.engine.compare import relative_error

TOLERANCE = 1e-4  # relative to the largest output: thousands of f32 additions in another order


@pytest.mark.parametrize("model", ["mnist", "mnist_tengine"])
def test_digit_model_classifies_all_samples(model: str, tmp_path: Path) -> None:
    """By the command line, as a user would."""
    bundle = tmp_path / "bundle"
    run = CliRunner()
    path = shared(f"models/onnx/{model}/mnist.onnx")
    done = run.invoke(app, ["compile", str(path), "-o", str(bundle)])
    assert done.exit_code == 0, done.output
    for image in sorted(shared("models/images/mnist").glob("*.png")):
        done = run.invoke(app, ["run", str(bundle), "--image", str(image), "--top", "1", "--json"])
        assert done.exit_code == 0, done.output
        (answer,) = json.loads(done.stdout)["top"].values()
        assert answer[0]["index"] == int(image.name[0])


def example(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "examples" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_face_detector_at_every_optimization_level(optimize: Literal[0, 1, 2]) -> None:
    faces = example("faces/detect.py")
    model = shared("models/onnx/version-RFB-320/version-RFB-320.onnx")
    photos = {"rfb_faces_test.jpg": 5, "rfb_face_13.jpg": 2, "coral_grace_hopper.bmp": 1}
    with tenon.open(tenon.compile(model, optimize=optimize)) as engine:
        detections = {name: faces.find_faces(engine, shared(f"models/images/{name}")) for name in photos}
    assert {name: len(boxes) for name, boxes in detections.items()} == photos
    score, box = detections["rfb_faces_test.jpg"][0]
    assert score > 0.99
    assert np.abs(np.array(box) - [742, 261, 837, 365]).max() <= 2


@pytest.mark.parametrize(
    ("model", "golden"),
    [
        ("mnist/mnist", "mnist_ms"),
        ("mnist_tengine/mnist", "mnist_tengine"),
        ("version-RFB-320/version-RFB-320", "version-RFB-320"),
        ("version-RFB-320/version-RFB-320_simplified", "version-RFB-320_simplified"),
        ("version-RFB-320/version-RFB-320_without_postprocessing", "version-RFB-320_without_postprocessing"),
    ],
)
def test_outputs_match_golden_files(model: str, golden: str) -> None:
    arrays = np.load(shared(f"models/expected/onnx__{golden}.npz"))
    with tenon.open(tenon.compile(shared(f"models/onnx/{model}.onnx"))) as engine:
        actual = engine.run({name: arrays[f"in_{name}"] for name in engine.inputs})
    assert actual
    for name, array in actual.items():
        assert relative_error(array, arrays[f"out_{name}"]) < TOLERANCE


LIGHT = ["shufflenet"]
HEAVY = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "vgg19",
    "zfnet512",
]  # up to 600 MB of weights


@pytest.mark.parametrize("name", [*LIGHT, *(pytest.param(n, marks=pytest.mark.slow) for n in HEAVY)])
def test_onnx_light_models(name: str) -> None:
    """ONNX's light models; the input of ONNX's test runner is n consecutive numbers from 0 up to 1.

    light_squeezenet is compared before its softmax in ``test_real_models``: its logits are near 1e10, where the spacing
    of f32 is 1024, so the recorded probabilities depend on the rounding of one machine.
    """
    folder = shared("models/onnx/onnx_light_graphs")
    expected = onnx.TensorProto()
    expected.ParseFromString((folder / f"light_{name}_output_0.pb").read_bytes())
    with tenon.open(tenon.compile(folder / f"light_{name}.onnx")) as engine:
        (x,) = engine.inputs.values()
        x[...] = (np.arange(x.size).reshape(x.shape) / x.size).astype(np.float32)
        (actual,) = engine.run().values()
    assert relative_error(actual, numpy_helper.to_array(expected)) < TOLERANCE
