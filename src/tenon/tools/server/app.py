"""The HTTP application: endpoints, limits, and the generator that they share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError, LengthError, TenonError
from tenon.network.graph.dtype import Array
from tenon.runtime.generation.completion import Completion
from tenon.runtime.generation.embedder import Embedder
from tenon.runtime.generation.generator import Generation, Generator, Prompt
from tenon.runtime.generation.image_generator import ImageGenerator
from tenon.tools.server.answers import END, FINISHES, ApiAnswer, event
from tenon.tools.server.api_errors import ApiError
from tenon.tools.server.embeddings import embedded, embedding_answer
from tenon.tools.server.logprobs import chat_logprobs, text_logprobs
from tenon.tools.server.requests import (
    COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    TextRequest,
    parsed,
)
from tenon.tools.server.turns import Turns

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY, IMAGE_BODY = 4 << 20, 32 << 20
"""Bytes of a request's body at most; of a model that reads images."""


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a server: waiting requests, tokens of an answer (None: as many as fit), bytes of a body."""

    queue: int = 16
    max_tokens: int | None = None
    body: int = MAX_BODY


def application(model: Generator | Embedder, name: str, limits: ServerLimits = ServerLimits()) -> Starlette:
    """The application that answers with one generator or embedder, whose model is called ``name``.

    Raises InputError if the package ``starlette`` is missing.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError:
        raise InputError("the server needs the package starlette: pip install starlette uvicorn") from None
    service = _Service(model, name, limits)
    routes = [
        Route("/health", _answering(service.health)),
        Route("/v1/models", _answering(service.models)),
        Route("/v1/models/{name:path}", _answering(service.model)),
        Route("/v1/completions", _answering(service.completions), methods=["POST"]),
        Route("/v1/chat/completions", _answering(service.chat), methods=["POST"]),
        Route("/v1/embeddings", _answering(service.embeddings), methods=["POST"]),
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
    refusal = _refusal(ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail.lower()}"))
    refusal.headers.update(error.headers or {})  # the methods that are allowed
    return refusal


async def _failed(request: Request, error: Exception) -> Response:
    return _refusal(ApiError(500, f"{type(error).__name__}: {error}"))


class _Service:
    """The endpoints."""

    def __init__(self, model: Generator | Embedder, name: str, limits: ServerLimits) -> None:
        self._model, self._name, self._limits = model, name, limits
        count = model.sequences if isinstance(model, Generator) else 1
        self._sees = isinstance(model, ImageGenerator)
        self._most = max(limits.body, IMAGE_BODY) if self._sees and limits.body == MAX_BODY else limits.body
        self._turns, self._created = Turns(limits.queue, count), int(time.time())

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
        return {**about, "context_length": self._model.context} if isinstance(self._model, Generator) else about

    @property
    def _generator(self) -> Generator:
        """The model, which generates texts.  Raises ApiError for one that embeds them."""
        if isinstance(self._model, Generator):
            return self._model
        raise ApiError(400, f"'{self._name}' generates no texts: it answers /v1/embeddings", "model")

    def _check_name(self, name: str | None) -> None:
        if name is not None and name != self._name:
            message = f"model: there is no '{name}' here, only '{self._name}'"
            raise ApiError(404, message, "model", "model_not_found")

    async def completions(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await self._body(request))
        limit = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        return await self._respond(request, asked, asked.texts(), limit)

    async def chat(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await self._body(request))
        messages = [message.plain(images=self._sees) for message in asked.messages]
        return await self._respond(request, asked, [messages], asked.limit())

    async def embeddings(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        asked: EmbeddingRequest = parsed(EmbeddingRequest, await self._body(request))
        self._check_name(asked.model)
        if not isinstance(self._model, Embedder):
            raise ApiError(400, f"'{self._name}' embeds no texts: it answers /v1/completions", "model")
        self._turns.check()
        vectors, count = list[Array](), 0
        async with self._turns.turn():
            for text in asked.texts():
                vector, tokens = await run_in_threadpool(embedded, self._model, text)
                vectors.append(vector)
                count += tokens
        return JSONResponse(embedding_answer(self._name, vectors, count, asked.encoding_format, asked.dimensions))

    async def _body(self, request: Request) -> bytes:
        """The body.  Raises ApiError (413) for one that is too long, before all of it is read."""
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > self._most:
                raise ApiError(413, f"the body has more than {self._most} bytes")
        return bytes(content)

    async def _respond(
        self, request: Request, asked: TextRequest, prompts: Sequence[Prompt], limit: int | None
    ) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse, StreamingResponse

        self._check_name(asked.model)
        generator = self._generator
        self._turns.check()
        most = [n for n in (limit, self._limits.max_tokens) if n is not None]
        how: dict[str, Any] = {
            "max_tokens": min(most, default=None),
            "stop": asked.stops(),
            "grammar": asked.schema_of_answer(),
            "logprobs": asked.top,
            **asked.sampling(),
        }
        generations = list[_Choice]()
        for prompt in prompts:
            before = prompt if isinstance(asked, CompletionRequest) and asked.echo and isinstance(prompt, str) else ""
            for number in range(asked.n or 1):
                seed = None if asked.seed is None else asked.seed + number
                try:
                    generation = await run_in_threadpool(generator.stream, prompt, **{**how, "seed": seed})
                except LengthError as error:
                    raise ApiError.of(error, "messages" if isinstance(asked, ChatRequest) else "prompt") from None
                generations.append(_Choice(len(generations), generation, before))
        answer = ApiAnswer(self._name, chat=isinstance(asked, ChatRequest))
        if asked.stream:
            with_usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = self._events(generations, answer, (asked.n or 1) if with_usage else 0)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        async with aclosing(self._pieces(generations)) as pieces:
            async for _ in pieces:
                if await request.is_disconnected():
                    break
        choices = [
            answer.choice(each.index, each.completion, self._logprobs(answer, each), each.before)
            for each in generations
        ]
        return JSONResponse(answer.whole(choices, [each.completion for each in generations], asked.n or 1))

    def _logprobs(self, answer: ApiAnswer, choice: _Choice, first: int = 0) -> dict[str, Any] | None:
        """The probabilities of the tokens from the number ``first`` on; None if there are none."""
        scores, tokenizer = choice.completion.scores, self._generator.tokenizer
        if not scores[first:]:
            return None

        def bytes_of(token: int) -> bytes:
            return tokenizer.bytes_of([token])

        if answer.chat:
            return chat_logprobs(scores[first:], bytes_of)
        offset = sum(len(bytes_of(score.token).decode("utf-8", "replace")) for score in scores[:first])
        return text_logprobs(scores[first:], bytes_of, offset)

    async def _pieces(self, choices: Sequence[_Choice]) -> AsyncGenerator[tuple[_Choice, str]]:
        """The pieces of texts, generated in other threads when it is the request's turn: at the same time if the model
        has several sequences, else one after another."""
        from starlette.concurrency import run_in_threadpool

        async with self._turns.turn():
            left = list(choices)
            try:
                while left:
                    for choice in left[: self._generator.sequences]:
                        piece = await run_in_threadpool(next, choice.generation, None)
                        if piece is None:
                            left.remove(choice)
                        else:
                            yield choice, piece
            finally:  # who has closed the connection gives the places of the texts back
                for choice in left:
                    choice.generation.close()

    async def _events(self, choices: Sequence[_Choice], answer: ApiAnswer, counted: int) -> AsyncIterator[bytes]:
        """The pieces as server-sent events; an error is one, too, as the answer has begun already.  The last one has
        the numbers of tokens, with ``counted`` answers to each prompt; 0: there is none."""
        given = [0] * len(choices)
        for choice in choices:
            yield answer.event(choice.before, index=choice.index, first=True)
        try:
            async with aclosing(self._pieces(choices)) as pieces:
                async for choice, piece in pieces:
                    logprobs = self._logprobs(answer, choice, given[choice.index])
                    given[choice.index] = len(choice.completion.scores)
                    yield answer.event(piece, index=choice.index, logprobs=logprobs)
        except TenonError as error:
            yield event(ApiError.of(error).content())
            return
        for choice in choices:
            logprobs = self._logprobs(answer, choice, given[choice.index])
            yield answer.event("", FINISHES[choice.completion.finish], index=choice.index, logprobs=logprobs)
        if counted:
            yield answer.usage_event([choice.completion for choice in choices], counted)
        yield END


@dataclass(frozen=True)
class _Choice:
    """One of the answers to a request; ``before`` is a text in front of it."""

    index: int
    generation: Generation
    before: str

    @property
    def completion(self) -> Completion:
        return self.generation.completion
