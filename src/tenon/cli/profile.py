"""``tenon profile``: times of all operators of a network, as text, as JSON or as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenon.atomic_write import write
from tenon.cli.benchmark_rows import sizes_text
from tenon.cli.console import console, duration, print_json, table, terminal_width
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.mace_tables import sections
from tenon.cli.model_source import ModelArgument, Threads, open_to_time
from tenon.cli.text_table import shortened
from tenon.runtime.engine.profile import Profile, profile, rate

SLOWEST = 10
"""Operators that are listed."""

_NAME = 18
"""Columns of the name of an operator, and at least of a layer."""

_OTHERS, _WIDE = 62, 120
"""Columns of a row without the name of the layer, and of a line that goes to a file."""


def profile_model(
    source: ModelArgument,
    options: dict[str, Any],
    threads: Threads,
    rounds: int,
    warmup: int,
    html: Path | None,
    where: DeviceChoice = HERE,
    format: str = "plain",
    *,
    as_json: bool,
) -> None:
    with (
        where.connected({**options, "profile": True}) as (device, chosen),
        open_to_time(source, chosen, threads, device) as engine,
    ):
        result = profile(engine, rounds, warmup, Path(source.name).stem)
    if html:
        from tenon.cli.profile_page import page

        write(html, page(result), "--html")
    if as_json:
        return print_json(result.json())
    if format == "mace":
        return _print_tables(result)
    _print_headline(result)
    _print_slowest(result)
    return _print_types(result)


def _print_headline(p: Profile) -> None:
    """The time of a run, and how fast that is."""
    speed, threads = rate(p.macs, p.plain.min), f"{p.threads} thread{'s' if p.threads > 1 else ''}"
    where = str(p.device.properties) if p.device else threads
    console.print(
        f"{p.name} on {p.target}, {where}: {duration(p.plain.min)}, the fastest of {len(p.plain.samples)} runs",
        markup=False,
    )
    if p.sizes:
        console.print(f"a run of {sizes_text(p.sizes)}", markup=False)
    if p.device:
        console.print(
            f"by the device's clock: inputs are copied in {duration(p.device.upload.median)}, kernels take "
            f"{duration(_total(p))}, outputs are copied in {duration(p.device.download.median)}",
            markup=False,
        )
    console.print(
        f"{speed:.1f} GMACPS, {p.of_peak(speed):.0f} % of the measured fp32 peak of {p.peak / 1e9:.0f} GMACPS"
        + (f"; a copy in its memory moves {p.device.bandwidth / 1e9:.0f} GB/s" if p.device else ""),
        markup=False,
    )
    console.print()


def _print_slowest(p: Profile) -> None:
    """The operators that take longest, by the median, with their shares of the time of all of them."""
    slowest, total = sorted(p.rows, key=lambda row: -row.median)[:SLOWEST], _total(p)
    names = shortened([row.layer for row in slowest], max(_NAME, (terminal_width() or _WIDE) - _OTHERS))
    kinds = shortened([row.op for row in slowest], _NAME)
    bandwidth = ("% of bandwidth",) if p.device else ()
    shown = table(
        "operator",
        "layer",
        "time",
        "share",
        "% of peak",
        *bandwidth,
        "output",
        right=(2, 3, 4, 5)[: 3 + len(bandwidth)],
    )
    for row, name, kind in zip(slowest, names, kinds, strict=True):
        peak = f"{p.speed(row, row.median).of_peak:.0f} %" if row.macs else ""
        output = "x".join(map(str, row.facts.output))
        moved = (f"{p.speed(row, row.median).of_bandwidth:.0f} %",) if p.device else ()
        shown.add_row(kind, name, duration(row.median), _share(row.median, total), peak, *moved, output)
    console.print(shown, markup=False)
    if len(p.rows) > SLOWEST:
        console.print(f"the {SLOWEST} slowest of {len(p.rows)} operators: --html and --json show all", markup=False)


def _print_types(p: Profile) -> None:
    """The times of operators of the same type, together."""
    times: dict[str, list[float]] = {}
    for row in p.rows:
        times.setdefault(row.op, []).append(row.median)
    slowest = sorted(times, key=lambda op: -sum(times[op]))
    shown = table("type", "operators", "time", "share", right=(1, 2, 3))
    for op, name in zip(slowest, shortened(slowest, 2 * _NAME), strict=True):
        shown.add_row(name, str(len(times[op])), duration(sum(times[op])), _share(sum(times[op]), _total(p)))
    console.print()
    console.print(shown, markup=False)


def _total(p: Profile) -> float:
    return sum(row.median for row in p.rows)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0.0:.1f} %"


def _print_tables(p: Profile) -> None:
    width = terminal_width()
    for section in sections(p, width):
        console.print(section, markup=False, soft_wrap=True)
        console.print()
    if width is not None:
        console.print("Columns that have no room are left out; --json and --html show all.", markup=False)
