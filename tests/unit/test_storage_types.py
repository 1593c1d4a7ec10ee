"""16-bit floats in kernels: all conversions, and pair products, in C and in the interpreter."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from interpret import interpret
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, cast, dot2
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType

CODES = np.arange(65536, dtype=np.uint32).astype(np.uint16)
LANES = (1, 4, 8, 16)
HALVES = (DType.BF16, DType.F16)


def conversion(source: DType, target: DType, n: int, lanes: int) -> Kernel:
    k = Builder(f"{target}_of_{source}_{lanes}")
    x, y = k.param("x", n, dtype=source), k.param("y", n, dtype=target, out=True)
    with k.loop("i", n // lanes) as i:
        y.vec(lanes)[i] = cast(x.vec(lanes)[i], target)
    return k.done()


def products(n: int, lanes: int) -> Kernel:
    k = Builder(f"dot2_{lanes}")
    a, b = k.param("a", n, dtype=DType.B2), k.param("b", n, dtype=DType.B2)
    y = k.param("y", n, out=True)
    with k.loop("i", n // lanes) as i:
        y.vec(lanes)[i] = dot2(y.vec(lanes)[i], a.vec(lanes)[i], b.vec(lanes)[i])
    return k.done()


def numbers(dtype: DType) -> Array:
    """f32 test values for every number of ``dtype``: the number, the midpoint to the next larger one, and the
    neighbours of that.
    """
    exact = CODES.view(dtype.numpy).astype(np.float32)
    bits = exact[np.isfinite(exact)].view(np.uint32)
    step = np.uint32(1 << (15 if dtype is DType.BF16 else 12))
    near = [bits, bits + step, bits + step - 1, bits + step + 1]
    wild = np.array([np.inf, -np.inf, np.nan, 65519.9, 65520, 6e-8, 2.9e-8, 3e38, -0.0], np.float32)
    values = np.concatenate([np.concatenate(near).view(np.float32), wild])
    return np.resize(values[np.isfinite(values) | (values != values) | np.isinf(values)], -(-len(values) // 16) * 16)


def same(got: Array, expected: Array) -> None:
    """Equal bits, except that all NaNs are equal."""
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}")[~nan], expected.view(f"u{got.itemsize}")[~nan])


def flushed(x: Array) -> Array:
    """The array with subnormal numbers flushed to zero."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


@pytest.mark.parametrize("dtype", HALVES)
def test_interpreter_conversions_match_numpy(dtype: DType) -> None:
    wide = np.zeros(65536, np.float32)
    interpret(conversion(dtype, F32, 65536, 16), [CODES.view(np.float16) if dtype is DType.F16 else CODES, wide])
    same(wide, CODES.view(dtype.numpy).astype(np.float32))
    x = numbers(dtype)
    half = np.zeros(len(x), dtype.carrier.numpy)
    interpret(conversion(F32, dtype, len(x), 16), [x, half])
    with np.errstate(over="ignore"):
        same(half.view(dtype.numpy), x.astype(dtype.numpy))


def test_dot2_adds_the_second_product_first() -> None:
    one, tiny = 0x3F80, 0x3380  # 1 and 2**-24
    a = np.array([tiny | one << 16, one | tiny << 16], np.uint32).view(np.int32)
    b = np.array([one | one << 16] * 2, np.uint32).view(np.int32)
    y = np.array([-1.0, -1.0], np.float32)
    interpret(products(2, 2), [a, b, y])
    np.testing.assert_array_equal(y, np.array([2.0**-24, 2.0**-24], np.float32))
    y = np.array([2.0**-24, 2.0**-24], np.float32)
    interpret(products(2, 2), [a, b, y])
    np.testing.assert_array_equal(y, np.array([1.0, 1.0 + 2.0**-23], np.float32))


def commands(folder: Path) -> dict[str, tuple[Sequence[str], str]]:
    """Compilers and flags, and the target that must run here."""
    available: dict[str, tuple[Sequence[str], str]] = {}
    native = {"v4": "x86-64-avx512", "v3": "x86-64-avx2", "bf16": "x86-64-avx512-bf16"}
    if gcc := shutil.which("gcc"):
        available["gcc"] = [gcc, "-O1", "-ffp-contract=off"], ""
        available["gcc v3"] = [gcc, "-O2", "-march=x86-64-v3", "-ffp-contract=off"], native["v3"]
        available["gcc bf16"] = [gcc, "-O2", "-march=x86-64-v4", "-mavx512bf16"], native["bf16"]
    clang = [*zig(folder).command, "-target", "x86_64-linux-gnu", "-fno-sanitize=undefined", "-O2"]
    available["clang"] = [*clang, "-mcpu=x86_64", "-ffp-contract=off"], "x86-64"
    available["clang bf16"] = [*clang, "-mcpu=x86_64_v4+avx512bf16"], native["bf16"]
    return available


@pytest.mark.parametrize("compiler", ["gcc", "gcc v3", "gcc bf16", "clang", "clang bf16"])
def test_compiled_conversions_and_products(compiler: str, tmp_path: Path) -> None:
    available = commands(tmp_path)
    if compiler not in available or (available[compiler][1] and not runs_here(available[compiler][1])):
        pytest.skip(f"{compiler} is not here, or this processor does not run what it makes")
    library = Library()
    kernels: dict[tuple[str, int], Kernel] = {}
    for lanes in LANES:
        for dtype in HALVES:
            kernels[f"wide_{dtype}", lanes] = conversion(dtype, F32, 65536, lanes)
            kernels[f"half_{dtype}", lanes] = conversion(F32, dtype, len(numbers(dtype)), lanes)
        kernels["dot2", lanes] = products(4096, lanes)
    for kernel in kernels.values():
        library.add(kernel)
    library.build(tmp_path, available[compiler][0])
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(8192).astype(DType.BF16.numpy).view(np.int32) for _ in "ab")
    for lanes in LANES:
        for dtype in HALVES:
            wide = np.zeros(65536, np.float32)
            library(kernels[f"wide_{dtype}", lanes], [CODES, wide])
            same(wide, CODES.view(dtype.numpy).astype(np.float32))
            x = numbers(dtype)
            half = np.zeros(len(x), np.uint16)
            library(kernels[f"half_{dtype}", lanes], [x, half])
            native = "bf16" in compiler and dtype is DType.BF16 and (lanes == 16 or ("clang" in compiler and lanes > 1))
            with np.errstate(over="ignore"):
                same(half.view(dtype.numpy), (flushed(x) if native else x).astype(dtype.numpy))
        expected = np.ones(4096, np.float32)
        interpret(products(4096, 16), [a, b, expected])
        y = np.ones(4096, np.float32)
        library(kernels["dot2", lanes], [a, b, y])
        np.testing.assert_array_equal(y, expected)
