"""Answers of OpenAI's API, whole and as events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tenon.runtime.generation.completion import Completion

FINISHES = {"stop": "stop", "length": "length", "context": "length"}
"""Why texts end, in the words of the API."""


@dataclass(frozen=True)
class ApiAnswer:
    """The answer of one endpoint to one request."""

    model: str
    chat: bool
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[dict[str, Any]], completions: Sequence[Completion], n: int) -> dict[str, Any]:
        """The body of the answer, of ``choices``, ``n`` for each prompt."""
        return {**self._head(chunk=False), "choices": list(choices), "usage": usage(completions, n)}

    def choice(self, index: int, completion: Completion, logprobs: Any, before: str = "") -> dict[str, Any]:
        """A choice of the answer; ``before`` is a text in front of it."""
        text, finish = before + completion.text, FINISHES[completion.finish]
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def event(
        self, piece: str, finish: str | None = None, *, index: int = 0, first: bool = False, logprobs: Any = None
    ) -> bytes:
        """A piece of a choice as an event; ``finish`` is the reason of the last one."""
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        delta |= {"content": piece} if piece or first else {}
        content: dict[str, Any] = {"delta": delta} if self.chat else {"text": piece}
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head(chunk=True), "choices": [choice]})

    def usage_event(self, completions: Sequence[Completion], n: int) -> bytes:
        """The event with the number of tokens, of ``n`` answers to each prompt."""
        return event({**self._head(chunk=True), "choices": [], "usage": usage(completions, n)})

    def _head(self, *, chunk: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if chunk else "chat.completion"
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.model}


def usage(completions: Sequence[Completion], n: int) -> dict[str, Any]:
    """The numbers of tokens of a request and its answers; a prompt counts once for its ``n`` answers, which stand one
    after another."""
    prompt = sum(completion.prompt_tokens for completion in completions[::n])
    count = sum(len(completion.tokens) for completion in completions)
    details = {"cached_tokens": sum(completion.reused_tokens for completion in completions[::n])}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "total_tokens": prompt + count,
        "prompt_tokens_details": details,
    }


def event(content: Any) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


END = b"data: [DONE]\n\n"
"""The last event of a stream."""
