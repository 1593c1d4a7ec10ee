"""MXNet's layers: convolutions, poolings, activations, upsampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import full_windows
from tenon.formats.importers.mxnet.node import MxnetNode
from tenon.network.graph.graph import Value


def _window(node: MxnetNode) -> dict[str, Any]:
    kernel = node.integers("kernel")
    ones = [1] * len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": node.integers("stride", ones),
        "dilations": node.integers("dilate", ones),
        "pads": node.integers("pad", [0] * len(kernel)) * 2,
        "group": max(1, node.integer("num_group", 1)),
    }


def _biased(node: MxnetNode, outputs: int) -> Value | None:
    return None if node.flag("no_bias") or len(node.names) < 3 else node.parameter(2, outputs)


def convolution(node: MxnetNode) -> Value:
    if node.text("layout", "None") not in ("None", "NCHW", "NCW", "NCDHW"):
        raise RefusedError(f"the layout {node.text('layout')} is not supported")
    window, outputs = _window(node), node.integer("num_filter", 1)
    weights = node.parameter(1, outputs, node.dims[1] // window["group"], *window["kernel_shape"])
    return node.add("Conv", node.x, weights, _biased(node, outputs), **window)


def deconvolution(node: MxnetNode) -> Value:
    window, outputs = _window(node), node.integer("num_filter", 1)
    if node.integers("target_shape"):
        window["output_shape"] = node.integers("target_shape")
        window["auto_pad"] = "SAME_UPPER"
        del window["pads"]
    else:
        window["output_padding"] = node.integers("adj", [0] * len(window["kernel_shape"]))
    weights = node.parameter(1, node.dims[1], outputs // window["group"], *window["kernel_shape"])
    bias = None if node.flag("no_bias", True) or len(node.names) < 3 else node.parameter(2, outputs)
    return node.add("ConvTranspose", node.x, weights, bias, **window)


def fully_connected(node: MxnetNode) -> Value:
    outputs, flatten = node.integer("num_hidden", 1), node.flag("flatten", True)
    x = node.as_matrix(node.x, 1 if flatten else len(node.dims) - 1)
    weights = node.parameter(1, outputs, node.builder.dims(x)[1])
    y = node.add("Gemm", x, weights, _biased(node, outputs), transB=1)
    return y if flatten else node.reshape(y, *node.dims[:-1], outputs)


def batch_norm(node: MxnetNode) -> Value:
    """Gamma counts as 1 unless fix_gamma is off."""
    rank = len(node.dims)
    axis = node.axis(node.integer("axis", 1), rank)
    channels, order = node.dims[axis], [0, axis, *(i for i in range(1, rank) if i != axis)]
    gamma, beta, mean, variance = (node.parameter(i, channels) for i in range(1, 5))
    scale = node.value(np.ones(channels, np.float32)) if node.flag("fix_gamma", True) else gamma
    x = node.x if axis == 1 else node.add("Transpose", node.x, perm=order)
    y = node.add("BatchNormalization", x, scale, beta, mean, variance, epsilon=node.number("eps", 1e-3))
    return y if axis == 1 else node.add("Transpose", y, perm=np.argsort(order))


def pooling(node: MxnetNode) -> Value:
    kind = node.text("pool_type", "max")
    if kind not in ("max", "avg", "sum", "lp"):
        raise RefusedError(f"pool_type {kind} is not supported")
    if node.flag("global_pool"):
        if kind in ("max", "avg"):
            return node.add("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", node.x)
        window: dict[str, Any] = {"kernel_shape": list(node.dims[2:])}
    else:
        window = _pooling_window(node)
    if kind == "max":
        return node.add("MaxPool", node.x, **window)
    if kind == "avg":
        if node.text("pooling_convention") == "full" and not node.flag(
            "global_pool"
        ):  # what is past the pads is not counted
            window |= {"pads": _window(node)["pads"], "ceil_mode": 1}
        return node.add("AveragePool", node.x, count_include_pad=int(node.flag("count_include_pad", True)), **window)
    p, size = node.number("p_value", 2.0) if kind == "lp" else 1.0, float(np.prod(window["kernel_shape"]))
    x = node.add("Pow", node.add("Abs", node.x), p) if kind == "lp" else node.x
    total = node.add("Mul", node.add("AveragePool", x, count_include_pad=1, **window), size)
    return node.add("Pow", total, 1 / (p or 1.0)) if kind == "lp" else total


def _pooling_window(node: MxnetNode) -> dict[str, Any]:
    window = _window(node)
    del window["group"], window["dilations"]
    convention = node.text("pooling_convention", "valid")
    if convention == "full":
        window["pads"] = full_windows(node.dims[2:], window["kernel_shape"], window["strides"], window["pads"])
    elif convention == "same":
        del window["pads"]
        window["auto_pad"] = "SAME_UPPER"
    return window


_ACTIVATIONS = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softrelu": "Softplus",
    "softsign": "Softsign",
    "mish": "Mish",
}


def activation(node: MxnetNode) -> Value:
    kind = node.text("act_type", "relu")
    if kind not in _ACTIVATIONS:
        raise RefusedError(f"act_type {kind} is not supported")
    return node.add(_ACTIVATIONS[kind], node.x)


def leaky(node: MxnetNode) -> Value:
    kind, slope = node.text("act_type", "leaky"), node.number("slope", 0.25)
    if kind == "prelu":
        return node.add("PRelu", node.x, node.channels(node.parameter(1, node.dims[1]), node.x))
    if kind == "rrelu":
        slope = (node.number("lower_bound", 0.125) + node.number("upper_bound", 0.334)) / 2
    if kind in ("leaky", "rrelu"):
        return node.add("LeakyRelu", node.x, alpha=slope)
    if kind in ("elu", "selu", "gelu"):
        return node.add("Elu", node.x, alpha=slope) if kind == "elu" else node.add(kind.capitalize(), node.x)
    raise RefusedError(f"act_type {kind} is not supported")


def crop(node: MxnetNode) -> Value:
    """To h_w or to the size of the second input, from an offset or the middle."""
    high, wide = node.builder.dims(node.parameter(1))[2:] if len(node.names) > 1 else node.integers("h_w")
    h, w = node.dims[2:]
    top, left = ((h - high) // 2, (w - wide) // 2) if node.flag("center_crop") else node.integers("offset", (0, 0))
    return node.slice(node.x, [top, left], [top + high, left + wide], [2, 3])


def upsampling(node: MxnetNode) -> Value:
    """Nearest neighbours, of several inputs to one size; bilinear upsampling is a deconvolution with stored weights."""
    factor, (h, w) = node.integer("scale", 1), node.dims[2:]
    if node.text("sample_type", "nearest") == "nearest":
        parts = [node.resize(v, h * factor, w * factor, "nearest", "asymmetric") for v in node.values]
        if len(parts) == 1 or node.text("multi_input_mode", "concat") == "sum":
            return node.fold("Add", parts)
        return node.add("Concat", *parts, axis=1)
    size, channels = 2 * factor - factor % 2, node.dims[1]
    pad = (factor - 1 + 1) // 2 if factor > 1 else 0
    return node.add(
        "ConvTranspose",
        node.x,
        node.parameter(1, channels, 1, size, size),
        group=channels,
        kernel_shape=(size, size),
        strides=(factor, factor),
        pads=(pad,) * 4,
    )


def bilinear(node: MxnetNode) -> Value:
    h, w = node.dims[2:]
    out = (node.integer("height"), node.integer("width"))
    if node.attributes.get("scale_height", "None") != "None":
        out = (int(h * node.number("scale_height")), int(w * node.number("scale_width")))
    return node.resize(node.x, *out, "linear", "align_corners" if node.flag("align_corners", True) else "half_pixel")
