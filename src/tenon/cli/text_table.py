"""Plain text tables for logs and scripts, at full width or fitted to a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_LEAST = 12  # characters of a shortened name


def grid(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    drop: Sequence[str] = (),
    shorten: Sequence[str] = (),
) -> str:
    """A titled table between rules: ``| a | b |``, right-aligned.

    To fit ``width`` characters (None: no limit), texts in the columns ``shorten`` are abbreviated in the middle, and
    the columns ``drop`` are omitted one by one, in that order.
    """
    names, cells = list(columns), [list(row) for row in rows]
    left = [name for name in drop if name in names]
    while width is not None and left and _width(names, cells, shorten) > width:
        i = names.index(left.pop(0))
        names, cells = names[:i] + names[i + 1 :], [row[:i] + row[i + 1 :] for row in cells]
    for name in shorten:
        if width is not None and name in names and (over := _width(names, cells) - width) > 0:
            i = names.index(name)
            longest = max(len(row[i]) for row in cells)
            for row, text in zip(cells, shortened([row[i] for row in cells], max(_LEAST, longest - over)), strict=True):
                row[i] = text
    widths = _widths(names, cells)
    lines = ["| " + " | ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) + " |" for row in cells]
    head = "| " + " | ".join(f"{name:>{w}}" for name, w in zip(names, widths, strict=True)) + " |"
    rule = "-" * len(head)
    return "\n".join([rule, f"{title:^{len(head)}}".rstrip(), rule, head, rule, *lines, rule])


def _widths(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in (names, *cells)) for i in range(len(names))]


def _width(names: Sequence[str], cells: Sequence[Sequence[str]], shorten: Sequence[str] = ()) -> int:
    """Characters of a line if the columns ``shorten`` are abbreviated to a readable length."""
    widths = _widths(names, cells)
    cut = [min(w, 2 * _LEAST) if name in shorten else w for name, w in zip(names, widths, strict=True)]
    return sum(cut) + 3 * len(cut) + 1


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """The texts, abbreviated in the middle to ``width`` characters; distinct texts stay distinct."""
    cut = {text: text for text in texts if len(text) <= width}
    left = [text for text in dict.fromkeys(texts) if len(text) > width]
    for heads in [width // 3, *range(width - 2)]:
        candidates = {text: _cut(text, width, heads) for text in left}
        times, taken = Counter(candidates.values()), set(cut.values())
        cut |= {text: short for text, short in candidates.items() if times[short] == 1 and short not in taken}
        left = [text for text in left if text not in cut]
    for n, text in enumerate(left, 1):
        cut[text] = _cut(text, width - 1 - len(str(n)), width // 3) + f"#{n}"
    return [cut[text] for text in texts]


def _cut(text: str, width: int, head: int) -> str:
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"
