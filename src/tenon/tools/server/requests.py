"""Requests of OpenAI's API: what of them is understood, and what is refused."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenon.tools.server.api_errors import ApiError

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
COMPLETION_TOKENS = 16
"""Tokens of an answer of /v1/completions where the request does not say, as in OpenAI's API."""


class StreamOptions(BaseModel):
    """The last event of a stream."""

    include_usage: bool = False


class JsonSchema(BaseModel):
    """A schema for the answer."""

    model_config = ConfigDict(populate_by_name=True)

    content: dict[str, Any] = Field(alias="schema", default_factory=dict)


class ResponseFormat(BaseModel):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None


class TextRequest(BaseModel):
    """The parameters that both endpoints have; others, which would change nothing here, are ignored."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=100)
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    logprobs: bool | int | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None

    def sampling(self) -> dict[str, Any]:
        """The arguments of ``Generator.generate`` that are about the choice of tokens."""
        return {name: getattr(self, name) for name in _SAMPLING}

    def stops(self) -> tuple[str, ...]:
        """The texts before which the answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON schema that the answer has to have; None for any text."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return form.json_schema.content if form.json_schema is not None else {"type": "object"}

    def check(self) -> None:
        """Raises ApiError for what cannot be done."""
        for name in ("n", "best_of"):
            if getattr(self, name) not in (None, 1):
                raise ApiError(400, f"{name}: one answer is given to a request: leave it out", name)
        if self.logprobs not in (None, False, 0):
            raise ApiError(400, "logprobs: probabilities are not given: leave it out", "logprobs")


class CompletionRequest(TextRequest):
    """A request for a text that goes on with another one."""

    prompt: str | list[str]
    echo: bool = False
    suffix: str | None = None

    def check(self) -> None:
        super().check()
        if self.suffix:
            raise ApiError(400, "suffix: texts are not filled in between others: leave it out", "suffix")
        if isinstance(self.prompt, list) and len(self.prompt) != 1:
            raise ApiError(400, "prompt: one text is continued by a request: send one for each", "prompt")

    def text(self) -> str:
        """The text to go on with."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class ContentPart(BaseModel):
    """A part of a message."""

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    def plain(self) -> dict[str, str]:
        """The message with its content as one text.  Raises ApiError for images and sounds."""
        if isinstance(self.content, list):
            if other := next((part.type for part in self.content if part.type != "text"), None):
                raise ApiError(400, f"messages: content of the type '{other}' is not understood, only text", "messages")
            return {"role": self.role, "content": "".join(part.text for part in self.content)}
        return {"role": self.role, "content": self.content or ""}


class ChatRequest(TextRequest):
    """A request for the next message of a conversation."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0)
    tools: list[Any] | None = None
    tool_choice: Any = None

    def check(self) -> None:
        super().check()
        if self.tools and self.tool_choice != "none":
            raise ApiError(400, "tools: no tools are called: leave them out", "tools")

    def limit(self) -> int | None:
        """The most tokens of the answer; None for no limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def parsed(kind: type[Any], body: bytes) -> Any:
    """A request of a kind.  Raises ApiError for a body that is no such request."""
    try:
        content = json.loads(body)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ApiError(400, "the body is no JSON object")
    try:
        request = kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ApiError(400, f"{where}: {first['msg']}", str(first["loc"][0])) from None
    request.check()
    return request
