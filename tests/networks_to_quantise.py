"""Small float networks whose channels have very different ranges, and samples for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.network.graph.graph import Array, Graph


def built(
    nodes: list[Any],
    weights: dict[str, Array],
    inputs: list[int],
    outputs: list[int],
    shapes: dict[str, Array] | None = None,
) -> Graph:
    """The graph of ONNX nodes between ``x`` and ``y``; ``shapes`` are constants of int64."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, outputs)],
        [
            *(numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights.items()),
            *(numpy_helper.from_array(np.asarray(a, np.int64), n) for n, a in (shapes or {}).items()),
        ],
    )
    return tenon.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


def separable(limit: float | None = 6.0, dead: bool = False, residual: bool = False) -> Graph:
    """1x1, depthwise and 1x1 convolution with ReLU6 (or ReLU), mean and matrix product.

    Filters differ in magnitude by up to a factor of 30; with ``dead``, one of them is constant and the greatest.
    """
    rng = np.random.default_rng(3)
    spread = 10 ** rng.uniform(-1.5, 0.3, 16)
    a, d, e = rng.normal(0, 1, (16, 3, 1, 1)), rng.normal(0, 0.5, (16, 1, 3, 3)), rng.normal(0, 0.3, (8, 16, 1, 1))
    a, e = a * spread[:, None, None, None], e / spread[None, :, None, None] / 4
    ab = rng.uniform(0, 0.5, 16) * spread
    if dead:
        a[0], ab[0] = 60 * np.sign(a[0]), -1e4
    weights = {"a": a, "ab": ab, "d": d, "db": rng.normal(0, 0.1, 16) * spread, "e": e, "g": rng.normal(0, 0.5, (5, 8))}
    relu = [helper.make_node("Relu", ["1"], ["2"]), helper.make_node("Relu", ["3"], ["4"])]
    if limit is not None:
        weights |= {"low": np.array(0), "high": np.array(limit)}
        relu = [helper.make_node("Clip", [i, "low", "high"], [o]) for i, o in (("1", "2"), ("3", "4"))]
    join = helper.make_node("Add", ["4", "2"], ["5"])
    if not residual:
        join = helper.make_node("MaxPool", ["4"], ["5"], kernel_shape=[1, 1])
    nodes = [
        helper.make_node("Conv", ["x", "a", "ab"], ["1"], name="first"),
        relu[0],
        helper.make_node("Conv", ["2", "d", "db"], ["3"], pads=[1] * 4, group=16, name="depthwise"),
        relu[1],
        join,
        helper.make_node("Conv", ["5", "e"], ["6"], name="last"),
        helper.make_node("GlobalAveragePool", ["6"], ["7"]),
        helper.make_node("Flatten", ["7"], ["8"]),
        helper.make_node("Gemm", ["8", "g"], ["y"], transB=1, name="scores"),
    ]
    return built(nodes, weights, [1, 3, 8, 8], [1, 5])


def images(count: int = 32, seed: int = 1) -> list[Array]:
    """Samples for ``separable``."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32) * rng.uniform(0.2, 2) for _ in range(count)]
