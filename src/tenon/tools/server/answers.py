"""Answers of OpenAI's API, whole and as events."""

from __future__ import annotations

import json
import time
import uuid
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

    def whole(self, completion: Completion, before: str = "") -> dict[str, Any]:
        """The body of the answer; ``before`` is a text in front of it."""
        text, finish = before + completion.text, FINISHES[completion.finish]
        content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return {**self._head(chunk=False), "choices": [choice], "usage": usage(completion)}

    def event(self, piece: str, finish: str | None = None, *, first: bool = False) -> bytes:
        """A piece of the answer as an event; ``finish`` is the reason of the last one."""
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        delta |= {"content": piece} if piece or first else {}
        content: dict[str, Any] = {"delta": delta} if self.chat else {"text": piece}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return event({**self._head(chunk=True), "choices": [choice]})

    def usage_event(self, completion: Completion) -> bytes:
        """The event with the number of tokens."""
        return event({**self._head(chunk=True), "choices": [], "usage": usage(completion)})

    def _head(self, *, chunk: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if chunk else "chat.completion"
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.model}


def usage(completion: Completion) -> dict[str, Any]:
    """The numbers of tokens of a request and its answer."""
    prompt, count = completion.prompt_tokens, len(completion.tokens)
    details = {"cached_tokens": completion.reused_tokens}
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
