"""Random nests of If, Loop and Scan: what ONNX Runtime computes, the references and C compute, too.

``TENON_FUZZ=5000 scripts/test tests/fuzz/test_nested_control_flow.py -m slow`` runs as many graphs, each as C too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from exact_onnxruntime import session
from gpu_devices import needs_compiler, why_not
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.verify import verify
from tenon.network.ops.branch import If
from tenon.network.ops.scan import Scan

SHAPE = (3, 5)
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Nest:
    """Grows a random model.  ``floats`` of a scope are tensors of one shape, ``bools`` and ``numbers`` are scalars."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.count = 0
        self.statements = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    # ------------------------------------------------------------------------------------------ nodes
    def node(self, nodes: list[onnx.NodeProto], type: str, inputs: Sequence[str], **attributes: Any) -> str:
        (made,) = self.several(nodes, type, inputs, 1, **attributes)
        return made

    def several(
        self, nodes: list[onnx.NodeProto], type: str, inputs: Sequence[str], count: int, **attributes: Any
    ) -> list[str]:
        outputs = [self.name(type.lower()) for _ in range(count)]
        nodes.append(helper.make_node(type, inputs, outputs, name=outputs[0], **attributes))
        return outputs

    def constant(self, nodes: list[onnx.NodeProto], value: Any, dtype: str) -> str:
        array = numpy_helper.from_array(np.array(value, dtype))
        return self.node(nodes, "Constant", [], value=array)

    # ----------------------------------------------------------------------------------------- scopes
    def statement(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        kinds = ["unary", "binary", "condition", "number"]
        if depth and self.statements < 14:
            kinds += ["if", "loop", "if", "loop", "scan"]
        self.statements += 1
        getattr(self, f"add_{self.dice.choice(kinds)}")(nodes, scope, depth)

    def add_unary(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        type = self.dice.choice(["Tanh", "Neg", "Sin", "Abs", "Identity", "Sigmoid"])
        scope.floats.append(self.node(nodes, type, [self.dice.choice(scope.floats)]))

    def add_binary(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        a, b = self.dice.choice(scope.floats), self.dice.choice(scope.floats)
        sum = self.node(nodes, self.dice.choice(["Add", "Sub", "Mul", "Max"]), [a, b])
        scope.floats.append(self.bounded(nodes, sum, 0.4))

    def add_condition(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        kind = self.dice.choice(["sum", "not", "number", "and"])
        if kind == "not":
            made = self.node(nodes, "Not", [self.dice.choice(scope.bools)])
        elif kind == "and":
            made = self.node(nodes, "And", [self.dice.choice(scope.bools), self.dice.choice(scope.bools)])
        elif kind == "number":
            limit = self.constant(nodes, self.dice.randrange(5), "int64")
            made = self.node(nodes, "Less", [self.dice.choice(scope.numbers), limit])
        else:
            sum = self.node(nodes, "ReduceSum", [self.dice.choice(scope.floats)], keepdims=0)
            made = self.node(nodes, "Greater", [sum, self.constant(nodes, self.dice.uniform(-1, 1), "float32")])
        scope.bools.append(made)

    def add_number(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        sum = self.node(nodes, "Add", [self.dice.choice(scope.numbers), self.dice.choice(scope.numbers)])
        made = self.node(nodes, "Mod", [sum, self.constant(nodes, self.dice.choice([3, 5, 40]), "int64")])
        scope.numbers.append(made)
        product = self.node(nodes, "Mul", [self.node(nodes, "Cast", [made], to=FLOAT), scope.floats[0]])
        scope.floats.append(self.bounded(nodes, product, 0.02))

    def bounded(self, nodes: list[onnx.NodeProto], value: str, factor: float) -> str:
        """A function of a tensor that makes differences smaller, so that roundings do not grow in loops."""
        return self.node(nodes, "Sin", [self.node(nodes, "Mul", [value, self.constant(nodes, factor, "float32")])])

    # ----------------------------------------------------------------------------------- control flow
    def add_if(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        results = self.dice.randint(1, 2)
        bodies = [self.body(Scope.within(scope), [], results, depth) for _ in range(2)]
        condition = self.dice.choice(scope.bools)
        scope.floats += self.several(nodes, "If", [condition], results, then_branch=bodies[0], else_branch=bodies[1])

    def add_loop(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        states, rows = self.dice.randint(1, 2), self.dice.randint(0, 1) if scope.outermost else 0
        kind = self.dice.choice(["few", "many", "input", "open", "few", "input"])
        draw: dict[str, Callable[[], str]] = {
            "few": lambda: self.constant(nodes, self.dice.randrange(4), "int64"),
            "many": lambda: self.constant(nodes, self.dice.randint(33, 40), "int64"),
            "input": lambda: self.dice.choice(scope.numbers),
            "open": lambda: "",
        }
        trips = draw[kind]()
        rows = rows if kind in ("few", "many") else 0
        holds = self.dice.choice([self.constant(nodes, True, "bool"), self.dice.choice(scope.bools), ""])
        inner = Scope.within(scope)
        i, c, own = self.name("i"), self.name("c"), [self.name("s") for _ in range(states)]
        inner.numbers.append(i)
        inner.bools.append(c)
        inner.floats = [*own, *inner.floats]
        ports = [port(i, INT, ()), port(c, BOOL, ()), *(port(name, FLOAT, SHAPE) for name in own)]
        body = self.body(inner, ports, states + rows, depth, ends=kind == "open" or self.dice.random() < 0.4, first=c)
        initial = [self.dice.choice(scope.floats) for _ in own]
        outputs = self.several(nodes, "Loop", [trips, holds, *initial], states + rows, body=body)
        scope.floats += outputs[:states]
        scope.stacked += outputs[states:]

    def add_scan(self, nodes: list[onnx.NodeProto], scope: Scope, depth: int) -> None:
        rows = self.dice.choice([2, 35])
        repeats = self.constant(nodes, [rows, 1, 1], "int64")
        axes = self.constant(nodes, [0], "int64")
        whole = self.node(
            nodes, "Tile", [self.node(nodes, "Unsqueeze", [self.dice.choice(scope.floats), axes]), repeats]
        )
        ramp = self.constant(nodes, np.linspace(-1, 1, rows).reshape(rows, 1, 1), "float32")
        whole = self.node(nodes, "Mul", [whole, ramp])
        state, part, inner = self.name("s"), self.name("x"), Scope.within(scope)
        inner.floats = [state, part, *inner.floats]
        body = self.body(inner, [port(state, FLOAT, SHAPE), port(part, FLOAT, SHAPE)], 2, depth)
        back = self.dice.randrange(2)
        outputs = self.several(
            nodes,
            "Scan",
            [self.dice.choice(scope.floats), whole],
            2,
            body=body,
            num_scan_inputs=1,
            scan_input_directions=[back],
            scan_output_directions=[self.dice.randrange(2)],
        )
        scope.floats += [outputs[0], self.node(nodes, "ReduceMean", [outputs[1], axes], keepdims=0)]

    def body(
        self, scope: Scope, ports: Sequence[Any], results: int, depth: int, *, ends: bool = False, first: str = ""
    ) -> onnx.GraphProto:
        nodes: list[onnx.NodeProto] = []
        for _ in range(self.dice.randint(1, 4)):
            self.statement(nodes, scope, depth - 1)
        outputs = [self.node(nodes, "Identity", [self.recent(scope.floats)]) for _ in range(results)]
        declared = [port(name, FLOAT, SHAPE) for name in outputs]
        if first:
            holds = self.node(nodes, "Identity", [first])
            if ends:
                below = self.node(
                    nodes, "Less", [ports[0].name, self.constant(nodes, self.dice.randint(0, 6), "int64")]
                )
                holds = self.node(nodes, "And", [below, self.dice.choice([first, scope.bools[-1]])])
            declared.insert(0, port(holds, BOOL, ()))
        return helper.make_graph(nodes, self.name("body"), list(ports), declared)

    def recent(self, names: Sequence[str]) -> str:
        return names[max(0, len(names) - 1 - self.dice.randrange(3))]

    def model(self) -> bytes:
        nodes: list[onnx.NodeProto] = []
        scope = Scope(["x", "w"], ["c", "d"], ["n", "m"], [], outermost=True)
        while self.statements < 7:
            self.statement(nodes, scope, 3)
        outputs = [self.node(nodes, "Identity", [name]) for name in dict.fromkeys(scope.floats[-2:])]
        inputs = [
            *(port(name, FLOAT, SHAPE) for name in "xw"),
            *(port(name, BOOL, ()) for name in "cd"),
            *(port(name, INT, ()) for name in "nm"),
        ]
        wanted = [*(port(name, FLOAT, SHAPE) for name in outputs), *(port(n, FLOAT, None) for n in scope.stacked)]
        graph = helper.make_graph(nodes, "nest", inputs, wanted)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
        content: bytes = made.SerializeToString()
        return content


class Scope:
    """The names that nodes of a graph can read."""

    def __init__(
        self, floats: list[str], bools: list[str], numbers: list[str], stacked: list[str], *, outermost: bool = False
    ) -> None:
        self.floats, self.bools, self.numbers, self.stacked, self.outermost = floats, bools, numbers, stacked, outermost

    @staticmethod
    def within(scope: Scope) -> Scope:
        return Scope([*scope.floats], [*scope.bools], [*scope.numbers], [])


def port(name: str, dtype: int, shape: Sequence[int] | None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def feeds(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    draw: dict[str, Callable[[Value], Array]] = {
        "f32": lambda v: rng.normal(0, 1, v.type.dims).astype(np.float32),
        "bool": lambda v: np.array(bool(rng.integers(2))),
        "i64": lambda v: np.array(rng.integers(0, 6), np.int64),
    }
    return {v.name: draw[str(v.type.dtype)](v) for v in graph.inputs}


def compare(results: dict[str, Array], right: Sequence[Array], graph: Graph, where: str) -> None:
    values = iter(right)
    counts = {count for ((_, count),) in graph.extents.values()}
    for v in graph.outputs:
        if v.name in counts:
            continue
        expected, got = next(values), results[v.name]
        if v.name in graph.extents:
            got = got[: int(results[graph.extents[v.name][0][1]])]
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4, err_msg=f"{where}: {v.name}")


def check(seed: int, *, compiled: bool, target: str = "host") -> None:
    content = Nest(seed).model()
    peer, graph = session(content), tenon.load(content)
    verify(graph)
    runs = [(feeds(graph, n), f"graph {seed}, input {n}") for n in range(3)]
    names = {i.name for i in peer.get_inputs()}
    right = [peer.run(None, {k: v for k, v in given.items() if k in names}) for given, _ in runs]
    for (given, where), expected in zip(runs, right, strict=True):
        compare(evaluate(graph, given), expected, graph, f"{where}, reference")
    if compiled:
        verified, threads = seed % 4 == 0, 1 + seed % 2 if target == "host" else 1
        bundle = tenon.compile(graph, target=target, threads=threads, no_tuning=True, verify=verified)
        with tenon.open(bundle) as engine:
            for (given, where), expected in zip(runs, right, strict=True):
                compare(engine.run(given), expected, graph, f"{where}, {target}")


@pytest.mark.parametrize("seed", range(12))
def test_nests(seed: int) -> None:
    check(seed, compiled=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(104, 110))
def test_written_nests(seed: int) -> None:
    """A graph that is written as ONNX has its If, Loop and Scan nodes, and ONNX Runtime computes the same by it."""
    graph = tenon.load(Nest(seed).model())
    written = to_onnx(graph)
    bodies = {_ONNX[type(node.op)](node.op) for node in graph if node.bodies}
    assert bodies <= {node.op_type for node in written.graph.node}
    peer = session(written.SerializeToString())
    names = {i.name for i in peer.get_inputs()}
    for number in range(2):
        given = feeds(graph, number)
        right = evaluate(graph, given)
        results = peer.run(None, {k: v for k, v in given.items() if k in names})
        for value, result in zip(graph.outputs, results, strict=True):
            np.testing.assert_allclose(result, right[value.name], rtol=1e-3, atol=1e-4, err_msg=value.name)


_ONNX: dict[type, Callable[[Any], str]] = {
    If: lambda op: "If",
    Scan: lambda op: "Loop" if op.counted else "Scan",
}
"""The ONNX operators of nodes with bodies."""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["opencl", "cuda", "vulkan"])
def test_nests_on_devices(target: str) -> None:
    if reason := why_not(target):
        pytest.skip(reason)
    needs_compiler(target)
    for seed in range(100, 100 + int(os.environ.get("TENON_FUZZ", "200")) // 5):
        check(seed, compiled=True, target=target)


@pytest.mark.slow
def test_many_nests() -> None:
    for seed in range(100, 100 + int(os.environ.get("TENON_FUZZ", "200"))):
        check(seed, compiled=True)
