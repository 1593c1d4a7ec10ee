"""The report on a build as one self-contained HTML page: memory over time, sizes, layers, graph, times, validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from tenon.cli.console import count, size
from tenon.cli.device_placement import device_colours, device_shares
from tenon.cli.page_frame import OTHER, cards, colours, frame, section, table
from tenon.machine.plan.lifetimes import Lifetime
from tenon.machine.toolchain.size import Sizes
from tenon.network.graph.device_placement import DevicePlacement
from tenon.runtime.bundle.manifest import CallRecord, Manifest

_WIDTH, _HEIGHT = 1200, 360  # of the diagram of the memory, in its own units: it fills the width of the page


@dataclass(frozen=True)
class Checked:
    """An output, compared with the references of the operators on random data."""

    name: str
    cosine: float
    sqnr: float
    error: float


@dataclass(frozen=True)
class BuildReport:
    """The page's content.  ``graph`` and ``profile`` are pages; ``left_in_float`` has the layers that are not computed
    in the type asked for, and why; ``left_out`` says why a section is missing."""

    manifest: Manifest
    lifetimes: Sequence[Lifetime]
    sizes: Sizes | None
    graph: str
    profile: str = ""
    checked: Sequence[Checked] = ()
    left_out: Sequence[str] = ()
    left_in_float: Sequence[tuple[str, str]] = ()


def page(report: BuildReport) -> str:
    """The text of the page; names from the model are escaped."""
    manifest, memory = report.manifest, report.manifest.memory
    macs, moved = sum(s.macs for s in manifest.nodes), sum(layer.bytes for layer in _layers(manifest))
    figures = [
        (size(memory.constant), "weights"),
        (size(memory.peak), "peak RAM"),
        (size(memory.activations), f"of which activations (lower bound {size(memory.bound)})"),
        *([(size(report.sizes.code + report.sizes.data), "code and its constants")] if report.sizes else []),
        (count(macs), "multiply-accumulates"),
        (size(moved), "read and written by layers"),
        (f"{macs / moved:.1f}" if moved else "-", "multiply-accumulates for each byte"),
    ]
    hues = colours([op for op, _ in Counter(s.op for s in manifest.nodes).most_common()])
    body = [
        cards(figures),
        section("Memory: what the activations hold during a run", _memory(report, hues)),
        section("Layers", table(_LAYER_HEAD, [_layer(i, s) for i, s in enumerate(_layers(manifest))])),
        *([section("Layers left in f32", _left(report.left_in_float))] if report.left_in_float else []),
        *([section("Devices", _devices(manifest.placement))] if manifest.placement else []),
        section("Graph", _inner(report.graph, "graph")),
    ]
    if report.sizes:
        body.append(section("Code", _code(report.sizes)))
    if report.checked:
        body.append(section("Validation, against the references of the operators", _checks(report.checked)))
    if report.profile:
        body.append(section("Times", _inner(report.profile, "profile")))
    if report.left_out:
        body.append(section("Left out", "".join(f"<p>{escape(why)}</p>" for why in report.left_out)))
    about = f"{manifest.target.name} ({manifest.target.triple}, {manifest.target.cpu}) · Tenon {manifest.tenon}"
    return frame(f"{manifest.name}: report", manifest.name, about, "\n".join(body), manifest.json(), style=_STYLE)


def _devices(placement: DevicePlacement) -> str:
    """A row for each device, in the colours of the graph."""
    colours_of = device_colours(placement)
    head = "<th class=text>device</th><th>layers</th><th>copied there</th><th>copied back</th>"
    rows = [
        f"<tr><td class=text><i class=dot style='background:{colours_of[share.device]}'></i>{escape(share.device)}</td>"
        f"<td>{share.layers}</td><td data-v={share.there}>{share.copied[0]}</td>"
        f"<td data-v={share.back}>{share.copied[1]}</td></tr>"
        for share in device_shares(placement)
    ]
    return table(head, rows)


def _layers(manifest: Manifest) -> list[CallRecord]:
    """One step for each layer, with the multiply-accumulates of all of its calls and the bytes of the node."""
    layers = []
    for _, steps in groupby(manifest.nodes, lambda step: (step.layer, step.op)):
        calls = list(steps)
        layers.append(calls[-1]._replace(macs=sum(s.macs for s in calls), bytes=max(s.bytes for s in calls)))
    return layers


def _memory(report: BuildReport, hues: dict[str, str]) -> str:
    """Time to the right, addresses upwards; a rectangle is a tensor."""
    total = max([report.manifest.memory.activations, *(e.offset + e.bytes for e in report.lifetimes)], default=0)
    calls = len(report.manifest.nodes)
    if not report.lifetimes or not total:
        return "<p>The network keeps no intermediate results.</p>"
    across, up = _WIDTH / max(calls, 1), _HEIGHT / total
    shapes = [
        f"<rect x='{e.first * across:.2f}' y='{_HEIGHT - (e.offset + e.bytes) * up:.2f}' "
        f"width='{max((e.last - e.first + 1) * across, 0.5):.2f}' height='{max(e.bytes * up, 0.5):.2f}' "
        f"fill='{hues.get(e.op, OTHER)}'><title>{escape(e.layer)} ({escape(e.op)}): {e.bytes:,} bytes at {e.offset:,}, "
        f"calls {e.first} to {e.last}</title></rect>"
        for e in report.lifetimes
    ]
    bound = _HEIGHT - report.manifest.memory.bound * up
    marks = "".join(f"<span>{size(round(part * total / 4))}</span>" for part in range(4, -1, -1))
    line = f"<path d='M0 {bound:.2f}H{_WIDTH}'><title>lower bound</title></path>"
    legend = "".join(
        f"<span><i class=dot style='background:{colour}'></i>{escape(op)}</span>" for op, colour in hues.items()
    )
    diagram = (
        f"<svg id=memory viewBox='0 0 {_WIDTH} {_HEIGHT}' preserveAspectRatio=none role=img "
        f"aria-label='activations over time'>{''.join(shapes)}{line}</svg>"
    )
    axis = f"kernel calls 0 to {calls - 1}, in run order, to the right; addresses upwards; dashed: the lower bound"
    return (
        f"<div class=memory><div class=addresses>{marks}</div>{diagram}</div>"
        f"<p class=axis>{axis}</p><p class=legend>{legend}</p>"
    )


def _layer(i: int, step: CallRecord) -> str:
    name, dense = escape(step.layer, quote=True), step.macs / step.bytes if step.bytes else 0.0
    output = " x ".join(map(str, step.output))
    return (
        f"<tr><td data-v={i}>{i}</td><td class=text>{escape(step.op)}</td>"
        f"<td class='text name' title='{name}'>{name}</td>"
        f"<td class=text>{output}</td><td data-v={step.macs}>{count(step.macs)}</td>"
        f"<td data-v={step.bytes}>{size(step.bytes)}</td><td data-v='{dense:.5f}'>{dense:.1f}</td></tr>"
    )


def _left(layers: Sequence[tuple[str, str]]) -> str:
    rows = [f"<tr><td class=text>{escape(name)}</td><td class=text>{escape(why)}</td></tr>" for name, why in layers]
    return table("<th class=text>layer</th><th class=text>because</th>", rows)


def _code(sizes: Sizes) -> str:
    sections = (("code", sizes.code), ("constants and initial values", sizes.data), ("zeroed", sizes.zeroed))
    by_section = [f"<tr><td class=text>{name}</td><td data-v={n}>{size(n)}</td></tr>" for name, n in sections]
    most = max(sizes.functions.values(), default=1)
    functions = [
        f"<tr><td class='text name' title='{escape(name, quote=True)}'>{escape(name)}</td><td data-v={n}>"
        f"<i class=share style='width:{120 * n / most:.1f}px;background:hsl(212 62% 52%)'></i>{size(n)}</td></tr>"
        for name, n in sorted(sizes.functions.items(), key=lambda item: -item[1])
    ]
    listed = table("<th class=text>function</th><th>bytes</th>", functions) if functions else ""
    return f"<div class=two>{table('<th class=text>section</th><th>bytes</th>', by_section)}{listed}</div>"


def _checks(checked: Sequence[Checked]) -> str:
    rows = [
        f"<tr><td class=text>{escape(each.name)}</td><td data-v='{each.cosine:.9f}'>{each.cosine:.6f}</td>"
        f"<td data-v='{min(each.sqnr, 1e9):.4f}'>{f'{each.sqnr:.1f} dB' if each.sqnr < 1e9 else 'exact'}</td>"
        f"<td data-v='{each.error:.4e}'>{each.error:.1e}</td></tr>"
        for each in checked
    ]
    return table("<th class=text>output</th><th>cosine</th><th>SQNR</th><th>largest relative error</th>", rows)


def _inner(text: str, name: str) -> str:
    """Another page, in a frame of its own."""
    return f'<iframe id="{name}-page" title="{name}" srcdoc="{escape(text, quote=True)}"></iframe>'


_LAYER_HEAD = (
    "<th>#</th><th class=text>type</th><th class=text>name</th><th class=text>output</th><th>MACs</th><th>bytes</th>"
    "<th>MACs for each byte</th>"
)
_STYLE = """
.memory { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 8px; height: 360px; }
.addresses { display: flex; flex-direction: column; justify-content: space-between; text-align: right; font-size: 11px;
  color: var(--soft); } .axis { font-size: 12px; color: var(--soft); margin: 6px 0; }
#memory { width: 100%; height: 100%; } #memory rect { stroke: var(--card); stroke-width: .6; }
#memory rect, #memory path { vector-effect: non-scaling-stroke; } #memory rect:hover { opacity: .7; }
#memory path { stroke: var(--ink); stroke-dasharray: 4 3; fill: none; } .legend span { margin-right: 16px; }
@media (max-width: 700px) { .memory { height: 280px; } }
iframe { width: 100%; height: 640px; border: 1px solid var(--line); border-radius: 8px; background: var(--back); }
"""
