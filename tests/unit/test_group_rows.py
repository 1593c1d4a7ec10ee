"""Rows in work groups: softmax, reductions, normalisation and planes of images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from interpret import interpret
from lowered import MACHINES, Ask, run_lowered
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Case
from tenon.network.ops.normalize import LayerNormalization
from tenon.network.ops.reduce import GlobalAveragePool, GlobalMaxPool, ReduceL2, ReduceMax, ReduceMean
from tenon.network.ops.softmax import LogSoftmax, Softmax

GPU = replace(MACHINES["lanes1"], launch=Launch(), spaces=(SHARED,), threads=4096)
CASES = {
    "softmax": Case(Softmax(), ((3, 37),), low=-9, high=9),
    "softmax of several elements a thread": Case(Softmax(), ((1, 700),), low=-9, high=9),
    "log softmax": Case(LogSoftmax(), ((2, 33),), low=-9, high=9),
    "plane": Case(GlobalAveragePool(), ((2, 5, 5, 3),)),
    "greatest of a plane": Case(GlobalMaxPool(), ((1, 8, 3, 4),)),
    "mean of rows": Case(ReduceMean(keepdims=0), ((3, 40), np.array([1], np.int64)), (1,)),
    "greatest integer": Case(ReduceMax(), (np.arange(80, dtype=np.int32).reshape(2, 40) % 37,)),
    "norm of all": Case(ReduceL2(), ((2, 50),)),
    "layer norm": Case(LayerNormalization(), ((2, 3, 40), (40,), (40,)), (1, 2)),
}


SMALL = replace(GPU, launch=Launch(group=32))
"""A machine whose threads have more elements of long rows than they keep in registers."""
LONG = {
    "softmax": Case(Softmax(), ((2, 300),), low=-9, high=9),
    "log softmax": Case(LogSoftmax(), ((1, 290),), low=-9, high=9),
    "layer norm": Case(LayerNormalization(), ((2, 270), (270,), (270,)), (1, 2)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_rows_are_read_again(name: str) -> None:
    check(LONG[name], SMALL)


@pytest.mark.parametrize("name", CASES)
def test_rows_in_work_groups(name: str) -> None:
    check(CASES[name], GPU)


def check(case: Case, machine: Machine) -> None:
    launches: list[Kernel] = []

    def execute(kernel: Kernel, arrays: list[Array]) -> None:
        launches.append(kernel)
        prove(kernel)
        interpret(kernel, arrays)

    got = run_lowered(case.op, case.arrays(), machine, case.constant, Ask(blocked=True), execute)
    assert any(work_groups(kernel) is not None for kernel in launches)
    for a, b in zip(got, case.op.evaluate(case.arrays()), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(np.abs(b).max()))


def test_softmax_may_overwrite_its_operand() -> None:
    case = CASES["softmax"]
    (got,) = run_lowered(case.op, case.arrays(), GPU, ask=Ask(overwrite=0))
    np.testing.assert_allclose(got, case.op.evaluate(case.arrays())[0], atol=1e-6)


def test_short_rows_have_a_thread_each() -> None:
    case = Case(Softmax(), ((64, 8),))
    kernels: list[Kernel] = []

    def execute(kernel: Kernel, arrays: list[Array]) -> None:
        kernels.append(kernel)
        interpret(kernel, arrays)

    run_lowered(case.op, case.arrays(), GPU, execute=execute)
    assert [work_groups(kernel) for kernel in kernels] == [None]
