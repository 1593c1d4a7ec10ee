"""Parts that all HTML pages of reports share: the frame, its style, tables that can be sorted, figures.

Pages are self-contained and open offline; every text from a model has to be escaped by who gives it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Any

HUES = (212, 28, 150, 345, 265, 190, 48, 95, 310, 5)
OTHER = "hsl(220 6% 60%)"
"""The colour of what is not among the most important."""


def frame(
    title: str,
    heading: str,
    about: str,
    body: str,
    data: Any = None,
    *,
    style: str = "",
    script: str = "",
    data_name: str = "data",
) -> str:
    """The text of a page.  ``title``, ``heading`` and ``about`` are escaped here, ``body`` is HTML; ``data`` is kept in
    the page as JSON, ``style`` and ``script`` are added to those of all pages."""
    return Template(_PAGE).substitute(
        title=escape(title),
        heading=escape(heading),
        about=escape(about),
        body=body,
        style=STYLE + style,
        script=SCRIPT + script,
        data=json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        data_name=data_name,
    )


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """Values, and what they are, as a row of cards."""
    shown = "".join(
        f"<div class=card><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in figures
    )
    return f'<div class="cards">{shown}</div>'


def section(heading: str, content: str) -> str:
    """``content`` is HTML."""
    return f"<section><h2>{escape(heading)}</h2>{content}</section>"


def table(head: str, rows: Sequence[str]) -> str:
    """``head`` and ``rows`` are HTML; a click on a heading sorts by the column's ``data-v``, else by its text."""
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def colours(kinds: Sequence[str]) -> dict[str, str]:
    """A colour for each of the first kinds."""
    return {kind: f"hsl({hue} 62% 52%)" for kind, hue in zip(kinds, HUES, strict=False)}


STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #66707f; --line: #e3e7ec; }
@media (prefers-color-scheme: dark) {
  :root { --back: #12161c; --card: #1a2029; --ink: #e6eaf0; --soft: #94a0b0; --line: #2a323d; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1320px; padding: 28px 24px 60px; background: var(--back); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 24px; margin: 0; letter-spacing: -.01em; } h2 { font-size: 15px; margin: 0 0 12px; }
header p { margin: 2px 0 18px; color: var(--soft); }
section, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
section { padding: 18px 20px; margin-top: 16px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; }
.card { padding: 14px 16px; } .card b { display: block; font-size: 21px; font-weight: 620; }
.card span { color: var(--soft); font-size: 12px; }
.line { display: flex; height: 54px; border-radius: 6px; overflow: hidden; background: var(--line); }
.line a { display: flex; align-items: center; justify-content: center; overflow: hidden; min-width: 0;
  border-right: 1px solid var(--card); color: #fff; text-decoration: none; font-size: 11px; white-space: nowrap; }
.line a:hover { filter: brightness(1.18); } .line em { font-style: normal; padding: 0 4px; }
.scale { display: flex; justify-content: space-between; color: var(--soft); font-size: 11px; margin-top: 5px; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
@media (max-width: 900px) { .two { grid-template-columns: 1fr; gap: 0; } }
.bar { display: grid; grid-template-columns: minmax(90px, 38%) 1fr 78px 56px; gap: 10px; align-items: center;
  padding: 3px 0; }
.label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.track { background: var(--line); border-radius: 4px; height: 12px; overflow: hidden; }
.track i { display: block; height: 100%; border-radius: 4px; }
.number, td { font-variant-numeric: tabular-nums; text-align: right; } .number { color: var(--soft); font-size: 12px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 12.5px; }
th { position: sticky; top: 0; background: var(--card); text-align: right; font-weight: 600; cursor: pointer;
  white-space: nowrap; color: var(--soft); } th.text, td.text { text-align: left; }
th, td { padding: 4px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr:target td { background: hsl(48 90% 60% / .25); } tbody tr:hover td { background: hsl(212 60% 55% / .09); }
.name { max-width: 260px; overflow: hidden; text-overflow: ellipsis; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px; }
.share { display: inline-block; height: 8px; border-radius: 3px; margin-right: 8px; }
@media (max-width: 600px) {
  body { padding: 16px 10px 40px; } section { padding: 12px; }
  .bar { grid-template-columns: minmax(70px, 34%) 1fr 66px 50px; gap: 6px; }
}
.low { color: hsl(2 70% 52%); font-weight: 620; } .mid { color: hsl(35 85% 42%); } .high { color: hsl(150 60% 36%); }
"""

SCRIPT = """
document.querySelectorAll("th").forEach(th => th.addEventListener("click", () => {
  const i = th.cellIndex, body = th.closest("table").tBodies[0];
  const down = th.dataset.down = th.dataset.down === "1" ? "0" : "1";
  const value = tr => tr.cells[i].dataset.v === undefined ? tr.cells[i].textContent : +tr.cells[i].dataset.v;
  const rows = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    return (typeof x === "number" ? x - y : x.localeCompare(y)) * (down === "1" ? -1 : 1);
  });
  body.append(...rows);
}));
"""

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
<header><h1>$heading</h1><p>$about</p></header>
$body
<script type="application/json" id="$data_name">$data</script>
<script>$script</script>
</html>
"""
