"""A program's C text cut into translation units of about one size, so that a compiler can work on several at once.

The text that users get stays one file.  Functions that call each other stay together; those that the entry points
call become visible across the pieces, under names that begin with the network's, and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_COMMENT = re.compile(r"/\*.*?\*/\n?", re.DOTALL)
_START = re.compile(r"(?<!\*/)\n(?=(?:/\*(?:(?!\*/)[\s\S])*\*/\n)?TENON_OUTLINE void )")
_KIND = "TENON_OUTLINE void "
_END = "\n}\n"
_CALLED = re.compile(r"\b(\w+)\(")
_SIZE = 1 << 18
"""Bytes of text: a second of compilation or two."""


@dataclass
class _Group:
    """Functions that call each other."""

    members: list[str] = field(default_factory=list)
    size: int = 0


def pieces(source: str, name: str) -> list[str]:
    """The translation units, the entry points' first; only ``source`` itself where that is small.

    How many there are depends on the text alone, so that the same text gives the same object everywhere.
    """
    count = next((n for n in (8, 4, 2) if len(source) >= n * _SIZE), 1)
    head, *functions = _START.split(source)
    if count < 2 or len(functions) < 2:
        return [source]
    last, _, entry = functions[-1].partition(_END)
    functions[-1] = last + _END
    whole = [text.partition(_KIND) for text in functions]
    texts = {text[: text.index("(")]: text for _, _, text in whole}
    comments: dict[str, str] = dict(zip(texts, (comment for comment, _, _ in whole), strict=True))
    called = {known: _CALLED.findall(text) for known, text in texts.items()}
    entered = set(_CALLED.findall(_COMMENT.sub("", entry)))
    visible = [known for known in texts if known in entered]
    renamed = "".join(f"#define {known} {name}_{known}\n" for known in visible)
    declared = "".join(f"TENON_PIECE {texts[known].partition(' {')[0]};\n" for known in visible)
    hidden = '#define TENON_PIECE __attribute__((noinline, visibility("hidden"))) void\n'
    top = f"{renamed}{head}\n{hidden}"

    def function(known: str) -> str:
        return comments[known] + ("TENON_PIECE " if known in visible else _KIND) + texts[known]

    parts = _bins(_groups(texts, called), count)
    bodies = ("\n".join(function(known) for known in texts if known in part) for part in parts)
    return [f"{top}{declared}{entry}", *(top + body for body in bodies)]


def _groups(texts: dict[str, str], called: dict[str, list[str]]) -> list[_Group]:
    """Functions with all that they call, directly or not; what several call joins those."""
    home: dict[str, _Group] = {}
    for known in texts:
        merged = _Group([known], len(texts[known]))
        for other in dict.fromkeys(called[known]):
            if other in home and home[other] is not merged:
                absorbed = home[other]
                merged.members += absorbed.members
                merged.size += absorbed.size
                for member in absorbed.members:
                    home[member] = merged
        home[known] = merged
    return list({id(group): group for group in home.values()}.values())


def _bins(groups: list[_Group], count: int) -> list[set[str]]:
    """The groups dealt out, the largest first, each to the bin that has least."""
    bins: list[set[str]] = [set() for _ in range(count)]
    sizes = [0] * count
    for group in sorted(groups, key=lambda g: -g.size):
        least = sizes.index(min(sizes))
        bins[least].update(group.members)
        sizes[least] += group.size
    return [members for members in bins if members]
