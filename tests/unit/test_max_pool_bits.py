"""The maximum of bf16 by their bits: every code, NaN with and without a sign and both zeros."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from interpret import interpret
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.pool import Pool, Segment, pool
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

SHAPES = [(4, 8), (8, 8), (8, 16), (16, 16), (16, 32)]
"""Lanes of f32, and channels of a block."""


def windows(lanes: int, block: int) -> Kernel:
    """Windows of 2x2 with a stride of 2 in one block of 4 rows and 2,048 columns."""
    h, w = 4, 2048
    x, y = (Image(1, block, h // n, w // n, block, dtype=DType.BF16) for n in (1, 2))
    rows, cols = (Segment(0, extent // 2, 0, 2, 2) for extent in (h, w))
    return pool(Pool(x, y, (rows,), (cols,), (1, 1)), Machine(lanes=lanes, registers=16, block=block))


def codes(block: int) -> Array:
    """Every code, in an order that differs between channels, then the special ones among few numbers."""
    rng = np.random.default_rng(block)
    special = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0xFF81, 0x7F81, 0x8001, 0x0001], np.uint16)
    mixed = rng.choice(np.concatenate([special, rng.integers(0, 65536, 10).astype(np.uint16)]), 65536)
    whole = rng.permutation(65536).astype(np.uint16)
    return np.resize(np.concatenate([whole[:32768], mixed[:32768], whole[32768:], mixed[32768:]]), (4, 2048, block))


def expected(x: Array) -> Array:
    """The greatest of each window: NaN if one is, and 0 before -0."""
    taps = x.reshape(2, 2, 1024, 2, -1).transpose(0, 2, 4, 1, 3).reshape(2, 1024, x.shape[2], 4)
    values = taps.view(DType.BF16.numpy).astype(np.float32)
    order = np.where(np.isnan(values), np.inf, values)
    rank = np.stack([np.isnan(values), ~np.signbit(values)])
    best = np.lexsort((rank[1], order, rank[0]), axis=-1)[..., -1:]
    return np.take_along_axis(taps, best, -1)[..., 0]


def check(y: Array, x: Array) -> None:
    """Equal bits, except that all NaN are equal."""
    right = expected(x)
    nan = np.isnan(right.view(DType.BF16.numpy).astype(np.float32))
    assert nan.any()
    assert {0, 0x8000} <= set(right[~nan].tolist())
    np.testing.assert_array_equal(np.isnan(y.view(DType.BF16.numpy).astype(np.float32)), nan)
    np.testing.assert_array_equal(y[~nan], right[~nan])


def run(kernel: Kernel, block: int, execute: object = interpret) -> None:
    x, y = codes(block), np.zeros((2, 1024, block), np.uint16)
    execute(kernel, [x.reshape(-1), y.reshape(-1)])  # type: ignore[operator]
    check(y, x)


@pytest.mark.parametrize(("lanes", "block"), SHAPES)
def test_interpreted(lanes: int, block: int) -> None:
    run(windows(lanes, block), block)


@pytest.mark.parametrize(
    ("compiler", "options", "target"),
    [
        ("gcc", "-march=x86-64", "x86-64"),
        ("gcc", "-march=x86-64-v3", "x86-64-avx2"),
        ("gcc", "-march=x86-64-v4", "x86-64-avx512"),
        ("clang", "-mcpu=x86_64", "x86-64"),
        ("clang", "-mcpu=x86_64_v4", "x86-64-avx512"),
    ],
)
def test_compiled(compiler: str, options: str, target: str, tmp_path: Path) -> None:
    if (compiler == "gcc" and not shutil.which("gcc")) or not runs_here(target):
        pytest.skip(f"{compiler} is not here, or this processor does not run what it makes")
    clang = [*zig(tmp_path).command, "-target", "x86_64-linux-gnu", "-fno-sanitize=undefined"]
    command = [*(["gcc"] if compiler == "gcc" else clang), "-O2", options]
    library = Library()
    kernels = {shape: windows(*shape) for shape in SHAPES}
    for kernel in kernels.values():
        library.add(kernel)
    library.build(tmp_path, command)
    for (_, block), kernel in kernels.items():
        run(kernel, block, library)
