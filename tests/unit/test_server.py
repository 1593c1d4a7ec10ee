"""The HTTP server for language models, as a client of OpenAI's API sees it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from embedding_models import SHAPES
from embedding_models import folder as embedding_folder
from http_server import serving
from tenon.runtime.generation.generator import Generation, Generator
from tenon.speech import Embedder
from text_models import Weights, byte_pairs, talking_decoder, vocabulary_size, written_model

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")

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

    with serving(application(generator, "words", ServerLimits(queue=1, max_tokens=40, body=4000))) as number:
        yield number


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    path, _ = embedding_folder(tmp_path_factory.mktemp("embedding"))
    with tenon.open(tenon.compile(path / "model.onnx", shapes=SHAPES, no_tuning=True)) as engine:
        yield Embedder(engine)


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


def test_several_answers(port: int, generator: Generator) -> None:
    """For each prompt one after another; seeds follow the one that is given."""
    how: dict[str, Any] = {"max_tokens": 5, "temperature": 1.5}
    prompts = [PROMPT, "mat"]
    wanted = [generator.generate(p, seed=seed, **how) for p in prompts for seed in (7, 8)]
    got = answer(port, "/v1/completions", prompt=prompts, n=2, seed=7, **how)
    assert [c["text"] for c in got["choices"]] == [each.text for each in wanted]
    assert [c["index"] for c in got["choices"]] == [0, 1, 2, 3]
    assert got["usage"]["completion_tokens"] == sum(len(each.tokens) for each in wanted)
    assert got["usage"]["prompt_tokens"] == sum(each.prompt_tokens for each in wanted[::2])
    streamed = events(port, "/v1/completions", prompt=prompts, n=2, seed=7, **how)
    for index, each in enumerate(wanted):
        own = [e["choices"][0] for e in streamed if e["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == each.text
        assert own[-1]["finish_reason"] == "length"


def test_probabilities(port: int, generator: Generator) -> None:
    """Logarithms of the network's probabilities, of each token and of the most probable ones; the same in a stream."""
    wanted = generator.generate(MESSAGES, max_tokens=5, logprobs=3, temperature=1.2, seed=3)
    weights = Weights(vocabulary_size(byte_pairs()))
    tokens = generator.tokens_of(MESSAGES)
    for score in wanted.scores:
        logits = weights.logits(tokens)
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert score.logprob == pytest.approx(expected[score.token], abs=1e-4)
        assert [token for token, _ in score.top] == np.argsort(-expected)[:3].tolist()
        tokens.append(score.token)
    how = {"messages": MESSAGES, "max_tokens": 5, "temperature": 1.2, "seed": 3, "logprobs": True, "top_logprobs": 3}
    content = answer(port, "/v1/chat/completions", **how)["choices"][0]["logprobs"]["content"]
    assert [row["logprob"] for row in content] == [score.logprob for score in wanted.scores]
    assert [len(row["top_logprobs"]) for row in content] == [3] * len(content)
    assert b"".join(bytes(row["bytes"]) for row in content) == generator.tokenizer.bytes_of(wanted.tokens)
    parts = [e["choices"][0]["logprobs"] for e in events(port, "/v1/chat/completions", **how)]
    assert [row for part in parts if part for row in part["content"]] == content
    got = answer(port, "/v1/completions", prompt=PROMPT, max_tokens=4, logprobs=2)["choices"][0]["logprobs"]
    assert got["text_offset"] == [sum(map(len, got["tokens"][:i])) for i in range(4)]
    assert [max(top.values()) for top in got["top_logprobs"]] == got["token_logprobs"]  # greedy


def test_embeddings(embedder: Embedder) -> None:
    from tenon.tools.server.app import application

    texts = [" wa wb", " wc"]
    wanted = [vector.tolist() for vector in embedder.embed(texts)]
    with serving(application(embedder, "words")) as port:
        got = answer(port, "/v1/embeddings", input=texts, model="words")
        assert [row["embedding"] for row in got["data"]] == wanted
        assert got["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        coded = answer(port, "/v1/embeddings", input=texts[0], encoding_format="base64")["data"][0]["embedding"]
        assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == wanted[0]
        tokens = [embedder.tokenizer.encode(text) for text in texts]
        assert answer(port, "/v1/embeddings", input=tokens)["data"] == got["data"]
        assert answer(port, "/v1/embeddings", input=tokens[0])["data"] == got["data"][:1]
        for body, message in (
            ({"input": []}, "input: a request has 1 to 2048 texts"),
            ({"input": ""}, "input: a text is empty"),
            ({"input": " wa", "dimensions": 3}, "dimensions: the model's embeddings have 4"),
            ({"input": " wa" * 9}, "a text has 9 tokens, and the network takes 6 at most"),
            ({"input": [8]}, "input: tokens are numbers from 0 to 7"),
        ):
            status, content = asked(port, "/v1/embeddings", body)
            assert (status, message in json.loads(content)["error"]["message"]) == (400, True), content
        status, content = asked(port, "/v1/completions", {"prompt": "a"})
        assert (status, "generates no texts" in json.loads(content)["error"]["message"]) == (400, True)
        assert "context_length" not in json.loads(asked(port, "/v1/models")[1])["data"][0]


def test_the_client_of_openai(port: int, embedder: Embedder, generator: Generator) -> None:
    """Texts, streams with the numbers of tokens, probabilities, embeddings and errors as its library reads them."""
    openai = pytest.importorskip("openai")
    from tenon.tools.server.app import application

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any")
    assert [model.id for model in client.models.list()] == ["words"]
    wanted = generator.generate(MESSAGES, max_tokens=5)
    got = client.chat.completions.create(
        model="words", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=2, n=2, stop=["never"]
    )
    assert [choice.message.content for choice in got.choices] == [wanted.text] * 2
    assert len(got.choices[0].logprobs.content[0].top_logprobs) == 2
    stream = client.chat.completions.create(
        model="words", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == wanted.text
    assert chunks[-1].usage.completion_tokens == len(wanted.tokens)
    text = client.completions.create(model="words", prompt=PROMPT, max_tokens=5, logprobs=1)
    assert text.choices[0].text == generator.generate(PROMPT, max_tokens=5).text
    with pytest.raises(openai.NotFoundError, match="there is no 'gpt' here"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="tools: "):
        client.chat.completions.create(
            model="words", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    with serving(application(embedder, "words")) as number:
        other = openai.OpenAI(base_url=f"http://127.0.0.1:{number}/v1", api_key="any")
        vector = other.embeddings.create(model="words", input=" wa wb").data[0].embedding
        assert vector == pytest.approx(next(embedder.embed([" wa wb"])).tolist())


def test_answers_with_a_schema(port: int) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    wrong = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "nonsense"}}}
    status, content = asked(port, "/v1/chat/completions", {"messages": MESSAGES, "response_format": wrong})
    assert (status, json.loads(content)["error"]["message"]) == (400, "grammar: Invalid type: nonsense")
    got = answer(port, "/v1/chat/completions", messages=MESSAGES, response_format=form)
    assert json.loads(got["choices"][0]["message"]["content"])["n"] in (1, 2)
    assert got["choices"][0]["finish_reason"] == "stop"


def test_models(port: int) -> None:
    listed = json.loads(asked(port, "/v1/models")[1])
    assert [(m["id"], m["object"], m["context_length"]) for m in listed["data"]] == [("words", "model", 60)]
    assert json.loads(asked(port, "/v1/models/words")[1]) == listed["data"][0]
    assert asked(port, "/health")[0] == 200


CODES = {
    "the prompt has 70 tokens": "context_length_exceeded",
    "the prompt has 73 tokens": "context_length_exceeded",
    "there is no 'gpt' here, only 'words'": "model_not_found",
}
"""The codes that clients look at, of some messages."""


@pytest.mark.parametrize(
    ("path", "body", "status", "message", "parameter"),
    [
        ("/v1/completions", b"{", 400, "the body is no JSON", None),
        ("/v1/completions", [], 400, "the body is no JSON object", None),
        ("/v1/completions", {}, 400, "prompt: Field required", "prompt"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature: ", "temperature"),
        ("/v1/completions", {"prompt": "a", "max_tokens": -1}, 400, "max_tokens: ", "max_tokens"),
        ("/v1/completions", {"prompt": "a", "n": 0}, 400, "n: ", "n"),
        ("/v1/completions", {"prompt": "a", "best_of": 2}, 400, "best_of: ", "best_of"),
        ("/v1/completions", {"prompt": "a", "logprobs": 30}, 400, "logprobs: ", "logprobs"),
        ("/v1/completions", {"prompt": "a", "logprobs": 1, "echo": True}, 400, "leave out echo", "logprobs"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias: ", "logit_bias"),
        ("/v1/completions", {"prompt": ["a"] * 70, "n": 2}, 400, "has 1 to 128 answers", "prompt"),
        ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 2}, 400, "needs logprobs", "top_logprobs"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix: ", "suffix"),
        ("/v1/completions", {"prompt": ""}, 400, "the prompt is empty", None),
        ("/v1/completions", {"prompt": "x" * 70}, 400, "the prompt has 70 tokens", "prompt"),
        ("/v1/completions", {"prompt": "a", "stream_options": {}}, 400, "stream_options: it needs", "stream_options"),
        ("/v1/completions", {"prompt": 5}, 400, "prompt: it is not a string or an array of strings", "prompt"),
        ("/v1/completions", {"prompt": "a", "stop": ["a", 5]}, 400, "stop: it is not a string or an", "stop"),
        ("/v1/completions", b"[" * 3500, 400, "the body is nested too deeply", None),
        ("/v1/completions", b'{"prompt": "\\ud800"}', 400, "the text is not valid UTF-8 at character 1", None),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 0}, 400, "max_tokens: ", "max_tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400, "role 'user' has no content", "messages"),
        ("/v1/chat/completions", {"messages": ["a"]}, 400, "messages.0: it is not an object", "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            400,
            "messages.0.content.0.type: Field required",
            "messages",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 70}]},
            400,
            "the prompt has 73 tokens",
            "messages",
        ),
        ("/v1/completions", {"prompt": "x" * 5000}, 413, "more than 4000 bytes", None),
        ("/v1/completions", {"prompt": "a", "model": "gpt"}, 404, "there is no 'gpt' here, only 'words'", "model"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages: ", "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "a"}]}, 400, "messages.0.role: ", "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "robot", "content": "a"}]},
            400,
            "'robot' is no role: give system, developer, user, assistant",
            "messages",
        ),
        (
            "/v1/chat/completions",
            {"messages": [*MESSAGES, {"role": "tool", "content": "a"}]},
            400,
            "no tools are called",
            "messages",
        ),
        (
            "/v1/chat/completions",
            {"messages": [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [{}]}]},
            400,
            "no tools are called",
            "messages",
        ),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{}]}, 400, "tools: ", "tools"),
        ("/v1/chat/completions", {"messages": MESSAGES, "functions": [{}]}, 400, "functions: ", "functions"),
        ("/v1/chat/completions", {"messages": MESSAGES, "modalities": ["text", "audio"]}, 400, "texts", "modalities"),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json_schema"}},
            400,
            "the schema is missing",
            "response_format",
        ),
        ("/v1/completions", {"prompt": [1, 2]}, 400, "and no tokens", "prompt"),
        ("/v1/completions", {"prompt": [[1], [2]]}, 400, "and no tokens", "prompt"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "content of the type 'image_url'",
            "messages",
        ),
        ("/v1/embeddings", {"input": "a"}, 400, "'words' embeds no texts", "model"),
        ("/v1/images", {}, 404, "POST /v1/images: not found", None),
    ],
)
def test_errors_are_error_objects(
    port: int, path: str, body: Any, status: int, message: str, parameter: str | None
) -> None:
    got, content = asked(port, path, body)
    error = json.loads(content)["error"]
    assert (got, error["param"]) == (status, parameter)
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == CODES.get(message)


def test_methods(port: int) -> None:
    status, content = asked(port, "/v1/completions", method="GET")
    assert (status, json.loads(content)["error"]["message"]) == (405, "GET /v1/completions: method not allowed")
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/v1/completions")
        assert connection.getresponse().headers["Allow"] == "POST"


def test_values_that_clients_send_for_nothing(port: int) -> None:
    """Null is what is not given, the role of developers is that of the system, and unknown fields change nothing."""
    nothing = dict.fromkeys(("stream", "stop", "n", "temperature", "logprobs", "stream_options", "seed"))
    how: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    plain = [{"role": role, "content": "the cat"} for role in ("system", "user")]
    wanted = answer(port, "/v1/chat/completions", messages=plain, **how)["choices"]
    newer = [{"role": "developer", "content": [{"type": "text", "text": "the cat"}]}, plain[1]]
    got = answer(port, "/v1/chat/completions", messages=newer, **{**nothing, **how, "user": "me", "store": False})
    assert got["choices"] == wanted
    assert answer(port, "/v1/completions", prompt=PROMPT, max_tokens=0, echo=True)["choices"][0]["text"] == PROMPT


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


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether a condition comes to hold in that time."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.001)
    return holds


@pytest.mark.parametrize("body", [{"stream": True}, {"stream": True, "n": 2}, {}], ids=["stream", "two", "whole"])
def test_clients_that_leave_give_their_sequences_back(body: dict[str, Any], tmp_path: Path) -> None:
    """Long before their texts would end, while others go on."""
    from tenon.tools.server.app import application

    (tmp_path / "talk.gguf").write_bytes(talking_decoder().file())
    with tenon.Generator(tmp_path / "talk.gguf", context=2000, sequences=2, no_tuning=True) as model:
        batch, interrupted = model._batch, 0
        assert batch is not None
        with serving(application(model, "talk")) as number:
            for _ in range(4):
                connection = HTTPConnection("127.0.0.1", number, timeout=30)
                asked_for = {"prompt": "the", "max_tokens": 1900, "temperature": 1, **body}
                connection.request("POST", "/v1/completions", json.dumps(asked_for).encode())
                interrupted += within(5, lambda: bool(batch._active))  # a text may have ended by itself
                connection.close()
                assert within(20, lambda: not batch._active)
                assert max(map(len, batch.decoder.tokens)) < 1500
            assert interrupted
            assert answer(number, "/v1/completions", prompt="cat", max_tokens=3)["usage"]["completion_tokens"] == 3
