"""A profile as the eight tables that MACE prints (``tenon profile --format mace``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenon.cli.text_table import grid
from tenon.runtime.engine.profile import Profile, Row, rate
from tenon.runtime.engine.timing import Times

_RUN = ("round", "first({unit})", "curr({unit})", "min({unit})", "max({unit})", "avg({unit})", "std(us)")
_OPERATOR = (
    "Op Type",
    "Start",
    "First",
    "Avg({unit})",
    "%",
    "cdf%",
    "GMACPS",
    "% peak",
    "GB/s",
    "Stride",
    "Pad",
    "Filter Shape",
    "Output Shape",
    "Dilation",
    "name",
)
_TYPE = ("Op Type", "Count", "Avg({unit})", "%", "cdf%", "MACs", "GMACPS", "% peak", "Called times")
_DROPPED = (
    "Dilation",
    "Pad",
    "Stride",
    "Start",
    "First",
    "Filter Shape",
    "Called times",
    "Output Shape",
    "cdf%",
    "GB/s",
    "Count",
    "MACs",
)
"""Columns omitted in narrow tables, in this order."""


def sections(p: Profile, width: int | None = None) -> list[str]:
    """The eight sections, in their order; without warm-up runs there are seven.  With ``width`` they
    fit lines of that many characters."""

    def operators(title: str, rows: Sequence[Row]) -> str:
        return _fitted(title, _OPERATOR, _operators(p, rows), unit, width)

    unit = _unit(p)
    warm = [_run("Warm Up", p.warmup, width)] if p.warmup else []
    return [
        *warm,
        _run("Run without statistics", p.plain, width),
        _run("Run with statistics", p.stamped, width),
        operators("Sort by Run Order", p.rows),
        operators("Sort by Computation Time", p.slowest()),
        _fitted("Stat by Op Type", _TYPE, _types(p), unit, width),
        _macs(p),
        _run("Summary of Ops' Stat", p.summary, width),
    ]


def _unit(p: Profile) -> tuple[str, float]:
    """The unit of operators' times: microseconds if the median run takes less than a millisecond."""
    return ("ms", 1.0) if p.plain.median >= 1 else ("us", 1e3)


def _fitted(
    title: str, columns: Sequence[str], rows: list[list[str]], unit: tuple[str, float], width: int | None
) -> str:
    named = [name.format(unit=unit[0]) for name in columns]
    return grid(title, named, rows, width, drop=_DROPPED, shorten=("name", "Op Type"))


def _run(title: str, t: Times, width: int | None) -> str:
    unit, scale = ("ms", 1.0) if t.median >= 1 else ("us", 1e3)
    numbers = (*(scale * v for v in (t.first, t.last, t.min, t.max, t.mean)), 1e3 * t.std)
    named = [name.format(unit=unit) for name in _RUN]
    return grid(title, named, [[str(len(t.samples)), *(f"{v:.3f}" for v in numbers)]], width, drop=named[2:0:-1])


def _operators(p: Profile, rows: Sequence[Row]) -> list[list[str]]:
    lines, cumulative, (_, scale) = [], 0.0, _unit(p)
    for row in rows:
        cumulative += row.mean
        facts, speed = row.facts, p.speed(row, row.mean)
        cells = [f"{speed.gmacps:.3f}", f"{speed.of_peak:.1f}"] if row.macs else ["0.000", ""]
        lines.append(
            [
                row.op,
                f"{scale * row.start:.3f}",
                f"{scale * row.first:.3f}",
                f"{scale * row.mean:.3f}",
                f"{_percent(row.mean, p.total):.3f}",
                f"{_percent(cumulative, p.total):.3f}",
                *cells,
                f"{speed.gigabytes:.1f}",
                _shape(facts.strides),
                _shape(facts.pads),
                _shape(facts.filter),
                _shape(facts.output),
                _shape(facts.dilations),
                row.layer,
            ]
        )
    return lines


def _types(p: Profile) -> list[list[str]]:
    lines, cumulative, (_, scale) = [], 0.0, _unit(p)
    for t in p.types():
        cumulative += t.mean
        lines.append(
            [
                t.op,
                str(t.count),
                f"{scale * t.mean:.3f}",
                f"{_percent(t.mean, p.total):.3f}",
                f"{_percent(cumulative, p.total):.3f}",
                f"{t.macs:,}",
                f"{t.gmacps:.3f}",
                f"{p.of_peak(t.gmacps):.1f}" if t.macs else "",
                str(t.called),
            ]
        )
    return lines


def _macs(p: Profile) -> str:
    speeds = [rate(p.macs, t) for t in p.summary.samples]
    mean = sum(speeds) / len(speeds)
    std = (sum((s - mean) ** 2 for s in speeds) / len(speeds)) ** 0.5
    line = [f"{p.macs:,}", str(len(speeds)), f"{speeds[0]:.3f}", f"{mean:.3f}", f"{std:.3f}"]
    return grid("Stat by MACs(Multiply-Accumulation)", ("total", "round", "first(G/s)", "avg(G/s)", "std"), [line])


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _shape(extents: Sequence[Any]) -> str:
    return "[" + ",".join(map(str, extents)) + "]" if extents else ""
