"""The noise of a quantised or compared network as a self-contained HTML page: figures, bars and a sortable table."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from html import escape
from typing import Any

from tenon.cli.page_frame import cards, frame, section, table
from tenon.tools.quantization import Noise, WeightNoise

GOOD, FAIR = 30.0, 20.0
"""dB from which a bar is green, and yellow."""

Cards = Sequence[tuple[str, str]]
"""Values and what they are."""


def page(
    title: str,
    about: str,
    figures: Cards,
    noise: Mapping[str, Sequence[Noise]],
    weights: Sequence[WeightNoise] = (),
    tried: Mapping[str, float] | None = None,
    data: Any = None,
    *,
    without: Mapping[str, float] | None = None,
    kept: Container[str] = (),
) -> str:
    """The text of the page; names from the model are escaped.  ``noise`` are tables by their headings, ``tried`` the
    SQNR in dB of what was tried, ``without`` that before it, and ``kept`` the names of what was kept."""
    sections = [_tried(tried, without or {}, kept)] if tried else []
    sections += [
        section(heading, table(_HEAD, [_row(i, each) for i, each in enumerate(rows)]))
        for heading, rows in noise.items()
        if rows
    ]
    if weights:
        rows = [_weight_row(i, each) for i, each in enumerate(weights)]
        sections.append(section("Weights", table(_WEIGHT_HEAD, rows)))
    return frame(title, title, about, cards(figures) + "".join(sections), data)


def decibels(value: float | None) -> str:
    """A ratio in dB as text."""
    if value is None or not math.isfinite(value):
        return "exact" if value is None or value > 0 else "no signal"
    return f"{value:.1f} dB"


def agreement_text(agreement: float, error: float | None, samples: int) -> str:
    """How often the largest output is the same, with its standard error."""
    spread = "" if error is None else f" +- {100 * error:.1f}"
    return f"same largest output on {100 * agreement:.1f}{spread} % of {samples} samples"


def _bar(sqnr: float, most: float = 60.0) -> str:
    hue = 150 if sqnr >= GOOD else 45 if sqnr >= FAIR else 5
    share = min(max(sqnr / most, 0.0), 1.0) if math.isfinite(sqnr) else float(sqnr > 0)
    return f"<i class=share style='width:{80 * share:.1f}px;background:hsl({hue} 62% 48%)'></i>"


def _number(sqnr: float) -> float:
    """For sorting."""
    return sqnr if math.isfinite(sqnr) else math.copysign(1e9, sqnr)


def _named(i: int, name: str, sqnr: float) -> str:
    """The first cells of a row: its number, name and SQNR."""
    shown = escape(name, quote=True)
    return (
        f"<td data-v={i}>{i}</td><td class='text name' title='{shown}'>{shown}</td>"
        f"<td data-v='{_number(sqnr):.4f}'>{_bar(sqnr)}{decibels(sqnr)}</td>"
    )


def _row(i: int, each: Noise) -> str:
    return (
        f"<tr>{_named(i, each.name, each.sqnr)}"
        f"<td data-v='{each.cosine:.8f}'>{each.cosine:.5f}</td><td data-v='{each.shift:.8f}'>{each.shift:+.4f}</td>"
        f"<td data-v='{each.saturated:.8f}'>{100 * each.saturated:.3f} %</td></tr>"
    )


def _weight_row(i: int, each: WeightNoise) -> str:
    return (
        f"<tr>{_named(i, each.layer, each.sqnr)}"
        f"<td data-v={each.bits}>{each.bits}</td><td data-v={each.scales}>{each.scales}</td></tr>"
    )


def _tried(tried: Mapping[str, float], without: Mapping[str, float], kept: Container[str]) -> str:
    def remark(name: str) -> str:
        before = f", without {decibels(without[name])}" if name in without else ""
        return before + ": kept" * (name in kept)

    bars = "".join(
        f"<div class=bar><span class=label>{escape(name or 'as calibrated')}{remark(name)}</span><span class=track>"
        f"<i style='width:{100 * min(max(value / 60, 0), 1):.1f}%;background:hsl(212 62% 52%)'></i></span>"
        f"<span class=number>{decibels(value)}</span></div>"
        for name, value in tried.items()
    )
    return f"<section><h2>Tried, on samples that nothing was fitted to</h2>{bars}</section>"


_HEAD = "<th>#</th><th class=text>tensor</th><th>SQNR</th><th>cosine</th><th>shift of the mean</th><th>saturated</th>"
_WEIGHT_HEAD = "<th>#</th><th class=text>layer</th><th>SQNR</th><th>bits</th><th>scales</th>"
