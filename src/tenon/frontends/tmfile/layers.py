"""Tengine's operators in ONNX operators: ``LAYERS`` by their numbers, with their parameters in the file's order.

Definitions: tm2_format.h, source/operator/prototype and the reference kernels of OAID/Tengine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.frontends.emit import Emitter
from tenon.frontends.net import Net
from tenon.frontends.prior_boxes import Places, prior_boxes, sizes
from tenon.frontends.refused import RefusedError
from tenon.frontends.tmfile.file import Node, Reader
from tenon.ir.graph import Value


class Context(Emitter):
    """A node about to be made: its inputs, and its parameters as attributes of ``p``."""

    def __init__(self, net: Net, reader: Reader, node: Node, inputs: Sequence[Value], fields: str) -> None:
        super().__init__(net)
        self.reader, self.node, self.inputs = reader, node, inputs
        self.p = _parameters(reader, node.at, fields.split())

    @property
    def x(self) -> Value:
        return self.inputs[0]

    def dims(self, i: int = 0) -> tuple[int, ...]:
        if i >= len(self.inputs):
            raise RefusedError(f"input {i} is missing")
        return self.net.dims(self.inputs[i])

    def along(self, name: str = "axis") -> int:
        """The axis that a parameter names."""
        return self.axis(self.p[name], len(self.dims()))


def _parameters(reader: Reader, at: int, fields: Sequence[str]) -> dict[str, Any]:
    """Words by name: ``name`` an integer, ``name:f`` a float, ``name:I`` and ``name:F`` lists of either.

    Files of old versions have fewer; what is past the end of the file reads as 0.
    """
    found: dict[str, Any] = {}
    for i, field in enumerate(fields):
        name, _, kind = field.partition(":")
        inside = at and at + 4 * i + 4 <= len(reader.data)
        if kind in ("I", "F"):
            offset = reader.integers(at + 4 * i, 1)[0] if inside else 0
            found[name] = reader.vector(offset, "f" if kind == "F" else "i")
        else:
            word = reader.words(at + 4 * i, 1, kind or "i")[0] if inside else 0
            found[name] = word if kind != "f" or math.isfinite(word) else 0.0
    return found


Result = Value | Sequence[Value]


def _simple(type: str, **attributes: Any) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, **attributes)


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
    window = {"kernel_shape": (p["kernel_h"], p["kernel_w"]), "strides": (p["stride_h"], p["stride_w"]),
              "dilations": (max(1, p["dilation_h"]), max(1, p["dilation_w"])), "group": max(1, p["group"])}  # fmt: skip
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


def _spread(c: Context, i: int, axis: int) -> Value:
    """A vector or a block of the axes from ``axis`` on, shaped to broadcast against the input."""
    rank, own = len(c.dims()), [d for d in c.dims(i) if d != 1] or [1]
    axis = axis % rank
    return c.add("Reshape", c.inputs[i], c.ints(*own, *(1,) * max(0, rank - axis - len(own))))


def scale(c: Context) -> Value:
    x = c.add("Mul", c.x, _spread(c, 1, c.p["axis"] or 1))
    return c.add("Add", x, _spread(c, 2, c.p["axis"] or 1)) if len(c.inputs) > 2 else x


def prelu(c: Context) -> Value:
    return c.add("PRelu", c.x, _spread(c, 1, 1))


def instance_norm(c: Context) -> Value:
    return c.add("InstanceNormalization", *c.inputs, epsilon=c.p["eps"])


def lrn(c: Context) -> Value:
    if c.p["norm_region"]:
        raise RefusedError("only normalisation across channels is supported")
    p = c.p
    return c.add("LRN", c.x, size=p["local_size"], alpha=p["alpha"], beta=p["beta"], bias=p["k"] or p["bias"] or 1.0)


def normalize(c: Context) -> Value:
    """Divided by the root of the sum of squares over channels (or all), times a scale per channel."""
    axes = c.ints(1, 2, 3) if c.p["across_spatial"] else c.ints(1)
    length = c.add("Sqrt", c.add("Add", c.add("ReduceSumSquare", c.x, axes, keepdims=1), 1e-10))
    return c.add("Mul", c.add("Div", c.x, length), _spread(c, 1, 1))


def l2_normalization(c: Context) -> Value:
    return c.add("Div", c.x, c.add("ReduceL2", c.x, c.ints(*range(1, len(c.dims()))), keepdims=1))


def mvn(c: Context) -> Value:
    axes = c.ints(*range(1 if c.p["across_channels"] else 2, len(c.dims())))
    x = c.add("Sub", c.x, c.add("ReduceMean", c.x, axes, keepdims=1))
    if not c.p["normalize_variance"]:
        return x
    deviation = c.add("Sqrt", c.add("ReduceMean", c.add("Mul", x, x), axes, keepdims=1))
    return c.add("Div", x, c.add("Add", deviation, c.p["eps"]))


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
    window = {"kernel_shape": (p["kernel_h"], p["kernel_w"]), "strides": (p["stride_h"], p["stride_w"]),
              "pads": (*before, *after)}  # fmt: skip
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
        return c.add(_PAIRS[kind], *_matched(c))
    if kind in _SINGLES:
        return c.chain(c.x, *_SINGLES[kind])
    if kind == 15:
        return c.add("Mul", c.x, c.x)
    if kind == 17:
        return c.add("Pow", c.add("Add", c.add("Mul", c.x, c.p["scale"]), c.p["shift"]), c.p["power"])
    raise RefusedError(f"type {kind} with {len(c.inputs)} inputs is not supported")


def _matched(c: Context) -> tuple[Value, Value]:
    """Both inputs; a vector of as many elements as the other has channels lies along the channels."""
    a, b = c.dims(0), c.dims(1)
    if len(a) == 4 and len(b) == 1 and b[0] not in (1, a[3]):
        return c.x, _spread(c, 1, 1)
    return c.inputs[0], c.inputs[1]


_UNARY = {0: ("Abs",), 1: ("Neg",), 2: ("Floor",), 3: ("Ceil",), 5: ("Sqrt",), 6: ("Sqrt", "Reciprocal"), 7: ("Exp",),
          8: ("Log",), 9: ("Sin",), 10: ("Cos",), 11: ("Tan",), 12: ("Asin",), 13: ("Acos",), 14: ("Atan",),
          15: ("Reciprocal",), 16: ("Tanh",)}  # fmt: skip


def unary(c: Context) -> Value:
    kind = c.p["type"]
    if kind == 4:
        return c.add("Mul", c.x, c.x)
    if kind not in _UNARY:
        raise RefusedError(f"type {kind} is not supported")
    return c.chain(c.x, *_UNARY[kind])


def many(type: str) -> Callable[[Context], Value]:
    return lambda c: c.fold(type, c.inputs)


def squared_difference(c: Context) -> Value:
    gap = c.add("Sub", *_matched(c))
    return c.add("Mul", gap, gap)


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


def relu(c: Context) -> Value:
    return c.add("LeakyRelu", c.x, alpha=c.p["slope"]) if c.p["slope"] else c.add("Relu", c.x)


def hard_swish(c: Context) -> Value:
    """x * clip(x + 3, 0, 6) / 6, whatever alpha and beta say in files of Tengine's own converter: those are 1 and 3."""
    alpha, beta = c.p["alpha"] or 1.0, c.p["beta"]
    return c.add("Mul", c.x, c.add("HardSigmoid", c.x, alpha=alpha / 6, beta=beta / 6))


# -------------------------------------------------------------------------------------------- movement
def reshape(c: Context) -> Value:
    """MXNet's codes: 0 keeps an axis, -1 takes the rest, -2 all that follow, -3 joins two, -4 splits one."""
    dims, wanted = c.dims(), [int(n) for n in c.p["shape"]]
    shape: list[int] = []
    at = i = 0
    while i < len(wanted):
        n = wanted[i]
        if n == 0:
            if c.p["is_mxnet"]:
                shape.append(dims[at] if at < len(dims) else 1)
            elif i == 0:
                shape.append(dims[0])
            at += 1
        elif n == -2:
            shape += dims[at:]
            at = len(dims)
        elif n == -3:
            shape.append(math.prod(dims[at : at + 2]))
            at += 2
        elif n == -4:
            shape += [1 if v == -1 and k == 0 else v for k, v in enumerate(wanted[i + 1 : i + 3])]
            at, i = at + 1, i + 2
        else:
            shape.append(n)
            at += 1
        i += 1
    if c.p["reverse"]:
        shape.reverse()
    return c.add("Reshape", c.x, c.ints(*shape)) if shape else c.x


def flatten(c: Context) -> Value:
    dims, axis = c.dims(), c.along()
    end = c.p["end_axis"]
    last = (end + len(dims) if end < 0 else end) + 1
    if not axis < last <= len(dims):
        last = len(dims)
    return c.add("Reshape", c.x, c.ints(*dims[:axis], math.prod(dims[axis:last]), *dims[last:]))


def concat(c: Context) -> Value:
    return c.add("Concat", *c.inputs, axis=c.along())


def permute(c: Context) -> Value:
    order = [c.p[f"order{i}"] for i in range(4)][: len(c.dims())]
    return c.add("Transpose", c.x, perm=order)


def transpose(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=[int(n) for n in c.p["shape"]])


def swap_axis(c: Context) -> Value:
    order = list(range(len(c.dims())))
    a, b = c.along("dim_0"), c.along("dim_1")
    order[a], order[b] = b, a
    return c.add("Transpose", c.x, perm=order)


def slice(c: Context) -> Result:
    p, dims = c.p, c.dims()
    if p["iscaffe"]:
        axis, points = c.along(), [int(n) for n in p["points"]]
        count = len(c.node.outputs)
        bounds = [0, *points, dims[axis]] if points else [dims[axis] * i // count for i in range(count + 1)]
        sizes = [b - a for a, b in pairwise(bounds)]
        return c.net.adds("Split", len(sizes), c.x, c.ints(*sizes), axis=axis)
    if p["ismxnet"] or p["isonnx"]:
        step, end = max(1, p["step"]), p["end"]
        end = dims[c.along()] if end == 0 and p["isonnx"] else end
        return c.add("Slice", c.x, c.ints(p["begin"]), c.ints(end), c.ints(p["axis"]), c.ints(step))
    begins, sizes = [int(n) for n in p["begins"]], [int(n) for n in p["sizes"]]
    return c.add("Slice", c.x, c.ints(*begins), c.ints(*(b + s for b, s in zip(begins, sizes, strict=True))))


def strided_slice(c: Context) -> Value:
    axes = "nchw"[: len(c.dims())]
    begin, end, step = ([c.p[f"{what}_{a}"] for a in axes] for what in ("begin", "end", "stride"))
    ends = [e or n for e, n in zip(end, c.dims(), strict=True)]
    steps = [s or 1 for s in step]
    return c.add("Slice", c.x, c.ints(*begin), c.ints(*ends), c.ints(*range(len(axes))), c.ints(*steps))


def split(c: Context) -> Result:
    """Without sizes, copies (Caffe's Split) or equal parts."""
    count, sizes = len(c.node.outputs), [int(n) for n in c.p["sizes"]]
    if c.p["flags"] & 0xFF and not sizes:
        return [c.x] * count
    axis = c.along()
    return c.net.adds("Split", count, c.x, c.ints(*(sizes or [c.dims()[axis] // count] * count)), axis=axis)


def pad(c: Context) -> Value:
    axes, mode = "nchw"[: len(c.dims())], c.p["mode"]
    if mode not in (0, 1, 2):
        raise RefusedError(f"mode {mode} is not supported")
    pads = [c.p[f"pad_{a}_{end}"] for end in (0, 1) for a in axes]
    value = c.p["value"] if mode == 0 else None
    return c.add("Pad", c.x, c.ints(*(max(0, n) for n in pads)), value, mode=("constant", "edge", "reflect")[mode])


def crop(c: Context) -> Value:
    """To the size of the second input, or to one of its own (MXNet with one input), from an offset or the middle."""
    p, (h, w) = c.p, c.dims()[2:]
    high, wide = (p["crop_h"], p["crop_w"]) if p["flag"] == 1 and len(c.inputs) < 2 else c.dims(1)[2:]
    middle = p["flag"] == 1 and p["center_crop"] & 0xFF
    top, left = ((h - high) // 2, (w - wide) // 2) if middle else (p["offset_h"], p["offset_w"])
    return c.add("Slice", c.x, c.ints(top, left), c.ints(top + high, left + wide), c.ints(2, 3))


def upsample(c: Context) -> Value:
    return _resized(c, c.p["scale"], c.p["scale"], "nearest")


def resize(c: Context) -> Value:
    """By factors of width and height."""
    return _resized(c, c.p["scale_y"], c.p["scale_x"], "linear" if c.p["type"] else "nearest")


def interp(c: Context) -> Value:
    p = c.p
    if p["resize_type"] not in (1, 2):
        raise RefusedError(f"resize_type {p['resize_type']} is not supported")
    mode = "nearest" if p["resize_type"] == 1 else "linear"
    if p["output_height"] and p["output_width"]:
        h, w = c.dims()[2:]
        return _resized(c, p["output_height"] / h, p["output_width"] / w, mode)
    return _resized(c, p["height_scale"], p["width_scale"], mode)


def _resized(c: Context, high: float, wide: float, mode: str) -> Value:
    h, w = c.dims()[2:]
    if not (0 < high < 1024 and 0 < wide < 1024):
        raise RefusedError(f"factors of {high:g} and {wide:g} are impossible")
    height, width = max(1, int(h * high + 1e-4)), max(1, int(w * wide + 1e-4))
    return c.resized(c.x, height, width, mode, "asymmetric" if mode == "nearest" else "half_pixel")


def reorg(c: Context) -> Value:
    """Darknet's: see ``darknet.layers.reorg``."""
    stride, (n, channels, h, w) = c.p["stride"], c.dims()
    if n != 1 or stride < 1 or channels % (stride * stride) or h % stride or w % stride:
        raise RefusedError(f"it cannot rearrange {channels} channels of {h}x{w} pixels by {stride}")
    split = c.add("Reshape", c.x, c.ints(channels // (stride * stride), h, stride, w, stride))
    moved = c.add("Transpose", split, perm=(2, 4, 0, 1, 3))
    return c.add("Reshape", moved, c.ints(1, channels * stride * stride, h // stride, w // stride))


def squeeze(c: Context) -> Value:
    rank = len(c.dims())
    axes = [a for a in (c.p[f"dim_{i}"] for i in range(4)) if -rank <= a < rank and a != -2]
    return c.add("Squeeze", c.x, c.ints(*axes)) if axes else c.add("Squeeze", c.x)


def gather(c: Context) -> Value:
    return c.add("Gather", c.x, c.add("Cast", c.inputs[1], to="i64"), axis=c.p["axis"])


def arg(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add("Cast", c.add(type, c.x, axis=c.along(), keepdims=c.p["keepdims"]), to="i32")


# ------------------------------------------------------------------------------------------- detection
def prior_box(c: Context) -> Value:
    """SSD's boxes and variances, [1, 2, 4 P, 1]; their order is Tengine's: smallest, largest, then each ratio."""
    p, (h, w), (image_h, image_w) = c.p, c.dims()[2:], c.dims(1)[2:]
    if p["img_h"] and p["img_w"]:
        image_h, image_w = p["img_h"], p["img_w"]
    step_h, step_w = (p["step_h"], p["step_w"]) if p["step_h"] and p["step_w"] else (image_h / h, image_w / w)
    places = Places((h, w), (image_h, image_w), (step_h, step_w), p["offset"])
    boxes = prior_boxes(
        places, sizes(p["min_size"], p["max_size"], p["ratios"], p["flip"]), p["variance"], bool(p["clip"])
    )
    return c.net.constant(boxes.reshape(1, 2, -1, 1), "priors")


def detection_output(c: Context) -> Value:
    if len(c.inputs) != 3:
        raise RefusedError(f"it has {len(c.inputs)} inputs instead of 3")
    p, count = c.p, math.prod(c.dims(2)) // 8
    flat = [c.add("Reshape", v, c.ints(c.dims()[0], -1)) for v in c.inputs[:2]]
    priors = c.add("Reshape", c.inputs[2], c.ints(1, 2, -1))
    top = p["nms_top_k"] if 0 < p["nms_top_k"] < count else count
    return c.add("DetectionOutput", *flat, priors, classes=p["num_classes"], code_type="center_size", nms_top_k=top,
                 confidence_threshold=p["confidence"], nms_threshold=p["nms"], keep_top_k=p["keep_top_k"])  # fmt: skip


_CONV = ("kernel_h kernel_w stride_h stride_w dilation_h dilation_w input_channel output_channel group activation "
         "pad_h0 pad_w0 pad_h1 pad_w1")  # fmt: skip
_DECONV = ("num_output kernel_h kernel_w stride_h stride_w pad_w0 pad_h0 pad_w1 pad_h1 dilation_h dilation_w group "
           "activation output_pad_h0 output_pad_w0")  # fmt: skip
_POOL = "alg kernel_h kernel_w stride_h stride_w global caffe_flavor pad_h0 pad_w0 pad_h1 pad_w1"
_PRIOR = ("min_size:F max_size:F variance:F ratios:F flip clip img_size img_h img_w step_w:f step_h:f offset:f "
          "num_priors out_dim")  # fmt: skip
_SLICE = "axis points:I begins:I sizes:I iscaffe ismxnet isonnx begin end step"
_STRIDED = " ".join(f"{what}_{axis}" for axis in "nchw" for what in ("begin", "end", "stride"))
_PAD = " ".join(f"pad_{axis}_{end}" for axis in "nchw" for end in (0, 1)) + " mode value:f"
_CROP = "num_args offset_c offset_h offset_w crop_h crop_w center_crop axis flag"

LAYERS: dict[int, tuple[str, str, Callable[[Context], Result]]] = {
    1: ("BatchNormalization", "rescale_factor:f eps:f caffe_flavor", batch_norm),
    2: ("Resize", "scale_x:f scale_y:f type", resize), 3: ("Concat", "axis", concat),
    5: ("Convolution", _CONV, convolution), 6: ("Deconvolution", _DECONV, deconvolution),
    7: ("DetectionOutput", "num_classes keep_top_k nms_top_k confidence:f nms:f", detection_output),
    8: ("Dropout", "", lambda c: c.x), 9: ("Eltwise", "type caffe_flavor shift:f power:f scale:f", eltwise),
    10: ("Flatten", "axis end_axis", flatten), 11: ("FullyConnected", "num_output", fully_connected),
    13: ("LRN", "local_size alpha:f beta:f norm_region k:f bias:f", lrn),
    14: ("Normalize", "across_spatial channel_shared", normalize),
    15: ("Permute", "flag order0 order1 order2 order3", permute), 16: ("Pooling", _POOL, pooling),
    17: ("PReLU", "", prelu), 18: ("PriorBox", _PRIOR, prior_box), 20: ("ReLU", "slope:f", relu),
    21: ("ReLU6", "", lambda c: c.add("Clip", c.x, 0.0, 6.0)), 22: ("Reorg", "stride", reorg),
    23: ("Reshape", "is_mxnet reverse shape:I", reshape), 26: ("Scale", "axis num_axes bias_term", scale),
    27: ("Slice", _SLICE, slice), 28: ("Softmax", "axis", lambda c: c.add("Softmax", c.x, axis=c.along())),
    29: ("Split", "axis split_dim flags sizes:I", split),
    31: ("Gemm", "alpha:f beta:f transA transB",
         lambda c: c.add("Gemm", *c.inputs, **{k: c.p[k] for k in ("alpha", "beta", "transA", "transB")})),
    33: ("Logistic", "", _simple("Sigmoid")),
    36: ("Tanh", "", _simple("Tanh")), 37: ("Sigmoid", "", _simple("Sigmoid")),
    38: ("Squeeze", "dim_0 dim_1 dim_2 dim_3", squeeze), 40: ("Pad", _PAD, pad),
    41: ("StridedSlice", _STRIDED, strided_slice), 42: ("ArgMax", "axis keepdims", arg("ArgMax")),
    43: ("ArgMin", "axis keepdims", arg("ArgMin")),
    45: ("Reduction", "dim_0 dim_1 dim_2 dim_3 type keepdim", reduction), 46: ("Maximum", "", many("Max")),
    47: ("Minimum", "", many("Min")), 49: ("Addn", "axis", many("Add")), 50: ("SwapAxis", "dim_0 dim_1", swap_axis),
    51: ("Upsample", "scale:f", upsample), 54: ("Resize", "scale_x:f scale_y:f type", resize),
    55: ("ShuffleChannel", "group", lambda c: c.shuffled(c.x, c.p["group"])),
    56: ("Crop", _CROP, crop), 59: ("Unary", "type", unary),
    60: ("ExpandDims", "axis", lambda c: c.add("Unsqueeze", c.x, c.ints(c.p["axis"]))),
    61: ("Bias", "size", lambda c: c.add("Add", c.x, _spread(c, 1, 1))), 62: ("Noop", "", lambda c: c.x),
    63: ("Threshold", "threshold:f",
         lambda c: c.add("Cast", c.add("Greater", c.x, c.p["threshold"]), to="f32")),
    64: ("HardSigmoid", "alpha:f beta:f", lambda c: c.add("HardSigmoid", c.x, alpha=c.p["alpha"], beta=c.p["beta"])),
    66: ("InstanceNorm", "eps:f", instance_norm), 67: ("MVN", "across_channels normalize_variance eps:f", mvn),
    68: ("AbsVal", "", _simple("Abs")), 69: ("Cast", "from to", lambda c: c.x),
    70: ("HardSwish", "alpha:f beta:f", hard_swish),
    71: ("Interp", "resize_type width_scale:f height_scale:f output_width output_height", interp),
    72: ("SELU", "alpha:f lambda:f", lambda c: c.add("Selu", c.x, alpha=c.p["alpha"], gamma=c.p["lambda"])),
    73: ("ELU", "alpha:f", lambda c: c.add("Elu", c.x, alpha=c.p["alpha"])),
    74: ("BroadMul", "", lambda c: c.add("Mul", *_matched(c))), 76: ("Gather", "axis indices_num is_onnx", gather),
    77: ("Transpose", "shape:I", transpose),
    79: ("SpaceToDepth", "block", lambda c: c.add("SpaceToDepth", c.x, blocksize=c.p["block"])),
    80: ("DepthToSpace", "block", lambda c: c.add("DepthToSpace", c.x, blocksize=c.p["block"])),
    83: ("Ceil", "", _simple("Ceil")), 84: ("SquaredDifference", "", squared_difference),
    85: ("Round", "", _simple("Round")),
    87: ("Clip", "max:f min:f", lambda c: c.add("Clip", c.x, c.p["min"], c.p["max"])),
    88: ("Unsqueeze", "axes:I", lambda c: c.add("Unsqueeze", c.x, c.ints(*map(int, c.p["axes"])))),
    89: ("ReduceL2", "axis keepdim", lambda c: c.add("ReduceL2", c.x, c.ints(c.p["axis"]), keepdims=c.p["keepdim"])),
    90: ("Mean", "", lambda c: c.add("Mean", *c.inputs)), 91: ("MatMul", "", lambda c: c.add("MatMul", *c.inputs)),
    97: ("Mish", "", _simple("Mish")), 99: ("LogSoftmax", "axis", lambda c: c.add("LogSoftmax", c.x, axis=c.p["axis"])),
    100: ("ReLU1", "", lambda c: c.add("Clip", c.x, -1.0, 1.0)), 101: ("L2Normalization", "", l2_normalization),
    102: ("Softplus", "", _simple("Softplus")), 103: ("Reciprocal", "", _simple("Reciprocal")),
}  # fmt: skip
"""Number: name, parameters, function.  12 and 4, inputs and constants, are not layers."""
