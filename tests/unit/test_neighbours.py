"""Convolutions of one image whose results lie side by side: what is joined to one, and that it gives the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowered import GPU, MACHINES
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType, tensor
from tenon.network.ops.conv import Conv
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_conv_cases import conv_case
from tenon.network.ops.move import Concat
from tenon.network.passes.base import make
from tenon.network.passes.separable import separable

SIZE, CHANNELS = 8, 16


def of_floats(windows: Sequence[dict[str, Any]], *, axis: int = 1, relu: int = -1, size: int = SIZE) -> Graph:
    """Convolutions of one image, one behind the other; number ``relu`` is followed by one."""
    rng, graph = np.random.default_rng(0), Graph("floats")
    x = graph.add_input("x", tensor(DType.F32, 1, CHANNELS, size, size))
    results = list[Value]()
    for i, window in enumerate(windows):
        kernel, bias = window.get("kernel", (1, 1)), window.get("bias", True)
        shape = window.get("channels", 8), CHANNELS, *kernel
        operands = [graph.constant(f"w{i}", rng.standard_normal(shape).astype(np.float32))]
        operands += [graph.constant(f"b{i}", rng.standard_normal(shape[0]).astype(np.float32))] * bias
        op = Conv(pads=window.get("pads", ()), strides=window.get("strides", ()))
        results.append(graph.add(op, [x, *operands], [f"c{i}"]).output)
        if i == relu:
            results[i] = graph.add(make("Relu"), results[i:], ["r"]).output
    graph.outputs = [graph.add(Concat(axis=axis), results, ["y"]).output]
    return graph


def of_bytes(zeros: tuple[int, int] = (3, 3), scale: float = 1.0, weight_zero: int = 0) -> Graph:
    """A 1x1 and a 3x3 convolution of bytes to two halves of a result, whose input has these zero points."""
    rng, graph = np.random.default_rng(1), Graph("bytes")
    x = graph.add_input("x", tensor(DType.I8, 1, CHANNELS, SIZE, SIZE))
    results = []
    for i, (kernel, pad) in enumerate((((1, 1), 0), ((3, 3), 1))):
        image = (1, CHANNELS, SIZE, SIZE)
        case = conv_case(IntegerConv, rng, "c", image, (8, CHANNELS, *kernel), {"pads": (pad,) * 4}, "double", np.int8)
        assert isinstance(case.op, IntegerConv)
        op = replace(case.op, x_zero=zeros[i], zero=5, scale=scale if i else 1.0, w_zero=weight_zero)
        values = [None if a is None else graph.constant(f"c{i}{j}", a) for j, a in enumerate(case.inputs[1:])]  # type: ignore[arg-type]
        results.append(graph.add(op, [x, *values], [f"r{i}"]).output)
    graph.outputs = [graph.add(Concat(axis=1), results, ["y"]).output]
    return graph


def computed(graph: Graph) -> Array:
    """The result for an image of random numbers."""
    rng, x = np.random.default_rng(2), graph.inputs[0]
    image = rng.standard_normal(x.type.dims) * (1 if x.type.dtype.is_float else 40)
    known: dict[Value, Array] = {x: image.astype(x.type.dtype.numpy)}
    for made in graph:
        arrays = [None if v is None else v.array if v.constant else known[v] for v in made.inputs]
        known |= dict(zip(made.outputs, made.evaluate(arrays), strict=True))
    return known[graph.outputs[0]]


def joined(graph: Graph, machine: Any = GPU) -> tuple[int, float]:
    """Convolutions after the pass, and the largest difference of results from those before."""
    before = computed(graph)
    passes.optimize(graph, verify=True, pairs=separable(machine))
    bases = [getattr(made.op, "base", made.op) for made in graph]
    after = computed(graph)
    assert (after.shape, after.dtype) == (before.shape, before.dtype)
    return (
        sum(isinstance(op, Conv | IntegerConv) for op in bases),
        float(np.abs(after.astype(np.float64) - before).max()),
    )


POINT: dict[str, Any] = {}
SQUARE = {"kernel": (3, 3), "pads": (1, 1, 1, 1)}
JOINED = {
    "1x1 and 3x3": [POINT, SQUARE],
    "3x3 and 1x1": [SQUARE, POINT],
    "of other channels": [{"channels": 3}, {**SQUARE, "channels": 20}],
    "without bias": [{"bias": False}, {**SQUARE, "bias": False}],
    "of one size": [POINT, POINT],
    "beside the middle": [POINT, {"kernel": (3, 3), "pads": (2, 0, 0, 2)}],
    "of rows and columns": [{"kernel": (3, 1), "pads": (1, 0, 1, 0)}, {"kernel": (3, 3), "pads": (1, 1, 1, 1)}],
    "of stride 2": [{"strides": (2, 2)}, {**SQUARE, "strides": (2, 2)}],
}


@pytest.mark.parametrize("windows", JOINED.values(), ids=JOINED)
def test_one_convolution_gives_what_two_gave(windows: list[dict[str, Any]]) -> None:
    count, difference = joined(of_floats(windows))
    assert count == 1
    assert difference < 1e-4


def test_those_between_others_are_joined() -> None:
    assert joined(of_floats([POINT, SQUARE, SQUARE]))[0] == 1
    assert joined(of_floats([POINT, SQUARE, POINT], relu=1))[0] == 3  # no two neighbours are followed by the same


@pytest.mark.parametrize("weight_zero", [0, 2])
def test_bytes_give_the_same_bits(weight_zero: int) -> None:
    assert joined(of_bytes(weight_zero=weight_zero)) == (1, 0)


APART = {
    "another one has a bias": of_floats([{"bias": False}, SQUARE]),
    "kernels beside each other": of_floats(
        [{"kernel": (3, 1), "pads": (1, 0, 1, 0)}, {"kernel": (1, 3), "pads": (0, 1, 0, 1)}]
    ),
    "along rows": of_floats([POINT, SQUARE], axis=2),
    "a step behind one": of_floats([POINT, SQUARE], relu=0),
    "other zero points": of_bytes(zeros=(3, 4)),
    "other scales": of_bytes(scale=2.0),
}


@pytest.mark.parametrize("graph", APART.values(), ids=APART)
def test_others_stay_apart(graph: Graph) -> None:
    assert joined(graph) == (2, 0)


def test_processors_and_large_layers_keep_two() -> None:
    assert joined(of_floats([POINT, SQUARE]), MACHINES["lanes4"])[0] == 2
    many = {"channels": 512}
    assert joined(of_floats([many, {**SQUARE, "channels": 8}], size=64))[0] == 2  # nine times the products of many
    assert joined(of_floats([{"channels": 8}, {**SQUARE, "channels": 512}], size=64))[0] == 1


def test_results_that_others_read_stay() -> None:
    graph = of_floats([POINT, SQUARE])
    graph.outputs.append(next(iter(graph)).output)
    assert joined(graph)[0] == 2
