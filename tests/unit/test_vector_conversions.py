"""Conversions of vectors that GCC has forms of its own for: exact by every compiler, and short."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library
from tenon.machine.codegen.c import conversions
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, Type, cast
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import fits
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

BYTES, WORDS, WIDE = (DType.I8, DType.U8), (DType.I16, DType.U16), (DType.I32, DType.F32, DType.F64)
PAIRS = [
    (a, b)
    for a in (*BYTES, *WORDS, *WIDE)
    for b in (*BYTES, *WORDS, *WIDE)
    if conversions.slow(Type(a, 4), Type(b, 4)) or conversions.native(Type(a, 8), Type(b, 8))
]
TARGETS = ("x86-64", "x86-64-avx2", "x86-64-avx512")
COUNT = 256


def kernel(source: DType, target: DType, lanes: int) -> Kernel:
    k = Builder(f"k{source}_{target}_{lanes}")
    x, y = k.param("x", COUNT, dtype=source).vec(lanes), k.param("y", COUNT, dtype=target, out=True).vec(lanes)
    with k.loop("i", COUNT // lanes) as i:
        y[i] = cast(x[i], target)
    return k.done()


def numbers(source: DType, target: DType) -> Array:
    """All bytes, the ends of wider types, and floats that the target has."""
    kind: Any = target.numpy if source in (DType.F32, DType.F64) else source.numpy
    span = np.iinfo(kind)
    whole = np.linspace(max(span.min, -(1 << 24)), min(span.max, 1 << 24), COUNT).astype(np.int64)
    if source is DType.I32:
        whole[:8] = [span.min, span.max, 255, 256, -1, -256, 127, 128]
    return np.asarray(whole, source.numpy)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_exact(compiler: str, name: str, tmp_path: Path) -> None:
    row = find(name)
    if shutil.which(compiler) is None or row.host is None or not fits(row.host):
        pytest.skip(f"{compiler} or a processor for {name} is missing")
    library, lanes = Library(), row.machine.lanes
    made = {pair: kernel(*pair, lanes) for pair in PAIRS}
    for each in made.values():
        library.add(each)
    library.build(tmp_path, (compiler, "-O2", *row.gcc, *row.flags))
    for (source, target), each in made.items():
        given, out = numbers(source, target), np.zeros(COUNT, target.numpy)
        library(each, [given, out])
        np.testing.assert_array_equal(out, given.astype(target.numpy), err_msg=f"{source} to {target}")


@pytest.mark.parametrize(("name", "most"), [("x86-64", 18), ("x86-64-avx2", 14), ("x86-64-avx512", 9)])
def test_short(name: str, most: int) -> None:
    """A loop of conversions to and from bytes, of which GCC makes 40 to 60 instructions by itself, and from 16 bits,
    which it widens in halves."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    row = find(name)
    narrow = ((DType.I32, DType.U8), (DType.I32, DType.I8), (DType.U8, DType.I32), (DType.I8, DType.I32))
    for pair in (*narrow, (DType.I16, DType.I32), (DType.U16, DType.I32), (DType.BF16, DType.F32)):
        library = Library()
        library.add(kernel(*pair, row.machine.lanes))
        command = ("gcc", "-O2", "-std=c99", *row.gcc, *row.flags, "-x", "c", "-", "-S", "-o", "-")
        text = subprocess.run(command, input=library.source(), capture_output=True, text=True, check=True).stdout
        vector = re.findall(r"^\tv?p\w+|^\tv?mov[du]\w+", text, re.MULTILINE)
        assert 0 < len(vector) <= most, (pair, vector)
        assert name == "x86-64" or not re.search(r"vinsert", text), pair
