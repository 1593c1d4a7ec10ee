"""Small recurrent networks that tell keywords apart, trained here: an LSTM or a GRU, and a matrix product of its last
state.

Backpropagation through time with Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014) in NumPy; the
same seed gives the same network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Kind = Literal["LSTM", "GRU"]
HIDDEN = 32


@dataclass
class Weights:
    """In ONNX's order of gates (LSTM: input, output, forget, cell; GRU: update, reset, hidden): ``w`` [gates * hidden,
    features], ``r`` [gates * hidden, hidden], ``b`` and ``rb`` [gates * hidden], ``g`` [hidden, classes]."""

    w: Array
    r: Array
    b: Array
    rb: Array
    g: Array


def sigmoid(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-x))
    return found


def lstm(weights: Weights, x: Array, goal: Array | None) -> tuple[Array, Weights | None]:
    """Scores [samples, classes] of ``x`` [steps, samples, features], and the gradients if there is a ``goal``, one-hot
    [samples, classes]."""
    n = weights.r.shape[1]
    h, c, kept = np.zeros((x.shape[1], n)), np.zeros((x.shape[1], n)), []
    for each in x:
        z = each @ weights.w.T + h @ weights.r.T + weights.b + weights.rb
        i, o, f = (sigmoid(z[:, k * n : (k + 1) * n]) for k in range(3))
        g, before, last = np.tanh(z[:, 3 * n :]), c, h
        c = f * c + i * g
        h = o * np.tanh(c)
        kept.append((each, last, before, c, i, o, f, g))
    scores, slope = _scores(weights, h, goal)
    if slope is None:
        return scores, None
    total, dh, dc = _zeros(weights), slope @ weights.g.T, np.zeros_like(c)
    total.g += h.T @ slope
    for each, last, before, c, i, o, f, g in reversed(kept):
        t = np.tanh(c)
        dc = dc + dh * o * (1 - t * t)
        dz = np.concatenate(
            [dc * g * i * (1 - i), dh * t * o * (1 - o), dc * before * f * (1 - f), dc * i * (1 - g * g)], 1
        )
        _add(total, dz, dz, each, last)
        dh, dc = dz @ weights.r, dc * f
    return scores, total


def gru(weights: Weights, x: Array, goal: Array | None) -> tuple[Array, Weights | None]:
    """Step of a GRU (see ``lstm``); the reset gate is applied after the product (``linear_before_reset``)."""
    n = weights.r.shape[1]
    h, kept = np.zeros((x.shape[1], n)), []
    for each in x:
        a, b = each @ weights.w.T + weights.b, h @ weights.r.T + weights.rb
        u, r = (sigmoid((a + b)[:, k * n : (k + 1) * n]) for k in range(2))
        m = b[:, 2 * n :]
        g = np.tanh(a[:, 2 * n :] + r * m)
        kept.append((each, h, u, r, m, g))
        h = (1 - u) * g + u * h
    scores, slope = _scores(weights, h, goal)
    if slope is None:
        return scores, None
    total, dh = _zeros(weights), slope @ weights.g.T
    total.g += h.T @ slope
    for each, last, u, r, m, g in reversed(kept):
        dg = dh * (1 - u) * (1 - g * g)
        du, dr = dh * (last - g) * u * (1 - u), dg * m * r * (1 - r)
        da, db = np.concatenate([du, dr, dg], 1), np.concatenate([du, dr, dg * r], 1)
        _add(total, da, db, each, last)
        dh = dh * u + db @ weights.r
    return scores, total


NETWORKS = {"LSTM": lstm, "GRU": gru}


def trained(kind: Kind, x: Array, labels: Array, *, steps: int = 150, seed: int = 0) -> Weights:
    """The weights of a network trained on samples ``x`` [samples, steps, features]."""
    rng, gates, classes = np.random.default_rng(seed), {"LSTM": 4, "GRU": 3}[kind], int(labels.max()) + 1
    weights = Weights(
        rng.normal(0, 0.2, (gates * HIDDEN, x.shape[2])), rng.normal(0, 0.15, (gates * HIDDEN, HIDDEN)),
        np.zeros(gates * HIDDEN), np.zeros(gates * HIDDEN), rng.normal(0, 0.2, (HIDDEN, classes)),
    )  # fmt: skip
    names = list(vars(weights))
    first, second = ({name: np.zeros_like(getattr(weights, name)) for name in names} for _ in range(2))
    data, goal = x.transpose(1, 0, 2).astype(np.float64), np.eye(classes)[labels]
    for step in range(1, steps + 1):
        slopes = NETWORKS[kind](weights, data, goal)[1]
        for name in names:
            slope = np.clip(getattr(slopes, name), -1, 1)
            first[name] = 0.9 * first[name] + 0.1 * slope
            second[name] = 0.999 * second[name] + 0.001 * slope**2
            rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            setattr(weights, name, getattr(weights, name) - rate * first[name] / (np.sqrt(second[name]) + 1e-8))
    return weights


def model(kind: Kind, weights: Weights, steps: int) -> bytes:
    """An ONNX file: ``x`` [steps, 1, features] to ``y`` [1, classes]."""
    stored = {
        "w": weights.w[None], "r": weights.r[None], "b": np.concatenate([weights.b, weights.rb])[None], "g": weights.g
    }  # fmt: skip
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    nodes = [
        helper.make_node(kind, ["x", "w", "r", "b"], ["", "h"], hidden_size=HIDDEN, name="layer", **more),
        helper.make_node("Flatten", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, kind.lower(), [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 1, weights.w.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, weights.g.shape[1]])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in stored.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return content


def _scores(weights: Weights, h: Array, goal: Array | None) -> tuple[Array, Array | None]:
    """The scores, and the slope of the mean cross-entropy by them."""
    scores = h @ weights.g
    if goal is None:
        return scores, None
    likely = np.exp(scores - scores.max(1, keepdims=True))
    return scores, (likely / likely.sum(1, keepdims=True) - goal) / len(h)


def _zeros(weights: Weights) -> Weights:
    return Weights(*(np.zeros_like(each) for each in vars(weights).values()))


def _add(total: Weights, da: Array, db: Array, x: Array, last: Array) -> None:
    total.w += da.T @ x
    total.r += db.T @ last
    total.b += da.sum(0)
    total.rb += db.sum(0)
