"""Regular expressions of tokenizers, read to instructions of a matcher.

The dialect is that of the expressions which tokenizers have: characters, classes and categories, groups, alternatives,
greedy quantifiers, and lookahead at one character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from tenon.errors import Problem, UnsupportedError
from tenon.network.graph.dtype import Array
from tenon.runtime.text.character_sets import CODE_POINTS, between, category, letter, points, spaces

MAX_REPEAT = 100
_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}


@dataclass(frozen=True, eq=False)
class Take:
    """One character of a set."""

    characters: Array


@dataclass(frozen=True, eq=False)
class Behind:
    """Nothing, in front of a character of a set; ``end``: or of the end of the text."""

    characters: Array
    end: bool


@dataclass(frozen=True)
class Consecutive:
    """Parts one after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class OneOf:
    """The first of some parts with which the whole matches."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class ManyTimes:
    """A part again and again, as often as possible: ``least`` to ``most`` times (None: any number)."""

    part: Node
    least: int
    most: int | None


Node = Take | Behind | Consecutive | OneOf | ManyTimes


def parse_pattern(pattern: str) -> Node:
    """The tree of a regular expression.  Raises UnsupportedError for what the dialect lacks."""
    reader = _PatternReader(pattern)
    tree = reader.choice()
    if reader.rest:
        reader.refuse()
    return tree


@dataclass
class _PatternReader:
    pattern: str
    at: int = 0
    any_case: bool = field(default=False)

    @property
    def rest(self) -> str:
        return self.pattern[self.at :]

    def refuse(self) -> NoReturn:
        what = f"the regular expression has '{self.rest[:12]}'"
        raise UnsupportedError("tokenizer", [Problem("tokenizer", what, "the tables in C lack it")])

    def skip(self, text: str) -> bool:
        """Whether the rest begins with a text, which is then skipped."""
        begins = self.pattern.startswith(text, self.at)
        self.at += len(text) if begins else 0
        return begins

    def choice(self) -> Node:
        parts = [self.sequence()]
        while self.skip("|"):
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else OneOf(tuple(parts))

    def sequence(self) -> Node:
        parts = list[Node]()
        while self.rest and self.rest[0] not in "|)":
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else Consecutive(tuple(parts))

    def repeated(self) -> Node:
        part = self.atom()
        match = re.compile(r"\*|\+|\?|\{(\d+)(,?)(\d*)\}").match(self.pattern, self.at)
        if match is None:
            return part
        self.at = match.end()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(match[0], (int(match[1] or 0), None))
        if match[1]:
            most = int(match[3]) if match[3] else None if match[2] else least
        if self.rest[:1] in ("+", "?", "*") or max(least, most or 0) > MAX_REPEAT:
            self.refuse()
        return ManyTimes(part, least, most)

    def atom(self) -> Node:
        for opening, ahead in (("(?!", False), ("(?=", True)):
            if self.skip(opening):
                return self.lookahead(ahead)
        for opening, any_case in (("(?i:", True), ("(?:", self.any_case), ("(", self.any_case)):
            if self.pattern.startswith("(?", self.at) and opening == "(":
                self.refuse()
            if self.skip(opening):
                return self.group(any_case)
        if self.skip("$"):
            return Behind(points(10), end=True)  # as Oniguruma has it: the end of a line
        if self.rest[0] in "^*+?{":
            self.refuse()
        if self.skip("["):
            return Take(self.members())
        return Take(~points(10) if self.skip(".") else self.characters())

    def group(self, any_case: bool) -> Node:
        before, self.any_case = self.any_case, any_case
        inner = self.choice()
        self.any_case = before
        self.close()
        return inner

    def lookahead(self, ahead: bool) -> Node:
        inner = self.choice()
        self.close()
        if not isinstance(inner, Take):
            self.refuse()
        return Behind(inner.characters if ahead else ~inner.characters, end=not ahead)

    def close(self) -> None:
        if not self.skip(")"):
            self.refuse()

    def characters(self) -> Array:
        """The set that an escape or a character stands for."""
        if self.rest[0] == "\\":
            return self.escape()
        self.at += 1
        return letter(ord(self.pattern[self.at - 1]), any_case=self.any_case)

    def members(self) -> Array:
        """The rest of a class in brackets."""
        negated, chosen = self.skip("^"), np.zeros(CODE_POINTS, np.bool_)
        while not self.skip("]"):
            if not self.rest or self.rest[0] == "[":
                self.refuse()
            begin = self.at
            part = self.characters()
            first = int(part.argmax())
            if self.rest[:1] == "-" and self.rest[1:2] not in ("]", "") and self.pattern[begin : begin + 2] != "\\p":
                self.at += 1
                last = int(self.characters().argmax())
                part = between(first, last)
            chosen = chosen | part
        return ~chosen if negated else chosen

    def escape(self) -> Array:
        match = re.compile(r"\\(?:([pP])\{(\^?)(\w+)\}|x\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})|(.))", re.DOTALL).match(
            self.pattern, self.at
        )
        if match is None:
            self.refuse()
        self.at = match.end()
        if match[1]:
            chosen = category(match[3])
            return ~chosen if (match[1] == "P") != bool(match[2]) else chosen
        if match[4] or match[5]:
            return letter(int(match[4] or match[5], 16), any_case=self.any_case)
        return self.named(match[6])

    def named(self, name: str) -> Array:
        if name.lower() in ("s", "d"):
            chosen = spaces() if name in "sS" else category("Nd")
            return ~chosen if name.isupper() else chosen
        if name in _ESCAPES:
            return points(_ESCAPES[name])
        if name.isalnum():
            self.at -= 2
            self.refuse()
        return points(ord(name))
