"""Backends print the same steps, and reject kernels with loops or memory spaces that they do not support."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Literal

import pytest

import tenon
import tenon.machine.codegen
from real import DIGITS
from tenon.errors import InternalError
from tenon.machine.codegen.backend import find
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Alloc, Barrier, Buffer, Kernel, Loop, Stmt, Type
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.network.graph.types import DType
from tenon.options import Options

PACKAGE = f"{tenon.machine.codegen.__name__}."
BACKENDS = [
    m.name.removeprefix(PACKAGE)
    for m in pkgutil.walk_packages(tenon.machine.codegen.__path__, PACKAGE)
    if hasattr(importlib.import_module(m.name), "BACKEND")
]
"""Every module in the package, at any depth, that has a backend."""


def test_backends_are_found_by_name() -> None:
    assert BACKENDS == ["c", "c.strict", "cuda", "ir_text", "opencl", "vulkan", "webgpu"]
    with pytest.raises(InternalError, match="no backend 'novel'"):
        find("novel")
    with pytest.raises(InternalError, match="no backend 'bounds'"):
        find("bounds")


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_prints_a_kernel(name: str) -> None:
    k = Builder("double")
    x, y = k.param("x", 8), k.param("y", 8, out=True)
    with k.loop("i", 8) as i:
        y[i] = x[i] * 2.0
    text = find(name).kernel(k.done())
    assert re.search(r"\bdouble\(.*\bx\b.*\by\b", text)


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("c99", ["gnu", "strict"])
def test_backends_print_the_same_steps(c99: Literal["gnu", "strict"], threads: int) -> None:
    """Every backend whose steps are calls prints a program for strict C99, and all but that one print vectors."""
    options = Options(threads=threads, target="x86-64-avx2", no_tuning=True, c99=c99)
    program = tenon.compile(DIGITS / "digits.onnx", options).program
    calls = [name for name in BACKENDS if find(name).launch == "call"]
    able = [name for name in calls if c99 == "strict" or name != "c.strict"]
    (first,), *others = (find(name).program([program], "digits.h").steps for name in able)
    for (steps,) in others:
        assert [(s.call, s.work_items, s.barrier) for s in steps] == [(s.call, s.work_items, s.barrier) for s in first]
    assert len(others) == len(able) - 1 >= 1
    assert [s.call for s in first] == list(program.calls)
    assert any(s.work_items for s in first) == any(s.barrier for s in first) == (threads > 1)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (Alloc(Buffer("tile", Type(DType.F32), (Index((), 4),), "shared")), "no shared memory"),
        (Loop(Var("t", (Index((), 4),), 0), (), "thread"), "no thread loops"),
        (Loop(Var("t", (Index((), 4),), 0), (Barrier(),)), "no barriers"),
    ],
)
def test_unsupported_loop_kinds_and_memory_spaces_are_rejected(statement: Stmt, words: str) -> None:
    kernel = Kernel("gpu", (), (), (statement,))
    with pytest.raises(InternalError, match=f"kernel gpu: .*{words}"):
        find("c").kernel(kernel)
    text = find("ir_text").kernel(kernel)
    assert show(parse(text)) == text


@pytest.mark.usefixtures("every_kernel_divided")
def test_emitted_loop_ir_can_be_parsed(tmp_path: Path) -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", threads=2, target="x86-64-avx2", no_tuning=True)
    folder = bundle.save(tmp_path / "out", ("ir",))
    assert {path.name for path in folder.iterdir()} == {"digits.ir", "manifest.json"}
    text = (folder / "digits.ir").read_text()
    kernels = re.findall(r"^kernel .*?^\}\n", text, re.DOTALL | re.MULTILINE)
    names = [parse(kernel).name for kernel in kernels]
    assert len(names) == len(set(names)) > 2
    for kernel in kernels:
        assert show(parse(kernel)) == kernel
    called = re.findall(r"^  (\w+)\(x = ", text.partition("\nprogram digits() {\n")[2], re.MULTILINE)
    assert called
    assert set(called) <= set(names)
    assert text.count("  barrier\n") == sum(step.barrier for step in bundle.unit.steps[0]) > 0
