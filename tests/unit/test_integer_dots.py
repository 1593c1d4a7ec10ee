"""Integer convolutions by sums of sixteen products of bytes: all cases give the bits of the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from integer_products import CASES, operands, operator
from loop_operations import OPERATIONS
from lowered import Ask, make_site, run_lowered
from tenon.machine.codegen.c.dialect import C
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.helium import DOT16
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, vector4
from tenon.machine.kernels.integer_dots import dot16
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm

MACHINE = Machine(lanes=4, registers=8, block=4, products=(DOT2_I16, DOT16))
CONSTANT = (1, 2, 3, 4)


def kernel(op: IntegerConv | IntegerGemm, arrays: list[Array]) -> Kernel:
    (step,) = op.lower(make_site(op, arrays, MACHINE, CONSTANT))
    return step.kernel


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    x, w, more = CASES[name]
    conv, arrays = operator(more), operands(x, w)
    assert kernel(conv, arrays).name.startswith("integer_dots")
    (expected,) = conv.evaluate(arrays)
    over = conv.in_place(make_site(conv, arrays, MACHINE, CONSTANT))
    for ask in (Ask(), Ask(surplus=1), *(Ask(overwrite=i) for i in over)):
        (got,) = run_lowered(conv, arrays, MACHINE, CONSTANT, ask)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("n", "k", "m", "kind"),
    [(1, 36, 8, "dots"), (1, 8, 12, "dots"), (3, 80, 4, "dots"), (1, 8, 7, "pairs"), (2, 1100, 4, "pairs")],
)
def test_matrix_products(n: int, k: int, m: int, kind: str) -> None:
    """Other kernels compute what is not of whole fours of channels, or needs a large panel."""
    arrays, product = operands((n, k), (m, k)), IntegerGemm("double", -3, zero=4, scale=0.25)
    assert kernel(product, arrays).name.startswith(f"integer_{kind}")
    (got,) = run_lowered(product, arrays, MACHINE, CONSTANT)
    np.testing.assert_array_equal(got, product.evaluate(arrays)[0])


def test_portable_c_matches_the_interpreter(tmp_path: Path) -> None:
    library = Library()
    for x, w, more in CASES.values():
        library.add(kernel(operator(more), operands(x, w)))
    library.build(tmp_path, ("gcc", "-O2"))
    for name, (x, w, more) in CASES.items():
        conv, arrays = operator(more), operands(x, w)
        (got,) = run_lowered(conv, arrays, MACHINE, CONSTANT, execute=library)
        np.testing.assert_array_equal(got, conv.evaluate(arrays)[0], err_msg=name)


def test_primitives_in_portable_c(tmp_path: Path) -> None:
    """The sum of sixteen products wraps around."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-(2**31), 2**31, 32).astype(np.int32) for _ in range(2))
    a[:4], b[:4] = np.full(16, -128, np.int8).view(np.int32), np.full(16, -128, np.int8).view(np.int32)
    start = np.array([2**31 - 1, 5, -7, 0, 1, -(2**31), 3, 9], np.int32)
    k = Builder("k")
    x, w, s = k.param("x", 32, dtype=I32), k.param("w", 32, dtype=I32), k.param("s", 8, dtype=I32)
    y = k.param("y", 8, dtype=I32, out=True)
    with k.loop("i", 2) as i:
        sums = [dot16(s[i * 4 + j], x.vec(4)[i * 4 + j], w.vec(4)[i * 4 + j]) for j in range(4)]
        y.vec(4)[i] = vector4(*sums)
    made, library, out = k.done(), Library(), np.zeros(8, np.int32)
    library.add(made)
    library.build(tmp_path, ("gcc", "-O2"))
    library(made, [a, b, start, out])
    with np.errstate(over="ignore"):
        expected = [OPERATIONS["dot16"](start[j : j + 1], a[4 * j : 4 * j + 4], b[4 * j : 4 * j + 4]) for j in range(8)]
    np.testing.assert_array_equal(out, np.concatenate(expected))


@pytest.mark.parametrize(
    ("name", "tiles"),
    [("1x1", 0), ("1x1_long", 1), ("3x3", 2), ("depthwise", 0)],  # one vector of inputs needs no loop
)
def test_tile_has_an_assembly_form(name: str, tiles: int) -> None:
    x, w, more = CASES[name]
    unit = C()
    unit.kernel(kernel(operator(more), operands(x, w)))
    assert unit.text().count("__asm__ volatile(") == tiles
