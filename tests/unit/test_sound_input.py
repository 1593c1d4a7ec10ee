"""Sounds as inputs: features of them, windows, states between windows, and what a network hears over time."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest

import tenon
from installed import succeeds
from installed import tenon as command
from onnx_models import model, node
from real import shared
from tenon.cli.sound_input import Samples, Steps, parse_features, windows
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.sound_features import SoundFeatures, mel_bands
from tenon.runtime.answers.timeline import Moment, timeline_answer
from tenon.runtime.engine.sound import Sound, read_sound

RATE = 16000


def write_sound(path: Path, samples: Array, rate: int = RATE) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())


def tone(frequency: float, seconds: float) -> Array:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(round(RATE * seconds)) / RATE)


# ------------------------------------------------------------------------------------------------ features
@pytest.mark.parametrize(("net", "step"), [("CNN_S", 320), ("DNN_S", 640), ("DS_CNN_S", 320), ("LSTM_S", 640)])
def test_coefficients_are_those_of_tensorflow(net: str, step: int) -> None:
    """The inputs of the expected answers were computed by TensorFlow's own operators."""
    expected = np.load(shared(f"models/expected/tensorflow_pb__kws_{net}_yes.npz"))["in_mfcc"]
    sound = read_sound(shared("models/tflite_int8/micro_speech/yes_1000ms.wav"))
    rows = SoundFeatures(window=640, step=step).rows(sound.samples)
    np.testing.assert_allclose(rows[None], expected, atol=1e-5)


def test_bands_overlap_by_half_and_leave_out_what_is_outside() -> None:
    weights = mel_bands(8, 512, RATE, 100, 4000)
    frequencies = np.arange(257) * RATE / 512
    inside = (frequencies > 300) & (frequencies < 3000)
    np.testing.assert_allclose(weights[inside].sum(1), 1)
    assert not weights[(frequencies < 100) | (frequencies > 4000)].any()
    assert (np.diff(weights.argmax(0)) > 0).all()


def test_bands_of_slaney_are_those_of_librosa() -> None:
    """librosa 0.11: filters.mel(sr=16000, n_fft=1024, n_mels=128), and melspectrogram of two tones in decibels."""
    weights = mel_bands(128, 1024, RATE, 0, 8000, "slaney")
    assert weights.sum() == pytest.approx(8.18838, rel=1e-5)
    assert [weights[:, 40].max(), weights[:, 100].max()] == pytest.approx([0.032582514, 0.009601485], rel=1e-5)
    assert weights[:, 127].argmax() == 500
    samples = tone(1000, 0.5) + 0.2 * tone(3000, 0.5)
    features = SoundFeatures(
        kind="mel",
        mel="slaney",
        window=1024,
        step=512,
        bands=128,
        low=0,
        high=8000,
        power=2.0,
        offset=2.2e-16,
        centre=True,
        scale=10 / np.log(10),
    )
    rows = features.rows(samples)
    assert rows.shape == (16, 128)
    expected = [-9.95063457875219, -2.04738036317871, -16.977076886330615, -22.582853358975676]
    np.testing.assert_allclose(rows[0, ::32], expected, atol=1e-3)


def test_a_tone_is_in_its_band() -> None:
    rows = SoundFeatures(kind="mel", window=512, step=256, bands=20, power=2.0).rows(tone(1000, 0.2))
    edges = np.linspace(1127 * np.log1p(20 / 700), 1127 * np.log1p(4000 / 700), 22)
    band = int(np.abs(edges[1:-1] - 1127 * np.log1p(1000 / 700)).argmin())
    assert set(rows.argmax(1)) == {band}
    assert rows.shape == (11, 20)


def test_features_shifted_and_scaled() -> None:
    samples = tone(500, 0.1)
    plain = SoundFeatures().rows(samples)
    np.testing.assert_allclose(SoundFeatures(mean=3.0, scale=0.5).rows(samples), (plain - 3) / 2)
    np.testing.assert_allclose(SoundFeatures(peak=True).rows(samples / 7), SoundFeatures(peak=True).rows(samples))
    with pytest.raises(InputError, match="fewer than a window of 480"):
        SoundFeatures().rows(samples[:479])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mffc", "choose from samples, mfcc, mel, model"),
        ("mfcc window=1", "window must be 2 or more"),
        ("mfcc windows=2", "windows"),
        ("model", "file"),
        ("samples context=-1", "context must be 0"),
        ("'", "KIND KEY"),
    ],
)
def test_features_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_features(text)


# ------------------------------------------------------------------------------------------------ windows
def loudness(size: int, state: bool = False) -> bytes:
    """The mean square of the input, and with ``state`` of all inputs so far: [1, 1]."""
    nodes = [node("Mul", ["x", "x"], ["s"]), node("ReduceMean", ["s", "axes"], ["m"], keepdims=1)]
    inputs, outputs = {"x": [1, size]}, ["m"]
    if state:
        nodes += [node("Max", ["m", "most"], ["mostN"]), node("Mul", ["mostN", "one"], ["y"])]
        inputs, outputs = {"x": [1, size], "most": [1, 1]}, ["y", "mostN"]
    constants: dict[str, Array] = {"axes": np.array([1], np.int64), "one": np.ones(1, np.float32)}
    if not state:
        del constants["one"]
    return bytes(model(nodes, inputs, outputs, constants).SerializeToString())


def test_windows_overlap_by_the_context() -> None:
    with tenon.open(tenon.compile(loudness(100))) as engine:
        parts = list(windows(Sound(np.arange(170.0), RATE), Samples(context=20), Steps(engine)))
    assert [(round(a * RATE), round(b * RATE)) for a, b, _ in parts] == [(0, 80), (80, 160), (160, 240)]
    assert [values[0] for *_, values in parts] == [0, 60, 140]
    assert parts[1][2].tolist() == list(range(60, 160))
    assert parts[0][2][:20].tolist() == [0] * 20


def test_rows_fill_the_input_and_the_last_window_reaches_the_end() -> None:
    with tenon.open(tenon.compile(loudness(40))) as engine:
        steps = Steps(engine)
        features = SoundFeatures(window=400, step=160, count=10)
        parts = list(windows(Sound(tone(400, 0.09), RATE), features, steps))
        rows = features.rows(tone(400, 0.09))
        assert len(rows) == 7
        assert [round(a * RATE / 160) for a, *_ in parts] == [0, 2, 3]
        np.testing.assert_array_equal(parts[1][2], rows[2:6])
        (short,) = windows(Sound(tone(400, 0.03), RATE), features, steps)
        assert short[2].shape == (4, 10)
        (slow,) = windows(Sound(tone(400, 0.03)[::2], RATE // 2), features, steps)
        assert slow[2].shape == (4, 10)
        with pytest.raises(InputError, match="rows of 9 values do not fill the input of"):
            list(windows(Sound(tone(400, 0.1), RATE), SoundFeatures(count=9), steps))


def test_states_are_carried_between_windows() -> None:
    with tenon.open(tenon.compile(loudness(10, state=True))) as engine:
        steps = Steps(engine)
        assert (steps.input, steps.states) == ("x", {"most": "mostN"})
        loud = [float(steps.run(np.full(10, x, np.float32))["y"].item()) for x in (1, 3, 2)]
    assert loud == [1, 9, 9]


def test_an_input_that_is_no_state_must_be_fixed() -> None:
    nodes = [node("Add", ["x", "b"], ["y"])]
    data = model(nodes, {"x": [1, 5], "b": [1, 1]}, ["y"], {}).SerializeToString()
    with tenon.open(tenon.compile(data)) as engine, pytest.raises(InputError, match="Fix the others with --value"):
        Steps(engine)


# ------------------------------------------------------------------------------------------------ over time
def test_stretches_of_time_of_a_single_score() -> None:
    scores = [0.1, 0.9, 0.8, 0.2, 0.7]
    moments = [Moment(i / 10, (i + 1) / 10, np.array([s])) for i, s in enumerate(scores)]
    answer = timeline_answer(moments, ["speech"], None)
    assert answer.rows == (("0.10", "0.30", "speech", "0.900"), ("0.40", "0.50", "speech", "0.700"))
    assert timeline_answer(moments, [], 0.95).summary == "nothing heard: highest score 0.900"


def test_the_best_class_of_each_part() -> None:
    moments = [Moment(0, 1, np.array([0.2, 0.8])), Moment(1, 2, np.array([0.6, 0.4]))]
    assert timeline_answer(moments, ["no", "yes"], None).rows == (
        ("0.00", "1.00", "yes", "0.800"),
        ("1.00", "2.00", "no", "0.600"),
    )
    assert len(timeline_answer(moments, [], 0.7).rows) == 1


def test_a_sound_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "loud.onnx").write_bytes(loudness(1600))
    quiet = np.zeros(1600)
    write_sound(tmp_path / "x.wav", np.concatenate([quiet, tone(400, 0.2) * 2, quiet]))
    shown = succeeds("run", "loud.onnx", "x.wav", "--threshold", "0.2", cwd=tmp_path)
    assert [line.split() for line in shown.splitlines()[1:2]] == [["0.10", "0.30", "heard", "0.500"]]
    assert "4 windows" in shown
    listed = json.loads(succeeds("run", "loud.onnx", "x.wav", "--threshold", "0.2", "--json", cwd=tmp_path))
    assert (listed["windows"], len(listed["scores"]), listed["heard"][0]["end"]) == (4, 4, 0.3)


def test_an_anomaly_in_a_sound(tmp_path: Path) -> None:
    """A network that gives half of its input reproduces silence, and a tone with an error."""
    data = model([node("Mul", ["x", "half"], ["y"])], {"x": [1, 1600]}, ["y"], {"half": np.array([0.5], np.float32)})
    (tmp_path / "net.onnx").write_bytes(data.SerializeToString())
    write_sound(tmp_path / "x.wav", np.concatenate([np.zeros(1600), tone(400, 0.1) * 2, np.zeros(1600)]))
    run = ("run", "net.onnx", "x.wav", "--head", "reconstruction", "--json")
    listed = json.loads(succeeds(*run, "--threshold", "0.1", cwd=tmp_path))
    np.testing.assert_allclose(listed["scores"], [0, 0.125, 0], atol=1e-3)
    assert [(h["start"], h["end"]) for h in listed["heard"]] == [(0.1, 0.2)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x.wav", "--draw", "y.png"), "--draw"),
        (("x.wav", "--crop", "1,2,3,4"), "--crop"),
        (("x.wav", "--mean", "3"), "--mean"),
        (("broken.wav",), "not a readable WAV"),
        (("none.wav",), "none.wav"),
        (("x.wav", "--features", "mfcc"), "do not fill"),
        (("--features", "mfcc"), "--features: no effect"),
        (("x.wav", "--target", "riscv64"), "on this machine only"),
    ],
)
def test_what_does_not_go_with_a_sound(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "loud.onnx").write_bytes(loudness(1601))
    write_sound(tmp_path / "x.wav", tone(400, 0.2))
    (tmp_path / "broken.wav").write_bytes(b"RIFFxxxxWAVEnone")
    done = command("run", "loud.onnx", *words, cwd=tmp_path)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


# ------------------------------------------------------------------------------------------------ real networks
@pytest.mark.parametrize("word", ["yes", "no"])
def test_words_from_samples(word: str, tmp_path: Path) -> None:
    """Features by another network, whose noise estimate is a state, and integers in and out."""
    folder = shared("models/tflite_int8/micro_speech")
    (tmp_path / "words.txt").write_text("silence\nunknown\nyes\nno\n")
    features = f"model file='{folder}/audio_preprocessor_int8.tflite'"
    shown = succeeds(
        "run",
        folder / "micro_speech_quantized.tflite",
        folder / f"{word}_1000ms.wav",
        "--features",
        features,
        "--labels",
        "words.txt",
        cwd=tmp_path,
    )
    assert shown.splitlines()[1].split()[2] == word


def test_features_must_be_named(tmp_path: Path) -> None:
    folder = shared("models/tflite_int8/micro_speech")
    done = command("run", folder / "../mlperf_tiny/kws_ref_model.tflite", folder / "yes_1000ms.wav")
    assert (done.returncode, "--features 'mfcc window=640" in " ".join(done.stderr.split())) == (2, True)
