"""Sums of four products of bytes: what C has for them, as the interpreter defines them, at the ends of their ranges."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tenon
from compiled import Library
from interpret import interpret
from tenon.ir.build import Builder
from tenon.ir.evaluate import evaluate
from tenon.ir.graph import Array, Graph, Origin
from tenon.ir.loops import Kernel, bitcast, interleave4, op
from tenon.ir.types import I32, DType, TensorType
from tenon.ops.integer_conv import IntegerGemm
from tenon.targets.host_cpu import runs_here
from tenon.toolchain.compiler import zig

LANES = (1, 4, 8, 16)
NAMES = ("dot4", "dot4_signed")


def products(name: str, lanes: int) -> Kernel:
    k = Builder(f"{name}_{lanes}")
    a, b = (k.param(p, 1024, dtype=DType.Q8) for p in "ab")
    y = k.param("y", 1024, dtype=I32, out=True)
    with k.loop("i", 1024 // lanes) as i:
        y.vec(lanes)[i] = op(name, y.vec(lanes)[i], a.vec(lanes)[i], b.vec(lanes)[i])
    return k.done()


def interleaved(lanes: int) -> Kernel:
    k = Builder(f"interleave4_{lanes}")
    a = k.param("a", 4096, dtype=DType.I8)
    y = k.param("y", 1024, dtype=I32, out=True)
    with k.loop("i", 1024 // lanes) as i:
        y.vec(lanes)[i] = bitcast(interleave4(a.vec(4 * lanes)[i]), I32)
    return k.done()


def operands() -> tuple[Array, Array, Array]:
    """Random bytes, and all combinations of the least and the greatest: pairs of products that saturate 16 bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, 4096).astype(np.int8) for _ in "ab")
    ends = np.array(np.meshgrid(*[[-128, -1, 127]] * 4)).reshape(4, -1).T.reshape(-1).astype(np.int8)
    a[: len(ends)], b[: len(ends)] = ends, -128
    a[512 : 512 + len(ends)], b[512 : 512 + len(ends)] = ends, 127
    start = rng.integers(-(2**31), 2**31, 1024).astype(np.int32)
    return a.view(np.int32), b.view(np.int32), start


@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_adds_up_in_32_bits(name: str) -> None:
    a, b, y = operands()
    left = a.view(np.uint8 if name == "dot4" else np.int8).astype(np.int64).reshape(-1, 4)
    expected = (y + (left * b.view(np.int8).reshape(-1, 4)).sum(1)).astype(np.int32)
    interpret(products(name, 16), [a, b, y])
    np.testing.assert_array_equal(y, expected)


COMPILERS = {
    "x86-64": "x86_64", "x86-64-avx2": "x86_64_v3", "x86-64-avx512": "x86_64_v4",
    "x86-64-avx512-vnni": "x86_64_v4+avx512vnni",
}  # fmt: skip


def command(compiler: str, target: str, folder: Path) -> Sequence[str]:
    if compiler == "clang":
        flags = ["-target", "x86_64-linux-gnu", f"-mcpu={COMPILERS[target]}", "-fno-sanitize=undefined", "-O2"]
        return [*zig(folder).command, *flags]
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc")
    more = {"x86-64": ["-march=x86-64"], "x86-64-avx2": ["-march=x86-64-v3"]}
    wide = ["-march=x86-64-v4", *(["-mavx512vnni"] if "vnni" in target else [])]
    return [gcc, "-O2", *more.get(target, wide)]


@pytest.mark.parametrize("target", COMPILERS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiled_products(compiler: str, target: str, tmp_path: Path) -> None:
    if not runs_here(target):
        pytest.skip(f"this machine does not run code for {target}")
    library, mixed = Library(), [interleaved(lanes) for lanes in LANES if lanes > 1]
    kernels = [products(name, lanes) for name in NAMES for lanes in LANES]
    for kernel in (*kernels, *mixed):
        library.add(kernel)
    library.build(tmp_path, command(compiler, target, tmp_path))
    for kernel in kernels:
        a, b, y = operands()
        expected = y.copy()
        interpret(kernel, [a, b, expected])
        library(kernel, [a, b, y])
        np.testing.assert_array_equal(y, expected, err_msg=kernel.name)
    bytes = np.arange(4096).astype(np.int8)
    for kernel in mixed:
        y, lanes = np.zeros(1024, np.int32), int(kernel.name.split("_")[1])
        library(kernel, [bytes, y])
        expected = np.swapaxes(bytes.reshape(-1, 4, lanes), 1, 2)
        np.testing.assert_array_equal(y.view(np.int8), expected.reshape(-1), err_msg=kernel.name)
        interpret(kernel, [bytes, again := np.zeros(1024, np.int32)])
        np.testing.assert_array_equal(again, y)


@pytest.mark.parametrize("target", COMPILERS)
def test_sums_that_clang_vectorises(target: str) -> None:
    """clang 22 gives wrong sums to some rows of a tile of one channel that is left of whole vectors."""
    if not runs_here(target):
        pytest.skip(f"this machine does not run code for {target}")
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (17, 24)).astype(np.int8)
    constants: list[Array] = [weights, np.zeros(17, np.int32), np.array([2e-3], np.float32)]
    graph = Graph("rows")
    x = graph.add_input("x", TensorType(DType.I8, (20, 24)))
    operands = [x, *(graph.constant(f"c{i}", data) for i, data in enumerate(constants))]
    graph.outputs = [graph.add(IntegerGemm("float", -128), operands, ["y"], Origin("", "y", "IntegerGemm")).output]
    rows = rng.integers(-128, 128, (20, 24)).astype(np.int8)
    expected = evaluate(graph, {"x": rows})["y"]
    np.testing.assert_array_equal(tenon.open(tenon.compile(graph, target=target)).run({"x": rows})["y"], expected)
