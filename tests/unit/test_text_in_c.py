"""Tokenizers and sampling in C give the same tokens as in Python."""

from __future__ import annotations

import ctypes
import random
import unicodedata
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

from tenon.errors import UnsupportedError
from tenon.runtime.text.sampling import Sampling, TokenSampler
from tenon.runtime.text.split_patterns import PATTERNS
from tenon.runtime.text.text_tables import text_tables
from tenon.runtime.text.tokenizer import TextTokenizer
from text_definitions import DEFINITIONS, normalised, split_by
from text_in_c import SamplerInC, TextInC, library
from text_models import SPECIAL, byte_pairs
from text_vocabularies import TEXTS

pytest.importorskip("tokenizers")

LETTERS = " \t\n\r  'sStTlLrReEvVmMdD\u017fabchino0123456789.,!?-_()[]{}<>|`~^$+=@#%&*/\\\"\u00e9\u00fc\u00df"
MARKS = "\u0301\u0323\u0308\u093c\u3099\u1100\u1161\u11a8\uac00\uac01aeouAO\u0915\u304b\u1e69\ufb01\u212b"
OTHERS = "\u4f60\u597d\u0301\u0939\u093f\u0e01\u200b\u3000\u00a0\U0001f600\u2163\u00bd\u0300\u01c5\u02b0\u2581\u0130"
WORDS = ("the", " cat", "ing", *SPECIAL, "<s>", "[CLS]", "<0x41>", "don't", "we'LL", "\n\n", "   ", "12345")


@cache
def tables_of(name: str) -> bytes:
    return text_tables(DEFINITIONS[name], [5])


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(tmp_path_factory.mktemp("text"))


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of letters, signs, words and any characters that this Python's Unicode knows."""
    rng, made = random.Random(seed), list[str]()
    old = unicodedata.ucd_3_2_0  # some libraries know no newer characters
    known = [chr(i) for i in range(0x20, 0x30000) if old.category(chr(i)) not in ("Cn", "Cs", "Co")]
    for _ in range(count):
        pools = [LETTERS, LETTERS, MARKS, OTHERS, WORDS, known] if rng.random() < 0.5 else [LETTERS, WORDS]
        made.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(30))))
    return made


MORE = ("gpt-4o", "deepseek-llm", "space", "word splits", "NFKD")
"""Tokenizers whose parts others have, too."""
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in MORE else ()) for name in DEFINITIONS]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_library(name: str, functions: ctypes.CDLL) -> None:
    tokenizer = TextTokenizer(DEFINITIONS[name])
    text = TextInC(functions, tables_of(name))
    assert text.status == 0
    for string in (*TEXTS, *random_texts(120, 1)):
        for special in (False, True):
            assert text.encode(string.encode(), special=special) == tokenizer.encode(string, special=special), string
    assert [text.piece(i) for i in range(len(tokenizer.pieces))] == [
        b"" if i in tokenizer.special else piece for i, piece in enumerate(tokenizer.pieces)
    ]
    assert text.piece(len(tokenizer.pieces)) == b""
    assert [i for i in range(9) if text.ends(i)] == [5]


@pytest.mark.parametrize("name", ["own", "sentence pieces", "unigrams", "BERT"])
def test_any_bytes_are_read(name: str, functions: ctypes.CDLL) -> None:
    """Not only UTF-8, of any length, and with too little room for the tokens."""
    rng = random.Random(2)
    text = TextInC(functions, tables_of(name))
    for length in (*range(12), *[300] * 20):
        given = bytes(rng.choice((rng.randrange(256), 0xF0, 0xE4, 0x20)) for _ in range(length))
        tokens = text.encode(given)
        assert isinstance(tokens, list)
        if name == "own":
            assert b"".join(map(text.piece, tokens)) == given
        if tokens:
            assert text.encode(given, room=len(tokens) - 1) == -1
            assert text.encode(given, room=len(tokens)) == tokens


def test_damaged_tables_are_refused(functions: ctypes.CDLL) -> None:
    tables = tables_of("own")
    for damaged in (b"", tables[:40], tables[:-8], b"\0" + tables[1:], tables[:4] + b"\1" + tables[5:]):
        assert TextInC(functions, damaged).status == -2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Nmt"}}, "the tables in C lack the normalizer Nmt"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "the pre-tokenizer UnicodeScripts"),
        ({"post_processor": {"type": "Other"}}, "the post-processor Other"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "models of the kind WordLevel"),
    ],
)
def test_other_tokenizers_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        text_tables({**byte_pairs(), **change}, [])


@pytest.mark.parametrize(
    "pattern", ["a++", "(?<=a)b", "a(?!bc)", "[a[b]]", r"\bx", "^a", "a{200}", "a)", "(a", r"\p{Q}"]
)
def test_other_patterns_are_refused(pattern: str) -> None:
    definition = byte_pairs()
    definition["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    with pytest.raises(UnsupportedError, match="the regular expression"):
        text_tables(definition, [])


@pytest.mark.parametrize("form", ["NFC", "NFKD"])
def test_normal_forms(form: Literal["NFC", "NFKD"], functions: ctypes.CDLL) -> None:
    """Tokens are bytes where nothing is merged, so the normal form can be read off them."""
    plain = {**normalised(form), "added_tokens": []}
    plain["model"] = {**plain["model"], "merges": []}
    text, rng = TextInC(functions, text_tables(plain, [])), random.Random(4)
    for _ in range(400):
        string = "".join(rng.choice(MARKS) for _ in range(rng.randrange(12)))
        tokens = text.encode(string.encode())
        assert isinstance(tokens, list)
        assert b"".join(map(text.piece, tokens)).decode() == unicodedata.normalize(form, string)


@pytest.mark.slow
@pytest.mark.parametrize("pre", sorted(PATTERNS))
def test_all_splits(pre: str, functions: ctypes.CDLL) -> None:
    tokenizer = TextTokenizer(split_by(pre))
    text = TextInC(functions, text_tables(tokenizer.definition, []))
    for string in random_texts(2000, 3):
        assert text.encode(string.encode()) == tokenizer.encode(string), string


SAMPLINGS = [
    Sampling(),
    Sampling(1.0, seed=1),
    Sampling(0.7, top_k=40, top_p=0.9, min_p=0.02, seed=2),
    Sampling(2.5, top_p=0.5, seed=3),
    Sampling(1.0, top_k=1, seed=4),
    Sampling(1.3, min_p=0.3, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, seed=5),
    Sampling(0.0, repetition_penalty=1.1, penalty_window=7),
]


@pytest.mark.parametrize("how", SAMPLINGS, ids=str)
def test_choices_are_those_of_python(how: Sampling, functions: ctypes.CDLL) -> None:
    """Logits are equal, infinite or few in some cases."""
    rng = np.random.default_rng(0)
    first, second = TokenSampler(how, [3, 5, 3]), SamplerInC(functions, how, [3, 5, 3])
    for size in (1, 2, 7, 300, 300, 300, 300, 300):
        for scale in (0.3, 3.0, 30.0):
            logits = np.round(rng.normal(0, scale, size), 1).astype(np.float32)
            logits[rng.random(size) < 0.1] = -np.inf
            logits[0] = 0.0
            assert second.choose(logits) == first.choose(logits)
