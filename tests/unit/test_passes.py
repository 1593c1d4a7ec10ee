"""The engine that applies rewrite rules, and that every pass preserves results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate, random_inputs
from fuzzing.generate import Generator
from tenon.errors import InternalError
from tenon.network import passes
from tenon.network.graph.graph import Graph, Origin
from tenon.network.graph.text import show
from tenon.network.graph.types import F32, tensor
from tenon.network.graph.verify import verify
from tenon.network.passes.base import Match, Result, apply, make, rule, run
from tenon.network.passes.patterns import ANY, Any, Constant, IsOp, Number, find


def chain(*types: str) -> Graph:
    graph = Graph("chain")
    value = graph.add_input("x", tensor(F32, 2, 3))
    for i, type in enumerate(types):
        value = graph.add(make(type), [value], [f"v{i}"], Origin("f", f"layer{i}", type)).output
    graph.outputs = [value]
    return graph


# -------------------------------------------------------------------------------------------- patterns
def test_pattern_name_matches_one_value() -> None:
    graph = chain("Sigmoid")
    x, sigmoid = graph.inputs[0], graph.outputs[0]
    same = graph.add(make("Mul"), [x, sigmoid], ["same"])
    pattern = IsOp("Mul", ANY, IsOp("Sigmoid", ANY))
    assert find(pattern, same, graph) is None, "the graph returns the sigmoid, so it may not vanish"
    graph.outputs = [same.output]
    assert find(pattern, same, graph) is not None
    other = graph.add_input("other", tensor(F32, 2, 3))
    graph.rewire(same, [other, sigmoid])
    assert find(pattern, same, graph) is None


def test_operands_in_either_order() -> None:
    graph = chain()
    x, c = graph.inputs[0], graph.constant("c", np.full(3, 2.0, np.float32))
    for inputs in ([x, c], [c, x]):
        node = graph.add(make("Add"), inputs, ["y"])
        assert find(IsOp("Add", Any("x"), Number(2)), node, graph) is not None
        assert find(IsOp("Add", Any("x"), Constant("c")), node, graph) is not None
        assert find(IsOp("Add", Any("x"), Number(3)), node, graph) is None
    assert find(IsOp("Sub", Any("x"), Number(2)), graph.add(make("Sub"), [c, x], ["z"]), graph) is None


# ---------------------------------------------------------------------------------------------- engine
@rule(IsOp("Relu"))
def relu_to_abs(match: Match) -> Result:
    return match.add("Abs", match.root.input(0))


@rule(IsOp("Abs"))
def abs_to_relu(match: Match) -> Result:
    return match.add("Relu", match.root.input(0))


@rule(IsOp("Relu"))
def never(match: Match) -> Result:
    match.add("Abs", match.root.input(0))
    return "it is Tuesday"


@rule(IsOp("Relu"))
def broken(match: Match) -> Result:
    return match.root.input(7)


@rule(IsOp("Relu"))
def wrong_type(match: Match) -> Result:
    return match.constant("c", np.zeros(7, np.float32))


def test_outputs_keep_their_names() -> None:
    graph = chain("Relu", "Neg", "Relu")
    assert apply(graph, [relu_to_abs]) == 2
    verify(graph)
    assert [(n.op.name, n.origin.layer) for n in graph] == [("Abs", "layer0"), ("Neg", "layer1"), ("Abs", "layer2")]
    assert graph.outputs[0].name == "v2"


def test_declined_rules_leave_no_nodes_and_log_the_reason() -> None:
    graph, said = chain("Relu"), list[str]()
    before = show(graph)
    assert apply(graph, [never], said.append) == 0
    assert show(graph) == before
    assert said == ["never declines layer0 (Relu): it is Tuesday"]


def test_failures_name_the_rule_and_the_node() -> None:
    with pytest.raises(InternalError, match=r"rule 'broken' failed on .* at layer0 \(Relu\)"):
        apply(chain("Relu"), [broken])
    with pytest.raises(InternalError, match=r"layer0 \(Relu\) would be replaced by"):
        apply(chain("Relu"), [wrong_type])
    with pytest.raises(InternalError, match="relu_to_abs, abs_to_relu do not come to an end"):
        apply(chain("Relu"), [relu_to_abs, abs_to_relu])


def test_result_of_a_pass_is_verified() -> None:
    from tenon.network.passes.base import rules

    step = rules("none", never, level=0, ensures="", leaves=lambda op: op.name == "Relu")
    with pytest.raises(InternalError, match=r"pass 'none' left Relu\(\) at layer0"):
        run(chain("Relu"), step, verify=True)


# ---------------------------------------------------------------------------------------- graph outputs
def test_an_output_that_is_an_input_keeps_its_node() -> None:
    graph = chain("Identity")
    passes.optimize(graph, verify=True)
    assert [(v.name, v.producer is not None) for v in graph.outputs] == [("v0", True)]


def test_two_outputs_of_one_value_keep_their_names() -> None:
    graph = chain("Relu", "Identity")
    graph.outputs.append(graph.nodes[0].output)
    passes.optimize(graph, verify=True)
    assert [v.name for v in graph.outputs] == ["v1", "v0"]


def test_a_constant_output() -> None:
    graph = chain()
    c = graph.constant("c", np.ones(3, np.float32))
    graph.outputs = [graph.add(make("Identity"), [c], ["y"]).output, graph.add(make("Neg"), [c], ["z"]).output]
    passes.optimize(graph, verify=True)
    actual = evaluate(graph, random_inputs(graph))
    assert actual["y"].tolist() == [1, 1, 1]
    assert actual["z"].tolist() == [-1, -1, -1]


# ------------------------------------------------------------------------------------------- property
@pytest.mark.parametrize("seed", range(40))
def test_every_pass_preserves_results(seed: int, tmp_path: Path) -> None:
    """On random graphs of the patterns that passes match; ``test_validate`` has more general ones."""
    graph = Generator(seed, nodes=14, idioms=1.0).sample().graph
    passes.optimize(graph, verify=True, failures=tmp_path)
