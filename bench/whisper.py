"""Whisper's encoder and decoder beside whisper.cpp, on one seeded file: ``python bench/whisper.py m.bin --write tiny``.

``--peer`` is the program ``whisper_peer.cpp`` linked with a build of whisper.cpp; it and Tenon run in turn.  Times are
processor seconds, of the encoder with the spectrogram for 30 s of sound and of a token behind 8 others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tenon
from tenon.formats.decompositions.transformers.whisper import WhisperConfig
from tenon.network.graph.sound_features import mel_bands
from tenon.speech import DECODER, ENCODER

SIZES = {"tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12)}
"""Width, layers and heads of Whisper's networks for English."""

FIRST, TOKENS = 8, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", choices=SIZES, help="write the file, with random weights")
    parser.add_argument("--type", default="f16", help="of the weights: f32, f16")
    parser.add_argument("--peer", help="the program of whisper.cpp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.write:
        _write(arguments.file, *SIZES[arguments.write], arguments.type)
    runs: dict[str, Callable[[], dict[str, float]]] = {"tenon": _ours(arguments.file, arguments.threads)}
    if arguments.peer:
        words = [arguments.peer, str(arguments.file), str(arguments.threads), "1"]
        runs["whisper.cpp"] = lambda: json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    times: dict[str, list[dict[str, float]]] = {who: [] for who in runs}
    for _ in range(arguments.repeat):
        for who, run in runs.items():
            times[who].append(run())
    least = {who: {key: min(each[key] for each in all_) for key in all_[0]} for who, all_ in times.items()}
    print(json.dumps(least))
    for who in runs:
        ratios = {key: round(value / least["tenon"][key], 2) for key, value in least[who].items()}
        print(f"{who} over tenon: {ratios}")


def _write(path: Path, width: int, layers: int, heads: int, kind: str) -> None:
    """A file of whisper.cpp with the sizes of a model for English."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from ggml_models import whisper_file
    from transformer_models import whisper_tensors

    config = WhisperConfig(51864, width, layers, heads, 4 * width, layers, heads, 4 * width, 80, 1500, 448)
    tensors = whisper_tensors(config)
    filters = mel_bands(80, 400, 16000, 0, 8000, "slaney").T.astype(np.float32)
    words = [b" w%d" % i for i in range(50257)]
    path.write_bytes(whisper_file(config, tensors, kind, words, np.ascontiguousarray(filters))[0])


def _sound() -> Any:
    n = np.arange(480000)
    return np.where(n % 4000 > 640, 0.3 * np.sin(0.05 * n), 0).astype(np.float32)[None]


def _measured(encode: Callable[[], object], decode: Callable[[int], object]) -> dict[str, float]:
    start = time.process_time()
    encode()
    encoder = time.process_time() - start
    for i in range(FIRST):
        decode(i)
    start = time.process_time()
    for i in range(FIRST, FIRST + TOKENS):
        decode(i)
    return {"encoder": encoder, "token": (time.process_time() - start) / TOKENS}


def _ours(path: Path, threads: int) -> Callable[[], dict[str, float]]:
    encoder = tenon.open(tenon.compile(path, threads=threads, **ENCODER), threads=threads)
    decoder = tenon.open(tenon.compile(path, threads=threads, **DECODER), threads=threads)
    sound = _sound()

    def encode() -> None:
        for name, array in encoder.run({"samples": sound}, copy=False).items():
            decoder.inputs[name][...] = array
        decoder.reset()

    def decode(_: int) -> None:
        decoder.inputs["tokens"][...] = 7
        decoder.run(copy=False)

    return lambda: _measured(encode, decode)


if __name__ == "__main__":
    main()
