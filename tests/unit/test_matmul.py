"""Matrix products: operands of epilogues with all kinds of broadcasting, and products of one row."""

from __future__ import annotations

import numpy as np
import pytest

from lowered import MACHINES, Ask, run_lowered
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph, Origin
from tenon.network.graph.types import F32, tensor
from tenon.network.graph.verify import verify
from tenon.network.ops.base import Operator
from tenon.network.ops.elementwise import Apply
from tenon.network.ops.fused import Fused
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.move import Transpose
from tenon.network.ops.pointwise import Add
from tenon.network.passes.base import silent
from tenon.network.passes.row_products import ROW_PRODUCTS

Shape = tuple[int, ...]


def _check(op: Operator, shapes: tuple[Shape, ...], constant: tuple[int, ...], operand: Shape, machine: str) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(-1, 1, s).astype(np.float32) for s in (*shapes, operand)]
    fused = Fused(op, len(shapes), (Apply(Add(), (0, 1)),))
    got = run_lowered(fused, [*arrays], MACHINES[machine], constant, Ask())
    np.testing.assert_allclose(got[0], fused.evaluate(arrays)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("machine", ["lanes16", "lanes4", "lanes1"])
@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize(
    "operand", [(5,), (1, 5), (3, 5), (3, 1), (1, 3, 5), (2, 1, 1), (2, 3, 5), (2, 3, 1), (2, 1, 5)]
)
def test_operands_of_folded_batches(operand: Shape, constant: tuple[int, ...], machine: str) -> None:
    _check(MatMul(), ((2, 3, 7), (7, 5)), constant, operand, machine)


@pytest.mark.parametrize("machine", ["lanes16", "lanes4", "lanes1"])
@pytest.mark.parametrize("operand", [(5,), (3, 1), (2, 4, 3, 5), (2, 4, 1, 5)])
def test_operands_of_batches(operand: Shape, machine: str) -> None:
    _check(MatMul(), ((2, 4, 3, 7), (4, 7, 5)), (), operand, machine)


@pytest.mark.parametrize("operand", [(19,), (3, 1), (3, 19), (1, 1)])
def test_operands_with_an_addend(operand: Shape) -> None:
    _check(Gemm(alpha=0.5, beta=2.0), ((3, 7), (7, 19), (3, 19)), (1,), operand, "lanes16")


def test_partly_broadcast_batches_are_not_fused() -> None:
    types, output = (tensor(F32, 2, 4, 3, 7), tensor(F32, 7, 5)), tensor(F32, 2, 4, 3, 5)
    assert not MatMul().fuses(types, output, tensor(F32, 2, 1, 3, 5))
    assert MatMul().fuses(types, output, tensor(F32, 1, 1, 3, 5))
    assert not MatMul().fuses((tensor(F32, 7), tensor(F32, 2, 7, 5)), tensor(F32, 2, 5), tensor(F32, 5))


@pytest.mark.parametrize(
    ("rows", "perm", "exchanged"), [(1, (0, 1, 3, 2), True), (1, (0, 3, 1, 2), False), (2, (0, 1, 3, 2), False)]
)
def test_products_of_one_row_with_a_transpose(rows: int, perm: tuple[int, ...], exchanged: bool) -> None:
    """The matrix is read as it is, and the operand's batch may be broadcast."""
    graph = Graph("g")
    stored = (2, 3, 9, 7) if perm[1] == 1 else (2, 7, 9, 3)
    q, k = graph.add_input("q", tensor(F32, 1, 3, rows, 7)), graph.add_input("k", tensor(F32, *stored))
    turned = graph.add(Transpose(perm), [k], ["t"], Origin("g")).output
    graph.outputs.append(graph.add(MatMul(), [q, turned], ["y"], Origin("g")).output)
    rng = np.random.default_rng(2)
    feeds = {v.name: rng.normal(0, 1, v.type.dims).astype(np.float32) for v in graph.inputs}
    expected = evaluate(graph, feeds)["y"]
    assert ROW_PRODUCTS.run(graph, silent) == exchanged
    verify(graph)
    # Sums of numbers about 1 cancel: BLAS adds up the products of a row and of a matrix in orders of their own.
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=1e-6, atol=1e-6)
    products = [node for node in graph if isinstance(node.op, MatMul)]
    assert [node.input(0) is k for node in products] == [exchanged]
