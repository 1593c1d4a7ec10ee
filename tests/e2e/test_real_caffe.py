"""Real Caffe nets: results of those with weights; shapes and multiply-accumulate counts of those without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from caffe_models import random_weights
from evaluate import difference, evaluate, random_inputs
from real import SHARED, shared
from tenon.formats import importers
from tenon.formats.exporters.onnx import to_onnx
from tenon.machine.plan.describe import describe
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph
from tenon.pipeline import rewrite

TOLERANCE = 1e-4
MACS = {
    "bvlc_alexnet/deploy": 7244,
    "bvlc_googlenet/deploy": 15827,
    "lenet/lenet": 147,
    "cifar10/cifar10_quick": 12,
    "mobilenet_v1/mobilenet_deploy": 569,
    "mobilenet_v2/mobilenet_v2_deploy": 429,
    "peleenet/peleenet": 508,
    "shufflenet_v2/shufflenet_v2_x0.5": 40,
    "squeezenet_v1.1/deploy": 3877,
    "x2paddle_VGG16/vgg16": 154703,
    "x2paddle_VGG19/VGG_ILSVRC_19_layers_deploy": 19632,
    "mobilenet_ssd/deploy": 1148,
}
"""Millions, for the batch that the file asks for."""


def nets() -> list[str]:
    folder = SHARED / "models/caffe/prototxt_only"
    return sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.glob("*/*.prototxt"))


@pytest.mark.parametrize("name", nets())
def test_inspect_networks_without_weights(name: str) -> None:
    graph = importers.load(shared(f"models/caffe/prototxt_only/{name}.prototxt"))
    assert graph.incomplete
    assert all(v.type.bound for v in (*graph.inputs, *graph.outputs))
    description = describe(graph)
    assert description.macs > 0
    if name in MACS:
        assert round(description.macs / 1e6) == MACS[name]


def test_all_models_are_present() -> None:
    shared("models/caffe/prototxt_only")
    assert len(nets()) >= 35
    assert set(MACS) <= set(nets())


# ---------------------------------------------------------------------------------------- face detector
def expected() -> tuple[Array, dict[str, Array]]:
    golden = np.load(shared("models/expected/caffe__RFB-320.npz"))
    return golden["in_data"], {k.removeprefix("out_"): golden[k] for k in golden if k.startswith("out_")}


@pytest.mark.parametrize("file", ["RFB-320.prototxt", "RFB-320.caffemodel", ""])
def test_face_detector(file: str) -> None:
    graph = importers.load(shared("models/caffe/RFB-320") / file)
    x, outputs = expected()
    passes.optimize(graph, verify=True)
    actual = evaluate(graph, {graph.inputs[0].name: x})
    assert set(actual) == set(outputs)
    for name, array in outputs.items():
        assert difference(actual[name], array) < TOLERANCE


def test_face_detector_compiled() -> None:
    x, outputs = expected()
    with tenon.open(tenon.compile(shared("models/caffe/RFB-320"))) as engine:
        actual = engine.run({next(iter(engine.inputs)): x})
    for name, array in outputs.items():
        assert difference(actual[name], array) < TOLERANCE


def test_face_detector_exported_to_caffe_and_onnx(tmp_path: Path) -> None:
    source, (x, outputs) = shared("models/caffe/RFB-320"), expected()
    rewrite(source, tmp_path / "caffe")
    rewrite(source, tmp_path / "onnx")
    for folder in ("caffe", "onnx"):
        graph = importers.load(tmp_path / folder)
        actual = evaluate(graph, {graph.inputs[0].name: x})
        for name, array in outputs.items():
            assert difference(actual[name], array) < TOLERANCE


# ----------------------------------------------------------------------- Caffe-Computation-Graph-Optimization
SHAPE = {"data": (1, 3, 32, 32)}
MEAN = np.array([104, 117, 123], np.float32).reshape(3, 1, 1)


def cifar(name: str, weights: str) -> Graph:
    folder = shared("models/caffe/cifar10_cgo")
    return importers.load(folder / f"{name}.prototxt", shapes=SHAPE, weights=folder / f"{weights}.caffemodel")


def test_cifar10_matches_the_authors_optimised_net(tmp_path: Path) -> None:
    """The authors' folding of BatchNorm omits epsilon, a difference in the sixth digit."""
    original, theirs = cifar("train_val", "cifar10"), cifar("opt_train_val", "opt_cifar10")
    folder = shared("models/caffe/cifar10_cgo")
    rewrite(folder / "train_val.prototxt", tmp_path / "ours.prototxt", weights=folder / "cifar10.caffemodel")
    ours = importers.load(tmp_path / "ours.prototxt", shapes=SHAPE)
    assert [n.op.name for n in ours] == [n.op.name for n in theirs]
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32)).astype(np.float32)
    (truth,) = evaluate(original, {"data": (pixels - MEAN) * np.float32(0.017)}).values()
    for graph in (theirs, ours):
        (actual,) = evaluate(graph, {"data": pixels}).values()
        assert difference(actual, truth) < 1e-5


def test_cifar10_with_configuration_file(tmp_path: Path) -> None:
    """Equal text, except for the format of numbers and for transform_param, which the authors edited by hand."""
    folder = shared("models/caffe/cifar10_cgo")
    settings = {
        "original_prototxt_path": folder / "train_val.prototxt",
        "original_model_path": folder / "cifar10.caffemodel",
        "optimized_prototxt_path": tmp_path / "o.prototxt",
        "optimized_model_path": tmp_path / "o.caffemodel",
        "mean_R": 123,
        "mean_G": 117,
        "mean_B": 104,
        "input_scale": 0.017,
        "C": 3,
    }
    config = "[DEFAULT]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
    (tmp_path / "config.ini").write_text(config)
    rewrite(str(tmp_path / "config.ini"), None)
    assert lines(tmp_path / "o.prototxt") == lines(folder / "opt_train_val.prototxt")


def lines(path: Path) -> list[str]:
    """A net's text with numbers in short form and without its transform_param."""
    words, inside = [], False
    for line in path.read_text().splitlines():
        key, _, value = line.strip().partition(": ")
        inside = inside or key == "transform_param {"
        if not inside:
            number = value.replace(".", "").replace("e-", "").replace("-", "").isdigit()
            words.append(f"{key}: {float(value):.6g}" if number else line.strip())
        inside = inside and key != "}"
    return words


# -------------------------------------------------------------------------------------------- detectors
@pytest.mark.parametrize(
    ("name", "scale"),
    [("x2paddle_FaceDetction/deploy", 30), pytest.param("mobilenet_ssd/deploy", 20, marks=pytest.mark.slow)],
)
def test_compiled_detectors(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSD with random weights, including NMS."""
    path = shared(f"models/caffe/prototxt_only/{name}.prototxt")
    graph = importers.load(path, weights=random_weights(path, monkeypatch))
    inputs = {n: a * np.float32(scale) for n, a in random_inputs(graph).items()}
    (truth,) = evaluate(graph, inputs).values()
    assert (truth[..., 0] >= 0).sum() > 20
    with tenon.open(tenon.compile(graph)) as engine:
        (actual,) = engine.run(inputs).values()
    np.testing.assert_array_equal(actual[..., :2], truth[..., :2])
    assert difference(actual, truth) < TOLERANCE


def test_mobilenet_as_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime as rt

    path = shared("models/caffe/prototxt_only/mobilenet_v2/mobilenet_v2_deploy.prototxt")
    graph = importers.load(path, weights=random_weights(path, monkeypatch))
    inputs = random_inputs(graph)
    (truth,) = evaluate(graph, inputs).values()
    passes.optimize(graph, fuse=False)
    session = rt.InferenceSession(to_onnx(graph).SerializeToString())
    assert difference(np.asarray(session.run(None, inputs)[0]), truth) < TOLERANCE
