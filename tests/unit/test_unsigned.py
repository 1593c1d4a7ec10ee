"""Activations of i8 stored as u8: which ones, and that the same operators give the same numbers in all arithmetics."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from evaluate import evaluate
from lowered import MACHINES
from quantised_networks import CASES, LAST, images, in_integers, make, network, quantised
from tenon.machine.isa.tensor_cores import MMA_U8_K32
from tenon.machine.kernel_ir.spaces import Launch
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import DType
from tenon.network.passes.integers.unsigned import pays, without_signs
from tenon.options import Arithmetic

INTEGERS = tuple(each for each in get_args(Arithmetic) if each not in ("auto", "float"))
MORE = {
    "residual": [make("Relu", ["a"], ["d"]), make("Add", ["a", "d"], ["e"]), make("Relu", ["e"], ["c"]), LAST],
    "two maxima": [
        make("Relu", ["a"], ["d"]),
        make("MaxPool", ["d"], ["e"], kernel_shape=[2, 2]),
        make("MaxPool", ["e"], ["c"], kernel_shape=[2, 2]),
        LAST,
    ],
    "halves": [
        make("Relu", ["a"], ["d"]),
        make("Concat", ["d", "d"], ["e"], axis=1),
        make("Conv", ["e", "quarters"], ["b"], group=4),
    ],
    "mean of positive numbers": [make("Relu", ["a"], ["d"]), make("GlobalAveragePool", ["d"], ["c"]), LAST],
}


def unsigned(graph: Graph) -> int:
    return sum(v.type.dtype is DType.U8 for node in graph for v in node.outputs)


@pytest.mark.parametrize("arithmetic", INTEGERS)
@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_results_are_the_same(name: str, arithmetic: Arithmetic) -> None:
    graph = quantised(network((CASES | MORE)[name]))
    other = graph.copy()
    count = without_signs(other, arithmetic)
    assert unsigned(other) == count
    assert (count > 0) == (name in CHANGED - (IN_LITERT if arithmetic == "litert" else set()))
    usual, changed = in_integers(graph, arithmetic), in_integers(other, arithmetic)
    assert [node.op.name for node in changed] == [node.op.name for node in usual]
    for image in images(2):
        results = (evaluate(each, {"x": image}) for each in (usual, changed))
        for a, b in zip(*(each.values() for each in results), strict=True):
            np.testing.assert_array_equal(a, b)


CHANGED = {"relu", "relu6", "clip to 2", "mul by channel", *MORE}
"""Networks in which a tensor has the least byte as zero point and is read by operators that take u8 alike."""
IN_LITERT = {"halves"}
"""Networks with an operator whose arithmetic for u8 in LiteRT is not that for i8."""


def test_zeros_of_a_dequantised_output_keep_their_sign() -> None:
    graph = quantised(network([make("Relu", ["a"], ["b"])]))
    assert without_signs(graph, "onnx") == 0


def test_it_pays_where_images_are_copied_to_a_matrix_unit() -> None:
    machine = replace(MACHINES["lanes1"], products=(MMA_U8_K32,), launch=Launch(copies=True))
    assert pays(machine)
    assert not pays(replace(machine, launch=Launch()))
    assert not pays(replace(machine, products=()))
    assert not pays(replace(machine, launch=None))
