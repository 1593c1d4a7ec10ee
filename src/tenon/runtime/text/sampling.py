"""Choice of the next token from logits.

Probabilities are integers: weights of 2^40 for the most probable token, computed with integers alone.  The same logits
and seed therefore give the same token on every machine, here and in C (``runtime/c/text``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.text.random_numbers import RandomNumbers

ONE = 40
"""log2 of the weight of the most probable token."""
_FRACTION = 24
"""Bits of the fraction of a logarithm."""
_TWO_TO = tuple(round(math.log(2) ** i / math.factorial(i) * 2**30) for i in range(10))
"""2^x = sum of these / 2^30 times x^i, for x from 0 to 1."""
_NEVER = 30.0
"""A logit that is smaller than the largest by this many temperatures has the weight 0."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    ``temperature`` 0 takes the most probable token; else logits are divided by it.  Then only the ``top_k`` most
    probable tokens stay (0: all), of these the fewest whose probabilities add up to ``top_p``, and of these the ones
    that are at least ``min_p`` times as probable as the first.  ``repetition_penalty`` divides the positive logits of
    the last ``penalty_window`` tokens and multiplies the negative ones; ``presence_penalty`` and ``frequency_penalty``
    are subtracted from the logits of these tokens, once, and for each time that they occur.  ``seed`` makes choices
    repeatable; None takes another one each time.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if not (isinstance(value, int | float) and least <= value <= most):
                raise InputError(f"{name}={value}: it lies from {least:g} to {most:g}")

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same with other values; those that are None stay.  Raises InputError for names that are no fields."""
        known = [field.name for field in fields(self)]
        if unknown := [name for name in values if name not in known]:
            raise InputError(f"no argument '{unknown[0]}': those of sampling are {', '.join(known)}")
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    @classmethod
    def of(cls, generation: Mapping[str, float]) -> Self:
        """The values that a model file recommends; greedy where it recommends none or says ``do_sample`` is 0."""
        if not generation.get("do_sample", "temperature" in generation):
            return cls()
        names = {field.name for field in fields(cls)}
        chosen = {name: value for name, value in generation.items() if name in names and name != "seed"}
        counts: dict[str, Any] = {name: int(chosen[name]) for name in ("top_k", "penalty_window") if name in chosen}
        return cls(**({"temperature": 1.0} | chosen | counts))


_RANGES = (
    ("temperature", 0, 100),
    ("top_k", 0, 2**31 - 1),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 0.01, 100),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("penalty_window", 0, 2**20),
)


class TokenSampler:
    """Chooses tokens one after another; it remembers what it chose for the penalties."""

    def __init__(self, sampling: Sampling, context: Sequence[int] = ()) -> None:
        self.sampling = sampling
        self._context = list(context)
        self._numbers = RandomNumbers(new_seed() if sampling.seed is None else sampling.seed)

    def choose(self, logits: Array, allowed: Array | None = None) -> int:
        """The next token from logits f32[vocabulary]; of ``allowed`` (bool[vocabulary]) tokens if there are such.

        Raises InputError if no token is allowed, or a logit is no number.
        """
        scores = np.array(logits, np.float32).reshape(-1)
        self._penalise(scores)
        if allowed is not None:
            scores[~allowed[: scores.size]] = -np.inf
        best = int(scores.argmax())
        if not scores[best] > -np.inf:
            raise InputError("no token can follow: its logits are not numbers, or the grammar allows none")
        token = best if self.sampling.temperature == 0 else self._drawn(scores)
        self._context.append(token)
        return token

    def _penalise(self, scores: Array) -> None:
        """Change the logits of recent tokens, in f32."""
        how = self.sampling
        penalties = (how.repetition_penalty, how.presence_penalty, how.frequency_penalty)
        if how.penalty_window == 0 or penalties == (1, 0, 0):
            return
        counts = Counter(self._context[-how.penalty_window :])
        tokens = np.array(sorted(token for token in counts if token < scores.size), np.int64)
        often = np.array([counts[int(token)] for token in tokens], np.float32)
        chosen, factor = scores[tokens], np.float32(how.repetition_penalty)
        chosen = np.where(chosen > 0, chosen / factor, chosen * factor)
        scores[tokens] = chosen - often * np.float32(how.frequency_penalty) - np.float32(how.presence_penalty)

    def _drawn(self, scores: Array) -> int:
        how = self.sampling
        near = np.flatnonzero(scores >= scores.max() - _NEVER * how.temperature)
        order = near[np.argsort(-scores[near], kind="stable")][: how.top_k or None]
        weights = powers(scores[order], how.temperature)
        if how.top_p < 1:
            sums = np.cumsum(weights)
            enough = int(how.top_p * float(sums[-1]))
            weights = weights[: 1 + int(np.searchsorted(sums, np.uint64(enough)))]
        if how.min_p > 0:
            weights = weights[weights >= np.uint64(int(how.min_p * float(1 << ONE)))]
        sums = np.cumsum(weights)
        drawn = self._numbers.below(int(sums[-1]))
        return int(order[np.searchsorted(sums, np.uint64(drawn), side="right")])


def powers(scores: Array, temperature: float) -> Array:
    """exp((x - largest) / temperature) for descending scores f32[n], as u64 with 2^40 for the largest."""
    factor = math.log2(math.e) / temperature
    logarithms = (scores.astype(np.float64) - float(scores[0])) * factor
    scaled = np.floor(np.maximum(logarithms, -64.0) * (1 << _FRACTION)).astype(np.int64)
    whole, rest = scaled >> _FRACTION, (scaled & ((1 << _FRACTION) - 1)).astype(np.uint64)
    total = np.full(rest.shape, _TWO_TO[-1], np.uint64)
    for coefficient in reversed(_TWO_TO[:-1]):
        total = ((total * rest) >> np.uint64(_FRACTION)) + np.uint64(coefficient)
    return np.asarray((total << np.uint64(ONE - 30)) >> np.minimum(-whole, 63).astype(np.uint64))


def logarithms(logits: Array) -> Array:
    """The natural logarithms f64[n] of the probabilities that logits f32[n] stand for."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def new_seed() -> int:
    """A seed that differs each time."""
    return int.from_bytes(np.random.default_rng().bytes(8), "little")
