"""The engine that applies rules, and the property that every pass preserves results."""

from __future__ import annotations

import random

import numpy as np
import pytest

from evaluate import difference, evaluate, random_inputs
from tenon import ops, passes
from tenon.errors import InternalError
from tenon.ir.graph import Graph, Operation, Origin, Value
from tenon.ir.text import show
from tenon.ir.types import F32, tensor
from tenon.ir.verify import verify
from tenon.passes.base import Match, Result, apply, make, rule, run
from tenon.passes.patterns import ANY, Any, Apply, Constant, Number, find


def chain(*types: str) -> Graph:
    graph = Graph("chain")
    value = graph.add_input("x", tensor(F32, 2, 3))
    for i, type in enumerate(types):
        value = graph.add(make(type), [value], [f"v{i}"], Origin("f", f"layer{i}", type)).output
    graph.outputs = [value]
    return graph


# -------------------------------------------------------------------------------------------- patterns
def test_a_name_stands_for_one_value() -> None:
    graph = chain("Sigmoid")
    x, sigmoid = graph.inputs[0], graph.outputs[0]
    same = graph.add(make("Mul"), [x, sigmoid], ["same"])
    pattern = Apply("Mul", ANY, Apply("Sigmoid", ANY))
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
        assert find(Apply("Add", Any("x"), Number(2)), node, graph) is not None
        assert find(Apply("Add", Any("x"), Constant("c")), node, graph) is not None
        assert find(Apply("Add", Any("x"), Number(3)), node, graph) is None
    assert find(Apply("Sub", Any("x"), Number(2)), graph.add(make("Sub"), [c, x], ["z"]), graph) is None


# ---------------------------------------------------------------------------------------------- engine
@rule(Apply("Relu"))
def relu_to_abs(match: Match) -> Result:
    return match.add("Abs", match.root.input(0))


@rule(Apply("Abs"))
def abs_to_relu(match: Match) -> Result:
    return match.add("Relu", match.root.input(0))


@rule(Apply("Relu"))
def never(match: Match) -> Result:
    match.add("Abs", match.root.input(0))
    return "it is Tuesday"


@rule(Apply("Relu"))
def broken(match: Match) -> Result:
    return match.root.input(7)


@rule(Apply("Relu"))
def wrong_type(match: Match) -> Result:
    return match.constant("c", np.zeros(7, np.float32))


def test_outputs_keep_their_names() -> None:
    graph = chain("Relu", "Neg", "Relu")
    assert apply(graph, [relu_to_abs]) == 2
    verify(graph)
    assert [(n.op.name, n.origin.layer) for n in graph] == [("Abs", "layer0"), ("Neg", "layer1"), ("Abs", "layer2")]
    assert graph.outputs[0].name == "v2"


def test_a_rule_that_declines_leaves_nothing_behind_and_says_why() -> None:
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


def test_what_a_pass_leaves_is_checked() -> None:
    from tenon.passes.base import rules

    step = rules("none", never, level=0, ensures="", leaves=frozenset({"Relu"}))
    with pytest.raises(InternalError, match=r"pass 'none' left Relu\(\) at layer0"):
        run(chain("Relu"), step, verify=True)


# ------------------------------------------------------------------------------- an output that stays
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
    found = evaluate(graph, random_inputs(graph))
    assert found["y"].tolist() == [1, 1, 1]
    assert found["z"].tolist() == [-1, -1, -1]


# ------------------------------------------------------------------------------------------- property
class Grower:
    """Grows a random graph of images, and of what passes look for in them."""

    def __init__(self, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.graph = Graph(f"random{seed}")
        self.values = [self.graph.add_input("x", tensor(F32, 1, 4, 5, 5))]
        self.count = 0

    def add(self, op: Operation | str, *inputs: Value) -> Value:
        self.count += 1
        op = make(op) if isinstance(op, str) else op
        origin = Origin("", f"layer{self.count}", op.name)
        return self.graph.add(op, inputs, [f"v{self.count}"], origin).output

    def weights(self, *shape: int, low: float = -1, high: float = 1) -> Value:
        self.count += 1
        return self.graph.constant(f"c{self.count}", self.numbers.uniform(low, high, shape).astype(np.float32))

    def number(self, value: float) -> Value:
        self.count += 1
        return self.graph.constant(f"c{self.count}", np.array(value, np.float32))

    def grow(self) -> None:
        x = self.rng.choice(self.values[-3:])
        kind = self.rng.choice([name for name in dir(self) if name.startswith("make_")])
        self.values.append(getattr(self, kind)(x))

    def make_conv(self, x: Value) -> Value:
        pads, group = self.rng.choice(((0, 1), (1, 1), (1, 2), (1, 4)))
        w = self.weights(4, 4 // group, 1 + 2 * pads, 1 + 2 * pads)
        bias = [self.weights(4)] if self.rng.random() < 0.5 else []
        return self.add(make("Conv", pads=(pads,) * 4, group=group), x, w, *bias)

    def make_deconvolution(self, x: Value) -> Value:
        return self.add(make("ConvTranspose", pads=(1, 1, 1, 1), group=2), x, self.weights(4, 2, 3, 3))

    def make_normalization(self, x: Value) -> Value:
        rest = [self.weights(4), self.weights(4), self.weights(4), self.weights(4, low=0.5, high=2)]
        return self.add("BatchNormalization", x, *rest)

    def make_scale(self, x: Value) -> Value:
        shape = self.rng.choice(((1, 4, 1, 1), (4, 1, 1), (1,), ()))
        operands = [x, self.weights(*shape, low=0.5, high=2)]
        type = self.rng.choice(("Mul", "Add", "Sub", "Div"))
        if type in ("Mul", "Add"):
            self.rng.shuffle(operands)
        return self.add(type, *operands)

    def make_unary(self, x: Value) -> Value:
        return self.add(self.rng.choice(("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "HardSigmoid")), x)

    def make_sum(self, x: Value) -> Value:
        return self.add(self.rng.choice(("Add", "Mul", "Sub", "Max", "Sum")), x, self.rng.choice(self.values))

    def make_swish(self, x: Value) -> Value:
        return self.add("Mul", x, self.add(self.rng.choice(("Sigmoid", "HardSigmoid")), x))

    def make_hard_swish(self, x: Value) -> Value:
        clip = self.add("Clip", self.add("Add", x, self.number(3)), self.number(0), self.number(6))
        return self.add("Div", self.add("Mul", x, clip), self.number(6))

    def make_transposed(self, x: Value) -> Value:
        """A detour through channels last."""
        there = self.add(make("Transpose", perm=(0, 2, 3, 1)), x)
        inside = self.add(self.rng.choice(("Relu", "Tanh")), there)
        if self.rng.random() < 0.5:
            inside = self.add("Mul", inside, self.weights(4, low=0.5, high=2))
        return self.add(make("Transpose", perm=(0, 3, 1, 2)), inside)

    def make_reshaped(self, x: Value) -> Value:
        flat = self.add("Flatten", x)
        shape = self.graph.constant(f"shape{self.count}", np.array([1, 4, 5, 5]))
        return self.add("Reshape", flat, shape)

    def make_shuffle(self, x: Value) -> Value:
        split = self.graph.constant(f"split{self.count}", np.array([1, 2, 2, 5, 5]))
        join = self.graph.constant(f"join{self.count}", np.array([1, 4, 5, 5]))
        swapped = self.add(make("Transpose", perm=(0, 2, 1, 3, 4)), self.add("Reshape", x, split))
        return self.add("Reshape", swapped, join)

    def make_gate(self, x: Value) -> Value:
        """Squeeze and excitation."""
        mean = self.add("GlobalAveragePool", x)
        return self.add("Mul", x, self.add("Sigmoid", self.add("Conv", mean, self.weights(4, 4, 1, 1))))


@pytest.mark.parametrize("seed", range(40))
def test_every_pass_preserves_results(seed: int) -> None:
    grower = Grower(seed)
    for _ in range(14):
        grower.grow()
    graph = grower.graph
    graph.outputs = list(dict.fromkeys([grower.values[-1], grower.rng.choice(grower.values[1:])]))
    verify(graph)
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    for step in passes.PIPELINE:
        run(graph, step, verify=True)
        found = evaluate(graph, inputs)
        assert list(found) == list(expected)
        for name in expected:
            assert difference(found[name], expected[name]) < 2e-5, f"{step.name} changed '{name}'\n{show(graph)}"


def test_every_rule_applies_somewhere() -> None:
    """The golden cases and random graphs between them reach every operator that passes make."""
    made = {"Swish", "HardSwish", "HardSigmoid", "Gelu", "Mish", "ChannelShuffle", "GlobalAveragePool", "Gemm"}
    assert made <= ops.registry().keys()
