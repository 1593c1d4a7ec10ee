"""The structure of C files, read from their text: functions that they define and names that they use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_NOT_CODE = re.compile(
    r"""/\*.*?\*/ | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | ^[ ]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def code(text: str) -> str:
    """The text without comments, literals and lines of the preprocessor."""
    return _NOT_CODE.sub(" ", text)


def _before_blocks(text: str) -> Iterator[str]:
    """The text before each ``{`` outside of all others, since the end of what precedes it."""
    text, depth, begin = code(text), 0, 0
    for match in re.finditer(r"[{};]", text):
        if match[0] == "{" and depth == 0:
            yield text[begin : match.start()]
        depth += {"{": 1, "}": -1, ";": 0}[match[0]]
        if depth == 0:
            begin = match.end()


def _defined(before: str) -> str:
    """The name of the function whose head stands before a block; "" if it is no head of a function."""
    head = before.rstrip()
    if not head.endswith(")"):
        return ""
    depth, at = 1, len(head) - 1
    while depth and at > 0:
        at -= 1
        depth += {")": 1, "(": -1}.get(head[at], 0)
    name = re.search(r"(\w+)\s*$", head[:at])
    return name[1] if name else ""


def bodies(text: str) -> list[str]:
    """The names of the functions that a text defines."""
    return [name for before in _before_blocks(text) if (name := _defined(before))]


def shared_functions(text: str) -> set[str]:
    """The names of the functions that a text defines for other files."""
    heads = [before for before in _before_blocks(text) if not re.search(r"\bstatic\b", before)]
    return {name for head in heads if (name := _defined(head))}


def includes(text: str) -> set[str]:
    """The headers that a text includes in quotes."""
    return set(_INCLUDE.findall(text))


def calls(files: Sequence[Path]) -> dict[str, set[str]]:
    """The files whose functions each file names, by file name.  Raises AssertionError for a function of two files."""
    texts = {path.name: path.read_text() for path in files}
    owners: dict[str, str] = {}
    for name, text in texts.items():
        for function in shared_functions(text):
            assert owners.setdefault(function, name) == name, f"{function} is defined in {owners[function]} and {name}"
    words = {name: set(re.findall(r"\w+", code(text))) for name, text in texts.items()}
    return {name: {owners[word] for word in words[name] & owners.keys()} - {name} for name in texts}
