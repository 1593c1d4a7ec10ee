"""Mixtures of integers and floats as a self-contained HTML page: accuracy over cost; a click shows the command."""

from __future__ import annotations

import math
import shlex
from html import escape
from string import Template
from typing import Any

from tenon.cli.console import size
from tenon.cli.page_frame import frame, table
from tenon.tools.quantization import Point, Report

COSTS = (("time", "estimated time"), ("weights", "weights, bytes"), ("ram", "RAM, bytes"), ("bits", "bits of a weight"))
"""Fields of a point that the page can put along its axis."""


def pareto_page(name: str, report: Report, command: str, bundle: str = "") -> str:
    """The text of the page; ``command`` quantises without layers of other types, ``bundle`` compiles what it writes."""
    data = [_plain(each, command, bundle) for each in report.points]
    chosen = report.floats, report.wide, report.fp16
    rows = [_row(i, each, (each.floats, each.wide, each.fp16) == chosen) for i, each in enumerate(report.points)]
    costs = "".join(f"<option value={field}>{escape(text)}</option>" for field, text in COSTS)
    body = Template(_BODY).substitute(costs=costs, table=table(_HEAD, rows))
    about = (
        "SQNR of the outputs in dB over cost; points that no other beats in both are green. A click shows the command."
    )
    return frame(f"{name}: accuracy and cost", name, about, body, data, style=_STYLE, script=_SCRIPT)


def _plain(point: Point, command: str, bundle: str) -> dict[str, Any]:
    types = {"exclude": point.floats, "int16": point.wide, "fp16": point.fp16}
    words = "".join(f" --{name} {shlex.quote(layer)}" for name, layers in types.items() for layer in layers)
    if bundle:
        words += f" &&\n{bundle}" + " --precision fp16" * bool(point.fp16)
    sqnr = point.sqnr if math.isfinite(point.sqnr) else 120.0
    return {
        "sqnr": sqnr,
        "drop": point.drop,
        "time": point.time,
        "weights": point.weights,
        "ram": point.ram,
        "bits": point.bits,
        "floats": list(point.floats),
        "wide": list(point.wide),
        "fp16": list(point.fp16),
        "command": command + words,
    }


def _row(i: int, point: Point, chosen: bool) -> str:
    named = (point.floats, point.wide, point.fp16)
    cells = [escape(", ".join(names) or "none", quote=True) for names in named]
    layers = "".join(f"<td class='text name' title='{names}'>{names}</td>" for names in cells)
    mark = " (chosen)" if chosen else ""
    return (
        f"<tr data-point={i}><td data-v={i}>{i}{mark}</td><td data-v='{point.sqnr:.4f}'>{point.sqnr:.1f}</td>"
        f"<td data-v='{point.drop:.6f}'>{point.drop:.2f}</td><td data-v='{point.time:.3f}'>{point.time:,.0f}</td>"
        f"<td data-v={point.weights}>{size(point.weights)}</td><td data-v={point.ram}>{size(point.ram)}</td>"
        f"<td data-v='{point.bits:.4f}'>{point.bits:.1f}</td>{layers}</tr>"
    )


_SCRIPT = """
const points = JSON.parse(document.getElementById("data").textContent);
const plot = document.getElementById("plot"), cost = document.getElementById("cost");
const command = document.getElementById("command");
const make = (kind, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  plot.append(element);
  return element;
};
const choose = i => {
  command.textContent = points[i].command;
  document.querySelectorAll("[data-point]").forEach(e => e.classList.toggle("on", +e.dataset.point === i));
};
const draw = () => {
  plot.replaceChildren();
  const xs = points.map(p => p[cost.value]), ys = points.map(p => p.sqnr);
  const span = v => [Math.min(...v), Math.max(...v) > Math.min(...v) ? Math.max(...v) - Math.min(...v) : 1];
  const [x0, dx] = span(xs), [y0, dy] = span(ys);
  make("path", { d: "M50 10V270H690", fill: "none", stroke: "currentColor", "stroke-opacity": .4 });
  [[50, 290, x0], [640, 290, x0 + dx]].forEach(([x, y, v]) => make("text", { x, y }).textContent = v.toPrecision(4));
  [[4, 262, y0], [4, 22, y0 + dy]].forEach(([x, y, v]) => make("text", { x, y }).textContent = v.toFixed(1));
  points.forEach((p, i) => {
    const best = !points.some(q => q[cost.value] <= p[cost.value] && q.sqnr >= p.sqnr
      && (q[cost.value] < p[cost.value] || q.sqnr > p.sqnr));
    const dot = make("circle", { cx: 60 + 610 * (xs[i] - x0) / dx, cy: 260 - 240 * (ys[i] - y0) / dy, r: 7,
      "data-point": i, class: best ? "best" : "" });
    dot.addEventListener("click", () => choose(i));
  });
};
document.querySelectorAll("tr[data-point]").forEach(tr =>
  tr.addEventListener("click", () => choose(+tr.dataset.point)));
cost.addEventListener("change", draw);
draw();
"""

_STYLE = """
#plot { width: 100%; max-width: 820px; color: var(--ink); } #plot text { font-size: 11px; fill: var(--soft); }
circle { fill: hsl(220 8% 60%); cursor: pointer; } circle.best { fill: hsl(150 62% 42%); }
circle.on { stroke: hsl(28 90% 50%); stroke-width: 4; } tr.on td { background: hsl(28 90% 60% / .2); }
tr[data-point] { cursor: pointer; } code { display: block; white-space: pre-wrap; overflow-wrap: anywhere; }
"""

_HEAD = (
    "<th>#</th><th>SQNR, dB</th><th>drop, points</th><th>estimated time</th><th>weights</th><th>RAM</th><th>bits</th>"
    "<th class=text>in float</th><th class=text>in 16 bits</th><th class=text>in fp16</th>"
)

_BODY = """<section><label>Cost <select id="cost">$costs</select></label>
<svg id="plot" viewBox="0 0 700 300" role="img" aria-label="SQNR over cost"></svg>
<code id="command">Click on a point.</code></section>
<section><h2>Mixtures that were tried</h2>$table</section>"""
