"""PaddlePaddle's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: paddle/phi/api/yaml and paddle/fluid/operators of PaddlePaddle/Paddle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.decompositions.layers import adaptive_pool, group_norm, truncated
from tenon.decompositions.onnx_operator import spelled
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import same, simple
from tenon.importers.paddle.boxes import BOXES
from tenon.importers.paddle.context import _TYPES, Context, Result, numpy_type
from tenon.importers.paddle.data_movement import ELEMENTS
from tenon.importers.paddle.detection import DETECTION
from tenon.importers.paddle.functions import FUNCTIONS
from tenon.importers.paddle.recurrent import rnn
from tenon.ir.graph import Value
from tenon.ir.types import BOOL


def alpha(type: str, ours: str, theirs: str, default: float) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, **{ours: c.number(theirs, default)})


def _padding(c: Context, window: dict[str, Any]) -> dict[str, Any]:
    algorithm, pads = c.text("padding_algorithm", "EXPLICIT"), c.numbers("paddings")
    if algorithm in ("SAME", "VALID"):
        return window | {"auto_pad": "SAME_UPPER" if algorithm == "SAME" else "VALID"}
    spatial = len(window["strides"])
    if len(pads) == 2 * spatial:  # top, bottom, left, right
        return window | {"pads": [*pads[::2], *pads[1::2]]}
    if len(pads) != spatial:
        raise RefusedError(f"paddings {pads} do not fit {spatial} axes")
    return window | {"pads": pads * 2}


def _convolution_window(c: Context) -> dict[str, Any]:
    """Padding to the same size goes with windows that are not dilated."""
    dilations = c.numbers("dilations")
    if c.text("padding_algorithm") == "SAME":
        dilations = [1] * len(dilations)
    return _padding(
        c, {"strides": c.numbers("strides"), "dilations": dilations, "group": max(1, c.integer("groups", 1))}
    )


def convolution(c: Context) -> Value:
    x = c.add("Conv", c.input("Input"), c.input("Filter"), c.get("Bias"), **_convolution_window(c))
    return c.add("Relu", x) if c.integer("fuse_relu") or c.text("fuse_activation") == "relu" else x


def deconvolution(c: Context) -> Value:
    """Padding to the same size is that of a convolution of the input."""
    window, size = _convolution_window(c), c.numbers("output_size")
    x, kernel = c.input("Input"), c.builder.dims(c.input("Filter"))[2:]
    if window.pop("auto_pad", "") == "SAME_UPPER":
        each = list(zip(c.builder.dims(x)[2:], kernel, window["strides"], strict=True))
        total = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in each]
        window["pads"] = [*(p // 2 for p in total), *(p - p // 2 for p in total)]
    if size:
        window["output_shape"] = size
        window.setdefault("auto_pad", "NOTSET")
    elif c.numbers("output_padding"):
        window["output_padding"] = c.numbers("output_padding")
    return c.add("ConvTranspose", x, c.input("Filter"), c.get("Bias"), **window)


def batch_norm(c: Context) -> Value:
    parameters = [c.input(slot) for slot in ("Scale", "Bias", "Mean", "Variance")]
    return c.add("BatchNormalization", c.x, *parameters, epsilon=c.number("epsilon", 1e-5))


def layer_norm(c: Context) -> Value:
    axis, dims = c.integer("begin_norm_axis", 1), c.dims
    shape = dims[axis:]
    scale, bias = ((None if v is None else c.reshape(v, *shape)) for v in (c.get("Scale"), c.get("Bias")))
    scale = scale if scale is not None else c.value(np.ones(shape, np.float32))
    return c.add("LayerNormalization", c.x, scale, bias, axis=axis, epsilon=c.number("epsilon", 1e-5))


def instance_norm(c: Context) -> Value:
    ones = np.ones(c.dims[1], np.float32)
    scale, bias = c.get("Scale"), c.get("Bias")
    return c.add(
        "InstanceNormalization",
        c.x,
        scale if scale is not None else ones,
        bias if bias is not None else 0 * ones,
        epsilon=c.number("epsilon", 1e-5),
    )


def normalised_groups(c: Context) -> Value:
    return group_norm(c, c.x, c.integer("groups", 1), c.get("Scale"), c.get("Bias"), c.number("epsilon", 1e-5))


def pooling(c: Context) -> Value:
    average, dims = c.text("pooling_type", "max") == "avg", c.dims
    size = c.numbers("ksize")
    if c.integer("global_pooling"):
        return c.add("GlobalAveragePool" if average else "GlobalMaxPool", c.x)
    type = "AveragePool" if average else "MaxPool"
    if c.integer("adaptive"):
        return adaptive_pool(c, c.x, [n if k < 0 else k for n, k in zip(dims[2:], size, strict=True)], average=average)
    options = _padding(c, {"strides": c.numbers("strides"), "kernel_shape": size})
    include = {"count_include_pad": int(not c.integer("exclusive", 1))} if average else {}
    return c.add(type, c.x, **options, ceil_mode=c.integer("ceil_mode"), **include)


# ------------------------------------------------------------------------------------------ arithmetic
def binary(type: str) -> Callable[[Context], Value]:
    """The second operand lies along the first's axes from ``axis`` on."""

    def made(c: Context) -> Value:
        a, b = c.broadcast(c.x, c.input("Y"), c.integer("axis", -1))
        return c.add(type, a, b)

    return made


def both(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, c.input("Y"))


def matrix_product(c: Context) -> Value:
    """``mul``: both operands made matrices first."""
    y, columns = c.input("Y"), c.integer("x_num_col_dims", 1)
    left, right = c.as_matrix(c.x, columns), c.as_matrix(y, c.integer("y_num_col_dims", 1))
    tail = c.builder.dims(y)[c.integer("y_num_col_dims", 1) :]
    return c.reshape(c.add("Gemm", left, right), *c.dims[:columns], *tail)


def fully_connected(c: Context) -> Value:
    weights, columns = c.input("W"), c.integer("in_num_col_dims", 1)
    x = c.add("Gemm", c.as_matrix(c.x, columns), weights, c.get("Bias"))
    x = c.reshape(x, *c.dims[:columns], c.builder.dims(weights)[1])
    return c.add("Relu", x) if c.text("activation_type") == "relu" else x


def matmul(c: Context) -> Value:
    flags = ("transpose_X", "transpose_Y") if c.type == "matmul" else ("trans_x", "trans_y")
    a, b = (c.swapped(v, bool(c.integer(f))) for v, f in zip((c.x, c.input("Y")), flags, strict=True))
    x, factor = c.add("MatMul", a, b), c.number("alpha", 1.0)
    return x if factor == 1 else c.add("Mul", x, factor)


def scale(c: Context) -> Value:
    if c.get("ScaleTensor") is not None:
        raise RefusedError("a scale computed at run time is not supported")
    factor, offset, after = c.number("scale", 1.0), c.number("bias"), c.integer("bias_after_scale", 1)
    kind = c.builder.type(c.x).dtype.numpy
    x = c.x if after or not offset else c.add("Add", c.x, np.array(offset, kind))
    x = x if factor == 1 else c.add("Mul", x, np.array(factor, kind))
    return c.add("Add", x, np.array(offset, kind)) if after and offset else x


def clip(c: Context) -> Value:
    low, high = c.get("Min"), c.get("Max")
    low = low if low is None else c.reshape(low)
    high = high if high is None else c.reshape(high)
    return c.add("Clip", c.x, c.number("min") if low is None else low, c.number("max") if high is None else high)


def reduce(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        x = c.add("Cast", c.x, to="i64") if c.builder.type(c.x).dtype is BOOL else c.x
        return c.add(type, x, c.ints(*c.reduced), keepdims=c.integer("keep_dim"))

    return made


def prelu(c: Context) -> Value:
    slope = c.input("Alpha")
    return c.add("PRelu", c.x, c.channels(c.reshape(slope, -1), c.x) if c.text("mode") == "channel" else slope)


def hard_swish(c: Context) -> Value:
    """x * min(max(x + offset, 0), threshold) / scale."""
    top, factor, offset = c.number("threshold", 6.0), c.number("scale", 6.0), c.number("offset", 3.0)
    if (top, factor, offset) == (6.0, 6.0, 3.0):
        return c.add("HardSwish", c.x)
    return c.add("Mul", c.x, c.add("Mul", c.add("Clip", c.add("Add", c.x, offset), 0.0, top), 1 / (factor or 1.0)))


def normalize(c: Context) -> Value:
    """L2 over one axis; with ``norm`` the root is of the sum plus epsilon."""
    total = c.add("ReduceSumSquare", c.x, c.ints(c.integer("axis", -1)), keepdims=1)
    return c.add("Div", c.x, c.add("Sqrt", c.add("Add", total, c.number("epsilon", 1e-10))))


def arg(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        x, axis = (c.reshape(c.x, -1), 0) if c.integer("flatten") else (c.x, c.integer("axis", -1))
        found = c.add(type, x, axis=axis, keepdims=c.integer("keepdims"))
        return c.add("Cast", found, to="i32") if c.integer("dtype", 3) == 2 else found

    return made


# -------------------------------------------------------------------------------------------- movement
def reshape(c: Context) -> Value:
    shape = c.vector("ShapeTensor", "Shape")
    return c.add("Reshape", c.x, shape if shape is not None else c.ints(*c.numbers("shape")))


def transpose(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=c.numbers("axis"))


def flatten(c: Context) -> Value:
    dims, axis = c.dims, c.integer("axis", 1)
    return c.reshape(c.x, math.prod(dims[:axis]), math.prod(dims[axis:]))


def flatten_range(c: Context) -> Value:
    dims = c.dims
    start, stop = (c.axis(c.integer(f"{end}_axis", 1), len(dims)) for end in ("start", "stop"))
    return c.reshape(c.x, *dims[:start], math.prod(dims[start : stop + 1]), *dims[stop + 1 :])


def squeeze(c: Context) -> Value:
    axes = [a for a in c.numbers("axes") if c.dims[c.axis(a, len(c.dims))] == 1]
    return c.add("Squeeze", c.x, c.ints(*axes)) if axes or c.numbers("axes") else c.add("Squeeze", c.x)


def unsqueeze(c: Context) -> Value:
    axes = c.vector("AxesTensorList", "AxesTensor")
    return c.add("Unsqueeze", c.x, axes if axes is not None else c.ints(*c.numbers("axes")))


def slices(c: Context) -> Value:
    """Backwards the end -1 among the attributes is the place before the first, as 2.x has it."""
    starts, ends = c.vector("StartsTensorList", "StartsTensor"), c.vector("EndsTensorList", "EndsTensor")
    axes, steps = c.numbers("axes"), c.numbers("strides") if c.type == "strided_slice" else []
    starts = starts if starts is not None else c.ints(*c.numbers("starts"))
    if ends is None:
        past = dict(enumerate(steps))
        ends = c.ints(*(-(2**31) if n == -1 and past.get(i, 1) < 0 else n for i, n in enumerate(c.numbers("ends"))))
    x = c.add("Slice", c.x, starts, ends, c.ints(*axes), c.ints(*steps) if steps else None)
    gone = c.numbers("decrease_axis")
    return c.add("Squeeze", x, c.ints(*gone)) if gone else x


def split(c: Context) -> Sequence[Value]:
    axis, sizes = c.axis(c.integer("axis"), len(c.dims)), c.numbers("sections")
    if not sizes:
        return c.equal_parts(c.x, axis, c.integer("num") or len(c.outputs.get("Out", [])))
    rest = c.dims[axis] - sum(s for s in sizes if s > 0)
    return c.split(c.x, axis, [rest if s < 0 else s for s in sizes])


def concat(c: Context) -> Value:
    return c.add("Concat", *c.slots["X"], axis=c.integer("axis"))


def expand(c: Context) -> Value:
    shape = c.numbers("shape")
    pad = [1] * (len(shape) - len(c.dims))
    return c.add("Expand", c.x, c.ints(*(n if s == -1 else s for s, n in zip(shape, [*pad, *c.dims], strict=True))))


def tile(c: Context) -> Value:
    times = c.numbers("repeat_times" if c.type == "tile" else "expand_times")
    rank = max(len(times), len(c.dims))
    x = c.reshape(c.x, *(1,) * (rank - len(c.dims)), *c.dims)
    return c.add("Tile", x, c.ints(*(1,) * (rank - len(times)), *times))


def pad(c: Context) -> Value:
    """pad2d: top, bottom, left, right; pad3d: left, right, top, bottom, front, back; pad: all axes."""
    pads, rank = c.numbers("paddings"), len(c.dims)
    if c.type == "pad":
        before, after = pads[::2], pads[1::2]
    elif c.type == "pad2d":
        before, after = [0, 0, *pads[::2]], [0, 0, *pads[1::2]]
    else:
        before, after = [0, 0, *pads[::2][::-1]], [0, 0, *pads[1::2][::-1]]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}.get(
        c.text("mode", "constant")
    )
    if mode is None or not len(before) == len(after) == rank:
        raise RefusedError(f"padding {pads} of mode {c.text('mode')} is not supported")
    value = c.number("pad_value", c.number("value")) if mode == "constant" else None
    return c.add("Pad", c.x, c.ints(*before, *after), value, mode=mode)


def interpolate(c: Context) -> Value:
    """align_mode 1 counts from corners, 0 from pixel centres; nearest neighbours always count from corners."""
    dims = c.dims
    sizes = c.vector("SizeTensor", "OutSize")
    out = [c.integer(f"out_{axis}") for axis in "dhw"[5 - len(dims) :]]
    exact: np.ndarray[Any, Any] | None = None  # factors that the sizes do not say
    scales = c.attributes.get("scale", 0.0)
    factors = [float(s) for s in scales] if isinstance(scales, list | np.ndarray) else [float(scales)]
    if sizes is not None and sizes.constant:
        out = [int(n) for n in sizes.array]
    elif sizes is not None or (c.get("Scale") is not None and not c.input("Scale").constant):
        raise RefusedError("a size computed at run time is not supported")
    else:
        given = c.get("Scale")
        factors = [float(s) for s in given.array.ravel()] if given is not None else factors
        if factors and factors[0] > 0:
            factors = factors * len(out) if len(factors) == 1 else factors
            out = [int(n * f) for n, f in zip(dims[2:], factors, strict=True)]
            if any(abs(n * f - o) > 1e-4 for n, f, o in zip(dims[2:], factors, out, strict=True)):
                exact = np.array([1, 1, *factors], np.float32)
    mode = "nearest" if c.type.startswith("nearest") else "cubic" if c.type.startswith("bicubic") else "linear"
    if c.integer("align_corners", 1):
        centre = "align_corners"
    elif mode == "cubic":
        centre = "half_pixel"
    else:
        centre = "asymmetric" if mode == "nearest" or c.integer("align_mode", 1) else "half_pixel"
    if not all(0 < n < 1 << 16 for n in out):
        raise RefusedError(f"{list(dims)} cannot be resized to {out}")
    rounding = "round_prefer_ceil" if centre == "align_corners" else "floor"
    sizes = c.ints(*dims[:2], *out) if exact is None else None
    return c.add(
        "Resize", c.x, None, exact, sizes, mode=mode, coordinate_transformation_mode=centre, nearest_mode=rounding
    )


def pixel_unshuffle(c: Context) -> Value:
    n, channels, height, width = c.image(c.x)
    r = max(1, c.integer("downscale_factor", 1))
    x = c.reshape(c.x, n, channels, height // r, r, width // r, r)
    return c.reshape(c.add("Transpose", x, perm=(0, 1, 3, 5, 2, 4)), n, channels * r * r, height // r, width // r)


def repeated(c: Context) -> Value:
    """Each element of an axis several times in a row."""
    axis = c.axis(c.integer("dim", c.integer("axis")), len(c.dims))
    places = np.repeat(np.arange(c.dims[axis]), c.integer("Repeats", c.integer("repeats", 1)))
    return c.add("Gather", c.x, places.astype(np.int64), axis=axis)


def crop(c: Context) -> Value:
    given = [(slot, name) for slot, name in (("Offsets", "offsets"), ("Shape", "shape"))]
    starts, sizes = (
        [int(n) for n in v.array] if (v := c.vector(slot)) is not None and v.constant else c.numbers(name)
        for slot, name in given
    )
    ends = [n if k < 0 else s + k for s, k, n in zip(starts, sizes, c.dims, strict=True)]
    return c.slice(c.x, starts, ends, range(len(c.dims)))


def fold(c: Context) -> Value:
    """Windows summed where they overlap."""
    pads = c.numbers("paddings")
    window: dict[str, Any] = {
        "strides": c.numbers("strides"),
        "dilations": c.numbers("dilations"),
        "pads": pads * 2 if len(pads) == 2 else pads,
    }
    size, kernel = c.numbers("output_sizes"), c.numbers("kernel_sizes")
    return spelled(c.builder, "Col2Im", [c.x, c.ints(*size), c.ints(*kernel)], **window)[0]


# ----------------------------------------------------------------------------------------------- other
def shape(c: Context) -> Value:
    return c.add("Cast", c.add("Shape", c.x), to="i32")


def fill_constant(c: Context) -> Value:
    dims = c.vector("ShapeTensor", "ShapeTensorList")
    text = c.text("str_value")
    number = float(text) if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", text) else c.number("value")
    data = np.array(number).astype(numpy_type(c.integer("dtype", 5)))
    return c.add("Expand", data, dims if dims is not None else c.ints(*c.numbers("shape")))


def assign_value(c: Context) -> Value:
    code = c.integer("dtype", 5)
    field = {0: "bool_values", 2: "int32_values", 3: "int64_values"}.get(code, "fp32_values")
    values = c.attributes.get("values", [])
    values = values if len(values) else c.attributes.get(field, [])
    dims = c.numbers("shape")
    return c.builder.constant(np.asarray(values).astype(numpy_type(code)).reshape(dims), "values")


def cast(c: Context) -> Value:
    code = c.integer("out_dtype", 5)
    if code not in _TYPES:
        raise RefusedError(f"elements of type {code} are not supported")
    return c.add("Cast", c.x, to=_TYPES[code])


def gather(c: Context) -> Value:
    index = c.input("Index")
    flat = c.reshape(index, -1) if len(c.builder.dims(index)) == 2 else index
    return c.add("Gather", c.x, c.add("Cast", flat, to="i64"), axis=c.integer("axis"))


def lookup(c: Context) -> Value:
    ids = c.input("Ids")
    if c.type == "lookup_table" and c.builder.dims(ids)[-1:] == (1,):
        ids = c.add("Squeeze", ids, c.ints(-1))
    return c.add("Gather", c.input("W"), c.add("Cast", ids, to="i64"), axis=0)


def dropout(c: Context) -> Value:
    """Of old programs, which scale when they are run and not when they are trained."""
    downgrade = c.text("dropout_implementation", "downgrade_in_infer") == "downgrade_in_infer"
    return c.add("Mul", c.x, 1 - c.number("dropout_prob", 0.5)) if downgrade else c.x


OPERATORS: dict[str, Callable[[Context], Result]] = {
    **dict.fromkeys(("conv2d", "depthwise_conv2d", "conv3d"), convolution),
    **dict.fromkeys(("conv2d_transpose", "depthwise_conv2d_transpose"), deconvolution),
    **dict.fromkeys(("batch_norm", "sync_batch_norm"), batch_norm),
    **dict.fromkeys(("pool2d", "pool3d"), pooling),
    **{
        f"elementwise_{name}": binary(type)
        for name, type in (
            ("add", "Add"),
            ("sub", "Sub"),
            ("mul", "Mul"),
            ("div", "Div"),
            ("max", "Max"),
            ("min", "Min"),
            ("pow", "Pow"),
        )
    },
    **{
        f"reduce_{name}": reduce(f"Reduce{type}")
        for name, type in (
            ("mean", "Mean"),
            ("sum", "Sum"),
            ("max", "Max"),
            ("min", "Min"),
            ("amax", "Max"),
            ("amin", "Min"),
            ("prod", "Prod"),
        )
    },
    **{
        name: simple(type)
        for name, type in (
            ("relu", "Relu"),
            ("sigmoid", "Sigmoid"),
            ("tanh", "Tanh"),
            ("silu", "Swish"),
            ("mish", "Mish"),
            ("exp", "Exp"),
            ("log", "Log"),
            ("sqrt", "Sqrt"),
            ("abs", "Abs"),
            ("floor", "Floor"),
            ("ceil", "Ceil"),
            ("round", "Round"),
            ("reciprocal", "Reciprocal"),
            ("sin", "Sin"),
            ("cos", "Cos"),
            ("erf", "Erf"),
            ("softsign", "Softsign"),
            ("logical_not", "Not"),
            ("sign", "Sign"),
        )
    },
    **{
        name: both(type)
        for name, type in (
            ("equal", "Equal"),
            ("greater_than", "Greater"),
            ("greater_equal", "GreaterOrEqual"),
            ("less_than", "Less"),
            ("less_equal", "LessOrEqual"),
            ("logical_and", "And"),
            ("logical_or", "Or"),
            ("bmm", "MatMul"),
        )
    },
    "relu6": lambda c: c.add("Clip", c.x, 0.0, c.number("threshold", 6.0)),
    "square": lambda c: c.add("Mul", c.x, c.x),
    "rsqrt": lambda c: c.chain(c.x, "Sqrt", "Reciprocal"),
    "leaky_relu": alpha("LeakyRelu", "alpha", "alpha", 0.02),
    "elu": alpha("Elu", "alpha", "alpha", 1.0),
    "swish": alpha("Swish", "alpha", "beta", 1.0),
    "gelu": lambda c: c.add("Gelu", c.x, approximate="tanh" if c.integer("approximate") else "none"),
    "selu": lambda c: c.add("Selu", c.x, alpha=c.number("alpha", 1.6732632), gamma=c.number("scale", 1.050701)),
    "hard_sigmoid": lambda c: c.add("HardSigmoid", c.x, alpha=c.number("slope", 0.2), beta=c.number("offset", 0.5)),
    "hard_swish": hard_swish,
    "prelu": prelu,
    "pow": lambda c: c.add("Pow", c.x, c.number("factor", 1.0)),
    "clip": clip,
    "scale": scale,
    "mul": matrix_product,
    "fc": fully_connected,
    "matmul": matmul,
    "matmul_v2": matmul,
    "softmax": lambda c: c.add("Softmax", c.x, axis=c.integer("axis", -1)),
    "log_softmax": lambda c: c.add("LogSoftmax", c.x, axis=c.integer("axis", -1)),
    "sum": lambda c: c.fold("Add", c.slots["X"]),
    "mean": lambda c: c.add("ReduceMean", c.x, keepdims=0),
    "layer_norm": layer_norm,
    "instance_norm": instance_norm,
    "group_norm": normalised_groups,
    "norm": normalize,
    "affine_channel": lambda c: c.add(
        "Add", c.add("Mul", c.x, c.channels(c.input("Scale"), c.x)), c.channels(c.input("Bias"), c.x)
    ),
    "lrn": lambda c: c.add(
        "LRN",
        c.x,
        size=c.integer("n", 5),
        alpha=c.number("alpha", 1e-4) * c.integer("n", 5),
        beta=c.number("beta", 0.75),
        bias=c.number("k", 2.0),
    ),
    "arg_max": arg("ArgMax"),
    "arg_min": arg("ArgMin"),
    "reshape": reshape,
    "reshape2": reshape,
    "transpose": transpose,
    "transpose2": transpose,
    "flatten": flatten,
    "flatten2": flatten,
    "flatten_contiguous_range": flatten_range,
    "squeeze": squeeze,
    "squeeze2": squeeze,
    "unsqueeze": unsqueeze,
    "unsqueeze2": unsqueeze,
    "slice": slices,
    "strided_slice": slices,
    "split": split,
    "concat": concat,
    "stack": lambda c: c.stacked(c.slots["X"], c.integer("axis")),
    "unstack": lambda c: c.unstacked(c.x, c.integer("axis")),
    "expand_v2": expand,
    "expand": tile,
    "tile": tile,
    "pad": pad,
    "pad2d": pad,
    "pad3d": pad,
    **{
        f"{kind}_interp{version}": interpolate
        for kind in ("nearest", "linear", "bilinear", "trilinear", "bicubic")
        for version in ("", "_v2")
    },
    **{f"elementwise_f{name}": binary(type) for name, type in (("max", "Max"), ("min", "Min"))},
    "trunc": lambda c: truncated(c, c.x),
    "channel_shuffle": lambda c: c.shuffled(c.x, c.integer("groups", 1)),
    "pixel_unshuffle": pixel_unshuffle,
    "repeat_interleave": repeated,
    "crop_tensor": crop,
    "fold": fold,
    "einsum": lambda c: c.add("Einsum", *c.slots["Operands"], equation=c.text("equation")),
    "increment": lambda c: c.add(
        "Add", c.x, np.array(c.number("step", c.number("value", 1.0)), c.builder.type(c.x).dtype.numpy)
    ),
    "shape64": lambda c: c.add("Shape", c.x),
    "pixel_shuffle": lambda c: c.add("DepthToSpace", c.x, blocksize=c.integer("upscale_factor", 1), mode="CRD"),
    "shuffle_channel": lambda c: c.shuffled(c.x, c.integer("group", 1)),
    "shape": shape,
    "fill_constant": fill_constant,
    "assign_value": assign_value,
    "assign": same,
    "cast": cast,
    "gather": gather,
    "lookup_table": lookup,
    "lookup_table_v2": lookup,
    "dropout": dropout,
    "rnn": rnn,
    "where": lambda c: c.add("Where", c.input("Condition"), c.x, c.input("Y")),
    **DETECTION,
    **BOXES,
    **ELEMENTS,
    **FUNCTIONS,
    "conv3d_transpose": deconvolution,
    "share_data": same,
    "memcpy": same,
}
