"""Quantised networks whose extents a run decides: integers with the bits of the same network of fixed extents."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnx_models import model, node, random
from sized_models import as_c, by_references, loaded
from tenon.network.graph.graph import Array
from tenon.network.graph.size_range import Size
from tenon.network.passes import optimize
from tenon.network.passes.integers import to_integers

SIZES = {"H": Size("H", 6, 30), "W": Size("W", 6, 40)}
RUNS = [(7, 13), (6, 33), (30, 40)]


def quantised(x_zero: int, bounded: bool) -> onnx.ModelProto:
    """Convolutions, a maximum and the mean of an image with steps of integers between them, zero points not 0."""
    zero = {"z": np.array(x_zero, np.int8), "wz": np.array(0, np.int8)}
    scales = {name: np.array(s, np.float32) for name, s in {"s": 0.031, "ws": 0.0123, "ms": 0.0071}.items()}
    weights = {
        f"w{i}": np.clip(np.rint(random(16, n, 3, 3, seed=i) * 10), -127, 127).astype(np.int8)
        for i, n in enumerate((3, 16))
    }
    nodes = []

    def rounded(name: str, scale: str = "s") -> str:
        nodes.append(node("QuantizeLinear", [name, scale, "z"], [f"{name}_q"]))
        nodes.append(node("DequantizeLinear", [f"{name}_q", scale, "z"], [f"{name}_d"]))
        return f"{name}_d"

    for i, source in enumerate(("x", "p")):
        nodes.append(node("DequantizeLinear", [f"w{i}", "ws", "wz"], [f"w{i}_d"]))
        around = {"pads": [1] * 4, "strides": [1 + i] * 2}
        nodes.append(node("Conv", [rounded(source), f"w{i}_d"], [f"c{i}"], **around))
        if not i:
            nodes.append(node("MaxPool", [rounded("c0")], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1))
    nodes.append(node("GlobalAveragePool", [rounded("c1")], ["m"]))
    nodes.append(node("Relu" if bounded else "Identity", ["m"], ["b"]))
    nodes.append(node("Identity", [rounded("b", "ms")], ["y"]))
    return model(nodes, {"x": [1, 3, "H", "W"]}, ["y"], {**zero, **scales, **weights})


@pytest.mark.parametrize(("x_zero", "bounded"), [(-9, True), (17, False)])
@pytest.mark.parametrize("target", ["host", "x86-64-avx2"])
def test_bits_are_those_of_fixed_extents(x_zero: int, bounded: bool, target: str) -> None:
    net = quantised(x_zero, bounded)
    graph = loaded(net, SIZES)
    feeds: list[dict[str, Array]] = [{"x": random(1, 3, h, w, seed=h)} for h, w in RUNS]
    wanted = []
    for each, (h, w) in zip(feeds, RUNS, strict=True):
        (fixed,) = as_c(loaded(net, {"x": [1, 3, h, w]}), [(each, {})], target=target)
        assert len(np.unique(fixed["y"])) > 4
        wanted.append(fixed["y"])
    sizes = [{"H": h, "W": w} for h, w in RUNS]
    for result, y in zip(as_c(graph, list(zip(feeds, sizes, strict=True)), target=target), wanted, strict=True):
        np.testing.assert_array_equal(result["y"], y)


def test_nothing_stays_in_float() -> None:
    graph = loaded(quantised(-9, bounded=True), SIZES)
    optimised = graph.copy()
    assert to_integers(optimised, "onnx") == []
    optimize(optimised)
    names = [each.op.name for each in optimised]
    assert names.count("IntegerConv") == 2
    assert "Conv" not in names
    each, sizes = {"x": random(1, 3, 9, 8)}, {"H": 9, "W": 8}
    before, after = (by_references(g, each, sizes)["y"] for g in (graph, optimised))
    assert np.abs(before - after).max() <= 0.0071 * 1.01
