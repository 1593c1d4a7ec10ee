"""Whisper's tokens of times: which may follow, and the segments of a text that they bound.

Source: A. Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022), section 4.5, and the rules
of the program that the authors published with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.dtype import Array

STEP = 0.02
"""Seconds from one token of a time to the next."""

_LATEST = 50
"""Steps after which a text begins at the latest."""


@dataclass(frozen=True)
class TimestampRules:
    """``first`` is the token of the time 0, behind which those of later times and nothing else follow; ``end`` the
    token that ends a text, behind all tokens of words."""

    first: int
    end: int

    def apply(self, logits: Array, made: Sequence[int]) -> None:
        """Set the logits of tokens that cannot follow ``made`` to -inf, in place.

        A text begins with a time and ends with one; times come in pairs, of an end and the next beginning, and never
        decrease.  A time follows where all times together are likelier than the likeliest word.
        """
        first = self.first
        if not made:
            logits[:first] = -np.inf
            logits[first + _LATEST + 1 :] = -np.inf
        elif made[-1] >= first:
            if len(made) < 2 or made[-2] >= first:
                logits[first:] = -np.inf
            else:
                logits[: self.end] = -np.inf
        times = [token for token in made if token >= first]
        if times:
            ended = made[-1] >= first and not (len(made) < 2 or made[-2] >= first)
            logits[first : times[-1] + (0 if ended else 1)] = -np.inf
        highest = float(logits[first:].max(initial=-np.inf))
        if np.isfinite(highest):
            together = highest + float(np.log(np.exp(logits[first:] - highest).sum()))
            if together > float(logits[:first].max()):
                logits[:first] = -np.inf

    def segments(self, tokens: Sequence[int], seconds: float) -> list[tuple[float, float, list[int]]]:
        """Beginning and end in seconds, and the tokens of words, of each segment; a text without its last time ends
        after ``seconds``."""
        segments, begin, words = list[tuple[float, float, list[int]]](), 0.0, list[int]()
        for token in tokens:
            if token < self.first:
                words.append(token)
                continue
            time = min((token - self.first) * STEP, seconds)
            if words:
                segments.append((begin, max(time, begin), words))
                words = []
            begin = time
        return segments + ([(begin, max(seconds, begin), words)] if words else [])
