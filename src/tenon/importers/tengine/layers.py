"""Tengine's operators in ONNX operators: ``LAYERS`` by their numbers, with their parameters in the file's order.

Definitions: tm2_format.h, source/operator/prototype and the reference kernels of OAID/Tengine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.decompositions import caffe_family as family
from tenon.decompositions.channels_last import same_padding
from tenon.decompositions.layers import batch_to_space, space_to_batch
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made, same, simple
from tenon.importers.tengine import data_movement, detection, recurrent
from tenon.importers.tengine.context import Context, Layer
from tenon.ir.graph import Value


# ------------------------------------------------------------------------------------- with parameters
def _activated(c: Context, x: Value) -> Value:
    kind = c.p["activation"]
    if kind < 0:
        return x
    if kind not in (0, 1, 6):
        raise RefusedError(f"activation {kind} is not supported")
    return c.add("Relu", x) if kind == 0 else c.add("Clip", x, -1.0 if kind == 1 else 0.0, float(kind))


def _window(c: Context) -> dict[str, Any]:
    p = c.p
    window = {
        "kernel_shape": (p["kernel_h"], p["kernel_w"]),
        "strides": (p["stride_h"], p["stride_w"]),
        "dilations": (max(1, p["dilation_h"]), max(1, p["dilation_w"])),
        "group": max(1, p["group"]),
    }
    if p["pad_h0"] < 0 or p["pad_w0"] < 0:
        return window | {"auto_pad": "SAME_UPPER"}
    return window | {"pads": (p["pad_h0"], p["pad_w0"], p["pad_h1"], p["pad_w1"])}


def _with_bias(c: Context) -> Sequence[Value]:
    """The inputs; a bias may be stored with leading ones."""
    flat = [c.add("Reshape", value, c.ints(-1)) for value in c.inputs[2:3]]
    return [*c.inputs[:2], *flat]


def convolution(c: Context) -> Value:
    return _activated(c, c.add("Conv", *_with_bias(c), **_window(c)))


def deconvolution(c: Context) -> Value:
    window = _window(c) | {"output_padding": (c.p["output_pad_h0"], c.p["output_pad_w0"])}
    return _activated(c, c.add("ConvTranspose", *_with_bias(c), **window))


def fully_connected(c: Context) -> Value:
    flat = c.add("Reshape", c.x, c.ints(c.dims()[0], -1))
    transposed = c.dims(1)[0] == c.p["num_output"]
    return c.add("Gemm", flat, *_with_bias(c)[1:], transB=int(transposed))


def batch_norm(c: Context) -> Value:
    """Inputs gamma, beta, mean, variance; of Caffe's flavour the first two say nothing."""
    if len(c.inputs) != 5:
        raise RefusedError(f"it has {len(c.inputs)} inputs instead of 5")
    _, gamma, beta, mean, variance = c.inputs
    factor = 1 / c.p["rescale_factor"] if c.p["rescale_factor"] else 0.0
    if factor != 1:
        mean, variance = c.add("Mul", mean, factor), c.add("Mul", variance, factor)
    ones, zeros = np.ones(c.dims()[1], np.float32), np.zeros(c.dims()[1], np.float32)
    scale, bias = (ones, zeros) if c.p["caffe_flavor"] else (gamma, beta)
    return c.add("BatchNormalization", c.x, scale, bias, mean, variance, epsilon=c.p["eps"])


def scale(c: Context) -> Value:
    x = c.add("Mul", c.x, c.spread(1, c.p["axis"] or 1))
    return c.add("Add", x, c.spread(2, c.p["axis"] or 1)) if len(c.inputs) > 2 else x


def lrn(c: Context) -> Value:
    p = c.p
    k = p["k"] or p["bias"] or 1.0
    within = bool(p["norm_region"])
    return family.local_response(c, c.x, p["local_size"], p["alpha"], p["beta"], k, within=within)


def normalize(c: Context) -> Value:
    """Every place (or the whole picture) made one long, times a scale per channel."""
    y = family.of_length_one(c, c.x, (1, 2, 3) if c.p["across_spatial"] else (1,), 1e-10)
    return c.add("Mul", y, c.spread(1, 1))


def l2_normalization(c: Context) -> Value:
    return c.add("Div", c.x, c.add("ReduceL2", c.x, c.ints(*range(1, len(c.dims()))), keepdims=1))


def mvn(c: Context) -> Value:
    eps = c.p["eps"] if c.p["normalize_variance"] else None
    return family.mean_variance(c, c.x, across_channels=bool(c.p["across_channels"]), eps=eps)


# --------------------------------------------------------------------------------------------- pooling
def pooling(c: Context) -> Value:
    """Flavour 1 counts windows as Caffe does, rounding up; 2 has both pads in one number; pads of -1 mean SAME."""
    p, dims = c.p, c.dims()
    if len(dims) != 4 or p["alg"] not in (0, 1):
        raise RefusedError(f"pooling {p['alg']} of {list(dims)} is not supported")
    average = p["alg"] == 1
    if p["global"] or (p["kernel_h"], p["kernel_w"]) == dims[2:]:
        return c.add("GlobalAveragePool" if average else "GlobalMaxPool", c.x)
    flavor = p["caffe_flavor"] & ~0x10
    before, after = [], []
    for size, side in zip(dims[2:], "hw", strict=True):
        first, last = _pads(size, p[f"kernel_{side}"], p[f"stride_{side}"], p[f"pad_{side}0"], flavor)
        before.append(first)
        after.append(last)
    window = {
        "kernel_shape": (p["kernel_h"], p["kernel_w"]),
        "strides": (p["stride_h"], p["stride_w"]),
        "pads": (*before, *after),
    }
    if average:
        return c.add("AveragePool", c.x, count_include_pad=int(bool(p["caffe_flavor"] & 0x10)), **window)
    return c.add("MaxPool", c.x, **window)


def _pads(size: int, kernel: int, stride: int, pad: int, flavor: int) -> tuple[int, int]:
    """Before and after one axis, so that the plain rule counts as many windows as Tengine."""
    if min(kernel, stride) < 1:
        raise RefusedError(f"windows of {kernel} with stride {stride} are impossible")
    if flavor == 2:
        return pad // 2, pad - pad // 2
    if pad < 0:
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + kernel - size)
        return total // 2, total - total // 2
    span = size + 2 * pad - kernel
    count = (-(-span // stride) if flavor == 1 else span // stride) + 1
    if flavor == 1 and pad > 0 and (count - 1) * stride >= size + pad:
        count -= 1
    return pad, max(0, (count - 1) * stride + kernel - size - pad)


# ------------------------------------------------------------------------------------------ arithmetic
_PAIRS = {0: "Mul", 1: "Mul", 2: "Add", 3: "Add", 4: "Sub", 5: "Sub", 6: "Max", 8: "Min", 10: "Div", 16: "Pow"}
_SINGLES = {7: ("Sqrt", "Reciprocal"), 11: ("Log",), 12: ("Exp",), 13: ("Sqrt",), 14: ("Floor",)}


def eltwise(c: Context) -> Value:
    kind = c.p["type"]
    if kind in _PAIRS and len(c.inputs) == 2:
        return c.add(_PAIRS[kind], *c.matched())
    if kind in _SINGLES:
        return c.chain(c.x, *_SINGLES[kind])
    if kind == 15:
        return c.square(c.x)
    if kind == 17:
        return family.power(c, c.x, c.p["power"], c.p["scale"], c.p["shift"])
    raise RefusedError(f"type {kind} with {len(c.inputs)} inputs is not supported")


def many(type: str) -> Callable[[Context], Value]:
    return lambda c: c.fold(type, c.inputs)


_REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


def reduction(c: Context) -> Value:
    """Axes are -2 where there are none; none at all means every one."""
    if not 0 <= c.p["type"] < len(_REDUCTIONS):
        raise RefusedError(f"type {c.p['type']} is not supported")
    axes = [c.p[f"dim_{i}"] for i in range(4)]
    rank = len(c.dims())
    chosen = sorted({a % rank for a in axes if -rank <= a < rank and a != -2}) or list(range(rank))
    return c.add(_REDUCTIONS[c.p["type"]], c.x, c.ints(*chosen), keepdims=c.p["keepdim"])


def hard_swish(c: Context) -> Value:
    """x * clip(x + 3, 0, 6) / 6, whatever alpha and beta say in files of Tengine's own converter: those are 1 and 3."""
    alpha, beta = c.p["alpha"] or 1.0, c.p["beta"]
    return c.add("Mul", c.x, c.add("HardSigmoid", c.x, alpha=alpha / 6, beta=beta / 6))


# ---------------------------------------------------------------------------------------------- others
def top_k(c: Context) -> Made:
    values, places = c.builder.adds("TopK", 2, c.x, c.ints(c.p["k"]), axis=-1)
    return [values, c.add("Cast", places, to="i32")]


def embedding(c: Context) -> Value:
    """Inputs: numbers, the table [words, outputs], a bias."""
    table = c.reshape(c.input(1), -1, c.p["num_output"])
    x = c.add("Gather", table, c.add("Cast", c.x, to="i64"), axis=0)
    return c.add("Add", x, c.reshape(c.input(2), -1)) if c.p["bias_term"] else x


def l2_pool(c: Context) -> Value:
    """The root of the mean of squares; padding 1 is SAME, of which a mean does not count.  Old versions have
    SpatialTransformer here."""
    if len(c.inputs) > 1:
        c = Context(c.builder, c.reader, c.node, c.inputs, data_movement.TRANSFORMER)
        return data_movement.spatial_transformer(c)
    p = c.p
    kernel, strides = (p["kernel_h"], p["kernel_w"]), (p["stride_h"], p["stride_w"])
    pads = [(0, 0), (0, 0)]
    if p["padding"] == 1:
        pads = [same_padding(n, k, s) for n, k, s in zip(c.dims()[2:], kernel, strides, strict=True)]
    (top, bottom), (left, right) = pads
    mean = c.add("AveragePool", c.square(c.x), kernel_shape=kernel, strides=strides, pads=(top, left, bottom, right))
    return c.add("Sqrt", mean)


_COMPARISONS = ("Equal", "", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def comparison(c: Context) -> Value:
    kind = c.p["type"]
    if not 0 <= kind < len(_COMPARISONS):
        raise RefusedError(f"type {kind} is not supported")
    found = c.add(_COMPARISONS[kind] or "Equal", *c.matched())
    return c.add("Cast", found if _COMPARISONS[kind] else c.add("Not", found), to="f32")


def logical(c: Context) -> Value:
    if c.p["type"] not in (0, 1):
        raise RefusedError(f"type {c.p['type']} is not supported")
    sides = (c.add("Cast", side, to="bool") for side in c.matched())
    return c.add("Cast", c.add("Or" if c.p["type"] else "And", *sides), to="f32")


def arg(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add("Cast", c.add(type, c.x, axis=c.along(), keepdims=c.p["keepdims"]), to="i32")


_CONV = (
    "kernel_h kernel_w stride_h stride_w dilation_h dilation_w input_channel output_channel group activation "
    "pad_h0 pad_w0 pad_h1 pad_w1"
)
_DECONV = (
    "num_output kernel_h kernel_w stride_h stride_w pad_w0 pad_h0 pad_w1 pad_h1 dilation_h dilation_w group "
    "activation output_pad_h0 output_pad_w0"
)
_POOL = "alg kernel_h kernel_w stride_h stride_w global caffe_flavor pad_h0 pad_w0 pad_h1 pad_w1"
_SLICE = "axis points:I begins:I sizes:I iscaffe ismxnet isonnx begin end step"
_STRIDED = " ".join(f"{what}_{axis}" for axis in "nchw" for what in ("begin", "end", "stride"))
_PAD = " ".join(f"pad_{axis}_{end}" for axis in "nchw" for end in (0, 1)) + " mode value:f"
_CROP = "num_args offset_c offset_h offset_w crop_h crop_w center_crop axis flag"


LAYERS: dict[int, Layer] = {
    **detection.LAYERS,
    **recurrent.LAYERS,
    1: ("BatchNormalization", "rescale_factor:f eps:f caffe_flavor", batch_norm),
    2: ("Resize", "scale_x:f scale_y:f type", data_movement.resize),
    3: ("Concat", "axis", data_movement.concat),
    5: ("Convolution", _CONV, convolution),
    6: ("Deconvolution", _DECONV, deconvolution),
    8: ("Dropout", "", same),
    9: ("Eltwise", "type caffe_flavor shift:f power:f scale:f", eltwise),
    10: ("Flatten", "axis end_axis", data_movement.flatten),
    11: ("FullyConnected", "num_output", fully_connected),
    13: ("LRN", "local_size alpha:f beta:f norm_region k:f bias:f", lrn),
    14: ("Normalize", "across_spatial channel_shared", normalize),
    15: ("Permute", "flag order0 order1 order2 order3", data_movement.permute),
    16: ("Pooling", _POOL, pooling),
    17: ("PReLU", "", lambda c: c.add("PRelu", c.x, c.spread(1, 1))),
    20: ("ReLU", "slope:f", lambda c: family.rectified(c, c.x, c.p["slope"])),
    21: ("ReLU6", "", lambda c: c.add("Clip", c.x, 0.0, 6.0)),
    22: ("Reorg", "stride", lambda c: family.reorg(c, c.x, c.p["stride"])),
    23: ("Reshape", "is_mxnet reverse shape:I is_onnx", data_movement.reshape),
    26: ("Scale", "axis num_axes bias_term", scale),
    27: ("Slice", _SLICE, data_movement.slice),
    28: ("Softmax", "axis", lambda c: c.add("Softmax", c.x, axis=c.along())),
    29: ("Split", "axis split_dim flags sizes:I", data_movement.split),
    31: (
        "Gemm",
        "alpha:f beta:f transA transB",
        lambda c: c.add("Gemm", *c.inputs, **{k: c.p[k] for k in ("alpha", "beta", "transA", "transB")}),
    ),
    33: ("Logistic", "", simple("Sigmoid")),
    36: ("Tanh", "", simple("Tanh")),
    37: ("Sigmoid", "", simple("Sigmoid")),
    38: ("Squeeze", "dim_0 dim_1 dim_2 dim_3", data_movement.squeeze),
    40: ("Pad", _PAD, data_movement.pad),
    41: ("StridedSlice", _STRIDED, data_movement.strided_slice),
    42: ("ArgMax", "axis keepdims", arg("ArgMax")),
    43: ("ArgMin", "axis keepdims", arg("ArgMin")),
    44: ("TopKV2", "k sorted", top_k),
    45: ("Reduction", "dim_0 dim_1 dim_2 dim_3 type keepdim", reduction),
    46: ("Maximum", "", many("Max")),
    47: ("Minimum", "", many("Min")),
    49: ("Addn", "axis", many("Add")),
    50: ("SwapAxis", "dim_0 dim_1", data_movement.swap_axis),
    52: ("SpaceToBatchND", "wide high top bottom left right", data_movement.blocks(space_to_batch)),
    53: ("BatchToSpaceND", "wide high top bottom left right", data_movement.blocks(batch_to_space)),
    51: ("Upsample", "scale:f", data_movement.upsample),
    54: ("Resize", "scale_x:f scale_y:f type", data_movement.resize),
    55: ("ShuffleChannel", "group", lambda c: c.shuffled(c.x, c.p["group"])),
    56: ("Crop", _CROP, data_movement.crop),
    59: ("Unary", "type", lambda c: family.unary(c, c.x, c.p["type"])),
    60: ("ExpandDims", "axis", lambda c: c.add("Unsqueeze", c.x, c.ints(c.p["axis"]))),
    61: ("Bias", "size", lambda c: c.add("Add", c.x, c.spread(1, 1))),
    62: ("Noop", "", same),
    63: ("Threshold", "threshold:f", lambda c: family.exceeds(c, c.x, c.p["threshold"])),
    64: ("HardSigmoid", "alpha:f beta:f", lambda c: c.add("HardSigmoid", c.x, alpha=c.p["alpha"], beta=c.p["beta"])),
    65: ("Embedding", "num_output input_dim bias_term size", embedding),
    66: ("InstanceNorm", "eps:f", lambda c: c.add("InstanceNormalization", *c.inputs, epsilon=c.p["eps"])),
    67: ("MVN", "across_channels normalize_variance eps:f", mvn),
    68: ("AbsVal", "", simple("Abs")),
    69: ("Cast", "from to", lambda c: c.x),
    70: ("HardSwish", "alpha:f beta:f", hard_swish),
    71: ("Interp", "resize_type width_scale:f height_scale:f output_width output_height", data_movement.interp),
    72: ("SELU", "alpha:f lambda:f", lambda c: c.add("Selu", c.x, alpha=c.p["alpha"], gamma=c.p["lambda"])),
    73: ("ELU", "alpha:f", lambda c: c.add("Elu", c.x, alpha=c.p["alpha"])),
    74: ("BroadMul", "", lambda c: c.add("Mul", *c.matched())),
    76: ("Gather", "axis indices_num is_onnx", data_movement.gather),
    75: ("Logical", "type", logical),
    77: ("Transpose", "shape:I", data_movement.transpose),
    78: ("Comparison", "type", comparison),
    79: ("SpaceToDepth", "block", lambda c: c.add("SpaceToDepth", c.x, blocksize=c.p["block"])),
    80: ("DepthToSpace", "block", lambda c: c.add("DepthToSpace", c.x, blocksize=c.p["block"])),
    81: ("Reverse", "", data_movement.reverse),
    82: ("SparseToDense", "rows columns default", data_movement.sparse_to_dense),
    86: ("ZerosLike", "", lambda c: c.builder.constant(np.zeros(c.dims(), np.float32), "zeros")),
    83: ("Ceil", "", simple("Ceil")),
    84: ("SquaredDifference", "", lambda c: c.square(c.add("Sub", *c.matched()))),
    85: ("Round", "", simple("Round")),
    87: ("Clip", "max:f min:f", lambda c: c.add("Clip", c.x, c.p["min"], c.p["max"])),
    88: ("Unsqueeze", "axes:I", lambda c: c.add("Unsqueeze", c.x, c.ints(*map(int, c.p["axes"])))),
    89: ("ReduceL2", "axis keepdim", lambda c: c.add("ReduceL2", c.x, c.ints(c.p["axis"]), keepdims=c.p["keepdim"])),
    90: ("Mean", "", lambda c: c.add("Mean", *c.inputs)),
    91: ("MatMul", "shape:I", data_movement.expand),
    92: ("Expand", "shape:I", data_movement.expand),
    93: (
        "Scatter",
        "axis",
        lambda c: c.add("ScatterElements", c.x, c.add("Cast", c.input(1), to="i64"), c.input(2), axis=c.along()),
    ),
    94: ("Shape", "", lambda c: c.add("Cast", c.add("Shape", c.x), to="i32")),
    95: ("Where", "", lambda c: c.add("Where", c.add("Cast", c.x, to="bool"), c.input(1), c.input(2))),
    96: ("Tile", "frame size times:I", data_movement.tile),
    97: ("Mish", "", simple("Mish")),
    98: ("L2Pool", "padding kernel_h kernel_w stride_h stride_w", l2_pool),
    99: ("LogSoftmax", "axis", lambda c: c.add("LogSoftmax", c.x, axis=c.p["axis"])),
    100: ("ReLU1", "", lambda c: c.add("Clip", c.x, -1.0, 1.0)),
    101: ("L2Normalization", "", l2_normalization),
    102: ("Softplus", "", simple("Softplus")),
    103: ("Reciprocal", "", simple("Reciprocal")),
    105: ("SpatialTransformer", data_movement.TRANSFORMER, data_movement.spatial_transformer),
    106: ("GELU", "", simple("Gelu")),
    107: ("LayerNorm", "eps:f", lambda c: c.add("LayerNormalization", *c.inputs, axis=-1, epsilon=c.p["eps"])),
}
"""Number: name, parameters, function.  12 and 4, inputs and constants, are not layers."""
