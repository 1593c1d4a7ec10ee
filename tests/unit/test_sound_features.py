"""Features of sound compiled into a network: samples in, word out, also on a microcontroller."""

from __future__ import annotations

import wave
from math import cos, log, pi, sqrt
from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from installed import succeeds
from installed import tenon as command
from on_targets import skip_without_device
from real import shared
from tenon.errors import InputError
from tenon.network import ops
from tenon.network.graph.dtype import Array
from tenon.network.graph.graph import Graph
from tenon.network.graph.sound_features import SoundFeatures, read_features
from tenon.network.graph.types import F32, DType, Quant, TensorType
from tenon.network.passes.sound_features import compile_features_in
from tenon.runtime.engine.device import RemoteBundle

ROWS = 5
KWS = ["Down", "Go", "Left", "No", "Off", "On", "Right", "Stop", "Up", "Yes", "Silence", "Unknown"]
TENSORFLOW = ["_silence_", "_unknown_", "yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
KWS_FEATURES = {"kind": "mfcc", "offset": 1e-6, "peak": True}
VARIANTS = [
    SoundFeatures(),
    SoundFeatures(window=640, step=320, count=13),
    SoundFeatures(offset=1e-6, peak=True, mean=2.0, scale=0.25),
    SoundFeatures(kind="mel", window=400, step=160, power=2, bands=20, high=8000, mean=1.5, scale=0.5),
    SoundFeatures(window=300, step=500, bands=13, power=1.5, count=20),
    SoundFeatures(kind="mel", rate=8000, window=256, step=256, bands=8, low=100, high=3000, power=2),
]


def network(features: SoundFeatures) -> Graph:
    """The features themselves."""
    graph = Graph("features")
    x = graph.add_input("x", TensorType(F32, (1, ROWS, features.width, 1)))
    graph.outputs = [graph.add(ops.registry()["Identity"](), [x], ["y"]).output]
    return compile_features_in(graph, features)


def sound(count: int) -> Array:
    """Two tones and noise, i16."""
    t = np.arange(count) / 16000
    noise = np.random.default_rng(3).normal(0, 300, count)
    tones = 9000 * np.sin(2 * pi * 440 * t) + 4000 * np.sin(2 * pi * 2600 * t)
    samples: Array = np.rint(tones + noise).astype(np.int16)
    return samples


def triangle(x: float, middle: float, width: float) -> float:
    return max(0.0, 1 - abs(x - middle) / width)


def by_formulas(samples: Array, features: SoundFeatures) -> Array:
    """The definition, term by term: sums of the discrete Fourier and cosine transforms, triangles in mel."""
    x = samples / 32768
    if features.peak:
        x = x / x.max()
    length = 1
    while length < features.window:
        length *= 2
    k = np.arange(length // 2 + 1)
    n = np.arange(features.window)
    kernel = np.exp(-2j * pi * np.outer(k, n) / length)
    hann = np.array([0.5 - 0.5 * cos(2 * pi * i / features.window) for i in n])
    low, high = (1127 * log(1 + f / 700) for f in (features.low, features.high))
    width = (high - low) / (features.bands + 1)
    mel = [1127 * log(1 + f * features.rate / length / 700) for f in k]
    rows = []
    for row in range(ROWS):
        frame = x[row * features.step : row * features.step + features.window] * hann
        spectrum = np.abs(kernel @ frame) ** features.power
        bins = list(zip(spectrum[1:], mel[1:], strict=True))
        bands = [
            log(sum(s * triangle(m, low + (b + 1) * width, width) for s, m in bins) + features.offset)
            for b in range(features.bands)
        ]
        values = bands
        if features.kind == "mfcc":
            values = [
                sqrt(2 / features.bands)
                * sum(v * cos(pi / features.bands * (b + 0.5) * c) for b, v in enumerate(bands))
                for c in range(min(features.count, features.bands))
            ]
        rows.append([(v - features.mean) * features.scale for v in values])
    return np.array(rows)


# ------------------------------------------------------------------------------------------------ the features
def test_bands_of_slaney_in_operators() -> None:
    features = SoundFeatures(kind="mel", mel="slaney", window=512, step=256, bands=20, high=8000.0, power=2.0)
    samples = sound(features.samples(ROWS))
    actual = evaluate(network(features), {"x": samples})["y"].reshape(ROWS, -1)
    np.testing.assert_allclose(actual, features.rows(samples / 32768)[:ROWS], rtol=0, atol=5e-4)


@pytest.mark.parametrize("features", VARIANTS, ids=range(len(VARIANTS)))
def test_operators_compute_the_definition(features: SoundFeatures) -> None:
    graph = network(features)
    (given,) = graph.inputs
    assert given.type == TensorType(DType.I16, (features.samples(ROWS),), quant=Quant((1 / 32768,), (0,)))
    samples = sound(features.samples(ROWS))
    expected = by_formulas(samples, features)
    np.testing.assert_allclose(features.rows(samples / 32768)[:ROWS], expected, rtol=0, atol=1e-9)
    bound = 2e-5 * max(1, float(abs(expected).max()))
    by_references = evaluate(graph, {"x": samples})["y"].reshape(ROWS, -1)
    np.testing.assert_allclose(by_references, expected, rtol=0, atol=bound)
    with tenon.open(tenon.compile(graph, no_tuning=True)) as engine:
        np.testing.assert_allclose(engine.run(samples)["y"].reshape(ROWS, -1), expected, rtol=0, atol=bound)


def test_features_on_a_microcontroller() -> None:
    skip_without_device("cortex-m4")
    features = VARIANTS[2]
    samples = sound(features.samples(ROWS))
    bundle = tenon.compile(network(features), target="cortex-m4", no_tuning=True)
    (answer,) = RemoteBundle(bundle).run([samples])
    np.testing.assert_allclose(answer["y"].reshape(ROWS, -1), by_formulas(samples, features), rtol=0, atol=1e-4)


def test_coefficients_are_those_of_tensorflow() -> None:
    """Computed by its operators AudioSpectrogram and Mfcc."""
    expected = np.load(shared("models/expected/tensorflow_pb__kws_CNN_S_yes.npz"))["in_mfcc"]
    features = SoundFeatures(window=640)
    graph = Graph("features")
    x = graph.add_input("x", TensorType(F32, (1, 49, 10)))
    graph.outputs = [graph.add(ops.registry()["Identity"](), [x], ["y"]).output]
    with tenon.open(tenon.compile(compile_features_in(graph, features), no_tuning=True)) as engine:
        np.testing.assert_allclose(engine.run(spoken("yes"))["y"], expected, rtol=0, atol=2e-4)


# ------------------------------------------------------------------------------------------------ words
def spoken(word: str) -> Array:
    with wave.open(str(shared(f"models/tflite_int8/micro_speech/{word}_1000ms.wav"))) as file:
        return np.frombuffer(file.readframes(16000), np.int16)


KWS_NETWORK = "models/tflite_int8/mlperf_tiny/kws_ref_model.tflite"


@pytest.mark.parametrize(
    ("net", "step", "word"),
    [("DNN", 640, "yes"), ("DNN", 640, "no"), ("DS_CNN", 320, "yes"), ("DS_CNN", 320, "no"), ("LSTM", 640, "no")],
)
def test_samples_in_word_out(net: str, step: int, word: str) -> None:
    path = shared(f"models/tensorflow_pb/kws_{net}/{net}_S.pb")
    bundle = tenon.compile(path, features={"kind": "mfcc", "window": 640, "step": step}, no_tuning=True)
    with tenon.open(bundle) as engine:
        (scores,) = engine.run(spoken(word)).values()
    assert TENSORFLOW[int(scores.argmax())] == word


@pytest.mark.parametrize(("word", "label"), [("yes", "Yes"), ("silence", "Silence")])
@pytest.mark.parametrize("target", ["host", "cortex-m4"])
def test_a_network_of_integers(target: str, word: str, label: str) -> None:
    """MLPerf Tiny's keyword spotting in int8: the answer is that for features by the definition, rounded."""
    bundle = tenon.compile(shared(KWS_NETWORK), target=target, features=KWS_FEATURES, no_tuning=True, arithmetic="tflm")
    samples = spoken(word)[: bundle.interface.inputs[0].shape[0]]
    if target == "host":
        with tenon.open(bundle) as engine:
            (scores,) = engine.run(samples).values()
    else:
        skip_without_device(target)
        (scores,) = RemoteBundle(bundle).run([samples])[0].values()
    assert KWS[int(scores.argmax())] == label
    rows = read_features(KWS_FEATURES).rows(samples / 32768)[:49]
    quantised = np.rint(rows / 0.5847029089927673 + 83).clip(-128, 127).astype(np.int8).reshape(1, 49, 10, 1)
    with tenon.open(tenon.compile(shared(KWS_NETWORK), arithmetic="tflm", no_tuning=True)) as engine:
        (expected,) = engine.run(quantised).values()
    np.testing.assert_array_equal(scores, expected)


def test_memory_is_that_of_a_window() -> None:
    """The rows are computed by a loop, in a quantised network, too: 31 KiB of RAM are the samples."""
    bundle = tenon.compile(shared(KWS_NETWORK), target="cortex-m4", features=KWS_FEATURES, no_tuning=True)
    assert bundle.program.memory.mutable + bundle.program.memory.activations < 72 << 10
    assert bundle.program.memory.constant < 80 << 10
    assert bundle.source.count("input_1_features") < 40
    assert bundle.interface.answer == ""
    assert bundle.answer == ""


# ------------------------------------------------------------------------------------------------ options
def test_options_of_the_commands(tmp_path: Path) -> None:
    """A bundle with features takes the sound itself."""
    path, words = shared("models/tensorflow_pb/kws_DS_CNN/DS_CNN_S.pb"), shared("models/tensorflow_pb/labels.txt")
    succeeds("compile", path, "--features", "mfcc window=640", "--no-tuning", "--name", "words", "-o", tmp_path / "out")
    header = (tmp_path / "out/words.h").read_text()
    assert "/* i16[16000] */" in header
    assert "_SCALE 3.0517578e-05f" in header
    wav = shared("models/tflite_int8/micro_speech/no_1000ms.wav")
    printed = succeeds("run", tmp_path / "out", wav, "--labels", words)
    assert printed.splitlines()[1].split()[2] == "no"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "mfcc", "count": "11"}, "rows of 11 features do not fill the input x"),
        ({"kind": "samples"}, "features samples: kind must be one of"),
        ({"kind": "mfcc", "hop": "3"}, "features mfcc: .*hop"),
        ({"kind": "mfcc", "window": "one"}, "features mfcc: window must"),
        ({"kind": "mfcc", "centre": "true"}, "centre=true cannot be compiled in"),
    ],
)
def test_features_that_do_not_fit(fields: dict[str, str], message: str) -> None:
    graph = Graph("plain")
    x = graph.add_input("x", TensorType(F32, (1, 49, 10)))
    graph.outputs = [graph.add(ops.registry()["Abs"](), [x], ["y"]).output]
    with pytest.raises(InputError, match=message):
        tenon.compile(graph, features=fields, no_tuning=True)


def test_a_network_of_two_inputs(tmp_path: Path) -> None:
    graph = Graph("two")
    values = [graph.add_input(name, TensorType(F32, (1, 49, 10))) for name in ("a", "b")]
    graph.outputs = [graph.add(ops.registry()["Add"](), values, ["y"]).output]
    with pytest.raises(InputError, match=r"can be compiled in for one input; the model has a f32.* b f32"):
        tenon.compile(graph, features={"kind": "mfcc"}, no_tuning=True)
    done = command("compile", shared(KWS_NETWORK), "--features", "tone", "-o", tmp_path / "out")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "features tone: kind must be one of" in done.stderr
