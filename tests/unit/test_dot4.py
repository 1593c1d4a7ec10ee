"""dot4 (sums of four 8-bit products): generated C compared with the interpreter, with extreme operands."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tenon
from byte_products import NAMES, interleaved, operands, products
from compiled import Library, assembled
from interpret import interpret
from lowered import Ask, make_site, run_site
from tenon.machine.kernel_ir.text import show
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Origin
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm

LANES = (1, 4, 8, 16)


@pytest.mark.parametrize("name", NAMES)
def test_interpreter_accumulates_in_32_bits(name: str) -> None:
    a, b, y = operands(name)
    left = a.view(np.uint8 if name == "dot4" else np.int8).astype(np.int64).reshape(-1, 4)
    times = 2 if name == "dot8_small" else 1
    expected = (y + times * (left * b.view(np.int8).reshape(-1, 4)).sum(1)).astype(np.int32)
    interpret(products(name, 16), [a, b, y])
    np.testing.assert_array_equal(y, expected)


COMPILERS = {
    "x86-64": "x86_64",
    "x86-64-avx2": "x86_64_v3",
    "x86-64-avx512": "x86_64_v4",
    "x86-64-avx512-vnni": "x86_64_v4+avx512vnni",
}


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
    kernels = [products(name, lanes) for name in (*NAMES, "madd_i16") for lanes in LANES]
    for kernel in (*kernels, *mixed):
        library.add(kernel)
    library.build(tmp_path, command(compiler, target, tmp_path))
    for kernel in kernels:
        a, b, y = operands(kernel.name.rpartition("_")[0])
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
    given = [x, *(graph.constant(f"c{i}", data) for i, data in enumerate(constants))]
    graph.outputs = [graph.add(IntegerGemm("float", -128), given, ["y"], Origin("", "y", "IntegerGemm")).output]
    rows = rng.integers(-128, 128, (20, 24)).astype(np.int8)
    expected = evaluate(graph, {"x": rows})["y"]
    np.testing.assert_array_equal(tenon.open(tenon.compile(graph, target=target)).run({"x": rows})["y"], expected)


INSTRUCTIONS = {
    ("x86-64-avx2-vnni", "dot4", 8): r"vpdpbusd.*%ymm",
    ("x86-64-avx2-vnni", "dot4", 4): r"vpdpbusd.*%xmm",
    ("x86-64-avx512-vnni", "dot4", 16): r"vpdpbusd.*%zmm",
    ("x86-64-avx2", "dot4", 8): r"vpmaddwd.*%ymm",
    ("aarch64-dotprod", "dot4_signed", 4): r"sdot\s+v\d+\.4s",
    ("aarch64-sve128", "dot4_signed", 4): r"sdot\s+v\d+\.4s",
    ("aarch64-sve256", "dot4_signed", 8): r"sdot\s+z\d+\.s",
    ("aarch64-i8mm", "dot4", 4): r"usdot\s+v\d+\.4s",
    ("aarch64", "dot4_narrow", 4): r"sadalp\s+v\d+\.4s",
    ("armv7", "dot4_narrow", 4): r"vpadal\.s16\s+q\d+",
    ("wasm32", "dot4", 4): r"i32x4\.dot_i16x8_s",
    ("wasm32-relaxed", "dot8_small", 4): r"i32x4\.relaxed_dot_i8x16_i7x16_add_s",
}


@pytest.mark.parametrize(("target", "name", "lanes"), INSTRUCTIONS)
def test_a_product_is_the_instruction_that_its_target_has(target: str, name: str, lanes: int, tmp_path: Path) -> None:
    """AVX-VNNI's instruction is found, too, which QEMU does not know."""
    row = find(target)
    command = [*zig(tmp_path).command, "-target", row.triple, f"-mcpu={row.cpu}", *row.flags]
    assembly = assembled(products(name, lanes), command, tmp_path)
    assert re.search(INSTRUCTIONS[target, name, lanes], assembly), assembly
    assert "%zmm" not in assembly or lanes == 16


def test_activations_of_the_other_sign_are_broadcast_from_memory(tmp_path: Path) -> None:
    """A scalar that is turned before it is broadcast takes three instructions where a load does."""
    row, rng = find("x86-64-avx512-vnni"), np.random.default_rng(0)
    shapes = (1, 64, 14, 14), (64, 64, 1, 1)
    x, weights = (rng.integers(-127, 128, shape).astype(np.int8) for shape in shapes)
    given: list[Array] = [x, weights, np.zeros(64, np.int32), np.full(64, 1e-3, np.float32)]
    conv = IntegerConv("float", 3, scale=0.5)
    (step,) = conv.lower(make_site(conv, given, row.machine, (1, 2, 3), Ask(blocked=True)))
    command = [*zig(tmp_path).command, "-target", row.triple, f"-mcpu={row.cpu}", *row.flags]
    assembly = assembled(step.kernel, command, tmp_path)
    assert re.search(r"vpxord\s+-?\d*\(%r.*\)\{1to16\}, %zmm", assembly)
    assert not re.search(r"vpbroadcastd\s+%xmm", assembly)


def test_gcc_has_a_product_of_avx_vnni(tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc")
    assembly = assembled(products("dot4", 8), [gcc, *find("x86-64-avx2-vnni").gcc], tmp_path)
    assert re.search(r"vpdpbusd.*%ymm", assembly)


@pytest.mark.parametrize(("shape", "pads"), [((1, 16, 2, 13), 0), ((1, 26, 2, 18), 0), ((2, 22, 3, 6), 1)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_activations_of_arm_are_words_of_vectors(stride: int, shape: tuple[int, ...], pads: int, dtype: type) -> None:
    """Four columns are loaded at a time, and positions that are left one by one."""
    machine, rng, side = find("aarch64-dotprod").machine, np.random.default_rng(1), 1 + 2 * pads
    x, weights = (rng.integers(-128, 128, each).astype(np.int8) for each in (shape, (20, shape[1], side, side)))
    x, bias = x.astype(dtype), rng.integers(-1000, 1000, 20).astype(np.int32)
    given: list[Array] = [x, weights, bias, np.full(20, 3e-3, np.float32)]
    conv = IntegerConv("float", 3, scale=0.5, strides=(1, stride), pads=(pads,) * 4)
    site = make_site(conv, given, machine, (1, 2, 3), Ask(blocked=True, surplus=pads))
    assert any("dot4_lane3(" in show(step.kernel) for step in conv.lower(site)) == (stride == 1)
    assert any("dot4_lane2(" in show(step.kernel) for step in conv.lower(site)) == (
        stride == 1 or (stride == 2 and shape[-1] % 2 == 0)  # of 13 columns the last one is read, too
    )
    (got,) = run_site(conv, site, given)
    np.testing.assert_array_equal(got, conv.evaluate(given)[0])


@pytest.mark.parametrize("inputs", [48, 52])
@pytest.mark.parametrize("zero", [0, 5])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_rows_of_arm_are_words_of_vectors(dtype: type, zero: int, inputs: int) -> None:
    """Sixteen channels of a row are loaded at a time, of which products take one word after the other."""
    machine, rng = find("aarch64-dotprod").machine, np.random.default_rng(3)
    x, weights = (rng.integers(-128, 128, each).astype(np.int8) for each in ((11, inputs), (22, inputs)))
    bias, factors = rng.integers(-999, 999, 22).astype(np.int32), np.full(22, 2e-3, np.float32)
    given: list[Array] = [x.astype(dtype), weights, bias, factors]
    gemm = IntegerGemm("float", 3, scale=0.5, w_zero=zero)
    site = make_site(gemm, given, machine, (1, 2, 3))
    assert any("dot4_lane3(" in show(step.kernel) for step in gemm.lower(site)) == (inputs % 16 == 0)
    (got,) = run_site(gemm, site, given)
    np.testing.assert_array_equal(got, gemm.evaluate(given)[0])
