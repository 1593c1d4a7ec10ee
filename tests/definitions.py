"""NumPy definitions of layers, shared by the tests of several formats."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Array


def conv2d(x: Array, w: Array) -> Array:
    """A plain convolution of one image by w [outputs, inputs, k, k]."""
    k = w.shape[2]
    h, wide = x.shape[2] - k + 1, x.shape[3] - k + 1
    out = np.zeros((1, len(w), h, wide), np.float32)
    for i, j in np.ndindex(k, k):
        out[0] += np.tensordot(w[:, :, i, j], x[0, :, i : i + h, j : j + wide], 1)
    return out


def conv_transpose2d(x: Array, w: Array, stride: int) -> Array:
    """A transposed convolution by w [inputs, outputs, k, k]."""
    k = w.shape[2]
    out = np.zeros((1, w.shape[1], (x.shape[2] - 1) * stride + k, (x.shape[3] - 1) * stride + k), np.float32)
    for i, j in np.ndindex(*x.shape[2:]):
        part = np.tensordot(x[0, :, i, j], w, 1)
        out[0, :, i * stride : i * stride + k, j * stride : j * stride + k] += part
    return out
