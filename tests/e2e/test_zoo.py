"""Every graph of the benchmark zoo compiles and matches onnxruntime without graph optimisations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import tenon
from real import zoo_model, zoo_names
from tenon.runtime.engine.compare import relative_error

LONG = frozenset(
    {
        "inception_v3",
        "mobilenet_v2_bn",
        "mobilenet_v3_large",
        "resnet18",
        "resnet18_bn",
        "resnet50",
        "retinaface_mnet025_bn",
        "shufflenet_v2_1.0_bn",
        "vgg16",
        "yolov3_tiny",
        "yolov5s",
    }
)
"""Networks that take longest, with layers like those of other networks: half a gigabyte of weights, large images.
Or like those of the same network: with batch normalisation folded, or not."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in zoo_names() or ["absent"]],
)
def test_compiled_zoo_models_match_onnxruntime(name: str, tmp_path: Path) -> None:
    path = zoo_model(name, tmp_path)
    bundle = tenon.compile(path)
    memory = bundle.program.memory
    assert memory.activations <= 1.05 * memory.bound
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    with tenon.open(bundle) as engine:
        feeds = {n: np.asarray(rng.standard_normal(a.shape), a.dtype) for n, a in engine.inputs.items()}
        got = engine.run(feeds)
    for value, expected in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert relative_error(got[value.name], expected) < 1e-4
