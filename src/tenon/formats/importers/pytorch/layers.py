"""ATen's layers: convolutions, products, norms, attention, pooling, resizing, recurrence.

Definitions: the documentation of torch.nn and torch.nn.functional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions.layers import adaptive_pool, group_norm, sampled
from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.decompositions.recurrent_layers import CUDNN, Direction, run
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.pytorch.node import PytorchNode
from tenon.network.graph.graph import Value
from tenon.network.ops.resize import Resize


# --------------------------------------------------------------------------------------- products
def convolution(node: PytorchNode) -> Value:
    """All of torch's convolutions; padding may be the word "same" or "valid"."""
    weights, bias = node.get("weight"), node.get("bias")
    rank = node.builder.rank(weights) - 2
    window: dict[str, Any] = {
        "strides": node.per_axis("stride", rank),
        "dilations": node.per_axis("dilation", rank),
        "group": node.integer("groups", 1),
    }
    padding = node.get("padding", 0)
    if isinstance(padding, str):
        window["auto_pad"] = "SAME_UPPER" if padding == "same" else "VALID"
    else:
        window["pads"] = node.per_axis("padding", rank, 0) * 2
    (x, single), type = _batched(node, rank), "Conv"
    if node.flag("transposed", "transpose" in node.name):
        type, window["output_padding"] = "ConvTranspose", node.per_axis("output_padding", rank, 0)
    return _unbatched(node, node.add(type, x, weights, bias, **window), single)


def linear(node: PytorchNode) -> Value:
    weights, bias = node.get("weight"), node.get("bias")
    if node.x_rank == 2 and node.builder.rank(weights) == 2:
        return node.add("Gemm", node.x, weights, bias, transB=1)
    y = node.add("MatMul", node.x, node.transpose_last(weights))
    return y if bias is None else node.add("Add", y, bias)


def affine_product(first: str, second: str) -> Callable[[PytorchNode], Value]:
    """beta * self + alpha * first @ second."""

    def import_node(node: PytorchNode) -> Value:
        y = node.add("MatMul", node.get(first), node.get(second))
        alpha, beta = node.get("alpha", 1), node.get("beta", 1)
        y = y if alpha == 1 else node.add("Mul", y, node.full(alpha))
        if not beta:
            return y
        return node.add("Add", node.x if beta == 1 else node.add("Mul", node.x, node.full(beta)), y)

    return import_node


def addmm(node: PytorchNode) -> Value:
    return node.add(
        "Gemm",
        node.get("mat1"),
        node.get("mat2"),
        node.get("self"),
        alpha=node.number("alpha", 1),
        beta=node.number("beta", 1),
    )


def product(node: PytorchNode) -> Value:
    return node.add("MatMul", node.x, node.get("mat2", node.get("other", node.get("vec", node.get("tensor")))))


def embedding(node: PytorchNode) -> Value:
    return node.add("Gather", node.get("weight"), node.cast(node.get("indices"), np.dtype(np.int64)), axis=0)


def attention(node: PytorchNode) -> Value:
    """Scaled dot-product attention of heads [..., L, E]; with grouped queries, consecutive query heads share keys and
    values."""
    query, key, values, mask = (node.get(name) for name in ("query", "key", "value", "attn_mask"))
    if node.number("dropout_p"):
        raise RefusedError("dropout is not supported", "call eval() on the module before exporting")
    if node.flag("enable_gqa"):
        times = node.builder.dims(query)[-3] // node.builder.dims(key)[-3]
        key, values = (_repeated(node, v, node.builder.rank(v) - 3, times) for v in (key, values))
    (*_, steps, width), (*_, lasts, _) = node.builder.dims(query), node.builder.dims(key)
    factor = node.get("scale", 1 / math.sqrt(width))
    scores = node.add("Mul", node.add("MatMul", query, node.transpose_last(key)), node.full(factor))
    lowest = float(np.finfo(node.numpy).min)
    if node.flag("is_causal"):
        scores = node.add("Add", scores, np.triu(np.full((steps, lasts), lowest, node.numpy), 1))
    elif mask is not None:
        if node.builder.type(mask).dtype == "bool":
            mask = node.add("Where", mask, node.full(0), node.full(lowest))
        scores = node.add("Add", scores, mask)
    return node.add("MatMul", node.add("Softmax", scores, axis=-1), values)


def _repeated(node: PytorchNode, x: Value, axis: int, times: int) -> Value:
    """Every slice of an axis repeated ``times`` times."""
    dims = list(node.builder.dims(x))
    index = np.repeat(np.arange(dims[axis]), times)
    return node.add("Gather", x, index, axis=axis)


# ------------------------------------------------------------------------------------------ norms
def batch_norm(node: PytorchNode) -> Outputs:
    ones = np.ones(node.dims[1], node.numpy)
    mean, variance = node.get("running_mean"), node.get("running_var")
    if mean is None or variance is None or node.flag("training"):
        raise RefusedError("statistics of the batch are not supported", "call eval() on the module before exporting")
    y = node.add(
        "BatchNormalization",
        node.x,
        node.get("weight", ones),
        node.get("bias", 0 * ones),
        mean,
        variance,
        epsilon=node.number("eps", 1e-5),
    )
    return y if node.name == "batch_norm" else [y]


def layer_norm(node: PytorchNode) -> Outputs:
    shape = tuple(int(d) for d in node.get("normalized_shape"))
    weight = node.get("weight", np.ones(shape, node.numpy))
    y = node.add(
        "LayerNormalization", node.x, weight, node.get("bias"), axis=-len(shape), epsilon=node.number("eps", 1e-5)
    )
    return y if node.name == "layer_norm" else [y]


def rms_norm(node: PytorchNode) -> Value:
    count = len(node.get("normalized_shape"))
    axes = node.ints(*range(-count, 0))
    mean = node.add("ReduceMean", node.square(node.x), axes, keepdims=1)
    root = node.add("Sqrt", node.add("Add", mean, node.full(node.get("eps", float(np.finfo(node.numpy).eps)))))
    y = node.add("Div", node.x, root)
    return y if node.get("weight") is None else node.add("Mul", y, node.get("weight"))


def groups_norm(node: PytorchNode) -> Outputs:
    groups = node.integer("num_groups", node.integer("group", 1))
    y = group_norm(node, node.x, groups, node.get("weight"), node.get("bias"), node.number("eps", 1e-5))
    return y if node.name == "group_norm" else [y]


def instance_norm(node: PytorchNode) -> Value:
    ones = np.ones(node.dims[1], node.numpy)
    weight, bias, epsilon = node.get("weight", ones), node.get("bias", 0 * ones), node.number("eps", 1e-5)
    if node.flag("use_input_stats", True):
        return node.add("InstanceNormalization", node.x, weight, bias, epsilon=epsilon)
    stored = node.get("running_mean"), node.get("running_var")
    return node.add("BatchNormalization", node.x, weight, bias, *stored, epsilon=epsilon)


# ---------------------------------------------------------------------------------------- pooling
def max_pool(node: PytorchNode) -> Outputs:
    """With the index of each maximum in its plane, where that is read."""
    rank = int(node.name.split("pool")[1][0])
    window = _window(node, rank) | {"dilations": node.per_axis("dilation", rank)}
    x, single = _batched(node, rank)
    if "indices" not in node.name:
        return _unbatched(node, node.add("MaxPool", x, **window), single)
    if 1 not in node.read:
        return [_unbatched(node, node.add("MaxPool", x, **window), single)]
    y, where = node.builder.adds("MaxPoolWithIndices", 2, x, **window)
    plane = math.prod(node.builder.dims(x)[2:])
    indices = node.add("Mod", where, np.array(plane, np.int64), fmod=0)
    return [_unbatched(node, y, single), _unbatched(node, indices, single)]


def average_pool(node: PytorchNode) -> Value:
    rank = int(node.name.split("pool")[1][0])
    window, divisor = _window(node, rank), node.get("divisor_override")
    x, single = _batched(node, rank)
    counted = int(node.flag("count_include_pad", True))
    if divisor:
        if window["ceil_mode"]:
            raise RefusedError("divisor_override with ceil_mode is not supported")
        mean = node.add("AveragePool", x, count_include_pad=1, **window)
        y = node.add("Mul", mean, node.full(math.prod(window["kernel_shape"]) / int(divisor)))
    else:
        y = node.add("AveragePool", x, count_include_pad=counted, **window)
    return _unbatched(node, y, single)


def _window(node: PytorchNode, rank: int) -> dict[str, Any]:
    kernel = node.per_axis("kernel_size", rank)
    return {
        "kernel_shape": kernel,
        "strides": node.per_axis("stride", rank) if node.get("stride") else kernel,
        "pads": node.per_axis("padding", rank, 0) * 2,
        "ceil_mode": int(node.flag("ceil_mode")),
    }


def _batched(node: PytorchNode, rank: int) -> tuple[Value, bool]:
    """``x`` with an axis for the batch, and whether it had none."""
    single = node.x_rank == rank + 1
    return (node.add("Unsqueeze", node.x, node.ints(0)) if single else node.x), single


def _unbatched(node: PytorchNode, y: Value, single: bool) -> Value:
    return node.add("Squeeze", y, node.ints(0)) if single else y


def adaptive(node: PytorchNode) -> Outputs:
    rank = int(node.name.split("pool")[1][0])
    x, single = _batched(node, rank)
    if 1 in node.read and "max" in node.name:
        raise RefusedError("indices of adaptive max pooling are not supported")
    y = _unbatched(node, adaptive_pool(node, x, node.shape[-rank:], average="avg" in node.name), single)
    return [y] if "max" in node.name else y


# --------------------------------------------------------------------------------------- resizing
def upsample(mode: str, nearest: str = "floor") -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        rank = node.x_rank - 2
        centre = "asymmetric" if mode == "nearest" else "half_pixel"
        if "exact" in node.name:
            centre = "half_pixel"
        if node.flag("align_corners"):
            centre = "align_corners"
        given = [node.get(name) for name in ("scales_d", "scales_h", "scales_w", "scales") if name in node.attributes]
        factors = given[0] if len(given) == 1 and isinstance(given[0], list) else given or node.get("scale_factors")
        options: dict[str, Any] = {
            "mode": mode,
            "coordinate_transformation_mode": centre,
            "nearest_mode": nearest,
            "antialias": int("_aa" in node.name),
            "cubic_coeff_a": -0.5 if "_aa" in node.name else -0.75,
        }
        if "_aa" in node.name and node.flag("align_corners"):
            raise RefusedError("a smoothed resize with align_corners is not supported")
        options["exclude_outside"] = options["antialias"]
        usable = factors and None not in factors and len(factors) == rank and centre != "align_corners"
        if not usable or tuple(int(n * f) for n, f in zip(node.dims[2:], factors, strict=True)) != tuple(
            node.shape[2:]
        ):
            return node.add("Resize", node.x, None, None, node.ints(*node.shape), **options)
        if mode == "linear" and not options["antialias"]:  # an axis that keeps its extent is copied
            factors = [1 if a == b else f for f, a, b in zip(factors, node.dims[2:], node.shape[2:], strict=True)]
        if mode == "nearest" and node.dims[2:] == tuple(node.shape[2:]):  # which an ONNX Resize copies
            return _sampled_in_place(node, Resize(**options), factors)
        return node.add("Resize", node.x, None, np.array([1, 1, *factors], np.float32), None, **options)

    return import_node


def _sampled_in_place(node: PytorchNode, resize: Resize, factors: Sequence[float]) -> Value:
    """Nearest neighbours by factors that change no extent."""
    x = node.x
    for axis, factor in enumerate(factors, 2):
        if factor != 1:
            at = resize.taps(node.dims[axis], node.dims[axis], factor, (0.0, 1.0)).at[:, 0]
            x = node.add("Gather", x, node.constant(at, "positions"), axis=axis)
    return x


def grid_sample(node: PytorchNode) -> Value:
    mode = ("linear", "nearest", "cubic")[node.integer("interpolation_mode")]
    padding = ("zeros", "border", "reflection")[node.integer("padding_mode")]
    return sampled(node, node.x, node.get("grid"), mode, padding, corners=node.flag("align_corners"))


def col2im(node: PytorchNode) -> Value:
    x, single = _batched(node, 1)
    size, kernel = node.per_axis("output_size", 2), node.per_axis("kernel_size", 2)
    window: dict[str, Any] = {
        "strides": node.per_axis("stride", 2),
        "dilations": node.per_axis("dilation", 2),
        "pads": node.per_axis("padding", 2, 0) * 2,
    }
    y = decomposed(node.builder, "Col2Im", [x, node.ints(*size), node.ints(*kernel)], **window)[0]
    return _unbatched(node, y, single)


def pixel_unshuffle(node: PytorchNode) -> Value:
    *front, channels, height, width = node.dims
    r = node.integer("downscale_factor", 1)
    rank = len(front)
    apart = node.reshape(node.x, *front, channels, height // r, r, width // r, r)
    order = (*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3)
    return node.reshape(node.add("Transpose", apart, perm=order), *node.shape)


# -------------------------------------------------------------------------------------- recurrence
def recurrent(kind: str, activation: str = "") -> Callable[[PytorchNode], Sequence[Value]]:
    """torch's LSTM, GRU and RNN: x [T, N, I] or batch first, all weights of a layer and direction in a row."""

    def import_node(node: PytorchNode) -> Sequence[Value]:
        if "batch_sizes" in node.attributes:
            raise RefusedError("packed sequences are not supported", "export the module for padded ones")
        given, swap = node.get("hx"), node.flag("batch_first") and node.x_rank == 3
        states = given if isinstance(given, list) else [given]
        sides, biases = 2 if node.flag("bidirectional") else 1, node.flag("has_biases", True)
        weights = node.get("params")
        each = len(weights) // (node.integer("num_layers", 1) * sides)
        if each != (4 if biases else 2):
            raise RefusedError("projections are not supported")
        zeros = np.zeros(node.builder.dims(weights[0])[0], np.float32)
        all_of = [_direction(weights[i : i + each], zeros) for i in range(0, len(weights), each)]
        layers = [all_of[i : i + sides] for i in range(0, len(all_of), sides)]
        single = node.x_rank == 2
        x = node.add("Transpose", node.x, perm=(1, 0, 2)) if swap else node.x
        if single:
            x = node.add("Unsqueeze", x, node.ints(1))
            states = [node.add("Unsqueeze", state, node.ints(1)) for state in states]
        options = {"activations": (activation,) * sides} if activation else {}
        result = run(node, kind, x, layers, CUDNN[kind], states, **options)
        y = node.add("Transpose", result.outputs, perm=(1, 0, 2)) if swap else result.outputs
        results = [y, *result.states]
        return [node.add("Squeeze", r, node.ints(1)) for r in results] if single else results

    return import_node


def _direction(weights: Sequence[Value], zeros: Any) -> Direction:
    w, r, *biases = weights
    return Direction(w, r, *(biases or (zeros, zeros)))
