"""Regular expressions of JSON schemas as expressions in GBNF."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tenon.errors import InputError

_REPETITIONS = ("*", "+", "?", "{")
_LAST = 0x10FFFF
_DEEPEST = 24
_SPACES = (
    *((9, 13), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
"""White space of Unicode."""
_CLASSES = {"d": ((48, 57),), "w": ((48, 57), (65, 90), (95, 95), (97, 122)), "s": _SPACES}
_ESCAPES = dict(zip("afnrtv", "\a\f\n\r\t\v", strict=True))
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, _LAST))
"""The characters that stand in JSON as they are."""
_SIGNS = dict(zip('"\\\b\f\n\r\t', ('\\"', "\\\\", *"bfnrt"), strict=True))
"""The characters that a backslash and one sign stand for in JSON, with these signs in a class of GBNF."""
INSIDE, AT_END, OPEN = range(3)
"""Where an end of an expression stands: within the text; at its end; anywhere, so that more text may follow."""

Ranges = tuple[tuple[int, int], ...]
Length = tuple[int, int | None]
"""The fewest and the most characters; None: any number."""
_OfAll = Callable[[Iterable[int]], int]


@dataclass(frozen=True)
class PatternRule:
    """An expression in GBNF of the characters of strings, as JSON has them, in which a regular expression is found.

    It may mention the rules ``char`` (any character) and ``dot`` (any one but a line feed); ``length`` is that of the
    strings.
    """

    expression: str
    length: Length


def pattern_rules(pattern: str, least: int, most: int | None, limit: int) -> PatternRule:
    """Strings of ``least`` to ``most`` characters in which a regular expression is found; it repeats nothing more often
    than ``limit`` times.

    The dialect is that of llguidance: Rust's, with the digits and words of ASCII.  Raises InputError for categories,
    flags, looking around, word boundaries, operators of classes, and for limits that the expression does not imply
    unless it is one repeated class.
    """
    return _PatternRules(pattern, least, most, limit).pattern()


class _PatternRules:
    def __init__(self, pattern: str, least: int, most: int | None, limit: int, at: int = 0) -> None:
        self._pattern, self._least, self._most, self._limit, self._at = pattern, least, most, limit, at
        self._depth = 0

    def pattern(self) -> PatternRule:
        whole = self._whole_part()
        if whole is not None:
            return whole
        expression, length = self._alternatives(OPEN, OPEN)
        if self._at < len(self._pattern):
            self._refuse("')' without '('")
        if length[0] < self._least or (self._most is not None and (length[1] is None or length[1] > self._most)):
            raise unsupported("lengths beside a pattern that does not imply them")
        return PatternRule(expression, length)

    def _whole_part(self) -> PatternRule | None:
        """A class that is repeated, and is all that the pattern has, with its repetition cut to the limits."""
        if self._least == 0 and self._most is None:
            return None
        reader = _PatternRules(self._pattern, 0, None, self._limit)
        if not reader._anchors("^", "A") or reader._peek() in ("", "(", "|", "$"):
            return None
        atom, _ = reader._atom(INSIDE, INSIDE)
        if not reader._repeats():
            return None
        least, most = reader._times()
        if not reader._anchors("$", "z") or reader._at < len(self._pattern):
            return None
        least = max(least, self._least)
        most = self._most if most is None or (self._most is not None and self._most < most) else most
        if most is not None and most < least:
            raise unsupported("a schema that has no values")
        return PatternRule(f"{atom}{_repeated(least, most)}", (least, most))

    def _refuse(self, what: str) -> NoReturn:
        raise unsupported(f"{what} (the pattern {self._pattern!r})")

    def _peek(self, ahead: int = 0) -> str:
        return self._pattern[self._at + ahead : self._at + ahead + 1]

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1 : self._at]

    def _skip(self, text: str) -> bool:
        begins = self._pattern.startswith(text, self._at)
        self._at += len(text) if begins else 0
        return begins

    def _alternatives(self, start: int, end: int) -> tuple[str, Length]:
        parts = [self._sequence(start, end)]
        while self._skip("|"):
            parts.append(self._sequence(start, end))
        return " | ".join(part for part, _ in parts), _combined([length for _, length in parts], min, max)

    def _sequence(self, start: int, end: int) -> tuple[str, Length]:
        """Parts one after another.

        Where an end is open and no anchor is there, any characters come before or behind; a group at an end has these
        in its own alternatives, so that some of them can have anchors.
        """
        parts, lengths = list[str](), list[Length]()
        if self._anchors("^", "A"):
            if start == INSIDE:
                self._refuse("an anchor within the text")
            start = AT_END
        count = 0
        while self._peek() not in ("", "|", ")"):
            if self._anchors("$", "z"):
                if end == INSIDE or self._peek() not in ("", "|", ")"):
                    self._refuse("an anchor within the text")
                end = AT_END
                break
            ahead = _PatternRules(self._pattern, 0, None, self._limit, self._at)
            ahead._skip_atom()
            is_group = self._peek() == "(" and not ahead._repeats()
            while ahead._repeats():
                ahead._times()
            is_last = ahead._peek() in ("", "|", ")")
            is_anchored = end != INSIDE and ahead._anchors("$", "z") and ahead._peek() in ("", "|", ")")
            if start == OPEN and not is_group:
                parts.append("char*")
                lengths.append((0, None))
                start = INSIDE
            part, length = self._part(start, end if is_last else AT_END if is_anchored else INSIDE)
            parts.append(part)
            lengths.append(length)
            count += 1
            if is_last and is_group:
                end = AT_END
            start = INSIDE
        if end == OPEN or (start == OPEN and count == 0):
            parts.append("char*")
            lengths.append((0, None))
        return " ".join(parts) or '""', _combined(lengths, sum, sum)

    def _anchors(self, sign: str, letter: str) -> bool:
        begin = self._at
        while self._skip(sign) or self._skip("\\" + letter):
            pass
        return self._at > begin

    def _skip_atom(self) -> None:
        """Skip an atom, without checking it."""
        depth = 0
        while True:
            sign = self._next()
            if not sign:
                return
            if sign == "\\":
                self._skip_escape()
            if sign == "[":
                self._skip("^")
                first = True
                while self._peek() and (first or self._peek() != "]"):
                    first = False
                    if self._next() == "\\":
                        self._next()
                self._next()
            depth += (sign == "(") - (sign == ")")
            if depth <= 0:
                return

    def _skip_escape(self) -> None:
        kind = self._next()
        if kind in (*"xuUpP",) and self._peek() == "{":
            while self._peek() and self._next() != "}":
                pass
        else:
            self._at += {"x": 2, "u": 4, "U": 8}.get(kind, 0)

    def _part(self, start: int, end: int) -> tuple[str, Length]:
        """An atom with its repetitions."""
        ahead = _PatternRules(self._pattern, 0, None, self._limit, self._at)
        ahead._skip_atom()
        text, length = self._atom(INSIDE, INSIDE) if ahead._repeats() else self._atom(start, end)
        count = 0
        while self._repeats():
            times = self._times()
            text = f"({text})" if count > 0 else text
            text += _repeated(*times)
            most = 0 if 0 in (length[1], times[1]) else None
            if length[1] is not None and times[1] is not None:
                most = length[1] * times[1]
            length = (length[0] * times[0], most)
            count += 1
        if count > _DEEPEST:
            self._refuse("too many repetitions of each other")
        return text, length

    def _repeats(self) -> bool:
        """Whether a repetition is next."""
        return self._peek() in _REPETITIONS

    def _times(self) -> Length:
        """A repetition; one that takes as little as possible matches the same texts."""
        sign = self._next()
        times: Length = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, 0))
        if sign == "{":
            least = self._number()
            most: int | None = least
            if self._skip(","):
                most = None if self._peek() == "}" else self._number()
            if not self._skip("}"):
                self._refuse("a repetition without '}'")
            if most is not None and most < least:
                self._refuse("a repetition whose smaller number is the second")
            times = (least, most)
        self._skip("?")
        return times

    def _number(self) -> int:
        begin = self._at
        while self._peek() and self._peek() in string.digits:
            self._at += 1
        if begin == self._at:
            self._refuse("a repetition without a number")
        number = int(self._pattern[begin : self._at][:9])
        if self._at - begin > 9 or number > self._limit:
            self._refuse(f"a repetition above {self._limit}")
        return number

    def _group(self, start: int, end: int) -> tuple[str, Length]:
        if self._depth == _DEEPEST:
            self._refuse("too many groups in each other")
        self._next()
        if self._skip("?") and not self._skip(":"):
            self._skip("P")
            if not self._skip("<") or self._peek() not in string.ascii_letters:
                self._refuse("a group of a kind that they lack")
            while self._peek() and self._next() != ">":
                pass
        self._depth += 1
        expression, length = self._alternatives(start, end)
        self._depth -= 1
        if not self._skip(")"):
            self._refuse("a group without end")
        return f"({expression})", length

    def _atom(self, start: int, end: int) -> tuple[str, Length]:
        if self._peek() == "(":
            return self._group(start, end)
        sign = self._next()
        if sign in ("^", "$"):
            self._refuse("an anchor within the text")
        if sign in _REPETITIONS:
            self._refuse("a repetition of nothing")
        if sign == ".":
            return "dot", (1, 1)
        ranges = self._class() if sign == "[" else self._escape() if sign == "\\" else ((ord(sign), ord(sign)),)
        return self._set(ranges), (1, 1)

    def _class(self) -> Ranges:
        """The rest of a class in brackets."""
        negated, chosen, first = self._skip("^"), list[tuple[int, int]](), True
        while first or self._peek() != "]":
            sign, begin = self._peek(), self._pattern[self._at : self._at + 2]
            item = self._item()
            chosen += item
            is_first, first = first, False
            if is_first and (sign == "]" or (sign == "-" and self._peek() != "-")):
                continue
            if sign in ("&", "~", "-") and self._peek() == sign:
                self._refuse("operators of classes")
            is_one = not (begin[:1] == "\\" and begin[1:].lower() in ("d", "w", "s"))
            if self._peek() != "-" or self._peek(1) == "]" or not (is_one or begin in ("\\s", "\\S")):
                continue
            self._at += 1
            begin = self._pattern[self._at : self._at + 2]
            if not is_one or self._peek() == "-" or (begin[:1] == "\\" and begin[1:].lower() in ("d", "w", "s")):
                self._refuse("a range without a first or last character")
            last = self._item()
            if last[0][0] < item[0][0]:
                self._refuse("a range whose larger character is the first")
            chosen[-1] = (item[0][0], last[0][0])
        self._at += 1
        return _negated(chosen) if negated else _sorted(chosen)

    def _item(self) -> Ranges:
        sign = self._next()
        if not sign:
            self._refuse("a class without end")
        if sign == "[":
            self._refuse("classes in classes")
        return self._escape() if sign == "\\" else ((ord(sign), ord(sign)),)

    def _escape(self) -> Ranges:
        """The characters that an escape means, read from behind its backslash."""
        sign = self._next()
        if sign and sign in "dwsDWS":
            own = _CLASSES[sign.lower()]
            return own if sign.islower() else _negated(own)
        if sign and sign in "xuU":
            point = self._hexadecimal({"x": 2, "u": 4, "U": 8}[sign])
        elif sign in _ESCAPES:
            point = ord(_ESCAPES[sign])
        elif not sign or sign.isalnum() or ord(sign) >= 0x80 or sign in "<>":
            self._refuse(f"the escape \\{sign}")
        else:
            point = ord(sign)
        return ((point, point),)

    def _hexadecimal(self, digits: int) -> int:
        if self._skip("{"):
            end = self._pattern.find("}", self._at)
            text = self._pattern[self._at : end] if end >= 0 else ""
            self._at = end + 1
        else:
            text = self._pattern[self._at : self._at + digits]
            self._at += digits
            text = text if len(text) == digits else ""
        point = int(text[-9:], 16) if text and all(c in string.hexdigits for c in text) else _LAST + 1
        if point > _LAST or 0xD800 <= point < 0xE000 or text[:-9].strip("0"):
            self._refuse("an escape of no character")
        return point

    def _set(self, ranges: Iterable[tuple[int, int]]) -> str:
        """An expression of a set of characters."""
        chosen = _sorted(ranges)
        if not chosen:
            self._refuse("a class without characters")
        if chosen == ((0, _LAST),):
            return "char"
        plain = [
            (max(low, first), min(high, last))
            for low, high in chosen
            for first, last in _PLAIN
            if max(low, first) <= min(high, last)
        ]
        ways = [f"[{''.join(_point(low) + ('-' + _point(high) if high > low else '') for low, high in plain)}]"]
        escaped = [c for c in (*range(32), *b'"\\', 0x7F) if any(low <= c <= high for low, high in chosen)]
        if not escaped:
            return ways[0]
        signs = "".join(sign for c, sign in _SIGNS.items() if ord(c) in escaped)
        escapes = [f"[{signs}]"] if signs else []
        for first in (0, 1, 7):
            digits = [f"{c & 15:x}" for c in escaped if c >> 4 == first and c not in b'"\\']
            if digits:
                escapes.append(f'"u00{first}" [{"".join(d + d.upper() if d.isalpha() else d for d in digits)}]')
        ways = [*(ways if plain else []), rf'"\\" ({" | ".join(escapes)})']
        return f"({' | '.join(ways)})"


def _combined(lengths: Sequence[Length], fewest: _OfAll, largest: _OfAll) -> Length:
    """The length of expressions together, by functions of the fewest characters of all and of the most."""
    most = [each[1] for each in lengths if each[1] is not None]
    return fewest([each[0] for each in lengths]), largest(most) if len(most) == len(lengths) else None


def _point(point: int) -> str:
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _sorted(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as ranges in order, none of which touch."""
    chosen = list[tuple[int, int]]()
    for low, high in sorted(ranges):
        if chosen and low <= chosen[-1][1] + 1:
            chosen[-1] = (chosen[-1][0], max(high, chosen[-1][1]))
        else:
            chosen.append((low, high))
    return tuple(chosen)


def _negated(ranges: Iterable[tuple[int, int]]) -> Ranges:
    chosen = _sorted(ranges)
    starts = [0, *(high + 1 for _, high in chosen)]
    ends = [*(low - 1 for low, _ in chosen), _LAST]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def _repeated(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def unsupported(what: str) -> InputError:
    """The error of a schema that programs in C cannot follow."""
    return InputError(f"grammar: programs in C lack {what}: use other keywords, or write the grammar in GBNF")
