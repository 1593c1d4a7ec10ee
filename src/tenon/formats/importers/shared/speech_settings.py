"""The settings of a model for speech in the files beside it, of which Moonshine has ``tokenizer.bin`` alone.

Its tokens are those of SentencePiece, of which the file keeps no scores: earlier tokens are merged first, as
SentencePiece's trainer numbers them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tenon.formats.importers.shared.text_files import TOKENIZER, settings_beside
from tenon.formats.wire.token_list import TOKEN_LIST, token_list
from tenon.input_file import is_regular, read_regular
from tenon.network.graph.text_model import TextModel, Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Kinds of tokens, as ``gguf_tokenizer`` has them."""


def settings_of_speech(folder: Path, given: TextModel) -> TextModel | None:
    """The settings of ``settings_beside``, and where there is no tokenizer.json the tokens of tokenizer.bin, with
    the tokens "<s>" to begin with and "</s>" at the end.  Raises FormatError for a damaged file."""
    settings = settings_beside(folder, given)
    path = folder / TOKEN_LIST
    if settings is None or is_regular(folder / TOKENIZER) or not is_regular(path):
        return settings
    tokens = token_list(read_regular(path), str(path))
    content = json.dumps(_definition(tokens)).encode()
    begin, end = (_number(tokens, name) for name in (b"<s>", b"</s>"))
    return replace(
        settings,
        tokenizer=Tokenizer("gguf", content),
        bos=begin,
        eos=() if end is None else (end,),
        start=() if begin is None else (begin,),
    )


def _number(tokens: Sequence[bytes], name: bytes) -> int | None:
    return tokens.index(name) if name in tokens else None


def _definition(tokens: Sequence[bytes]) -> dict[str, object]:
    """The tokens as the metadata of a GGUF file has them: bytes by name, a score for each token."""
    first_byte = next(
        (i for i in range(len(tokens) - 255) if tokens[i] == b"\0" and _are_bytes(tokens[i : i + 256])), None
    )
    names, kinds = [], []
    for number, token in enumerate(tokens):
        of_byte = first_byte is not None and first_byte <= number < first_byte + 256
        special = len(token) > 2 and token.startswith(b"<") and token.endswith(b">")
        names.append(f"<0x{token[0]:02X}>" if of_byte else token.decode("utf-8", "replace"))
        kinds.append(_BYTE if of_byte else _UNKNOWN if token == b"<unk>" else _CONTROL if special else _NORMAL)
    scores = [-float(number) for number in range(len(tokens))]
    unknown = _number(tokens, b"<unk>") or 0
    return {"model": "llama", "tokens": names, "token_type": kinds, "scores": scores, "unknown_token_id": unknown}


def _are_bytes(tokens: Sequence[bytes]) -> bool:
    """Whether these are the tokens of all bytes, in order."""
    return all(token == bytes([value]) for value, token in enumerate(tokens))
