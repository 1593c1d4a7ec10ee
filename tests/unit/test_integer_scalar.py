"""Integer convolutions by single products: bit-identical to the reference for all borders, strides and channel counts,
with many registers and with few.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library
from integer_products import CASES, operands, operator
from loop_operations import OPERATIONS
from lowered import Ask, make_site, run_lowered
from tenon.machine.codegen.c.dialect import C
from tenon.machine.isa.thumb import MUL
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, op
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32
from tenon.network.ops.base import Scratch
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm

MACHINES = {n: Machine(lanes=1, registers=n, block=4, products=(MUL,)) for n in (12, 8)}
CONSTANT = (1, 2, 3, 4)


def kernel(op: IntegerConv | IntegerGemm, arrays: list[Array], machine: Machine) -> Kernel:
    (step,) = op.lower(make_site(op, arrays, machine, CONSTANT))
    return step.kernel


def most_cases() -> list[Any]:
    """The longest ones with many registers only; compiled code runs all of them."""
    longest = ("3x3", "depthwise_5x5", "depthwise_wide", "dilated")
    slow = {12: ("depthwise_5x5",), 8: longest}
    return [
        pytest.param(name, registers, marks=pytest.mark.slow if name in slow[registers] else ())
        for name in CASES
        for registers in MACHINES
    ]


@pytest.mark.parametrize(("name", "registers"), most_cases())
def test_convolutions(name: str, registers: int) -> None:
    (x, w, more), machine = CASES[name], MACHINES[registers]
    conv, arrays = operator(more), operands(x, w)
    assert kernel(conv, arrays, machine).name.startswith("integer_scalar")
    (expected,) = conv.evaluate(arrays)
    over = conv.in_place(make_site(conv, arrays, machine, CONSTANT))
    assert over == ((0,) if name in ("depthwise", "depthwise_sloped", "depthwise_wide", "depthwise_5x5") else ())
    for ask in (Ask(), Ask(surplus=1), *(Ask(overwrite=i) for i in over)):
        (got,) = run_lowered(conv, arrays, machine, CONSTANT, ask)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("registers", MACHINES)
@pytest.mark.parametrize(("n", "k", "m"), [(1, 36, 7), (1, 8, 12), (3, 8, 5), (9, 12, 1), (5, 20, 4)])
def test_matrix_products(n: int, k: int, m: int, registers: int) -> None:
    arrays = operands((n, k), (max(m, 2), k))
    if m == 1:
        arrays = [arrays[0], *(a[:1] for a in arrays[1:])]
    product = IntegerGemm("double", -3, zero=4, scale=0.25)
    assert kernel(product, arrays, MACHINES[registers]).name.startswith("integer_scalar")
    (got,) = run_lowered(product, arrays, MACHINES[registers], CONSTANT)
    np.testing.assert_array_equal(got, product.evaluate(arrays)[0])


def test_portable_c_matches_the_interpreter(tmp_path: Path) -> None:
    library = Library()
    shapes = CASES.values()
    cases = [(operator(more), operands(x, w), machine) for x, w, more in shapes for machine in MACHINES.values()]
    for conv, arrays, machine in cases:
        library.add(kernel(conv, arrays, machine))
    library.build(tmp_path, ("gcc", "-O2"))
    for conv, arrays, machine in cases:
        (got,) = run_lowered(conv, arrays, machine, CONSTANT, execute=library)
        np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


def assembly(kernel: Kernel) -> int:
    """How many pieces of assembly the C of a kernel has, besides single instructions."""
    unit = C()
    unit.kernel(kernel)
    return unit.text().count("__asm__ volatile(")


@pytest.mark.parametrize(
    ("name", "large", "small"),
    [("1x1", 1, 1), ("1x1_long", 1, 1), ("3x3", 1, 1), ("plane", 1, 1), ("plane_odd", 1, 1), ("depthwise", 0, 0)],
)
def test_tiles_have_an_assembly_form(name: str, large: int, small: int) -> None:
    x, w, more = CASES[name]
    matches = [assembly(kernel(operator(more), operands(x, w), machine)) for machine in MACHINES.values()]
    assert [n >= 1 for n in matches] == [bool(large), bool(small)]


def test_vector_products_have_assembly_forms_of_thumb_and_thumb_2() -> None:
    for channels, forms in ((8, 2), (4, 2), (6, 2), (2, 0)):  # of four channels; the rest is less
        product = IntegerGemm("double", -3, zero=4, scale=0.25)
        assert assembly(kernel(product, operands((1, 36), (channels, 36)), MACHINES[12])) == forms, channels


def test_high_products_by_halves(tmp_path: Path) -> None:
    """Cores without products of 64 bits compute them from those of 16 bits."""
    rng = np.random.default_rng(4)
    ends = np.array([0, -1, 1, 2**31 - 1, -(2**31), 0xFFFF, 0x10000, -0x10000, 0x7FFF8000, -0x7FFF8000], np.int32)
    a, b = (m.ravel() for m in np.meshgrid(ends, ends))
    a, b = (np.concatenate([m, rng.integers(-(2**31), 2**31, 924)]).astype(np.int32) for m in (a, b))
    c = rng.integers(-(2**31), 2**31, 1024).astype(np.int32)
    k = Builder("k")
    given = [k.param("a", 1024, dtype=I32) for _ in range(3)]
    y = k.param("y", 1024, dtype=I32, out=True)
    with k.loop("i", 1024) as i:
        y[i] = op("mulh_add", *(tensor[i] for tensor in given))
    made, library, out = k.done(), Library(), np.zeros(1024, np.int32)
    library.add(made)
    library.build(tmp_path, ("gcc", "-O2", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-D__thumb__"))
    library(made, [a, b, c, out])
    np.testing.assert_array_equal(out, OPERATIONS["mulh_add"](a, b, c))


@pytest.mark.parametrize("registers", MACHINES)
def test_panels_of_a_plane_are_small_beside_its_images(registers: int) -> None:
    conv, arrays = operator({}), operands((1, 1, 9, 16), (4, 1, 9, 8))
    (step,) = conv.lower(make_site(conv, arrays, MACHINES[registers], CONSTANT))
    (panel,) = (arg for arg in step.args if isinstance(arg, Scratch))
    assert panel.nbytes == 4 * 72 * 2  # of two positions, not of four
    (got,) = run_lowered(conv, arrays, MACHINES[registers], CONSTANT)
    np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])
