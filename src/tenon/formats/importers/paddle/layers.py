"""Paddle's layers: convolutions, poolings, normalisations, resampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.formats.decompositions.layers import adaptive_pool, group_norm
from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import PaddleNode
from tenon.network.graph.graph import Value


def _padding(node: PaddleNode, window: dict[str, Any]) -> dict[str, Any]:
    algorithm, pads = node.text("padding_algorithm", "EXPLICIT"), node.integers("paddings")
    if algorithm in ("SAME", "VALID"):
        return window | {"auto_pad": "SAME_UPPER" if algorithm == "SAME" else "VALID"}
    spatial = len(window["strides"])
    if len(pads) == 2 * spatial:  # top, bottom, left, right
        return window | {"pads": [*pads[::2], *pads[1::2]]}
    if len(pads) != spatial:
        raise RefusedError(f"paddings {pads} do not fit {spatial} axes")
    return window | {"pads": pads * 2}


def _convolution_window(node: PaddleNode) -> dict[str, Any]:
    """Padding to the same size goes with windows that are not dilated."""
    dilations = node.integers("dilations")
    if node.text("padding_algorithm") == "SAME":
        dilations = [1] * len(dilations)
    return _padding(
        node, {"strides": node.integers("strides"), "dilations": dilations, "group": max(1, node.integer("groups", 1))}
    )


def convolution(node: PaddleNode) -> Value:
    x = node.add(
        "Conv", node.slot("Input"), node.slot("Filter"), node.optional_slot("Bias"), **_convolution_window(node)
    )
    return node.add("Relu", x) if node.integer("fuse_relu") or node.text("fuse_activation") == "relu" else x


def deconvolution(node: PaddleNode) -> Value:
    """Padding to the same size is that of a convolution of the input."""
    window, size = _convolution_window(node), node.integers("output_size")
    x, kernel = node.slot("Input"), node.builder.dims(node.slot("Filter"))[2:]
    if window.pop("auto_pad", "") == "SAME_UPPER":
        each = list(zip(node.builder.dims(x)[2:], kernel, window["strides"], strict=True))
        total = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in each]
        window["pads"] = [*(p // 2 for p in total), *(p - p // 2 for p in total)]
    if size:
        window["output_shape"] = size
        window.setdefault("auto_pad", "NOTSET")
    elif node.integers("output_padding"):
        window["output_padding"] = node.integers("output_padding")
    return node.add("ConvTranspose", x, node.slot("Filter"), node.optional_slot("Bias"), **window)


def batch_norm(node: PaddleNode) -> Value:
    parameters = [node.slot(slot) for slot in ("Scale", "Bias", "Mean", "Variance")]
    return node.add("BatchNormalization", node.x, *parameters, epsilon=node.number("epsilon", 1e-5))


def layer_norm(node: PaddleNode) -> Value:
    axis, dims = node.integer("begin_norm_axis", 1), node.dims
    shape = dims[axis:]
    scale, bias = (
        (None if v is None else node.reshape(v, *shape))
        for v in (node.optional_slot("Scale"), node.optional_slot("Bias"))
    )
    scale = scale if scale is not None else node.value(np.ones(shape, np.float32))
    return node.add("LayerNormalization", node.x, scale, bias, axis=axis, epsilon=node.number("epsilon", 1e-5))


def instance_norm(node: PaddleNode) -> Value:
    ones = np.ones(node.dims[1], np.float32)
    scale, bias = node.optional_slot("Scale"), node.optional_slot("Bias")
    return node.add(
        "InstanceNormalization",
        node.x,
        scale if scale is not None else ones,
        bias if bias is not None else 0 * ones,
        epsilon=node.number("epsilon", 1e-5),
    )


def normalised_groups(node: PaddleNode) -> Value:
    return group_norm(
        node,
        node.x,
        node.integer("groups", 1),
        node.optional_slot("Scale"),
        node.optional_slot("Bias"),
        node.number("epsilon", 1e-5),
    )


def pooling(node: PaddleNode) -> Value:
    average, dims = node.text("pooling_type", "max") == "avg", node.dims
    size = node.integers("ksize")
    if node.integer("global_pooling"):
        return node.add("GlobalAveragePool" if average else "GlobalMaxPool", node.x)
    type = "AveragePool" if average else "MaxPool"
    if node.integer("adaptive"):
        return adaptive_pool(
            node, node.x, [n if k < 0 else k for n, k in zip(dims[2:], size, strict=True)], average=average
        )
    options = _padding(node, {"strides": node.integers("strides"), "kernel_shape": size})
    include = {"count_include_pad": int(not node.integer("exclusive", 1))} if average else {}
    return node.add(type, node.x, **options, ceil_mode=node.integer("ceil_mode"), **include)


def prelu(node: PaddleNode) -> Value:
    slope = node.slot("Alpha")
    return node.add(
        "PRelu", node.x, node.channels(node.reshape(slope, -1), node.x) if node.text("mode") == "channel" else slope
    )


def interpolate(node: PaddleNode) -> Value:
    """align_mode 1 counts from corners, 0 from pixel centres; nearest neighbours always count from corners."""
    dims = node.dims
    sizes = node.vector("SizeTensor", "OutSize")
    out = [node.integer(f"out_{axis}") for axis in "dhw"[5 - len(dims) :]]
    exact: np.ndarray[Any, Any] | None = None  # factors that the sizes do not say
    scales = node.attributes.get("scale", 0.0)
    factors = [float(s) for s in scales] if isinstance(scales, list | np.ndarray) else [float(scales)]
    if sizes is not None and sizes.constant:
        out = [int(n) for n in sizes.array]
    elif sizes is not None or (node.optional_slot("Scale") is not None and not node.slot("Scale").constant):
        raise RefusedError("a size computed at run time is not supported")
    else:
        given = node.optional_slot("Scale")
        factors = [float(s) for s in given.array.ravel()] if given is not None else factors
        if factors and factors[0] > 0:
            factors = factors * len(out) if len(factors) == 1 else factors
            out = [int(n * f) for n, f in zip(dims[2:], factors, strict=True)]
            if any(abs(n * f - o) > 1e-4 for n, f, o in zip(dims[2:], factors, out, strict=True)):
                exact = np.array([1, 1, *factors], np.float32)
    mode = "nearest" if node.type.startswith("nearest") else "cubic" if node.type.startswith("bicubic") else "linear"
    if node.integer("align_corners", 1):
        centre = "align_corners"
    elif mode == "cubic":
        centre = "half_pixel"
    else:
        centre = "asymmetric" if mode == "nearest" or node.integer("align_mode", 1) else "half_pixel"
    if not all(0 < n < 1 << 16 for n in out):
        raise RefusedError(f"{list(dims)} cannot be resized to {out}")
    rounding = "round_prefer_ceil" if centre == "align_corners" else "floor"
    sizes = node.ints(*dims[:2], *out) if exact is None else None
    return node.add(
        "Resize", node.x, None, exact, sizes, mode=mode, coordinate_transformation_mode=centre, nearest_mode=rounding
    )


def fold(node: PaddleNode) -> Value:
    """Overlapping windows summed (col2im)."""
    pads = node.integers("paddings")
    window: dict[str, Any] = {
        "strides": node.integers("strides"),
        "dilations": node.integers("dilations"),
        "pads": pads * 2 if len(pads) == 2 else pads,
    }
    size, kernel = node.integers("output_sizes"), node.integers("kernel_sizes")
    return decomposed(node.builder, "Col2Im", [node.x, node.ints(*size), node.ints(*kernel)], **window)[0]


def dropout(node: PaddleNode) -> Value:
    """Dropout of old programs, which scale at inference instead of in training."""
    downgrade = node.text("dropout_implementation", "downgrade_in_infer") == "downgrade_in_infer"
    return node.add("Mul", node.x, 1 - node.number("dropout_prob", 0.5)) if downgrade else node.x
