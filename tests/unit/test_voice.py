"""Voices: phonemes to numbers, sentences, and a WAV file of a network whose durations are computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import tenon
from installed import succeeds
from installed import tenon as command
from tenon.errors import FormatError, InputError
from tenon.speech import Voice, VoiceSettings, phonemes_of, read_sound, sizes

NUMBERS = {"_": [0], "^": [1], "$": [2], " ": [3], ".": [4], ",": [5], "a": [6], "b": [7], "ə": [8], "ŋ": [9]}
SETTINGS = {
    "audio": {"sample_rate": 8000},
    "espeak": {"voice": "en-us"},
    "inference": {"noise_scale": 0.5, "length_scale": 2, "noise_w": 0.8},
    "phoneme_id_map": NUMBERS,
    "num_speakers": 2,
}
VOICE = """
<ir_version: 8, opset_import: ["" : 15]>
voice (int64[batch_size,phonemes] input, int64[batch_size] input_lengths, float[3] scales, int64[batch_size] sid)
 => (float[a,b,c,d] output)
<float tenth = {0.1}, int64[1] one = {1}, int64 zero = {0}, float part = {0.05}>
{
  values = Cast <to=1> (input)
  factor = Gather (scales, one)
  lengths = Mul (values, factor)
  summed = ReduceSum <keepdims=0> (lengths)
  whole = Ceil (summed)
  count = Cast <to=7> (whole)
  flat = Squeeze (count)
  step = Constant <value_int=1> ()
  frames = Range (zero, flat, step)
  real = Cast <to=1> (frames)
  wave = Mul (real, part)
  tone = Sin (wave)
  speaker = Cast <to=1> (sid)
  loud = Add (speaker, factor)
  scaled = Mul (tone, loud)
  small = Mul (scaled, tenth)
  axes = Constant <value_ints=[0,1,2]> ()
  output = Unsqueeze (small, axes)
}
"""
"""A network with a frame for each unit of its phonemes' numbers, as many as ``scales`` says, as loud as ``sid``."""


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    path = tmp_path / "voice.onnx"
    path.write_bytes(onnx.parser.parse_model(VOICE).SerializeToString())
    path.with_name("voice.onnx.json").write_text(json.dumps(SETTINGS))
    return path


def settings(path: Path) -> VoiceSettings:
    beside = VoiceSettings.beside(path)
    assert beside is not None
    return beside


def test_settings(voice: Path) -> None:
    assert settings(voice).scales == (0.5, 2, 0.8)
    assert (settings(voice).rate, settings(voice).speakers, settings(voice).numbers["ə"]) == (8000, 2, (8,))
    assert VoiceSettings.beside(voice.with_name("other.onnx")) is None
    broken: list[object] = [{**SETTINGS, "audio": {}}, {**SETTINGS, "phoneme_id_map": {"a": [1]}}, []]
    for damaged in broken:
        voice.with_name("voice.onnx.json").write_text(json.dumps(damaged))
        with pytest.raises(FormatError, match=r"voice\.onnx\.json"):
            VoiceSettings.beside(voice)


@pytest.mark.parametrize("phonemes", [1, 20, 100])
def test_frames_fill_whole_tiles(phonemes: int) -> None:
    """Winograd's algorithm for the convolutions of a voice has tiles of 4 or 8 positions."""
    frames = sizes(phonemes)["max"]["*"]
    assert frames % 16 == 0
    assert frames >= 6 * (2 * phonemes + 3)


def test_sound_of_phonemes(voice: Path) -> None:
    with tenon.open(tenon.compile(voice, **sizes(20))) as engine:
        speaker = Voice(engine, settings(voice), speaker=1)
        assert list(speaker.sentences("ab. bŋa")) == [[1, 0, 6, 0, 7, 0, 4, 0, 2], [1, 0, 7, 0, 9, 0, 6, 0, 2]]
        assert [len(n) for n in speaker.sentences("ab " * 10)] == [37, 25]
        sound = speaker.speak("ab.")
        expected = 0.3 * np.sin(0.05 * np.arange(2 * (1 + 6 + 7 + 4 + 2)))
        np.testing.assert_allclose(sound.samples, expected, atol=1e-6)
        assert len(speaker.speak("ab.", speed=2).samples) == len(expected) // 2
        assert len(speaker.speak("ab. ab.").samples) == 2 * len(expected) + 8000 // 5
        assert len(speaker.speak("").samples) == 0
        with pytest.raises(InputError, match="phonemes 'ʒ': the voice has"):
            speaker.speak("aʒ")
        with pytest.raises(InputError, match="speaker 2: the voice has 2"):
            Voice(engine, settings(voice), speaker=2)


def test_a_voice_on_the_command_line(voice: Path, tmp_path: Path) -> None:
    shown = succeeds("run", voice, "--phonemes", "ab.", "--output", "x.wav", cwd=tmp_path)
    assert shown.startswith("x.wav: 0.01 s of sound")
    assert (len(read_sound(tmp_path / "x.wav").samples), read_sound(tmp_path / "x.wav").rate) == (40, 8000)
    for words, said in (
        (("--phonemes", "ab", "--output", "x.npz"), "--output speech.wav"),
        (("--phonemes", "ab", "--output", "x.wav", "--top", "3"), "--top: no effect"),
        (("--phonemes", "xy", "--output", "x.wav"), "the voice has"),
        ((), "speaks texts: give one with --text, and --output speech.wav"),
    ):
        done = command("run", voice, *words, cwd=tmp_path)
        assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_phonemes_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("espeak-ng"):
        assert phonemes_of("Hello, world!", "en-us") == "h\u0259l\u02c8o\u028a, w\u02c8\u025c\u02d0ld!"
    program = tmp_path / "espeak-ng"
    program.write_text('#!/bin/sh\nsed "s/^/$4-(en)/"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert phonemes_of("One, two. ", "nl") == "nl-One, nl-two."
    program.write_text("#!/bin/sh\necho no such voice >&2\nexit 1\n")
    with pytest.raises(InputError, match="no such voice"):
        phonemes_of("One", "xx")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="install it, or give phonemes"):
        phonemes_of("One", "nl")
