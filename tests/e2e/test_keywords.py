"""TensorFlow Lite Micro's micro_speech example: audio to features by its preprocessor, features to keywords by its
network.
"""

from __future__ import annotations

import importlib.util
import shutil
import zlib
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tenon
import tflm_signal as definition
from real import ROOT, shared
from tenon.formats.importers.tflite.content import TfliteOperation
from tenon.formats.importers.tflite.load import parse
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.flatbuffer import flex_map
from tenon.network.graph.graph import Array
from tenon.runtime.engine.device import RemoteBundle

FRAME = "serving_default_audio_frame:0"
WORDS = {"yes": "yes", "no": "no", "silence": "silence", "noise": "silence"}
"""As TFLM's own test expects."""


def model(name: str) -> Path:
    return shared(f"models/tflite_int8/micro_speech/{name}")


@cache
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("listen", ROOT / "examples/keywords/listen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sound(name: str) -> Array:
    samples: Array = example().read_samples(model(f"{name}_1000ms.wav"))
    return samples


def windows(samples: Array) -> list[Array]:
    return [samples[i : i + 480] for i in range(0, len(samples) - 479, 320)]


class Preprocessor:
    """The operators of the file by their definitions, with the tables and options stored in the file."""

    def __init__(self, path: Path) -> None:
        (content,) = parse(ModelFile(path.name, path.read_bytes()))
        self.tables = [[] if t.data is None else t.data.ravel().tolist() for t in content.tensors]
        self.operations = {o.type: o for o in content.operations}
        self.noise = [0] * 40

    def table(self, of: str, k: int) -> Any:
        return self.tables[self.operations[of].inputs[k]]

    def option(self, of: str, name: str) -> int:
        operation: TfliteOperation = self.operations[of]
        return int(flex_map(operation.custom)[name])

    def logarithms(self, samples: list[int]) -> list[int]:
        x = definition.window(samples, self.table("SignalWindow", 1), self.option("SignalWindow", "shift"))
        x, bits = definition.auto_scale(x)
        x = definition.rfft(x, self.option("SignalRfft", "fft_length"))
        x = definition.energy(x, *(self.option("SignalEnergy", f"{end}_index") for end in ("start", "end")))
        x = definition.filter_bank(x, [self.table("SignalFilterBank", k) for k in range(1, 6)], 40)
        x = definition.square_root(x, bits)
        options = flex_map(self.operations["SignalFilterBankSpectralSubtraction"].custom)
        x, self.noise = definition.spectral_subtraction(x, self.noise, options)
        x = definition.pcan(x, self.noise, self.table("SignalPCAN", 2), self.option("SignalPCAN", "snr_shift"))
        names = ("output_scale", "input_correction_bits")
        return definition.logarithm(x, *(self.option("SignalFilterBankLog", name) for name in names))


def as_bytes(logarithms: list[int]) -> list[int]:
    """The last operators of the integer model: x * 256 / 666, rounded to nearest, minus 128."""
    return [min(max((x * 256 + 333) // 666 - 128, -128), 127) for x in logarithms]


# ------------------------------------------------------------------------------------------------------- features
@pytest.mark.parametrize(
    ("name", "start", "first", "checksum"),
    [("yes", 8000, [124, 105, 126], 3477554480), ("no", 8960, [126, 103, 124], 1245310859)],
)
def test_features_match_checksums_of_tflm_tests(name: str, start: int, first: list[int], checksum: int) -> None:
    """TFLM's tests list the features of 30 ms of each recording; these are their checksums."""
    with tenon.open(tenon.compile(model("audio_preprocessor_int8.tflite"))) as engine:
        (features,) = example().features(engine, sound(name)[start : start + 480])
    assert features[:3].tolist() == first
    assert zlib.crc32(features.tobytes()) == checksum


@pytest.mark.parametrize("name", WORDS)
def test_keywords_with_noise_state(name: str) -> None:
    """Over one second of audio, every feature and the noise state match the definition, and the keyword is right."""
    path = model("audio_preprocessor_int8.tflite")
    with tenon.open(tenon.compile(path)) as engine:
        features = example().features(engine, sound(name))
    reference = Preprocessor(path)
    expected = [as_bytes(reference.logarithms(piece.tolist())) for piece in windows(sound(name))]
    np.testing.assert_array_equal(features, expected)
    with tenon.open(tenon.compile(model("micro_speech_quantized.tflite"))) as network:
        ((_, word, probability),) = example().words(network, features)
    assert word == WORDS[name]
    assert probability > (0.9 if name in ("yes", "no") else 0.3)


def test_float_features() -> None:
    """The float model divides the logarithms by 25.6, in f32; its noise state is the same."""
    path = model("audio_preprocessor_float.tflite")
    reference, noise = Preprocessor(path), np.zeros(40, np.uint32)
    with tenon.open(tenon.compile(path)) as engine:
        frame, state = engine.inputs
        for piece in windows(sound("no")):
            features, noise = engine.run({frame: piece[None], state: noise}).values()
            expected = np.array(reference.logarithms(piece.tolist()), np.float32) * np.float32(10 / 256)
            np.testing.assert_array_equal(features, expected)
            np.testing.assert_array_equal(noise, reference.noise)


def test_loud_noise_is_exact() -> None:
    """Samples over the full 16-bit range, with silence between them: the FFT is auto-scaled by other shifts."""
    rng = np.random.default_rng(3)
    path = model("audio_preprocessor_int8.tflite")
    reference, noise = Preprocessor(path), np.zeros(40, np.uint32)
    loudness = (1, 32767, 0, 40, 32767, 900, 3, 0)
    with tenon.open(tenon.compile(path)) as engine:
        frame, state = engine.inputs
        means = [noise]
        for loud in loudness:
            piece = rng.integers(-loud, loud + 1, 480).astype(np.int16)
            actual, noise = engine.run({frame: piece[None], state: noise}).values()
            np.testing.assert_array_equal(actual, as_bytes(reference.logarithms(piece.tolist())))
            np.testing.assert_array_equal(noise, reference.noise)
            means.append(noise)
    assert all((a != b).any() for a, b in pairwise(means[1:]))


def test_preprocessor_on_cortex_m7() -> None:
    """On an emulated Cortex-M7, the kind of processor that this preprocessor is made for."""
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("no qemu-system-arm here")
    path = model("audio_preprocessor_int8.tflite")
    reference = Preprocessor(path)
    feeds, expected = list[dict[str, Array]](), list[tuple[list[int], list[int]]]()
    for piece in windows(sound("yes"))[20:24]:
        feeds.append({FRAME: piece[None], "noise_estimate": np.array(reference.noise, np.uint32)})
        expected.append((as_bytes(reference.logarithms(piece.tolist())), reference.noise))
    actual = RemoteBundle(tenon.compile(path, target="cortex-m7")).run(feeds)
    assert [tuple(a.tolist() for a in each.values()) for each in actual] == expected
