"""Real models of ncnn, Tengine, Caffe2, Paddle, MegEngine and OneFlow compared with recorded results of their
frameworks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from evaluate import difference, evaluate
from real import SHARED, shared
from tenon.formats import importers
from tenon.machine.plan.describe import describe
from tenon.network.graph.graph import Array

FACES = {"input": (1, 3, 240, 320)}


def golden(name: str) -> dict[str, Array]:
    with np.load(shared(f"models/expected/{name}.npz")) as arrays:
        return dict(arrays)


def test_ncnn_model_matches_ncnn_and_the_onnx_export() -> None:
    expected = golden("ncnn__RFB-320")
    graph = tenon.load(shared("models/ncnn/version-RFB-320"), shapes=FACES)
    actual = evaluate(graph, {"input": expected["in_input"]})
    for name in ("scores", "boxes"):
        assert difference(actual[name][0], expected[f"out_{name}"]) < 1e-5
    twin = tenon.load(shared("models/onnx/version-RFB-320/version-RFB-320_without_postprocessing.onnx"))
    again = evaluate(twin, {twin.inputs[0].name: expected["in_input"]})
    for name, value in again.items():
        assert difference(actual[name].reshape(value.shape), value) < 1e-4


def test_tmfile_digit_classifier() -> None:
    with tenon.open(tenon.compile(shared("models/tmfile/mnist"))) as engine:
        for path in sorted(shared("models/images/mnist").glob("*.png")):
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("L"), np.float32).reshape(1, 1, 28, 28)
            (scores,) = engine.run({next(iter(engine.inputs)): pixels}).values()
            assert scores.argmax() == int(path.name[0])


BENCHMARK = SHARED / "models/tmfile/tengine_benchmark_noweights"
SIZES = {"mobilefacenets": (112, 112), "mobilenet_v3": (224, 224), "retinaface": (240, 320)}
"""Where the file does not say: those of Tengine's own benchmark."""
MACS = {"vgg16": 15470e6, "resnet50": 3858e6, "mobilenet": 569e6, "squeezenet_v1.1": 388e6, "googlenet": 1583e6}


@pytest.mark.parametrize("path", sorted(BENCHMARK.glob("*.tmfile")), ids=lambda p: p.stem.removesuffix("_benchmark"))
def test_benchmark_topologies(path: Path) -> None:
    name = path.stem.removesuffix("_benchmark")
    graph = importers.load(path, {"data": (1, 3, *SIZES[name])} if name in SIZES else {})
    facts = describe(graph)
    assert graph.incomplete
    assert all(v.type.bound for v in graph.outputs)
    assert facts.macs == pytest.approx(MACS.get(name, facts.macs), rel=0.01)
    assert facts.macs > 1e8


def test_all_graphs_are_present() -> None:
    assert len(list(shared("models/tmfile/tengine_benchmark_noweights").glob("*.tmfile"))) == 14


def test_caffe2_model_matches_the_onnx_export() -> None:
    folder = shared("models/caffe2/super_resolution")
    x = np.random.default_rng(0).random((1, 1, 224, 224), np.float32)
    twin = tenon.load(shared("models/onnx/super_resolution/super_resolution.onnx"))
    (expected,) = evaluate(twin, {twin.inputs[0].name: x}).values()
    for given in (folder, folder / "init_net.pb"):
        graph = tenon.load(given, shapes={"1": (1, 1, 224, 224)})
        (actual,) = evaluate(graph, {"1": x}).values()
        assert difference(actual, expected) < 1e-6


def test_caffe2_predict_net_without_init_net() -> None:
    graph = tenon.load(shared("models/caffe2/super_resolution/squeeze_predict_net.pb"))
    assert graph.incomplete
    assert describe(graph).operators["Conv"] == 26


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("ch_ppocr_mobile_v2.0_cls_infer", "ch_ppocr_mobile_v2.0_cls_infer"),
        ("uci_housing_separate_params", "uci_housing"),
    ],
)
def test_paddle_models(folder: str, name: str) -> None:
    expected = golden(f"paddle__{name}")
    graph = tenon.load(shared(f"models/paddle/{folder}"), shapes={"x": expected["in_x"].shape})
    actual = evaluate(graph, {"x": expected["in_x"]})
    for output, value in actual.items():
        assert difference(value, expected[f"out_{output}"]) < 1e-6
    if name == "uci_housing":
        assert actual["fc_0.tmp_1"].item() == pytest.approx(18.9012, abs=1e-4)


def test_xornet() -> None:
    """The values in its README, .999988 and 1.2e-05, are of another training run; this model computes XOR too."""
    path = shared("models/megengine/xornet_deploy")
    points = np.random.default_rng(0).uniform(-1, 1, (12, 2)).astype(np.float32)
    points[0] = 0.6, 0.9
    graph = tenon.load(path)
    (actual,) = evaluate(graph, {"data": points}).values()
    assert actual[0, 0] > 0.99998
    assert actual[0, 1] < 1.3e-05
    clear = np.abs(points).min(1) > 0.1
    np.testing.assert_array_equal(actual.argmax(1)[clear], (points[:, 0] * points[:, 1] < 0)[clear])
    (one,) = evaluate(tenon.load(path, shapes={"data": (1, 2)}), {"data": points[:1]}).values()
    np.testing.assert_allclose(one[0], actual[0], rtol=1e-5)


def test_affine_graphs() -> None:
    for name in ("affine_with_parameter", "affine_no_parameter"):
        graph = tenon.load(shared(f"models/oneflow/affine_graph/{name}"))
        ones = {v.name: np.ones(v.type.dims, np.float32) for v in graph.inputs}
        (actual,) = evaluate(graph, ones).values()
        np.testing.assert_array_equal(actual, np.full(actual.shape, 4, np.float32))


def test_every_file_is_recognised_as_one_format() -> None:
    """No file of the model collection is recognised as another format."""
    from tenon.formats.model_files.model_file import read_file

    expected = {
        "caffe": "Caffe",
        "darknet": "Darknet",
        "ncnn": "ncnn",
        "tmfile": "Tengine",
        "caffe2": "Caffe2",
        "megengine": "MegEngine",
        "oneflow": "OneFlow",
        "onnx": "ONNX",
    }
    for folder, name in expected.items():
        for path in sorted(shared(f"models/{folder}").rglob("*")):
            if path.is_file():
                file = read_file(path)
                formats = [n for n, format in importers.FORMATS.items() if format.importer().recognise(file)]
                assert formats in ([], [name]), path
