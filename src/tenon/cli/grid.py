"""Tables of plain text that stay as wide as they are, for logs and for programs that read columns."""

from __future__ import annotations

from collections.abc import Sequence


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A titled table between rules: ``| a | b |``, everything flush right."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = ["| " + " | ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    head = "| " + " | ".join(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True)) + " |"
    rule = "-" * len(head)
    return "\n".join([rule, f"{title:^{len(head)}}".rstrip(), rule, head, rule, *lines, rule])
