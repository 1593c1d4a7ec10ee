"""MXNet's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: the symbol API of MXNet 1.x, src/operator of apache/mxnet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.decompositions.layers import finite, group_norm, remainder, truncated
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made, full_windows, same, simple
from tenon.importers.mxnet.context import Context
from tenon.importers.mxnet.data_movement import ELEMENTS
from tenon.importers.mxnet.detection import DETECTION
from tenon.importers.mxnet.recurrent import rnn
from tenon.ir.graph import Value


def _window(c: Context) -> dict[str, Any]:
    kernel = c.numbers("kernel")
    ones = [1] * len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": c.numbers("stride", ones),
        "dilations": c.numbers("dilate", ones),
        "pads": c.numbers("pad", [0] * len(kernel)) * 2,
        "group": max(1, c.integer("num_group", 1)),
    }


def _biased(c: Context, outputs: int) -> Value | None:
    return None if c.flag("no_bias") or len(c.names) < 3 else c.parameter(2, outputs)


def convolution(c: Context) -> Value:
    if c.text("layout", "None") not in ("None", "NCHW", "NCW", "NCDHW"):
        raise RefusedError(f"the layout {c.text('layout')} is not supported")
    window, outputs = _window(c), c.integer("num_filter", 1)
    weights = c.parameter(1, outputs, c.dims[1] // window["group"], *window["kernel_shape"])
    return c.add("Conv", c.x, weights, _biased(c, outputs), **window)


def deconvolution(c: Context) -> Value:
    window, outputs = _window(c), c.integer("num_filter", 1)
    if c.numbers("target_shape"):
        window["output_shape"] = c.numbers("target_shape")
        window["auto_pad"] = "SAME_UPPER"
        del window["pads"]
    else:
        window["output_padding"] = c.numbers("adj", [0] * len(window["kernel_shape"]))
    weights = c.parameter(1, c.dims[1], outputs // window["group"], *window["kernel_shape"])
    bias = None if c.flag("no_bias", True) or len(c.names) < 3 else c.parameter(2, outputs)
    return c.add("ConvTranspose", c.x, weights, bias, **window)


def fully_connected(c: Context) -> Value:
    outputs, flatten = c.integer("num_hidden", 1), c.flag("flatten", True)
    x = c.as_matrix(c.x, 1 if flatten else len(c.dims) - 1)
    weights = c.parameter(1, outputs, c.builder.dims(x)[1])
    y = c.add("Gemm", x, weights, _biased(c, outputs), transB=1)
    return y if flatten else c.reshape(y, *c.dims[:-1], outputs)


def batch_norm(c: Context) -> Value:
    """Gamma counts as 1 unless fix_gamma is off."""
    rank = len(c.dims)
    axis = c.axis(c.integer("axis", 1), rank)
    channels, order = c.dims[axis], [0, axis, *(i for i in range(1, rank) if i != axis)]
    gamma, beta, mean, variance = (c.parameter(i, channels) for i in range(1, 5))
    scale = c.value(np.ones(channels, np.float32)) if c.flag("fix_gamma", True) else gamma
    x = c.x if axis == 1 else c.add("Transpose", c.x, perm=order)
    y = c.add("BatchNormalization", x, scale, beta, mean, variance, epsilon=c.number("eps", 1e-3))
    return y if axis == 1 else c.add("Transpose", y, perm=np.argsort(order))


def pooling(c: Context) -> Value:
    kind = c.text("pool_type", "max")
    if kind not in ("max", "avg", "sum", "lp"):
        raise RefusedError(f"pool_type {kind} is not supported")
    if c.flag("global_pool"):
        if kind in ("max", "avg"):
            return c.add("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", c.x)
        window: dict[str, Any] = {"kernel_shape": list(c.dims[2:])}
    else:
        window = _pooling_window(c)
    if kind == "max":
        return c.add("MaxPool", c.x, **window)
    if kind == "avg":
        if c.text("pooling_convention") == "full" and not c.flag("global_pool"):  # what is past the pads is not counted
            window |= {"pads": _window(c)["pads"], "ceil_mode": 1}
        return c.add("AveragePool", c.x, count_include_pad=int(c.flag("count_include_pad", True)), **window)
    p, size = c.number("p_value", 2.0) if kind == "lp" else 1.0, float(np.prod(window["kernel_shape"]))
    x = c.add("Pow", c.add("Abs", c.x), p) if kind == "lp" else c.x
    total = c.add("Mul", c.add("AveragePool", x, count_include_pad=1, **window), size)
    return c.add("Pow", total, 1 / (p or 1.0)) if kind == "lp" else total


def _pooling_window(c: Context) -> dict[str, Any]:
    window = _window(c)
    del window["group"], window["dilations"]
    convention = c.text("pooling_convention", "valid")
    if convention == "full":
        window["pads"] = full_windows(c.dims[2:], window["kernel_shape"], window["strides"], window["pads"])
    elif convention == "same":
        del window["pads"]
        window["auto_pad"] = "SAME_UPPER"
    return window


_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "softsign": "Softsign",
                "mish": "Mish"}  # fmt: skip


def activation(c: Context) -> Value:
    kind = c.text("act_type", "relu")
    if kind not in _ACTIVATIONS:
        raise RefusedError(f"act_type {kind} is not supported")
    return c.add(_ACTIVATIONS[kind], c.x)


def leaky(c: Context) -> Value:
    kind, slope = c.text("act_type", "leaky"), c.number("slope", 0.25)
    if kind == "prelu":
        return c.add("PRelu", c.x, c.channels(c.parameter(1, c.dims[1]), c.x))
    if kind == "rrelu":
        slope = (c.number("lower_bound", 0.125) + c.number("upper_bound", 0.334)) / 2
    if kind in ("leaky", "rrelu"):
        return c.add("LeakyRelu", c.x, alpha=slope)
    if kind in ("elu", "selu", "gelu"):
        return c.add("Elu", c.x, alpha=slope) if kind == "elu" else c.add(kind.capitalize(), c.x)
    raise RefusedError(f"act_type {kind} is not supported")


# ------------------------------------------------------------------------------------------ arithmetic
def binary(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, c.parameter(1))


def scalar(type: str, swapped: bool = False) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        number = c.number("scalar")
        return c.add(type, number, c.x) if swapped else c.add(type, c.x, number)

    return made


def compare(type: str, *, scalar: bool = False) -> Callable[[Context], Value]:
    """1.0 where it holds; of numbers, what is not zero is true."""

    def made(c: Context) -> Value:
        sides: list[Any] = [c.x, c.number("scalar") if scalar else c.parameter(1)]
        if type in ("And", "Or", "Xor"):
            sides = [c.add("Not", c.add("Equal", side, 0.0)) for side in sides]
        found = c.add("Equal" if type == "NotEqual" else type, *sides)
        return c.add("Cast", c.add("Not", found) if type == "NotEqual" else found, to="f32")

    return made


def logarithm(base: float) -> Callable[[Context], Value]:
    return lambda c: c.add("Mul", c.add("Log", c.x), float(1 / np.log(base)))


def truth_of(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add("Cast", c.add(type, c.x), to="f32")


def root_of_three(c: Context) -> Value:
    y = c.add("Mul", c.add("Sign", c.x), c.add("Pow", c.add("Abs", c.x), 1 / 3))
    return c.add("Reciprocal", y) if c.kind == "rcbrt" else y


def smooth_l1(c: Context) -> Value:
    squared = c.number("scalar", 1.0) ** 2
    size = c.add("Abs", c.x)
    near = c.add("Mul", c.add("Mul", c.x, c.x), 0.5 * squared)
    return c.add("Where", c.add("Less", size, 1 / (squared or 1.0)), near, c.add("Sub", size, 0.5 / (squared or 1.0)))


def norm(c: Context) -> Value:
    order, rank = c.integer("ord", 2), len(c.dims)
    axes = [c.axis(a, rank) for a in c.numbers("axis")] or list(range(rank))
    if order not in (1, 2):
        raise RefusedError(f"the norm {order} is not supported")
    return _at_least_one(c, c.add(f"ReduceL{order}", c.x, c.ints(*axes), keepdims=int(c.flag("keepdims"))))


def normalised_groups(c: Context) -> Value:
    """Scaled by channel, or by group as MXNet 1.6 to 1.9 have it."""
    groups, channels = c.integer("num_groups", 1), c.dims[1]
    vectors = []
    for i in (1, 2):
        vector = c.parameter(i, channels)
        if c.builder.dims(vector) == (groups,) != (channels,):
            vector = c.add("Gather", vector, np.repeat(np.arange(groups), channels // max(1, groups)).astype(np.int64))
        vectors.append(vector)
    gamma, beta = vectors
    return group_norm(c, c.x, groups, gamma, beta, c.number("eps", 1e-5))


def reduce(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        rank = len(c.dims)
        axes = [c.axis(a, rank) for a in c.numbers("axis")] or list(range(rank))
        if c.flag("exclude"):
            axes = [a for a in range(rank) if a not in axes]
        return _at_least_one(c, c.add(type, c.x, c.ints(*axes), keepdims=int(c.flag("keepdims"))))

    return made


def _at_least_one(c: Context, y: Value) -> Value:
    """But for the operators named after NumPy's, MXNet has no tensors of rank 0."""
    return y if c.builder.dims(y) or c.kind.startswith("_np") else c.reshape(y, 1)


def softmax(c: Context) -> Value:
    """Of the first so many of each row where ``use_length`` is set, zeros behind them."""
    x, temperature = c.x, c.number("temperature", 1.0)
    if c.flag("use_length"):
        return _softmax_within(c)
    x = x if temperature == 1 else c.add("Mul", x, 1 / (temperature or 1.0))
    return c.add("LogSoftmax" if c.kind == "log_softmax" else "Softmax", x, axis=c.integer("axis", -1))


def _softmax_within(c: Context) -> Value:
    axis = c.axis(c.integer("axis", -1), len(c.dims))
    lengths = c.add("Unsqueeze", c.add("Cast", c.parameter(1), to="f32"), c.ints(axis))
    places = np.arange(c.dims[axis], dtype=np.float32).reshape(-1, *[1] * (len(c.dims) - 1 - axis))
    there = c.add("Less", places, lengths)
    x = c.add("Mul", c.x, 1 / (c.number("temperature", 1.0) or 1.0))
    y = c.add("Softmax", c.add("Where", there, x, float(np.finfo(np.float32).min)), axis=axis)
    return c.add("Where", there, y, 0.0)


def softmax_output(c: Context) -> Value:
    """Over channels, or over everything but the batch."""
    if len(c.dims) <= 2 or c.flag("multi_output") or c.flag("preserve_shape"):
        return c.add("Softmax", c.x, axis=-1 if c.flag("preserve_shape") else min(1, len(c.dims) - 1))
    return c.reshape(c.add("Softmax", c.as_matrix(c.x), axis=1), *c.dims)


def softmax_activation(c: Context) -> Value:
    """Over channels, or over the last axis, however many stand before it."""
    return c.add("Softmax", c.x, axis=1 if c.text("mode", "instance") == "channel" else -1)


def l2_normalization(c: Context) -> Value:
    axes = {"instance": range(1, len(c.dims)), "channel": (1,), "spatial": range(2, len(c.dims))}
    chosen = axes.get(c.text("mode", "instance"))
    if chosen is None:
        raise RefusedError(f"mode {c.text('mode')} is not supported")
    total = c.add("ReduceSumSquare", c.x, c.ints(*chosen), keepdims=1)
    return c.add("Div", c.x, c.add("Sqrt", c.add("Add", total, c.number("eps", 1e-10))))


def instance_norm(c: Context) -> Value:
    gamma, beta = (c.parameter(i, c.dims[1]) for i in (1, 2))
    return c.add("InstanceNormalization", c.x, gamma, beta, epsilon=c.number("eps", 1e-3))


def layer_norm(c: Context) -> Value:
    rank = len(c.dims)
    axis = c.axis(c.integer("axis", -1), rank)
    gamma, beta = (c.parameter(i, c.dims[axis]) for i in (1, 2))
    order = [*(i for i in range(rank) if i != axis), axis]
    x = c.x if axis == rank - 1 else c.add("Transpose", c.x, perm=order)
    y = c.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=c.number("eps", 1e-5))
    return y if axis == rank - 1 else c.add("Transpose", y, perm=np.argsort(order))


def lrn(c: Context) -> Value:
    return c.add(
        "LRN",
        c.x,
        size=c.integer("nsize", 5),
        alpha=c.number("alpha", 1e-4),
        beta=c.number("beta", 0.75),
        bias=c.number("knorm", 2.0),
    )


def dot(c: Context) -> Value:
    return c.add("MatMul", c.swapped(c.x, c.flag("transpose_a")), c.swapped(c.parameter(1), c.flag("transpose_b")))


# -------------------------------------------------------------------------------------------- movement
def reshape(c: Context) -> Value:
    """0 keeps an axis, -1 takes the rest, -2 all that follow, -3 joins two, -4 splits one in two."""
    turned = slice(None, None, -1 if c.flag("reverse") else 1)  # codes are matched from the back
    dims, wanted = c.dims[turned], (c.numbers("shape") or c.numbers("target_shape"))[turned]
    if c.flag("reverse") and -4 in wanted:
        raise RefusedError("splitting an axis from the back is not supported")
    shape: list[int] = []
    at = i = 0
    while i < len(wanted):
        code, step = wanted[i], 1
        if code == -2:
            shape += dims[at:]
            step = len(dims) - at
        elif code == -3:
            shape.append(dims[at] * dims[at + 1])
            step = 2
        elif code == -4:
            a, b = wanted[i + 1], wanted[i + 2]
            a = dims[at] // b if a == -1 else a
            shape += [a, dims[at] // a if b == -1 else b]
            i += 2
        else:
            shape.append(dims[at] if code == 0 else code)
        at, i = at + step, i + 1
    return c.reshape(c.x, *shape[turned])


def concat(c: Context) -> Value:
    return c.add("Concat", *c.values, axis=c.integer("dim", 1))


def split(c: Context) -> Sequence[Value]:
    """_split_v2: equal parts, or parts that begin at the given places (the first of which is 0)."""
    axis = c.axis(c.integer("axis"), len(c.dims))
    if c.integer("sections") > 0:
        parts = c.equal_parts(c.x, axis, c.integer("sections"))
    else:
        ends = [*c.numbers("indices"), c.dims[axis]]
        parts = c.split(c.x, axis, [b - a for a, b in pairwise(ends)])
    return [c.add("Squeeze", part, c.ints(axis)) for part in parts] if c.flag("squeeze_axis") else parts


def slice_channel(c: Context) -> Sequence[Value]:
    axis = c.axis(c.integer("axis", 1), len(c.dims))
    parts = c.equal_parts(c.x, axis, c.integer("num_outputs", 1))
    return [c.add("Squeeze", part, c.ints(axis)) for part in parts] if c.flag("squeeze_axis") else parts


def slice_axis(c: Context) -> Value:
    end = c.text("end", "None")
    return c.slice(c.x, [c.integer("begin")], [2**31 - 1 if end == "None" else int(end)], [c.integer("axis")])


_LAST = 2**31 - 1
_OPEN = 1 << 40
"""A bound of a slice that is not given."""


def slices(c: Context) -> Value:
    starts, ends = c.bounds("begin", _OPEN), c.bounds("end", _OPEN)
    steps = [1 if step == _OPEN else step for step in c.bounds("step", _OPEN)] or [1] * len(starts)
    for i, step in enumerate(steps):
        first, last = (0, _LAST) if step > 0 else (_LAST, -_LAST)
        starts[i], ends[i] = (b if b != _OPEN else o for b, o in ((starts[i], first), (ends[i], last)))
    return c.slice(c.x, starts, ends, range(len(starts)), steps)


def transpose(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=c.numbers("axes", range(len(c.dims))[::-1]))


def swap_axis(c: Context) -> Value:
    order = list(range(len(c.dims)))
    a, b = (c.axis(c.integer(name), len(order)) for name in ("dim1", "dim2"))
    order[a], order[b] = b, a
    return c.add("Transpose", c.x, perm=order)


def pad(c: Context) -> Value:
    widths, mode = c.numbers("pad_width"), c.text("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise RefusedError(f"mode {mode} is not supported")
    value = c.number("constant_value") if mode == "constant" else None
    return c.add("Pad", c.x, c.ints(*widths[::2], *widths[1::2]), value, mode=mode)


def crop(c: Context) -> Value:
    """To h_w or to the size of the second input, from an offset or the middle."""
    high, wide = c.builder.dims(c.parameter(1))[2:] if len(c.names) > 1 else c.numbers("h_w")
    h, w = c.dims[2:]
    top, left = ((h - high) // 2, (w - wide) // 2) if c.flag("center_crop") else c.numbers("offset", (0, 0))
    return c.slice(c.x, [top, left], [top + high, left + wide], [2, 3])


def upsampling(c: Context) -> Value:
    """Nearest neighbours, of several inputs to one size; bilinear upsampling is a deconvolution with stored weights."""
    factor, (h, w) = c.integer("scale", 1), c.dims[2:]
    if c.text("sample_type", "nearest") == "nearest":
        parts = [c.resized(v, h * factor, w * factor, "nearest", "asymmetric") for v in c.values]
        if len(parts) == 1 or c.text("multi_input_mode", "concat") == "sum":
            return c.fold("Add", parts)
        return c.add("Concat", *parts, axis=1)
    size, channels = 2 * factor - factor % 2, c.dims[1]
    pad = (factor - 1 + 1) // 2 if factor > 1 else 0
    return c.add(
        "ConvTranspose",
        c.x,
        c.parameter(1, channels, 1, size, size),
        group=channels,
        kernel_shape=(size, size),
        strides=(factor, factor),
        pads=(pad,) * 4,
    )


def bilinear(c: Context) -> Value:
    h, w = c.dims[2:]
    out = (c.integer("height"), c.integer("width"))
    if c.attributes.get("scale_height", "None") != "None":
        out = (int(h * c.number("scale_height")), int(w * c.number("scale_width")))
    return c.resized(c.x, *out, "linear", "align_corners" if c.flag("align_corners", True) else "half_pixel")


def embedding(c: Context) -> Value:
    table = c.parameter(1, c.integer("input_dim", 1), c.integer("output_dim", 1))
    return c.add("Gather", table, c.add("Cast", c.x, to="i64"), axis=0)


def take(c: Context) -> Value:
    """Numbers past the ends mean the ends, or go around."""
    mode, axis = c.text("mode", "clip"), c.axis(c.integer("axis"), len(c.dims))
    size, index = c.dims[axis], c.add("Cast", c.parameter(1), to="i64")
    if mode == "wrap":
        index = c.add("Mod", index, np.array(size, np.int64))
    elif mode == "clip":
        index = c.add("Clip", index, np.array(0, np.int64), np.array(size - 1, np.int64))
    return c.add("Gather", c.x, index, axis=axis)


def cast(c: Context) -> Value:
    names = {"float32": "f32", "float64": "f64", "float16": "f16", "int32": "i32", "int64": "i64", "int8": "i8",
             "uint8": "u8", "bool": "bool"}  # fmt: skip
    if c.text("dtype") not in names:
        raise RefusedError(f"dtype {c.text('dtype')} is not supported")
    return c.add("Cast", c.x, to=names[c.text("dtype")])


def tile(c: Context) -> Value:
    times, dims = c.numbers("reps"), c.dims
    rank = max(len(times), len(dims))
    x = c.reshape(c.x, *[1] * (rank - len(dims)), *dims)
    return c.add("Tile", x, c.ints(*[1] * (rank - len(times)), *times))


def arg(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        every = c.text("axis", "None") == "None"
        x, axis, keep = (c.reshape(c.x, -1), 0, 1) if every else (c.x, c.integer("axis"), int(c.flag("keepdims")))
        return c.add("Cast", c.add(type, x, axis=axis, keepdims=keep), to="f32")

    return made


_PAIRS = {"add": "Add", "plus": "Add", "sub": "Sub", "minus": "Sub", "mul": "Mul", "div": "Div", "power": "Pow",
          "maximum": "Max", "minimum": "Min"}  # fmt: skip
_COMPARISONS = {"equal": "Equal", "not_equal": "NotEqual", "logical_and": "And", "logical_or": "Or",
                "logical_xor": "Xor", "greater": "Greater", "greater_equal": "GreaterOrEqual", "lesser": "Less",
                "lesser_equal": "LessOrEqual"}  # fmt: skip
_SINGLES = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
            "abs": "Abs", "negative": "Neg", "floor": "Floor", "ceil": "Ceil", "round": "Round", "sin": "Sin",
            "cos": "Cos", "softsign": "Softsign", "reciprocal": "Reciprocal", "sign": "Sign", "erf": "Erf"}  # fmt: skip

OPERATORS: dict[str, Callable[[Context], Made]] = {
    **DETECTION,
    **{
        f"{prefix}{name}": binary(type)
        for name, type in _PAIRS.items()
        for prefix in ("broadcast_", "elemwise_", "_", "_np_", "_npi_")
    },
    **{
        name: binary(type)
        for name, type in (
            ("_Plus", "Add"),
            ("_Minus", "Sub"),
            ("_Mul", "Mul"),
            ("_Div", "Div"),
            ("_Power", "Pow"),
            ("_grad_add", "Add"),
            ("_maximum", "Max"),
            ("_minimum", "Min"),
            ("dot_product", "MatMul"),
        )
    },
    **{f"{prefix}{name}_scalar": scalar(type) for name, type in _PAIRS.items() for prefix in ("_", "_npi_")},
    **{
        name: scalar(type)
        for name, type in (
            ("_PlusScalar", "Add"),
            ("_MinusScalar", "Sub"),
            ("_MulScalar", "Mul"),
            ("_DivScalar", "Div"),
            ("_PowerScalar", "Pow"),
        )
    },
    **{
        name: scalar(type, True)
        for name, type in (
            ("_rminus_scalar", "Sub"),
            ("_rdiv_scalar", "Div"),
            ("_rpower_scalar", "Pow"),
            ("_RMinusScalar", "Sub"),
            ("_RDivScalar", "Div"),
        )
    },
    **{f"{prefix}{name}": compare(type) for name, type in _COMPARISONS.items() for prefix in ("broadcast_", "_")},
    **{f"_{name}_scalar": compare(type, scalar=True) for name, type in _COMPARISONS.items()},
    **dict.fromkeys(("broadcast_mod", "_mod", "_Mod"), lambda c: remainder(c, c.x, c.parameter(1))),
    "_mod_scalar": lambda c: remainder(c, c.x, c.number("scalar")),
    "_rmod_scalar": lambda c: remainder(c, c.number("scalar"), c.x),
    "_hypot_scalar": lambda c: c.add("Sqrt", c.add("Add", c.add("Mul", c.x, c.x), c.number("scalar") ** 2)),
    **dict.fromkeys(
        ("broadcast_hypot", "_hypot"), lambda c: c.add("Sqrt", c.add("Add", c.square(c.x), c.square(c.parameter(1))))
    ),
    **{name: simple(type) for name, type in _SINGLES.items()},
    **{
        name: reduce(f"Reduce{type}")
        for name, type in (
            ("mean", "Mean"),
            ("sum", "Sum"),
            ("sum_axis", "Sum"),
            ("max", "Max"),
            ("min", "Min"),
            ("prod", "Prod"),
        )
    },
    **ELEMENTS,
    **{
        name: simple(type)
        for name, type in (
            ("tan", "Tan"),
            ("arcsin", "Asin"),
            ("arccos", "Acos"),
            ("arctan", "Atan"),
            ("sinh", "Sinh"),
            ("cosh", "Cosh"),
            ("arcsinh", "Asinh"),
            ("arccosh", "Acosh"),
            ("arctanh", "Atanh"),
            ("rint", "Round"),
        )
    },
    **{name: truth_of(type) for name, type in (("_contrib_isnan", "IsNaN"), ("_contrib_isinf", "IsInf"))},
    "_contrib_isfinite": lambda c: c.add("Cast", finite(c, c.x), to="f32"),
    "logical_not": lambda c: c.add("Cast", c.add("Equal", c.x, 0.0), to="f32"),
    "expm1": lambda c: c.add("Sub", c.add("Exp", c.x), 1.0),
    "log1p": lambda c: c.add("Log", c.add("Add", c.x, 1.0)),
    "log2": logarithm(2),
    "log10": logarithm(10),
    **dict.fromkeys(("trunc", "fix"), lambda c: truncated(c, c.x)),
    **dict.fromkeys(("cbrt", "rcbrt"), root_of_three),
    "smooth_l1": smooth_l1,
    "norm": norm,
    "degrees": lambda c: c.add("Mul", c.x, float(np.rad2deg(1))),
    "radians": lambda c: c.add("Mul", c.x, float(np.deg2rad(1))),
    "softmin": lambda c: c.add("Softmax", c.add("Neg", c.x), axis=c.integer("axis", -1)),
    "GroupNorm": normalised_groups,
    "amp_multicast": lambda c: c.values,
    **dict.fromkeys(("amp_cast", "_copyto", "_CrossDeviceCopy", "IdentityAttachKLSparseReg"), same),
    **dict.fromkeys(
        (
            "Dropout",
            "_copy",
            "identity",
            "BlockGrad",
            "stop_gradient",
            "MakeLoss",
            "make_loss",
            "LinearRegressionOutput",
            "MAERegressionOutput",
            "SVMOutput",
        ),
        same,
    ),
    "LogisticRegressionOutput": simple("Sigmoid"),
    "Convolution": convolution,
    "Convolution_v1": convolution,
    "Deconvolution": deconvolution,
    "FullyConnected": fully_connected,
    "BatchNorm": batch_norm,
    "BatchNorm_v1": batch_norm,
    "_contrib_SyncBatchNorm": batch_norm,
    "Pooling": pooling,
    "Pooling_v1": pooling,
    "Activation": activation,
    "LeakyReLU": leaky,
    "Concat": concat,
    "concat": concat,
    "stack": lambda c: c.stacked(c.values, c.integer("axis")),
    "Flatten": lambda c: c.as_matrix(c.x),
    "flatten": lambda c: c.as_matrix(c.x),
    "Reshape": reshape,
    "reshape": reshape,
    "SoftmaxOutput": softmax_output,
    "Softmax": softmax_output,
    "softmax": softmax,
    "log_softmax": softmax,
    "SoftmaxActivation": softmax_activation,
    "ElementWiseSum": lambda c: c.fold("Add", c.values),
    "add_n": lambda c: c.fold("Add", c.values),
    "square": lambda c: c.add("Mul", c.x, c.x),
    "rsqrt": lambda c: c.chain(c.x, "Sqrt", "Reciprocal"),
    "clip": lambda c: c.add("Clip", c.x, c.number("a_min"), c.number("a_max")),
    "hard_sigmoid": lambda c: c.add("HardSigmoid", c.x, alpha=c.number("alpha", 0.2), beta=c.number("beta", 0.5)),
    "L2Normalization": l2_normalization,
    "InstanceNorm": instance_norm,
    "LayerNorm": layer_norm,
    "LRN": lrn,
    "_split_v2": split,
    "SliceChannel": slice_channel,
    "split": slice_channel,
    "slice_axis": slice_axis,
    "slice": slices,
    "crop": slices,
    "transpose": transpose,
    "SwapAxis": swap_axis,
    "swapaxes": swap_axis,
    "Pad": pad,
    "pad": pad,
    "Crop": crop,
    "expand_dims": lambda c: c.add("Unsqueeze", c.x, c.ints(c.integer("axis"))),
    "squeeze": lambda c: c.add("Squeeze", c.x, c.ints(*c.numbers("axis")) if c.numbers("axis") else None),
    "UpSampling": upsampling,
    "_contrib_BilinearResize2D": bilinear,
    "Embedding": embedding,
    "take": take,
    "dot": dot,
    "batch_dot": dot,
    "Cast": cast,
    "cast": cast,
    "argmax": arg("ArgMax"),
    "argmin": arg("ArgMin"),
    "tile": tile,
    "depth_to_space": lambda c: c.add("DepthToSpace", c.x, blocksize=c.integer("block_size", 1)),
    "space_to_depth": lambda c: c.add("SpaceToDepth", c.x, blocksize=c.integer("block_size", 1)),
    "RNN": rnn,
    "_rnn_param_concat": concat,
    "where": lambda c: c.add("Where", c.add("Cast", c.x, to="bool"), c.parameter(1), c.parameter(2)),
}
OPERATORS |= {
    ours: OPERATORS[theirs]
    for ours, theirs in (
        ("_npx_activation", "Activation"),
        ("_npx_batch_norm", "BatchNorm"),
        ("_npx_convolution", "Convolution"),
        ("_npx_deconvolution", "Deconvolution"),
        ("_npx_dropout", "Dropout"),
        ("_npx_embedding", "Embedding"),
        ("_npx_fully_connected", "FullyConnected"),
        ("_npx_layer_norm", "LayerNorm"),
        ("_npx_leaky_relu", "LeakyReLU"),
        ("_npx_log_softmax", "log_softmax"),
        ("_npx_pooling", "Pooling"),
        ("_npx_relu", "relu"),
        ("_npx_sigmoid", "sigmoid"),
        ("_npx_softmax", "softmax"),
    )
}
"""MXNet 2 has new names for these."""
