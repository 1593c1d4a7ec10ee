"""Tengine's operators in ONNX operators: ``LAYERS`` by their numbers, with their parameters in the file's order.

Definitions: tm2_format.h, source/operator/prototype and the reference kernels of OAID/Tengine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.decompositions.channels_last import same_padding
from tenon.formats.decompositions.layers import batch_to_space, space_to_batch
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, same, simple
from tenon.formats.importers.tengine import data_movement, detection, recurrent
from tenon.formats.importers.tengine.node import LayerRow, TengineNode
from tenon.network.graph.graph import Value


# ------------------------------------------------------------------------------------- with parameters
def _activated(node: TengineNode, x: Value) -> Value:
    kind = node.attributes["activation"]
    if kind < 0:
        return x
    if kind not in (0, 1, 6):
        raise RefusedError(f"activation {kind} is not supported")
    return node.add("Relu", x) if kind == 0 else node.add("Clip", x, -1.0 if kind == 1 else 0.0, float(kind))


def _window(node: TengineNode) -> dict[str, Any]:
    p = node.attributes
    window = {
        "kernel_shape": (p["kernel_h"], p["kernel_w"]),
        "strides": (p["stride_h"], p["stride_w"]),
        "dilations": (max(1, p["dilation_h"]), max(1, p["dilation_w"])),
        "group": max(1, p["group"]),
    }
    if p["pad_h0"] < 0 or p["pad_w0"] < 0:
        return window | {"auto_pad": "SAME_UPPER"}
    return window | {"pads": (p["pad_h0"], p["pad_w0"], p["pad_h1"], p["pad_w1"])}


def _with_bias(node: TengineNode) -> Sequence[Value]:
    """The inputs; a bias may be stored with leading axes of 1."""
    flat = [node.add("Reshape", value, node.ints(-1)) for value in node.inputs[2:3]]
    return [*node.inputs[:2], *flat]


def convolution(node: TengineNode) -> Value:
    return _activated(node, node.add("Conv", *_with_bias(node), **_window(node)))


def deconvolution(node: TengineNode) -> Value:
    window = _window(node) | {"output_padding": (node.attributes["output_pad_h0"], node.attributes["output_pad_w0"])}
    return _activated(node, node.add("ConvTranspose", *_with_bias(node), **window))


def fully_connected(node: TengineNode) -> Value:
    flat = node.add("Reshape", node.x, node.ints(node.dims[0], -1))
    transposed = node.dims_of(1)[0] == node.attributes["num_output"]
    return node.add("Gemm", flat, *_with_bias(node)[1:], transB=int(transposed))


def batch_norm(node: TengineNode) -> Value:
    """Inputs gamma, beta, mean, variance; in Caffe's flavour the first two are not used."""
    if len(node.inputs) != 5:
        raise RefusedError(f"it has {len(node.inputs)} inputs instead of 5")
    _, gamma, beta, mean, variance = node.inputs
    factor = 1 / node.attributes["rescale_factor"] if node.attributes["rescale_factor"] else 0.0
    if factor != 1:
        mean, variance = node.add("Mul", mean, factor), node.add("Mul", variance, factor)
    ones, zeros = np.ones(node.dims[1], np.float32), np.zeros(node.dims[1], np.float32)
    scale, bias = (ones, zeros) if node.attributes["caffe_flavor"] else (gamma, beta)
    return node.add("BatchNormalization", node.x, scale, bias, mean, variance, epsilon=node.attributes["eps"])


def scale(node: TengineNode) -> Value:
    x = node.add("Mul", node.x, node.spread(1, node.attributes["axis"] or 1))
    return node.add("Add", x, node.spread(2, node.attributes["axis"] or 1)) if len(node.inputs) > 2 else x


def lrn(node: TengineNode) -> Value:
    p = node.attributes
    k = p["k"] or p["bias"] or 1.0
    within = bool(p["norm_region"])
    return family.local_response(node, node.x, p["local_size"], p["alpha"], p["beta"], k, within=within)


def normalize(node: TengineNode) -> Value:
    """Every position (or the image) L2-normalised, times a scale per channel."""
    y = family.l2_normalised(node, node.x, (1, 2, 3) if node.attributes["across_spatial"] else (1,), 1e-10)
    return node.add("Mul", y, node.spread(1, 1))


def l2_normalization(node: TengineNode) -> Value:
    return node.add("Div", node.x, node.add("ReduceL2", node.x, node.ints(*range(1, len(node.dims))), keepdims=1))


def mvn(node: TengineNode) -> Value:
    eps = node.attributes["eps"] if node.attributes["normalize_variance"] else None
    return family.mean_variance(node, node.x, across_channels=bool(node.attributes["across_channels"]), eps=eps)


# --------------------------------------------------------------------------------------------- pooling
def pooling(node: TengineNode) -> Value:
    """Flavour 1 rounds the number of windows up, as Caffe; 2 has both pads in one number; pads of -1 mean SAME."""
    p, dims = node.attributes, node.dims
    if len(dims) != 4 or p["alg"] not in (0, 1):
        raise RefusedError(f"pooling {p['alg']} of {list(dims)} is not supported")
    average = p["alg"] == 1
    padded = any(p[f"pad_{side}"] for side in ("h0", "w0", "h1", "w1"))
    if p["global"] or ((p["kernel_h"], p["kernel_w"]) == dims[2:] and not padded):
        return node.add("GlobalAveragePool" if average else "GlobalMaxPool", node.x)
    flavor = p["caffe_flavor"] & ~0x10
    before, after = [], []
    for size, side in zip(dims[2:], "hw", strict=True):
        first, last = pool_pads(size, p[f"kernel_{side}"], p[f"stride_{side}"], p[f"pad_{side}0"], flavor)
        before.append(first)
        after.append(last)
    window = {
        "kernel_shape": (p["kernel_h"], p["kernel_w"]),
        "strides": (p["stride_h"], p["stride_w"]),
        "pads": (*before, *after),
    }
    if average:
        return node.add("AveragePool", node.x, count_include_pad=int(bool(p["caffe_flavor"] & 0x10)), **window)
    return node.add("MaxPool", node.x, **window)


def pool_pads(size: int, kernel: int, stride: int, pad: int, flavor: int) -> tuple[int, int]:
    """Pads of one axis with which floor mode gives Tengine's number of windows."""
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
_BINARY = {0: "Mul", 1: "Mul", 2: "Add", 3: "Add", 4: "Sub", 5: "Sub", 6: "Max", 8: "Min", 10: "Div", 16: "Pow"}
_UNARY = {7: ("Sqrt", "Reciprocal"), 11: ("Log",), 12: ("Exp",), 13: ("Sqrt",), 14: ("Floor",)}


def eltwise(node: TengineNode) -> Value:
    kind = node.attributes["type"]
    if kind in _BINARY and len(node.inputs) == 2:
        return node.add(_BINARY[kind], *node.matched())
    if kind in _UNARY:
        return node.chain(node.x, *_UNARY[kind])
    if kind == 15:
        return node.square(node.x)
    if kind == 17:
        return family.power(node, node.x, node.attributes["power"], node.attributes["scale"], node.attributes["shift"])
    raise RefusedError(f"type {kind} with {len(node.inputs)} inputs is not supported")


def many(type: str) -> Callable[[TengineNode], Value]:
    return lambda node: node.fold(type, node.inputs)


_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceL1",
    "ReduceSumSquare",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
)


def reduction(node: TengineNode) -> Value:
    """Absent axes are -2; without any axis, all are reduced."""
    if not 0 <= node.attributes["type"] < len(_REDUCTIONS):
        raise RefusedError(f"type {node.attributes['type']} is not supported")
    axes = [node.attributes[f"dim_{i}"] for i in range(4)]
    rank = len(node.dims)
    chosen = sorted({a % rank for a in axes if -rank <= a < rank and a != -2}) or list(range(rank))
    return node.add(
        _REDUCTIONS[node.attributes["type"]], node.x, node.ints(*chosen), keepdims=node.attributes["keepdim"]
    )


def hard_swish(node: TengineNode) -> Value:
    """x * clip(x + 3, 0, 6) / 6, whatever alpha and beta say in files of Tengine's own converter: those are 1 and 3."""
    alpha, beta = node.attributes["alpha"] or 1.0, node.attributes["beta"]
    return node.add("Mul", node.x, node.add("HardSigmoid", node.x, alpha=alpha / 6, beta=beta / 6))


# ---------------------------------------------------------------------------------------------- others
def top_k(node: TengineNode) -> Outputs:
    values, indices = node.builder.adds("TopK", 2, node.x, node.ints(node.attributes["k"]), axis=-1)
    return [values, node.add("Cast", indices, to="i32")]


def embedding(node: TengineNode) -> Value:
    """Inputs: numbers, which are clamped to the table, the table [vocabulary, outputs], a bias."""
    table = node.reshape(node.input(1), -1, node.attributes["num_output"])
    last = np.array(node.builder.dims(table)[0] - 1, np.int64)
    numbers = node.add("Clip", node.add("Cast", node.x, to="i64"), np.array(0, np.int64), last)
    x = node.add("Gather", table, numbers, axis=0)
    return node.add("Add", x, node.reshape(node.input(2), -1)) if node.attributes["bias_term"] else x


def l2_pool(node: TengineNode) -> Value:
    """L2 pooling; padding 1 is SAME, and padding is not counted in the mean.  Old versions have
    SpatialTransformer here."""
    if len(node.inputs) > 1:
        node = TengineNode(node.builder, node.reader, node.record, node.inputs, data_movement.TRANSFORMER)
        return data_movement.spatial_transformer(node)
    p = node.attributes
    kernel, strides = (p["kernel_h"], p["kernel_w"]), (p["stride_h"], p["stride_w"])
    pads = [(0, 0), (0, 0)]
    if p["padding"] == 1:
        pads = [same_padding(n, k, s) for n, k, s in zip(node.dims[2:], kernel, strides, strict=True)]
    (top, bottom), (left, right) = pads
    mean = node.add(
        "AveragePool", node.square(node.x), kernel_shape=kernel, strides=strides, pads=(top, left, bottom, right)
    )
    return node.add("Sqrt", mean)


_COMPARISONS = ("Equal", "", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def comparison(node: TengineNode) -> Value:
    kind = node.attributes["type"]
    if not 0 <= kind < len(_COMPARISONS):
        raise RefusedError(f"type {kind} is not supported")
    result = node.add(_COMPARISONS[kind] or "Equal", *node.matched())
    return node.add("Cast", result if _COMPARISONS[kind] else node.add("Not", result), to="f32")


def logical(node: TengineNode) -> Value:
    if node.attributes["type"] not in (0, 1):
        raise RefusedError(f"type {node.attributes['type']} is not supported")
    sides = (node.add("Cast", side, to="bool") for side in node.matched())
    return node.add("Cast", node.add("Or" if node.attributes["type"] else "And", *sides), to="f32")


def arg(type: str) -> Callable[[TengineNode], Value]:
    return lambda node: node.add(
        "Cast", node.add(type, node.x, axis=node.along(), keepdims=node.attributes["keepdims"]), to="i32"
    )


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


LAYERS: dict[int, LayerRow] = {
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
    17: ("PReLU", "", lambda node: node.add("PRelu", node.x, node.spread(1, 1))),
    20: ("ReLU", "slope:f", lambda node: family.rectified(node, node.x, node.attributes["slope"])),
    21: ("ReLU6", "", lambda node: node.add("Clip", node.x, 0.0, 6.0)),
    22: ("Reorg", "stride", lambda node: family.reorg(node, node.x, node.attributes["stride"])),
    23: ("Reshape", "is_mxnet reverse shape:I is_onnx", data_movement.reshape),
    26: ("Scale", "axis num_axes bias_term", scale),
    27: ("Slice", _SLICE, data_movement.slice),
    28: ("Softmax", "axis", lambda node: node.add("Softmax", node.x, axis=node.along())),
    29: ("Split", "axis split_dim flags sizes:I", data_movement.split),
    31: (
        "Gemm",
        "alpha:f beta:f transA transB",
        lambda node: node.add(
            "Gemm", *node.inputs, **{k: node.attributes[k] for k in ("alpha", "beta", "transA", "transB")}
        ),
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
    55: ("ShuffleChannel", "group", lambda node: node.channel_shuffle(node.x, node.attributes["group"])),
    56: ("Crop", _CROP, data_movement.crop),
    59: ("Unary", "type", lambda node: family.unary(node, node.x, node.attributes["type"])),
    60: ("ExpandDims", "axis", lambda node: node.add("Unsqueeze", node.x, node.ints(node.attributes["axis"]))),
    61: ("Bias", "size", lambda node: node.add("Add", node.x, node.spread(1, 1))),
    62: ("Noop", "", same),
    63: ("Threshold", "threshold:f", lambda node: family.exceeds(node, node.x, node.attributes["threshold"])),
    64: (
        "HardSigmoid",
        "alpha:f beta:f",
        lambda node: node.add("HardSigmoid", node.x, alpha=node.attributes["alpha"], beta=node.attributes["beta"]),
    ),
    65: ("Embedding", "num_output input_dim bias_term size", embedding),
    66: (
        "InstanceNorm",
        "eps:f",
        lambda node: node.add("InstanceNormalization", *node.inputs, epsilon=node.attributes["eps"]),
    ),
    67: ("MVN", "across_channels normalize_variance eps:f", mvn),
    68: ("AbsVal", "", simple("Abs")),
    69: ("Cast", "from to", lambda node: node.x),
    70: ("HardSwish", "alpha:f beta:f", hard_swish),
    71: ("Interp", "resize_type width_scale:f height_scale:f output_width output_height", data_movement.interp),
    72: (
        "SELU",
        "alpha:f lambda:f",
        lambda node: node.add("Selu", node.x, alpha=node.attributes["alpha"], gamma=node.attributes["lambda"]),
    ),
    73: ("ELU", "alpha:f", lambda node: node.add("Elu", node.x, alpha=node.attributes["alpha"])),
    74: ("BroadMul", "", lambda node: node.add("Mul", *node.matched())),
    76: ("Gather", "axis indices_num is_onnx", data_movement.gather),
    75: ("Logical", "type", logical),
    77: ("Transpose", "shape:I", data_movement.transpose),
    78: ("Comparison", "type", comparison),
    79: ("SpaceToDepth", "block", lambda node: node.add("SpaceToDepth", node.x, blocksize=node.attributes["block"])),
    80: ("DepthToSpace", "block", lambda node: node.add("DepthToSpace", node.x, blocksize=node.attributes["block"])),
    81: ("Reverse", "", data_movement.reverse),
    82: ("SparseToDense", "rows columns default", data_movement.sparse_to_dense),
    86: ("ZerosLike", "", lambda node: node.builder.constant(np.zeros(node.dims, np.float32), "zeros")),
    83: ("Ceil", "", simple("Ceil")),
    84: ("SquaredDifference", "", lambda node: node.square(node.add("Sub", *node.matched()))),
    85: ("Round", "", simple("Round")),
    87: ("Clip", "max:f min:f", lambda node: node.add("Clip", node.x, node.attributes["min"], node.attributes["max"])),
    88: (
        "Unsqueeze",
        "axes:I",
        lambda node: node.add("Unsqueeze", node.x, node.ints(*map(int, node.attributes["axes"]))),
    ),
    89: (
        "ReduceL2",
        "axis keepdim",
        lambda node: node.add(
            "ReduceL2", node.x, node.ints(node.attributes["axis"]), keepdims=node.attributes["keepdim"]
        ),
    ),
    90: ("Mean", "", lambda node: node.add("Mean", *node.inputs)),
    91: ("MatMul", "shape:I", data_movement.expand),
    92: ("Expand", "shape:I", data_movement.expand),
    93: (
        "Scatter",
        "axis",
        lambda node: node.add(
            "ScatterElements", node.x, node.add("Cast", node.input(1), to="i64"), node.input(2), axis=node.along()
        ),
    ),
    94: ("Shape", "", lambda node: node.add("Cast", node.add("Shape", node.x), to="i32")),
    95: (
        "Where",
        "",
        lambda node: node.add("Where", node.add("Cast", node.x, to="bool"), node.input(1), node.input(2)),
    ),
    96: ("Tile", "frame size times:I", data_movement.tile),
    97: ("Mish", "", simple("Mish")),
    98: ("L2Pool", "padding kernel_h kernel_w stride_h stride_w", l2_pool),
    99: ("LogSoftmax", "axis", lambda node: node.add("LogSoftmax", node.x, axis=node.attributes["axis"])),
    100: ("ReLU1", "", lambda node: node.add("Clip", node.x, -1.0, 1.0)),
    101: ("L2Normalization", "", l2_normalization),
    102: ("Softplus", "", simple("Softplus")),
    103: ("Reciprocal", "", simple("Reciprocal")),
    105: ("SpatialTransformer", data_movement.TRANSFORMER, data_movement.spatial_transformer),
    106: ("GELU", "", simple("Gelu")),
    107: (
        "LayerNorm",
        "eps:f",
        lambda node: node.add("LayerNormalization", *node.inputs, axis=-1, epsilon=node.attributes["eps"]),
    ),
}
"""Number: name, parameters, function.  12 and 4, inputs and constants, are not layers."""
