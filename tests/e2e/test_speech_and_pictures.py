"""Networks that lean on what ONNX has beyond layers: LSTM and If at run time, and a file written in opset 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import evaluate, random_inputs
from real import shared
from tenon.ir.graph import Array


def test_silero_vad_agrees_with_onnxruntime(tmp_path: Path) -> None:
    """The sampling rate, which its If asks for, is an input."""
    ort = pytest.importorskip("onnxruntime")
    path = shared("models/onnx/silero_vad/silero_vad_16k_op15.onnx")
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        "input": rng.normal(0, 0.1, (1, 512)).astype(np.float32),
        "state": rng.normal(0, 0.1, (2, 1, 128)).astype(np.float32),
        "sr": np.array(16000, np.int64),
    }
    shapes = {name: array.shape for name, array in feeds.items()}
    engine = tenon.open(tenon.compile(tenon.load(path, shapes=shapes), name="vad").save(tmp_path / "vad"))
    got = engine.run({name: feeds[name] for name in engine.inputs})
    session = ort.InferenceSession(str(path))
    for port, expected in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got[port.name], expected, atol=2e-5)


def test_super_resolution_of_opset_2(tmp_path: Path) -> None:
    """onnxruntime does not run models this old: the reference of our own operators stands in."""
    graph = tenon.load(shared("models/onnx/super_resolution/super_resolution.onnx"))
    feeds = random_inputs(graph)
    engine = tenon.open(tenon.compile(graph, name="super").save(tmp_path / "super"))
    expected = evaluate(graph, feeds)
    for name, array in engine.run(feeds).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-4)
