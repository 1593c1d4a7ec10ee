"""Tokens per second of a language model: of a prompt, and of those that it generates behind it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tenon.network.graph.text_model import TextModel
from tenon.runtime.engine.engine import Engine
from tenon.runtime.engine.timing import measure
from tenon.runtime.generation.decoder import Decoder

PROMPT, GENERATED = 128, 16
"""Tokens of a prompt, and tokens behind it, where the caches have room for so many."""


@dataclass(frozen=True)
class TextSpeed:
    """Numbers of tokens, and the median rates at which they were read and generated, in tokens per second."""

    prompt_tokens: int
    prompt_per_second: float
    generated_tokens: int
    generated_per_second: float

    def json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def text_speed(engine: Engine, text: TextModel, rounds: int, warmup: int) -> TextSpeed:
    """Time ``rounds`` prompts of random tokens in empty caches after ``warmup`` others, and tokens one by one behind
    each.

    Raises InputError for a network that a text cannot be given to, and for fewer than one round.
    """
    decoder = Decoder(engine, text)
    rng = np.random.default_rng(0)
    generated = max(min(GENERATED, decoder.room // 2), 1)
    prompt = max(min(PROMPT, decoder.room - generated), 1)
    tokens = [int(token) for token in rng.integers(0, decoder.vocabulary, prompt + generated)]

    def generate() -> None:
        for token in tokens[prompt:]:
            decoder.run([token])

    reads, writes = [], []
    for number in range(warmup + rounds):
        decoder.reset()
        read, written = measure(lambda: decoder.run(tokens[:prompt]), 1).first, measure(generate, 1).first
        if number >= warmup:
            reads.append(read)
            writes.append(written)
    decoder.reset()
    return TextSpeed(
        prompt, 1e3 * prompt / float(np.median(reads)), generated, 1e3 * generated / float(np.median(writes))
    )
