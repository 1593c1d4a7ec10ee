"""``tenon profile``: where the time of a network goes, in eight sections, as JSON or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenon.cli.grid import grid
from tenon.cli.opening import Source, Threads, open_engine
from tenon.cli.show import console, print_json
from tenon.engine.profile import Profile, Row, profile, rate
from tenon.engine.timing import Times
from tenon.errors import InputError

_RUN = ("round", "first(ms)", "curr(ms)", "min(ms)", "max(ms)", "avg(ms)", "std(us)")
_OPERATOR = (
    "Op Type", "Start", "First", "Avg(ms)", "%", "cdf%", "GMACPS", "% peak", "GB/s", "Stride", "Pad", "Filter Shape",
    "Output Shape", "Dilation", "name",
)  # fmt: skip
_TYPE = ("Op Type", "Count", "Avg(ms)", "%", "cdf%", "MACs", "GMACPS", "% peak", "Called times")


def profile_model(
    source: Source,
    options: dict[str, Any],
    threads: Threads,
    rounds: int,
    warmup: int,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    with open_engine(source, {**options, "profile": True}, threads, only_speed=True) as engine:
        found = profile(engine, rounds, warmup, Path(source.name).stem)
    if html:
        from tenon.cli.profile_page import page

        try:
            html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--html {html}: cannot be written ({error.strerror})") from None
    if as_json:
        return print_json(found.json())
    for section in sections(found):
        console.print(section, markup=False, soft_wrap=True)
        console.print()
    return console.print(
        f"{found.name} on {found.target}, {found.threads} thread(s): {found.plain.min:.3f} ms (minimum), "
        f"{rate(found.macs, found.plain.min):.1f} GMACPS, {found.of_peak(rate(found.macs, found.plain.min)):.0f} % of "
        f"the measured fp32 peak of {found.peak / 1e9:.0f} GMACPS",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def sections(p: Profile) -> list[str]:
    """The eight sections, in their order; without warm-up runs there are seven."""
    warm = [_run("Warm Up", p.warmup)] if p.warmup else []
    return [
        *warm,
        _run("Run without statistics", p.plain),
        _run("Run with statistics", p.stamped),
        grid("Sort by Run Order", _OPERATOR, _operators(p, p.rows)),
        grid("Sort by Computation Time", _OPERATOR, _operators(p, p.slowest())),
        _types(p),
        _macs(p),
        _run("Summary of Ops' Stat", p.summary),
    ]


def _run(title: str, t: Times) -> str:
    numbers = (t.first, t.last, t.min, t.max, t.mean, 1e3 * t.std)
    return grid(title, _RUN, [[str(len(t.samples)), *(f"{v:.3f}" for v in numbers)]])


def _operators(p: Profile, rows: Sequence[Row]) -> list[list[str]]:
    lines, sofar = [], 0.0
    for row in rows:
        sofar += row.mean
        facts = row.facts
        speed = [f"{row.gmacps:.3f}", f"{p.of_peak(row.best):.1f}"] if row.macs else ["0.000", ""]
        lines.append([
            row.op, f"{row.start:.3f}", f"{row.first:.3f}", f"{row.mean:.3f}",
            f"{_percent(row.mean, p.total):.3f}", f"{_percent(sofar, p.total):.3f}", *speed, f"{row.gigabytes:.1f}",
            _shape(facts.strides), _shape(facts.pads), _shape(facts.filter), _shape(facts.output),
            _shape(facts.dilations), row.layer,
        ])  # fmt: skip
    return lines


def _types(p: Profile) -> str:
    lines, sofar = [], 0.0
    for t in p.types():
        sofar += t.mean
        lines.append([
            t.op, str(t.count), f"{t.mean:.3f}", f"{_percent(t.mean, p.total):.3f}",
            f"{_percent(sofar, p.total):.3f}", f"{t.macs:,}", f"{t.gmacps:.3f}",
            f"{p.of_peak(t.gmacps):.1f}" if t.macs else "", str(t.called),
        ])  # fmt: skip
    return grid("Stat by Op Type", _TYPE, lines)


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
