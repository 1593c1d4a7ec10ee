"""Darknet's layers compared with loops that follow its C code, and errors of the importer."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.errors import FormatError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph

pytestmark = pytest.mark.quick(importer="darknet")

RNG = np.random.default_rng(3)


def cfg(body: str, c: int = 4, h: int = 6, w: int = 6) -> bytes:
    return f"[net]\nheight={h}\nwidth={w}\nchannels={c}\n{body}".encode()


def weights(*arrays: Array, revision: int = 0) -> bytes:
    floats = b"".join(np.asarray(a, "<f4").tobytes() for a in arrays)
    return struct.pack("<3iQ", 0, 2, revision, 0) + floats


def run(body: str, x: Array, *arrays: Array, revision: int = 0, **states: Array) -> dict[str, Array]:
    text = cfg(body, *x.shape[1:]) if x.ndim == 4 else f"[net]\ninputs={x.shape[1]}\n{body}".encode()
    graph = importers.load(text, weights=weights(*arrays, revision=revision))
    return evaluate(graph, {"data": x, **states})


def random(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "loggy": lambda x: 2 / (1 + np.exp(-x)) - 1,
    "ramp": lambda x: x * (x > 0) + 0.1 * x,
    "relie": lambda x: x if x > 0 else 0.01 * x,
    "plse": lambda x: 0.01 * (x + 4) if x < -4 else 0.01 * (x - 4) + 1 if x > 4 else 0.125 * x + 0.5,
    "stair": lambda x: np.floor(x / 2) if np.floor(x) % 2 == 0 else (x - np.floor(x)) + np.floor(np.floor(x) / 2),
    "lhtan": lambda x: 0.001 * x if x < 0 else 0.001 * (x - 1) + 1 if x > 1 else x,
    "hard_mish": lambda x: x if x > 0 else x * x / 2 + x if x > -2 else 0.0,
    "relu6": lambda x: min(max(x, 0), 6),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = np.linspace(-9, 9, 144, dtype=np.float32).reshape(1, 4, 6, 6)
    (output,) = run(f"[activation]\nactivation={name}", x).values()
    expected = np.array([ACTIVATIONS[name](float(v)) for v in x.ravel()]).reshape(x.shape)
    np.testing.assert_allclose(output, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("n", "size", "stride", "padding"),
    [(6, 2, 2, 1), (7, 2, 2, 1), (6, 2, 1, 1), (6, 5, 1, 4), (7, 3, 2, 2), (6, 3, 2, 0), (9, 2, 3, 1)],
)
def test_maxpool(n: int, size: int, stride: int, padding: int) -> None:
    x = random(1, 2, n, n)
    (output,) = run(f"[maxpool]\nsize={size}\nstride={stride}\npadding={padding}", x).values()
    out = (n + padding - size) // stride + 1
    expected = np.full((1, 2, out, out), -np.inf, np.float32)
    for i, j, a, b in np.ndindex(out, out, size, size):
        row, column = i * stride + a - padding // 2, j * stride + b - padding // 2
        if 0 <= row < n and 0 <= column < n:
            expected[:, :, i, j] = np.maximum(expected[:, :, i, j], x[:, :, row, column])
    np.testing.assert_array_equal(output, expected)


def reorg_loops(x: Array, stride: int, forward: bool) -> Array:
    """reorg_cpu, whose index arithmetic uses the input's shape in both directions."""
    _, c, h, w = x.shape
    flat, out, inner = x.ravel(), np.zeros(x.size, np.float32), c // stride**2
    for k, j, i in np.ndindex(c, h, w):
        here = i + w * (j + h * k)
        offset = k // inner
        row, column = j * stride + offset // stride, i * stride + offset % stride
        there = column + w * stride * (row + h * stride * (k % inner))
        out[there if forward else here] = flat[here if forward else there]
    return out


@pytest.mark.parametrize("reverse", [0, 1])
def test_reorg(reverse: int) -> None:
    x = random(1, 8, 4, 6)
    (output,) = run(f"[reorg]\nstride=2\nreverse={reverse}", x).values()
    assert output.shape == ((1, 2, 8, 12) if reverse else (1, 32, 2, 3))
    np.testing.assert_array_equal(output.ravel(), reorg_loops(x, 2, bool(reverse)))


def test_convolution_groups_batch_norm() -> None:
    x, w = random(1, 4, 6, 6), random(6, 2, 3, 3)
    bias, scale, mean, variance = random(6), random(6), random(6), random(6) ** 2 + 0.1
    body = "[convolutional]\nbatch_normalize=1\nfilters=6\ngroups=2\nsize=3\nstride=2\npad=1\nactivation=leaky"
    (output,) = run(body, x, bias, scale, mean, variance, w).values()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.zeros((1, 6, 3, 3), np.float32)
    for f, i, j in np.ndindex(6, 3, 3):
        part = padded[0, (f // 3) * 2 : (f // 3) * 2 + 2, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        value = ((part * w[f]).sum() - mean[f]) / np.sqrt(variance[f] + 1e-6) * scale[f] + bias[f]
        expected[0, f, i, j] = value if value > 0 else 0.1 * value
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_local() -> None:
    x, bias, w = random(1, 2, 5, 5), random(3, 5, 5), random(25, 3, 18)
    (output,) = run("[local]\nfilters=3\nsize=3\nstride=1\npad=1\nactivation=linear", x, bias, w).values()
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    expected = bias.copy()
    for i, j in np.ndindex(5, 5):
        expected[:, i, j] += w[i * 5 + j] @ padded[:, i : i + 3, j : j + 3].ravel()
    np.testing.assert_allclose(output[0], expected, atol=1e-5)


def test_shortcut_of_different_sizes() -> None:
    x = random(1, 4, 6, 6)
    pool = "[maxpool]\nsize=2\nstride=2\n"
    (output,) = run(f"[activation]\n{pool}[shortcut]\nfrom=-2\nactivation=linear", x).values()
    expected = x.reshape(1, 4, 3, 2, 3, 2).max((3, 5)) + x[:, :, ::2, ::2]
    np.testing.assert_array_equal(output, expected)


def test_weighted_shortcut() -> None:
    x, w = random(1, 4, 6, 6), random(2, 4)
    body = "[activation]\nactivation=tanh\n[shortcut]\nfrom=0\nweights_type=per_channel\nweights_normalization=softmax"
    (output,) = run("[activation]\n" + body, x, w).values()
    e = np.exp(w - w.max(0))
    share = (e / (e.sum(0) + 1e-4)).reshape(2, 1, 4, 1, 1)
    np.testing.assert_allclose(output, np.tanh(x) * share[0] + x * share[1], atol=1e-6)


def test_route_groups_scale_sam_upsample() -> None:
    x = random(1, 4, 6, 6)
    (output,) = run("[activation]\n[route]\nlayers=-1\ngroups=2\ngroup_id=1", x).values()
    np.testing.assert_array_equal(output, x[:, 2:])
    (output,) = run("[activation]\n[avgpool]\n[scale_channels]\nfrom=0", x).values()
    np.testing.assert_allclose(output, x * x.mean((2, 3), keepdims=True), atol=1e-6)
    (output,) = run("[activation]\n[activation]\nactivation=logistic\n[sam]\nfrom=0", x).values()
    np.testing.assert_allclose(output, x * sigmoid(x), atol=1e-6)
    (output,) = run("[upsample]\nstride=2\nscale=3", x).values()
    np.testing.assert_array_equal(output, 3 * x.repeat(2, 2).repeat(2, 3))
    (output,) = run("[upsample]\nstride=-2", x).values()
    np.testing.assert_allclose(output, x.reshape(1, 4, 3, 2, 3, 2).sum((3, 5)), atol=1e-6)


def test_crop_softmax_lrn() -> None:
    x = random(1, 4, 6, 6)
    (output,) = run("[crop]\ncrop_height=4\ncrop_width=2", x).values()
    np.testing.assert_allclose(output, x[:, :, 1:5, 2:4] * 2 - 1, atol=1e-6)
    (output,) = run("[softmax]\ngroups=2\ntemperature=2", random(1, 6)).values()
    np.testing.assert_allclose(output.reshape(2, 3).sum(1), 1, atol=1e-6)
    (output,) = run("[lrn]\nsize=3\nalpha=.5\nbeta=.75\nkappa=2", x).values()
    square = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    norm = 2 + 0.5 * (square[:, :-2] + square[:, 1:-1] + square[:, 2:])
    np.testing.assert_allclose(output, x * norm**-0.75, atol=1e-6)


@pytest.mark.parametrize("fork", ["pjreddie", "alexey"])
def test_lstm(fork: str) -> None:
    x, h, c = random(1, 3), random(1, 2), random(1, 2)
    order = "ifog" if fork == "pjreddie" else "figo"
    state = {g: (random(2), random(2, 2)) for g in order}
    own = {g: (random(2), random(2, 3)) for g in order}
    stored = [a for part in (state, own) for g in order for a in part[g]]
    outputs = run("[lstm]\noutput=2", x, *stored, revision=5 * (fork == "alexey"), lstm_0_state=h, lstm_0_cell=c)
    gate = {g: state[g][1] @ h[0] + state[g][0] + own[g][1] @ x[0] + own[g][0] for g in order}
    cell = sigmoid(gate["f"]) * c + sigmoid(gate["i"]) * np.tanh(gate["g"])
    np.testing.assert_allclose(outputs["lstm_0_cell_out"], cell, atol=1e-6)
    np.testing.assert_allclose(outputs["lstm_0"], sigmoid(gate["o"]) * np.tanh(cell), atol=1e-6)


@pytest.mark.parametrize("fork", ["pjreddie", "alexey"])
def test_gru(fork: str) -> None:
    x, h = random(1, 3), random(1, 2)
    state, own = [(random(2), random(2, 2)) for _ in "zrh"], [(random(2), random(2, 3)) for _ in "zrh"]
    first, second = (state, own) if fork == "pjreddie" else (own, state)
    stored = [a for pair in (*first, *second) for a in pair]
    outputs = run("[gru]\noutput=2\ntanh=1", x, *stored, revision=5 * (fork == "alexey"), gru_0_state=h)
    z, r = (sigmoid(own[i][1] @ x[0] + own[i][0] + state[i][1] @ h[0] + state[i][0]) for i in (0, 1))
    new = np.tanh(own[2][1] @ x[0] + own[2][0] + state[2][1] @ (h[0] * r) + state[2][0])
    np.testing.assert_allclose(outputs["gru_0"][0], z * h[0] + (1 - z) * new, atol=1e-6)


def test_rnn_and_crnn_agree() -> None:
    """A crnn with 1x1 kernels on one pixel is an rnn; both store bias and weights in the same order."""
    x, h, arrays = (
        random(1, 3),
        random(1, 4),
        (random(4), random(4, 3), random(4), random(4, 4), random(2), random(2, 4)),
    )
    outputs = run("[rnn]\noutput=2\nhidden=4\nactivation=leaky", x, *arrays, rnn_0_state=h)
    image: dict[str, Any] = {"crnn_0_state": h.reshape(1, 4, 1, 1)}
    again = run("[crnn]\noutput=2\nhidden=4\nsize=1\nactivation=leaky", x, *arrays, **image)
    np.testing.assert_allclose(again["crnn_0"].ravel(), outputs["rnn_0"].ravel(), atol=1e-6)

    def leaky(v: Array) -> Array:
        return np.where(v > 0, v, 0.1 * v)

    state = leaky(arrays[1] @ x[0] + arrays[0]) + leaky(arrays[3] @ h[0] + arrays[2])
    np.testing.assert_allclose(outputs["rnn_0_state_out"][0], state, atol=1e-6)
    np.testing.assert_allclose(outputs["rnn_0"][0], leaky(arrays[5] @ state + arrays[4]), atol=1e-6)


@pytest.mark.parametrize("new", [0, 1])
def test_yolo(new: int) -> None:
    x = random(1, 14, 2, 3)
    body = f"[yolo]\nmask=0,2\nanchors=1,2, 9,9, 3,4\nclasses=2\nnum=3\nscale_x_y=1.5\nnew_coords={new}"
    outputs = run(body, x)
    assert list(outputs) == ["yolo_0", "boxes", "scores"]
    squash = (lambda v: v) if new else sigmoid
    for row, column, a in np.ndindex(2, 3, 2):
        v, anchor = x[0, 7 * a : 7 * a + 7, row, column], ((1, 2), (3, 4))[a]
        center = (squash(v[:2]) * 1.5 - 0.25 + (column, row)) / (3, 2)
        size = (v[2:4] ** 2 * 4 if new else np.exp(v[2:4])) * anchor / (3, 2)
        at = (row * 3 + column) * 2 + a
        np.testing.assert_allclose(outputs["boxes"][0, at], [*(center - size / 2), *(center + size / 2)], atol=1e-6)
        np.testing.assert_allclose(outputs["scores"][0, at], squash(v[4]) * squash(v[5:]), atol=1e-6)


def test_region() -> None:
    x = random(1, 14, 2, 3)
    outputs = run("[region]\nanchors=1,2, 3,4\nclasses=2\ncoords=4\nnum=2\nsoftmax=1", x)
    v = x[0, 7:14, 1, 2]
    center, size = (sigmoid(v[:2]) + np.array([2, 1])) / (3, 2), np.exp(v[2:4]) * (3, 4) / (3, 2)
    share = np.exp(v[5:]) / np.exp(v[5:]).sum()
    np.testing.assert_allclose(outputs["boxes"][0, 11], [*(center - size / 2), *(center + size / 2)], atol=1e-6)
    np.testing.assert_allclose(outputs["scores"][0, 11], sigmoid(v[4]) * share, atol=1e-6)


def test_detection() -> None:
    x = random(1, 4 * (3 + 2 * 5))
    outputs = run("[detection]\nclasses=3\nside=2\nnum=2\nsqrt=1", x)
    classes, objectness, boxes = x[0, :12].reshape(4, 3), x[0, 12:20].reshape(4, 2), x[0, 20:].reshape(4, 2, 4)
    cell, box = 3, 1  # the last cell: row 1, column 1
    center, size = (boxes[cell, box, :2] + (1, 1)) / 2, boxes[cell, box, 2:] ** 2
    np.testing.assert_allclose(outputs["boxes"][0, 7], [*(center - size / 2), *(center + size / 2)], atol=1e-6)
    np.testing.assert_allclose(outputs["scores"][0, 7], classes[cell] * objectness[cell, box], atol=1e-6)


def test_gaussian_yolo() -> None:
    x = random(1, 11, 1, 1)
    outputs = run("[Gaussian_yolo]\nmask=0\nanchors=1,1\nclasses=2\nnum=1", x)
    v = x.ravel()
    doubt = sigmoid(v[[1, 3, 5, 7]]).mean()
    np.testing.assert_allclose(outputs["scores"][0, 0], sigmoid(v[8]) * (1 - doubt) * sigmoid(v[9:]), atol=1e-6)
    np.testing.assert_allclose(outputs["boxes"][0, 0, 2] - outputs["boxes"][0, 0, 0], np.exp(v[4]), atol=1e-6)


def test_all_unsupported_layers_are_reported() -> None:
    with pytest.raises(UnsupportedError) as error:
        importers.load(cfg("[history]\n[convolutional]\nxnor=1\n[route]\nlayers=-9\n[convolutional]\nactivation=odd"))
    assert [p.where.split(" ")[0] for p in error.value.problems] == ["history_0", "convolutional_1", "convolutional_3"]


@pytest.mark.parametrize(("count", "words"), [(21, "too few"), (23, "not used")])
def test_weights_of_another_network(count: int, words: str) -> None:
    body = "[convolutional]\nfilters=2\nsize=1\n[connected]\noutput=1\nactivation=linear"
    text = cfg(body, 1, 3, 3)
    assert not importers.load(text, weights=weights(np.zeros(4 + 19))).incomplete
    with pytest.raises((FormatError, UnsupportedError), match=words):
        importers.load(text, weights=weights(np.zeros(count + (count > 22))))


def test_either_file_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "net.cfg").write_bytes(cfg("[convolutional]\nfilters=2\nactivation=linear"))
    (tmp_path / "net.weights").write_bytes(weights(np.arange(10)))
    outputs: list[Graph] = [importers.load(tmp_path / name) for name in ("net.cfg", "net.weights", "")]
    assert [g.name for g in outputs] == ["net"] * 3
    assert not any(g.incomplete for g in outputs)
    (tmp_path / "net.weights").unlink()
    assert "--weights" in importers.load(tmp_path / "net.cfg").incomplete


TREE = "animal -1\nthing -1\ncat 0\ndog 0\npoodle 3\nbeagle 3\n"


def in_groups(x: Array) -> Array:
    """Softmax over each group of siblings in the tree, along the last axis."""
    powers = np.exp(x)
    return np.concatenate([p / p.sum(-1, keepdims=True) for p in np.split(powers, 3, -1)], -1)


@pytest.mark.parametrize("kind", ["softmax", "region"])
def test_softmax_tree(kind: str, tmp_path: Path) -> None:
    body = {
        "softmax": "[softmax]\ntree=data/small.tree\n",
        "region": "[region]\nanchors=1,1\nclasses=6\nnum=1\nsoftmax=1\ntree=data/small.tree\n",
    }[kind]
    x = random(1, 6, 1, 1) if kind == "softmax" else random(1, 11, 2, 3)
    (tmp_path / "net.cfg").write_bytes(cfg(body, *x.shape[1:]))
    (tmp_path / "net.weights").write_bytes(weights())
    with pytest.raises(UnsupportedError, match=r"tree of classes 'data/small\.tree' was not found"):
        importers.load(tmp_path / "net.cfg")
    (tmp_path / "small.tree").write_text(TREE, encoding="utf-8")
    outputs = evaluate(importers.load(tmp_path / "net.cfg"), {"data": x})
    if kind == "softmax":
        np.testing.assert_allclose(outputs["softmax_0"].reshape(6), in_groups(x.reshape(6)), rtol=1e-5)
        return
    numbers = x.reshape(11, 6).T
    p = in_groups(numbers[:, 5:])
    whole = np.stack([p[:, 0], p[:, 1], p[:, 0] * p[:, 2], p[:, 0] * p[:, 3]], 1)
    whole = np.concatenate([whole, whole[:, 3:4] * p[:, 4:]], 1)
    np.testing.assert_allclose(outputs["scores"][0], whole * sigmoid(numbers[:, 4:5]), rtol=1e-5)
    np.testing.assert_allclose(outputs["region_0"][0, 5:].reshape(6, 6).T, p, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "words"), [("a -1\nb 2\n", "does not stand before"), ("a\n", "lines are"), ("a -1\n", "1 classes")]
)
def test_invalid_trees(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "net.cfg").write_bytes(cfg("[softmax]\ntree=t\n", 6, 1, 1))
    (tmp_path / "net.weights").write_bytes(weights())
    (tmp_path / "t").write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedError, match=words):
        importers.load(tmp_path / "net.cfg")
