"""Text in lines of a width that a terminal shows, in which a Chinese character takes two columns."""

from __future__ import annotations

import re
import unicodedata

_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
_CLOSING = "\uff0c\u3002\uff1b\uff1a\u3001\uff09\u300d\u300b\uff1f\uff01\u201d"  # ，。；：、）」》？！”
_OPENING = "\uff08\u300c\u300a\u201c"  # （「《“
_UNIT = re.compile(
    rf"\s+|[{_OPENING}]*(?![{_OPENING}])[{_WIDE}][{_CLOSING}]*|[{_OPENING}]*[^\s|{_WIDE}{_OPENING}{_CLOSING}]+\|?[{_CLOSING}]*|."
)
"""A part of a text between two places where a line may end: spaces, a word, a Chinese character with the punctuation
that must not begin a line."""


def columns(text: str) -> int:
    """The number of columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, width: int) -> str:
    """The text with spaces after it, up to ``width`` columns."""
    return text + " " * (width - columns(text))


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, each of at most ``width`` columns; only a word that is longer is cut."""
    lines, line, used = [], "", 0
    for unit in _units(text, width):
        size = columns(unit)
        if used + columns(unit.rstrip()) > width:
            lines.append(line.rstrip())
            line, used = "", 0
            if unit.isspace():
                continue
        line, used = line + unit, used + size
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _units(text: str, width: int) -> list[str]:
    units = []
    for unit in _UNIT.findall(text):
        while columns(unit) > width and not unit.isspace():
            head = unit[:width]
            while columns(head) > width:
                head = head[:-1]
            units.append(head)
            unit = unit[len(head) :]
        units.append(" " if unit.isspace() else unit)
    return units
