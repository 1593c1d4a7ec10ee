"""Processor time for a second of sound by a Piper voice, beside onnxruntime: ``python bench/voice.py VOICE.onnx``.

Both run in one thread, interleaved, without noise in durations, so that all sounds of a text are equally long.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import tenon
from tenon.speech import VoiceSettings, sizes

TEXTS = ("helo wold.", "ðe kwik braun foks dʒumps over ðe lazi dog, and ðen it runs awei.")
"""A short text and one of usual length, as phonemes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("voice", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print the slowest layers")
    arguments = parser.parse_args()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(arguments.voice), options, providers=["CPUExecutionProvider"])
    settings = VoiceSettings.beside(arguments.voice)
    assert settings is not None
    bundle = tenon.compile(arguments.voice, profile=arguments.profile, **sizes())
    with tenon.open(bundle) as engine:
        name = engine.manifest.outputs[0].name
        for text in TEXTS:
            feeds = _feeds(settings, text)
            runs = {
                "tenon": lambda feeds=feeds: engine.run(feeds)[name],
                "onnxruntime": lambda feeds=feeds: session.run(None, feeds)[0],
            }
            seconds = {who: min(_times(runs, who, arguments.repeat)) for who in runs}
            lengths = {who: run().size / settings.rate for who, run in runs.items()}
            rates = {who: round(seconds[who] / lengths[who], 4) for who in runs}
            ratio = rates["onnxruntime"] / rates["tenon"]
            print(
                json.dumps({"sound_seconds": lengths, "processor_seconds_per_second": rates, "ratio": round(ratio, 3)})
            )
            if arguments.profile:
                _print_profile(engine, feeds)


def _times(runs: dict[str, Any], who: str, repeat: int) -> list[float]:
    """Processor times of one program, each behind a run of the other."""
    times = []
    for _ in range(repeat):
        for other, run in runs.items():
            began = time.process_time()
            run()
            if other == who:
                times.append(time.process_time() - began)
    return times


def _feeds(settings: VoiceSettings, text: str) -> dict[str, Any]:
    numbers, pad = settings.numbers, settings.numbers["_"]
    inner = [n for p in text for n in (*numbers.get(p, ()), *pad)]
    ids = [*numbers["^"], *pad, *inner, *numbers["$"]]
    return {
        "input": np.array([ids], np.int64),
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
    }


def _print_profile(engine: tenon.Engine, feeds: dict[str, Any]) -> None:
    """The slowest kernel calls on these feeds, in milliseconds."""
    engine.run(feeds)
    stamps = np.array([np.diff(engine.timestamps().astype(np.int64)) for _ in range(5)]).min(0) / 1e6
    print(f"{stamps.sum():8.3f}  all")
    for i in np.argsort(-stamps)[:25]:
        call = engine.manifest.nodes[i]
        print(f"{stamps[i]:8.3f}  {call.op:16} {call.kernel:40} {list(call.output)}  {call.layer}")


if __name__ == "__main__":
    main()
