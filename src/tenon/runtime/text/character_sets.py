"""Sets of Unicode characters, as they stand in regular expressions: one flag for each code point.

They follow the Unicode version of this Python: characters that it does not know belong to no category.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np

from tenon.errors import Problem, UnsupportedError
from tenon.network.graph.dtype import Array

CODE_POINTS = 0x110000
_SPACES = (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
_FOLDED = {"s": "\u017f", "k": "\u212a"}
"""Further characters that are letters of ASCII in another case."""


@cache
def categories() -> Array:
    """The general category of each code point, as two bytes of ASCII in a u16."""
    names = [unicodedata.category(chr(point)) for point in range(CODE_POINTS)]
    return np.frombuffer("".join(names).encode(), np.dtype("<u2"))


@cache
def category(name: str) -> Array:
    """The characters of a general category: "Lu", or "L" for all letters.  Raises UnsupportedError for others."""
    known = categories()
    first = known & 0xFF == ord(name[:1] or " ")
    chosen = first if len(name) == 1 else known == int.from_bytes(name.encode(), "little")
    if len(name) not in (1, 2) or not chosen.any():
        problem = Problem("tokenizer", f"the regular expression has a category '{name}'", "one of Unicode's is known")
        raise UnsupportedError("tokenizer", [problem])
    return np.asarray(chosen)


@cache
def spaces() -> Array:
    """White space, as Unicode has it."""
    return points(*_SPACES)


def points(*numbers: int) -> Array:
    """Some code points."""
    chosen = np.zeros(CODE_POINTS, np.bool_)
    chosen[list(numbers)] = True
    return chosen


def between(first: int, last: int) -> Array:
    """All code points from one to another."""
    chosen = np.zeros(CODE_POINTS, np.bool_)
    chosen[first : last + 1] = True
    return chosen


def letter(point: int, *, any_case: bool) -> Array:
    """A character, in both cases if ``any_case``."""
    text = chr(point)
    if not any_case or not text.isalpha():
        return points(point)
    forms = {text, text.lower(), text.upper(), *_FOLDED.get(text.lower(), "")}
    return points(*(ord(form) for form in forms if len(form) == 1))
