"""Fourier transforms and windows of ONNX as products with tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value


def _complex_product(node: OnnxNode, real: Value, imaginary: Value | None, table: Array) -> tuple[Value, Value]:
    """(real, imaginary) of values [..., n] times a complex table [n, m]."""
    dtype = real.type.dtype.numpy
    c, s = (node.constant(part.astype(dtype), stem) for stem, part in (("cosine", table.real), ("sine", table.imag)))
    a, b = node.add("MatMul", real, c), node.add("MatMul", real, s)
    if imaginary is None:
        return a, b
    d, e = node.add("MatMul", imaginary, s), node.add("MatMul", imaginary, c)
    return node.add("Sub", a, d), node.add("Add", b, e)


def _roots(n: int, m: int, sign: int) -> Array:
    """exp(sign 2 pi i j k / n) for j < n and k < m."""
    turns = np.outer(np.arange(n), np.arange(m)) % n
    return np.asarray(np.exp(sign * 2j * np.pi * turns / n))


def _part(node: OnnxNode, x: Value, i: int) -> Value:
    return node.add("Gather", x, node.constant(np.array(i, np.int64), "part"), axis=-1)


def _joined(node: OnnxNode, real: Value, imaginary: Value) -> Value:
    last = node.int_constant("last", [-1])
    return node.add("Concat", *(node.add("Unsqueeze", v, last) for v in (real, imaginary)), axis=-1)


def dft(node: OnnxNode) -> Sequence[Value]:
    """Along one axis: that axis moved to the end, multiplied by the roots of unity, moved back."""
    x, dims = node.input(0), node.dims_of(0)
    inverse, onesided = node.attributes.get("inverse", 0), node.attributes.get("onesided", 0)
    default = 1 if node.opset < 20 else -2
    axis = int(node.constant_input(2, "the axis").item()) if node.has(2) else node.attributes.get("axis", default)
    axis = axis + len(dims) if axis < 0 else axis
    n = int(node.constant_input(1, "dft_length").item()) if node.has(1) else 0
    if inverse and onesided:
        n = n or 2 * (dims[axis] - 1)
        return [_inverse_real(node, x, axis, n)]
    n = n or dims[axis]
    table = _roots(n, n // 2 + 1 if onesided else n, 1 if inverse else -1)[: dims[axis]]
    if inverse:
        table = table / n
    order = [i for i in range(len(dims) - 1) if i != axis] + [axis]
    used = min(n, dims[axis])

    def rows(part: int) -> Value:
        return _fitted(node, node.add("Transpose", _part(node, x, part), perm=order), used)

    imaginary = rows(1) if dims[-1] == 2 else None
    back = [int(i) for i in np.argsort(order)]
    results = _complex_product(node, rows(0), imaginary, table[:used])
    return [_joined(node, *(node.add("Transpose", v, perm=back) for v in results))]


def _fitted(node: OnnxNode, x: Value, n: int) -> Value:
    """The first ``n`` elements of the last axis."""
    if x.type.dims[-1] == n:
        return x
    return node.add("Slice", x, *(node.int_constant(s, [v]) for s, v in (("start", 0), ("end", n), ("axis", -1))))


def _inverse_real(node: OnnxNode, x: Value, axis: int, n: int) -> Value:
    """The real signal of n samples whose spectrum's first half is given."""
    dims = x.type.dims
    order = [i for i in range(len(dims) - 1) if i != axis] + [axis]
    real, imaginary = (node.add("Transpose", _part(node, x, i), perm=order) for i in (0, 1))
    count = min(dims[axis], n // 2 + 1)
    weight = np.full(count, 2.0)
    weight[0] = 1
    if n % 2 == 0 and count == n // 2 + 1:
        weight[-1] = 1
    table = _roots(n, n, 1)[:count] * weight[:, None] / n
    dtype = real.type.dtype.numpy
    c, s = (node.constant(v.astype(dtype), k) for k, v in (("cosine", table.real), ("sine", table.imag)))
    real, imaginary = _fitted(node, real, count), _fitted(node, imaginary, count)
    y = node.add("Sub", node.add("MatMul", real, c), node.add("MatMul", imaginary, s))
    y = node.add("Transpose", y, perm=[int(i) for i in np.argsort(order)])
    return node.add("Unsqueeze", y, node.int_constant("last", [-1]))


def stft(node: OnnxNode) -> Sequence[Value]:
    """Frames cut out by number, times a window, times the roots of unity."""
    x, dims = node.input(0), node.dims_of(0)
    step = int(node.constant_input(1, "frame_step").item())
    window = node.input(2) if node.has(2) else None
    if node.has(3):
        length = int(node.constant_input(3, "frame_length").item())
    elif window is not None:
        length = window.type.dims[0]
    else:
        raise RefusedError("neither a window nor a frame length is given")
    count = 1 + (dims[1] - length) // step
    frames = np.arange(count)[:, None] * step + np.arange(length)
    at = node.constant(frames, "frames")
    complex_input = len(dims) == 3 and dims[2] == 2
    parts = [_part(node, x, i) for i in range(2 if complex_input else 1)] if len(dims) == 3 else [x]
    cut = [node.add("Gather", p, at, axis=1) for p in parts]
    if window is not None:
        cut = [node.add("Mul", p, window) for p in cut]
    bins = length // 2 + 1 if node.attributes.get("onesided", 1) else length
    imaginary = cut[1] if complex_input else None
    return [_joined(node, *_complex_product(node, cut[0], imaginary, _roots(length, bins, -1)))]


def mel_weights(node: OnnxNode) -> Sequence[Value]:
    """Triangular filters, evenly spaced in mel (HTK's formula)."""
    what = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = (node.constant_input(i, name).item() for i, name in enumerate(what))
    spectrum = length // 2 + 1
    mels = 2595 * np.log10(1 + np.array([low, high]) / 700)
    step = (mels[1] - mels[0]) / (bins + 2)
    hertz = 700 * (np.power(10, (np.arange(bins + 2) * step + mels[0]) / 2595) - 1)
    edges = (((length + 1) * hertz) // rate).astype(np.int64)
    table = np.zeros((spectrum, bins))
    for i in range(bins):
        first, middle, last = edges[i : i + 3]
        if middle == first:
            table[middle, i] = 1
        else:
            at = np.arange(first, middle + 1)
            table[at, i] = (at - first) / (middle - first)
        if last > middle:
            at = np.arange(middle, last)
            table[at, i] = (last - at) / (last - middle)
    number = node.attributes.get("output_datatype", 1)
    return [node.constant(table.astype(node.element_type(number).numpy), "filters")]
