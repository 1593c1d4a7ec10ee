"""The HTTP application: endpoints, limits, and the generator that they share."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError, TenonError
from tenon.runtime.generation.generator import Generation, Generator, Prompt
from tenon.tools.server.answers import END, FINISHES, ApiAnswer, event
from tenon.tools.server.api_errors import ApiError
from tenon.tools.server.requests import COMPLETION_TOKENS, ChatRequest, CompletionRequest, TextRequest, parsed
from tenon.tools.server.turns import Turns

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 4 << 20
"""Bytes of a request's body at most."""


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a server: waiting requests, tokens of an answer (None: as many as fit), bytes of a body."""

    queue: int = 16
    max_tokens: int | None = None
    body: int = MAX_BODY


def application(generator: Generator, name: str, limits: ServerLimits = ServerLimits()) -> Starlette:
    """The application that answers with one generator, whose model is called ``name``.

    Raises InputError if the package ``starlette`` is missing.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError:
        raise InputError("the server needs the package starlette: pip install starlette uvicorn") from None
    service = _Service(generator, name, limits)
    routes = [
        Route("/health", _answering(service.health)),
        Route("/v1/models", _answering(service.models)),
        Route("/v1/models/{name:path}", _answering(service.model)),
        Route("/v1/completions", _answering(service.completions), methods=["POST"]),
        Route("/v1/chat/completions", _answering(service.chat), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_place, Exception: _failed})


Endpoint = Callable[["Request"], Awaitable["Response"]]


def _answering(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose errors become error objects."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ApiError as error:
            return _refusal(error)
        except TenonError as error:
            return _refusal(ApiError.of(error))

    return answer


def _refusal(error: ApiError) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(error.content(), error.status)


async def _no_such_place(request: Request, error: Any) -> Response:
    """Unknown addresses and methods."""
    return _refusal(ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail.lower()}"))


async def _failed(request: Request, error: Exception) -> Response:
    return _refusal(ApiError(500, f"{type(error).__name__}: {error}"))


class _Service:
    """The endpoints."""

    def __init__(self, generator: Generator, name: str, limits: ServerLimits) -> None:
        self._generator, self._name, self._limits = generator, name, limits
        self._turns, self._created = Turns(limits.queue), int(time.time())

    async def health(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [self._about()]})

    async def model(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        self._check_name(request.path_params["name"])
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        about = {"id": self._name, "object": "model", "created": self._created, "owned_by": "tenon"}
        return {**about, "context_length": self._generator.context}

    def _check_name(self, name: str | None) -> None:
        if name is not None and name != self._name:
            message = f"model: there is no '{name}' here, only '{self._name}'"
            raise ApiError(404, message, "model", "model_not_found")

    async def completions(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await self._body(request))
        limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        before = asked.text() if asked.echo else ""
        return await self._respond(request, asked, asked.text(), limit, before)

    async def chat(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await self._body(request))
        messages = [message.plain() for message in asked.messages]
        return await self._respond(request, asked, messages, asked.limit())

    async def _body(self, request: Request) -> bytes:
        """The body.  Raises ApiError (413) for one that is too long, before all of it is read."""
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > self._limits.body:
                raise ApiError(413, f"the body has more than {self._limits.body} bytes")
        return bytes(content)

    async def _respond(
        self, request: Request, asked: TextRequest, prompt: Prompt, limit: int | None, before: str = ""
    ) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse, StreamingResponse

        self._check_name(asked.model)
        self._turns.check()
        most = [n for n in (limit, self._limits.max_tokens) if n is not None]
        how: dict[str, Any] = {
            "max_tokens": min(most, default=None),
            "stop": asked.stops(),
            "grammar": asked.schema_of_answer(),
        }
        generation = await run_in_threadpool(self._generator.stream, prompt, **how, **asked.sampling())
        answer = ApiAnswer(self._name, chat=isinstance(asked, ChatRequest))
        if asked.stream:
            with_usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = self._events(generation, answer, before, with_usage=with_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        async for _ in self._pieces(generation):
            if await request.is_disconnected():
                break
        return JSONResponse(answer.whole(generation.completion, before))

    async def _pieces(self, generation: Generation) -> AsyncIterator[str]:
        """The pieces of a text, generated in another thread when it is the request's turn."""
        from starlette.concurrency import run_in_threadpool

        async with self._turns.turn():
            while (piece := await run_in_threadpool(next, generation, None)) is not None:
                yield piece

    async def _events(
        self, generation: Generation, answer: ApiAnswer, before: str, *, with_usage: bool
    ) -> AsyncIterator[bytes]:
        """The pieces as server-sent events; an error is one, too, as the answer has begun already."""
        yield answer.event(before, first=True)
        try:
            async for piece in self._pieces(generation):
                yield answer.event(piece)
        except TenonError as error:
            yield event(ApiError.of(error).content())
            return
        yield answer.event("", FINISHES[generation.completion.finish])
        if with_usage:
            yield answer.usage_event(generation.completion)
        yield END
