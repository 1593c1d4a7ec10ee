"""ncnn's layers in ONNX operators: one function per layer, and ``LAYERS``.

Definitions: "operators" of the ncnn documentation, src/layer/*.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.frontends import caffe_family as family
from tenon.frontends.composed import group_norm
from tenon.frontends.ncnn.detection import DETECTION
from tenon.frontends.ncnn.pointwise import POINTWISE, Context, Result, activation, broadcast
from tenon.frontends.ncnn.recurrent import RECURRENT
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Array, Value


# ------------------------------------------------------------------------------------- with parameters
def _window(c: Context, flat: bool = False) -> dict[str, Any]:
    """Kernel, strides, dilations, groups and pads; -233 and -234 mean SAME."""
    kernel, dilation, stride, left = c.integer(1), c.integer(2, 1), c.integer(3, 1), c.integer(4)
    right = c.integer(15, left)
    if flat:
        window: dict[str, Any] = {"kernel_shape": (kernel,), "dilations": (dilation,), "strides": (stride,)}
        pads: tuple[int, ...] = (left, right)
    else:
        top = c.integer(14, left)
        window = {"kernel_shape": (c.integer(11, kernel), kernel), "dilations": (c.integer(12, dilation), dilation),
                  "strides": (c.integer(13, stride), stride)}  # fmt: skip
        pads = (top, left, c.integer(16, top), right)
    window["group"] = c.integer(7, 1) if "DepthWise" in c.layer.type else 1
    if left in (-233, -234):
        return window | {"auto_pad": "SAME_UPPER" if left == -233 else "SAME_LOWER"}
    return window | {"pads": pads}


def _filters(c: Context, window: dict[str, Any]) -> tuple[int, int, tuple[int, ...]]:
    """How many filters a convolution has, how many inputs each, and its kernel."""
    outputs, size, kernel = c.integer(0), c.integer(6), window["kernel_shape"]
    if min(outputs, size, window["group"], *kernel) < 1 or size % (outputs * math.prod(kernel)):
        raise RefusedError(f"{size} weights do not make {outputs} filters of {list(kernel)}")
    return outputs, size // (outputs * math.prod(kernel)), kernel


def _weights(c: Context, size: int, outputs: int, bias_id: int) -> tuple[Array, Array | None]:
    """Weights [outputs, ...] as f32 and the bias; int8 weights are stored with one scale per output or in all."""
    raw = c.weights.array(size)
    offset = c.weights.floats(outputs) if c.integer(bias_id) else None
    stored = c.integer(8)
    if stored:
        group = c.integer(7, 1) if c.layer.type.startswith("ConvolutionDepthWise") else 0
        count = outputs if not group else group if stored in (1, 101) else 1
        scales = c.weights.floats(count)
        c.weights.floats(1)  # of the input, for arithmetic in integers
        if stored > 100:
            c.weights.floats(1)  # of the output
        if raw.dtype == np.int8:
            if size % count:
                raise RefusedError(f"{size} weights cannot have {count} scales")
            raw = (raw.reshape(count, -1) / np.where(scales == 0, 1, scales)[:, None]).astype(np.float32).ravel()
    if raw.dtype == np.int8:
        raise RefusedError("its weights are int8 without scales")
    return raw, offset


def convolution(c: Context, flat: bool = False) -> Value:
    if c.integer(19) or len(c.inputs) != 1:
        raise RefusedError("weights computed at run time are not supported")
    window = _window(c, flat)
    outputs, inputs, kernel = _filters(c, window)
    raw, offset = _weights(c, c.integer(6), outputs, 5)
    x = c.x
    if c.number(18) and "pads" in window:
        pads = window.pop("pads")
        half = len(pads) // 2
        x = c.add("Pad", x, c.ints(0, 0, *pads[:half], 0, 0, *pads[half:]), c.number(18))
    x = c.reshape(x, 1, 1, -1) if flat and len(c.dims(x)) == 2 else x
    x = c.add("Conv", x, raw.reshape(outputs, inputs, *kernel), offset, **window)
    return activation(c, x, c.integer(9), c.layer.numbers(10))


def deconvolution(c: Context) -> Value:
    """Stored [group, out, in, h, w]; the pads are cut off afterwards."""
    window = _window(c)
    outputs, inputs, kernel = _filters(c, window)
    group = window["group"]
    if outputs % group:
        raise RefusedError(f"{outputs} outputs do not make {group} groups")
    if "auto_pad" in window and not c.integer(20):
        raise RefusedError("padding by -233 needs an output size")
    right = c.integer(18)
    window["output_padding"] = (c.integer(19, right), right)
    if c.integer(20):
        window["output_shape"] = (c.integer(21, c.integer(20)), c.integer(20))
        window.setdefault("auto_pad", "SAME_UPPER")
        window.pop("pads", None)
    stored = c.weights.array(c.integer(6)).reshape(group, outputs // group, inputs, *kernel).swapaxes(1, 2)
    offset = c.weights.floats(outputs) if c.integer(5) else None
    filters = np.ascontiguousarray(stored).reshape(-1, outputs // group, *kernel)
    x = c.add("ConvTranspose", c.x, filters, offset, **window)
    return activation(c, x, c.integer(9), c.layer.numbers(10))


def inner_product(c: Context) -> Value:
    """Of a whole blob, or of each row of h x w when the rows fit."""
    outputs, size, dims = c.integer(0), c.integer(2), c.dims()
    if min(outputs, size) < 1 or size % outputs:
        raise RefusedError(f"{size} weights do not make {outputs} outputs")
    inputs = size // outputs
    raw, offset = _weights(c, size, outputs, 1)
    if len(dims) == 3 and dims[2] == inputs:
        x = c.add("MatMul", c.x, np.ascontiguousarray(raw.reshape(outputs, inputs).T))
        x = x if offset is None else c.add("Add", x, offset)
    else:
        x = c.add("Gemm", c.reshape(c.x, 1, math.prod(dims)), raw.reshape(outputs, inputs), offset, transB=1)
    return activation(c, x, c.integer(9), c.layer.numbers(10))


def memory_data(c: Context) -> Value:
    dims = [d for d in (c.integer(2), c.integer(11), c.integer(1), c.integer(0)) if d]
    if any(d < 0 for d in dims):
        raise RefusedError(f"the shape {dims} is impossible")
    return c.net.constant(c.weights.floats(math.prod(dims)).reshape(1, *dims), "data")


def normalization(c: Context) -> Value:
    """GroupNorm and InstanceNorm: every group of channels made to mean 0 and variance 1, then scaled by channel."""
    groups_wanted = c.layer.type == "GroupNorm"
    dims = c.dims()
    affine, eps = c.integer(3 if groups_wanted else 2, 1), c.number(2 if groups_wanted else 1, 0.001)
    gamma, beta = (c.weights.floats(dims[1]) if affine else None for _ in range(2))
    return group_norm(c, c.x, c.integer(0, 1) if groups_wanted else dims[1], gamma, beta, eps)


def layer_norm(c: Context) -> Value:
    size, dims = c.integer(0), c.dims()
    axis, taken = len(dims), 1
    while axis > 1 and taken < size:
        axis -= 1
        taken *= dims[axis]
    if taken != size:
        raise RefusedError(f"{size} does not fit the inner axes of {list(dims)}")
    affine = c.integer(2, 1)
    gamma = c.weights.floats(size) if affine else np.ones(size, np.float32)
    beta = c.weights.floats(size) if affine else np.zeros(size, np.float32)
    shape = dims[axis:]
    return c.add("LayerNormalization", c.x, gamma.reshape(shape), beta.reshape(shape), axis=axis,
                 epsilon=c.number(1, 0.001))  # fmt: skip


def normalize(c: Context) -> Value:
    """Divided by the root of the sum of squares over channels, positions or both, times a scale."""
    spatial, channel, eps, rank = c.integer(0), c.integer(4), c.number(2, 1e-4), len(c.dims())
    axes = [*((1,) if channel or not spatial else ()), *(range(2, rank) if spatial else ())]
    total = c.add("ReduceSumSquare", c.x, c.ints(*axes), keepdims=1)
    mode = c.integer(9)
    if mode == 0:
        length = c.add("Sqrt", c.add("Add", total, eps))
    elif mode == 1:
        length = c.add("Max", c.add("Sqrt", total), eps)
    else:
        length = c.add("Sqrt", c.add("Max", total, eps))
    factors = c.weights.floats(c.integer(3))
    x = c.add("Div", c.x, length)
    return c.add("Mul", x, factors if c.integer(1) else c.per_channel(factors)) if factors.size else x


def mvn(c: Context) -> Value:
    eps = c.number(2, 1e-4) if c.integer(0) else None
    return family.mean_variance(c, c.x, across_channels=bool(c.integer(1)), eps=eps)


def lrn(c: Context) -> Value:
    if c.integer(0):
        raise RefusedError("only normalisation across channels is supported")
    return c.add(
        "LRN", c.x, size=c.integer(1, 5), alpha=c.number(2, 1.0), beta=c.number(3, 0.75), bias=c.number(4, 1.0)
    )


# --------------------------------------------------------------------------------------------- pooling
def pooling(c: Context) -> Value:
    """Global pooling makes a vector; the pads that ncnn adds to use up the last row and column are spelled out."""
    average, dims = c.integer(0) == 1, c.dims()
    if len(dims) != 4:
        raise RefusedError(f"it needs an image, not {list(dims)}")
    if c.integer(4):
        pooled = c.add("GlobalAveragePool" if average else "GlobalMaxPool", c.x)
        return c.reshape(pooled, 1, dims[1])
    if c.integer(7):
        return _adaptive(c, average)
    kernel, stride, left = c.integer(1), c.integer(2, 1), c.integer(3)
    top = c.integer(13, left)
    window: dict[str, Any] = {
        "kernel_shape": (c.integer(11, kernel), kernel),
        "strides": (c.integer(12, stride), stride),
    }
    before, after = (top, left), (c.integer(15, top), c.integer(14, left))
    mode = c.integer(5)
    if mode in (2, 3):
        window["auto_pad"] = "SAME_UPPER" if mode == 2 else "SAME_LOWER"
    else:
        if mode == 0:
            spans = zip(dims[2:], before, after, window["kernel_shape"], window["strides"], strict=True)
            after = tuple(q + -(n + p + q - k) % s for n, p, q, k, s in spans)
        window["pads"] = (*before, *after)
    if average:  # pads by rule are zeros like any other number
        return c.add("AveragePool", c.x, count_include_pad=int(bool(c.integer(6)) or mode in (2, 3)), **window)
    return c.add("MaxPool", c.x, **window)


def _adaptive(c: Context, average: bool) -> Value:
    _, _, height, width = c.dims()
    wide = c.integer(8)
    high = c.integer(18, wide)
    wide, high = width if wide == -233 else wide, height if high == -233 else high
    if min(wide, high) < 1 or height % high or width % wide:
        raise RefusedError(f"{height}x{width} pixels cannot be pooled evenly to {high}x{wide}")
    window = (height // high, width // wide)
    return c.add("AveragePool" if average else "MaxPool", c.x, kernel_shape=window, strides=window)


# -------------------------------------------------------------------------------------------- movement
def reshape(c: Context) -> Value:
    """The options name w, h, d and c: 0 keeps the input's, -1 takes what is left."""
    dims = c.dims()
    own = dict(zip({1: "w", 2: "hw", 3: "chw", 4: "cdhw"}.get(len(dims) - 1, ""), dims[1:], strict=True))
    wanted = {"c": c.integer(2, -233), "d": c.integer(11, -233), "h": c.integer(1, -233), "w": c.integer(0, -233)}
    if 6 in c.layer.options:
        raise RefusedError("a shape given as an expression is not supported")
    shape = [own.get(name, 1) if n == 0 else n for name, n in wanted.items() if n != -233]
    if not c.integer(3) or len(dims) != 4:
        return c.reshape(c.x, 1, *shape)
    last = c.add("Transpose", c.x, perm=(0, 2, 3, 1))
    if len(shape) != 3:
        return c.reshape(last, 1, *shape)
    return c.add("Transpose", c.reshape(last, 1, shape[1], shape[2], shape[0]), perm=(0, 3, 1, 2))


_ORDERS = {
    2: ("wh", "hw"),
    3: ("whc", "hwc", "wch", "cwh", "hcw", "chw"),
    4: ("whdc", "hwdc", "wdhc", "dwhc", "hdwc", "dhwc", "whcd", "hwcd", "wchd", "cwhd", "hcwd", "chwd",
        "wdch", "dwch", "wcdh", "cwdh", "dcwh", "cdwh", "hdcw", "dhcw", "hcdw", "chdw", "dchw", "cdhw"),
}  # fmt: skip
"""What lies along w, h, d and c after a permutation, by its number."""


def permute(c: Context) -> Value:
    rank, kind = len(c.dims()) - 1, c.integer(0)
    orders = _ORDERS.get(rank, ())
    if rank == 1 or not 0 <= kind < len(orders):
        raise RefusedError(f"order_type {kind} of {rank} axes is not supported")
    return c.add("Transpose", c.x, perm=(0, *(1 + orders[0][::-1].index(axis) for axis in orders[kind][::-1])))


def slice(c: Context) -> Sequence[Value]:
    """-233 shares evenly what is left over the slices that are left."""
    axis, sizes = c.along(1), c.layer.integers(0)
    left, parts = c.dims()[axis], []
    for i, size in enumerate(sizes):
        parts.append(left // (len(sizes) - i) if size == -233 else size)
        left -= parts[-1]
    if len(parts) != len(c.layer.tops) or left or min(parts) < 1:
        raise RefusedError(f"slices of {sizes} do not fit {c.dims()[axis]}")
    return c.split(c.x, axis, parts)


def crop(c: Context) -> Value:
    dims = c.dims()
    if len(c.inputs) > 1:
        raise RefusedError("cropping to the shape of another blob is not supported")
    axes = c.layer.integers(11)
    starts, ends = c.layer.integers(9), c.layer.integers(10)
    if starts:
        axes = [c.inner(a, len(dims)) for a in axes] or list(range(1, 1 + len(starts)))
        return c.slice(c.x, starts, [min(e, 2**31 - 1) for e in ends], axes)
    rank = len(dims) - 1
    offsets, sizes, tails = [(2, 1, 0)[3 - rank :], (5, 4, 3)[3 - rank :], (8, 7, 6)[3 - rank :]]
    low = [c.integer(i) for i in offsets]
    high = [n - c.integer(t) if c.integer(s) in (0, -233) else a + c.integer(s)
            for n, a, s, t in zip(dims[1:], low, sizes, tails, strict=True)]  # fmt: skip
    return c.slice(c.x, low, high, range(1, rank + 1))


def padding(c: Context) -> Value:
    mode, rank = ("constant", "edge", "reflect")[c.integer(4)] if 0 <= c.integer(4) < 3 else "", len(c.dims()) - 1
    if not mode or c.integer(6) or rank not in (1, 2, 3):
        raise RefusedError("padding by channel and of unknown types is not supported")
    before = [c.integer(7), c.integer(0), c.integer(2)][3 - rank :]
    after = [c.integer(8), c.integer(1), c.integer(3)][3 - rank :]
    return c.add("Pad", c.x, c.ints(0, *before, 0, *after), c.number(5) if mode == "constant" else None, mode=mode)


def squeeze(c: Context) -> Value:
    dims = c.dims()
    named = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}.get(len(dims) - 1, ())
    axes = [c.inner(a, len(dims)) for a in c.layer.integers(3)]
    return c.without(c.x, axes or [i + 1 for i, id in enumerate(named) if c.integer(id) and dims[i + 1] == 1])


def expand_dims(c: Context) -> Value:
    axes = c.layer.integers(3)
    rank = len(c.dims()) + len(axes)
    if not axes:
        raise RefusedError("it names no axes")
    return c.add("Unsqueeze", c.x, c.ints(*(c.inner(a, rank) for a in axes)))


def interp(c: Context) -> Value:
    kind, size = c.integer(0), (c.integer(3), c.integer(4))
    if kind not in (1, 2, 3) or c.integer(5) or len(c.inputs) > 1:
        raise RefusedError(f"resize_type {kind} of these inputs is not supported")
    mode = ("nearest", "linear", "cubic")[kind - 1]
    centre = "asymmetric" if kind == 1 else "align_corners" if c.integer(6) else "half_pixel"
    if all(size):
        return c.resized(c.x, *size, mode, centre)
    c.image(c.x)
    factors = np.array([1, 1, c.number(1, 1.0), c.number(2, 1.0)], np.float32)
    options = {"mode": mode, "coordinate_transformation_mode": centre, "nearest_mode": "floor"}
    return c.add("Resize", c.x, None, factors, **options)


def shuffle_channel(c: Context) -> Value:
    group = c.integer(0, 1)
    return c.shuffled(c.x, c.dims()[1] // max(1, group) if c.integer(1) else group)


def reorg(c: Context) -> Value:
    """Squares of pixels as channels: those of a place together, or those of a channel as ONNX cannot say it."""
    stride, (n, channels, height, width) = c.integer(0, 1), c.image(c.x)
    if c.integer(1):
        return c.add("SpaceToDepth", c.x, blocksize=stride)
    if stride < 1 or height % stride or width % stride:
        raise RefusedError(f"{height}x{width} pixels cannot be rearranged by {stride}")
    x = c.reshape(c.x, channels, height // stride, stride, width // stride, stride)
    x = c.add("Transpose", x, perm=(0, 2, 4, 1, 3))
    return c.reshape(x, n, channels * stride * stride, height // stride, width // stride)


def tile(c: Context) -> Value:
    rank, repeats = len(c.dims()), c.layer.integers(2)
    if repeats:
        return c.add("Tile", c.x, c.ints(*[1] * (rank - len(repeats)), *repeats))
    counts = [1] * rank
    counts[c.along(0)] = c.integer(1, 1)
    return c.add("Tile", c.x, c.ints(*counts))


def glu(c: Context) -> Value:
    a, b = c.equal_parts(c.x, c.along(0), 2)
    return c.add("Mul", a, c.add("Sigmoid", b))


def matmul(c: Context) -> Value:
    a, b = broadcast(c, *c.inputs)
    return c.add("MatMul", a, c.swapped(b, bool(c.integer(0))))


LAYERS: dict[str, Callable[[Context], Result]] = POINTWISE | DETECTION | RECURRENT | {
    "Convolution": convolution, "ConvolutionDepthWise": convolution,
    "Convolution1D": lambda c: convolution(c, flat=True), "ConvolutionDepthWise1D": lambda c: convolution(c, flat=True),
    "Deconvolution": deconvolution, "DeconvolutionDepthWise": deconvolution, "InnerProduct": inner_product,
    "MemoryData": memory_data, "GroupNorm": normalization, "InstanceNorm": normalization, "LayerNorm": layer_norm,
    "Normalize": normalize, "MVN": mvn, "LRN": lrn, "Pooling": pooling, "Reshape": reshape, "Permute": permute,
    "Flatten": lambda c: c.reshape(c.x, 1, -1), "Concat": lambda c: c.add("Concat", *c.inputs, axis=c.along(0)),
    "Slice": slice, "Split": lambda c: [c.x] * len(c.layer.tops), "Crop": crop, "Padding": padding,
    "Squeeze": squeeze, "ExpandDims": expand_dims, "Softmax": lambda c: c.add("Softmax", c.x, axis=c.along(0)),
    "Interp": interp, "ShuffleChannel": shuffle_channel, "Reorg": reorg, "Tile": tile, "GLU": glu, "MatMul": matmul,
    "PixelShuffle": lambda c: c.add("DepthToSpace", c.x, blocksize=c.integer(0, 1),
                                    mode="DCR" if c.integer(1) else "CRD"),
}  # fmt: skip
