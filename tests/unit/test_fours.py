"""Kernels of devices that load, compute and store four neighbouring elements at a time."""

from __future__ import annotations

import numpy as np
import pytest

from interpret import interpret
from lowered import Ask, run_lowered
from operator_cases import LOWERED
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.kernel_ir.loops import Kernel, Load, Store
from tenon.machine.kernel_ir.walk import operations, statements
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType
from tenon.network.ops.base import Case
from tenon.network.ops.move import Reorder, Transpose
from tenon.network.ops.pointwise import Add

OPENCL = find("opencl").machine
F16 = (DType.F16, DType.F16)
CASES = {
    "add": Case(Add(), ((96, 96), (96, 96)), tolerance=2.0**-11, dtypes=F16),
    "add_rows": Case(Add(), ((96, 96), (96,)), dtypes=(F32, F32)),
    "add_columns": Case(Add(), ((96, 96), (96, 1)), tolerance=2.0**-7, dtypes=(DType.BF16, DType.BF16)),
    "transpose": Case(Transpose((1, 0)), ((12, 7),), dtypes=(DType.F16,)),
    "heads": Case(Transpose((1, 0, 2)), ((5, 3, 8),), dtypes=(DType.F16,)),
    "reorder": Case(Reorder(4, ((0, 0), (0, 0))), ((1, 8, 2, 4),)),
}


def run(case: Case) -> tuple[list[Kernel], list[Array]]:
    """The kernels of a case on a device, and its results."""
    kernels: list[Kernel] = []

    def execute(kernel: Kernel, views: list[Array]) -> None:
        kernels.append(kernel)
        interpret(kernel, views)

    return kernels, run_lowered(case.op, case.arrays(), OPENCL, case.constant, Ask(blocked=True), execute)


@pytest.mark.parametrize("name", CASES)
def test_four_elements_are_stored_at_once(name: str) -> None:
    case = CASES[name]
    (kernel,), (y,) = run(case)
    (expected,) = case.op.evaluate(case.arrays())
    y, expected = y.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(y, expected, atol=case.tolerance * np.abs(expected).max())
    stores = [s for s in statements(kernel.body) if isinstance(s, Store) and s.buffer.space == "global"]
    assert [s.value.type.lanes for s in stores] == [4] * len(stores)
    for language in ("cuda", "opencl", "vulkan", "webgpu"):
        assert find_backend(language).kernel(kernel)


def test_what_does_not_fit_is_stored_by_elements() -> None:
    """Rows of an odd length, and tensors so small that single elements occupy a device better."""
    for case in (Case(Add(), ((97, 97), (97, 97))), Case(Add(), ((8, 8), (8, 8))), Case(Transpose((1, 0)), ((5, 3),))):
        (kernel,), (y,) = run(case)
        (expected,) = case.op.evaluate(case.arrays())
        np.testing.assert_array_equal(y, expected)
        assert all(s.value.type.lanes == 1 for s in statements(kernel.body) if isinstance(s, Store))


@pytest.mark.parametrize(
    "name",
    [("Conv", "bf16_depthwise"), ("Conv", "f16_depthwise"), ("MaxPool", "f16"), ("AveragePool", "bf16")],
    ids=" ".join,
)
def test_layers_of_16_bits_take_blocks_of_channels(name: tuple[str, str]) -> None:
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == name)
    (kernel,), (y,) = run(case)
    (expected,) = case.op.evaluate(case.arrays())
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), atol=2e-2)
    assert "lane0" in operations(kernel)
    stored = [s.value for s in statements(kernel.body) if isinstance(s, Store) and s.buffer.name == "y"]
    assert all(value.type.lanes == 4 and not isinstance(value, Load) for value in stored)
