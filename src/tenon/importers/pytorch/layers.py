"""ATen's layers: convolutions, products, norms, attention, pooling, resizing, recurrence.

Definitions: the documentation of torch.nn and torch.nn.functional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.decompositions.layers import adaptive_pool, group_norm, sampled
from tenon.decompositions.onnx_operator import spelled
from tenon.decompositions.recurrent_layers import CUDNN, Direction, run
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.pytorch.context import Context
from tenon.ir.graph import Value


# --------------------------------------------------------------------------------------- products
def convolution(c: Context) -> Value:
    """All of torch's convolutions; padding may be the word "same" or "valid"."""
    weights, bias = c.get("weight"), c.get("bias")
    rank = len(c.builder.dims(weights)) - 2
    window: dict[str, Any] = {
        "strides": c.per_axis("stride", rank),
        "dilations": c.per_axis("dilation", rank),
        "group": c.integer("groups", 1),
    }
    padding = c.get("padding", 0)
    if isinstance(padding, str):
        window["auto_pad"] = "SAME_UPPER" if padding == "same" else "VALID"
    else:
        window["pads"] = c.per_axis("padding", rank, 0) * 2
    (x, single), type = _batched(c, rank), "Conv"
    if c.flag("transposed", "transpose" in c.name):
        type, window["output_padding"] = "ConvTranspose", c.per_axis("output_padding", rank, 0)
    return _unbatched(c, c.add(type, x, weights, bias, **window), single)


def linear(c: Context) -> Value:
    weights, bias = c.get("weight"), c.get("bias")
    if len(c.dims) == 2 and len(c.builder.dims(weights)) == 2:
        return c.add("Gemm", c.x, weights, bias, transB=1)
    y = c.add("MatMul", c.x, c.swapped(weights))
    return y if bias is None else c.add("Add", y, bias)


def affine_product(first: str, second: str) -> Callable[[Context], Value]:
    """beta * self + alpha * first @ second."""

    def made(c: Context) -> Value:
        y = c.add("MatMul", c.get(first), c.get(second))
        alpha, beta = c.get("alpha", 1), c.get("beta", 1)
        y = y if alpha == 1 else c.add("Mul", y, c.full(alpha))
        if not beta:
            return y
        return c.add("Add", c.x if beta == 1 else c.add("Mul", c.x, c.full(beta)), y)

    return made


def addmm(c: Context) -> Value:
    return c.add(
        "Gemm", c.get("mat1"), c.get("mat2"), c.get("self"), alpha=c.number("alpha", 1), beta=c.number("beta", 1)
    )


def product(c: Context) -> Value:
    return c.add("MatMul", c.x, c.get("mat2", c.get("other", c.get("vec", c.get("tensor")))))


def embedding(c: Context) -> Value:
    return c.add("Gather", c.get("weight"), c.cast(c.get("indices"), np.dtype(np.int64)), axis=0)


def attention(c: Context) -> Value:
    """Of heads [..., L, E]; grouped queries share keys and values in turns."""
    query, key, values, mask = (c.get(name) for name in ("query", "key", "value", "attn_mask"))
    if c.number("dropout_p"):
        raise RefusedError("dropout is not supported", "call eval() on the module before exporting")
    if c.flag("enable_gqa"):
        times = c.builder.dims(query)[-3] // c.builder.dims(key)[-3]
        key, values = (_repeated(c, v, len(c.builder.dims(v)) - 3, times) for v in (key, values))
    (*_, steps, width), (*_, lasts, _) = c.builder.dims(query), c.builder.dims(key)
    factor = c.get("scale", 1 / math.sqrt(width))
    scores = c.add("Mul", c.add("MatMul", query, c.swapped(key)), c.full(factor))
    lowest = float(np.finfo(c.numpy).min)
    if c.flag("is_causal"):
        scores = c.add("Add", scores, np.triu(np.full((steps, lasts), lowest, c.numpy), 1))
    elif mask is not None:
        if c.builder.type(mask).dtype == "bool":
            mask = c.add("Where", mask, c.full(0), c.full(lowest))
        scores = c.add("Add", scores, mask)
    return c.add("MatMul", c.add("Softmax", scores, axis=-1), values)


def _repeated(c: Context, x: Value, axis: int, times: int) -> Value:
    """Every slice of an axis ``times`` times."""
    dims = list(c.builder.dims(x))
    index = np.repeat(np.arange(dims[axis]), times)
    return c.add("Gather", x, index, axis=axis)


# ------------------------------------------------------------------------------------------ norms
def batch_norm(c: Context) -> Made:
    ones = np.ones(c.dims[1], c.numpy)
    mean, variance = c.get("running_mean"), c.get("running_var")
    if mean is None or variance is None or c.flag("training"):
        raise RefusedError("statistics of the batch are not supported", "call eval() on the module before exporting")
    y = c.add(
        "BatchNormalization",
        c.x,
        c.get("weight", ones),
        c.get("bias", 0 * ones),
        mean,
        variance,
        epsilon=c.number("eps", 1e-5),
    )
    return y if c.name == "batch_norm" else [y]


def layer_norm(c: Context) -> Made:
    shape = tuple(int(d) for d in c.get("normalized_shape"))
    weight = c.get("weight", np.ones(shape, c.numpy))
    y = c.add("LayerNormalization", c.x, weight, c.get("bias"), axis=-len(shape), epsilon=c.number("eps", 1e-5))
    return y if c.name == "layer_norm" else [y]


def rms_norm(c: Context) -> Value:
    count = len(c.get("normalized_shape"))
    axes = c.ints(*range(-count, 0))
    mean = c.add("ReduceMean", c.square(c.x), axes, keepdims=1)
    root = c.add("Sqrt", c.add("Add", mean, c.full(c.get("eps", float(np.finfo(c.numpy).eps)))))
    y = c.add("Div", c.x, root)
    return y if c.get("weight") is None else c.add("Mul", y, c.get("weight"))


def groups_norm(c: Context) -> Made:
    groups = c.integer("num_groups", c.integer("group", 1))
    y = group_norm(c, c.x, groups, c.get("weight"), c.get("bias"), c.number("eps", 1e-5))
    return y if c.name == "group_norm" else [y]


def instance_norm(c: Context) -> Value:
    ones = np.ones(c.dims[1], c.numpy)
    weight, bias, epsilon = c.get("weight", ones), c.get("bias", 0 * ones), c.number("eps", 1e-5)
    if c.flag("use_input_stats", True):
        return c.add("InstanceNormalization", c.x, weight, bias, epsilon=epsilon)
    stored = c.get("running_mean"), c.get("running_var")
    return c.add("BatchNormalization", c.x, weight, bias, *stored, epsilon=epsilon)


# ---------------------------------------------------------------------------------------- pooling
def max_pool(c: Context) -> Made:
    """With the place of each maximum in its plane, where that is read."""
    rank = int(c.name.split("pool")[1][0])
    window = _window(c, rank) | {"dilations": c.per_axis("dilation", rank)}
    x, single = _batched(c, rank)
    if "indices" not in c.name:
        return _unbatched(c, c.add("MaxPool", x, **window), single)
    if 1 not in c.read:
        return [_unbatched(c, c.add("MaxPool", x, **window), single)]
    y, where = c.builder.adds("MaxPoolWithIndices", 2, x, **window)
    plane = math.prod(c.builder.dims(x)[2:])
    places = c.add("Mod", where, np.array(plane, np.int64), fmod=0)
    return [_unbatched(c, y, single), _unbatched(c, places, single)]


def average_pool(c: Context) -> Value:
    rank = int(c.name.split("pool")[1][0])
    window, divisor = _window(c, rank), c.get("divisor_override")
    x, single = _batched(c, rank)
    counted = int(c.flag("count_include_pad", True))
    if divisor:
        if window["ceil_mode"]:
            raise RefusedError("divisor_override with ceil_mode is not supported")
        mean = c.add("AveragePool", x, count_include_pad=1, **window)
        y = c.add("Mul", mean, c.full(math.prod(window["kernel_shape"]) / int(divisor)))
    else:
        y = c.add("AveragePool", x, count_include_pad=counted, **window)
    return _unbatched(c, y, single)


def _window(c: Context, rank: int) -> dict[str, Any]:
    kernel = c.per_axis("kernel_size", rank)
    return {
        "kernel_shape": kernel,
        "strides": c.per_axis("stride", rank) if c.get("stride") else kernel,
        "pads": c.per_axis("padding", rank, 0) * 2,
        "ceil_mode": int(c.flag("ceil_mode")),
    }


def _batched(c: Context, rank: int) -> tuple[Value, bool]:
    """``x`` with an axis for the batch, and whether it had none."""
    single = len(c.dims) == rank + 1
    return (c.add("Unsqueeze", c.x, c.ints(0)) if single else c.x), single


def _unbatched(c: Context, y: Value, single: bool) -> Value:
    return c.add("Squeeze", y, c.ints(0)) if single else y


def adaptive(c: Context) -> Made:
    rank = int(c.name.split("pool")[1][0])
    x, single = _batched(c, rank)
    if 1 in c.read and "max" in c.name:
        raise RefusedError("the places of adaptive maxima are not supported")
    y = _unbatched(c, adaptive_pool(c, x, c.shape[-rank:], average="avg" in c.name), single)
    return [y] if "max" in c.name else y


# --------------------------------------------------------------------------------------- resizing
def upsample(mode: str, nearest: str = "floor") -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        rank = len(c.dims) - 2
        centre = "asymmetric" if mode == "nearest" else "half_pixel"
        if "exact" in c.name:
            centre = "half_pixel"
        if c.flag("align_corners"):
            centre = "align_corners"
        given = [c.get(name) for name in ("scales_d", "scales_h", "scales_w", "scales") if name in c.arguments]
        factors = given[0] if len(given) == 1 and isinstance(given[0], list) else given or c.get("scale_factors")
        options = {
            "mode": mode,
            "coordinate_transformation_mode": centre,
            "nearest_mode": nearest,
            "antialias": int("_aa" in c.name),
            "cubic_coeff_a": -0.5 if "_aa" in c.name else -0.75,
        }
        if "_aa" in c.name and c.flag("align_corners"):
            raise RefusedError("a smoothed resize with align_corners is not supported")
        options["exclude_outside"] = options["antialias"]
        usable = factors and None not in factors and len(factors) == rank and centre != "align_corners"
        if not usable or tuple(int(n * f) for n, f in zip(c.dims[2:], factors, strict=True)) != tuple(c.shape[2:]):
            return c.add("Resize", c.x, None, None, c.ints(*c.shape), **options)
        return c.add("Resize", c.x, None, np.array([1, 1, *factors], np.float32), None, **options)

    return made


def grid_sample(c: Context) -> Value:
    mode = ("linear", "nearest", "cubic")[c.integer("interpolation_mode")]
    padding = ("zeros", "border", "reflection")[c.integer("padding_mode")]
    return sampled(c, c.x, c.get("grid"), mode, padding, corners=c.flag("align_corners"))


def col2im(c: Context) -> Value:
    x, single = _batched(c, 1)
    size, kernel = c.per_axis("output_size", 2), c.per_axis("kernel_size", 2)
    window: dict[str, Any] = {
        "strides": c.per_axis("stride", 2),
        "dilations": c.per_axis("dilation", 2),
        "pads": c.per_axis("padding", 2, 0) * 2,
    }
    y = spelled(c.builder, "Col2Im", [x, c.ints(*size), c.ints(*kernel)], **window)[0]
    return _unbatched(c, y, single)


def pixel_unshuffle(c: Context) -> Value:
    *front, channels, height, width = c.dims
    r = c.integer("downscale_factor", 1)
    rank = len(front)
    apart = c.reshape(c.x, *front, channels, height // r, r, width // r, r)
    order = (*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3)
    return c.reshape(c.add("Transpose", apart, perm=order), *c.shape)


# -------------------------------------------------------------------------------------- recurrence
def recurrent(kind: str, activation: str = "") -> Callable[[Context], Sequence[Value]]:
    """torch's LSTM, GRU and RNN: x [T, N, I] or batch first, all weights of a layer and direction in a row."""

    def made(c: Context) -> Sequence[Value]:
        if "batch_sizes" in c.arguments:
            raise RefusedError("packed sequences are not supported", "export the module for padded ones")
        given, swap = c.get("hx"), c.flag("batch_first") and len(c.dims) == 3
        states = given if isinstance(given, list) else [given]
        sides, biases = 2 if c.flag("bidirectional") else 1, c.flag("has_biases", True)
        weights = c.get("params")
        each = len(weights) // (c.integer("num_layers", 1) * sides)
        if each != (4 if biases else 2):
            raise RefusedError("projections are not supported")
        zeros = np.zeros(c.builder.dims(weights[0])[0], np.float32)
        all_of = [_direction(weights[i : i + each], zeros) for i in range(0, len(weights), each)]
        layers = [all_of[i : i + sides] for i in range(0, len(all_of), sides)]
        single = len(c.dims) == 2
        x = c.add("Transpose", c.x, perm=(1, 0, 2)) if swap else c.x
        if single:
            x = c.add("Unsqueeze", x, c.ints(1))
            states = [c.add("Unsqueeze", state, c.ints(1)) for state in states]
        options = {"activations": (activation,) * sides} if activation else {}
        found = run(c, kind, x, layers, CUDNN[kind], states, **options)
        y = c.add("Transpose", found.outputs, perm=(1, 0, 2)) if swap else found.outputs
        results = [y, *found.states]
        return [c.add("Squeeze", r, c.ints(1)) for r in results] if single else results

    return made


def _direction(weights: Sequence[Value], zeros: Any) -> Direction:
    w, r, *biases = weights
    return Direction(w, r, *(biases or (zeros, zeros)))
