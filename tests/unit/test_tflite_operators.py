"""TFLite's recurrent, scatter and rearranging operators, compared with definitions in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers
from tenon.formats.importers.tflite import recurrent
from tenon.network.graph.graph import Array
from tflite_models import Model

RNG = np.random.default_rng(4)
X = RNG.uniform(-1, 1, (2, 3, 4)).astype(np.float32)
F = RNG.uniform(-1, 1, (5, 2)).astype(np.float32)


def single(
    type: str, operands: Sequence[Array | None], *outputs: Sequence[int], out: str = "f32", **options: Any
) -> list[Array]:
    """The first operand is the graph's input, the others are constants; None is absent."""
    model, feeds = Model(), operands[0]
    assert feeds is not None
    kinds = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32", np.dtype(bool): "bool"}
    numbers = [model.tensor("x", feeds.shape, kinds[feeds.dtype])]
    numbers += [-1 if a is None else model.constant(f"c{i}", a) for i, a in enumerate(operands[1:])]
    made = [model.tensor(f"y{i}", dims, out) for i, dims in enumerate(outputs)]
    model.add(type, numbers, made, **options)
    return list(evaluate(importers.load(model.bytes([0], made)), {"x": feeds}).values())


def ints(*numbers: Any) -> Array:
    return np.array(numbers, np.int32)


def reversed_parts(x: Array, lengths: Sequence[int]) -> Array:
    y = x.copy()
    for i, n in enumerate(lengths):
        y[i, :n] = x[i, :n][::-1]
    return y


def scattered(how: Any, start: Any) -> Array:
    """Rows of F reduced by the segment ids 1 0 1 -1 3, into four segments."""
    y = np.full((4, 2), start, np.float32)
    for row, k in zip(F, (1, 0, 1, -1, 3), strict=True):
        if k >= 0:
            y[k] = how(y[k], row)
    return y


SEGMENTS = ints(1, 0, 1, -1, 3)
LOW, HIGH = np.finfo(np.float32).min, np.finfo(np.float32).max
ANGLES = np.array([[0.0, 1, -1, 0, -2, 3], [1.0, 2, 0, 0, -1, -1]], np.float32)
DIAGONAL = RNG.uniform(-1, 1, (2, 3)).astype(np.float32)
CASES: list[tuple[str, list[Array | None], Array, dict[str, Any]]] = [
    ("REVERSE_SEQUENCE", [X, ints(3, 2)], reversed_parts(X, (3, 2)), {"seq_dim": 1, "batch_dim": 0}),
    (
        "REVERSE_SEQUENCE",
        [X, ints(1, 2, 4)],
        reversed_parts(X.transpose(1, 2, 0), (1, 2, 4)).transpose(2, 0, 1),
        {"seq_dim": 2, "batch_dim": 1},
    ),
    ("MATRIX_DIAG", [DIAGONAL], np.stack([np.diag(row) for row in DIAGONAL]), {}),
    ("MATRIX_SET_DIAG", [X, DIAGONAL], np.where(np.eye(3, 4, dtype=bool), DIAGONAL[:, :, None], X), {}),
    ("SEGMENT_SUM", [F, ints(0, 0, 1, 3, 3)], np.stack([F[0] + F[1], F[2], 0 * F[0], F[3] + F[4]]), {}),
    ("UNSORTED_SEGMENT_SUM", [F, SEGMENTS, ints(4)], scattered(np.add, 0), {}),
    ("UNSORTED_SEGMENT_PROD", [F, SEGMENTS, ints(4)], scattered(np.multiply, 1), {}),
    ("UNSORTED_SEGMENT_MAX", [F, SEGMENTS, ints(4)], scattered(np.maximum, LOW), {}),
    ("UNSORTED_SEGMENT_MIN", [F, SEGMENTS, ints(4)], scattered(np.minimum, HIGH), {}),
    ("BUCKETIZE", [F], np.digitize(F, [-0.5, 0.25]).astype(np.int32), {"boundaries": [-0.5, 0.25]}),
    ("ATAN2", [ANGLES[0], ANGLES[1]], np.arctan2(*ANGLES), {}),
    (
        "DYNAMIC_UPDATE_SLICE",
        [X, X[:1, :2, :3] + 9, ints(1, 2, 1)],
        np.concatenate([X[:1], np.concatenate([X[1:, :1], np.concatenate([X[1:, 1:, :1], X[:1, :2, :3] + 9], 2)], 1)]),
        {},
    ),
    ("GATHER", [X, ints([2, 0], [1, 1])], np.stack([X[0][[2, 0]], X[1][[1, 1]]]), {"axis": 1, "batch_dims": 1}),
    (
        "GATHER",
        [X, ints([3, 0, 1], [1, 1, 2])],
        np.stack([X[0][:, [3, 0, 1]], X[1][:, [1, 1, 2]]]),
        {"axis": 2, "batch_dims": 1},
    ),
    ("STRIDED_SLICE", [X, ints(0, 1, 1), ints(1, 2, 2), ints(1, 1, 1)], X[:1, 1:3, 1:3], {"offset": True}),
    ("STRIDED_SLICE", [X, ints(0, -1, 1), ints(1, -99, 0), ints(1, -1, -1)], X[:1, ::-1, 1:0:-1], {}),
    ("STRIDED_SLICE", [X, ints(0, -99, 0), ints(1, -100, 2), ints(1, -1, 1)], X[:1, :0, :2], {}),
]


@pytest.mark.parametrize(
    ("type", "operands", "result", "options"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_operators(type: str, operands: list[Array | None], result: Array, options: dict[str, Any]) -> None:
    out = "i32" if result.dtype == np.int32 else "f32"
    (output,) = single(type, operands, result.shape, out=out, **options)
    np.testing.assert_allclose(output, result, rtol=1e-5, atol=1e-6)


def test_integers() -> None:
    a, b = ints(12, -7, 255), ints(10, 3, 1)
    np.testing.assert_array_equal(single("BITWISE_XOR", [a, b], (3,), out="i32")[0], a ^ b)
    np.testing.assert_array_equal(single("RIGHT_SHIFT", [a, ints(1, 1, 3)], (3,), out="i32")[0], [6, -4, 31])
    (bits,) = single("BITCAST", [F], (5, 2), out="i32")
    np.testing.assert_array_equal(bits, F.view(np.int32))
    ids = ints(3, 0)
    np.testing.assert_array_equal(single("EMBEDDING_LOOKUP", [ids, F], (2, 2))[0], F[[3, 0]])


def test_indices_as_graph_input() -> None:
    indices = ints([1], [3], [1])
    (output,) = single("SCATTER_ND", [indices, F[:3], ints(4, 2)], (4, 2))
    np.testing.assert_allclose(output, [[0, 0], F[0] + F[2], [0, 0], F[1]], atol=1e-6)
    dense = np.full((3, 4), -1, np.float32)
    dense[0, 1], dense[2, 3] = 7, 8
    values = np.array([7, 8], np.float32), np.array(-1, np.float32)
    (output,) = single("SPARSE_TO_DENSE", [ints([0, 1], [2, 3]), ints(3, 4), *values], (3, 4))
    np.testing.assert_array_equal(output, dense)


def test_broadcast_args() -> None:
    model = Model()
    x, y = model.tensor("x", (3, 1)), model.tensor("y", (2, 3, 4))
    shape = model.tensor("s", (3,), "i32")
    model.add("BROADCAST_ARGS", [model.constant("a", ints(3, 1)), model.constant("b", ints(2, 1, 4))], [shape])
    model.add("BROADCAST_TO", [x, shape], [y])
    data = RNG.uniform(-1, 1, (3, 1)).astype(np.float32)
    (output,) = evaluate(importers.load(model.bytes([x], [y])), {"x": data}).values()
    np.testing.assert_array_equal(output, np.broadcast_to(data, (2, 3, 4)))


def test_conv_3d_transpose() -> None:
    x = RNG.uniform(-1, 1, (1, 2, 2, 2, 3)).astype(np.float32)
    w = RNG.uniform(-1, 1, (2, 2, 2, 4, 3)).astype(np.float32)
    model = Model()
    data, y = model.tensor("x", x.shape), model.tensor("y", (1, 4, 4, 4, 4))
    sizes = model.constant("s", ints(1, 4, 4, 4, 4))
    model.add(
        "CONV_3D_TRANSPOSE", [sizes, model.constant("w", w), data], [y], padding=1, stride_d=2, stride_h=2, stride_w=2
    )
    (output,) = evaluate(importers.load(model.bytes([data], [y])), {"x": x}).values()
    expected = np.einsum("ndhwi,abcoi->ndahbwco", x, w).reshape(1, 4, 4, 4, 4)
    np.testing.assert_allclose(output, expected, atol=1e-5)


# ---------------------------------------------------------------------------------------------- recurrent
T, B, IN, H = 4, 2, 3, 5
GATES = "ifco"


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


class Lstm:
    """Weights of one direction and its cell; optional weights are absent unless requested."""

    def __init__(
        self, rng: np.random.Generator, *, coupled: bool = False, peep: bool = False, out: int = 0, norm: bool = False
    ) -> None:
        def some(*dims: int) -> Array:
            return rng.uniform(-0.7, 0.7, dims).astype(np.float32)

        width = out or H
        gates = GATES[1:] if coupled else GATES
        self.coupled, self.width = coupled, width
        self.w, self.r, self.b = ({k: some(*dims) for k in gates} for dims in ((H, IN), (H, width), (H,)))
        self.p = {k: some(H) for k in gates if k != "c"} if peep else {}
        self.n = {k: some(H) for k in gates} if norm else {}
        self.proj: Array | None = some(out, H) if out else None
        self.proj_bias: Array | None = some(out) if out else None

    def operands(self) -> list[Array | None]:
        lists = [[d.get(k) for k in GATES] for d in (self.w, self.r)]
        peeps = [self.p.get(k) for k in "ifo"]
        return [*lists[0], *lists[1], *peeps, *(self.b.get(k) for k in GATES), self.proj, self.proj_bias]

    def gate(self, k: str, x: Array, h: Array, seen: Array | None) -> Array:
        y = x @ self.w[k].T + h @ self.r[k].T
        if seen is not None and k in self.p:
            y = y + self.p[k] * seen
        if self.n:
            y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-8) * self.n[k]
        return np.asarray(y + self.b[k])

    def step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        f = sigmoid(self.gate("f", x, h, c))
        i = 1 - f if self.coupled else sigmoid(self.gate("i", x, h, c))
        c = f * c + i * np.tanh(self.gate("c", x, h, None))
        h = sigmoid(self.gate("o", x, h, c)) * np.tanh(c)
        return (h if self.proj is None else h @ self.proj.T + self.proj_bias), c

    def run(self, x: Array) -> Array:
        h, c, rows = np.zeros((x.shape[1], self.width)), np.zeros((x.shape[1], H)), []
        for at in x:
            h, c = self.step(at, h, c)
            rows.append(h)
        return np.stack(rows)


S = RNG.uniform(-1, 1, (T, B, IN)).astype(np.float32)


@pytest.fixture(params=["nodes", "loop"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step by nodes of its own, and all steps by one node with a body."""
    monkeypatch.setattr(recurrent, "FEWEST_STEPS", T + 1 if request.param == "nodes" else 1)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize(
    "kind", [{}, {"coupled": True}, {"peep": True}, {"out": 2}, {"norm": True, "coupled": True, "peep": True, "out": 3}]
)
def test_sequence_lstm(kind: dict[str, Any]) -> None:
    cell = Lstm(np.random.default_rng(1), **kind)
    states: list[Array | None] = [None, None]
    operands = [S, *cell.operands(), *states, *(cell.n.get(k) for k in GATES)]
    (output,) = single("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (T, B, cell.width), activation=4, time_major=True)
    np.testing.assert_allclose(output, cell.run(S), atol=1e-5)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("merged", [False, True])
def test_bidirectional_lstm(merged: bool) -> None:
    ahead, back = (Lstm(np.random.default_rng(i)) for i in range(2))
    operands = [S.swapaxes(0, 1), *ahead.operands(), *back.operands(), *[None] * 13]
    shapes = [(B, T, 2 * H)] if merged else [(B, T, H)] * 2
    outputs = single(
        "BIDIRECTIONAL_SEQUENCE_LSTM", operands, *shapes, activation=4, time_major=False, merge_outputs=merged
    )
    sides = [cell.run(x).swapaxes(0, 1) for cell, x in ((ahead, S), (back, S[::-1]))]
    sides[1] = sides[1][:, ::-1]
    for mine, theirs in zip(outputs, [np.concatenate(sides, -1)] if merged else sides, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def plain(x: Array, parts: Sequence[Array], h: Array, act: Any = np.tanh) -> list[Array]:
    (w, r, b), rows = parts, []
    for at in x:
        h = act(at @ w.T + h @ r.T + b)
        rows.append(h)
    return rows


def weights(seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-0.7, 0.7, dims).astype(np.float32) for dims in ((H, IN), (H, H), (H,))]


@pytest.mark.usefixtures("steps")
def test_rnn_sequences() -> None:
    zeros = np.zeros((B, H), np.float32)
    (output,) = single("UNIDIRECTIONAL_SEQUENCE_RNN", [S, *weights(1), None], (T, B, H), activation=4, time_major=True)
    np.testing.assert_allclose(output, plain(S, weights(1), zeros), atol=1e-5)
    operands = [S, *weights(1), None, *weights(2), None]
    ahead, back = single("BIDIRECTIONAL_SEQUENCE_RNN", operands, (T, B, H), (T, B, H), activation=1, time_major=True)
    np.testing.assert_allclose(ahead, plain(S, weights(1), zeros, lambda v: v.clip(0)), atol=1e-5)
    np.testing.assert_allclose(back[::-1], plain(S[::-1], weights(2), zeros, lambda v: v.clip(0)), atol=1e-5)


def stepped(
    type: str, operands: Sequence[Array | None], state: dict[int, Array], *outputs: Sequence[int], **options: Any
) -> dict[str, Array]:
    """One step of an operator with states in variables, which become inputs and outputs of the graph."""
    model, numbers, feeds = Model(), list[int](), dict[str, Array]()
    for k, a in enumerate(operands):
        if k and k not in state:
            numbers.append(-1 if a is None else model.constant(f"c{k}", a))
            continue
        data = state.get(k, a)
        assert data is not None
        numbers.append(model.tensor(f"t{k}", data.shape))
        feeds[f"t{k}"] = data
    made = [model.tensor(f"y{i}", dims) for i, dims in enumerate(outputs)]
    model.add(type, numbers, made, **options)
    graph = importers.load(model.bytes([0], made))
    assert {v.name for v in graph.inputs} == set(feeds)
    return evaluate(graph, feeds)


def test_one_step_of_an_rnn() -> None:
    h = RNG.uniform(-1, 1, (B, H)).astype(np.float32)
    outputs = stepped("RNN", [S[0], *weights(3), None], {4: h}, (B, H), activation=4)
    (expected,) = plain(S[:1], weights(3), h)
    np.testing.assert_allclose(outputs["y0"], expected, atol=1e-5)
    np.testing.assert_array_equal(outputs["t4_out"], outputs["y0"])


def test_one_step_of_an_lstm() -> None:
    cell = Lstm(np.random.default_rng(5))
    h, c = (RNG.uniform(-1, 1, (B, H)).astype(np.float32) for _ in range(2))
    operands = [S[0], *cell.operands(), None, None]
    outputs = stepped("LSTM", operands, {18: h, 19: c}, (B, H), activation=4)
    expected = cell.step(S[0], h, c)
    for name, value in zip(("t18_out", "t19_out"), expected, strict=True):
        np.testing.assert_allclose(outputs[name], value, atol=1e-5)
    np.testing.assert_allclose(outputs["y0"], expected[0], atol=1e-5)


def test_basic_lstm() -> None:
    """Gates input, new, forget, output; weights for the concatenation of the input and the previous output."""
    h, c = (RNG.uniform(-1, 1, (B, H)).astype(np.float32) for _ in range(2))
    w, b = RNG.uniform(-1, 1, (4 * H, IN + H)).astype(np.float32), RNG.uniform(-1, 1, 4 * H).astype(np.float32)
    shapes = [(B, H), (B, H), (B, IN + H), (B, 4 * H)]
    outputs = single("LSTM", [S[0], h, w, b, c], *shapes, kernel_type=1)
    i, g, f, o = np.split(np.concatenate([S[0], h], -1) @ w.T + b, 4, -1)
    memory = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    np.testing.assert_allclose(outputs[1], memory, atol=1e-5)
    np.testing.assert_allclose(outputs[0], sigmoid(o) * np.tanh(memory), atol=1e-5)


def test_svdf() -> None:
    """Four filters of rank 2, over the last three steps."""
    features, filters = (RNG.uniform(-1, 1, d).astype(np.float32) for d in ((4, IN), (4, 3)))
    bias, state = RNG.uniform(-1, 1, 2).astype(np.float32), RNG.uniform(-1, 1, (B, 12)).astype(np.float32)
    outputs = stepped("SVDF", [S[0], features, filters, bias, None], {4: state}, (B, 2), rank=2, activation=1)
    memory = np.concatenate([state.reshape(B, 4, 3)[..., 1:], (S[0] @ features.T)[..., None]], -1)
    sums = (memory * filters).sum(-1).reshape(B, 2, 2).sum(-1) + bias
    np.testing.assert_allclose(outputs["y0"], sums.clip(0), atol=1e-5)
    np.testing.assert_allclose(outputs["t4_out"], memory.reshape(B, 12), atol=1e-6)


def test_atan2_quadrants() -> None:
    """The signs of the quadrants."""
    y, x = np.array([1, -1, 0], np.float32), np.array([-1, -1, -2], np.float32)
    (output,) = single("ATAN2", [y, x], (3,))
    np.testing.assert_allclose(output, [3 * math.pi / 4, -3 * math.pi / 4, math.pi], atol=1e-6)
