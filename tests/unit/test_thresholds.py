"""Floats to integers of 8 bits by thresholds, on processors without instructions for floats."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from lowered import Ask, make_site, run_site
from tenon.machine.isa.thumb import MUL
from tenon.machine.kernels.lookup import thresholds
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets import find, targets
from tenon.network.graph.graph import Array
from tenon.network.ops.quantize import QuantizeLinear

SOFT = Machine(lanes=1, registers=8, products=(MUL,), float_unit=False)


def numbers(scale: np.float32) -> Array:
    """Halves of steps and their neighbours, numbers of all magnitudes, zeros, infinities."""
    rng = np.random.default_rng(0)
    steps = (np.arange(-270, 271, dtype=np.float32) / 2) * scale
    near = [steps, np.nextafter(steps, np.float32(np.inf)), np.nextafter(steps, np.float32(-np.inf))]
    wide = rng.standard_normal(200).astype(np.float32) * np.exp2(rng.integers(-140, 120, 200)).astype(np.float32)
    odd = np.array([0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
    return np.concatenate([*near, wide, odd]).astype(np.float32)


@pytest.mark.parametrize(
    ("scale", "to", "zero", "ties"),
    [(0.023519728, "i8", -18, "away"), (3e-5, "i8", 4, "even"), (700.0, "u8", 3, "away"), (0.5, "u8", 128, "even")],
)
def test_thresholds_give_the_integers_of_the_reference(scale: float, to: str, zero: int, ties: str) -> None:
    x, step = numbers(np.float32(scale))[::2], np.array(scale, np.float32)
    op = QuantizeLinear(to, ties=ties)
    arrays = [x, step, np.array(zero, np.dtype({"i8": "int8", "u8": "uint8"}[to]))]
    site = make_site(op, arrays, SOFT, (1, 2), Ask())
    (lowered,) = op.lower(site)
    assert lowered.kernel.name.startswith("thresholds")
    assert not any(word in str(lowered.kernel) for word in ("'div'", "'round'", "'trunc'", "'mul'"))
    (got,) = run_site(op, site, arrays)
    np.testing.assert_array_equal(got, op.exactly(x, step, arrays[2]))
    finite = np.abs(x) < 1e30  # beyond, the division of the reference overflows
    np.testing.assert_array_equal(got[finite], op.evaluate(arrays)[0][finite])


def test_compiled_thresholds_agree_with_the_reference(tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    x = numbers(np.float32(0.5))
    arrays = [x, np.array(0.5, np.float32), np.array(7, np.int8)]
    op = QuantizeLinear("i8")
    site, library = make_site(op, arrays, SOFT, (1, 2), Ask()), Library()
    for step in op.lower(site):
        library.add(step.kernel)
    library.build(tmp_path, [gcc, "-O1"])
    (got,) = run_site(op, site, arrays, execute=library)
    np.testing.assert_array_equal(got, op.exactly(*arrays))


def test_padding_lanes_of_images_stay_zero() -> None:
    op, arrays = QuantizeLinear("i8"), [np.ones((1, 3, 2, 2), np.float32), np.array(0.5, np.float32), np.int8(5)]
    given = [np.asarray(a) for a in arrays]
    site = make_site(op, given, SOFT, (1, 2), Ask(blocked=True))
    (step,) = op.lower(site)
    assert len(step.kernel.params) == 4  # the mask too
    (got,) = run_site(op, site, given)  # checks the padding
    assert (got == 7).all()


@pytest.mark.parametrize(
    "constants",
    [
        [np.array([[[0.5]], [[0.25]]], np.float32), np.array([[[1]], [[2]]], np.int8)],
        [np.array(-0.5, np.float32), np.array(1, np.int8)],
        [np.array(0.5, np.float32), np.array(1, np.int16)],
    ],
    ids=["a scale per channel", "a negative scale", "16 bits"],
)
def test_other_quantisations_are_computed(constants: list[Array]) -> None:
    op = QuantizeLinear("i16" if constants[1].dtype == np.int16 else "i8")
    site = make_site(op, [np.ones((2, 3, 4), np.float32), *constants], SOFT, (1, 2), Ask())
    assert not op.lower(site)[0].kernel.name.startswith("thresholds")


def test_thresholds_of_a_function_of_two_results() -> None:
    table = thresholds(lambda x: np.where(x >= np.float32(1.5), 255, 0), 0)
    assert table[1:].tolist() == [int(np.float32(1.5).view(np.int32))] * 255


WITHOUT_FPU = [
    "cortex-m0",
    "cortex-m0plus",
    "cortex-m23",
    "cortex-m3",
    "cortex-m33-nofp",
    "cortex-m4-nofp",
    "cortex-m7-nofp",
    "riscv32imc",
]


def test_targets_without_fpu_are_known_by_their_triple_and_processor() -> None:
    assert sorted(name for name, row in targets().items() if not row.machine.float_unit) == WITHOUT_FPU
    soft = replace(find("cortex-m4"), triple="thumb-freestanding-eabi", cpu="cortex_m4")
    assert not soft.machine.float_unit


@pytest.mark.parametrize("target", [*WITHOUT_FPU, "cortex-m4"])
def test_cores_without_fpu_use_thresholds(target: str) -> None:
    constants: list[Array] = [np.array(0.5, np.float32), np.array(1, np.int8)]
    op = QuantizeLinear("i8")
    site = make_site(op, [np.ones((2, 3, 4), np.float32), *constants], find(target).machine, (1, 2), Ask())
    (step,) = op.lower(site)
    assert step.kernel.name.startswith("thresholds") == (target != "cortex-m4")
