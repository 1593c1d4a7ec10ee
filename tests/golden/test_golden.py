"""Each pass on a small graph: passes/NAME.txt is the graph, NAME.expected.txt the graph after the pass.

The first line of a graph names the pass. ``pytest tests/golden --update-golden`` rewrites the expected graphs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import difference, evaluate, random_inputs
from tenon.network import ops, passes
from tenon.network.graph.graph import Graph
from tenon.network.graph.text import parse, show
from tenon.network.passes.base import Pass, run

pytestmark = pytest.mark.quick

CASES = sorted(p for p in (Path(__file__).parent / "passes").glob("*.txt") if not p.name.endswith(".expected.txt"))
PASSES = {p.name: p for p in passes.PIPELINE}


def read(path: Path) -> tuple[Graph, Pass]:
    text = path.read_text()
    return parse(text, ops.registry()), PASSES[text.splitlines()[0].removeprefix("# pass: ")]


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_golden(path: Path, update_golden: bool) -> None:
    graph, step = read(path)
    run(graph, step, verify=True)
    expected = path.with_suffix(".expected.txt")
    if update_golden:
        expected.write_text(show(graph, "none"))
    assert show(graph, "none") == expected.read_text()


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_results_are_preserved(path: Path) -> None:
    graph, step = read(path)
    inputs = random_inputs(graph)
    before = evaluate(graph, inputs)
    changes = run(graph, step, verify=True)
    after = evaluate(graph, inputs)
    assert after.keys() == before.keys()
    assert all(difference(after[name], before[name]) < 1e-5 for name in before)
    assert bool(changes) != path.stem.startswith("keep_")


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_whole_pipeline_preserves_results(path: Path, level: int) -> None:
    graph, _ = read(path)
    inputs = random_inputs(graph, seed=1)
    before = evaluate(graph, inputs)
    passes.optimize(graph, verify=True, level=level)
    after = evaluate(graph, inputs)
    assert all(difference(after[name], before[name]) < 1e-5 for name in before)
    count = len(graph)
    text = show(graph)
    passes.optimize(graph, verify=True, level=level)
    assert (len(graph), show(graph)) == (count, text), "optimising twice must change nothing"


def test_every_pass_has_a_case() -> None:
    assert {read(path)[1].name for path in CASES} == set(PASSES)


def test_no_output_is_lost() -> None:
    graph, _ = read(CASES[0])
    names = [v.name for v in graph.outputs]
    passes.optimize(graph)
    assert [v.name for v in graph.outputs] == names
    assert all(np.isfinite(a).all() for a in evaluate(graph, random_inputs(graph)).values())
