#!/usr/bin/env python3
"""Time and error of a decoder's caches in fewer bits, beside those of f32, repetitions interleaved.

    python bench/decoder_caches.py model.gguf [--behind 512 2048] [--types fp32 fp16 bf16 int8] [--threads 1]
    python bench/decoder_caches.py --write q4_0 model.gguf       # a Llama of 135 M parameters at random first

For each type: milliseconds of processor time for a token behind so many others (minimum of the repetitions), bytes of
the mutable memory, and against f32 after --text random tokens: the root of the mean square of the difference of the
logits over that of the logits, the mean Kullback-Leibler divergence, and the perplexity of the text.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import process_time

import numpy as np
from language_models import SIZES, write

import tenon
from tenon.network.graph.graph import Array

TYPES = ("fp32", "fp16", "bf16", "int8")
PIECE = 64
"""Tokens of a run of a prompt."""


def filled(engine: tenon.Engine, text: Array, behind: int) -> None:
    """Give the first ``behind`` tokens."""
    engine.reset()
    for start in range(0, behind, PIECE):
        engine.run({"tokens": text[None, start : min(start + PIECE, behind)]})


def decode_time(engine: tenon.Engine, text: Array, behind: int, count: int = 8) -> float:
    """Milliseconds of processor time for a token behind so many others."""
    engine.inputs["past"][...] = behind - count
    began = process_time()
    for token in text[:count]:
        engine.run({"tokens": token[None, None]})
    return (process_time() - began) * 1e3 / count


def logits_of(engine: tenon.Engine, text: Array) -> Array:
    """The logits behind every token of the second half of a text."""
    half = len(text) // 2
    filled(engine, text, half)
    return np.stack([engine.run({"tokens": token[None, None]})["logits"][0, -1] for token in text[half:]])


def log_probabilities(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def perplexity(logits: Array, text: Array) -> float:
    following = text[len(text) // 2 + 1 :]
    return float(np.exp(-log_probabilities(logits)[np.arange(len(following)), following].mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--write", choices=("q4_0", "q8_0"), help="write the model first")
    parser.add_argument("--behind", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--text", type=int, default=512)
    given = parser.parse_args()
    if given.write:
        write(given.model, given.write, SIZES["135m"])
    room = max(given.behind) + PIECE
    text = np.random.default_rng(0).integers(0, 1000, max(room, given.text))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = {}
        for kind in given.types:
            bundle = Path(folder) / f"{kind}.tenon"
            compiled = tenon.compile(given.model, name="model", context=room, cache_type=kind, threads=given.threads)
            engines[kind] = stack.enter_context(tenon.open(compiled.save(bundle), threads=given.threads))
        for behind in given.behind:
            for engine in engines.values():
                filled(engine, text, behind)
            times: dict[str, list[float]] = {kind: [] for kind in engines}
            for _ in range(given.repeat):
                for kind, engine in engines.items():
                    times[kind].append(decode_time(engine, text, behind))
            cells = (f"{kind} {min(t):.2f} ({min(times[given.types[0]]) / min(t):.2f}x)" for kind, t in times.items())
            print(f"behind {behind}: ms a token: " + ", ".join(cells), flush=True)
        own, right = text[: given.text], None
        for kind, engine in engines.items():
            logits = logits_of(engine, own)
            right = logits if right is None else right
            error = np.sqrt(np.mean((logits - right) ** 2) / np.mean(right**2))
            p, q = log_probabilities(right), log_probabilities(logits)
            print(
                f"{kind}: {engine.manifest.memory.mutable:,} B, logits {error:.1e}, divergence "
                f"{(np.exp(p) * (p - q)).sum(-1).mean():.1e}, perplexity {perplexity(logits, own):.3f}"
            )


if __name__ == "__main__":
    main()
