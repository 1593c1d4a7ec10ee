"""Keras layers of attention, products and normalisation, compared with definitions in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from keras_models import archive, functional, h5, layer, start
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(17)
Q = RNG.uniform(-1, 1, (1, 3, 6)).astype(np.float32)
V = RNG.uniform(-1, 1, (1, 4, 6)).astype(np.float32)
X = RNG.uniform(-1, 1, (1, 5, 4, 6)).astype(np.float32)
G, B = RNG.uniform(0.5, 1, 6).astype(np.float32), RNG.uniform(-1, 1, 6).astype(np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def run(kind: str, inputs: list[Array], weights: Mapping[str, Array], call: dict[str, Any], **config: Any) -> Array:
    names = [f"x{i}" for i in range(len(inputs))]
    entry = layer(kind, "y", *names, **config)
    if call:
        entry["inbound_nodes"][0][0][3].update(call)
    starts = [start(n, *x.shape[1:]) for n, x in zip(names, inputs, strict=True)]
    graph = importers.load(h5(functional(names, ["y"], *starts, entry), {"y": weights}))
    (output,) = evaluate(graph, dict(zip(names, inputs, strict=True))).values()
    return output


def normal(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps))


SCALE = np.array(0.7, np.float32)
K = RNG.uniform(-1, 1, (6, 2, 3)).astype(np.float32)
SEEN = np.where(np.tri(3, 4), 0, -1e9)
CASES: list[tuple[str, list[Array], dict[str, Array], dict[str, Any], dict[str, Any], Array]] = [
    ("Attention", [Q, V], {"y/scale": SCALE}, {}, {"use_scale": True}, softmax(0.7 * Q @ V.swapaxes(1, 2)) @ V),
    ("Attention", [Q, V], {}, {"use_causal_mask": True}, {}, softmax(Q @ V.swapaxes(1, 2) + SEEN) @ V),
    (
        "AdditiveAttention",
        [Q, V],
        {"y/scale": G},
        {},
        {},
        softmax((np.tanh(Q[:, :, None] + V[:, None]) * G).sum(3)) @ V,
    ),
    ("Dot", [Q, V], {}, {}, {"axes": 2}, Q @ V.swapaxes(1, 2)),
    (
        "Dot",
        [Q, V],
        {},
        {},
        {"axes": [2, 2], "normalize": True},
        Q @ V.swapaxes(1, 2) / np.linalg.norm(Q, axis=2)[:, :, None] / np.linalg.norm(V, axis=2)[:, None],
    ),
    ("Dot", [Q[:, 0], V[:, 0]], {}, {}, {"axes": 1}, (Q[:, 0] * V[:, 0]).sum(1, keepdims=True)),
    (
        "EinsumDense",
        [Q],
        {"y/kernel": K, "y/bias": K[0]},
        {},
        {"equation": "abc,cde->abde", "bias_axes": "de"},
        np.einsum("abc,cde->abde", Q, K) + K[0],
    ),
    (
        "GroupNormalization",
        [X],
        {"y/gamma": G, "y/beta": B},
        {},
        {"groups": 3, "epsilon": 0.01},
        normal(X.reshape(1, 20, 3, 2), (1, 3), 0.01).reshape(X.shape) * G + B,
    ),
    (
        "RMSNormalization",
        [X],
        {"y/scale": G},
        {},
        {"epsilon": 0.01},
        X / np.sqrt((X * X).mean(3, keepdims=True) + 0.01) * G,
    ),
    ("UnitNormalization", [X], {}, {}, {"axis": -1}, X / np.linalg.norm(X, axis=3, keepdims=True)),
    (
        "Normalization",
        [X],
        {"y/mean": B, "y/variance": G, "y/count": np.array(3)},
        {},
        {"axis": [-1]},
        (X - B) / np.sqrt(G),
    ),
    ("Normalization", [X], {}, {}, {"axis": None, "mean": 0.5, "variance": 4.0, "invert": True}, X * 2 + 0.5),
    ("CenterCrop", [X], {}, {}, {"height": 2, "width": 3}, X[:, 1:3, 0:3]),
    ("RandomFlip", [X], {}, {}, {}, X),
    (
        "EinsumDense",
        [Q],
        {"y/kernel": K},
        {},
        {"equation": "abc,cde->abde", "activation": "relu"},
        np.maximum(np.einsum("abc,cde->abde", Q, K), 0),
    ),
    (
        "GroupNormalization",
        [X],
        {},
        {},
        {"groups": 5, "axis": 1, "scale": False, "center": False},
        normal(X, (2, 3), 1e-3),
    ),
    (
        "LayerNormalization",
        [X],
        {"y/gamma": G[:5], "y/beta": B[:5]},
        {},
        {"axis": [1]},
        normal(X, (1,), 1e-3) * G[:5, None, None] + B[:5, None, None],
    ),
    (
        "LayerNormalization",
        [X],
        {"y/gamma": G},
        {},
        {"axis": [-1], "rms_scaling": True},
        X / np.sqrt(X.var(3, keepdims=True) + 1e-3) * G,
    ),
    (
        "ReLU",
        [X],
        {},
        {},
        {"max_value": 0.6, "negative_slope": 0.1, "threshold": 0.2},
        np.where(X < 0.2, 0.1 * (X - 0.2), np.minimum(X, 0.6)),
    ),
    ("Softmax", [X], {}, {}, {"axis": [1, 2]}, np.exp(X) / np.exp(X).sum((1, 2), keepdims=True)),
    (
        "Attention",
        [Q, V],
        {"y/concat_score_weight": SCALE},
        {},
        {"score_mode": "concat"},
        softmax(0.7 * np.tanh(Q[:, :, None] + V[:, None]).sum(3)) @ V,
    ),
]


@pytest.mark.parametrize(
    ("kind", "inputs", "weights", "call", "config", "result"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_layers(
    kind: str,
    inputs: list[Array],
    weights: dict[str, Array],
    call: dict[str, Any],
    config: dict[str, Any],
    result: Array,
) -> None:
    output = run(kind, inputs, weights, call, **config)
    assert output.shape == result.shape
    np.testing.assert_allclose(output, result, rtol=1e-4, atol=1e-5)


PARTS = ("query", "key", "value", "attention_output")
KERNELS = {name: RNG.uniform(-1, 1, (2, 3, 6) if name == PARTS[3] else (6, 2, 3)).astype(np.float32) for name in PARTS}
BIASES = {name: RNG.uniform(-1, 1, 6 if name == PARTS[3] else (2, 3)).astype(np.float32) for name in PARTS}


def attention(seen: Array | float = 0.0) -> Array:
    q, k, v = (
        np.einsum("btd,dhn->bhtn", x, KERNELS[name]) + BIASES[name][:, None]
        for x, name in zip((Q, V, V), PARTS, strict=False)
    )
    y = softmax(q @ k.swapaxes(2, 3) / np.sqrt(3) + seen) @ v
    return np.asarray(np.einsum("bhtn,hnd->btd", y, KERNELS[PARTS[3]]) + BIASES[PARTS[3]])


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal: bool) -> None:
    weights = {f"y/{n}/{role}": w[n] for n in PARTS for role, w in (("kernel", KERNELS), ("bias", BIASES))}
    config = {"num_heads": 2, "key_dim": 3, "use_bias": True}
    output = run("MultiHeadAttention", [Q, V], weights, {"use_causal_mask": causal}, **config)
    np.testing.assert_allclose(output, attention(SEEN if causal else 0.0), atol=1e-5)


def test_multi_head_attention_in_keras_3_format() -> None:
    groups = {"query": "query_dense", "key": "key_dense", "value": "value_dense", "attention_output": "output_dense"}
    weights = {f"multi_head_attention/{group}": [KERNELS[n], BIASES[n]] for n, group in groups.items()}
    entry = layer("MultiHeadAttention", "y", "x0", "x1", num_heads=2, key_dim=3)
    model = functional(["x0", "x1"], ["y"], start("x0", 3, 6), start("x1", 4, 6), entry)
    (output,) = evaluate(importers.load(archive(model, weights)), {"x0": Q, "x1": V}).values()
    np.testing.assert_allclose(output, attention(), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "inputs", "config", "reason"),
    [
        ("Attention", [Q, V], {"score_mode": "other"}, "score_mode=other"),
        ("MultiHeadAttention", [Q, V], {"attention_axes": [1, 2]}, "other axes"),
        ("GroupNormalization", [X], {"groups": 4}, "4 groups"),
        (
            "Resizing",
            [X],
            {"height": 9, "width": 3, "pad_to_aspect_ratio": True, "fill_mode": "edge"},
            "fill_mode=edge",
        ),
        ("Dot", [Q], {"axes": 1}, "1 inputs"),
    ],
)
def test_refusals(kind: str, inputs: list[Array], config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        run(kind, inputs, {}, {}, **config)
