"""Text by a small language model, against the definition of its network in NumPy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_models
import tenon
from real import DIGITS
from tenon.errors import InputError
from tenon.runtime.generation.generator import Generator
from tenon.runtime.text.sampling import Sampling, TokenSampler
from text_models import (
    SPECIAL,
    Weights,
    byte_pairs,
    language_model,
    talking_decoder,
    vocabulary_size,
    written_model,
)

pytest.importorskip("tokenizers")

PROMPT = "the cat sat on the"
SIZE = vocabulary_size(byte_pairs())
END = SIZE - len(SPECIAL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_model(tmp_path_factory.mktemp("words")).parent


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[Generator]:
    with tenon.Generator(folder / "words.onnx", context=40, no_tuning=True) as opened:
        yield opened


@cache
def weights() -> Weights:
    return Weights(SIZE)


def expected(tokens: list[int], count: int) -> list[int]:
    """The most probable tokens, up to the one that ends the text."""
    chosen = weights().greedy(tokens, count)
    return chosen[: chosen.index(END)] if END in chosen else chosen


def test_greedy_text_is_that_of_the_network(generator: Generator) -> None:
    """Each prompt begins again; what it shares with the text before stays in the caches."""
    reused = []
    for prompt in (PROMPT, PROMPT + " mat", PROMPT, "\u4f60\u597d 12"):
        tokens = generator.tokens_of(prompt)
        completion = generator.generate(prompt, max_tokens=12)
        assert list(completion.tokens) == expected(tokens, 12)
        assert completion.text == generator.tokenizer.decode(completion.tokens)
        assert (completion.prompt_tokens, completion.finish) == (len(tokens), "length")
        reused.append(completion.reused_tokens)
    length = len(generator.tokens_of(PROMPT))
    assert reused == [0, length, length - 1, 0]


def test_streams_give_the_same_text_in_pieces(generator: Generator) -> None:
    whole = generator.generate(PROMPT, max_tokens=10)
    stream = generator.stream(PROMPT, max_tokens=10)
    pieces = list(stream)
    assert "".join(pieces) == whole.text == stream.completion.text
    assert len(pieces) > 1


def test_a_stream_that_is_left_does_not_spoil_the_next(generator: Generator) -> None:
    whole = generator.generate(PROMPT, max_tokens=10)
    stream = generator.stream(PROMPT, max_tokens=10)
    next(stream)
    assert 0 < len(stream.completion.tokens) < 10
    assert generator.generate(PROMPT, max_tokens=10).tokens == whole.tokens


def test_samples_are_those_of_the_sampler(generator: Generator) -> None:
    """From the logits of the definition, by the same seed."""
    how = Sampling(1.5, top_k=30, top_p=0.95, seed=11)
    prompt = generator.tokens_of(PROMPT)
    tokens, sampler = list[int](), TokenSampler(how, prompt)
    while len(tokens) < 10 and END not in tokens:
        tokens.append(sampler.choose(weights().logits([*prompt, *tokens]).astype(np.float32)))
    completion = generator.generate(PROMPT, max_tokens=10, temperature=1.5, top_k=30, top_p=0.95, seed=11)
    assert list(completion.tokens) == [token for token in tokens if token != END]


def test_stop_strings_end_the_text(generator: Generator) -> None:
    whole = generator.generate(PROMPT, max_tokens=10).text
    stop = whole[4:6]
    completion = generator.generate(PROMPT, max_tokens=10, stop=["never", stop])
    assert completion.text == whole[: whole.index(stop)]
    assert completion.finish == "stop"


def test_the_end_of_the_text_is_a_token(generator: Generator) -> None:
    """A grammar that allows one word, and then nothing but the end."""
    pytest.importorskip("llguidance")
    completion = generator.generate(PROMPT, grammar={"enum": ["cat"]})
    assert (completion.text, completion.finish) == ('"cat"', "stop")
    digit = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    assert json.loads(generator.generate(PROMPT, grammar=digit).text)["n"] in (1, 2)


def test_caches_end_the_text(generator: Generator) -> None:
    assert generator.context == 40
    completion = generator.generate(PROMPT)
    assert completion.finish == "context"
    assert completion.prompt_tokens + len(completion.tokens) == 41
    with pytest.raises(InputError, match="the prompt has 50 tokens, and the caches have room for 40"):
        generator.generate("x" * 50)


def test_long_prompts_are_run_in_pieces(generator: Generator) -> None:
    """Where the last piece does not fit behind the others, it is run token by token."""
    prompt = "q" * 37
    assert list(generator.generate(prompt, max_tokens=2).tokens) == expected(generator.tokens_of(prompt), 2)


def test_conversations(generator: Generator) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    special = {name: END + i for i, name in enumerate(SPECIAL)}
    tokens = generator.tokens_of(messages)
    assert tokens[0] == special["<|user|>"]
    assert tokens[-2:] == [special["<|end|>"], special["<|assistant|>"]]
    assert list(generator.generate(messages, max_tokens=5).tokens) == expected(tokens, 5)


def test_arguments_that_cannot_be_used(generator: Generator) -> None:
    with pytest.raises(InputError, match="the prompt is empty"):
        generator.generate("")
    with pytest.raises(InputError, match="max_tokens=-1"):
        generator.generate("a", max_tokens=-1)
    with pytest.raises(InputError, match="temperature=-1"):
        generator.generate("a", temperature=-1)


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        (5, {}, "the prompt is a int: give a text, or a list of messages"),
        ({"role": "user", "content": "a"}, {}, "the prompt is a dict"),
        ([1, 2], {}, "message 1 of the prompt has no role"),
        ([{"role": "user", "content": "a"}, {"content": "a"}], {}, "message 2 of the prompt has no role"),
        ([{"role": "user"}], {}, "message 1 of the prompt has no content"),
        ([{"role": "user", "content": 5}], {}, "message 1 of the prompt has no content"),
        ("a", {"max_tokens": 1.5}, "max_tokens=1.5: it is a whole number, 0 or more"),
        ("a", {"logprobs": -1}, "logprobs=-1: it is a whole number, 0 or more"),
        ("a", {"stop": 5}, "stop=5: it is a text, or a list of texts"),
        ("a", {"stop": ["a", 5]}, "it is a text, or a list of texts"),
        ("a", {"heat": 1}, "no argument 'heat': those of sampling are temperature, top_k"),
    ],
)
def test_arguments_of_wrong_types(generator: Generator, prompt: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generator.generate(prompt, **arguments)


def test_one_prompt_is_no_list_of_them(generator: Generator, folder: Path) -> None:
    with pytest.raises(InputError, match="prompts is one prompt: give a list of them"):
        generator.generate_all("the cat")
    closed = tenon.Generator(folder / "words.onnx", context=40, no_tuning=True)
    closed.close()
    with pytest.raises(InputError, match="this engine of 'words' is closed"):
        closed.generate("the cat")


def test_generate_once(folder: Path, generator: Generator) -> None:
    """From an engine, and from a bundle, which no options of a compilation fit."""
    wanted = generator.generate(PROMPT, max_tokens=3).text
    assert tenon.generate(generator.engine, PROMPT, max_tokens=3).text == wanted
    with pytest.raises(InputError, match="compiled already: leave out context"):
        tenon.Generator(tenon.compile(folder / "words.onnx", no_tuning=True), context=8)


def test_networks_that_are_no_language_models(folder: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer"):
        tenon.Generator(language_model(20), context=8, no_tuning=True)
    shapes = {"batch_size": 1, "sequence": 1, "past": 4}
    with pytest.raises(InputError, match="no caches that grow"):
        tenon.Generator(tenon.compile(folder / "words.onnx", shapes=shapes, no_tuning=True))
    with pytest.raises(InputError, match="no language model that predicts tokens"):
        tenon.Generator(tenon.compile(DIGITS / "digits.onnx", no_tuning=True))


def test_text_of_a_gguf_file(tmp_path: Path) -> None:
    """The tokenizer, the chat template and the tokens that end a turn are those in the file."""
    model = talking_decoder(layers=1)
    (tmp_path / "net.gguf").write_bytes(model.file())
    with tenon.Generator(tmp_path / "net.gguf", context=24, no_tuning=True) as opened:
        assert opened.text.eos == (END,)
        for prompt in (PROMPT, [{"role": "user", "content": "the cat"}]):
            tokens = opened.tokens_of(prompt)
            for _ in range(4):
                tokens.append(int(gguf_models.logits(model, gguf_models.Variant(neighbours=True), tokens).argmax()))
            wanted = tokens[-4:]
            assert list(opened.generate(prompt, max_tokens=4).tokens) == wanted
