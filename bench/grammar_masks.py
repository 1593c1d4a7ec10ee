#!/usr/bin/env python3
"""Microseconds that a grammar's mask costs for each token, in C and by the library llguidance, interleaved.

    python bench/grammar_masks.py [--vocabulary 49152,151936] [--repeat 3]

The tokenizers are byte-level BPE, trained on the Python files of this interpreter.  For each schema or grammar, a text
that follows it is read token by token: a mask is made before each one, and then the grammar goes on by the token.
Prints milliseconds of processor time to open a grammar, microseconds for a token (its mask and going on by it), and
those of the slowest mask: the least of the repetitions, each of which opens the grammar again.  "llguidance" makes bits
only, "Python" is what a Generator does with them.  The first line has the seconds to make the tables for C, and
llguidance's own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from tenon.runtime.text.grammar import TokenGrammars, rules_grammar, schema_grammar  # noqa: E402
from tenon.runtime.text.text_tables import text_tables  # noqa: E402
from tenon.runtime.text.tokenizer import TextTokenizer  # noqa: E402
from text_in_c import GrammarInC, TextInC, library  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "born": {"type": "string", "format": "date"},
        "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(com|org)$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 8},
        "notes": {"type": "string"},
    },
    "required": ["name", "born", "mail", "age", "tags", "notes"],
    "additionalProperties": False,
}
ONE = {
    "name": "Ada King of Lovelace",
    "born": "1815-12-10",
    "mail": "ada@analytical.org",
    "age": 36,
    "tags": ["red", "blue"],
    "notes": "She wrote the first programs, for a machine that was never built; they computed numbers of Bernoulli.",
}
RULES = r"""root ::= sum
sum ::= product (("+" | "-") product)*
product ::= value (("*" | "/") value)*
value ::= [0-9]+ ("." [0-9]+)? | name | "(" sum ")"
name ::= [a-z] [a-z0-9]* ("(" sum ("," sum)* ")")?
"""
CASES: dict[str, tuple[dict[str, Any] | str, str]] = {
    "person": (PERSON, json.dumps(ONE, separators=(",", ":"))),
    "any object": ({"type": "object"}, json.dumps({"a": [ONE, {"b": None}], "c": 1.5e3}, separators=(",", ":"))),
    "arithmetic": (RULES, "3*(x1+sqrt(2.25,y))/(alpha-17)*(4+beta(1,2,(z)))"),
}


def trained(size: int) -> TextTokenizer:
    """A tokenizer with so many tokens, and one that ends texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    files = sorted(Path(json.__file__).parents[1].rglob("*.py"))
    tokenizer.train_from_iterator((path.read_text("utf-8", "replace") for path in files), trainer)
    return TextTokenizer(json.loads(tokenizer.to_str()))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time, and the result."""
    begin = process_time()
    result = call()
    return process_time() - begin, result


class InC:
    """A grammar in C, whose masks are made without NumPy's arrays."""

    def __init__(self, text: TextInC, source: str, size: int) -> None:
        self.grammar, self._size = GrammarInC(text, source), size
        self._functions, self._logits = text._functions, np.zeros(size, np.float32)
        self._state, self._place = ctypes.byref(self.grammar._state), ctypes.c_void_p(self._logits.ctypes.data)

    def mask(self) -> None:
        self._functions.tenon_text_grammar_mask(self._state, self._place, ctypes.c_uint32(self._size))

    def add(self, token: int) -> None:
        self.grammar.add(token)


class ByLibrary:
    """The same by llguidance: its mask of bits alone, or with Python's array of booleans."""

    def __init__(self, grammars: TokenGrammars, source: str, *, whole: bool) -> None:
        self.grammar = grammars.parse(source)
        words = self.grammar._words
        place, size = words.ctypes.data, words.nbytes
        bits = self.grammar._matcher.unsafe_compute_mask_ptr
        self.mask: Callable[[], object] = self.grammar.allowed if whole else lambda: bits(place, size)

    def add(self, token: int) -> None:
        self.grammar.add(token)


def read(opened: Callable[[], InC | ByLibrary], tokens: list[int]) -> tuple[float, float, float]:
    """Milliseconds to open a grammar, microseconds for a token of a text, and those of the slowest mask."""
    seconds, grammar = timed(opened)
    masks = list[float]()
    adding = 0.0
    for token in tokens:
        masks.append(timed(grammar.mask)[0])
        adding += timed(lambda token=token: grammar.add(token))[0]  # type: ignore[misc]
    return seconds * 1e3, (sum(masks) + adding) / len(tokens) * 1e6, max(masks) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", default="49152,151936")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        functions = library(Path(folder), "-O2")
        for size in map(int, given.vocabulary.split(",")):
            tokenizer = trained(size)
            count = len(tokenizer.pieces)
            made, tables = timed(lambda t=tokenizer: text_tables(t.definition, [0]))  # type: ignore[misc]
            of_library, grammars = timed(lambda t=tokenizer, n=count: TokenGrammars(t, (0,), n))  # type: ignore[misc]
            text = TextInC(functions, tables)
            print(f"{count} tokens: tables {made:.2f} s ({len(tables) / 1e6:.1f} MB), library {of_library:.2f} s")
            for name, (source, wanted) in CASES.items():
                tokens = tokenizer.encode(wanted, special=False)
                rules = source if isinstance(source, str) else json.dumps(source)
                other = rules_grammar(source) if isinstance(source, str) else schema_grammar(source)
                ways: dict[str, Callable[[], InC | ByLibrary]] = {
                    "C": lambda r=rules, t=text, n=count: InC(t, r, n),  # type: ignore[misc]
                    "llguidance": lambda o=other, g=grammars: ByLibrary(g, o, whole=False),  # type: ignore[misc]
                    "Python": lambda o=other, g=grammars: ByLibrary(g, o, whole=True),  # type: ignore[misc]
                }
                times = {way: list[tuple[float, float, float]]() for way in ways}
                for _ in range(given.repeat):
                    for way, opened in ways.items():
                        times[way].append(read(opened, tokens))
                for way, own in times.items():
                    opening, each, longest = (min(values) for values in zip(*own, strict=True))
                    print(
                        f"  {name:11} {len(tokens):4} tokens  {way:10}  open {opening:7.2f} ms  "
                        f"{each:8.1f} us a token, slowest mask {longest:8.1f} us"
                    )


if __name__ == "__main__":
    main()
