"""Grammars that the text of a model follows: which tokens may come next, by the library llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError, prefixed
from tenon.input_file import printable, read_regular
from tenon.network.graph.dtype import Array
from tenon.runtime.text.schema_rules import schema_rules
from tenon.runtime.text.tokenizer import TextTokenizer

_WHOLE = '%llguidance {"no_forcing": true}\n'
"""Lets the library allow all tokens that a grammar does: where one text must follow, it would allow only the first of
the tokens that the tokenizer makes of that text, which may begin with a space."""
_SCHEMA = f"{_WHOLE}start: %json "
"""The beginning of the text of a schema's grammar."""
ANY_JSON: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object."""


class TokenGrammars:
    """Makes grammars over the tokens of one model; ``eos`` ends a text.

    Raises InputError if the package ``llguidance`` is missing or no token ends a text.
    """

    def __init__(self, tokenizer: TextTokenizer, eos: tuple[int, ...], size: int) -> None:
        """``size`` is the number of logits."""
        if not eos:
            raise InputError("a grammar needs a token that ends the text, and the model states none")
        library = _library()
        self._size = size
        wrapped = library.TokenizerWrapper(_Tokens(tokenizer, eos, size))
        self._tokenizer = library.LLTokenizer(wrapped, n_vocab=size, eos_token=list(eos), slices=[])

    def parse(self, grammar: str) -> TokenGrammar:
        """A grammar that ``read_grammar`` or ``schema_grammar`` gives.  Raises InputError for one that is invalid."""
        matcher = _library().LLMatcher(self._tokenizer, grammar, log_level=0)
        if _SCHEMA in grammar and matcher.is_error():  # without the place, which is not one of the schema
            raise InputError(f"grammar: {matcher.get_error().splitlines()[0].rpartition('JSON schema: ')[2]}")
        return TokenGrammar(matcher, self._size)


class TokenGrammar:
    """Where a text stands in its grammar."""

    def __init__(self, matcher: Any, size: int) -> None:
        self._matcher = matcher
        self._words = np.zeros((size + 31) // 32, np.uint32)
        self._size = size
        self._check()

    def allowed(self) -> Array:
        """The tokens that may come next, bool[vocabulary]."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        return bits[: self._size].astype(np.bool_)

    def add(self, token: int) -> bool:
        """Go on by a token; whether the text is complete, so that none can follow."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"grammar: {self._matcher.get_error()}")


def read_grammar(path: Path) -> str:
    """The grammar in a file: a JSON schema (.json), Lark (.lark) or GBNF (.gbnf).  Raises InputError for others."""
    text = read_regular(path).decode("utf-8", "replace")
    library = _library()
    match path.suffix.lower():
        case ".json":
            return schema_grammar(text, printable(path))
        case ".lark":
            return str(library.LLMatcher.grammar_from_lark(text if "%llguidance" in text else _WHOLE + text))
        case ".gbnf":
            return rules_grammar(text, printable(path))
    raise InputError(f"{printable(path)}: a grammar is a JSON schema (.json), Lark (.lark) or GBNF (.gbnf)")


def read_rules(path: Path) -> str:
    """The grammar in a file, in GBNF as programs in C follow it: a JSON schema (.json) or GBNF (.gbnf).

    Raises InputError for others, and as ``schema_rules`` does; where the package ``llguidance`` is installed, for GBNF
    that is damaged, which else only the programs say.
    """
    text = read_regular(path).decode("utf-8", "replace")
    match path.suffix.lower():
        case ".json":
            try:
                content = json.loads(text)
            except ValueError as error:
                raise InputError(f"{printable(path)}: the schema is no JSON: {error}") from error
            try:
                return schema_rules(content)
            except InputError as error:
                raise prefixed(error, printable(path)) from error
        case ".gbnf":
            if find_spec("llguidance") is not None:
                rules_grammar(text, printable(path))
            return text
    raise InputError(f"{printable(path)}: the grammar of a bundle is a JSON schema (.json) or GBNF (.gbnf)")


def schema_grammar(schema: str | Mapping[str, Any], source: str = "grammar") -> str:
    """The grammar of JSON that has a schema.  Raises InputError for what is no JSON object."""
    try:
        content = json.loads(schema) if isinstance(schema, str) else dict(schema)
    except ValueError as error:
        raise InputError(f"{source}: the schema is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{source}: a schema is a JSON object")
    own = {**content, "x-guidance": {"whitespace_flexible": False}}
    return str(_library().LLMatcher.grammar_from_lark(f"{_SCHEMA}{json.dumps(own)}\n"))


def rules_grammar(text: str, source: str = "grammar") -> str:
    """The grammar that is written in GBNF.  Raises InputError for one that is damaged."""
    library = _library()
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        rules = gbnf_to_lark(text)
    except Exception as error:  # the library raises no other kind
        raise InputError(f"{source}: {error}") from error
    return str(library.LLMatcher.grammar_from_lark(rules.replace("%llguidance {}\n", _WHOLE, 1)))


class _Tokens:
    """The interface of a tokenizer as the library uses it."""

    def __init__(self, tokenizer: TextTokenizer, eos: tuple[int, ...], size: int) -> None:
        self.eos_token_id, self.bos_token_id = eos[0], None
        special = tokenizer.special | set(eos)
        pieces = [*tokenizer.pieces[:size], *[b""] * (size - len(tokenizer.pieces))]
        self.tokens = [b"" if number in special else piece for number, piece in enumerate(pieces)]
        self.special_token_ids = sorted(special)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(plain, special=False)


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise InputError("grammars need the package llguidance: pip install llguidance") from None
    return llguidance
