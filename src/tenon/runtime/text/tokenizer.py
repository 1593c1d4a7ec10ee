"""Text to tokens and back, by the ``tokenizers`` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tenon.errors import FormatError, InputError
from tenon.network.graph.text_model import TextModel
from tenon.runtime.text.gguf_tokenizer import metadata, tokenizer_json
from tenon.runtime.text.token_bytes import token_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


class TextTokenizer:
    """The tokenizer of a model.

    ``definition`` is the content of its tokenizer.json, ``pieces`` the bytes of each token.  Raises FormatError for a
    damaged definition, InputError if the package ``tokenizers`` is missing.
    """

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self.definition = definition
        self._library = _library(definition)  # first: it checks all of the definition
        with damage("the settings of the tokenizer"):
            self.pieces = token_bytes(definition)

    @classmethod
    def of(cls, model: TextModel) -> TextTokenizer:
        """The tokenizer of a model.  Raises InputError if it has none."""
        return cls(definition_of(model))

    @cached_property
    def special(self) -> frozenset[int]:
        """Tokens that stand for no text: beginnings and ends."""
        return frozenset(each["id"] for each in self.definition.get("added_tokens") or () if each.get("special"))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; with ``special``, those that the model expects around every text too.

        Special tokens that are written in the text ("<|im_end|>") are read as such.  Raises InputError for a text with
        half a surrogate pair, which Python makes of bytes that are no UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not valid UTF-8 at character {error.start + 1}") from None
        with _failures("fails"):
            return list(self._library.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; with ``special``, special tokens by their names."""
        return self.bytes_of(tokens, special=special).decode("utf-8", "replace")

    def bytes_of(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The same as UTF-8, which a token may end in the middle of a character."""
        left_out = frozenset[int]() if special else self.special
        return b"".join(self.pieces[token] for token in tokens if token not in left_out)

    def name(self, number: int) -> str:
        """The name of a token; "" if there is no such token."""
        return str(self._library.id_to_token(number) or "")

    def number(self, name: str) -> int | None:
        """The number of a token by its name; None if there is no such token."""
        number = self._library.token_to_id(name)
        return None if number is None else int(number)


def definition_of(model: TextModel) -> dict[str, Any]:
    """The content of the model's tokenizer.json.  Raises InputError if the model has no tokenizer."""
    source = model.tokenizer
    if source is None:
        raise InputError("the model has no tokenizer: put its tokenizer.json beside it")
    if source.form == "gguf":
        begin = [model.bos] if model.add_bos and model.bos is not None else []
        end = list(model.eos[:1]) if model.add_eos else []
        with damage("the tokenizer's metadata"):
            return tokenizer_json(metadata(source.content), begin, end)
    if source.form == "sentencepiece":
        raise InputError("a tokenizer.model cannot be read: put the model's tokenizer.json beside it")
    try:
        definition = json.loads(source.content)
    except ValueError as error:
        raise FormatError(f"tokenizer.json: it is no JSON: {error}") from error
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        raise FormatError("tokenizer.json: it has no model")
    return definition


@contextmanager
def damage(what: str) -> Iterator[None]:
    """Errors of reading JSON of another form than it should have, as FormatError."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, StopIteration) as error:
        raise FormatError(f"{what} are damaged: {type(error).__name__} {error}") from error


def _library(definition: Mapping[str, Any]) -> Library:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise InputError("text needs the package tokenizers: pip install tokenizers") from None
    plain = {**definition, "truncation": None, "padding": None}
    with _failures("cannot read it"):
        return Library.from_str(json.dumps(plain))


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Errors of the library as FormatError: it raises Exception itself, and where it panics a BaseException."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise FormatError(f"tokenizer.json: the library tokenizers {what}: {error}") from error
        raise


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens with which both begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(first), len(second)))
