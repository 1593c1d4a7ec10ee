"""A profile as a self-contained HTML page: timeline, bars by operator type, and a sortable table."""

from __future__ import annotations

from html import escape
from string import Template

from tenon.cli.page_frame import OTHER, cards, frame, table
from tenon.cli.page_frame import colours as hues
from tenon.cli.text_table import shortened
from tenon.runtime.engine.profile import Profile, Row, rate

_NAME, _LABEL = 32, 30  # characters of a name that have room in the table, and beside a bar


def page(p: Profile) -> str:
    """The text of the page.  Names from the model are escaped."""
    colours = _colours(p)
    slowest = sorted(p.rows, key=lambda row: -row.median)[:10]
    speed = rate(p.macs, p.plain.min)
    figures = [
        (_time(p.plain.min), "fastest run"),
        (_time(p.plain.median), f"median of {len(p.plain.samples)}"),
        (f"{p.macs / 1e6:,.1f} M", "multiply-accumulates"),
        (f"{speed:.1f}", "GMACPS at the fastest run"),
        (f"{p.of_peak(speed):.0f} %", f"of the measured fp32 peak, {p.peak / 1e9:.0f} GMACPS"),
    ]
    if p.device:
        figures += [
            (_time(p.device.upload.median), "copy of the inputs"),
            (_time(p.device.download.median), "copy of the outputs"),
            (f"{p.device.bandwidth / 1e9:.0f} GB/s", "of a copy in the device's memory, measured"),
        ]
    body = Template(_BODY).substitute(
        cards=cards(figures),
        timeline=_timeline(p, colours),
        scale="".join(f"<span>{_time(_total(p) * i / 5)}</span>" for i in range(6)),
        types=_bars(_types(p), p, colours),
        slowest=_bars([(row.layer, row.op, row.median) for row in slowest], p, colours, _LABEL),
        table=table(_HEAD.replace(_RATE, _RATE + _OF_BANDWIDTH if p.device else _RATE), _rows(p, colours)),
    )
    where = str(p.device.properties) if p.device else f"{p.threads} thread{'s' if p.threads > 1 else ''}"
    about = f"{p.target} · {where} · {len(p.rows)} operators"
    return frame(f"{p.name}: profile", p.name, about, body, p.json(), data_name="profile")


def _colours(p: Profile) -> dict[str, str]:
    """A hue for each of the slowest types; grey for the rest."""
    return hues([op for _, op, _ in _types(p)])


def _timeline(p: Profile, colours: dict[str, str]) -> str:
    parts = []
    for i, row in enumerate(p.rows):
        width = 100 * row.median / _total(p) if _total(p) else 0
        label = f"<em>{escape(row.op)}</em>" if width > 4 else ""
        parts.append(
            f"<a href='#r{i}' style='width:{width:.4f}%;background:{colours.get(row.op, OTHER)}' "
            f"title='{escape(_tooltip(p, row), quote=True)}'>{label}</a>"
        )
    return "".join(parts)


def _tooltip(p: Profile, row: Row) -> str:
    speed = p.speed(row, row.min)
    lines = [
        f"{row.op}  {row.layer}",
        f"{_time(row.median)} from {row.start:.3f} ms",
        f"output {list(row.facts.output)}",
    ]
    if row.macs:
        lines.append(f"{speed.gmacps:.1f} GMACPS, {speed.of_peak:.0f} % of peak in the fastest round")
    return "\n".join([*lines, f"{speed.gigabytes:.1f} GB/s", ", ".join(row.kernels)])


def _types(p: Profile) -> list[tuple[str, str, float]]:
    times: dict[str, list[float]] = {}
    for row in p.rows:
        times.setdefault(row.op, []).append(row.median)
    bars = [(f"{op}, {len(each)}", op, sum(each)) for op, each in times.items()]
    return sorted(bars, key=lambda bar: -bar[2])


def _bars(bars: list[tuple[str, str, float]], p: Profile, colours: dict[str, str], width: int = 100) -> str:
    """Label (cut to ``width`` characters), operator and milliseconds of each; the first is the longest."""
    most, total = max(bars[0][2], 1e-9), max(_total(p), 1e-9)
    shown = shortened([label for label, _, _ in bars], width)
    return "".join(
        f"<div class=bar><span class=label title='{escape(label, quote=True)}'>{escape(short)}</span><span class=track>"
        f"<i style='width:{100 * value / most:.2f}%;background:{colours.get(op, OTHER)}'></i></span>"
        f"<span class=number>{_time(value)}</span><span class=number>{100 * value / total:.1f} %</span></div>"
        for short, (label, op, value) in zip(shown, bars, strict=True)
    )


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3f} ms" if milliseconds >= 1 else f"{1e3 * milliseconds:.1f} µs"


def _total(p: Profile) -> float:
    """Milliseconds of a typical run: the sum of medians, which are robust against other load."""
    return sum(row.median for row in p.rows)


def _rows(p: Profile, colours: dict[str, str]) -> list[str]:
    names = shortened([row.layer for row in p.rows], _NAME)
    rows = enumerate(zip(p.rows, names, strict=True))
    return [_row(p, i, row, name, colours.get(row.op, OTHER)) for i, (row, name) in rows]


def _row(p: Profile, i: int, row: Row, name: str, colour: str) -> str:
    most, speed = max(r.median for r in p.rows), p.speed(row, row.min)
    share = f"<i class=share style='width:{60 * row.median / most if most else 0:.1f}px;background:{colour}'></i>"
    dot = f"<i class=dot style='background:{colour}'></i>"
    level = "low" if speed.of_peak < 40 else "mid" if speed.of_peak < 75 else "high"
    peak = (
        f"<td data-v='{speed.of_peak:.3f}' class={level}>{speed.of_peak:.0f}</td>"
        if row.macs
        else "<td data-v=-1></td>"
    )
    moved = f"<td data-v='{speed.of_bandwidth:.3f}'>{speed.of_bandwidth:.0f}</td>" if p.device else ""
    filter_, output = (" x ".join(map(str, shape)) for shape in (row.facts.filter, row.facts.output))
    return (
        f"<tr id=r{i}><td data-v={i}>{i}</td><td class=text>{dot}{escape(row.op)}"
        f"</td><td class='text name' title='{escape(row.layer, quote=True)}'>{escape(name)}</td>"
        f"<td data-v='{row.median:.6f}'>{share}{1e3 * row.median:,.1f}</td>"
        f"<td data-v='{row.min:.6f}'>{1e3 * row.min:,.1f}</td>"
        f"<td data-v={row.macs}>{row.macs / 1e6:,.2f}</td><td data-v='{speed.gmacps:.3f}'>{speed.gmacps:.1f}</td>{peak}"
        f"<td data-v='{speed.gigabytes:.3f}'>{speed.gigabytes:.1f}</td>{moved}<td class=text>{filter_}</td>"
        f"<td class=text>{output}</td><td class='text name' title='{escape(', '.join(row.kernels), quote=True)}'>"
        f"{escape(row.kernels[-1])}</td></tr>"
    )


_BODY = """$cards
<section><h2>Timeline</h2><div class="line">$timeline</div><div class="scale">$scale</div></section>
<div class="two">
<section><h2>By type</h2>$types</section>
<section><h2>Slowest operators</h2>$slowest</section>
</div>
<section><h2>All operators, in run order</h2>$table</section>"""
_RATE, _OF_BANDWIDTH = "<th>GB/s</th>", "<th>% bandwidth</th>"
_HEAD = (
    "<th>#</th><th class=text>type</th><th class=text>name</th><th>median µs</th><th>min µs</th><th>M MACs</th>"
    "<th>GMACPS</th><th>% peak</th><th>GB/s</th><th class=text>filter</th><th class=text>output</th>"
    "<th class=text>kernel</th>"
)
