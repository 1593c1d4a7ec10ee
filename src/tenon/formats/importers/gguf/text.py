"""The tokenizer of a GGUF file, and what it says of texts: special tokens, chat template, sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tenon.formats.decompositions.decoder.graph import PORTS, image_ports
from tenon.formats.importers.gguf.metadata import Metadata
from tenon.network.graph.text_model import ImageText, TextModel, Tokenizer

PREFIX = "tokenizer.ggml."
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TURNS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")
"""Tokens of conversations that end a turn, or the text."""
_MARKS = (3, 4)
"""The kinds of tokens, ``token_type``, that are no usual text: control tokens, and those that users add."""
_BEGUN = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def text_model(m: Metadata, context: int, image: ImageText | None = None) -> TextModel:
    """The settings of texts of a decoder, which reads images as ``image`` says."""
    pairs = m.pairs
    ends = [*(_token(pairs, name) for name in _ENDS), *_ends_by_name(pairs)]
    template = pairs.get("tokenizer.chat_template")
    sampling = {to: pairs.get(f"general.sampling.{name}") for name, to in _SAMPLING.items()}
    return TextModel(
        architecture=m.architecture,
        ports=PORTS if image is None else image_ports(image),
        context=context,
        tokenizer=Tokenizer("gguf", tokenizer_data(pairs)) if has_tokenizer(pairs) else None,
        bos=_token(pairs, "bos_token_id"),
        eos=tuple(dict.fromkeys(end for end in ends if end is not None)),
        pad=_token(pairs, "padding_token_id"),
        unknown=_token(pairs, "unknown_token_id"),
        add_bos=_adds_bos(pairs),
        add_eos=bool(pairs.get(f"{PREFIX}add_eos_token", False)),
        chat_template=template if isinstance(template, str) else "",
        generation={name: float(n) for name, n in sampling.items() if isinstance(n, int | float)},
        image=image,
    )


def encoder_text(m: Metadata) -> TextModel:
    """The settings of texts of an encoder, around which its tokenizer puts tokens of its own."""
    model = text_model(m, m.size("context_length", 512))
    begin, end = (_token(m.pairs, f"{name}_token_id") for name in ("cls", "seperator"))
    last = model.eos[:1] if end is None else (end,)
    first = model.bos if begin is None else begin
    ports = {"tokens": "tokens", "embedding": "embedding"}
    return replace(model, kind="encoder", ports=ports, bos=first, eos=last, add_bos=True, add_eos=True)


def has_tokenizer(pairs: Mapping[str, Any]) -> bool:
    """Whether a file has the tokens of its vocabulary."""
    return isinstance(pairs.get(f"{PREFIX}tokens"), list)


def tokenizer_data(pairs: Mapping[str, Any]) -> bytes:
    """The keys of the tokenizer as JSON, without their prefix."""
    own = {key.removeprefix(PREFIX): _plain(value) for key, value in pairs.items() if key.startswith(PREFIX)}
    return json.dumps(own, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """A value for JSON; numbers that are not finite, which no tokenizer has, become 0."""
    if isinstance(value, np.ndarray):
        return np.nan_to_num(value).tolist() if value.dtype.kind == "f" else value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _token(pairs: Mapping[str, Any], name: str) -> int | None:
    value = pairs.get(f"{PREFIX}{name}")
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _adds_bos(pairs: Mapping[str, Any]) -> bool:
    """Whether texts begin with the first token: as stated, else those of models of SentencePiece and WordPiece, and of
    Llama 3's kind do."""
    stated = pairs.get(f"{PREFIX}add_bos_token")
    kinds = pairs.get(f"{PREFIX}model") in ("llama", "bert") or pairs.get(f"{PREFIX}pre") in _BEGUN
    return stated if isinstance(stated, bool) else kinds


def _ends_by_name(pairs: Mapping[str, Any]) -> list[int]:
    """The tokens that end a turn of a conversation, which older files do not state."""
    tokens, kinds = pairs.get(f"{PREFIX}tokens"), pairs.get(f"{PREFIX}token_type")
    if not isinstance(tokens, list) or kinds is None or len(kinds) != len(tokens):
        return []
    return [i for i, name in enumerate(tokens) if name in _TURNS and int(kinds[i]) in _MARKS]
