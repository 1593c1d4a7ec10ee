"""Index values bound from data: a gather, and a loop with a data-dependent extent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from interpret import interpret
from loop_operations import KernelError
from tenon.machine.kernel_ir import parse as loop_parse
from tenon.machine.kernel_ir import text as loop_text
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I64


def gather(rows: int = 5, columns: int = 4, count: int = 3) -> Kernel:
    """y[i] = x[at[i]]"""
    k = Builder("gather")
    x, at = k.param("x", rows, columns), k.param("at", count, dtype=I64)
    y = k.param("y", count, columns, out=True)
    with k.loop("i", count) as i, k.bind("row", at[i], rows) as row:
        y.vec(columns)[i, 0] = x.vec(columns)[row, 0]
    return k.done()


def prefix() -> Kernel:
    """y[0] = the sum of the first n[0] elements of x, at most 8."""
    k = Builder("prefix")
    x, n, y = k.param("x", 8), k.param("n", 1, dtype=I64), k.param("y", 1, out=True)
    y[0] = 0.0
    with k.bind("end", n[0], 9) as end, k.loop("i", end) as i:
        y[0] = y[0] + x[i]
    return k.done()


def expected(x: Array, at: Array) -> Array:
    gathered: Array = x[np.clip(at, 0, len(x) - 1)]
    return gathered


def test_gather_clamps_indices() -> None:
    x = np.arange(20, dtype=np.float32)
    at, y = np.array([3, -7, 99]), np.zeros(12, np.float32)
    interpret(gather(), [x, at, y])
    np.testing.assert_array_equal(y.reshape(3, 4), expected(x.reshape(5, 4), at))


@pytest.mark.parametrize(("n", "total"), [(0, 0), (3, 3), (8, 28), (50, 28), (-1, 0)])
def test_data_dependent_loop_extents(n: int, total: int) -> None:
    y = np.full(1, np.nan, np.float32)
    interpret(prefix(), [np.arange(8, dtype=np.float32), np.array([n]), y])
    assert y[0] == total


def test_bounds_and_race_proofs() -> None:
    assert prove(gather()) == 3
    assert prove(prefix()) > 0


def test_empty_ranges_are_rejected() -> None:
    k = Builder("empty")
    n, y = k.param("n", 2, dtype=I64), k.param("y", 4, out=True)
    with k.bind("a", n[0], 4) as a, k.bind("b", n[1], a) as b:
        y[b] = 1.0
    kernel = k.done()
    with pytest.raises(OutOfRangeError, match="range of b may be empty"):
        prove(kernel)
    with pytest.raises(KernelError, match="range is empty"):
        interpret(kernel, [np.array([0, 0]), np.zeros(4, np.float32)])


@pytest.mark.parametrize("kernel", [gather(), prefix()])
def test_text_round_trip(kernel: Kernel) -> None:
    text = loop_text.show(kernel)
    assert loop_text.show(loop_parse.parse(text)) == text


def test_compiled_kernels_match(tmp_path: Path) -> None:
    library = Library()
    library.add(gather())
    library.build(tmp_path, ["gcc", "-O2"])
    x = np.arange(20, dtype=np.float32)
    at, y = np.array([4, -1, 5]), np.zeros(12, np.float32)
    library(gather(), [x, at, y])
    np.testing.assert_array_equal(y.reshape(3, 4), expected(x.reshape(5, 4), at))
