"""The HTTP server for language models, as a client of OpenAI's API sees it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

import tenon
from tenon.runtime.generation.generator import Generation, Generator
from text_models import written_model

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")

PROMPT = "the cat sat on the"
MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    path = written_model(tmp_path_factory.mktemp("words"))
    with tenon.Generator(path, context=60, no_tuning=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def port(generator: Generator) -> Iterator[int]:
    from tenon.tools.server.app import ServerLimits, application

    served = application(generator, "words", ServerLimits(queue=1, max_tokens=40, body=4000))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(served, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def asked(port: int, path: str, body: Any = None, method: str = "") -> tuple[int, bytes]:
    """The status and content that a request gets."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, data)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def answer(port: int, path: str, **request: Any) -> Any:
    status, content = asked(port, path, request)
    assert status == 200, content
    return json.loads(content)


def events(port: int, path: str, **request: Any) -> list[Any]:
    """The events of a stream, without the last one, which says that it is complete."""
    status, content = asked(port, path, {**request, "stream": True})
    assert status == 200
    lines = content.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_completions(port: int, generator: Generator) -> None:
    got = answer(port, "/v1/completions", model="words", prompt=PROMPT, max_tokens=6)
    wanted = generator.generate(PROMPT, max_tokens=6)
    assert (got["object"], got["model"], got["id"][:5]) == ("text_completion", "words", "cmpl-")
    assert got["choices"] == [{"index": 0, "text": wanted.text, "logprobs": None, "finish_reason": "length"}]
    usage = got["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (wanted.prompt_tokens, 6)
    assert usage["total_tokens"] == wanted.prompt_tokens + 6
    echoed = answer(port, "/v1/completions", prompt=[PROMPT], max_tokens=6, echo=True)
    assert echoed["choices"][0]["text"] == PROMPT + wanted.text
    assert answer(port, "/v1/completions", prompt=PROMPT)["usage"]["completion_tokens"] == 16
    drawn = [
        answer(port, "/v1/completions", prompt=PROMPT, temperature=1.5, seed=seed)["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_conversations(port: int, generator: Generator) -> None:
    wanted = generator.generate(MESSAGES, max_tokens=5)
    got = answer(port, "/v1/chat/completions", messages=MESSAGES, max_completion_tokens=5)
    assert (got["object"], got["id"][:9]) == ("chat.completion", "chatcmpl-")
    assert got["choices"][0]["message"] == {"role": "assistant", "content": wanted.text}
    parts = [{"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": " cat"}]}]
    assert answer(port, "/v1/chat/completions", messages=parts, max_tokens=5)["choices"] == got["choices"]
    assert answer(port, "/v1/chat/completions", messages=MESSAGES)["usage"]["completion_tokens"] <= 40


def test_streams(port: int, generator: Generator) -> None:
    wanted = generator.generate(MESSAGES, max_tokens=5)
    options = {"include_usage": True}
    got = events(port, "/v1/chat/completions", messages=MESSAGES, max_tokens=5, stream_options=options)
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in got[:-1]) == wanted.text
    assert (got[-2]["choices"][0]["finish_reason"], got[-2]["object"]) == ("length", "chat.completion.chunk")
    assert (got[-1]["choices"], got[-1]["usage"]["completion_tokens"]) == ([], 5)
    assert len({e["id"] for e in got}) == 1
    plain = events(port, "/v1/completions", prompt=PROMPT, max_tokens=5)
    assert "".join(e["choices"][0]["text"] for e in plain) == generator.generate(PROMPT, max_tokens=5).text
    stop = wanted.text[-2:]
    stopped = events(port, "/v1/chat/completions", messages=MESSAGES, max_tokens=5, stop=stop)
    assert stopped[-1]["choices"][0]["finish_reason"] == "stop"


def test_answers_with_a_schema(port: int) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    got = answer(port, "/v1/chat/completions", messages=MESSAGES, response_format=form)
    assert json.loads(got["choices"][0]["message"]["content"])["n"] in (1, 2)
    assert got["choices"][0]["finish_reason"] == "stop"


def test_models(port: int) -> None:
    listed = json.loads(asked(port, "/v1/models")[1])
    assert [(m["id"], m["object"], m["context_length"]) for m in listed["data"]] == [("words", "model", 60)]
    assert json.loads(asked(port, "/v1/models/words")[1]) == listed["data"][0]
    assert asked(port, "/health")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message", "parameter"),
    [
        ("/v1/completions", b"{", 400, "the body is no JSON", None),
        ("/v1/completions", [], 400, "the body is no JSON object", None),
        ("/v1/completions", {}, 400, "prompt: Field required", "prompt"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature: ", "temperature"),
        ("/v1/completions", {"prompt": "a", "max_tokens": -1}, 400, "max_tokens: ", "max_tokens"),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n: one answer", "n"),
        ("/v1/completions", {"prompt": "a", "logprobs": 3}, 400, "logprobs: ", "logprobs"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt: one text", "prompt"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix: ", "suffix"),
        ("/v1/completions", {"prompt": ""}, 400, "the prompt is empty", None),
        ("/v1/completions", {"prompt": "x" * 70}, 400, "the prompt has 70 tokens", None),
        ("/v1/completions", {"prompt": "x" * 5000}, 413, "more than 4000 bytes", None),
        ("/v1/completions", {"prompt": "a", "model": "gpt"}, 404, "there is no 'gpt' here, only 'words'", "model"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages: ", "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "messages.0.role: ", "messages"),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{}]}, 400, "tools: ", "tools"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "content of the type 'image_url'",
            "messages",
        ),
        ("/v1/embeddings", {"input": "a"}, 404, "POST /v1/embeddings: not found", None),
    ],
)
def test_errors_are_error_objects(
    port: int, path: str, body: Any, status: int, message: str, parameter: str | None
) -> None:
    got, content = asked(port, path, body)
    error = json.loads(content)["error"]
    assert (got, error["param"]) == (status, parameter)
    assert message in error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_methods(port: int) -> None:
    status, content = asked(port, "/v1/completions", method="GET")
    assert (status, json.loads(content)["error"]["message"]) == (405, "GET /v1/completions: method not allowed")


def test_one_request_at_a_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is answered and one waits, a third is refused; both that came first get their answers."""
    gate, step = threading.Event(), Generation.__next__

    def held(generation: Generation) -> str:
        gate.wait(30)
        return step(generation)

    monkeypatch.setattr(Generation, "__next__", held)
    statuses = list[int]()
    threads = [
        threading.Thread(
            target=lambda: statuses.append(asked(port, "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})[0])
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    status, content = asked(port, "/v1/completions", {"prompt": PROMPT, "max_tokens": 3})
    assert (status, json.loads(content)["error"]["type"]) == (429, "rate_limit_error")
    gate.set()
    for thread in threads:
        thread.join()
    assert statuses == [200, 200]


def test_clients_that_leave_make_room(port: int, generator: Generator) -> None:
    """A connection that is closed in the middle of a stream ends its generation."""
    wanted = generator.tokenizer.decode(generator.generate("mat", max_tokens=3).tokens)
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"prompt": PROMPT, "max_tokens": 40, "stream": True})
    connection.request("POST", "/v1/completions", body.encode())
    response = connection.getresponse()
    response.read(10)
    connection.close()
    assert answer(port, "/v1/completions", prompt="mat", max_tokens=3)["choices"][0]["text"] == wanted
