"""Models of any format exported to ONNX: onnxruntime's results match those of the imported graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import difference, evaluate, random_inputs
from real import shared
from tenon.formats import importers
from tenon.pipeline import rewrite

MODELS = {
    "onnx/mnist/mnist.onnx": None,
    "onnx/super_resolution/super_resolution.onnx": None,
    "caffe/RFB-320": None,
    "tflite_int8/hello_world/hello_world_int8.tflite": None,
    "tflite_fp32/mlperf_tiny/pretrainedResnet.tflite": None,
    "tflite_int8/mlperf_tiny/pretrainedResnet_quant.tflite": None,
    "tensorflow_pb/kws_DS_CNN": None,
    "tmfile/mnist/mnist.tmfile": None,
    "ncnn/version-RFB-320": {"input": (1, 3, 240, 320)},
}


@pytest.mark.parametrize("name", MODELS)
def test_onnx_export_matches_the_imported_graph(name: str, tmp_path: Path) -> None:
    import onnx
    import onnxruntime as rt

    source, shapes = shared(f"models/{name}"), MODELS[name]
    graph = importers.load(source, shapes=shapes)
    inputs = random_inputs(graph)
    expected = evaluate(graph, inputs)
    (path,), _ = rewrite(source, tmp_path / "net.onnx", shapes=shapes)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [o.name for o in model.graph.output] == list(expected)
    rt.InferenceSession(path)  # onnxruntime's graph optimizer accepts the file too
    options = rt.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = (
        rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    )  # onnxruntime's fused quantised operators round differently
    session = rt.InferenceSession(path, options)
    for actual, (name, truth) in zip(session.run(None, inputs), expected.items(), strict=True):
        assert difference(np.asarray(actual), truth) < 1e-4, name
