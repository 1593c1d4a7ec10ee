#!/usr/bin/env python3
"""Keyword spotting ("yes" and "no") in a recording, with two networks of TensorFlow Lite Micro.

    python examples/keywords/listen.py audio_preprocessor_int8.tflite micro_speech_quantized.tflite SOUND.wav

SOUND.wav has one channel of 16 bits at 16 kHz.  The first network computes 40 features of each window of 30 ms, every
20 ms; the second one classifies 49 windows.  The state that the first network carries between windows, a noise
estimate, is an input and an output of it; it is initialised with zeros.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import tenon

WORDS = ("silence", "unknown", "yes", "no")
RATE, WINDOW, STEP = 16000, 480, 320
"""Samples per second and per window, and step between windows."""
FRAMES, HOP = 49, 10
"""Windows per classification, and step between classifications."""


def read_samples(path: Path) -> np.ndarray:
    """16-bit samples of one channel; padded with zeros to at least one second."""
    with wave.open(str(path)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path}: must have one channel of 16 bits at {RATE} Hz")
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.int16)
    return np.pad(samples, (0, max(0, RATE - len(samples))))


def features(preprocessor: tenon.Engine, samples: np.ndarray) -> np.ndarray:
    """int8 features [windows, 40]."""
    sound, noise = preprocessor.inputs
    rows = []
    mean = np.zeros(preprocessor.inputs[noise].shape, np.uint32)
    for start in range(0, len(samples) - WINDOW + 1, STEP):
        row, mean = preprocessor.run({sound: samples[None, start : start + WINDOW], noise: mean}).values()
        rows.append(row)
    return np.array(rows)


def words(network: tenon.Engine, rows: np.ndarray) -> Iterator[tuple[float, str, float]]:
    """(second, word, probability) of each classification."""
    for first in range(0, len(rows) - FRAMES + 1, HOP):
        (scores,) = network.run(rows[first : first + FRAMES].reshape(1, -1)).values()
        best = int(scores.argmax())
        yield first * STEP / RATE, WORDS[best], (int(scores.ravel()[best]) + 128) / 256


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("preprocessor", "network", "sound"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    samples = read_samples(options.sound)
    with (
        tenon.open(tenon.compile(options.preprocessor)) as preprocessor,
        tenon.open(tenon.compile(options.network)) as network,
    ):
        for second, word, probability in words(network, features(preprocessor, samples)):
            print(f"{second:5.1f} s  {word:8} {probability:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
