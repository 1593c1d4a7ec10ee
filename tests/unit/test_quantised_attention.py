"""Attention of float models in 8 bits: which products and softmaxes are quantised, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tenon
from networks_to_quantise import built
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.passes.integers import to_integers
from tenon.tools.quantization.placement import MOST_KEYS

DEPTH = 8


def attention(length: int, *, factor: float = 0.4, masked: bool = False) -> Graph:
    """Self-attention of one head over [length, DEPTH], with products by weights in front of it and behind."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.5, (DEPTH, DEPTH)) for name in ("wq", "wk", "wv", "wy")}
    weights |= {"factor": np.array(factor), "mask": rng.normal(0, 1, (length, length))}
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]),
        node("MatMul", ["x", "wv"], ["v"]),
        node("Transpose", ["k"], ["turned"], perm=[1, 0]),
        node("MatMul", ["q", "turned"], ["products"]),
        node("Mul", ["products", "factor"], ["scores"]),
        *([node("Add", ["scores", "mask"], ["masked"])] if masked else []),
        node("Softmax", ["masked" if masked else "scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["sums"]),
        node("MatMul", ["sums", "wy"], ["y"]),
    ]
    return built(nodes, weights, [length, DEPTH], [length, DEPTH])


def quantised(graph: Graph, length: int) -> tuple[Graph, list[Array]]:
    samples = [np.random.default_rng(i).normal(0, 1, (length, DEPTH)).astype(np.float32) for i in range(4)]
    plain = {"range_search": False, "rounding": "nearest", "equalisation": False, "bias_correction": False}
    return tenon.quantize(graph, samples, method="min-max", **plain).graph, samples  # type: ignore[arg-type]


def operators(graph: Graph) -> list[str]:
    made = graph.copy()
    to_integers(made, "onnx")
    return sorted(node.op.name for node in made)


def test_attention_is_in_integers() -> None:
    graph = attention(30)
    made, samples = quantised(graph, 30)
    names = operators(made)
    assert names.count("IntegerMatMul") == 2
    assert names.count("IntegerGemm") == 4
    assert "ByteSoftmax" in names
    assert not {"MatMul", "Softmax", "Mul"} & set(names)
    for x in samples:
        exact, got = (evaluate(each, {"x": x})["y"] for each in (graph, made))
        assert ((got - exact) ** 2).sum() < 10**-2.5 * (exact**2).sum()


@pytest.mark.parametrize(
    ("length", "masked", "factor"), [(MOST_KEYS + 1, False, 0.4), (30, True, 0.4), (30, False, -0.4)]
)
def test_other_attention_stays_in_floats(length: int, masked: bool, factor: float) -> None:
    """Attention with many keys, with a mask, or with a factor that turns scores round is not quantised."""
    made, _ = quantised(attention(length, masked=masked, factor=factor), length)
    names = operators(made)
    assert {"MatMul", "Softmax"} <= set(names)
    assert "IntegerMatMul" not in names


def test_attention_that_is_excluded_stays_in_floats() -> None:
    samples = [np.random.default_rng(i).normal(0, 1, (30, DEPTH)).astype(np.float32) for i in range(2)]
    graph = attention(30)
    layers = [str(node.origin.layer) or node.output.name for node in graph if node.output.name in ("products", "sums")]
    made = tenon.quantize(graph, samples, exclude=layers, range_search=False, rounding="nearest").graph
    names = operators(made)
    assert names.count("MatMul") == 2
    assert "IntegerMatMul" not in names
