"""Sums times factors in f32 rounded to integers of 32 bits before they are clamped: the bits of the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from integer_products import CASES, operands, operator
from loop_operations import OPERATIONS
from lowered import make_site, run_lowered
from tenon.machine.isa.short_products import MADD_I16
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import op
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import runs_here
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm

MACHINE = Machine(lanes=4, registers=16, block=4, products=(MADD_I16,), nearest=True)
CONSTANT = (1, 2, 3)
TARGETS = {1: "x86-64", 4: "x86-64-avx2", 8: "x86-64-avx2", 16: "x86-64-avx512"}


def given(x: tuple[int, ...], w: tuple[int, ...], scale: float = 1.0) -> list[Array]:
    """Operands with factors in f32."""
    data, weights, bias, multipliers, shifts = operands(x, w)
    return [data, weights, bias, (scale * multipliers * 2.0 ** (shifts.astype(np.float64) - 31)).astype(np.float32)]


def rounded(conv: IntegerConv | IntegerGemm, arrays: list[Array]) -> str:
    """The text of the kernel, whose results are checked."""
    (expected,) = conv.evaluate(arrays)
    (got,) = run_lowered(conv, arrays, MACHINE, CONSTANT)
    np.testing.assert_array_equal(got, expected)
    return show(conv.lower(make_site(conv, arrays, MACHINE, CONSTANT))[-1].kernel)


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    x, w, more = CASES[name]
    assert "nearest" in rounded(replace(operator(more), rounding="float"), given(x, w))


@pytest.mark.parametrize(("low", "high"), [(-128, 127), (4, 127), (-100, 90)])
def test_matrix_products(low: int, high: int) -> None:
    """With and without bounds of their own."""
    gemm = IntegerGemm("float", -3, zero=4, low=low, high=high, scale=0.25)
    assert "nearest" in rounded(gemm, given((5, 36), (8, 36)))


@pytest.mark.parametrize("scale", [2.0**20, 2.0**40, 2.0**100, np.inf])
def test_products_beyond_32_bits_are_clamped_in_floats(scale: float) -> None:
    """Conversions would give the least integer for products that are too large, of either sign."""
    arrays = given((3, 36), (8, 36), scale)
    arrays[2][:] = np.where(np.arange(8) % 2, 10**6, -(10**6))  # sums of zero times an infinite factor are no numbers
    gemm = IntegerGemm("float", -3, zero=4, scale=0.25)
    assert {-128, 127} == set(gemm.evaluate(arrays)[0].ravel().tolist())
    assert "nearest" not in rounded(gemm, arrays)


@pytest.mark.parametrize("lanes", TARGETS)
@pytest.mark.parametrize("portable", [False, True])
def test_rounding_in_c(lanes: int, portable: bool, tmp_path: Path) -> None:
    """Halves, their neighbours, and numbers up to 2**31, by instructions and without."""
    target = TARGETS[lanes]
    if not portable and not runs_here(target):
        pytest.skip(f"this processor has less than {target}")
    halves = np.concatenate(
        [np.arange(-600, 600) / 2, [2.0**22 - 0.5, 0.5 - 2.0**22, 8388609, -8388607, 2.0**23 - 0.5]]
    )
    x = halves.astype(np.float32)
    x = np.concatenate([np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))])
    x = np.concatenate([x, np.array([2147483520, -2147483520, -0.0], np.float32)])
    x = np.pad(x, (0, -len(x) % 16))
    k = Builder("k")
    a, y = k.param("a", len(x), dtype=F32).vec(lanes), k.param("y", len(x), dtype=I32, out=True).vec(lanes)
    with k.loop("i", len(x) // lanes) as i:
        y[i] = op("nearest", a[i])
    kernel, library, out = k.done(), Library(), np.zeros(len(x), np.int32)
    library.add(kernel)
    library.build(tmp_path, ("gcc", "-O2", *(() if portable else find(target).gcc)))
    library(kernel, [x, out])
    np.testing.assert_array_equal(out, OPERATIONS["nearest"](x))
