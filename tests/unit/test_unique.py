"""Unique on long lists: sorted by merging, so that four times the list is little more than four times the work
(tests/unit/test_tournament.py counts it), with the results of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tenon
from interpret import interpret
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernels.data_dependent import flag
from tenon.machine.kernels.merge import sort
from tenon.machine.kernels.tournament import lesser
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import I32, DType, tensor
from tenon.network.ops.data_dependent import Unique


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 17, 31])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_merging_is_a_stable_sort(n: int, dtype: type) -> None:
    k = Builder("sort")
    x = k.param("x", n, dtype=DType.of(np.dtype(dtype)))
    places, spare = (k.param(name, n, dtype=I32, out=True) for name in ("places", "spare"))
    sort(k, n, places, spare, lambda i, j: flag(lesser(x[i], x[j])))
    kernel = k.done()
    assert prove(kernel)
    for seed in range(4):
        data: Array = np.random.default_rng(seed).integers(0, 1 + n // 2, n).astype(dtype)
        out = np.full(n, 77, np.int32)
        interpret(kernel, [data, out, np.full(n, -5, np.int32)])
        assert out.tolist() == np.argsort(data, kind="stable").tolist()


def special() -> Array:
    x = np.random.default_rng(1).integers(-20, 20, 900).astype(np.float32)
    x[::7], x[::11], x[::13], x[3::17] = np.nan, np.inf, -np.inf, -0.0
    return x


LISTS: dict[str, tuple[Array, int | None]] = {
    "one": (np.array([3.0], np.float32), None),
    "floats": (np.random.default_rng(0).integers(0, 300, 3000).astype(np.float32) / 7, None),
    "all_different": (np.random.default_rng(0).permutation(2000).astype(np.float32), None),
    "all_equal": (np.ones((30, 50), np.float32), None),
    "ascending": (np.arange(1025, dtype=np.int64), None),
    "descending": (np.arange(1023, dtype=np.int32)[::-1].copy(), None),
    "special": (special(), None),
    "rows_of_special": (special()[:300].reshape(100, 3), 0),
    "f64": (np.random.default_rng(2).integers(0, 90, 1000) / 3, None),
    "bytes": (np.random.default_rng(3).integers(0, 255, (20, 40)).astype(np.uint8), None),
    "bools": (np.random.default_rng(3).integers(0, 2, 100).astype(bool), None),
    "rows": (np.random.default_rng(4).integers(0, 4, (700, 4)).astype(np.int64), 0),
    "middle": (np.random.default_rng(5).integers(-1, 2, (2, 500, 3)).astype(np.float32), 1),
    "columns": (np.random.default_rng(6).integers(0, 3, (4, 900)).astype(np.int32), -1),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("ascending", [1, 0])
def test_long_lists(name: str, ascending: int) -> None:
    x, axis = LISTS[name]
    graph = Graph(name)
    given = graph.add_input("x", tensor(DType.of(x.dtype), *x.shape))
    outputs: list[Any] = ["y", "first", "inverse", "counts", "count"]
    op = Unique(axis, ascending)
    graph.outputs = list(graph.add(op, [given], outputs).outputs)
    with tenon.open(tenon.compile(graph, name=f"unique_{name}")) as engine:
        actual = engine.run({"x": x})
    for output, right in zip(outputs, op.evaluate([x]), strict=True):
        np.testing.assert_array_equal(actual[output], right, err_msg=output)


@pytest.mark.parametrize("name", [name for name in LISTS if "special" not in name])
def test_reference(name: str) -> None:
    """The reference matches NumPy (without NaN)."""
    x, axis = LISTS[name]
    y, first, inverse, counts, count = Unique(axis).evaluate([x])
    right = np.unique(x, True, True, True, axis=axis)
    for ours, theirs in zip((first, counts), (right[1], right[3]), strict=True):
        np.testing.assert_array_equal(ours[: count.item()], theirs)
    np.testing.assert_array_equal(inverse, right[2].reshape(-1))
    np.testing.assert_array_equal(np.take(y, range(count.item()), 0 if axis is None else axis), right[0])
