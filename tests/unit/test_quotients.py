"""Quotients of floats rounded to integers without dividing: the bits of QuantizeLinear's reference, for any scale."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from interpret import interpret
from lowered import make_site
from tenon.machine import isa
from tenon.machine.codegen.c.dialect import C
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.quantize import Quantize, quantize
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.quantize import QuantizeLinear
from tenon.network.ops.requantize import limits

TARGETS = {
    "x86-64": (4, "x86-64", "x86_64"),
    "x86-64-avx2": (8, "x86-64-v3", "x86_64_v3"),
    "x86-64-avx512": (16, "x86-64-v4", "x86_64_v4"),
}
SIZE = 16 * 700 + 13
SCALES = [
    0.01,
    1.0,
    1 / 3,
    0.1,
    0.0078125,
    7.3e-3,
    -0.02,
    3e-39,
    1e-44,
    1e-30,
    1e30,
    2.9e38,
    3.4e38,
    0.0,
    np.inf,
    np.nan,
]


def numbers(scale: float) -> Array:
    """Numbers beside halves of steps, random ones in and out of the range, and values that are no numbers."""
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        step = np.float32(scale)
        halves = (np.arange(-520, 520, dtype=np.float32) + np.float32(0.5)) * step
        near = np.concatenate([np.nextafter(halves, np.float32(s * np.inf)) for s in (-1, 1)])
        inside = rng.uniform(-300, 300, 6000).astype(np.float32) * step
        outside = (rng.standard_normal(1000) * 10.0 ** rng.uniform(-44, 38, 1000)).astype(np.float32)
    others = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
    return np.resize(np.concatenate([halves, near, inside, outside, others]), SIZE)


def command(compiler: str, target: str, folder: Path) -> Sequence[str]:
    _, march, mcpu = TARGETS[target]
    if compiler == "clang":
        flags = ["-target", "x86_64-linux-gnu", f"-mcpu={mcpu}", "-fno-sanitize=undefined", "-O2"]
        return [*zig(folder).command, *flags]
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc")
    return [gcc, "-O2", f"-march={march}"]


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiled(compiler: str, target: str, dtype: DType, tmp_path: Path) -> None:
    if not runs_here(target):
        pytest.skip(f"this machine does not run code for {target}")
    kernel = quantize(Quantize(SIZE, dtype, limits(dtype), True), Machine(lanes=TARGETS[target][0]))
    library, op = Library(), QuantizeLinear(dtype.value)
    library.add(kernel)
    library.build(tmp_path, command(compiler, target, tmp_path))
    for scale in SCALES:
        for zero in (*limits(dtype), 3):
            x, step = numbers(scale), np.array([scale], np.float32)
            y, offset = np.zeros(SIZE, dtype.numpy), np.array([zero], dtype.numpy)
            library(kernel, [x, step, offset, y])
            (expected,) = op.evaluate([x, step, offset])
            np.testing.assert_array_equal(y, expected, err_msg=f"{scale}, {zero}")


DEVICE = """\
#include <math.h>
#include <stdint.h>
#define __fmaf_rn fmaf
#define __float2int_rn (int32_t)lrintf
static int32_t rounded(float a, int32_t b, float c, float r) {
  %s
}
void quotients(int n, const float *x, float scale, int32_t added, int32_t *y) {
  for (int i = 0; i < n; i++) y[i] = rounded(x[i], added, scale, 1 / scale);
}
"""


def test_devices(tmp_path: Path) -> None:
    """The body for CUDA, whose functions C has by other names."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc")
    source, library = tmp_path / "quotients.c", tmp_path / "quotients.so"
    source.write_text(DEVICE % isa.device_body("cuda", "nearest_quotient_add").format())
    subprocess.run([gcc, "-O2", "-ffp-contract=off", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
    function = ctypes.CDLL(str(library)).quotients
    for scale in SCALES:
        x, y = numbers(scale), np.zeros(SIZE, np.int32)
        function(SIZE, x.ctypes, ctypes.c_float(scale), 7, y.ctypes)
        with np.errstate(all="ignore"):
            exact = np.rint(x / np.float32(scale)).astype(np.float64)
        expected = np.nan_to_num(np.clip(exact, -(2.0**30), 2.0**30), nan=-(2.0**30)) + 7
        np.testing.assert_array_equal(y, expected, err_msg=str(scale))


@pytest.mark.parametrize("lanes", [4, 16])
def test_interpreter(lanes: int) -> None:
    kernel = quantize(Quantize(SIZE, DType.I8, (-128, 127), False), Machine(lanes=lanes))
    for scale in (0.01, 1e-44, 0.0, np.inf):
        x, step, y = numbers(scale), np.array([scale], np.float32), np.zeros(SIZE, np.int8)
        interpret(kernel, [x, step, y])
        (expected,) = QuantizeLinear("i8").evaluate([x, step])
        np.testing.assert_array_equal(y, expected, err_msg=str(scale))


def test_most_vectors_are_not_divided() -> None:
    """A quotient is divided only in a vector that has one beside a half, or beyond 512."""
    k = C()
    k.kernel(quantize(Quantize(64, DType.U8, (0, 255), True), Machine(lanes=16)))
    text = k.text()
    assert "a * r + 1536.0f" in text
    rng = np.random.default_rng(2)
    quotients = np.float32(1536) + rng.uniform(-255, 255, (100_000, 16)).astype(np.float32)
    bits = quotients.view(np.uint32)
    beside = ((bits - np.uint32(4095)) & np.uint32(0xFF801FFF)) - np.uint32(0x44800003) >= 8189
    assert 0.001 < beside.any(axis=1).mean() < 0.01


@pytest.mark.parametrize("scale", ["one", "rows"])
def test_scales_of_rows_are_divided(scale: str) -> None:
    """There is one inverse for each vector only where there is one scale."""
    step = np.full(1 if scale == "one" else (3, 1), 0.5, np.float32)
    op, arrays = QuantizeLinear("i8"), [np.zeros((3, 32), np.float32), step]
    (step_of,) = op.lower(make_site(op, arrays, Machine(lanes=8, block=8), ()))
    assert ("divided by a scale" in step_of.kernel.about) == (scale == "one")
    away = replace(op, ties="away")
    (other,) = away.lower(make_site(away, arrays, Machine(lanes=8, block=8), ()))
    assert "divided by a scale" not in other.kernel.about
