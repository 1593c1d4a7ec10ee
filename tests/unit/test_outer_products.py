"""Outer products in tiles of a matrix unit (SME): results, proofs, and where the assembly is used."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from check_kernels import check
from compiled import assembled
from lowered import make_site, run_site, settle
from tenon.machine.algorithms.base import Input, Problem, Stage
from tenon.machine.algorithms.outer_factors import OuterFactors
from tenon.machine.algorithms.outer_matrices import OuterMatrices
from tenon.machine.algorithms.outer_products import OuterProducts
from tenon.machine.algorithms.registry import best
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.conv import Conv as DenseConv
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_matrices import outer_matrices, panel_bytes
from tenon.machine.kernels.outer_products import OuterTiles, outer_products
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.types import F32, DType
from tenon.network.ops.base import Case, Site
from tenon.network.ops.conv import Conv
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_matmul import IntegerMatMul
from tenon.network.ops.matmul import MatMul

ROW = find("aarch64-sme")


def operator_cases() -> Iterator[Case]:
    """The cases of convolutions: of floats, also with operands of bf16, and of integers."""
    for case in Conv.cases():
        if all(a is None or a.ndim < 5 for a in case.arrays()[:1]):
            for kind in ("float", "bf16"):
                yield replace(case, inputs=tuple(case.arrays()), label=f"{kind}_{case.label}")
    for case in MatMul.cases():
        if 1 in case.constant and all(a is None or a.dtype == np.float32 for a in case.arrays()):
            yield replace(case, inputs=tuple(case.arrays()), label=f"float_rows_{case.label}")
    for case in itertools.chain(IntegerConv.cases(), IntegerGemm.cases()):
        yield replace(case, inputs=tuple(case.arrays()), label=f"integer_{case.label}")


def test_convolutions_with_operands_are_finished_outside() -> None:
    """An added image is no clamp, and a square no multiple."""
    x, y = (Image(1, 16, 4, 4, 4) for _ in "xy")
    added = DenseConv(x, y, operands=(y,), epilogue=lambda value, other: value + other)
    kernel = outer_products(added, ROW.machine, OuterTiles(1, 1))
    (instruction,) = re.findall(r'instruction "outer_f32"\(([^;]*);', show(kernel))
    assert "y[" not in instruction
    (instruction,) = re.findall(
        r'instruction "outer_f32"\(([^;]*);', show(outer_products(DenseConv(x, y), ROW.machine, OuterTiles(1, 1)))
    )
    assert "y[" in instruction
    for epilogue, able in ((lambda value: value * 0.5, True), (lambda value: (value * 0.5) * value, False)):
        kernel = outer_products(DenseConv(x, y, epilogue=epilogue), ROW.machine, OuterTiles(1, 1))
        (instruction,) = re.findall(r'instruction "outer_f32"\(([^;]*);', show(kernel))
        assert ("y[" in instruction) == able


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 37, 24), (3, 24, 52)),
        ((2, 3, 18, 13), (3, 13, 56)),
        ((2, 1, 40), (2, 40, 72)),
        ((1, 2, 9, 8), (5, 2, 8, 32)),
    ],
)
def test_two_tensors(left: tuple[int, ...], right: tuple[int, ...], threads: int) -> None:
    """The right one is read as it lies; threads share matrices and rows, which is proved."""
    machine, rng, product = replace(ROW.machine, threads=threads), np.random.default_rng(3), MatMul()
    arrays = [np.rint(4 * rng.standard_normal(shape)).astype(np.float32) for shape in (left, right)]
    site = make_site(product, arrays, machine)
    (step,) = OuterFactors(OuterTiles(2, 2)).lower(*_lowered(product, site), machine)
    prove(step.kernel)
    check(show(step.kernel))
    (result,) = run_site(product, replace(site, algorithm=OuterFactors(OuterTiles(2, 2))), arrays)
    np.testing.assert_array_equal(result, np.matmul(*arrays))


def _lowered(product: MatMul, site: Site) -> tuple[Problem, Sequence[Stage]]:
    """The problem and its stage."""
    problem = product.product(site).problem(site)
    return (problem,), (Stage(problem, None, None, (), Input(0), Input(1)),)


def test_two_tensors_are_multiplied_so_where_it_is_estimated_to_be_faster() -> None:
    """Not of columns that are no whole vectors, and not of f16, which the unit does not multiply."""

    def applies(inner: int, columns: int, dtype: DType = F32) -> bool:
        x, y = (Image(4, n, 1, 64, n, dtype=dtype) for n in (inner, columns))
        return isinstance(best((DenseConv(x, y, bias=False, packed=False, weights=dtype),), ROW.machine), OuterFactors)

    assert applies(64, 64)
    assert not applies(64, 63)
    assert not applies(64, 64, DType.F16)
    assert not applies(2, 4)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("zeros", [(0, 0, 5), (3, -7, 5)])
def test_two_tensors_of_bytes(zeros: tuple[int, int, int], threads: int) -> None:
    """Sums of columns and of rows are added where zero points are not 0; the last word of a row is filled."""
    machine, rng = replace(ROW.machine, threads=threads), np.random.default_rng(3)
    product = IntegerMatMul("float", zeros, factor=0.0004)
    arrays = [rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 37, 61), (61, 56))]
    site = make_site(product, arrays, machine)
    steps = product.lower(site)
    names = [step.kernel.name for step in steps]
    assert "outer_fours_61x56" in names
    assert names[-1] == "outer_words_37x64x56"
    for step in steps:
        prove(step.kernel)
        check(show(step.kernel))
    stored = re.search(r'instruction "outer_i8"\([^;]*\by\[', show(steps[-1].kernel))
    assert (stored is not None) == (zeros[:2] == (0, 0)), "the unit requantises where zero points add nothing"
    (result,) = run_site(product, site, arrays)
    np.testing.assert_array_equal(result, product.evaluate(arrays)[0])


def test_two_tensors_of_bytes_are_multiplied_so_where_it_is_estimated_to_be_faster() -> None:
    """Not a few rows of few inputs, and not columns that are no whole vectors."""

    def chosen(rows: int, inputs: int, columns: int, machine: Machine = ROW.machine) -> bool:
        arrays = [np.zeros(shape, np.int8) for shape in ((rows, inputs), (inputs, columns))]
        steps = IntegerMatMul("float").lower(make_site(IntegerMatMul("float"), arrays, machine))
        return steps[-1].kernel.name.startswith("outer_words")

    assert chosen(64, 64, 64)
    assert not chosen(2, 8, 8)
    assert not chosen(64, 64, 63)
    assert not chosen(64, 64, 64, find("aarch64-i8mm").machine)


@pytest.mark.parametrize("threads", [1, 4])
def test_panels_of_rows_that_are_no_whole_tiles_are_shared_by_threads(threads: int) -> None:
    """Each run of rows has a panel of its own."""
    x, y = (Image(1, n, 1, 37, n) for n in (24, 32))
    c = DenseConv(x, y, bias=False)
    assert prove(outer_matrices(c, replace(ROW.machine, threads=threads), OuterTiles(2, 1))) > 0
    assert len(panel_bytes(c, OuterTiles(2, 1))) == 2


@pytest.mark.parametrize("compiler", [("aarch64-linux-gnu-gcc",), ("clang", "--target=aarch64-linux-gnu")])
def test_other_compilers_take_the_kernels(compiler: tuple[str, ...], tmp_path: Path) -> None:
    """Compilers whose assembler does not know SME compile the body alone, without the target's C library."""
    if not shutil.which(compiler[0]):
        pytest.skip(f"there is no {compiler[0]}")
    x, y = (Image(1, 16, 4, 4, 4) for _ in "xy")
    kernel = outer_products(DenseConv(x, y), ROW.machine, OuterTiles(1, 1))
    text = assembled(
        kernel, [*compiler, "-std=gnu99", "-ffreestanding", "-Wall", "-Werror", "-march=armv8.2-a"], tmp_path
    )
    version = subprocess.run([*compiler, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    able = int(version.partition(".")[0]) >= (17 if compiler[0] == "clang" else 12)
    assert ("fmopa" in text) == able


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.label, marks=() if i % 24 == 3 else pytest.mark.slow)
        for i, case in enumerate(operator_cases())
    ],
)
def test_operator_cases(case: Case) -> None:
    """With halos that are wider than needed."""
    kind, arrays = case.label.partition("_")[0], case.arrays()
    if kind == "bf16":
        arrays = [a.astype(DType.BF16.numpy) if i < 2 and a is not None else a for i, a in enumerate(arrays)]
    site = make_site(case.op, arrays, ROW.machine, case.constant)
    listed = [each for each in case.op.candidates(site) if isinstance(each, OuterProducts | OuterMatrices)]
    if isinstance(case.op, MatMul) and OuterMatrices.applies((case.op.product(site).problem(site),), ROW.machine):
        listed = [OuterMatrices(OuterTiles(2, 2))]
    for algorithm in listed[:1]:
        (result,) = run_site(case.op, settle(case.op, replace(site, algorithm=algorithm), surplus=1), arrays)
        (expected,) = case.op.evaluate(arrays)
        part = {"float": 1e-5, "bf16": 2e-2, "integer": 0}[kind]
        atol = part * float(np.abs(expected.astype(np.float32)).max())
        np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=0, atol=atol)
