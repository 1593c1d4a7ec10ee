"""The HTML page of a graph: contents, layout, and behaviour in a browser."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from onnx import NodeProto

import tenon
from browser import opened, session
from installed import succeeds
from installed import tenon as command
from onnx_models import model, node
from onnx_models import random as weights_of
from real import DIGITS
from tenon.cli.graph_layout import GAP, arrange
from tenon.cli.graph_page import page
from tenon.cli.profile_page import page as profile_page
from tenon.network.graph.device_placement import DevicePlacement, PlacedLayer
from tenon.network.graph.dot import to_dot
from tenon.network.graph.graph import Graph
from tenon.runtime.engine.profile import profile

HOSTILE = '</script><script>document.body.dataset.error="ran"</script>"\'&<b>\\'


def named(name: str, type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    made = node(type, inputs, outputs, **attributes)
    made.name = name
    return made


def graph() -> Graph:
    """Two branches that join, with names that need HTML escaping."""
    nodes = [
        named("stem", "Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        named(HOSTILE, "Sigmoid", ["a"], ["b"]),
        named("pool", "MaxPool", ["a"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        named("join", "Concat", ["b", "c"], ["d"], axis=1),
        named("twice", "Add", ["d", "d"], ["y"]),
    ]
    data = model(nodes, {"x": [1, 3, 8, 8]}, ["y"], {"w": weights_of(4, 3, 3, 3)}).SerializeToString()
    return tenon.load(data)


def page_data(text: str) -> list[dict[str, Any]]:
    """The JSON data of the page."""
    match = re.search(r'<script type="application/json" id="graph">(.*?)</script>', text, re.DOTALL)
    assert match
    boxes: list[dict[str, Any]] = json.loads(match[1])
    return boxes


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(page(graph()), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------- layout
def test_chain_is_laid_out_vertically() -> None:
    layout = arrange([50.0, 80.0, 20.0], [(0, 1), (1, 2)])
    assert len({round(x) for x, _ in layout.positions}) == 1
    assert [y for _, y in layout.positions] == sorted({y for _, y in layout.positions})


@pytest.mark.parametrize("seed", range(8))
def test_boxes_do_not_overlap_and_edges_point_down(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 60)
    widths = [rng.uniform(20, 200) for _ in range(count)]
    edges = [(rng.randrange(b), b) for b in range(1, count) for _ in range(rng.randrange(3))]
    layout = arrange(widths, edges)
    layers: dict[float, list[tuple[float, float]]] = {}
    for (x, y), width in zip(layout.positions, widths, strict=True):
        layers.setdefault(y, []).append((x - width / 2, x + width / 2))
        assert 0 <= x - width / 2 <= x + width / 2 <= layout.size[0]
        assert 0 < y < layout.size[1]
    for spans in layers.values():
        spans.sort()
        assert all(b[0] - a[1] >= GAP - 1e-6 for a, b in pairwise(spans))
    for (a, b), path in zip(edges, layout.paths, strict=True):
        assert (path[0], path[-1]) == (layout.positions[a], layout.positions[b])
        assert all(p[1] < q[1] for p, q in pairwise(path))


def test_empty_graph() -> None:
    assert arrange([], []).positions == []


# ----------------------------------------------------------------------------------------------- the page
def test_contents_of_the_page() -> None:
    boxes = page_data(page(graph()))
    assert [box["title"] for box in boxes] == ["input", "Conv", "Sigmoid", "MaxPool", "Concat", "Add", "output"]
    assert [box["reads"] for box in boxes] == [[], [0], [1], [1], [2, 3], [4], [5]]
    facts = dict(boxes[1]["facts"])
    assert facts["operator"] == "Conv(pads=(1, 1, 1, 1))"
    assert facts["constant"] == "w  f32[4,3,3,3]  432 B"
    assert facts["makes"] == "a  f32[1,4,8,8]"
    assert facts["multiply-accumulates"] == f"{4 * 8 * 8 * 3 * 9:,}"
    assert facts["parameters"] == "108"
    assert boxes[2]["name"] == HOSTILE


def test_frames_have_the_colours_of_devices() -> None:
    layers = (
        PlacedLayer("stem", "Conv", "opencl", "assigned"),
        PlacedLayer(HOSTILE, "Sigmoid", "opencl"),
        PlacedLayer("pool", "MaxPool", "cpu"),
        PlacedLayer("join", "Concat", HOSTILE),
    )
    text = page(graph(), DevicePlacement(layers))
    boxes = page_data(text)
    assert [box["device"] for box in boxes] == ["", "opencl", "opencl", "cpu", HOSTILE, "", ""]
    assert boxes[1]["facts"][-2:] == [["device", "opencl"], ["because", "assigned"]]
    assert HOSTILE not in text
    colours = dict(re.findall(r"data-device='(\w+)'><i class='frame' style='border-color:([^']*)'>", text))
    assert [len(re.findall(re.escape(f"stroke:{colours[name]}"), text)) for name in ("cpu", "opencl")] == [1, 2]
    assert "data-device" not in page(graph())


def test_page_is_self_contained_and_escapes_names() -> None:
    text = page(graph())
    assert not re.search(r"https?:|src=|url\(|@import|<link", text)
    assert HOSTILE not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert len(re.findall(r"<g class='(?:op|port)'", text)) == 7
    assert len(re.findall(r"<path d=", text)) == 8  # Add reads its operand twice


def test_shortened_names_stay_unique() -> None:
    nodes = [
        named(f"/model/backbone/features/stage.{i}/block/activation/Relu", "Relu", [f"v{i}"], [f"v{i + 1}"])
        for i in range(30)
    ]
    text = page(tenon.load(model(nodes, {"v0": [1, 8]}, ["v30"]).SerializeToString()))
    shown = re.findall(r"class='n'>([^<]*)<", text)
    assert len(shown) == len(set(shown)) == 32
    assert all(len(name) <= 30 for name in shown)


def test_unbound_dimensions() -> None:
    text = page(tenon.load(model([node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, ["y"]).SerializeToString()))
    assert "f32[n,4]" in text


def test_graph_command(tmp_path: Path) -> None:
    succeeds("inspect", DIGITS / "digits.onnx", "--html", "page.html", "--dot", "graph.dot", cwd=tmp_path)
    assert {box["title"] for box in page_data((tmp_path / "page.html").read_text())} >= {"input", "Conv+Relu", "Gemm"}
    assert (tmp_path / "graph.dot").read_text().startswith('digraph "digits"')
    done = command("inspect", DIGITS / "digits.onnx", "--html", tmp_path, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_dot_escapes_names() -> None:
    text = to_dot(graph())
    assert all(
        re.fullmatch(r'(digraph|\s|\w|->|\[|\]|=|,|;|\{|\}|"(?:[^"\\]|\\.)*")*', line) for line in text.splitlines()
    )


# ---------------------------------------------------------------------------------------------- a browser
def test_page_opens_offline(written: Path) -> None:
    document = opened(written)
    assert 'data-ready="7"' in document
    assert "data-error" not in document
    assert re.search(r'<g id="world"[^>]* transform="translate\([-\d.]+ [-\d.]+\) scale\([\d.]+\)"', document)
    assert 'id="details" hidden' in document


def test_a_link_shows_a_node(written: Path) -> None:
    document = opened(written, fragment="#1")
    details = document.partition('id="details"')[2].partition("</aside>")[0]
    assert "<h2>Conv</h2>" in details
    assert "w  f32[4,3,3,3]  432 B" in details
    assert "Sigmoid" in details  # goes to
    assert "data-error" not in document


def test_search_zoom_pan_and_clicks(written: Path) -> None:
    script = """
    const log = [], world_ = document.getElementById("world");
    const scale = () => +/scale\\(([^)]*)\\)/.exec(world_.getAttribute("transform"))[1];
    const shift = () => +/translate\\(([^ ]*)/.exec(world_.getAttribute("transform"))[1];
    const v = document.getElementById("view"), s = document.getElementById("search");
    let before = scale();
    v.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, clientX: 300, clientY: 300, cancelable: true }));
    log.push(["zoomed", scale() > before]);
    before = shift();
    v.dispatchEvent(new PointerEvent("pointerdown", { clientX: 100, clientY: 100 }));
    window.dispatchEvent(new PointerEvent("pointermove", { clientX: 160, clientY: 130 }));
    window.dispatchEvent(new PointerEvent("pointerup", {}));
    log.push(["panned", Math.round(shift() - before)]);
    s.value = "sigm"; s.dispatchEvent(new Event("input"));
    log.push(["hits", document.querySelectorAll("g.hit").length, document.getElementById("found").textContent]);
    s.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    log.push(["chosen", document.querySelector("g.chosen").dataset.i]);
    v.dispatchEvent(new PointerEvent("pointerdown", { clientX: 5, clientY: 5 }));
    window.dispatchEvent(new PointerEvent("pointerup", {}));
    document.querySelector("#boxes g[data-i='5'] rect").dispatchEvent(
      new MouseEvent("click", { bubbles: true, clientX: 5, clientY: 5 }));
    log.push(["clicked", document.querySelector("#details h2").textContent]);
    document.getElementById("fit").click();
    document.querySelector("#legend button[data-type='Conv']").click();
    log.push(["type", document.querySelectorAll("g.hit").length]);
    document.body.dataset.log = JSON.stringify(log);
    """
    document = opened(written, script)
    assert "data-error" not in document
    match = re.search(r'data-log="([^"]*)"', document)
    assert match
    log = json.loads(match[1].replace("&quot;", '"'))
    assert log == [
        ["zoomed", True],
        ["panned", 60],
        ["hits", 1, "1 found"],
        ["chosen", "2"],
        ["clicked", "Add"],
        ["type", 1],
    ]


def test_phone_shows_the_graph_beside_its_legend(written: Path, tmp_path: Path) -> None:
    """At 420 pixels: the legend covers no node, and nothing is wider than the window."""
    with session(tmp_path) as page:
        page.phone()
        page.open(written.as_uri())
        page.until("document.body.dataset.ready")
        under = page.evaluate(
            "(() => { const l = document.getElementById('legend').getBoundingClientRect();"
            "return [...document.querySelectorAll('#boxes > g')].map(g => g.getBoundingClientRect())"
            ".filter(b => b.top < l.bottom && b.bottom > l.top && b.left < l.right && b.right > l.left).length; })()"
        )
        assert under == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.evaluate("document.getElementById('view').clientHeight") > 400
        assert page.evaluate("document.getElementById('legend').clientHeight") < 60
        page.evaluate("choose(1)")
        details = page.evaluate("document.getElementById('details').getBoundingClientRect().height")
        assert 50 < details < 400
        assert not page.errors


def test_the_page_of_a_profile_opens_too(tmp_path: Path) -> None:
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", profile=True)) as engine:
        text = profile_page(profile(engine, 2, 0))
    path = tmp_path / "profile.html"
    path.write_text(text, encoding="utf-8")
    first = "document.querySelector('tbody').rows[0].id"
    script = f"document.querySelectorAll('th')[3].click(); document.body.dataset.first = {first};"
    document = opened(path, script)
    assert "data-error" not in document
    assert re.search(r'data-first="r\d+"', document)
