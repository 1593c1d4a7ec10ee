"""Integers that are read as floats alone: one operator on devices, the same numbers as two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluate import evaluate
from interpret import interpret
from lowered import MACHINES, Ask, run_lowered
from operator_cases import LOWERED
from tenon.machine.isa.byte_products import DOT4, DOT4_SIGNED
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, DType, tensor
from tenon.network.ops.base import Operator
from tenon.network.ops.fused import Fused
from tenon.network.ops.quantize import DequantizeLinear
from tenon.network.passes.base import run as run_pass
from tenon.network.passes.first import first_passes
from tenon.network.passes.real_results import REAL_RESULTS

GPU = replace(
    MACHINES["lanes1"], products=(DOT4, DOT4_SIGNED), launch=Launch(), spaces=(SHARED,), threads=4096, own_memory=False
)
NAMES = [
    "IntegerGemm::5x8x16_double",
    "IntegerGemm::1x37x21_float",
    "IntegerGemm::images",
    "IntegerAveragePool::global",
    "IntegerAveragePool::mean",
    "IntegerAveragePool::float",
]


def dequantised(name: str, scale: Array, zero: Array) -> tuple[Graph, Array]:
    """An operator case whose result is dequantised, and its image or rows."""
    operator, _, label = name.partition("::")
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == (operator, label))
    graph, (image, *arrays) = Graph("net"), case.arrays()
    assert image is not None
    x = graph.add_input("x", tensor(DType.of(image.dtype), *image.shape))
    rest = [None if a is None else graph.constant(f"c{i}", a) for i, a in enumerate(arrays)]
    y = graph.add(case.op, [x, *rest], ["y"]).output
    numbers = [graph.constant("scale", scale), graph.constant("zero", zero)]
    graph.outputs = [graph.add(DequantizeLinear(), [y, *numbers], ["z"]).output]
    return graph, image


@pytest.mark.parametrize("name", NAMES)
def test_one_operator_gives_the_same_numbers(name: str) -> None:
    scale, zero = np.array(0.25, np.float32), np.array(-3, np.int8)
    graph, x = dequantised(name, scale, zero)
    expected = evaluate(graph, {"x": x})["z"]
    assert run_pass(graph, REAL_RESULTS, verify=True) == 1
    (node,) = graph
    assert isinstance(node.op, Fused)
    assert isinstance(node.op, Operator)
    assert node.output.type.dtype is F32
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["z"], expected)
    kernels: list[Kernel] = []

    def execute(kernel: Kernel, operands: list[Array]) -> None:
        assert prove(kernel) > 0
        kernels.append(kernel)
        interpret(kernel, operands)

    values = [None if v is None else x if not v.constant else v.array for v in node.inputs]
    constant = tuple(range(1, len(values)))
    for blocked in (False, True):
        (got,) = run_lowered(node.op, values, GPU, constant, Ask(blocked=blocked, surplus=1), execute)
        np.testing.assert_array_equal(got, expected)
    assert kernels[-1].params[-1].type.dtype is F32


def test_scales_of_channels_stay_apart() -> None:
    graph, _ = dequantised(NAMES[0], np.full(16, 0.25, np.float32), np.zeros(16, np.int8))
    assert run_pass(graph, REAL_RESULTS) == 0


def test_only_devices_convert_where_results_are_stored() -> None:
    for device in (False, True):
        assert (REAL_RESULTS in first_passes(microcontroller=False, device=device)) == device
