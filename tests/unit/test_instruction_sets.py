"""Instruction sets: the meaning of their operations, C printed from it, and instructions over memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from interpret import interpret
from loop_operations import OPERATIONS
from tenon.machine import isa
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.strict import StrictC
from tenon.machine.isa.base import Primitive
from tenon.machine.kernel_ir import loops
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, Type, op
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.proofs.count import count
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

MEANT = sorted(name for name, row in loops.OPS.items() if row.meaning is not None)
WORDS = 16


def applied(name: str, lanes: int, meaning: bool = False) -> Kernel:
    """y += the operation of words of a and b, or its meaning."""
    k = Builder(f"{name}_{lanes}")
    a, b, y = (k.param(each, WORDS, dtype=I32, out=each == "y").vec(lanes) for each in "aby")
    with k.loop("i", WORDS // lanes) as i:
        words = (a[i], b[i]) * ((loops.OPS[name].arity - 1) // 2)
        operands = y[i], *words
        built = loops.OPS[name].meaning
        assert built is not None
        y[i] = built(*operands) if meaning else op(name, *operands)
    return k.done()


def operands(name: str) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-128, 128, 4 * WORDS).astype(np.int8) for _ in range(2))
    b[b == -128] = -127  # which some operations exclude
    a[:4], b[:4] = -128, 127
    if name == "dot8_small":
        a &= 63
    return a.view(np.int32), b.view(np.int32), rng.integers(-(1 << 20), 1 << 20, WORDS).astype(np.int32)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", MEANT)
def test_meanings_are_the_definitions(name: str, lanes: int) -> None:
    a, b, y = operands(name)
    expected = y.copy()
    interpret(applied(name, lanes, meaning=True), [a, b, y])
    defined = OPERATIONS[name](expected, *(a, b) * ((loops.OPS[name].arity - 1) // 2))
    np.testing.assert_array_equal(y, defined)


@pytest.mark.parametrize("dialect", [C, StrictC])
def test_operations_without_c_are_printed_from_their_meaning(
    dialect: type[C99], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instruction that a new module adds needs neither a definition in C nor one in the interpreter."""

    def twice(acc: loops.Expr, a: loops.Expr, b: loops.Expr) -> loops.Expr:
        return acc + (a >> 16) * (b >> 16) * 2

    row = replace(isa.portable("dot4_signed") or pytest.fail("no row"), vector="", scalar="", first_of_four=False)
    known = isa.portable
    monkeypatch.setitem(loops.OPS, "twice_high", Primitive(3, products=1, meaning=twice))
    monkeypatch.setattr(isa, "portable", lambda name: row if name == "twice_high" else known(name))
    kernels = [applied("twice_high", lanes) for lanes in ((1, 4) if dialect is C else (1,))]
    library = Library(dialect=dialect)
    for kernel in kernels:
        library.add(kernel)
    library.build(tmp_path, [*zig(tmp_path).command, "-O2"])
    for kernel in kernels:
        a, b, y = operands("twice_high")
        expected = y + (a >> 16) * (b >> 16) * 2
        interpret(kernel, [a, b, again := y.copy()])
        library(kernel, [a, b, y])
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("dtype", [I32, F32, DType.I8])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_lanes_of_even_and_odd_number(lanes: int, dtype: DType, tmp_path: Path) -> None:
    k = Builder("halves")
    a, b = (k.param(each, lanes, dtype=dtype).vec(lanes)[0] for each in "ab")
    y = k.param("y", 2, lanes, dtype=dtype, out=True).vec(lanes)
    y[0, 0], y[1, 0] = op("evens", a, b), op("odds", a, b)
    kernel, library = k.done(), Library()
    library.add(kernel)
    library.build(tmp_path, ["gcc", "-O2"])
    both = np.arange(2 * lanes).astype(dtype.numpy)
    given = [both[:lanes].copy(), both[lanes:].copy()]
    interpret(kernel, [*given, interpreted := np.zeros((2, lanes), dtype.numpy)])
    library(kernel, [*given, compiled := np.zeros((2, lanes), dtype.numpy)])
    np.testing.assert_array_equal(interpreted, [both[::2], both[1::2]])
    np.testing.assert_array_equal(compiled, interpreted)


def instructed(name: str) -> Kernel:
    """The sum of a, in a block that is an instruction over memory."""
    k = Builder("sums")
    w, a, y = (k.param(each, WORDS, dtype=I32, out=each == "y") for each in "way")
    total = k.local("t", 1, dtype=I32)
    total[0] = loops.Const(0, Type(I32))
    with k.instruction(name, [(w, 0), (a, 0), (total, 0)], 2, WORDS // 2), k.loop("i", WORDS) as i:
        total[0] = total[0] + a[i] * w[i]
    y[0] = total[0]
    return k.done()


def test_instructions_over_memory_mean_their_body(tmp_path: Path) -> None:
    """Proofs, counts, the text form, the interpreter and a dialect without a text for the name see the body."""
    kernel = instructed("no_such_instruction")
    again = parse(show(kernel))
    assert show(again) == show(kernel)
    assert count(kernel).loaded == 2 * 4 * WORDS
    library = Library()
    library.add(kernel)  # which proves it
    assert "__asm__" not in library.source()
    library.build(tmp_path, [*zig(tmp_path).command, "-O2"])
    a, w, _ = operands("sums")
    given = [w % 100, a % 100]
    interpret(again, [*given, interpreted := np.zeros(WORDS, np.int32)])
    library(kernel, [*given, compiled := np.zeros(WORDS, np.int32)])
    assert interpreted[0] == compiled[0] == int((given[0] * given[1]).sum())


def test_assembly_stands_beside_the_body() -> None:
    unit = C()
    unit.kernel(instructed("pairs_vector"))
    text = unit.text()
    before, _, rest = text.partition("__asm__ volatile(")
    assert before.rstrip().rpartition("#if ")[2].startswith("defined(__GNUC__) && defined(__ARM_FEATURE_DSP)")
    assert "smlad" in rest.partition("#else")[0]


def test_every_form_is_of_an_operation() -> None:
    """The operation is one of the table; each has a C that any compiler takes."""
    for module in isa.instruction_sets():
        for name in getattr(module, "PRIMITIVES", {}):
            row = isa.portable(name)
            assert row is not None, name
            assert row.vector or row.scalar or loops.OPS[name].meaning, name
        for form in getattr(module, "FORMS", ()):
            assert form.operation in loops.OPS, form
