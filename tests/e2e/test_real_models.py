"""Real models: the NumPy references of the imported and optimised graphs compared with onnxruntime or published
results.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from evaluate import difference, evaluate, random_inputs
from tenon.formats import importers
from tenon.network import passes
from tenon.network.graph.graph import Array
from tenon.network.graph.text import parse, show
from tenon.network.ops import constructors

SHARED = Path(__file__).parents[2] / "../shared"
MODELS = SHARED / "models/onnx"
TOLERANCE = 1e-4  # relative to the largest output: thousands of f32 additions in another order

needs_models = pytest.mark.skipif(not MODELS.is_dir(), reason="../shared/models is absent")
needs_zoo = pytest.mark.skipif(not (SHARED / "zoo").is_dir(), reason="../shared/zoo is absent")


def onnxruntime(model: bytes, inputs: dict[str, Array]) -> list[Array]:
    import onnxruntime as rt

    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return [np.asarray(a) for a in rt.InferenceSession(model, options).run(None, inputs)]


def check(model: bytes) -> int:
    """Compare with onnxruntime; returns the number of nodes after optimisation."""
    graph = importers.load(model)
    inputs = random_inputs(graph)
    passes.optimize(graph, verify=True)
    actual = evaluate(graph, inputs)
    for ours, theirs in zip(actual.values(), onnxruntime(model, inputs), strict=True):
        assert difference(ours, theirs) < TOLERANCE
    return len(graph)


@needs_models
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("mnist/mnist", 6),
        ("mnist_tengine/mnist", 7),
        ("version-RFB-320/version-RFB-320", 83),
        ("version-RFB-320/version-RFB-320_simplified", 72),
    ],
)
def test_models_match_onnxruntime(name: str, most: int) -> None:
    assert check((MODELS / f"{name}.onnx").read_bytes()) <= most


def zoo(name: str) -> bytes:
    """A graph of the zoo with random weights."""
    spec = importlib.util.spec_from_file_location("materialize", SHARED / "zoo/materialize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    filled: bytes = module.fill(onnx.load(SHARED / f"zoo/{name}.onnx")).SerializeToString()
    return filled


@needs_zoo
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("mobilenet_v3_small", 74),
        ("mobilefacenet_bn", 51),
        ("shufflenet_v2_1.0_bn", 118),
        ("retinaface_mnet025_bn", 86),
        ("mobilevit_xxs", 245),
    ],
)
def test_zoo_models_match_onnxruntime(name: str, most: int) -> None:
    assert check(zoo(name)) <= most


SLOW = ["bvlc_alexnet", "inception_v2", "resnet50", "vgg19"]
LIGHT = [
    "densenet121",
    "inception_v1",
    "shufflenet",
    "zfnet512",
    *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW),
]


@needs_models
@pytest.mark.parametrize("name", LIGHT)
def test_onnx_light_models(name: str) -> None:
    """ONNX's light models; the input of ONNX's test runner is n consecutive numbers from 0 up to 1."""
    folder = MODELS / "onnx_light_graphs"
    graph = importers.load(folder / f"light_{name}.onnx")
    passes.optimize(graph, verify=True)
    expected = onnx.TensorProto()
    expected.ParseFromString((folder / f"light_{name}_output_0.pb").read_bytes())
    (x,) = graph.inputs
    numbers = np.arange(x.type.size).reshape(x.type.dims) / x.type.size
    (actual,) = evaluate(graph, {x.name: numbers.astype(np.float32)}).values()
    assert difference(actual, numpy_helper.to_array(expected)) < TOLERANCE


@needs_models
def test_light_squeezenet_before_its_softmax() -> None:
    """The logits are near 1e10, where the spacing of f32 is 1024: their softmax depends on rounding alone."""
    path = MODELS / "onnx_light_graphs/light_squeezenet.onnx"
    graph = importers.load(path, outputs=["r65"])
    inputs = {"data_0": (np.arange(3 * 224 * 224).reshape(1, 3, 224, 224) / (3 * 224 * 224)).astype(np.float32)}
    passes.optimize(graph, verify=True)
    model = onnx.load(path)
    model.graph.output[0].name = "r65"
    (expected,) = onnxruntime(model.SerializeToString(), inputs)
    assert difference(evaluate(graph, inputs)["r65"], expected) < TOLERANCE


@needs_models
def test_old_model_of_opset_2() -> None:
    """Broadcast attributes, ``pads`` and reshapes of the first ONNX opsets."""
    graph = importers.load(MODELS / "super_resolution/super_resolution.onnx")
    inputs = random_inputs(graph)
    before = evaluate(graph, inputs)
    passes.optimize(graph, verify=True)
    (name,) = before
    assert before[name].shape == (1, 1, 672, 672)
    assert difference(evaluate(graph, inputs)[name], before[name]) < TOLERANCE


@needs_models
def test_text_format_of_a_real_model() -> None:
    graph = importers.load(MODELS / "mnist/mnist.onnx")
    passes.optimize(graph)
    text = show(graph, "base64")
    assert show(parse(text, constructors()), "base64") == text
