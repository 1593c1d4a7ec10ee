"""Graphs with sizes that a run chooses, built by hand."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.types import F32, I64, tensor
from tenon.network.graph.verify import verify
from tenon.network.ops.activation import Relu
from tenon.network.ops.pointwise import Add, Mul
from tenon.network.ops.size_check import Bounded

ROWS, LARGEST, COLUMNS = 3, 24, 5
LENGTHS = SizeRange(4, LARGEST, 4)
WIDTHS = SizeRange(1, COLUMNS)


def rows(*, computed: bool = False) -> Graph:
    """y = relu(x) + 1 and n = L for x of 3 rows of L elements; with ``computed``, n = 2 * L, of at most 40."""
    graph = Graph("rows")
    x, length = graph.add_input("x", tensor(F32, ROWS, LARGEST)), graph.add_input("L", tensor(I64))
    checked = graph.add(Bounded(*LENGTHS), [length], ["L.checked"]).output
    positive = graph.add(Relu(), [x], ["positive"]).output
    y = graph.add(Add(), [positive, graph.constant("one", np.array(1, np.float32))], ["y"]).output
    factor = graph.constant("factor", np.array(1 + computed))
    count = graph.add(Mul(), [checked, factor], ["count"]).output
    if computed:
        count = graph.add(Bounded(0, 40), [count], ["n"]).output
    count.name = "n"
    graph.outputs = [y, count]
    graph.extents = {"x": ((1, "L"),), "y": ((1, "L"),)}
    graph.sizes = {"L": LENGTHS}
    verify(graph)
    return graph


def planes() -> Graph:
    """s = a + b for a and b of [2, L, W], whose second operand has the shape [L, W]; nothing reads the sizes."""
    graph = Graph("planes")
    a = graph.add_input("a", tensor(F32, 2, LARGEST, COLUMNS))
    b = graph.add_input("b", tensor(F32, LARGEST, COLUMNS))
    for name in ("L", "W"):
        graph.add_input(name, tensor(I64))
    graph.outputs = [graph.add(Add(), [a, b], ["s"]).output]
    graph.extents = {"a": ((1, "L"), (2, "W")), "b": ((0, "L"), (1, "W")), "s": ((1, "L"), (2, "W"))}
    graph.sizes = {"L": LENGTHS, "W": WIDTHS}
    verify(graph)
    return graph


def sized_rows(length: int, seed: int = 0) -> Array:
    """An input of ``rows`` for that length."""
    array: Array = np.random.default_rng(seed).normal(size=(ROWS, length)).astype(np.float32)
    return array


def positive_plus_one(x: Array) -> Array:
    """The result ``y`` of ``rows``."""
    return np.maximum(x, np.float32(0)) + np.float32(1)
