#!/usr/bin/env python3
"""Tokens per second of several sequences in one run beside one at a time, repetitions interleaved.

    python bench/decoder_sequences.py model.gguf [--sequences 1 2 4 8] [--behind 128] [--threads 1]
    python bench/decoder_sequences.py --write q4_0 model.gguf    # a Llama of 135 M parameters at random first

Each run adds a token to every sequence, behind so many others of random text; 1 is the network of one sequence.  Prints
tokens in a second of processor time (of the fastest repetition), and how many times those of one sequence that is.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import process_time

import numpy as np
from language_models import SIZES, write

import tenon

PIECE = 64
"""Tokens of a run of a prompt."""

Step = Callable[[int], object]


def one(engine: tenon.Engine, behind: int) -> Step:
    """Runs of the network of one sequence."""
    for start in range(0, behind, PIECE):
        engine.run({"tokens": np.arange(start, min(start + PIECE, behind))[None]})

    def step(number: int) -> object:
        engine.inputs["past"][...] = behind + number
        return engine.run({"tokens": np.array([[number]])}, copy=False)

    return step


def several(engine: tenon.Engine, behind: int, count: int) -> Step:
    """Runs with a token of each sequence."""
    for slot in range(count):
        for start in range(0, behind, PIECE):
            places = np.arange(start, min(start + PIECE, behind))
            feeds = {"tokens": places[None], "slots": np.full(len(places), slot), "positions": places}
            engine.run({**feeds, "rows": np.array([0])}, copy=False)

    def step(number: int) -> object:
        every = np.arange(count)
        feeds = {"tokens": every[None] + number, "slots": every, "positions": np.full(count, behind + number)}
        return engine.run({**feeds, "rows": every}, copy=False)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", choices=("q4_0", "q8_0"), help="write the model first")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--behind", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    given = parser.parse_args()
    if given.write:
        write(given.model, given.write, SIZES["135m"])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        steps = dict[int, Step]()
        for count in given.sequences:
            room = given.behind + PIECE
            bundle = tenon.compile(given.model, name="model", context=room, sequences=count, threads=given.threads)
            saved = bundle.save(Path(folder) / f"{count}.tenon")
            engine = stack.enter_context(tenon.open(saved, threads=given.threads))
            steps[count] = one(engine, given.behind) if count == 1 else several(engine, given.behind, count)
        times: dict[int, list[float]] = {count: [] for count in steps}
        for _ in range(given.repeat):
            for count, step in steps.items():
                began = process_time()
                for number in range(given.tokens):
                    step(number)
                times[count].append((process_time() - began) / given.tokens / count)
        first = min(times[given.sequences[0]])
        for count, seconds in times.items():
            print(f"{count} sequences: {1 / min(seconds):.0f} tokens/s, {first / min(seconds):.2f}x")


if __name__ == "__main__":
    main()
