"""The kernels of operator cases on emulated machines, compared with the interpreter.

The kernel calls of some cases become calls of one program, each with the memory contents that the interpreter started
from; the program runs on the target, and the resulting memory is compared with the interpreter's.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from byte_products import NAMES, interleaved, operands, products
from covering_cases import covering
from interpret import interpret
from launched_kernels import ASK, Launched, program_of
from lowered import make_site, run_lowered, run_site, settle
from on_targets import EMULATED, SECOND_TIER, selected, skip_without_device
from operator_cases import LOWERED
from tenon.compilation import resolved
from tenon.machine.algorithms.outer_matrices import OuterMatrices
from tenon.machine.algorithms.outer_products import OuterProducts
from tenon.machine.codegen.c.dialect import C
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Instruction, Kernel, maximum, minimum, op
from tenon.machine.kernel_ir.walk import statements
from tenon.machine.kernels import outer_groups, outer_products
from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.kernels.conv import Conv as DenseConv
from tenon.machine.kernels.image import Image, identity
from tenon.machine.kernels.integer_conv import IntegerConv as IntegerConvolution
from tenon.machine.kernels.machine import Machine, in_halves
from tenon.machine.kernels.outer_matrices import integer_outer_matrices, outer_matrices, panel_bytes, panel_of
from tenon.machine.kernels.outer_products import OuterTiles
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.plan.program import Program
from tenon.machine.targets import Target, find
from tenon.network.graph.dtype import swapped
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType
from tenon.network.ops.base import Case, Site
from tenon.network.ops.block_product import BlockMatMul, quantised_case
from tenon.network.ops.conv import Conv as Convolution
from tenon.network.ops.convert import Cast
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_matmul import IntegerMatMul
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.device import RemoteBundle

CASES = list(LOWERED.values())


def recorded(case: Case, machine: Machine) -> list[Launched]:
    """The kernel calls of a case."""
    calls: list[Launched] = []

    def execute(kernel: Kernel, views: list[Array]) -> None:
        before = [v.copy() for v in views]
        interpret(kernel, views)
        calls.append(Launched(f"{case.op} {case.label}", kernel, before, [v.copy() for v in views]))

    run_lowered(case.op, case.arrays(), machine, case.constant, ASK, execute)
    return calls


def program(kernels: Sequence[Launched], target: Target) -> tuple[Program, Array]:
    """A program that calls every kernel once, and its initial memory, which is the program's input."""
    made, memory = program_of(kernels, ordered=lambda view: ordered(view, target))
    return made, np.frombuffer(memory, np.uint8)


def ordered(array: Array, target: Target) -> Array:
    """The array in the target's byte order, or back from it."""
    return array if target.byte_order == sys.byteorder else swapped(array)


@pytest.mark.parametrize("target", selected(EMULATED))
def test_operator_kernels_match_the_interpreter_on_every_target(target: str) -> None:
    skip_without_device(target)
    row = find(target)
    cases = covering(row.machine, ASK, each_operator=True)
    emulated = [case for case in cases if not f"{case.op} {case.label}".startswith(row.not_emulated)]
    kernels = [k for case in emulated for k in recorded(case, row.machine)]
    assert len({each.label.partition("(")[0] for each in kernels}) > 100
    assert_equal(kernels, row, written_alone=row.machine.outer(DType.I8) is not None)


@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=pytest.mark.slow if i % 4 else ()) for i, name in enumerate(SECOND_TIER)]
)
def test_some_operator_kernels_on_targets_of_the_second_tier(target: str) -> None:
    """Each target has cases of its own, of all element sizes; every fourth target by default."""
    skip_without_device(target)
    row, count = find(target), len(SECOND_TIER)
    cases = CASES[SECOND_TIER.index(target) :: 20 * count]
    kernels = [k for case in cases for k in recorded(case, row.machine)]
    assert kernels
    assert_equal(kernels, row)


def test_kernels_that_clang_takes_for_helium_in_one_form_only() -> None:
    """Selects of vectors of f64, and products of two channels of bytes, which need every general register."""
    skip_without_device("cortex-m55")
    row = find("cortex-m55")
    cases = [c for c in CASES if c.op.name == "Acosh" or (c.op.name == "IntegerGemm" and c.label == "16x16x2_double")]
    assert len(cases) >= 2
    assert_equal([k for case in cases for k in recorded(case, row.machine)], row)


@pytest.mark.parametrize("target", ["aarch64-fp16", "riscv64-v-fp16"])
def test_arithmetic_in_f16(target: str) -> None:
    """Cases of f16 on a target that multiplies it, in the blocks that ``--precision fp16`` chooses."""
    skip_without_device(target)
    row = find(target)
    machine = in_halves(row.machine)
    cases = [case for case in CASES if case.dtypes[:1] == (DType.F16,)]
    kernels = [k for case in cases for k in recorded(case, machine)]
    assert sum("fma_f16" in str(each.kernel) for each in kernels) >= 8
    assert_equal(kernels, row)


@pytest.mark.parametrize("target", ["aarch64-bf16"])
def test_arithmetic_in_bf16(target: str) -> None:
    """Products of bf16 by instructions that round sums to odd."""
    skip_without_device(target)
    rng, records = np.random.default_rng(0), list[Launched]()
    a, b = (_bf16(rng, 2048).view(np.int32) for _ in "ab")
    y = (rng.standard_normal(1024) * 2.0 ** rng.integers(-30, 30, 1024)).astype(np.float32)
    for name, lanes in (("dot2_odd", 1), ("dot2_odd", 2), ("dot2_odd", 4), ("dot2_odd", 8), ("mmla_bf16", 4)):
        k = Builder(f"{name}_{lanes}")
        left, right = (k.param(each, 1024, dtype=DType.B2).vec(lanes) for each in "ab")
        into = k.param("y", 1024, out=True).vec(lanes)
        with k.loop("i", 1024 // lanes) as i:
            into[i] = op(name, into[i], left[i], right[i])
        kernel, after = k.done(), [a, b, y.copy()]
        interpret(kernel, after)
        records.append(Launched(kernel.name, kernel, [a, b, y], after))
    assert_equal(records, find(target))


def outer_cases() -> Iterator[Case]:
    """Convolutions and matrix products of whole numbers, whose sums are exact in f32, of bf16 and of bytes."""
    rng = np.random.default_rng(5)
    for case in Convolution.cases():
        given = case.arrays()
        arrays: list[Array | None] = [
            None if a is None else np.rint(4 * rng.standard_normal(a.shape)).astype(np.float32) for a in given
        ]
        if arrays[0] is not None and arrays[0].ndim < 5:
            yield replace(case, inputs=tuple(arrays), label=f"whole {case.label}")
            for i, a in enumerate(arrays[:2]):
                arrays[i] = None if a is None else _bf16(rng, a.size).reshape(a.shape)
            yield replace(case, inputs=tuple(arrays), label=f"bf16 {case.label}")
    for case in MatMul.cases():
        if 1 in case.constant and case.dtypes[:2] == (F32, F32):
            yield replace(case, inputs=tuple(np.rint(4 * a) if a is not None else a for a in case.arrays()))
    yield from itertools.chain(IntegerConv.cases(), IntegerGemm.cases())


def by_outer_products(case: Case, site: Site) -> OuterProducts | OuterMatrices | None:
    """The algorithm that computes a case so, if there is one."""
    if isinstance(case.op, MatMul):
        able = OuterMatrices.applies((case.op.product(site).problem(site),), site.machine)
        return OuterMatrices(OuterTiles(2, 2)) if able else None
    return next((each for each in case.op.candidates(site) if isinstance(each, OuterProducts | OuterMatrices)), None)


OUTER = ("aarch64-sme", "aarch64-sme2")


@pytest.mark.parametrize("target", OUTER)
@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_outer_products(part: int, target: str) -> None:
    """Convolutions and matrices that SME multiplies, by an eighth of the cases each.  QEMU before 9.0 adds products of
    bytes to the wrong sums, and before 10.1 it has no SME2: these are computed without SME there."""
    skip_without_device(target)
    row, records = find(target), list[Launched]()
    for case in itertools.islice(outer_cases(), part, None, 8):
        site = make_site(case.op, case.arrays(), row.machine, case.constant)
        algorithm = by_outer_products(case, site)
        if algorithm is None:
            continue

        def execute(kernel: Kernel, views: list[Array], label: str = case.label) -> None:
            before = [v.copy() for v in views]
            interpret(kernel, views)
            records.append(Launched(f"outer products {label}", kernel, before, [v.copy() for v in views]))

        run_site(case.op, settle(case.op, replace(site, algorithm=algorithm)), case.arrays(), execute=execute)
    assert len(records) > 5
    assert_equal(records, row)


def finished_by_outer_products(machine: Machine, width: int, channels: int, tile: OuterTiles) -> Iterator[Launched]:
    """Kernels whose results the unit makes and stores: clamped ones of f32 and bf16, also by a factor, and bytes by one
    factor and by one for each channel, in blocks of all sizes."""
    rng = np.random.default_rng(9)
    for dtype, block, single in itertools.product((F32, DType.BF16, DType.I8, DType.U8), (4, 8, 16), (True, False)):
        floats = dtype in (F32, DType.BF16)
        if block > 16 // dtype.bytes:
            continue
        epilogue = (_scaled if single else _clamped) if floats else identity
        x = Image(1, 2 * block, 1, width, block, 1, 1, 1, 1, dtype=dtype)
        y = Image(1, channels, 1, width, block, 0, 0, 1, 1, dtype=dtype)
        weights = DType.I8 if not floats else dtype
        c = DenseConv(x, y, (3, 3), top=1, left=1, weights=weights, epilogue=epilogue)
        given = (
            rng.standard_normal(channels * x.channels * 9)
            if dtype is DType.BF16
            else rng.integers(-9, 9, channels * x.channels * 9)
        )
        packed = outer_products.pack(given.reshape(channels, x.channels, 3, 3).astype(weights.numpy), c, tile)
        image = rng.integers(0 if dtype is DType.U8 else -9, 9, math.prod(x.shape)).astype(dtype.numpy)
        bias = rng.integers(-99, 99, channels).astype(np.float32 if floats else np.int32)
        rows = [] if floats else [rng.uniform(0.01, 0.2, 1 if single else channels).astype(np.float32)]
        kernel = outer_products.outer_products(c, machine, tile)
        if not floats:
            least = -128 if dtype is DType.I8 else 0
            q = Requantize("float", least + 131, least, least + 250, dtype, ("factor",))
            described = IntegerConvolution(c, q, (F32,), (single,))
            kernel = outer_products.integer_outer_products(described, machine, tile)
        empty = np.zeros(math.prod(y.shape), np.uint16 if dtype is DType.BF16 else dtype.numpy)
        words = image if dtype is F32 else image.view(np.int32)
        before = [words, *(each.reshape(-1) for each in packed), bias, *rows, empty]
        after = [*before[:-1], empty.copy()]
        interpret(kernel, after)
        assert len(np.unique(after[-1])) > 20
        yield Launched(f"{dtype} in blocks of {block}, {single}", kernel, before, after)


def matrices_by_outer_products(
    machine: Machine, rows: int, inputs: int, outputs: int, tile: OuterTiles
) -> Iterator[Launched]:
    """Matrices of rows, of f32 and bf16."""
    rng = np.random.default_rng(4)
    for dtype in (F32, DType.BF16):
        x, y = (Image(1, n, 1, rows, n, dtype=dtype) for n in (inputs, outputs))
        c = DenseConv(x, y, weights=dtype)
        shapes = (rows, inputs), (outputs, inputs, 1, 1)
        image, weights = (rng.integers(-9, 9, shape).astype(dtype.numpy) for shape in shapes)
        packed = [each.reshape(-1) for each in outer_products.pack(weights, panel_of(c, tile), tile)]
        words = image.reshape(-1) if dtype is F32 else image.reshape(-1).view(np.int32)
        panels = [np.zeros(size // 4, words.dtype) for size in panel_bytes(c, tile)]
        bias, narrow = rng.integers(-99, 99, outputs).astype(np.float32), dtype is DType.BF16
        before = [words, *packed, *panels, bias, np.zeros(rows * outputs, np.uint16 if narrow else np.float32)]
        after = [each.copy() for each in before]
        kernel = outer_matrices(c, machine, tile)
        interpret(kernel, after)
        expected = image.astype(np.float32) @ weights[:, :, 0, 0].astype(np.float32).T + bias
        got = after[-1] if dtype is F32 else after[-1].view(DType.BF16.numpy).astype(np.float32)
        np.testing.assert_allclose(got.reshape(rows, outputs), expected, rtol=0 if dtype is F32 else 1e-2)
        yield Launched(f"{rows} rows of {dtype}", kernel, before, after)


def _clamped(value: Expr, *_: Expr) -> Expr:
    return minimum(maximum(value, -100.0), 900.0)


def _scaled(value: Expr, *_: Expr) -> Expr:
    return _clamped(value * 0.37)


@pytest.mark.parametrize(
    ("target", "narrows"), [("aarch64-sme", ("bfcvt z", "sli z")), ("aarch64-sme2", ("bfcvtn z", "uqcvtn z"))]
)
def test_results_of_outer_products(target: str, narrows: tuple[str, ...]) -> None:
    """To the bit, in the assembly that is asked for."""
    skip_without_device(target)
    machine = find(target).machine
    records = [
        *finished_by_outer_products(machine, 21, 48, OuterTiles(1, 3)),
        *matrices_by_outer_products(machine, 37, 40, 52, OuterTiles(2, 2)),
    ]
    assert len(records) == 2 + 4 + 6 + 6 + 2
    unit = C()
    for each in records:
        unit.kernel(each.kernel)
    assert all(name in unit.text() for name in (*narrows, "st4w {z0.s, z1.s, z2.s, z3.s}, p2, [%[s]]"))
    assert_equal(records, find(target))


@pytest.mark.parametrize(
    ("target", "product"),
    [("aarch64-sme", "fmla z4.s, z16.s"), ("aarch64-sme2", "fmla za.s[w8, 0, vgx4], {z16.s-z19.s}")],
)
def test_single_positions_by_long_vectors(target: str, product: str) -> None:
    """To the bit: the last position of a row behind a tile, in blocks of all sizes, and matrices of one row, whose
    words are loaded four at a time or one by one."""
    skip_without_device(target)
    machine = find(target).machine
    records = list(finished_by_outer_products(machine, 17, 64, OuterTiles(1, 4)))
    for inputs, outputs, tile in ((40, 128, OuterTiles(1, 4)), (38, 52, OuterTiles(1, 4)), (24, 52, OuterTiles(1, 2))):
        records += matrices_by_outer_products(machine, 1, inputs, outputs, tile)
    unit = C()
    for each in records:
        unit.kernel(each.kernel)
    assert all(name in unit.text() for name in (product, "ld1rqw", "ld1rd", "ld1rw {z0.s}"))
    assert_equal(records, find(target))


@pytest.mark.parametrize("target", OUTER)
def test_two_tensors_by_outer_products(target: str) -> None:
    """To the bit: matrices of several heads and of one, rows and columns that are no whole tiles, one row, and an
    epilogue that the unit does not compute."""
    skip_without_device(target)
    row, rng, records = find(target), np.random.default_rng(6), list[Launched]()
    shapes = ((3, 37, 24), (3, 24, 52)), ((2, 3, 18, 13), (3, 13, 56)), ((2, 1, 40), (2, 40, 72)), ((1, 39), (39, 84))
    for left, right in shapes:
        whole = tuple(np.rint(4 * rng.standard_normal(shape)).astype(np.float32) for shape in (left, right))
        records += recorded(Case(MatMul(), whole, label=f"{left} by {right}"), row.machine)
    given = tuple(np.rint(4 * rng.standard_normal(shape)).astype(np.float32) for shape in ((37, 24), (24, 48), (48,)))
    records += recorded(Case(Gemm(alpha=0.5, beta=2.0), given, label="with an addend"), row.machine)
    records += recorded(Case(Gemm(alpha=0.37), given[:2], label="scaled"), row.machine)
    assert all(each.kernel.name.startswith("outer_factors") for each in records)
    assert len(records) == len(shapes) + 2
    assert_equal(records, row)


def two_tensors_of_bytes() -> Iterator[Case]:
    """Products of all combinations of types, with zero points and without, of which most have no whole tiles."""
    rng, sizes = np.random.default_rng(7), (((2, 37, 24), (24, 52)), ((3, 18, 61), (3, 61, 56)))
    for (left, right), a_type, b_type in itertools.product(sizes, (np.int8, np.uint8), (np.int8, np.uint8)):
        a, b = (
            rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
            for shape, kind in ((left, a_type), (right, b_type))
        )
        for zeros in ((0, 0, 5), (3, 120, -7)):
            label = f"{left} by {right}, {zeros}"
            yield Case(IntegerMatMul("float", zeros, factor=0.0004), (a, b), (), 0, label=label)
            yield Case(IntegerMatMul("none", zeros, to="i32"), (a, b), (), 0, label=f"{label}, sums")


@pytest.mark.parametrize("target", OUTER)
def test_two_tensors_of_bytes_by_outer_products(target: str) -> None:
    """To the bit.  QEMU before 9.0 computes these without SME, and before 10.1 without SME2."""
    skip_without_device(target)
    row = find(target)
    records = [each for case in two_tensors_of_bytes() for each in recorded(case, row.machine)]
    assert sum(each.kernel.name.startswith("outer_words") for each in records) == 32
    assert_equal(records, row)


OUTER_GROUPS = {
    "q8_0": (37, 35, 96),
    "q4_0": (32, 32, 64),
    "q4_1": (9, 48, 32),
    "q5_1": (18, 22, 64),
    "q4_k": (19, 19, 512),
    "q6_k": (33, 16, 256),
    "q2_k": (34, 18, 512),
    "n4_32": (13, 33, 64),
}
"""Rows, outputs and columns: tiles that are not full, and formats with scales and shifts of all parts."""


@pytest.mark.parametrize("target", OUTER)
def test_outer_products_of_weights_in_blocks(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, also where groups are unpacked a block at a time.  QEMU before 9.0 computes these
    without SME, and before 10.1 without SME2."""
    skip_without_device(target)
    row, records = find(target), list[Launched]()
    for name, (rows, outputs, columns) in OUTER_GROUPS.items():
        case = Case(BlockMatMul(name), quantised_case(rows, columns, outputs, FORMATS[name]), (3,), label=name)
        for groups in (256, FORMATS[name].span // 32):
            monkeypatch.setattr(outer_groups, "_GROUPS", groups)
            outer_groups.outer_groups.cache_clear()
            records += recorded(case, row.machine)
    outer_groups.outer_groups.cache_clear()
    assert sum(each.kernel.name.startswith("outer_groups") for each in records) == 2 * len(OUTER_GROUPS)
    assert_equal(records, row, written_alone=True)


STREAMED = {"aarch64-sme": "stream_row", "aarch64-sme2": "stream_multi_row"}


@pytest.mark.parametrize("target", STREAMED)
def test_one_row_by_weights_in_blocks_in_the_streaming_mode(target: str) -> None:
    """To the bit: one to four panels of sixteen outputs, panels that are not full, odd numbers of groups, and a few
    rows by the same weights.  QEMU before 10.1 computes these without SME2."""
    skip_without_device(target)
    row, records = find(target), list[Launched]()
    for name, (rows, outputs, columns) in itertools.product(
        ("q4_0", "q8_0", "iq4_nl"), ((1, 150, 96), (1, 32, 64), (1, 7, 32), (2, 40, 96), (5, 63, 32))
    ):
        case = Case(BlockMatMul(name), quantised_case(rows, columns, outputs, FORMATS[name]), (3,), label=name)
        records += recorded(case, row.machine)
    unit = C()
    for each in records:
        unit.kernel(each.kernel)
    assert sum(each.kernel.name.startswith("stream_row") for each in records) == 9
    assert ("sdot za.s[w8, 0, vgx4], {z16.b-z19.b}" in unit.text()) == (target == "aarch64-sme2")
    assert_equal(records, row, written_alone=True)


PANELS = {"aarch64-dotprod": {"panel_dots"}, "aarch64-i8mm": {"panel_dots", "panel_blocks"}}


@pytest.mark.parametrize("target", PANELS)
def test_panels_of_weights_in_blocks(target: str) -> None:
    """To the bit: tiles of one to four rows by one to four panels, and panels that are not full."""
    row, records = find(target), list[Launched]()
    for name, (rows, outputs) in itertools.product(
        ("q4_0", "q8_0"), ((1, 35), (1, 16), (2, 8), (3, 12), (4, 28), (7, 27))
    ):
        case = Case(BlockMatMul(name), quantised_case(rows, 96, outputs, FORMATS[name]), (3,), label=name)
        records += recorded(case, row.machine)
    instructions = {
        each.name for record in records for each in statements(record.kernel.body) if isinstance(each, Instruction)
    }
    assert instructions == PANELS[target]
    assert_equal(records, row)


def products_of_all_formats(row: Target) -> list[Launched]:
    """Products by weights in blocks, of one row and of several, and of panels that are not full."""
    records = list[Launched]()
    for form, (rows, outputs) in itertools.product(FORMATS.values(), ((1, 7), (3, 4))):
        case = Case(BlockMatMul(form.name), quantised_case(rows, form.span, outputs, form), (3,), label=form.name)
        records += recorded(case, row.machine)
    return records


_HALVES = np.arange(1 << 16).astype(np.uint16).view(np.float16)
ALL_HALVES = Case(Cast(to="f32"), (_HALVES[~np.isnan(_HALVES)],), label="f16")


def test_weights_in_blocks_by_the_relaxed_product_of_webassembly() -> None:
    """To the bit, all formats, those of at most six bits by it; and all numbers of f16 as f32."""
    skip_without_device("wasm32-relaxed")
    row = find("wasm32-relaxed")
    records = products_of_all_formats(row)
    small = sum(form.bits <= 6 for form in FORMATS.values())
    assert sum("dot8_small" in str(each.kernel) for each in records) == 2 * small
    assert_equal([*records, *recorded(ALL_HALVES, row.machine)], row)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_weights_in_blocks_by_products_of_halves_of_words(target: str) -> None:
    """To the bit, all formats, and all numbers of f16 as f32."""
    skip_without_device(target)
    row, units = find(target), ("dot2_i16", "dot16")
    records = products_of_all_formats(row)
    assert sum(any(unit in str(each.kernel) for unit in units) for each in records) == 2 * len(FORMATS)
    assert_equal([*records, *recorded(ALL_HALVES, row.machine)], row)


@pytest.mark.parametrize("target", ["wasm32", "wasm32-relaxed", "riscv64-v"])
def test_weights_in_blocks_by_other_vectors(target: str) -> None:
    """To the bit, all formats: one row and several, and panels that are not full; those of few bits by relaxed
    SIMD, and those of RISC-V byte by byte; and all numbers of f16 as f32."""
    skip_without_device(target)
    row, records = find(target), list[Launched]()
    for form, (rows, outputs) in itertools.product(FORMATS.values(), ((1, 11), (3, 4))):
        case = Case(BlockMatMul(form.name), quantised_case(rows, form.span, outputs, form), (3,), label=form.name)
        records += recorded(case, row.machine)
    small = sum(form.bits <= 6 for form in FORMATS.values()) if row.machine.has("dot8_small") else 0
    assert sum("dot8_small" in str(each.kernel) for each in records) == 2 * small
    assert row.machine.has("dot8_small") == (target == "wasm32-relaxed")
    assert any("dot4" in str(each.kernel) for each in records) == (target != "riscv64-v")
    halves = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    records += recorded(Case(Cast(to="f32"), (halves[~np.isnan(halves)],), label="f16"), row.machine)
    assert_equal(records, row)


def _bf16(rng: np.random.Generator, count: int) -> Array:
    """Numbers of all sizes, whose sums of products are seldom exact."""
    return (rng.standard_normal(count) * 2.0 ** rng.integers(-20, 20, count)).astype(DType.BF16.numpy)


def assert_equal(kernels: Sequence[Launched], target: Target, *, written_alone: bool = False) -> None:
    """The memory after the kernels is that of the interpreter.  ``written_alone``: in intermediate results, only where
    the interpreter wrote, as instructions store whole vectors whose rest has no values."""
    # a fused multiply-add rounds once
    row = replace(target, flags=(*target.flags, "-ffp-contract=off", "-O1"))
    made, memory = program(kernels, row)
    bundle = Bundle.of(made, resolved(Options(target=target.name), row))
    (answer,) = RemoteBundle(bundle).run([memory])
    wrong = []
    for each, call in zip(kernels, made.calls, strict=True):
        for buffer, place, before, after in zip(each.kernel.params, call.args, each.before, each.after, strict=True):
            if buffer.space == "scratch":
                continue  # scratch memory has unspecified contents
            raw = answer["memory"][place.offset : place.offset + after.nbytes]
            actual, expected = ordered(raw.view(after.dtype).reshape(after.shape), row), after
            if written_alone and buffer.space == "global" and after.size:
                written = (before.view(np.uint8) != after.view(np.uint8)).reshape(after.size, -1).any(1)
                actual, expected = actual.reshape(-1)[written], after.reshape(-1)[written]
            if not same(actual, expected):
                wrong.append((each.label, actual.reshape(-1), expected))
    for label, a, b in wrong:
        at = np.flatnonzero(a != b.reshape(-1))[:4]
        print(label, a.dtype, len(a), a[at], b.reshape(-1)[at])
    assert not [label for label, _, _ in wrong]


@pytest.mark.parametrize("target", selected([name for name in EMULATED if find(name).machine.fours]))
def test_products_of_bytes_on_every_target(target: str) -> None:
    """At the ends of their ranges, where sums of 16 bits saturate or wrap around."""
    skip_without_device(target)
    row, records = find(target), list[Launched]()
    lanes = row.machine.lanes
    for kernel in (*(products(name, n) for name in NAMES for n in (1, lanes)), interleaved(lanes)):
        before = list(operands(kernel.name.rpartition("_")[0]))
        if len(kernel.params) == 2:
            before = [before[0].view(np.int8), before[2]]
        after = [a.copy() for a in before]
        interpret(kernel, after)
        records.append(Launched(kernel.name, kernel, before, after))
    made, memory = program(records, row)
    (answer,) = RemoteBundle(Bundle.of(made, resolved(Options(target=target), row))).run([memory])
    for each, call in zip(records, made.calls, strict=True):
        place, expected = call.args[-1], each.after[-1]
        raw = answer["memory"][place.offset : place.offset + expected.nbytes]
        np.testing.assert_array_equal(raw.view(expected.dtype), expected, err_msg=each.label)


def same(a: Array, b: Array) -> bool:
    """Bitwise equality, except that all NaNs are equal: processors give different ones."""
    if a.tobytes() == b.tobytes():
        return True
    return a.dtype.kind == "f" and bool(np.array_equal(a, b, equal_nan=True))


@pytest.mark.parametrize("target", OUTER)
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
def test_bytes_in_rows_of_outer_products(dtype: DType, target: str) -> None:
    """Rows of bytes by one factor and by one for each column, to the bit: columns of tiles are rows of results."""
    skip_without_device(target)
    rng, row, tile, records = np.random.default_rng(5), find(target), OuterTiles(2, 2), list[Launched]()
    x, y = (Image(1, n, 1, 37, n, dtype=dtype) for n in (40, 52))
    c, least = DenseConv(x, y, weights=DType.I8), -128 if dtype is DType.I8 else 0
    image = rng.integers(least, least + 256, (37, 40)).astype(dtype.numpy)
    packed = outer_products.pack(rng.integers(-9, 9, (52, 40, 1, 1)).astype(np.int8), panel_of(c, tile), tile)
    for single in (True, False):
        q = Requantize("float", least + 131, least, least + 250, dtype, ("factor",))
        kernel = integer_outer_matrices(IntegerConvolution(c, q, (F32,), (single,)), row.machine, tile)
        factors = rng.uniform(0.01, 0.2, 1 if single else 52).astype(np.float32)
        panels = [np.zeros(size // 4, np.int32) for size in panel_bytes(c, tile)]
        bias, words = rng.integers(-99, 99, 52).astype(np.int32), image.reshape(-1).view(np.int32)
        before = [words, *(each.reshape(-1) for each in packed), *panels, bias, factors, np.zeros(37 * 52, dtype.numpy)]
        after = [each.copy() for each in before]
        interpret(kernel, after)
        assert len(np.unique(after[-1])) > 20
        records.append(Launched(f"rows of {dtype}, {single}", kernel, before, after))
    unit = C()
    unit.kernel(records[0].kernel)
    assert "st1b {z" in unit.text()
    assert_equal(records, row)
