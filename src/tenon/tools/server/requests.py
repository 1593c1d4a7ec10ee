"""Requests of OpenAI's API: what of them is understood, and what is refused."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenon.tools.server.api_errors import ApiError

_ROLES = ("system", "developer", "user", "assistant")

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
MOST_ANSWERS = 128
"""Answers to a request at most, as in OpenAI's API."""
MOST_TEXTS = 2048
"""Texts of a request for embeddings at most, as there."""
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
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    best_of: int | None = None
    logit_bias: dict[str, float] | None = None
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

    @property
    def top(self) -> int | None:
        """How many of the most probable tokens are listed beside each one; None: no probabilities are given."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises ApiError for what cannot be done."""
        form = self.response_format
        if form is not None and form.type == "json_schema" and form.json_schema is None:
            raise ApiError(400, "response_format.json_schema: the schema is missing", "response_format")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options: it needs stream", "stream_options")
        if self.best_of not in (None, self.n or 1):
            raise ApiError(400, "best_of: all answers are given (n): leave it out", "best_of")
        if self.logit_bias:
            raise ApiError(400, "logit_bias: logits are not changed: leave it out", "logit_bias")


class CompletionRequest(TextRequest):
    """A request for a text that goes on with another one."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool = False
    suffix: str | None = None
    logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def top(self) -> int | None:
        return self.logprobs

    def check(self) -> None:
        super().check()
        if self.suffix:
            raise ApiError(400, "suffix: texts are not filled in between others: leave it out", "suffix")
        if not isinstance(self.prompt, str) and not all(isinstance(text, str) for text in self.prompt):
            raise ApiError(400, "prompt: texts are taken, and no tokens", "prompt")
        if not self.texts() or len(self.texts()) * (self.n or 1) > MOST_ANSWERS:
            raise ApiError(400, f"prompt: a request has 1 to {MOST_ANSWERS} answers", "prompt")
        if self.echo and self.logprobs is not None:
            raise ApiError(400, "logprobs: those of a prompt are not given: leave out echo", "logprobs")

    def texts(self) -> list[str]:
        """The texts to go on with."""
        return (
            [self.prompt] if isinstance(self.prompt, str) else [text for text in self.prompt if isinstance(text, str)]
        )


class ImageUrl(BaseModel):
    """Where an image is."""

    url: str


class ContentPart(BaseModel):
    """A part of a message."""

    type: str
    text: str = ""
    image_url: ImageUrl | None = None


class ChatMessage(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None

    def check(self) -> None:
        """Raises ApiError for a role that there is not, and for what tools were called with or gave."""
        if self.role in ("tool", "function") or self.tool_calls or self.function_call:
            raise ApiError(400, "messages: no tools are called: leave out calls and what they gave", "messages")
        if self.role not in _ROLES:
            raise ApiError(400, f"messages: '{self.role}' is no role: give {', '.join(_ROLES)}", "messages")

    def plain(self, *, images: bool = False) -> dict[str, Any]:
        """The message with its content as one text; if it has ``images``, which are then allowed, as parts.  Raises
        ApiError for parts of other types, and where only an answer may have no content."""
        if self.content is None and self.role != "assistant":
            raise ApiError(400, f"messages: a message of the role '{self.role}' has no content", "messages")
        role = "system" if self.role == "developer" else self.role  # its newer name, which templates do not know
        if isinstance(self.content, list):
            known = {"text", "image_url"} if images else {"text"}
            if other := next((part.type for part in self.content if part.type not in known), None):
                what = "only text and images" if images else "only text"
                raise ApiError(400, f"messages: content of the type '{other}' is not understood, {what}", "messages")
            if any(part.type == "image_url" for part in self.content):
                return {"role": role, "content": [part.model_dump() for part in self.content]}
            return {"role": role, "content": "".join(part.text for part in self.content)}
        return {"role": role, "content": self.content or ""}


class ChatRequest(TextRequest):
    """A request for the next message of a conversation."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    tool_choice: Any = None

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        for message in self.messages:
            message.check()
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs: it needs logprobs", "top_logprobs")
        if self.tools and self.tool_choice != "none":
            raise ApiError(400, "tools: no tools are called: leave them out", "tools")
        if self.functions:
            raise ApiError(400, "functions: no functions are called: leave them out", "functions")
        if set(self.modalities or ()) - {"text"}:
            raise ApiError(400, "modalities: answers are texts: leave them out", "modalities")

    def limit(self) -> int | None:
        """The most tokens of the answer; None for no limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class EmbeddingRequest(BaseModel):
    """A request for embeddings: of a text or its tokens, or of several."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)

    def check(self) -> None:
        """Raises ApiError for what cannot be done."""
        if not 1 <= len(self.texts()) <= MOST_TEXTS:
            raise ApiError(400, f"input: a request has 1 to {MOST_TEXTS} texts", "input")

    def texts(self) -> list[str | list[int]]:
        """The texts, or their tokens."""
        if isinstance(self.input, str):
            return [self.input]
        whole = [number for number in self.input if isinstance(number, int)]
        return [whole] if whole else [text for text in self.input if not isinstance(text, int)]


def parsed(kind: type[Any], body: bytes) -> Any:
    """A request of a kind.  Raises ApiError for a body that is no such request."""
    try:
        content = json.loads(body)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ApiError(400, "the body is no JSON object")
    try:
        request = kind.model_validate(content)
    except ValidationError as error:
        raise _refusal(error) from None
    request.check()
    return request


_TYPES = {
    "str": "a string",
    "list[str]": "an array of strings",
    "list[int]": "an array of tokens",
    "list[list[int]]": "an array of arrays of tokens",
    "list[ContentPart]": "an array of parts",
}
"""The types of which a parameter may have one, in words."""


def _refusal(error: ValidationError) -> ApiError:
    """The error of the first parameter that is wrong: where it may have several types, those, or what is wrong with a
    part of a message."""
    first, *others = error.errors()
    depth = next((i for i, part in enumerate(first["loc"]) if part in _TYPES), None)
    if depth is not None:
        own = [first, *(e for e in others if e["loc"][:depth] == first["loc"][:depth])]
        part = next((e for e in own if e["loc"][depth] == "list[ContentPart]" and len(e["loc"]) > depth + 1), None)
        if part is None:
            kinds = dict.fromkeys(_TYPES[str(e["loc"][depth])] for e in own)
            where = ".".join(map(str, first["loc"][:depth]))
            return ApiError(400, f"{where}: it is not {' or '.join(kinds)}", str(first["loc"][0]))
        first = part
    where = ".".join(str(part) for part in first["loc"] if part not in _TYPES)
    message = "it is not an object" if first["type"] == "model_type" else first["msg"]
    return ApiError(400, f"{where}: {message}", str(first["loc"][0]))
