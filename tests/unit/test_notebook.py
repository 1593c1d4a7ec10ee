"""``repr`` and notebook representations of graphs, bundles and engines."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import pytest

import onnx_models
import tenon
from tenon.network.graph.notebook import ROWS, html_table, tensors

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
LONGEST = 300
"""Characters of a line about a network, whatever its size."""


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """A network with forty inputs and outputs whose names need escaping, as graph, bundle and engine."""
    names = [f"<b>&{i}" for i in range(40)]
    nodes = [onnx_models.node("Relu", [name], [f"{name}_out"]) for name in names]
    model = onnx_models.model(nodes, dict.fromkeys(names, (2, 3)), [f"{name}_out" for name in names])
    graph = tenon.load(model.SerializeToString())
    bundle = tenon.compile(graph, name="many")
    engine = tenon.open(bundle)
    return {"graph": graph, "bundle": bundle, "engine": engine, "manifest": engine.manifest, "program": bundle.program}


@pytest.mark.parametrize("what", ["graph", "bundle", "engine", "manifest", "program"])
def test_repr_is_short(what: str, shown: dict[str, Any]) -> None:
    text = repr(shown[what])
    assert len(text) < LONGEST
    assert "'many'" in text or what == "graph"
    if what != "program":
        assert "<b>&0 f32[2,3]" in text
        assert "36 more" in text


@pytest.mark.parametrize("what", ["graph", "bundle", "engine"])
def test_tables_are_small_and_escaped(what: str, shown: dict[str, Any]) -> None:
    text = shown[what]._repr_html_()
    rows, tags = 0, list[str]()

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            nonlocal rows
            rows += tag == "tr"
            tags.append(tag)

    Parser().feed(text)
    assert set(tags) == {"table", "caption", "tr", "td", "th"}
    assert ROWS <= rows <= 2 * ROWS + 4
    assert "&lt;b&gt;&amp;0" in text


def test_an_example() -> None:
    with tenon.open(tenon.compile(DIGITS)) as engine:
        assert repr(engine).endswith(": image f32[1,1,8,8] -> probabilities f32[1,10])")
        assert '<td style="text-align:right">image</td>' in engine._repr_html_()
    assert repr(engine) == "Engine('digits', closed)"
    assert engine._repr_html_().startswith("<table><caption>Closed engine digits</caption>")


def test_networks_without_inputs_or_shapes() -> None:
    assert tensors([]) == "nothing"
    assert html_table("x", []) == "<table><caption>x</caption></table>"
    unbound = onnx_models.model([onnx_models.node("Relu", ["x"], ["y"])], {"x": ("n", 3)}, ["y"])
    graph = tenon.load(unbound.SerializeToString())
    assert repr(graph).startswith("Graph(")
    assert "x" in graph._repr_html_()
