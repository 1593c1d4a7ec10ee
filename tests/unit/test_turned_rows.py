"""Rows of caches that are appended in the order in which they were computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tenon.errors import ShapeError
from tenon.machine.plan.turned_rows import read_turned
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.types import F32, I64, tensor
from tenon.network.ops.append import Append
from tenon.network.ops.move import Transpose


def cache(rows: int = 4, perm: Sequence[int] = (0, 2, 1, 3), axis: int = 2, *, counted: bool = True) -> Graph:
    """Rows behind a Transpose that are appended to a cache."""
    graph = Graph("cache")
    new = tensor(F32, *(tuple((1, 3, rows, 5)[perm.index(i)] for i in range(4))))
    numbers = [graph.add_input(name, tensor(I64)) for name in ("past", "count")[: 1 + counted]]
    data = graph.add_input("data", tensor(F32, 1, 3, 8, 5))
    turned = graph.add(Transpose(tuple(perm)), [graph.add_input("new", new)], ["turned"]).output
    graph.outputs.append(graph.add(Append(axis), [data, turned, *numbers], ["present"]).output)
    return graph


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    numbers = {"past": np.array(2), "count": np.array(3)}
    return {
        v.name: numbers[v.name] if v.name in numbers else rng.normal(size=v.type.dims).astype(np.float32)
        for v in graph.inputs
    }


@pytest.mark.parametrize("counted", [False, True])
def test_rows_are_read_in_their_own_order(counted: bool) -> None:
    graph = cache(counted=counted)
    given = feeds(graph)
    (expected,) = evaluate(graph, given).values()
    read_turned(graph)
    (node,) = graph
    assert node.op == Append(2, turned=True)
    (got,) = evaluate(graph, given).values()
    np.testing.assert_array_equal(got, expected)
    read_turned(graph)
    assert [each.op for each in graph] == [Append(2, turned=True)]


@pytest.mark.parametrize("graph", [cache(1), cache(3, (0, 1, 2, 3)), cache(8, axis=1)])
def test_other_orders_and_single_rows_stay(graph: Graph) -> None:
    read_turned(graph)
    assert [each.op.name for each in graph] == ["Transpose", "Append"]


def test_a_transpose_that_others_read_stays() -> None:
    graph = cache()
    graph.outputs.append(graph.nodes[0].output)
    read_turned(graph)
    assert [each.op.name for each in graph] == ["Transpose", "Append"]


def test_turned_rows_have_as_many_heads_as_the_data() -> None:
    values = [Value("data", tensor(F32, 1, 3, 8, 5)), Value("new", tensor(F32, 1, 3, 4, 5)), Value("n", tensor(I64))]
    with pytest.raises(ShapeError, match="does not fit"):
        Append(2, turned=True).infer(values)
    assert Append(2).infer(values) == (values[0].type,)
