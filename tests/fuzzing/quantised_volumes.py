"""Random quantised operators on images of three spatial axes, and chains of many functions, for ONNX files."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fuzzing.quantised_onnx import OnnxNet, Shape, Tensor

LONGEST = 400
"""Functions of a chain; 130 were too many once."""

FUNCTIONS = ("Relu", "Tanh", "Sigmoid", "Neg", "LeakyRelu", "HardSwish", "Mul", "Add")


def volume(net: OnnxNet) -> Tensor:
    """A tensor [N, C, depth, height, width]."""
    volumes = [t for t in net.pool if len(t.shape) == 5]
    if volumes and net.chance(0.7):
        return net.pick(volumes[-3:])
    while True:
        shape = (net.pick((1, 1, 2)), net.pick((1, 2, 3, 4, 8)), *(net.pick((1, 2, 3, 4, 5, 6)) for _ in range(3)))
        if prod(shape) <= 1000:
            return net.fresh(shape)


def window(net: OnnxNet, x: Tensor) -> tuple[Shape, dict[str, Any], Shape]:
    """A kernel, its attributes, and the extents of the result."""
    kernel = tuple(net.pick((1, 2, 3)) for _ in range(3))
    strides = tuple(net.pick((1, 1, 2)) for _ in range(3))
    pads = [int(net.rng.integers(0, (k + 1) // 2 + 1)) if k > 1 else 0 for k in (*kernel, *kernel)]
    pads = [min(p, k - 1) for p, k in zip(pads, (*kernel, *kernel), strict=True)]
    full = [n + pads[i] + pads[i + 3] for i, n in enumerate(x.shape[2:])]
    if any(n < k for n, k in zip(full, kernel, strict=True)):
        kernel, strides, pads, full = (1, 1, 1), (1, 1, 1), [0] * 6, list(x.shape[2:])
    outs = tuple((n - k) // s + 1 for n, k, s in zip(full, kernel, strides, strict=True))
    return kernel, {"kernel_shape": kernel, "strides": strides, "pads": pads}, outs


def convolved(net: OnnxNet) -> None:
    """Conv and ConvTranspose of three spatial axes."""
    x = volume(net)
    kernel, attributes, sizes = window(net, x)
    outs, deep = net.pick((1, 2, 3, 4, 8)), x.shape[1]
    group = net.pick((1, 1, deep))
    outs = group * net.pick((1, 2)) if group > 1 else outs
    if net.qlinear or net.chance(0.7):
        w, scale, zero, scales = net.constants((outs, deep // group, *kernel), 0)
        y = net.sums((x.shape[0], outs, *sizes), x, scales, deep // group * prod(kernel))
        if net.qlinear:
            net.node("QLinearConv", [x.name, *x.grid, w, scale, zero, *y.grid], y.name, group=group, **attributes)
            net.pool.append(y)
            return
        weights = net.node("DequantizeLinear", [w, scale, zero], axis=0)
        net.store(net.activated(net.node("Conv", [net.real(x), weights], group=group, **attributes)), y)
        return
    strides = attributes["strides"]
    sizes = tuple((n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, kernel, strict=True))
    if prod(sizes) * outs * x.shape[0] <= 4000 and group == 1:
        w, scale, zero, scales = net.constants((deep, outs, *kernel), 1)
        weights = net.node("DequantizeLinear", [w, scale, zero], axis=1)
        y = net.sums((x.shape[0], outs, *sizes), x, scales, deep * prod(kernel))
        net.store(net.node("ConvTranspose", [net.real(x), weights], kernel_shape=kernel, strides=strides), y)


def pooled(net: OnnxNet) -> None:
    """Pooling of three spatial axes, of windows or of all."""
    x, type = volume(net), net.pick(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"))
    _, attributes, sizes = window(net, x)
    attributes, sizes = ({}, (1, 1, 1)) if type.startswith("Global") else (attributes, sizes)
    shape = (*x.shape[:2], *sizes)
    y = net.tensor(shape, x) if net.chance(0.5) else net.same(shape, x)
    net.store(net.node(type, [net.real(x)], **attributes), y)


def chained(net: OnnxNet) -> None:
    """Many functions of one tensor, one after the other."""
    x = net.any()
    value, y = net.real(x), net.tensor(x.shape, x, 0.02)
    for _ in range(int(net.rng.integers(2, LONGEST))):
        kind = net.pick(FUNCTIONS)
        numbers = [net.constant(np.array(net.pick((0.7, 1.3, -1.1)), np.float32))] if kind in ("Mul", "Add") else []
        value = net.node(kind, [value, *numbers])
    net.store(value, y)
