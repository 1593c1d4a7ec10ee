"""Representations of networks: one line of text, and small tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHOWN = 4
"""Tensors on a line."""
ROWS = 12
"""Rows of a table."""

Row = tuple[str, ...]


def tensors(named: Iterable[tuple[str, object]]) -> str:
    """Names and types on a line: the first few, and how many more there are."""
    listed = [f"{name} {kind}" for name, kind in named]
    more = [f"{len(listed) - SHOWN} more"] if len(listed) > SHOWN else []
    return ", ".join([*listed[:SHOWN], *more]) or "nothing"


def html_table(caption: str, rows: Sequence[Row], head: Row = ()) -> str:
    """The rows as HTML, right-aligned except for the first column; long tables are truncated."""
    from html import escape  # imported late: slower than opening a bundle

    more = len(rows) - ROWS
    shown = [*rows[:ROWS], (f"{more} more",)] if more > 0 else rows
    top = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>" if head else ""
    return f"<table><caption>{escape(caption)}</caption>{top}{''.join(map(_row, shown))}</table>"


def tensor_rows(inputs: Iterable[tuple[str, object]], outputs: Iterable[tuple[str, object]]) -> list[Row]:
    """One row for each input and output."""
    named = [("input", *pair) for pair in inputs] + [("output", *pair) for pair in outputs]
    return [(what, str(name), str(kind)) for what, name, kind in named]


def _row(cells: Row) -> str:
    from html import escape

    first, *rest = cells
    others = "".join(f'<td style="text-align:right">{escape(cell)}</td>' for cell in rest)
    return f'<tr><td style="text-align:left">{escape(first)}</td>{others}</tr>'
