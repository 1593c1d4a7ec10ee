"""Probabilities of tokens in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenon.runtime.generation.completion import TokenScore

BytesOf = Callable[[int], bytes]
"""Gives the bytes of a token in a text."""


def chat_logprobs(scores: Sequence[TokenScore], bytes_of: BytesOf) -> dict[str, Any]:
    """``logprobs`` of an answer of /v1/chat/completions."""

    def row(token: int, logprob: float) -> dict[str, Any]:
        data = bytes_of(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [{**row(s.token, s.logprob), "top_logprobs": [row(*each) for each in s.top]} for s in scores]
    return {"content": content, "refusal": None}


def text_logprobs(scores: Sequence[TokenScore], bytes_of: BytesOf, offset: int = 0) -> dict[str, Any]:
    """``logprobs`` of an answer of /v1/completions; ``offset`` is the number of characters in front of the first
    token."""
    tokens = [bytes_of(score.token).decode("utf-8", "replace") for score in scores]
    offsets = [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))]
    # of tokens with one text, the most probable one
    top = [{bytes_of(t).decode("utf-8", "replace"): value for t, value in reversed(score.top)} for score in scores]
    return {
        "tokens": tokens,
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": top,
        "text_offset": offsets,
    }
