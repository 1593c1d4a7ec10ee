"""The tokenizer in a GGUF file's metadata, written as the JSON of the ``tokenizers`` library."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.runtime.text.split_patterns import PATTERNS, WHOLE_WORDS

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens, ``token_type``."""
SPACE = "\u2581"
"""The sign that stands for a space in the tokens of SentencePiece."""


def tokenizer_json(keys: Mapping[str, Any], begin: Sequence[int], end: Sequence[int]) -> dict[str, Any]:
    """The definition, by the keys ``tokenizer.ggml.*`` without that prefix; ``begin`` and ``end`` are the tokens that
    every text gets in front and behind.  Raises FormatError for missing keys, UnsupportedError for other kinds."""
    kind, tokens = keys.get("model"), keys.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise FormatError("the file has no tokens (tokenizer.ggml.tokens)")
    if kind not in _MODELS:
        problem = Problem("tokenizer.ggml.model", f"there is no tokenizer '{kind}'", f"there are {', '.join(_MODELS)}")
        raise UnsupportedError("tokenizer", [problem])
    names = _unique(tokens)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(names, keys),
        **_MODELS[kind](names, keys),
        "post_processor": _template(names, begin, end),
    }


def _unique(tokens: Sequence[Any]) -> list[str]:
    """The tokens' texts; one that is empty or occurs twice, which no text can give, gets a name of its own."""
    names, known = list[str](), set[str]()
    for number, token in enumerate(tokens):
        text = token if isinstance(token, str) else ""
        name = text if text and text not in known else f"[unused{number}]"
        known.add(name)
        names.append(name)
    return names


def _kinds(names: Sequence[str], keys: Mapping[str, Any]) -> Sequence[int]:
    kinds = keys.get("token_type")
    return kinds if isinstance(kinds, list) and len(kinds) == len(names) else [NORMAL] * len(names)


def _added(names: Sequence[str], keys: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that are found in the text as they are, before it is cut."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": name, "special": kind != USER, **flags}
        for number, (name, kind) in enumerate(zip(names, _kinds(names, keys), strict=True))
        if kind in (CONTROL, USER, UNKNOWN)
    ]


def _template(names: Sequence[str], begin: Sequence[int], end: Sequence[int]) -> dict[str, Any] | None:
    """The rules that add tokens in front of and behind every text."""
    if not begin and not end:
        return None
    special = {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in (*begin, *end)}

    def around(*texts: str) -> list[dict[str, Any]]:
        first, last = ([{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids] for ids in (begin, end))
        return [*first, *({"Sequence": {"id": text, "type_id": 0}} for text in texts), *last]

    return {"type": "TemplateProcessing", "single": around("A"), "pair": around("A", "B"), "special_tokens": special}


def _byte_level(names: Sequence[str], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Byte pairs of UTF-8, as GPT-2 has them."""
    pre = str(keys.get("pre", "default"))
    if pre not in PATTERNS:
        remedy = "use a tokenizer.json beside the model"
        problem = Problem("tokenizer.ggml.pre", f"the split of words '{pre}' is not known", remedy)
        raise UnsupportedError("tokenizer", [problem])
    splits = [_split(pattern) for pattern in PATTERNS[pre]]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = keys.get("merges")
    if not isinstance(merges, list):
        raise FormatError("the file has no merges of byte pairs (tokenizer.ggml.merges)")
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytes_of]},
        "decoder": bytes_of,
        "model": _pairs(names, merges, ignore_merges=pre in WHOLE_WORDS),
    }


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _pairs(names: Sequence[str], merges: Sequence[Any], **more: Any) -> dict[str, Any]:
    vocabulary = {name: number for number, name in enumerate(names)}
    usual = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    return {
        "type": "BPE",
        **usual,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **more,
        "vocab": vocabulary,
        "merges": merges,
    }


def _sentence_pairs(names: Sequence[str], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Byte pairs of SentencePiece: pairs are merged in the order of their scores, unknown characters become bytes."""
    scores, kinds = _scores(names, keys), _kinds(names, keys)
    usable = {name: i for i, name in enumerate(names) if kinds[i] in (NORMAL, USER)}
    merges = []
    for name, number in usable.items():
        for at in range(1, len(name)):
            left, right = usable.get(name[:at]), usable.get(name[at:])
            if left is not None and right is not None:
                merges.append((-scores[number], number, left, right))
    pairs = [[names[left], names[right]] for *_, left, right in sorted(merges)]
    prefix = bool(keys.get("add_space_prefix", True))
    steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    unknown = keys.get("unknown_token_id", 0)
    fallback = any(kind == BYTE for kind in kinds)
    more = {"unk_token": names[unknown], "fuse_unk": True, "byte_fallback": fallback}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
    ]
    decoders += [{"type": "Fuse"}]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _pairs(names, pairs, **more),
    }


def _scores(names: Sequence[str], keys: Mapping[str, Any]) -> Sequence[float]:
    scores = keys.get("scores")
    if not isinstance(scores, list) or len(scores) != len(names):
        raise FormatError("the file has no score for each token (tokenizer.ggml.scores)")
    return scores


def _unigram(names: Sequence[str], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The most probable pieces, as T5 has them."""
    steps: list[dict[str, Any]] = []
    if charsmap := keys.get("precompiled_charsmap"):
        coded = base64.b64encode(bytes(charsmap)).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": coded})
    if keys.get("remove_extra_whitespaces", True):
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    scheme = "always" if keys.get("add_space_prefix", True) else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    pieces = [list(pair) for pair in zip(names, _scores(names, keys), strict=True)]
    unknown = keys.get("unknown_token_id", 2)
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": space,
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": False},
    }


def _word_pieces(names: Sequence[str], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Pieces of words, as BERT has them; the file marks beginnings of words, the definition what continues them."""
    kinds = _kinds(names, keys)
    texts = [_piece(name, kind) for name, kind in zip(names, kinds, strict=True)]
    lower = not any(text != text.lower() for text, kind in zip(texts, kinds, strict=True) if kind == NORMAL)
    lower = lower or not any(text.strip("#[]") in {"The", "A"} for text in texts)
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": lower}
    unknown = names[keys.get("unknown_token_id", 100)]
    vocabulary = {text: number for number, text in enumerate(_unique(texts))}
    model = {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##"}
    return {
        "normalizer": {"type": "BertNormalizer", **usual},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {**model, "max_input_chars_per_word": 100, "vocab": vocabulary},
    }


def _piece(name: str, kind: int) -> str:
    if name.startswith(SPACE):
        return name[1:]
    return name if kind != NORMAL or (name.startswith("[") and name.endswith("]")) else f"##{name}"


_MODELS = {"gpt2": _byte_level, "llama": _sentence_pairs, "t5": _unigram, "bert": _word_pieces}


def metadata(content: bytes) -> dict[str, Any]:
    """The keys of a tokenizer of the form "gguf".  Raises FormatError for what is no JSON object."""
    try:
        keys = json.loads(content)
    except ValueError as error:
        raise FormatError(f"the tokenizer's metadata is no JSON: {error}") from error
    if not isinstance(keys, dict):
        raise FormatError("the tokenizer's metadata is no JSON object")
    return keys
