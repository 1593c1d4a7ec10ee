"""Models with LSTM and If at run time, and a model of opset 2."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import evaluate, random_inputs
from real import shared
from tenon.network.graph.graph import Array


def test_silero_vad_agrees_with_onnxruntime(tmp_path: Path) -> None:
    """The sampling rate, the condition of its If, is an input."""
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


@pytest.mark.parametrize(("name", "speech"), [("yes", True), ("no", True), ("noise", False), ("silence", False)])
def test_silero_vad_detects_speech(name: str, speech: bool, tmp_path: Path) -> None:
    """Over one second of audio, with the state carried from each window to the next; windows overlap by 64 samples."""
    ort = pytest.importorskip("onnxruntime")
    path = shared("models/onnx/silero_vad/silero_vad_16k_op15.onnx")
    with wave.open(str(shared(f"models/tflite_int8/micro_speech/{name}_1000ms.wav"))) as wav:
        samples = np.frombuffer(wav.readframes(16000), np.int16).astype(np.float32) / 32768
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (64, 0)), 576)[::512]
    shapes = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
    engine = tenon.open(tenon.compile(tenon.load(path, shapes=shapes), name="vad").save(tmp_path / "vad"))
    session = ort.InferenceSession(str(path))
    rate, ours, theirs = np.array(16000, np.int64), np.zeros((2, 1, 128), np.float32), np.zeros((2, 1, 128), np.float32)
    most = 0.0
    for window in windows:
        feeds = {"input": window[None], "state": ours, "sr": rate}
        actual = engine.run({port: feeds[port] for port in engine.inputs})
        expected, theirs = session.run(None, {**feeds, "state": theirs})
        ours = actual["stateN"]
        np.testing.assert_allclose(actual["output"], expected, atol=1e-4)
        most = max(most, float(expected.item()))
    assert (most > 0.9) == speech


def test_super_resolution_of_opset_2(tmp_path: Path) -> None:
    """Compared with the NumPy references, because onnxruntime does not run models this old."""
    graph = tenon.load(shared("models/onnx/super_resolution/super_resolution.onnx"))
    feeds = random_inputs(graph)
    engine = tenon.open(tenon.compile(graph, name="super").save(tmp_path / "super"))
    expected = evaluate(graph, feeds)
    for name, array in engine.run(feeds).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-4)
