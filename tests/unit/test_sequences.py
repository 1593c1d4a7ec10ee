"""Several sequences of a decoder in one run: logits, texts at the same time, what they share, and parallel requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

import tenon
from gguf_models import DEPTH, U32, VOCABULARY, DecoderFile, Variant, logits
from tenon.errors import InputError
from tenon.options import CacheType
from tenon.runtime.generation.completion import Completion
from tenon.runtime.generation.generator import Generator
from text_models import talking_decoder, written_model

COUNT, ROOM = 3, 40
MODEL, VARIANT = DecoderFile("llama", key_heads=2), Variant(neighbours=True)
PROMPTS = ("the cat sat on the", "12", "the cat sat on the mat and", "dog and cat", "the cat sat on the")


@pytest.mark.parametrize(("kind", "error"), [("fp32", 1e-5), ("fp16", 4e-3), ("int8", 4e-2)])
def test_runs_with_tokens_of_several(kind: CacheType, error: float) -> None:
    """Pieces of prompts and single tokens of three texts, mixed in every order, have the logits of each text alone."""
    rng = np.random.default_rng(1)
    texts = [[int(token) for token in rng.integers(0, VOCABULARY, ROOM)] for _ in range(COUNT)]
    bundle = tenon.compile(MODEL.file(), name="net", context=ROOM, sequences=COUNT, cache_type=kind, no_tuning=True)
    with tenon.open(bundle) as engine:
        element = {"fp32": 4, "fp16": 2, "int8": 1 + 4 / DEPTH}[kind]
        assert engine.manifest.state_bytes == 2 * MODEL.layers * MODEL.key_heads * COUNT * ROOM * DEPTH * element
        done = [0] * COUNT
        for turn in range(12):
            counts = [int(n) for n in rng.integers(0, (8, 2, 4)[turn % 3], COUNT)]
            given = {slot: texts[slot][done[slot] : done[slot] + n] for slot, n in enumerate(counts)}
            order = [int(slot) for slot in rng.permutation(COUNT) if given[slot]]
            if not order:
                continue
            feeds = {
                "tokens": [token for slot in order for token in given[slot]],
                "slots": [slot for slot in order for _ in given[slot]],
                "positions": [done[slot] + i for slot in order for i in range(len(given[slot]))],
                "rows": list(np.cumsum([len(given[slot]) for slot in order]) - 1),
            }
            arrays = {name: np.array(numbers, np.int64) for name, numbers in feeds.items()}
            results = engine.run({**arrays, "tokens": arrays["tokens"][None]})["logits"]
            for slot, row in zip(order, results[0], strict=True):
                done[slot] += len(given[slot])
                right = logits(MODEL, VARIANT, texts[slot][: done[slot]])
                np.testing.assert_allclose(row, right, atol=error * np.abs(right).max())
        assert min(done) > 8


@pytest.fixture(scope="module", params=["caches", "rings"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder, and one whose caches are rings, which are shorter than the texts."""
    path = tmp_path_factory.mktemp(request.param) / "net.gguf"
    window = {"attention.sliding_window": (U32, 4)}
    rings = request.param == "rings"
    path.write_bytes((talking_decoder("phi3", joined=True, pairs=window) if rings else talking_decoder()).file())
    return path


def sizes(model: Path, count: int) -> list[dict[str, str | int]]:
    """The sizes of entry points of a token for each of ``count`` sequences, and of several."""
    slots: dict[str, str | int] = {"sequences": count, "answers": f"1..{count}"} if count > 1 else {}
    longest = 6 if model.parent.name.startswith("rings") else ROOM // 2
    return [{**slots, "length": f"1..{n}", "past": f"0..{ROOM - n}"} for n in (count, longest)]


@pytest.fixture(scope="module")
def generator(model: Path) -> Iterator[Generator]:
    pytest.importorskip("tokenizers")
    with tenon.Generator(model, shapes=sizes(model, COUNT), no_tuning=True) as opened:
        extents = {tensor.shape[2] for tensor in opened.engine.manifest.own_inputs if tensor.state}
        assert extents == {10 if model.parent.name.startswith("rings") else ROOM}
        yield opened


@pytest.fixture(scope="module")
def texts(model: Path) -> list[Completion]:
    """The texts one after another, by a network of one sequence."""
    pytest.importorskip("tokenizers")
    with tenon.Generator(model, shapes=sizes(model, 1), no_tuning=True) as opened:
        assert opened.sequences == 1
        return opened.generate_all(PROMPTS, max_tokens=8)


def test_texts_at_the_same_time(generator: Generator, texts: list[Completion], monkeypatch: pytest.MonkeyPatch) -> None:
    """More texts than slots have the tokens that each has alone; fewer runs than tokens; one at a time goes, too."""
    assert generator.sequences == COUNT
    counts, run = list[int](), generator.engine.run

    def counted(feeds: dict[str, np.ndarray], *, copy: bool = True) -> object:
        counts.append(len(feeds["rows"]))
        return run(feeds, copy=copy)

    monkeypatch.setattr(generator.engine, "run", counted)
    together = generator.generate_all(PROMPTS, max_tokens=8)
    assert [(each.tokens, each.text, each.finish) for each in together] == [
        (each.tokens, each.text, each.finish) for each in texts
    ]
    assert max(counts) == COUNT
    assert len(counts) < sum(len(each.tokens) for each in texts) * 2 / 3
    assert generator.generate(PROMPTS[3], max_tokens=8).tokens == texts[3].tokens


def test_a_beginning_that_texts_share_is_copied(generator: Generator) -> None:
    prompt = "dog sat on the mat and the"
    count = len(generator.tokens_of(prompt))
    together = generator.generate_all([prompt] * COUNT, max_tokens=4, temperature=1.5, seed=7)
    assert [each.reused_tokens for each in together][1:] == [count - 1] * (COUNT - 1)
    for number, each in enumerate(together):
        assert generator.generate(prompt, max_tokens=4, temperature=1.5, seed=7 + number).tokens == each.tokens
    assert len({each.tokens for each in together}) > 1


def test_streams_of_several_threads(generator: Generator, texts: list[Completion]) -> None:
    """Each thread gets its own text; a stream that nobody goes on with holds up no other."""
    left = generator.stream("the dog", max_tokens=30)
    next(left)
    results = dict[int, tuple[int, ...]]()

    def ask(number: int) -> None:
        results[number] = generator.generate(PROMPTS[number], max_tokens=8).tokens

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: each.tokens for number, each in enumerate(texts)}
    assert len(left.completion.tokens) > 1


def test_parallel_requests(generator: Generator, texts: list[Completion]) -> None:
    """The server answers as many requests at a time as there are sequences, whole or in pieces."""
    pytest.importorskip("starlette")
    uvicorn = pytest.importorskip("uvicorn")
    from tenon.tools.server.app import application

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(generator, "net"), log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    served = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    served.start()
    answers = dict[int, list[str]]()

    def ask(number: int) -> None:
        stream = number == 0
        body = {"prompt": PROMPTS[number], "max_tokens": 8, "n": 2, "stream": stream}
        with closing(HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=60)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            content = connection.getresponse().read().decode()
        lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: {")]
        choices = [c for line in (lines if stream else [content]) for c in json.loads(line)["choices"]]
        answers[number] = ["".join(c["text"] for c in choices if c["index"] == index) for index in (0, 1)]

    try:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.should_exit = True
        served.join()
    assert answers == {number: [each.text] * 2 for number, each in enumerate(texts)}


def test_what_has_one_sequence_is_said(tmp_path: Path) -> None:
    bundle = tenon.compile(talking_decoder(layers=1).file(), name="net", sequences=2, no_tuning=True)
    with pytest.raises(InputError, match="'net' has several sequences: leave out --emit text and exe"):
        bundle.save(tmp_path / "net", ("text",))
    with pytest.raises(InputError, match=r"words\.onnx: its caches have one sequence: leave out sequences=2"):
        tenon.compile(written_model(tmp_path), sequences=2, no_tuning=True)
