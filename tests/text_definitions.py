"""A tokenizer.json of each kind that programs in C read."""

from __future__ import annotations

from typing import Any

from tenon.runtime.text.gguf_tokenizer import tokenizer_json
from text_models import byte_pairs
from text_vocabularies import PIECES, gguf, sentence_pieces, word_pieces


def split_by(pre: str) -> dict[str, Any]:
    definition = byte_pairs()
    return tokenizer_json({**gguf(definition), "pre": pre}, [], [])


def unigrams() -> dict[str, Any]:
    """As a converted model of SentencePiece has them: with tokens for some bytes."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(0xC0)), *PIECES]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": True, "normalized": False, "special": True}
    return {
        "added_tokens": [{"id": i, "content": names[i], **flags} for i in range(3)],
        "normalizer": {"type": "Replace", "pattern": {"String": "\u00fc"}, "content": "the"},
        "pre_tokenizer": space,
        "decoder": space,
        "post_processor": {"type": "BertProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]},
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [[name, -1.0 - (i * 7 % 11) / 8] for i, name in enumerate(names)],
            "byte_fallback": True,
        },
    }


def other_splits() -> dict[str, Any]:
    """GPT-2's own form, with a space in front of every text, and a split of digits before."""
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    definition = byte_pairs()
    definition["pre_tokenizer"] = level
    definition["post_processor"] = {**level, "trim_offsets": False}
    definition["model"]["ignore_merges"] = True
    return definition


def word_splits() -> dict[str, Any]:
    """Splits of the library's own kinds, of which BERT has none."""
    definition = tokenizer_json(word_pieces(), [2], [3])
    kinds = [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Contiguous"}]
    digits = {"type": "Digits", "individual_digits": True}
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*kinds, digits]}
    definition["normalizer"] = {"type": "Lowercase"}
    return definition


def normalised(form: str) -> dict[str, Any]:
    """As Qwen's files have it."""
    return {**byte_pairs(), "normalizer": {"type": form}}


DEFINITIONS = {
    **{pre: split_by(pre) for pre in ("llama-bpe", "gpt-4o", "deepseek-llm")},
    "own": byte_pairs(),
    "space": other_splits(),
    "sentence pieces": tokenizer_json(sentence_pieces(), [1], [2]),
    "unigrams": unigrams(),
    "BERT": tokenizer_json(word_pieces(), [2], [3]),
    "word splits": word_splits(),
    "NFC": normalised("NFC"),
    "NFKD": normalised("NFKD"),
}
