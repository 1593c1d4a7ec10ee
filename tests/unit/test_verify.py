"""``graph.verify``: every rule rejects a graph that violates it, and names the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tenon.errors import InternalError
from tenon.network.graph.graph import Graph, Origin, Value
from tenon.network.graph.types import F32, I64, DType, Quant, TensorType, tensor
from tenon.network.graph.verify import STRUCTURE, verify
from tenon.network.ops.activation import Relu
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.pointwise import Add


def legal() -> Graph:
    graph = Graph("g")
    x = graph.add_input("x", tensor(F32, 2, 3))
    c = graph.constant("c", np.ones(3, np.float32))
    y = graph.add(Add(), [x, c], ["y"], Origin("f", "sum", "Add")).output
    graph.outputs = [graph.add(Relu(), [y], ["z"], Origin("f", "top", "Relu")).output]
    return graph


def swap_order(graph: Graph) -> None:
    graph.reorder(reversed(graph.nodes))


def foreign_output(graph: Graph) -> None:
    graph.outputs.append(Value("nowhere", tensor(F32, 1)))


def forget_a_reader(graph: Graph) -> None:
    graph.inputs[0].uses.clear()


def remember_a_removed_reader(graph: Graph) -> None:
    graph.inputs[0].uses.append(graph.nodes[1])


def forget_the_producer(graph: Graph) -> None:
    graph.nodes[0].output.producer = None


def compute_a_constant(graph: Graph) -> None:
    graph.nodes[0].output.data = np.zeros((2, 3), np.float32)


def lose_an_input(graph: Graph) -> None:
    graph.rewire(graph.nodes[1], ())


def share_a_name(graph: Graph) -> None:
    graph.nodes[0].output.name = "x"


def change_data(graph: Graph) -> None:
    graph.constants()[0].data = np.ones(4, np.float32)


def share_a_value_with_a_body(graph: Graph) -> None:
    body = Graph("body")
    body.outputs = [graph.constants()[0]]
    graph.nodes[1].bodies = (body,)


def unbind_an_input(graph: Graph) -> None:
    graph.inputs[0].type = tensor(F32, "N", 3)


def change_a_type(graph: Graph) -> None:
    graph.nodes[1].output.type = tensor(I64, 2, 3)


def contradict(graph: Graph) -> None:
    graph.inputs[0].type = tensor(F32, 2, 5)


def quantised() -> Graph:
    """A product of integers by constant weights."""
    graph = Graph("q")
    x = graph.add_input("x", TensorType(DType.I8, (2, 3), quant=Quant((0.5,), (-4,))))
    constants = (np.ones((5, 3), np.int8), None, np.array([1 << 30], np.int32), np.array([-3], np.int32))
    operands = [None if c is None else graph.constant(f"c{i}", c) for i, c in enumerate(constants)]
    op = IntegerGemm("double", -4, zero=7, scale=0.25)
    graph.outputs = [graph.add(op, [x, *operands], ["y"], Origin("f", "top", "FULLY_CONNECTED")).output]
    return graph


def requantise(quant: Quant) -> Callable[[Graph], None]:
    def damage(graph: Graph) -> None:
        output = graph.nodes[0].output
        output.type = replace(output.type, quant=quant)

    return damage


def change_the_zero_point_of_the_input(graph: Graph) -> None:
    graph.inputs[0].type = replace(graph.inputs[0].type, quant=Quant((0.5,), (0,)))


IMPOSSIBLE = {
    "negative scale": (Quant((-0.25,), (7,)), "not positive"),
    "infinite scale": (Quant((np.inf,), (7,)), "not positive"),
    "zero point": (Quant((0.25,), (200,)), "do not fit its element type"),
    "no axis": (Quant((0.25, 0.5), (7, 7)), "no axis"),
    "axis": (Quant((0.25,), (7,), axis=2), "no axis 2"),
    "scales along an axis": (Quant((0.25, 0.5), (7, 7), axis=1), "2 scales along axis 1"),
    "zero points": (Quant((0.25, 0.5, 1.0), (7, 7), axis=1), "another number of zero points"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_quantisation(name: str) -> None:
    quant, why = IMPOSSIBLE[name]
    graph = quantised()
    requantise(quant)(graph)
    with pytest.raises(InternalError, match=rf"quantisation_is_possible: top \(FULLY_CONNECTED\): .*{why}"):
        verify(graph)


@pytest.mark.parametrize(
    ("damage", "why"),
    [(requantise(Quant((0.5,), (7,))), "'y' is"), (change_the_zero_point_of_the_input, "subtracts -4, and 'x' is")],
)
def test_operators_agree_with_quantisation(damage: Callable[[Graph], None], why: str) -> None:
    verify(quantised())
    graph = quantised()
    damage(graph)
    with pytest.raises(InternalError, match=rf"quantisation_agrees: top .*{why}"):
        verify(graph)


VIOLATIONS: list[tuple[Callable[[Graph], None], str, str]] = [
    (swap_order, "defined_before_use", "top (Relu)"),
    (foreign_output, "defined_before_use", "nowhere"),
    (forget_a_reader, "links_agree", "'x'"),
    (remember_a_removed_reader, "links_agree", "'x'"),
    (forget_the_producer, "links_agree", "sum (Add)"),
    (compute_a_constant, "links_agree", "sum (Add)"),
    (lose_an_input, "arity_fits", "top (Relu)"),
    (share_a_name, "names_unique", "'x'"),
    (change_data, "constants_hold_their_type", "'c'"),
    (share_a_value_with_a_body, "bodies_are_whole", "top (Relu)"),
    (unbind_an_input, "types_follow", "'x'"),
    (change_a_type, "types_follow", "top (Relu)"),
    (contradict, "types_follow", "sum (Add)"),
]


def test_a_legal_graph_passes() -> None:
    verify(legal())


@pytest.mark.parametrize(("damage", "rule", "where"), VIOLATIONS, ids=lambda v: getattr(v, "__name__", None))
def test_violation(damage: Callable[[Graph], None], rule: str, where: str) -> None:
    graph = legal()
    damage(graph)
    with pytest.raises(InternalError) as caught:
        verify(graph, "some pass")
    assert f"- {rule}: " in str(caught.value)
    assert where in str(caught.value)
    assert "after 'some pass'" in str(caught.value)


def test_every_rule_has_a_violation() -> None:
    assert {rule for _, rule, _ in VIOLATIONS} == {r.__name__ for r in STRUCTURE} | {"types_follow"}


def test_types_are_optional() -> None:
    graph = legal()
    unbind_an_input(graph)
    verify(graph, typed=False)
