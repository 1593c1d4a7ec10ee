"""Sums of squares below square roots and logarithms, which post-training quantisation leaves in float."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tenon
from networks_to_quantise import built
from tenon.network.graph.graph import Graph
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.square_roots import roots_of_squares

node = helper.make_node
FACTORS = {"two": np.array(2.0), "half": np.array(0.5), "three": np.array(3.0), "e": np.array(0.01)}
ENDS = {"from": np.array([0]), "middle": np.array([4]), "to": np.array([8]), "channels": np.array([1])}


def network(nodes: list[Any], last: str) -> Graph:
    """A convolution of 8 channels, whose halves are a and b, and another one after ``last``."""
    rng = np.random.default_rng(0)
    first = [
        node("Conv", ["x", "w"], ["c"]),
        node("Slice", ["c", "from", "middle", "channels"], ["a"]),
        node("Slice", ["c", "middle", "to", "channels"], ["b"]),
    ]
    weights = {"w": rng.normal(0, 1, (8, 3, 1, 1)), "v": rng.normal(0, 1, (2, 4, 1, 1)), **FACTORS}
    shapes = {**ENDS, "last": np.array([-1])}
    return built([*first, *nodes, node("Conv", [last, "v"], ["y"])], weights, [1, 3, 6, 6], [1, 2, 6, 6], shapes)


MAGNITUDE = [node("Pow", ["a", "two"], ["s"]), node("Mul", ["b", "b"], ["t"]), node("Add", ["s", "t"], ["u"])]
IN_FLOAT: dict[str, tuple[list[Any], str]] = {
    "magnitude": ([*MAGNITUDE, node("Sqrt", ["u"], ["r"])], "s t u r"),
    "power": ([*MAGNITUDE, node("Pow", ["u", "half"], ["r"])], "s t u r"),
    "logarithm": ([*MAGNITUDE, node("Add", ["u", "e"], ["o"]), node("Log", ["o"], ["r"])], "s t u o r"),
    "deviation": (
        [
            node("Mul", ["a", "a"], ["s"]),
            node("ReduceMean", ["s", "last"], ["m"], keepdims=1),
            node("Sqrt", ["m"], ["d"]),
            node("Add", ["a", "d"], ["r"]),
        ],
        "s m d",
    ),
}
IN_INTEGERS: dict[str, list[Any]] = {
    "no root": [*MAGNITUDE, node("Relu", ["u"], ["r"])],
    "cube": [node("Relu", ["a"], ["p"]), node("Pow", ["p", "three"], ["s"]), node("Sqrt", ["s"], ["r"])],
    "no square": [node("Mul", ["a", "b"], ["s"]), node("Relu", ["s"], ["t"]), node("Sqrt", ["t"], ["r"])],
    "read elsewhere": [*MAGNITUDE, node("Sqrt", ["u"], ["d"]), node("Add", ["d", "u"], ["r"])],
}


@pytest.mark.parametrize("name", IN_FLOAT)
def test_sums_of_squares_get_no_grid(name: str) -> None:
    nodes, names = IN_FLOAT[name]
    graph = network(nodes, "r")
    squares = roots_of_squares(graph)
    assert {n.output.name for n in squares} == set(names.split())
    tensors = {v.name for v in placement(graph).tensors}
    assert {"x", "r"} <= tensors
    assert not tensors & (set(names.split()) - {"r", "d"})


@pytest.mark.parametrize("name", IN_INTEGERS)
def test_other_arithmetic_gets_grids(name: str) -> None:
    assert not roots_of_squares(network(IN_INTEGERS[name], "r"))


def test_tensors_with_known_ranges_keep_them() -> None:
    graph = network(IN_FLOAT["magnitude"][0], "r")
    assert not roots_of_squares(graph, {"u"})
    assert {"s", "t", "u", "r"} <= {v.name for v in placement(graph, separate={"u"}).tensors}


def test_magnitudes_keep_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of very different brightness: half of them a hundredth of the others."""
    rng = np.random.default_rng(1)
    given = [
        (rng.normal(0, 1, (1, 3, 6, 6)) * rng.choice([0.01, 1.0], (1, 1, 6, 6))).astype(np.float32) for _ in range(16)
    ]

    def sqnr() -> float:
        graph = network(IN_FLOAT["magnitude"][0], "r")
        made = tenon.quantize(
            graph, given, method="min-max", range_search=False, rounding="nearest", equalisation=False
        )
        return made.report.outputs[0].sqnr

    in_float = sqnr()
    monkeypatch.setattr("tenon.tools.quantization.placement.roots_of_squares", lambda *_: set())
    assert in_float > max(sqnr() + 5, 33)
