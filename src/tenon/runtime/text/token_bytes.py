"""The bytes that each token of a vocabulary adds to a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tenon.errors import FormatError
from tenon.network.graph.byte_signs import byte_of_sign

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\u2581"
MOST = 1 << 24
"""Tokens of a vocabulary at most."""


def token_bytes(definition: Mapping[str, Any]) -> list[bytes]:
    """The bytes of all tokens of a tokenizer's definition, by number; a number without a token has none.

    Tokens of BERT's kind that begin a word have a space in front, others lose their sign of continuation.
    """
    model, decoders = definition["model"], _types(definition.get("decoder"))
    convert = _converter(model, decoders)
    names = vocabulary(model)
    added = {each["id"]: each["content"] for each in definition.get("added_tokens") or ()}
    size = 1 + max((*names.values(), *added), default=-1)
    if not 0 <= size <= MOST:
        raise FormatError(f"the tokenizer has a token {size - 1}")
    pieces = [b""] * size
    for name, number in names.items():
        pieces[number] = convert(name)
    for number, name in added.items():
        pieces[number] = name.encode("utf-8", "surrogatepass")
    return pieces


def vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """The number of each token of a model.  Raises FormatError for a vocabulary of another form."""
    entries = model.get("vocab")
    if isinstance(entries, dict):
        return entries
    if isinstance(entries, list) and all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        return {entry[0]: number for number, entry in enumerate(entries)}
    raise FormatError("the tokenizer has no vocabulary")


def _types(step: Any) -> set[str]:
    """The kinds of a step and of those that it consists of."""
    if not isinstance(step, dict):
        return set()
    parts = step.get("decoders") or step.get("pretokenizers") or step.get("normalizers") or []
    return {str(step.get("type"))}.union(*(_types(part) for part in parts))


def _converter(model: Mapping[str, Any], decoders: set[str]) -> Any:
    if "ByteLevel" in decoders:
        return _by_signs
    if model.get("type") == "WordPiece":
        return _word_piece
    fallback = "ByteFallback" in decoders or bool(model.get("byte_fallback"))
    return _sentence_byte if fallback else _sentence_piece


def _by_signs(name: str) -> bytes:
    try:
        return name.translate(_characters()).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogatepass")


@cache
def _characters() -> dict[int, int | str]:
    """The character of Latin-1 for the byte of each sign; characters of Latin-1 that are no signs become none."""
    signs = {ord(sign): byte for sign, byte in byte_of_sign().items()}
    return {**dict.fromkeys(range(256), "\uffff"), **signs}


def _word_piece(name: str) -> bytes:
    return (name[2:] if name.startswith("##") else f" {name}").encode("utf-8", "surrogatepass")


def _sentence_piece(name: str) -> bytes:
    return name.replace(SPACE, " ").encode("utf-8", "surrogatepass")


def _sentence_byte(name: str) -> bytes:
    match = _BYTE.fullmatch(name)
    return bytes([int(match[1], 16)]) if match else _sentence_piece(name)
