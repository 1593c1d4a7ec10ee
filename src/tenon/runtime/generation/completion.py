"""The result of a generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Finish = Literal["stop", "length", "context"]
"""Why a text ended: by itself or a stop string, by ``max_tokens``, or because the caches are full."""


@dataclass(frozen=True)
class TokenScore:
    """The natural logarithm of a token's probability, by the network's logits before penalties and temperature, and
    those of the most probable tokens in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Completion:
    """A generated text.

    ``tokens`` are those of the text, without the one that ended it.  ``prompt_tokens`` are all of the prompt, of which
    ``reused_tokens`` were in the caches already.  Times are in seconds: of the prompt, and of all tokens behind it.
    ``scores`` are those of the tokens, if they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    prompt_tokens: int
    reused_tokens: int
    prompt_seconds: float
    seconds: float
    scores: tuple[TokenScore, ...] = ()

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt per second, without those that were in the caches."""
        return (self.prompt_tokens - self.reused_tokens) / max(self.prompt_seconds, 1e-9)

    @property
    def rate(self) -> float:
        """Generated tokens per second."""
        return len(self.tokens) / max(self.seconds, 1e-9)
