"""Write results as Markdown, JSON and a plot."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path

from contenders import PRECISIONS
from race import Lane, Result

_COLOURS = {
    "tenon-bf16": "#b9b9b9",
    "onnxruntime": "#3b7dd8", "openvino": "#8a55c7", "openvino-default": "#c8b2e4", "ncnn": "#e08a2e",
    "litert": "#2f9e72",
}  # fmt: skip


def save(folder: Path, results: Sequence[Result]) -> None:
    """``results.json``: all samples, for further statistics."""
    folder.mkdir(parents=True, exist_ok=True)
    races = [
        {
            "net": r.net,
            "threads": r.threads,
            "ratios": {precision: r.ratio(precision) for precision in PRECISIONS},
            "runtimes": [asdict(lane) for lane in r.lanes],
        }
        for r in results
    ]
    data = {"machine": machine(), "unit": "ms", "races": races}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")


def machine() -> str:
    """The processor's name, if known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in lines if ":" in line}
    if "model name" not in fields:
        return platform.machine()
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')})"


def markdown(results: Sequence[Result]) -> str:
    """Tables of all results, one per number of threads and precision."""
    by_threads = [[r for r in results if r.threads == n] for n in sorted({r.threads for r in results})]
    return "\n".join(_table(of, p) for of in by_threads for p in PRECISIONS if of[0].lane(PRECISIONS[p].ours))


def mean_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean; NaN for an empty list."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def summary(results: Sequence[Result]) -> str:
    """Every network's ratios, minima / medians, by precision and number of threads, with geometric means."""
    threads = sorted({r.threads for r in results})
    columns = [(p, n) for p in PRECISIONS for n in threads if any(r.threads == n and r.pair(p) for r in results)]
    lines = [f"{'fastest peer / Tenon':20}" + "".join(f"{f'{p} x{n}':>13}" for p, n in columns)]
    for net in dict.fromkeys(r.net for r in results):
        cells = [_ratios([r for r in results if r.net == net and r.threads == n], p) for p, n in columns]
        lines.append(f"{net:20}" + "".join(f"{cell:>13}" for cell in cells))
    for title, of in (("geometric mean", mean_ratio), ("least", min)):
        cells = [_ratios([r for r in results if r.threads == n], p, of) for p, n in columns]
        lines.append(f"{title:20}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def _ratios(results: Sequence[Result], precision: str, of: Callable[[Sequence[float]], float] = mean_ratio) -> str:
    least = [ratio for r in results if (ratio := r.ratio(precision))]
    middle = [ratio for r in results if (ratio := r.median_ratio(precision))]
    return f"{of(least):.2f} / {of(middle):.2f}" if least else "-"


def _table(results: Sequence[Result], precision: str) -> str:
    runtimes = (PRECISIONS[precision].ours, *PRECISIONS[precision].peers)
    lanes = [[lane for lane in r.lanes if lane.runtime in runtimes] for r in results]
    threads = results[0].threads
    lines = [
        f"### {precision}, {threads} thread{'s' if threads > 1 else ''}: minimum / median ms",
        "",
        "| network | " + " | ".join(lane.runtime for lane in lanes[0]) + " | fastest peer / Tenon | error of ours |",
        "|---" * (len(lanes[0]) + 3) + "|",
    ]
    for result, own in zip(results, lanes, strict=True):
        cells = [_cell(lane, fastest=result.fastest(precision) is lane) for lane in own]
        ours, ratio = result.lane(runtimes[0]), result.ratio(precision)
        error = f"{ours.error:.1e}" if ours and ours.times else "-"
        shown = f"{ratio:.2f}" if ratio else "-"
        lines.append(f"| {result.net} | {' | '.join(cells)} | {shown} | {error} |")
    pairs = [(r, lane) for r, own in zip(results, lanes, strict=True) for lane in own]
    notes = sorted({f"{lane.runtime}, {r.net}: {lane.note}" for r, lane in pairs if lane.note})
    failed = [(r, lane) for r, lane in pairs if lane.times and lane.wrong]
    wrong = sorted(f"{lane.runtime}, {r.net}: wrong by {lane.error:.1e}, not counted" for r, lane in failed)
    mean = mean_ratio([ratio for r in results if (ratio := r.ratio(precision))])
    lines += ["", f"Geometric mean of the ratio: {mean:.2f}.", ""]
    return "\n".join([*lines, *(f"- {note}" for note in [*wrong, *notes]), ""])


def _cell(lane: Lane, *, fastest: bool) -> str:
    if not lane.times:
        return "-"
    text = f"{lane.best:.2f} / {lane.median:.2f}"
    return f"**{text}**" if fastest else f"{text} (!)" if lane.wrong else text


def plot(results: Sequence[Result]) -> str:
    """An SVG: for each network, every peer's time over Tenon's; Tenon is faster to the right of the line at 1."""
    runtimes = [name for name in _COLOURS if any((lane := r.lane(name)) and lane.times for r in results)]
    bar, gap, left, width = 9, 12, 150, 640
    height = len(results) * (bar * len(runtimes) + gap)
    ratios = [_over(r, name) or 0 for r in results for name in runtimes]
    most = max([1.5, *ratios]) * 1.05

    def x(ratio: float) -> float:
        return left + width * ratio / most

    shapes, y = [], 70.0
    for r in results:
        shapes.append(_text(left - 8, y + bar * len(runtimes) / 2 + 4, r.net, "end"))
        for name in runtimes:
            ratio = _over(r, name)
            if ratio:
                shapes.append(f'<rect x="{left}" y="{y:.1f}" width="{x(ratio) - left:.1f}" height="{bar - 1}" '
                              f'rx="1.5" fill="{_COLOURS[name]}"/>')  # fmt: skip
                shapes.append(_text(x(ratio) + 4, y + bar - 1.5, f"{ratio:.2f}", "start", 8))
            y += bar
        y += gap
    ticks = [i / 2 for i in range(1, int(most * 2) + 1)]
    grid = [f'<line x1="{x(t):.1f}" y1="60" x2="{x(t):.1f}" y2="{height + 66}" stroke="{"#222" if t == 1 else "#ddd"}" '
            f'stroke-width="{1.4 if t == 1 else 1}"/>' + _text(x(t), height + 82, f"{t:g}x", "middle", 10)
            for t in ticks]  # fmt: skip
    legend = [f'<rect x="{left + 130 * i}" y="40" width="11" height="11" rx="2" fill="{_COLOURS[name]}"/>'
              + _text(left + 16 + 130 * i, 50, name, "start") for i, name in enumerate(runtimes)]  # fmt: skip
    threads = results[0].threads
    title = f"Time of each runtime over Tenon's, {threads} thread{'s' if threads > 1 else ''}, fp32, batch 1"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{height + 100}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{left}" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
        *grid, *legend, *shapes, "</svg>", "",
    ])  # fmt: skip


def _over(result: Result, runtime: str) -> float | None:
    ours, lane = result.lane("tenon"), result.lane(runtime)
    return lane.best / ours.best if ours and ours.times and lane and lane.times and not lane.wrong else None


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
