"""Tables of 256 bytes that registers hold: generated C compared with NumPy, and the instructions that it becomes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from compiled import Library, assembled
from interpret import interpret
from tenon.machine.isa.byte_tables import LOOKUP4, LOOKUP16
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.image import Box
from tenon.machine.kernels.lookup import Lookup, lookup
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

TARGETS = {"x86-64-avx2": 16, "x86-64-avx512": 64, "x86-64-avx512-vbmi": 64}
"""The targets of the kernels, and the entries of a table's vectors: AVX2 has no instruction, so plain C."""

TABLES = {64: LOOKUP4, 16: LOOKUP16}


def kernel(entries: int, x: DType, y: DType, n: int = 250, *, masked: bool = False) -> Kernel:
    """Two rows of ``n`` bytes, of which a mask may keep every channel but the last of its blocks of sixteen."""
    shape = (2, n // 16, 16) if masked else (2, n)
    of = {dtype: Box(shape, (0,) * len(shape), shape, dtype) for dtype in (x, y)}
    kept = Box((1, 1, 16), (0, 0, 0), (1, 1, 16), I32) if masked else None
    return lookup(Lookup(of[x], of[y], -128 if x is DType.I8 else 0, kept), Machine(table=TABLES.get(entries)))


def given(x: DType, y: DType, n: int = 250) -> tuple[list[Array], Array]:
    """Every byte more than once, a table without order, room for the results; and what these are to be."""
    codes, table = np.arange(2 * n) % 256, np.random.default_rng(1).permutation(256).astype(np.uint8)
    bytes = codes.astype(np.uint8).view(x.numpy).reshape(2, n)
    expected = table[bytes.astype(np.int64) + (128 if x is DType.I8 else 0)].view(y.numpy)
    return [bytes, table.view(y.numpy), np.zeros_like(expected)], expected


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiled_lookups(compiler: str, target: str, tmp_path: Path) -> None:
    if not runs_here(target):
        pytest.skip(f"this machine does not run code for {target}")
    row = find(target)
    command = [*zig(tmp_path).command, "-target", row.triple, f"-mcpu={row.cpu}", "-O2"]
    if compiler == "gcc":
        if shutil.which("gcc") is None:
            pytest.skip("there is no gcc")
        command = ["gcc", "-O2", *row.gcc]
    types = [(DType.I8, DType.I8), (DType.U8, DType.I8), (DType.I8, DType.U8)]
    library, kernels = Library(), [kernel(TARGETS[target], *of) for of in types]
    masked = kernel(TARGETS[target], DType.U8, DType.U8, 256, masked=True)
    for each in (*kernels, masked):
        library.add(each)
    library.build(tmp_path, command)
    for each, of in zip(kernels, types, strict=True):
        arrays, expected = given(*of)
        library(each, arrays)
        np.testing.assert_array_equal(arrays[-1], expected)
        interpret(each, again := [*arrays[:2], np.zeros_like(expected)])
        np.testing.assert_array_equal(again[-1], expected)
    (x, table, y), expected = given(DType.U8, DType.U8, 256)
    keeps = np.where(np.arange(16) < 15, -1, 0).astype(np.int32)
    library(masked, [x, table, keeps, y])
    np.testing.assert_array_equal(y, expected & np.tile(keeps, 16).astype(np.uint8))


@pytest.mark.parametrize(
    ("target", "instruction", "most"),
    [("x86-64-avx512-vbmi", r"vperm[it]2b", 4), ("x86-64-avx512", r"vperm[it]2w", 8), ("aarch64", r"tb[lx]\s+v", 4)],
)
def test_a_row_of_vectors_takes_few_instructions(target: str, instruction: str, most: int, tmp_path: Path) -> None:
    row = find(target)
    entries = row.machine.table.entries if row.machine.table else 0
    whole = lookup(Lookup(*(Box((640,), (0,), (640,), DType.I8),) * 2, -128), row.machine)
    command = [*zig(tmp_path).command, "-target", row.triple, f"-mcpu={row.cpu}", *row.flags]
    assembly = assembled(whole, command, tmp_path)
    assert entries
    assert 0 < len(re.findall(instruction, assembly)) <= most, assembly
    loop = re.search(r"\n(\.LBB\d+_\d+):(.*?)\s(?:jne|b\.ne)\s+\1", assembly, re.DOTALL)
    assert loop
    steps = [line for line in loop[2].splitlines() if re.match(r"\s+[a-z]", line)]
    assert len(steps) <= {"aarch64": 14, "x86-64-avx512": 40}.get(target, 12), "\n".join(steps)


def test_few_bytes_and_wider_results_are_looked_up_one_by_one() -> None:
    for n, y in ((15, DType.I8), (64, DType.F32)):
        one = lookup(Lookup(Box((n,), (0,), (n,), DType.I8), Box((n,), (0,), (n,), y), -128), Machine(table=LOOKUP4))
        assert one.about == "Element by element by a table of 256 results"


@pytest.mark.parametrize("y", [DType.F32, DType.I8, DType.U8], ids=str)
def test_padding_channels_are_zeros_and_others_keep_their_results(y: DType) -> None:
    codes = np.arange(256, dtype=np.uint8)
    table = (np.arange(256) / 256 + 0.001 if y is DType.F32 else np.arange(256).astype(np.uint8)).astype(y.numpy)
    keeps = np.where(np.arange(16) < 15, -1, 0).astype(np.int32)
    result = np.ones(256, y.numpy)
    one = kernel(0, DType.U8, y, 128, masked=True)
    interpret(one, [codes, table, keeps, result])
    np.testing.assert_array_equal(result, np.where(np.tile(keeps, 16) != 0, table[codes], 0))
