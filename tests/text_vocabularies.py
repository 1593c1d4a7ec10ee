"""Small vocabularies of each kind of tokenizer, texts to cut, and what SentencePiece makes of them by definition."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

TEXTS = (
    "",
    " ",
    "\n\n  \t",
    "the cat sat on the mat, and the dog's sitting.",
    "  two  spaces ",
    "123456 12 3.14",
    "na\u00efve \u00fc\u00df \u4f60\u597d\u4e16\u754c \U0001f600\U0001f1e9\U0001f1ea",
    "e\u0301 \u1e9b\u0323 \u0e01\u0e33 \u0915\u094d\u0937",
    "IT'S we'LL don't \u2019s",
    "a\u00a0b\u3000c\u200bd\r\ne",
)
PIECES = (
    "\u2581",
    "\u2581the",
    "\u2581cat",
    "t",
    "h",
    "e",
    "c",
    "a",
    "s",
    "at",
    "\u2581sat",
    "he",
    "o",
    "n",
    "\u2581on",
    "d",
)


def gguf(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a GGUF file for a tokenizer of byte pairs."""
    added = definition["added_tokens"]
    names = [*definition["model"]["vocab"], *(each["content"] for each in added)]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": names,
        "token_type": [1] * (len(names) - len(added)) + [3] * len(added),
        "merges": [" ".join(pair) for pair in definition["model"]["merges"]],
    }


def sentence_pieces() -> dict[str, Any]:
    """The metadata for a vocabulary of SentencePiece, with a token for every byte."""
    letters = sorted({letter for word in PIECES for letter in word} | set("im"))
    words = list(dict.fromkeys((*PIECES, *letters)))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    return {
        "model": "llama",
        "tokens": names,
        "scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "unknown_token_id": 0,
    }


def pieces_by_definition(keys: Mapping[str, Any], text: str) -> list[int]:
    """The tokens of a text: its characters, of which the neighbours with the best score are merged again and again."""
    numbers = {name: i for i, name in enumerate(keys["tokens"]) if keys["token_type"][i] == 1}
    parts = list(f"\u2581{text}".replace(" ", "\u2581")) if text else []
    while True:
        sums = ((i, numbers.get(a + b)) for i, (a, b) in enumerate(pairwise(parts)))
        pairs = [(keys["scores"][number], -i) for i, number in sums if number is not None]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return [n for part in parts for n in ([numbers[part]] if part in numbers else [3 + b for b in part.encode()])]


def word_pieces() -> dict[str, Any]:
    """The metadata for a vocabulary like BERT's: what begins a word is marked."""
    words = ("\u2581the", "\u2581cat", "\u2581sat", "\u2581.", "\u2581c", "s", "at", "t", "ing")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    return {"model": "bert", "tokens": names, "token_type": [3] * 4 + [1] * len(words), "unknown_token_id": 1}
