"""Every rewrite rule of every pass applies to a golden graph of its pass, or to a graph made from its pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evaluate import difference, evaluate, random_inputs
from tenon.network import ops, passes
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.text import parse
from tenon.network.graph.types import F32, tensor
from tenon.network.passes.base import Match, Pass, Result, Rule, apply, make
from tenon.network.passes.idioms import IDIOMS
from tenon.network.passes.patterns import Any, IsOp, Number, Pattern

GOLDEN = Path(__file__).parents[1] / "golden" / "passes"
STEPS = {step.name: step for step in passes.PIPELINE}
RULES = {(step.name, i): one for step in STEPS.values() for i, one in enumerate(step.rules)}


def watched(step: Pass, fired: set[tuple[str, int]]) -> list[Rule]:
    """The rules of a pass, which add themselves to ``fired`` when they replace something."""

    def watching(i: int, one: Rule) -> Rule:
        def rewrite(match: Match) -> Result:
            result = one.rewrite(match)
            if result is not None and not isinstance(result, str):
                fired.add((step.name, i))
            return result

        return replace(one, rewrite=rewrite)

    return [watching(i, one) for i, one in enumerate(step.rules)]


def of_pattern(pattern: IsOp) -> Graph:
    """A graph that matches the pattern, on one input."""
    graph = Graph("pattern")
    x = graph.add_input("x", tensor(F32, 1, 4, 3, 3))

    def value(part: Pattern) -> Value:
        match part:
            case Any():
                return x
            case Number(number):
                return graph.constant(f"c{len(graph.nodes)}", np.array(number, np.float32))
            case IsOp():
                inputs = [value(each) for each in part.inputs]
                return graph.add(make(sorted(part.ops)[0]), inputs, [f"v{len(graph.nodes)}"]).output
        raise NotImplementedError(part)

    graph.outputs = [value(pattern)]
    return graph


def spelled(step: Pass) -> Iterator[tuple[int, Rule]]:
    """Rules whose pattern consists of values and numbers only."""

    def plain(part: Pattern) -> bool:
        if isinstance(part, IsOp):
            return bool(part.inputs) and "*" not in part.ops and all(map(plain, part.inputs))
        return isinstance(part, Number) or (isinstance(part, Any) and part.name == "x")

    by_attributes = ("hard_swish_from_gate",)  # a golden graph has them
    return ((i, one) for i, one in enumerate(step.rules) if plain(one.pattern) and one.name not in by_attributes)


SPELLED = list(spelled(IDIOMS))


@pytest.mark.parametrize(("i", "one"), SPELLED, ids=lambda v: v.name.replace(" ", "_") if isinstance(v, Rule) else None)
def test_idioms_are_recognised_in_their_written_form(i: int, one: Rule) -> None:
    graph, fired = of_pattern(one.pattern), set[tuple[str, int]]()
    before, inputs = graph.copy(), random_inputs(graph)
    apply(graph, [watched(IDIOMS, fired)[i]])
    assert fired == {(IDIOMS.name, i)}
    assert len(graph) == 1
    (old,), (new,) = evaluate(before, inputs).values(), evaluate(graph, inputs).values()
    # The tanh approximation is kept; constants are compared to six digits.
    assert difference(new, old) < 1e-5


@cache
def fired_on_golden() -> frozenset[tuple[str, int]]:
    fired = set[tuple[str, int]]()
    for path in sorted(GOLDEN.glob("*.txt")):
        if not path.name.endswith(".expected.txt"):
            text = path.read_text()
            step = STEPS[text.splitlines()[0].removeprefix("# pass: ")]
            apply(parse(text, ops.registry()), watched(step, fired))
    return frozenset(fired)


@pytest.mark.parametrize(("step", "i"), RULES, ids=[f"{step}-{one.name}-{i}" for (step, i), one in RULES.items()])
def test_every_rule_applies_somewhere(step: str, i: int) -> None:
    recognised = {(IDIOMS.name, j) for j, _ in SPELLED}
    assert (step, i) in fired_on_golden() | recognised, "no golden graph has what this rule rewrites"
