"""tmfiles written by hand: tables that point at each other, weights in one buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evaluate import evaluate
from small_models import tmfile
from tenon import frontends
from tenon.errors import FormatError, UnsupportedError
from tenon.frontends.source import ModelFile
from tenon.frontends.tmfile.load import load
from tenon.ir.graph import Array

X = np.random.default_rng(5).uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)


def run(type: int, parameters: Sequence[int | float], *weights: Array, x: Array = X) -> Array:
    (found,) = evaluate(frontends.load(tmfile(type, parameters, *weights, shape=x.shape)), {"data": x}).values()
    return found


def test_convolution_with_relu6() -> None:
    w = np.random.default_rng(1).uniform(-2, 2, (3, 4, 1, 1)).astype(np.float32)
    b = np.array([1, 2, -3], np.float32).reshape(1, 1, 1, 3)
    found = run(5, [1, 1, 2, 1, 1, 1, 4, 3, 1, 6, 0, 0, 0, 0], w, b)
    expected = np.einsum("fc,nchw->nfhw", w[:, :, 0, 0], X[:, :, ::2]) + b.reshape(1, 3, 1, 1)
    np.testing.assert_allclose(found, np.clip(expected, 0, 6), atol=1e-6)


def test_quantised_weights_become_real() -> None:
    w = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
    found = run(11, [4], w, x=X[:, :, 0, 0])
    np.testing.assert_allclose(found, X[:, :, 0, 0] @ ((w.astype(np.float32) - 3) * 0.5).T, atol=1e-5)


@pytest.mark.parametrize(("n", "kernel", "stride", "pad"), [(6, 3, 2, 0), (7, 3, 2, 1), (6, 2, 2, 0), (5, 3, 3, 1)])
def test_pooling_counts_like_caffe(n: int, kernel: int, stride: int, pad: int) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, n, n)).astype(np.float32)
    found = run(16, [0, kernel, kernel, stride, stride, 0, 1, pad, pad, pad, pad], x=x)
    count = -(-(n + 2 * pad - kernel) // stride) + 1
    count -= pad > 0 and (count - 1) * stride >= n + pad
    assert found.shape == (1, 2, count, count)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, 9), (pad, 9)), constant_values=-9)
    first = padded[:, :, (count - 1) * stride :, :kernel][:, :, :kernel]
    np.testing.assert_array_equal(found[:, :, -1, 0], first.max((2, 3)))


@pytest.mark.parametrize(
    ("type", "parameters", "result"),
    [
        (28, [1], np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        (15, [0, 0, 2, 3, 1], X.transpose(0, 2, 3, 1)),
        (9, [17, 0, 1.0, 2.0, 0.5], (1 + 0.5 * X) ** 2),
        (20, [0.25], np.where(X > 0, X, 0.25 * X)),
        (55, [2], X.reshape(1, 2, 2, 6, 5).swapaxes(1, 2).reshape(X.shape)),
        (51, [2.0], X.repeat(2, 2).repeat(2, 3)),
        (45, [2, 3, -2, -2, 1, 1], X.mean((2, 3), keepdims=True)),
        (10, [1, 3], X.reshape(1, -1)),
        (40, [0, 0, 0, 0, 1, 0, 0, 2, 0, 0.5], np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=0.5)),
        (59, [15], 1 / X),
    ],
)
def test_operators(type: int, parameters: list[int | float], result: Array) -> None:
    np.testing.assert_allclose(run(type, parameters), result, rtol=1e-5, atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"layer \(operator 200\): this operator is not supported"):
        frontends.load(tmfile(200, []))
    with pytest.raises(FormatError, match=r"version 2.0 \(it says 1.0.0\)"):
        load(ModelFile("old.tmfile", b"\1\0" + bytes(70)), {}, None, None)


@pytest.mark.parametrize(("number", "name"), [(34, "LSTM"), (35, "RNN"), (48, "GRU")])
def test_recurrent_layers_are_refused_by_name(number: int, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"\({name}\): recurrent layers are not supported: .* weights lie"):
        frontends.load(tmfile(number, [0], shape=X.shape))
