"""A profile as a self-contained HTML page: timeline, bars by operator type, and a sortable table."""

from __future__ import annotations

import json
from html import escape
from string import Template

from tenon.cli.text_table import shortened
from tenon.engine.profile import Profile, Row, rate

_HUES = (212, 28, 150, 345, 265, 190, 48, 95, 310, 5)
_OTHER = "hsl(220 6% 60%)"
_NAME, _LABEL = 32, 30  # characters of a name that have room in the table, and beside a bar


def page(p: Profile) -> str:
    """The text of the page.  Names from the model are escaped."""
    colours = _colours(p)
    slowest = sorted(p.rows, key=lambda row: -row.median)[:10]
    speed = rate(p.macs, p.plain.min)
    cards = [
        (_time(p.plain.min), "fastest run"),
        (_time(p.plain.median), f"median of {len(p.plain.samples)}"),
        (f"{p.macs / 1e6:,.1f} M", "multiply-accumulates"),
        (f"{speed:.1f}", "GMACPS at the fastest run"),
        (f"{p.of_peak(speed):.0f} %", f"of the measured fp32 peak, {p.peak / 1e9:.0f} GMACPS"),
        (f"{100 * (p.stamped.min / p.plain.min - 1):+.1f} %", "cost of measuring"),
    ]
    return Template(_PAGE).substitute(
        name=escape(p.name),
        about=escape(f"{p.target} · {p.threads} thread{'s' if p.threads > 1 else ''} · {len(p.rows)} operators"),
        style=STYLE,
        cards="".join(f"<div class=card><b>{escape(v)}</b><span>{escape(k)}</span></div>" for v, k in cards),
        timeline=_timeline(p, colours),
        scale="".join(f"<span>{_time(_total(p) * i / 5)}</span>" for i in range(6)),
        types=_bars(_types(p), p, colours),
        slowest=_bars([(row.layer, row.op, row.median) for row in slowest], p, colours, _LABEL),
        rows=_rows(p, colours),
        script=SCRIPT,
        data=json.dumps(p.json()).replace("<", "\\u003c"),
    )


def _colours(p: Profile) -> dict[str, str]:
    """A hue for each of the slowest types; grey for the rest."""
    return {op: f"hsl({hue} 62% 52%)" for (_, op, _), hue in zip(_types(p), _HUES, strict=False)}


def _timeline(p: Profile, colours: dict[str, str]) -> str:
    parts = []
    for i, row in enumerate(p.rows):
        width = 100 * row.median / _total(p) if _total(p) else 0
        label = f"<em>{escape(row.op)}</em>" if width > 4 else ""
        parts.append(
            f"<a href='#r{i}' style='width:{width:.4f}%;background:{colours.get(row.op, _OTHER)}' "
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
        f"<i style='width:{100 * value / most:.2f}%;background:{colours.get(op, _OTHER)}'></i></span>"
        f"<span class=number>{_time(value)}</span><span class=number>{100 * value / total:.1f} %</span></div>"
        for short, (label, op, value) in zip(shown, bars, strict=True)
    )


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3f} ms" if milliseconds >= 1 else f"{1e3 * milliseconds:.1f} µs"


def _total(p: Profile) -> float:
    """Milliseconds of a typical run: the sum of medians, which are robust against other load."""
    return sum(row.median for row in p.rows)


def _rows(p: Profile, colours: dict[str, str]) -> str:
    names = shortened([row.layer for row in p.rows], _NAME)
    rows = enumerate(zip(p.rows, names, strict=True))
    return "".join(_row(p, i, row, name, colours.get(row.op, _OTHER)) for i, (row, name) in rows)


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
    filter_, output = (" x ".join(map(str, shape)) for shape in (row.facts.filter, row.facts.output))
    return (
        f"<tr id=r{i}><td data-v={i}>{i}</td><td class=text>{dot}{escape(row.op)}"
        f"</td><td class='text name' title='{escape(row.layer, quote=True)}'>{escape(name)}</td>"
        f"<td data-v='{row.median:.6f}'>{share}{1e3 * row.median:,.1f}</td>"
        f"<td data-v='{row.min:.6f}'>{1e3 * row.min:,.1f}</td>"
        f"<td data-v={row.macs}>{row.macs / 1e6:,.2f}</td><td data-v='{speed.gmacps:.3f}'>{speed.gmacps:.1f}</td>{peak}"
        f"<td data-v='{speed.gigabytes:.3f}'>{speed.gigabytes:.1f}</td><td class=text>{filter_}</td>"
        f"<td class=text>{output}</td><td class='text name' title='{escape(', '.join(row.kernels), quote=True)}'>"
        f"{escape(row.kernels[-1])}</td></tr>"
    )


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
<title>$name: profile</title>
<style>$style</style>
<header><h1>$name</h1><p>$about</p></header>
<div class="cards">$cards</div>
<section><h2>Timeline</h2><div class="line">$timeline</div><div class="scale">$scale</div></section>
<div class="two">
<section><h2>By type</h2>$types</section>
<section><h2>Slowest operators</h2>$slowest</section>
</div>
<section><h2>All operators, in run order</h2><div class="scroll"><table>
<thead><tr><th>#</th><th class="text">type</th><th class="text">name</th><th>median µs</th><th>min µs</th>
<th>M MACs</th><th>GMACPS</th><th>% peak</th><th>GB/s</th><th class="text">filter</th><th class="text">output</th>
<th class="text">kernel</th></tr></thead>
<tbody>$rows</tbody></table></div></section>
<script type="application/json" id="profile">$data</script>
<script>$script</script>
</html>
"""
