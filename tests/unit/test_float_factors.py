"""Products of quantised integers times factors in f32 on microcontrollers: the bits of the reference, with an FPU by
floats, without one in fixed point.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library
from integer_products import CASES, EVEN, operands, operator
from loop_operations import OPERATIONS
from lowered import Ask, make_site, run_lowered, run_site
from tenon.machine.algorithms.integer_pairs import PairsWinograd
from tenon.machine.codegen.c.dialect import C
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.helium import DOT16
from tenon.machine.isa.thumb import MUL
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import op
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.requantize import even_factors
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32
from tenon.network.ops.base import Weights
from tenon.network.ops.fitted_factors import fitted_factors
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_pool import IntegerAveragePool
from tenon.network.ops.requantize import Factors

MACHINES = {
    "pairs": Machine(lanes=1, registers=28, block=4, products=(DOT2_I16,)),
    "pairs-soft": Machine(lanes=1, registers=12, block=4, products=(DOT2_I16,), float_unit=False),
    "scalar": Machine(lanes=1, registers=12, block=4, products=(MUL,), float_unit=False),
    "dots": Machine(lanes=4, registers=8, block=4, products=(DOT2_I16, DOT16)),
}
CONSTANT = (1, 2, 3)
SHORT = [name for name in CASES if name not in ("depthwise_5x5", "depthwise_wide", "dilated", "sloped")]


def floats(more: dict[str, Any]) -> IntegerConv:
    return replace(operator(more), rounding="float")


def given(x: tuple[int, ...], w: tuple[int, ...], *, halves: bool = False) -> list[Array]:
    """Operands with factors in f32; of powers of two, for which many products are halves, where asked for."""
    data, weights, bias, multipliers, shifts = operands(x, w)
    factors = (multipliers * 2.0 ** (shifts.astype(np.float64) - 31)).astype(np.float32)
    if halves:
        factors = np.exp2(np.round(np.log2(factors))).astype(np.float32)
    return [data, weights, bias, factors]


def check(conv: IntegerConv | IntegerGemm, arrays: list[Array], machine: Machine, kind: str, **more: Any) -> None:
    (step,) = conv.lower(make_site(conv, arrays, machine, CONSTANT))
    assert step.kernel.name.startswith(f"integer_{kind}")
    (expected,) = conv.evaluate(arrays)
    (got,) = run_lowered(conv, arrays, machine, CONSTANT, **more)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", SHORT)
def test_convolutions(name: str, machine: str, halves: bool) -> None:
    x, w, more = CASES[name]
    conv = floats(more)
    kind = machine.removesuffix("-soft")
    if conv.slope != 1 and machine != "pairs":
        kind = "depthwise" if name.startswith("depthwise") else "conv"  # products with two factors are left in floats
    check(conv, given(x, w, halves=halves), MACHINES[machine], kind, ask=Ask(surplus=halves))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("n", "k", "m"), [(1, 36, 8), (3, 8, 4), (1, 8, 12)])
def test_matrix_products(n: int, k: int, m: int, machine: str) -> None:
    check(
        IntegerGemm("float", -3, zero=4, scale=0.25),
        given((n, k), (m, k)),
        MACHINES[machine],
        machine.removesuffix("-soft"),
    )


@pytest.mark.parametrize("machine", ["pairs", "pairs-soft"])
def test_winograd(machine: str) -> None:
    x, w, more = EVEN
    conv, arrays = floats(more), given(x, w)
    site = replace(make_site(conv, arrays, MACHINES[machine], CONSTANT), algorithm=PairsWinograd())
    assert conv.lower(site)[0].kernel.name.startswith("integer_winograd")
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


MIXED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dense": ((1, 8, 5, 7), (16, 8, 1, 1), {"pads": (0, 0, 0, 0)}),
    "window": ((1, 4, 5, 6), (12, 4, 3, 3), {"pads": (1, 1, 1, 1), "zero": -20}),
    "depthwise": ((1, 16, 5, 9), (16, 1, 3, 3), {"group": 16, "pads": (1, 1, 1, 1), "zero": 7}),
}


def mixed(name: str, blocks: set[int]) -> tuple[IntegerConv, list[Array]]:
    """A convolution of which a channel in each of these blocks of four is multiplied by a power of two: many products
    are halves, which no fixed point rounds as floats do."""
    x, w, more = MIXED[name]
    conv, arrays = floats(more), given(x, w)
    arrays[3][:] = 0.0123
    for block in blocks:
        arrays[3][4 * block + 2] = np.float32(2.0**-6)
    return conv, arrays


@pytest.mark.parametrize("name", MIXED)
def test_blocks_are_rounded_each_in_its_way(name: str, tmp_path: Path) -> None:
    """Fixed point does for most channels; a block of four with another is compared with halves."""
    machine, library = MACHINES["dots"], Library()
    cases = [mixed(name, blocks) for blocks in ({0}, {1}, {2}, {0, 1, 2})]
    steps = [conv.lower(make_site(conv, arrays, machine, CONSTANT))[0] for conv, arrays in cases]
    for step in steps:
        library.add(step.kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    for (conv, arrays), step, block in zip(cases, steps, (0, 1, 2, None), strict=True):
        table = next(a.data for a in step.args if isinstance(a, Weights) and a.data.ndim == 2)
        assert len(table) == (3 if block is None else 4)
        if block is not None:
            assert np.flatnonzero(table[3]).tolist() == [4 * block + i for i in range(4)]
        (expected,) = conv.evaluate(arrays)
        np.testing.assert_array_equal(run_lowered(conv, arrays, machine, CONSTANT)[0], expected)
        np.testing.assert_array_equal(run_lowered(conv, arrays, machine, CONSTANT, execute=library)[0], expected)


def test_compiled(tmp_path: Path) -> None:
    library = Library()
    cases = [
        (floats(more), given(x, w, halves=i % 2 == 1), machine)
        for i, (x, w, more) in enumerate(CASES.values())
        for machine in MACHINES.values()
    ]
    for conv, arrays, machine in cases:
        library.add(conv.lower(make_site(conv, arrays, machine, CONSTANT))[0].kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    for conv, arrays, machine in cases:
        (got,) = run_lowered(conv, arrays, machine, CONSTANT, execute=library)
        np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


def test_others_without_floats() -> None:
    """Layers that the fastest kernels do not take (bytes without a sign, channels that fill no block) and pools."""
    machine, rng = MACHINES["scalar"], np.random.default_rng(4)
    x, w, more = CASES["3x3"]
    data, weights, bias, factors = given(x, w)
    u8 = replace(floats(more), x_zero=131, zero=120, low=0, high=255, to="u8")
    conv = [(data.astype(np.int16) + 128).astype(np.uint8), weights, bias, factors]
    check(u8, conv, machine, "conv")
    pool = IntegerAveragePool("float", (2, 3), (1, 0, 0, 1), x_zero=-7, zero=4, factor=1.7)
    image = rng.integers(-128, 128, (1, 7, 5, 6)).astype(np.int8)
    (got,) = run_lowered(pool, [image], machine, ())
    np.testing.assert_array_equal(got, pool.evaluate([image])[0])


# -------------------------------------------------------------------------------------------- rounding
def near_halves(factor: np.float32, zero: int, largest: int) -> Array:
    """Sums whose products lie next to halves, and others."""
    rng = np.random.default_rng(int(largest))
    halves = (np.arange(-256, 256) + 0.5) / float(factor)
    near = np.rint(halves)[:, None] + np.arange(-3, 4)
    sums = np.concatenate([near.reshape(-1), rng.integers(-largest, largest + 1, 4000), [largest, -largest, 0]])
    inside: Array = sums[np.abs(sums) <= largest].astype(np.int32)
    return inside


@pytest.mark.parametrize("zero", [0, -128, 127, 5])
def test_fixed_point_rounds_as_floats_do(zero: int) -> None:
    rng = np.random.default_rng(9)
    made = ties = 0
    for bits in range(3, 31):
        for mantissa in (1.0, 1.5, np.float32(1 / 3) * 3, *rng.uniform(1, 2, 12)):
            factor, largest = np.float32(float(mantissa) * 200 / 2.0**bits), (1 << bits) - 1
            known = even_factors(np.array([factor]), zero, np.array([largest]))
            if known is None:
                continue
            (m, c, r), left = known[0][:, 0], known[1]
            sums = near_halves(factor, zero, largest)
            s = sums << left
            t = OPERATIONS["sqrdmulh"](s, np.int64(m)) + c
            ties += int(np.count_nonzero((t & ((1 << int(r)) - 1)) == 0))
            got = OPERATIONS["shift_even"](t, s, np.array(m), np.array(c), np.array(r))
            expected = Factors("float", np.array([factor])).apply(sums) + zero
            np.testing.assert_array_equal(np.clip(got, -128, 127), np.clip(expected, -128, 127))
            made += 1
    assert made > 250
    assert ties > 1000


@pytest.mark.parametrize(("zero", "low", "high"), [(0, -128, 127), (-128, -128, 127), (100, 100, 127), (-9, -100, 90)])
def test_fitted_factors_have_the_same_steps(zero: int, low: int, high: int) -> None:
    """At every sum, for few of which the real product and that of floats lie on different sides of a half."""
    rng = np.random.default_rng(11)
    made = 0
    for _ in range(60):
        largest = int(rng.integers(1000, 60000))
        factor = np.float32(rng.uniform(30, 300) / largest)
        known = fitted_factors(np.array([factor]), zero, low, high, np.array([largest]))
        if known is None:
            continue
        (m, c, r), left = known[0][:, 0].astype(np.int64), known[1]
        sums = np.arange(-largest, largest + 1)
        got = (OPERATIONS["sqrdmulh"](sums << left, m) + c) >> r
        expected = Factors("float", np.array([factor])).apply(sums) + zero
        np.testing.assert_array_equal(np.clip(got, low, high), np.clip(expected, low, high))
        made += 1
    assert made > 45


def test_factors_that_no_fixed_point_fits() -> None:
    """With a power of two half of the products are halves, and every second of these is rounded up."""
    half = np.array([0.5], np.float32)
    assert fitted_factors(half, 0, -128, 127, np.array([500])) is None
    assert even_factors(half, 0, np.array([500])) is not None
    assert fitted_factors(np.array([0.0], np.float32), 0, -128, 127, np.array([500])) is None


def test_factors_out_of_reach() -> None:
    """No factor, sums that are too large, and factors that differ too much: these stay in floats."""
    largest = np.array([1 << 20, 1 << 20])
    assert even_factors(np.array([0.0, 0.1], np.float32), 0, largest) is None
    assert even_factors(np.array([np.inf, 0.1], np.float32), 0, largest) is None
    assert even_factors(np.array([1.5], np.float32), 0, np.array([(1 << 31) - 1])) is None
    assert even_factors(np.array([2.0**-18, 0.9], np.float32), 0, np.array([1 << 29, 1 << 29])) is None
    assert even_factors(np.array([2.0**-12, 2.0**-9], np.float32), 0, largest) is not None


def test_vectors_of_two_take_no_instruction_of_four() -> None:
    """Helium reduces whole registers only."""
    texts = []
    for lanes in (2, 4):
        k, unit = Builder("k"), C()
        params = [k.param("a", 4, dtype=I32).vec(lanes) for _ in range(5)]
        k.param("y", 4, dtype=I32, out=True).vec(lanes)[0] = op("shift_even", *(a[0] for a in params))
        unit.kernel(k.done())
        texts.append(unit.text())
    assert ["vminv" in text for text in texts] == [False, True]


@pytest.mark.parametrize("lanes", [1, 4])
def test_primitive_in_portable_c(lanes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    r = rng.integers(1, 14, 64).astype(np.int32)
    m = rng.integers(1 << 23, 1 << 24, 64).astype(np.int32) << 7
    s = rng.integers(-(2**29), 2**29, 64).astype(np.int32)
    c = ((1 << r >> 1) + (rng.integers(-128, 128, 64) << r)).astype(np.int32)
    t = (OPERATIONS["sqrdmulh"](s, m.astype(np.int64)) + c).astype(np.int32)
    t[::3] &= -(1 << r[::3])
    k = Builder("k")
    params = [k.param("a", 64, dtype=I32).vec(lanes) for _ in range(5)]
    y = k.param("y", 64, dtype=I32, out=True).vec(lanes)
    with k.loop("i", 64 // lanes) as i:
        y[i] = op("shift_even", *(a[i] for a in params))
    kernel, library, out = k.done(), Library(), np.zeros(64, np.int32)
    library.add(kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    library(kernel, [t, s, m, c, r, out])
    np.testing.assert_array_equal(out, OPERATIONS["shift_even"](t, s, m, c, r))
