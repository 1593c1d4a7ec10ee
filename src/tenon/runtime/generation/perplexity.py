"""How well language models predict a text, and how far one of them is from another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tenon.errors import InputError, guarded
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine
from tenon.runtime.generation.decoder import Decoder
from tenon.runtime.generation.generator import opened
from tenon.runtime.text.sampling import logarithms
from tenon.runtime.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from tenon.pipeline import Model
    from tenon.runtime.bundle import Bundle

WINDOW = 512
"""Tokens that are predicted from one another, where nothing else is said."""


@dataclass(frozen=True)
class Perplexity:
    """The prediction of ``tokens`` tokens of a text.

    ``perplexity`` is the exponential of their mean negative log-likelihood, ``error`` its standard error.  Beside a
    reference, ``reference`` is that model's perplexity, ``divergence`` the mean Kullback-Leibler divergence in nats of
    the model's probabilities from the reference's, and ``agreement`` the share of tokens at which both find the same
    token most probable.
    """

    tokens: int
    perplexity: float
    error: float
    reference: float | None = None
    divergence: float | None = None
    agreement: float | None = None


@guarded
def perplexity(
    model: Model | Bundle | Engine,
    text: str,
    *,
    reference: Model | Bundle | Engine | None = None,
    tokens: int | None = None,
    window: int = WINDOW,
    threads: int = 1,
    step: Callable[[int], None] = lambda done: None,
) -> Perplexity:
    """Let a language model predict a text, token by token.

    The text is cut into pieces of ``window`` tokens (or the room of the caches, if that is less).  Each piece begins
    with the model's token for beginnings, where texts begin with it; without one, the first token of a piece is given
    and not predicted.  ``tokens`` limits how many are predicted.  ``reference`` is a model with the same tokens, such
    as the one whose weights were not rounded.  ``step`` is told how many tokens are done.  Raises InputError for what
    is no language model, for a text without tokens to predict, and for a reference with another vocabulary.
    """
    engines = [opened(each, threads, {}) for each in (model, reference) if each is not None]
    try:
        return _measured(engines, text, tokens, window, step)
    finally:
        for engine, given in zip(engines, (model, reference), strict=False):
            if engine is not given:
                engine.close()


def _measured(
    engines: Sequence[Engine], text: str, limit: int | None, window: int, step: Callable[[int], None]
) -> Perplexity:
    decoders = [_decoder(engine) for engine in engines]
    if len({decoder.vocabulary for decoder in decoders}) > 1:
        raise InputError(f"'{engines[1].name}' has other tokens than '{engines[0].name}': give a model with the same")
    about = engines[0].text
    assert about is not None  # as ``_decoder`` checked
    begin = [about.bos] if about.add_bos and about.bos is not None else []
    numbers = TextTokenizer.of(about).encode(text, special=False)
    size = min(window, *(decoder.room for decoder in decoders))
    if size < 2:
        raise InputError(f"window={size}: a token is predicted from another one, so there must be two at least")
    losses, divergences, alike = [list[float]() for _ in decoders], list[float](), 0
    for token, logits in _predictions(decoders, _pieces(numbers, begin, size), limit):
        for own, each in zip(losses, logits, strict=True):
            own.append(-float(each[token]))
        if len(logits) > 1:
            divergences.append(float((np.exp(logits[1]) * (logits[1] - logits[0])).sum()))
            alike += int(logits[0].argmax() == logits[1].argmax())
        step(len(losses[0]))
    count = len(losses[0])
    if not count:
        raise InputError("the text has no token that could be predicted: give a longer one")
    value = math.exp(np.mean(losses[0]))
    error = value * float(np.std(losses[0])) / math.sqrt(count)
    if len(decoders) == 1:
        return Perplexity(count, value, error)
    return Perplexity(count, value, error, math.exp(np.mean(losses[1])), float(np.mean(divergences)), alike / count)


def _decoder(engine: Engine) -> Decoder:
    if engine.text is None or engine.text.kind != "decoder":
        raise InputError(f"'{engine.name}' is no language model that predicts tokens")
    return Decoder(engine, engine.text)


def _pieces(numbers: Sequence[int], begin: Sequence[int], size: int) -> Iterator[list[int]]:
    """The tokens in pieces of ``size``, those of ``begin`` in front of each."""
    own = size - len(begin)
    for start in range(0, len(numbers), own):
        yield [*begin, *numbers[start : start + own]]


def _predictions(
    decoders: Sequence[Decoder], pieces: Iterator[list[int]], limit: int | None
) -> Iterator[tuple[int, list[Array]]]:
    """Every token that is predicted, and the logarithms of all tokens' probabilities by each model, f64."""
    count = 0
    for piece in pieces:
        for decoder in decoders:
            decoder.reset()
        for before, token in pairwise(piece):
            if limit is not None and count >= limit:
                return
            yield token, [logarithms(decoder.run([before])) for decoder in decoders]
            count += 1
