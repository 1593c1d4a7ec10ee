"""The syntax of RE2's regular expressions: a pattern as a tree."""

from __future__ import annotations

from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""Ranges of characters, sorted and disjoint."""

LAST = 0x10FFFF
_MAX_REPEATS = 1000  # as in RE2
_MAX_DEPTH = 100

_DIGIT: Ranges = ((48, 57),)
_SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_CLASSES = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_NAMED = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_ESCAPES = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ASSERTIONS = {"A": "begin", "z": "end", "b": "word", "B": "inside"}


class PatternError(Exception):
    """A pattern that cannot be compiled; the message says why."""


@dataclass(frozen=True)
class Characters:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Assertion:
    """Nothing, where ``kind`` holds: begin, end, line_begin, line_end, word (a boundary), inside (none)."""

    kind: str


@dataclass(frozen=True)
class Concatenation:
    """A concatenation."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Alternatives:
    """An alternation."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class RegexRepeat:
    """A repetition, at least and at most so often; without ``maximum``, unbounded."""

    part: Tree
    minimum: int
    maximum: int | None


Tree = Characters | Assertion | Concatenation | Alternatives | RegexRepeat


def parse(pattern: str) -> Tree:
    """The tree of a pattern.  Raises PatternError."""
    parser = _Parser(pattern)
    tree = parser.alternatives()
    if parser.at < len(pattern):
        raise parser.error("a closing parenthesis without an opening one")
    return tree


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """The same characters as sorted, disjoint ranges."""
    merged_ranges: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged_ranges and low <= merged_ranges[-1][1] + 1:
            merged_ranges[-1] = merged_ranges[-1][0], max(high, merged_ranges[-1][1])
        else:
            merged_ranges.append((low, high))
    return tuple(merged_ranges)


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps, at = [], 0
    for low, high in ranges:
        if low > at:
            gaps.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        gaps.append((at, LAST))
    return tuple(gaps)


class _Parser:
    """A pattern and how far it is read; ``flags`` are those of i, m and s that are set."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.flags: frozenset[str] = frozenset()

    def error(self, what: str) -> PatternError:
        return PatternError(f"{what} at position {self.at} of '{self.pattern}'")

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def next(self, what: str) -> str:
        if self.at >= len(self.pattern):
            raise self.error(f"the pattern ends within {what}")
        self.at += 1
        return self.pattern[self.at - 1]

    # ---------------------------------------------------------------------------------------- structure
    def alternatives(self) -> Tree:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def sequence(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            part = self.atom()
            if part is not None:
                parts.append(self.repeated(part))
        return Concatenation(tuple(parts))

    def repeated(self, part: Tree) -> Tree:
        """An atom and its repetition.  Greedy or lazy makes no difference to a full match."""
        limits = self.limits()
        if limits is None:
            return part
        self.take("?")
        if self.limits() is not None:
            raise self.error("a repetition of a repetition")
        return RegexRepeat(part, *limits)

    def limits(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return bounds
        end = self.pattern.find("}", self.at)
        if not self.peek("{") or end < 0:
            return None
        first, comma, last = self.pattern[self.at + 1 : end].partition(",")
        if not _is_number(first) or (last and not _is_number(last)):
            return None  # a brace that stands for itself
        minimum = int(first)
        maximum = (int(last) if last else None) if comma else minimum
        if max(minimum, maximum or 0) > _MAX_REPEATS or (maximum is not None and maximum < minimum):
            raise self.error(f"a repetition of more than {_MAX_REPEATS} times, or of fewer than the least")
        self.at = end + 1
        return minimum, maximum

    def atom(self) -> Tree | None:
        """The next part; None for flags alone."""
        c = self.next("the pattern")
        if c == "(":
            return self.group()
        if c == "[":
            return self.characters(self.bracket())
        if c == ".":
            return Characters(((0, LAST),) if "s" in self.flags else complement(((10, 10),)))
        if c == "^":
            return Assertion("line_begin" if "m" in self.flags else "begin")
        if c == "$":
            return Assertion("line_end" if "m" in self.flags else "end")
        if c in "*+?":
            raise self.error(f"nothing that '{c}' could repeat")
        if c == "\\":
            return self.escape()
        return self.characters(((ord(c), ord(c)),))

    def group(self) -> Tree | None:
        outside = self.flags
        if self.take("?"):
            if self.take("P<") or (self.take("<") and not self.peek("=") and not self.peek("!")):
                while self.next("a group's name") != ">":
                    pass
            elif self.set_flags():
                return None
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error("groups nested too deep")
        tree = self.alternatives()
        if not self.take(")"):
            raise self.error("a group that is not closed")
        self.depth -= 1
        self.flags = outside
        return tree

    def set_flags(self) -> bool:
        """Reads ``i``, ``-s:`` and the like; whether they hold for the rest of the group around."""
        on, flags = True, set(self.flags)
        while (c := self.next("a group's flags")) not in ":)":
            if c == "-":
                on = False
            elif c in "imsU":
                (flags.add if on else flags.discard)(c)
            else:
                raise self.error(f"(?{c} is not supported (nor is it in RE2, if it looks around or back)")
        self.flags = frozenset(flags)
        return c == ")"

    # --------------------------------------------------------------------------------------- characters
    def characters(self, ranges: Ranges) -> Characters:
        return Characters(_folded(ranges) if "i" in self.flags else ranges)

    def escape(self) -> Tree:
        c = self.next("an escape")
        if c in _ASSERTIONS:
            return Assertion(_ASSERTIONS[c])
        if c == "Q":
            end = self.pattern.find("\\E", self.at)
            text = self.pattern[self.at : end if end >= 0 else len(self.pattern)]
            self.at = end + 2 if end >= 0 else len(self.pattern)
            return Concatenation(tuple(self.characters(((ord(t), ord(t)),)) for t in text))
        return self.characters(self.escaped(c))

    def escaped(self, c: str) -> Ranges:
        """The characters that an escape stands for, inside or outside of brackets."""
        if c.lower() in _CLASSES:
            ranges = _CLASSES[c.lower()]
            return ranges if c.islower() else complement(ranges)
        code = self.code(c)
        return ((code, code),)

    def code(self, c: str) -> int:
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c == "x":
            if self.take("{"):
                end = self.pattern.find("}", self.at)
                digits, self.at = self.pattern[self.at : max(end, self.at)], max(end, self.at) + 1
            else:
                digits, self.at = self.pattern[self.at : self.at + 2], self.at + 2
            if not digits or not all(d in "0123456789abcdefABCDEF" for d in digits) or int(digits, 16) > LAST:
                raise self.error("\\x without the number of a character")
            return int(digits, 16)
        if c.isascii() and c.isalnum():
            raise self.error(f"\\{c} is not supported")
        return ord(c)

    def bracket(self) -> Ranges:
        """A character class in square brackets."""
        negated, characters, first = self.take("^"), list[tuple[int, int]](), True
        while first or not self.peek("]"):
            first = False
            if self.peek("[:"):
                characters += self.named()
                continue
            c = self.next("square brackets")
            ranges = self.escaped(self.next("an escape")) if c == "\\" else ((ord(c), ord(c)),)
            low = ranges[0][0]
            if self.peek("-") and not self.peek("-]") and ranges == ((low, low),):
                self.at += 1
                c = self.next("square brackets")
                high = self.code(self.next("an escape")) if c == "\\" else ord(c)
                if high < low:
                    raise self.error("a range that ends before it begins")
                ranges = ((low, high),)
            characters += ranges
        self.at += 1
        ranges = merged(characters)
        if "i" in self.flags:
            ranges = _folded(ranges)
        return complement(ranges) if negated else ranges

    def named(self) -> Ranges:
        """A named class such as [:alpha:]."""
        end = self.pattern.find(":]", self.at)
        name = self.pattern[self.at + 2 : max(end, 0)]
        negated, plain = name.startswith("^"), name.removeprefix("^")
        if plain not in _NAMED:
            raise self.error(f"no class of characters is called [:{plain}:]")
        self.at = end + 2
        return complement(_NAMED[plain]) if negated else _NAMED[plain]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _folded(ranges: Ranges) -> Ranges:
    """Case folding: with the other case of each letter, where that is a single character."""
    folded = list(ranges)
    for low, high in ranges:
        for code in range(low, min(high, 0x24FF) + 1):  # no letters with cases but few of old scripts are beyond
            folded += [(ord(c), ord(c)) for c in (chr(code).lower(), chr(code).upper()) if len(c) == 1]
    return merged(folded)
