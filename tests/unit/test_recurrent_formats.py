"""Recurrent layers of ncnn, MXNet, Paddle and Tengine compared with NumPy cells, with gates in cuDNN's order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from evaluate import evaluate
from small_models import mxnet_parameters, ncnn_net, paddle, paddle_operator, paddle_tensor, tmfile
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

T, IN, H = 5, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Cell:
    """Weights of one direction: gates input, forget, cell, output of an LSTM; reset, update, new of a GRU."""

    w: Array
    r: Array
    b: Array
    c: Array


def cell(kind: str, inputs: int, rng: np.random.Generator) -> Cell:
    rows = GATES[kind] * H
    w, r, b, c = (rng.uniform(-0.7, 0.7, dims).astype(np.float32) for dims in ((rows, inputs), (rows, H), rows, rows))
    return Cell(w, r, b, c)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def step(kind: str, k: Cell, x: Array, h: Array, memory: Array) -> tuple[Array, Array]:
    own, echo = x @ k.w.T + k.b, h @ k.r.T + k.c
    if kind == "RNN":
        return np.tanh(own + echo), memory
    if kind == "LSTM":
        i, f, g, o = np.split(own + echo, 4, -1)
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(memory), memory
    (r, z, n), (er, ez, en) = np.split(own, 3, -1), np.split(echo, 3, -1)
    update, new = sigmoid(z + ez), np.tanh(n + sigmoid(r + er) * en)
    return (1 - update) * new + update * h, memory


def run(kind: str, cells: Sequence[Cell], x: Array, h: Array | None = None, backwards: bool = False) -> Array:
    """[T, N, D * H] of one layer; the second cell goes backwards."""
    sides = []
    for side, k in enumerate(cells):
        turned = side == 1 or backwards
        hidden = np.zeros((x.shape[1], H)) if h is None else h[side]
        memory, results = np.zeros((x.shape[1], H)), []
        for at in x[::-1] if turned else x:
            hidden, memory = step(kind, k, at, hidden, memory)
            results.append(hidden)
        sides.append(np.stack(results[::-1] if turned else results))
    return np.concatenate(sides, -1)


def ncnn_order(kind: str, rows: Array) -> Array:
    """ncnn's order: input, forget, output, cell."""
    if kind != "LSTM":
        return rows
    i, f, g, o = np.split(rows, 4)
    return np.concatenate([i, f, o, g])


def ncnn_file(kind: str, cells: Sequence[Cell]) -> bytes:
    def stored(*arrays: Array) -> bytes:
        return bytes(4) + np.concatenate([a.reshape(-1) for a in arrays]).astype("<f4").tobytes()

    def bias(k: Cell) -> Array:
        if kind == "GRU":
            return np.concatenate([(k.b + k.c)[: 2 * H], k.b[2 * H :], k.c[2 * H :]])
        return ncnn_order(kind, k.b + k.c)

    parts = [ncnn_order(kind, k.w) for k in cells], [bias(k) for k in cells], [ncnn_order(kind, k.r) for k in cells]
    return b"".join(stored(*part) for part in parts)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("way", [0, 1, 2])
def test_ncnn(kind: str, way: int) -> None:
    rng = np.random.default_rng(way)
    cells = [cell(kind, IN, rng) for _ in range(2 if way == 2 else 1)]
    x = rng.normal(size=(1, T, IN)).astype(np.float32)
    net = ncnn_net(f"{kind} r 1 1 data y 0={H} 1={len(cells) * GATES[kind] * H * IN} 2={way}", shape=f"0={IN} 1={T}")
    (output,) = evaluate(importers.load(net, weights=ncnn_file(kind, cells)), {"data": x}).values()
    expected = run(kind, cells, x.transpose(1, 0, 2), backwards=way == 1).transpose(1, 0, 2)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_ncnn_with_states() -> None:
    rng = np.random.default_rng(8)
    cells = [cell("GRU", IN, rng)]
    x, h = rng.normal(size=(1, T, IN)).astype(np.float32), rng.normal(size=(1, 1, H)).astype(np.float32)
    net = ncnn_net(
        f"Input h 0 1 first 0={H} 1=1", f"GRU r 2 2 data first y last 0={H} 1={3 * H * IN}", shape=f"0={IN} 1={T}"
    )
    outputs = evaluate(importers.load(net, weights=ncnn_file("GRU", cells)), {"data": x, "first": h})
    expected = run("GRU", cells, x.transpose(1, 0, 2), h)
    np.testing.assert_allclose(outputs["y"][0], expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(outputs["last"][0, 0], expected[-1, 0], atol=1e-5)


def two_layers(kind: str, sides: int, rng: np.random.Generator) -> list[list[Cell]]:
    return [[cell(kind, n, rng) for _ in range(sides)] for n in (IN, sides * H)]


@pytest.mark.parametrize(("mode", "kind"), [("lstm", "LSTM"), ("gru", "GRU"), ("rnn_tanh", "RNN")])
@pytest.mark.parametrize("sides", [1, 2])
def test_mxnet(mode: str, kind: str, sides: int) -> None:
    rng = np.random.default_rng(sides)
    layers = two_layers(kind, sides, rng)
    flat = [k for layer in layers for k in layer]
    vector = np.concatenate([a.reshape(-1) for k in flat for a in (k.w, k.r)] + [a for k in flat for a in (k.b, k.c)])
    options = {"mode": mode, "state_size": str(H), "num_layers": "2", "bidirectional": str(sides == 2)}
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "rnn_parameters_weight", "inputs": []},
        {"op": "RNN", "name": "y", "attrs": options, "inputs": [[0, 0, 0], [1, 0, 0]]},
    ]
    symbol = json.dumps({"nodes": nodes, "arg_nodes": [0, 1], "heads": [[2, 0, 0]]}).encode()
    stored = mxnet_parameters({"rnn_parameters_weight": vector})
    graph = importers.load(symbol, {"data": (T, 2, IN)}, weights=stored)
    x = rng.normal(size=(T, 2, IN)).astype(np.float32)
    (output,) = evaluate(graph, {"data": x}).values()
    np.testing.assert_allclose(output, run(kind, layers[1], run(kind, layers[0], x)), atol=1e-5)


@pytest.mark.parametrize(("mode", "kind"), [("LSTM", "LSTM"), ("GRU", "GRU"), ("RNN_TANH", "RNN")])
@pytest.mark.parametrize("sides", [1, 2])
def test_paddle(mode: str, kind: str, sides: int) -> None:
    rng = np.random.default_rng(sides)
    layers = two_layers(kind, sides, rng)
    flat = [k for layer in layers for k in layer]
    arrays = [a for k in flat for a in (k.w, k.r)] + [a for k in flat for a in (k.b, k.c)]
    names = [f"w{i:02}" for i in range(len(arrays))]
    slots: dict[str, str | list[str]] = {"Input": "x", "WeightList": names}
    op = paddle_operator("rnn", slots, {"Out": "y"}, mode=mode, num_layers=2, is_bidirec=int(sides == 2), hidden_size=H)
    variables = {name: a.shape for name, a in zip(names, arrays, strict=True)}
    program = paddle(op, shape=(T, 2, IN), parameters=variables)
    x = rng.normal(size=(T, 2, IN)).astype(np.float32)
    graph = importers.load(program, weights=b"".join(map(paddle_tensor, arrays)))
    (output,) = evaluate(graph, {"x": x}).values()
    np.testing.assert_allclose(output, run(kind, layers[1], run(kind, layers[0], x)), atol=1e-5)


def onnx_order(kind: str, rows: Array) -> Array:
    """ONNX's order: input, output, forget, cell; update, reset, new."""
    order = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}[kind]
    return np.concatenate([np.split(rows, GATES[kind])[i] for i in order])


TENGINE = {"LSTM": (34, 18), "GRU": (48, 10), "RNN": (35, 9)}
"""The number of each operator, and how many parameters it has."""


def tengine(kind: str, sides: int, with_state: bool) -> tuple[list[Array], dict[str, Array], list[Cell]]:
    """All outputs, the inputs, and the weights."""
    rng = np.random.default_rng(sides)
    cells = [cell(kind, IN, rng) for _ in range(sides)]
    weights = [np.stack([onnx_order(kind, m) for m in ms]) for ms in ([k.w for k in cells], [k.r for k in cells])]
    weights.append(np.stack([np.concatenate([onnx_order(kind, k.b), onnx_order(kind, k.c)]) for k in cells]))
    states = [np.zeros((sides, 2, H), np.float32)] * (with_state * (1 + (kind == "LSTM")))
    number, count = TENGINE[kind]
    file = tmfile(number, [0] * count, *weights, *states, shape=(T, 2, IN), outputs=2)
    x = rng.normal(size=(T, 2, IN)).astype(np.float32)
    return list(evaluate(importers.load(file), {"data": x}).values()), {"x": x}, cells


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("sides", [1, 2])
def test_tengine(kind: str, sides: int) -> None:
    (y, last), given, cells = tengine(kind, sides, with_state=True)
    expected = run(kind, cells, given["x"]).reshape(T, 2, sides, H).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(last[0], expected[-1, 0], atol=1e-5)


def test_tengine_gru_without_initial_state() -> None:
    (y, _), given, (k,) = tengine("GRU", 1, with_state=False)
    b, c = k.b.copy(), k.c.copy()
    b[2 * H :] += c[2 * H :]
    c[2 * H :] = 0
    np.testing.assert_allclose(y[:, 0], run("GRU", [Cell(k.w, k.r, b, c)], given["x"]), atol=1e-5)


def test_tengine_rnn_of_one_matrix() -> None:
    rng = np.random.default_rng(4)
    k, first = cell("RNN", IN, rng), rng.normal(size=(1, H)).astype(np.float32)
    kernel = np.concatenate([k.w.T, k.r.T])
    parameters = [0.0, 2, T, IN, H, 0, 1, 1, 0]
    graph = importers.load(tmfile(35, parameters, kernel, k.b, first, shape=(T, 2, IN)))
    x = rng.normal(size=(T, 2, IN)).astype(np.float32)
    (output,) = evaluate(graph, {"data": x}).values()
    start = np.repeat(first, 2, 0)[None]
    np.testing.assert_allclose(output, run("RNN", [Cell(k.w, k.r, k.b, 0 * k.c)], x, start)[-2:], atol=1e-5)


def test_tengine_refuses_weights_of_other_frameworks() -> None:
    kernel = np.zeros((IN + H, 4 * H), np.float32)
    with pytest.raises(UnsupportedError, match=r"\(LSTM\): its weights \[7, 16\] and \[16\] are not those of ONNX's"):
        importers.load(tmfile(34, [0] * 18, kernel, np.zeros(4 * H, np.float32), shape=(T, 1, IN)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"LSTM r 1 1 data y 0={H} 1=7", "7 weights do not make"),
        (f"LSTM r 1 1 data y 0={H} 1={4 * H * IN} 3=2", "projected"),
        (f"GRU r 1 1 data y 0={H} 1={3 * H * 9}", "steps of 9 numbers"),
    ],
)
def test_refusals(line: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        importers.load(ncnn_net(line, shape=f"0={IN} 1={T}"))
