"""Tokenizers from tokenizer.json and from the metadata of GGUF files, and the bytes of their tokens."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest

from tenon.errors import FormatError, InputError, TenonError, UnsupportedError
from tenon.network.graph.text_model import TextModel, Tokenizer
from tenon.runtime.text.split_patterns import PATTERNS
from tenon.runtime.text.text_tables import text_tables
from tenon.runtime.text.tokenizer import TextTokenizer, common_prefix, definition_of
from text_models import SPECIAL, byte_pairs
from text_vocabularies import PIECES, TEXTS, gguf, pieces_by_definition, sentence_pieces, word_pieces

pytest.importorskip("tokenizers")


def from_gguf(keys: dict[str, Any], **more: Any) -> TextTokenizer:
    return TextTokenizer.of(TextModel(tokenizer=Tokenizer("gguf", json.dumps(keys).encode()), **more))


def test_byte_pairs_give_all_texts_back() -> None:
    tokenizer = TextTokenizer(byte_pairs())
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    end = tokenizer.number(SPECIAL[0])
    assert tokenizer.encode(f"the{SPECIAL[0]}") == [tokenizer.number("the"), end]
    assert tokenizer.special == {tokenizer.number(name) for name in SPECIAL}
    assert tokenizer.decode([end or 0]) == ""
    assert tokenizer.decode([end or 0], special=True) == SPECIAL[0]


def test_gguf_metadata_give_the_same_tokens_as_the_tokenizer_json() -> None:
    """A vocabulary of byte pairs, with GPT-2's split of words in both."""
    definition = byte_pairs()
    definition["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = PATTERNS["gpt-2"][0]
    first, second = TextTokenizer(definition), from_gguf(gguf(definition))
    for text in TEXTS:
        assert second.encode(text) == first.encode(text)
    assert second.pieces == first.pieces
    begun = from_gguf(gguf(definition), bos=256, add_bos=True, eos=(257, 258), add_eos=True)
    assert begun.encode("the") == [256, *first.encode("the"), 257]
    assert begun.encode("the", special=False) == first.encode("the")


@pytest.mark.parametrize("pre", sorted(PATTERNS))
def test_splits_of_words_are_patterns_of_the_library(pre: str) -> None:
    """The library takes each of them, and no text gets lost."""
    tokenizer = from_gguf({**gguf(byte_pairs()), "pre": pre})
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_pairs_of_sentence_pieces_are_merged_by_their_scores() -> None:
    """As SentencePiece does, by definition: the best pair anywhere is merged, until there is none."""
    keys = sentence_pieces()
    tokenizer = from_gguf(keys)
    for text in TEXTS:
        assert tokenizer.encode(text) == pieces_by_definition(keys, text), repr(text)
        assert tokenizer.bytes_of(tokenizer.encode(text)).decode() == (f" {text}" if text else "")


def test_unigrams() -> None:
    """The most probable pieces; the metadata have no charsmap, so the text stays as it is."""
    tokenizer = from_gguf(
        {"model": "t5", "tokens": ["<pad>", "</s>", "<unk>", *PIECES], "unknown_token_id": 2}
        | {
            "scores": [0.0, 0.0, 0.0, *(-1.0 - i / 8 for i in range(len(PIECES)))],
            "token_type": [3, 3, 2, *[1] * len(PIECES)],
        }
    )
    assert tokenizer.decode(tokenizer.encode("the cat  the")) == " the cat the"
    assert tokenizer.encode("\u00e9") == [3, 2]


def test_word_pieces() -> None:
    tokenizer = from_gguf(word_pieces())
    names = word_pieces()["tokens"]
    assert [names[i] for i in tokenizer.encode("The cats sat.")] == [
        "\u2581the",
        "\u2581cat",
        "s",
        "\u2581sat",
        "\u2581.",
    ]
    assert tokenizer.encode("xyz") == [names.index("[UNK]")]
    assert tokenizer.decode(tokenizer.encode("the cats")) == " the cats"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "gpt2"}, "has no tokens"),
        ({"model": "gpt2", "tokens": ["a"]}, "no merges of byte pairs"),
        ({"model": "llama", "tokens": ["a"]}, "no score for each token"),
        ({"model": "rwkv", "tokens": ["a"]}, "no tokenizer 'rwkv'"),
        ({"model": "gpt2", "tokens": ["a"], "merges": [], "pre": "new"}, "split of words 'new' is not known"),
    ],
)
def test_metadata_that_cannot_be_used(keys: dict[str, Any], message: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=message):
        from_gguf(keys)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "it is no JSON"), (b"[]", "it has no model"), (b'{"model": {"type": "X", "vocab": {}}}', "cannot read it")],
)
def test_damaged_tokenizer_files(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        TextTokenizer.of(TextModel(tokenizer=Tokenizer("tokenizer.json", content)))


def test_models_without_a_tokenizer() -> None:
    for tokenizer, message in ((None, "no tokenizer"), (Tokenizer("sentencepiece", b""), r"tokenizer\.model")):
        with pytest.raises(InputError, match=message):
            TextTokenizer.of(TextModel(tokenizer=tokenizer))


def test_common_prefix() -> None:
    assert [common_prefix([1, 2, 3], other) for other in ([], [1, 2], [1, 3], [1, 2, 3, 4])] == [0, 2, 1, 3]


def damaged(value: Any, rng: random.Random) -> Any:
    """A copy of JSON in which some values are of another kind, or gone."""
    if rng.random() < 0.03:
        return rng.choice([None, -1, 1 << 40, "x", [], {}, [None], True, 0.5])
    if isinstance(value, dict):
        return {key: damaged(item, rng) for key, item in value.items() if rng.random() > 0.02}
    return [damaged(item, rng) for item in value] if isinstance(value, list) else value


def used(model: TextModel) -> None:
    """Read a text with a tokenizer, and make its tables."""
    with contextlib.suppress(TenonError):
        TextTokenizer.of(model).encode("ab a")
    with contextlib.suppress(TenonError):
        text_tables(definition_of(model), [])


@pytest.mark.parametrize("seed", range(2))
def test_damaged_definitions_are_errors_of_the_file(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a tokenizer that reads a text; never another exception."""
    monkeypatch.setenv("RUST_BACKTRACE", "0")  # where the library panics
    rng, small = random.Random(seed), byte_pairs()
    small["model"] = {**small["model"], "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    small["added_tokens"] = [{**each, "id": 3 + i} for i, each in enumerate(small["added_tokens"])]
    keys = {"tokens": ["a", "b", "ab"], "token_type": [1, 1, 3], "merges": ["a b"], "scores": [0.0] * 3, "pre": "gpt-2"}
    for _ in range(6):
        other = {**keys, "model": rng.choice(["gpt2", "llama", "t5", "bert"]), "unknown_token_id": rng.choice([0, 9])}
        used(TextModel(tokenizer=Tokenizer("tokenizer.json", json.dumps(damaged(small, rng)).encode())))
        used(TextModel(tokenizer=Tokenizer("gguf", json.dumps(damaged(other, rng)).encode())))
