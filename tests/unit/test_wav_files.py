"""WAV files of all encodings that are read, the one that is written, and conversion of sampling rates."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine.resample import resampled
from tenon.runtime.engine.sound import read_sound, sound_length
from tenon.runtime.engine.wav_file import write_wav

LEFT = np.array([0.0, 0.5, -0.5, 0.25])
RIGHT = np.array([0.0, -0.25, -0.5, 0.75])


def encoded(samples: Array, tag: int, width: int) -> bytes:
    """Interleaved samples as bytes."""
    if tag == 3:
        return samples.astype(f"<f{width}").tobytes()
    if width == 1:
        return (samples * 128 + 128).astype(np.uint8).tobytes()
    whole = (samples * 2.0 ** (8 * width - 1)).astype("<i4")
    return whole.view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def wav(data: bytes, tag: int, width: int, channels: int = 2, extensible: bool = False, before: bytes = b"") -> bytes:
    fields = struct.pack("<HHIIHH", tag, channels, 8000, 8000 * width * channels, width * channels, 8 * width)
    if extensible:
        fields = struct.pack("<H", 0xFFFE) + fields[2:] + struct.pack("<HHIH", 22, 8 * width, 3, tag) + bytes(14)
    chunks = b"fmt " + struct.pack("<I", len(fields)) + fields + before
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


@pytest.mark.parametrize(("tag", "width"), [(1, 1), (1, 2), (1, 3), (1, 4), (3, 4), (3, 8)])
@pytest.mark.parametrize("extensible", [False, True])
def test_encodings(tag: int, width: int, extensible: bool, tmp_path: Path) -> None:
    data = encoded(np.stack([LEFT, RIGHT], 1).reshape(-1), tag, width)
    path = tmp_path / "x.wav"
    path.write_bytes(wav(data, tag, width, extensible=extensible, before=b"LIST\x03\x00\x00\x00abc\x00"))
    np.testing.assert_array_equal(read_sound(path).samples, (LEFT + RIGHT) / 2)
    np.testing.assert_array_equal(read_sound(path, 1, 2).samples, ((LEFT + RIGHT) / 2)[1:3])
    assert (read_sound(path).rate, sound_length(path)) == (8000, 4)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data.replace(b"WAVE", b"AVI "), "does not begin with RIFF"),
        (lambda data: data.replace(b"fmt ", b"tmf "), "no format is stated"),
        (lambda data: data.replace(b"data", b"atad"), "it has no data"),
        (lambda data: data.replace(b"\x01\x00\x02\x00", b"\x06\x00\x02\x00"), "encoding is number 6"),
        (lambda data: data.replace(b"\x04\x00\x10\x00", b"\x04\x00\x30\x00"), "48 bits"),
    ],
)
def test_files_that_are_refused(damage: object, words: str, tmp_path: Path) -> None:
    assert callable(damage)
    path = tmp_path / "x.wav"
    path.write_bytes(damage(wav(bytes(16), 1, 2)))
    with pytest.raises(InputError, match=words):
        read_sound(path)


def test_a_file_that_ends_early_has_the_frames_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(wav(bytes(16), 1, 2)[:-6])
    assert len(read_sound(path).samples) == 2


def test_written_files_are_those_of_the_module_wave(tmp_path: Path) -> None:
    write_wav(tmp_path / "x.wav", np.array([0, 0.5, -2.0]), 22050)
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22050, 1, 2)
        assert np.frombuffer(file.readframes(3), "<i2").tolist() == [0, 16384, -32767]


@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (48000, 16000), (8000, 16000), (22050, 16000)])
def test_tones_that_both_rates_have_are_kept_and_others_removed(rate: int, wanted: int) -> None:
    def tone(frequency: float, at: int) -> Array:
        return np.asarray(np.sin(2 * np.pi * frequency * np.arange(at // 5) / at))

    inner = slice(100, -100)
    converted = resampled(tone(1500, rate), rate, wanted)
    np.testing.assert_allclose(converted[inner], tone(1500, wanted)[inner], atol=1e-4)
    if rate > 2 * 9000:
        assert np.abs(resampled(tone(9000, rate), rate, wanted)[inner]).max() < 1e-3
    assert len(resampled(np.zeros(0), rate, wanted)) == 0
