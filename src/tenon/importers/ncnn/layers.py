"""ncnn's layers in ONNX operators: one function per layer, and ``LAYERS``.

Definitions: "operators" of the ncnn documentation, src/layer/*.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tenon.decompositions import caffe_family as family
from tenon.decompositions.layers import group_norm
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.ncnn.attention import ATTENTION
from tenon.importers.ncnn.data_movement import PLACES
from tenon.importers.ncnn.detection import DETECTION
from tenon.importers.ncnn.pointwise import AXES, POINTWISE, Context, activation
from tenon.importers.ncnn.recurrent import RECURRENT
from tenon.importers.ncnn.windows import WINDOWS, weights
from tenon.ir.graph import Value


# ------------------------------------------------------------------------------------- with parameters
def inner_product(c: Context) -> Value:
    """Of a whole blob, or of each row of h x w when the rows fit."""
    outputs, size, dims = c.integer(0), c.integer(2), c.dims()
    if min(outputs, size) < 1 or size % outputs:
        raise RefusedError(f"{size} weights do not make {outputs} outputs")
    inputs = size // outputs
    raw, offset = weights(c, size, outputs, 1)
    if len(dims) == 3 and dims[2] == inputs:
        x = c.add("MatMul", c.x, np.ascontiguousarray(raw.reshape(outputs, inputs).T))
        x = x if offset is None else c.add("Add", x, offset)
    else:
        x = c.add("Gemm", c.reshape(c.x, 1, math.prod(dims)), raw.reshape(outputs, inputs), offset, transB=1)
    return activation(c, x)


def memory_data(c: Context) -> Value:
    dims = [d for d in (c.integer(2), c.integer(11), c.integer(1), c.integer(0)) if d]
    if any(d < 0 for d in dims):
        raise RefusedError(f"the shape {dims} is impossible")
    stored = c.weights.floats if c.integer(21, 1) else c.weights.array
    return c.builder.constant(stored(math.prod(dims)).reshape(1, *dims), "data")


def normalization(c: Context) -> Value:
    """GroupNorm and InstanceNorm: every group of channels made to mean 0 and variance 1, then scaled by channel."""
    groups_wanted = c.layer.type == "GroupNorm"
    dims = c.dims()
    affine, eps = c.integer(3 if groups_wanted else 2, 1), c.number(2 if groups_wanted else 1, 0.001)
    gamma, beta = (c.weights.floats(dims[1]) if affine else None for _ in range(2))
    return group_norm(c, c.x, c.integer(0, 1) if groups_wanted else dims[1], gamma, beta, eps)


def layer_norm(c: Context) -> Value:
    size = c.integer(0)
    axes, shape = c.inner_axes(size)
    affine = c.integer(2, 1)
    gamma = c.weights.floats(size) if affine else np.ones(size, np.float32)
    beta = c.weights.floats(size) if affine else np.zeros(size, np.float32)
    return c.add(
        "LayerNormalization",
        c.x,
        gamma.reshape(shape),
        beta.reshape(shape),
        axis=axes.start,
        epsilon=c.number(1, 0.001),
    )


def normalize(c: Context) -> Value:
    """Divided by the root of the sum of squares over channels, positions or both, times a scale; else left alone."""
    spatial, channel, eps, rank = c.integer(0), c.integer(4), c.number(2, 1e-4), len(c.dims())
    factors = c.weights.floats(c.integer(3))
    if not spatial and not channel:
        return c.x
    axes = [*((1,) if channel else ()), *(range(2, rank) if spatial else ())]
    total = c.add("ReduceSumSquare", c.x, c.ints(*axes), keepdims=1)
    mode = c.integer(9)
    if mode == 0:
        length = c.add("Sqrt", c.add("Add", total, eps))
    elif mode == 1:
        length = c.add("Max", c.add("Sqrt", total), eps)
    else:
        length = c.add("Sqrt", c.add("Max", total, eps))
    x = c.add("Div", c.x, length)
    return c.add("Mul", x, factors if c.integer(1) else c.per_channel(factors)) if factors.size else x


def mvn(c: Context) -> Value:
    eps = c.number(2, 1e-4) if c.integer(0) else None
    return family.mean_variance(c, c.x, across_channels=bool(c.integer(1)), eps=eps)


def lrn(c: Context) -> Value:
    size, alpha, beta, bias = c.integer(1, 5), c.number(2, 1.0), c.number(3, 0.75), c.number(4, 1.0)
    return family.local_response(c, c.x, size, alpha, beta, bias, within=bool(c.integer(0)))


# -------------------------------------------------------------------------------------------- movement
def reshape(c: Context) -> Value:
    """The options name w, h, d and c: 0 keeps the input's, -1 takes what is left."""
    dims = c.dims()
    own = dict(zip(AXES.get(len(dims) - 1, ""), dims[1:], strict=True))
    wanted = {"c": c.integer(2, -233), "d": c.integer(11, -233), "h": c.integer(1, -233), "w": c.integer(0, -233)}
    if 6 in c.layer.options:
        raise RefusedError("a shape given as an expression is not supported")
    if not c.integer(12, 233) == c.integer(13, 233) == 233:
        raise RefusedError("an axis that becomes the batch, or was it, is not supported")
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
    if rank == 1:
        return c.x
    if not 0 <= kind < len(orders):
        raise RefusedError(f"order_type {kind} of {rank} axes is not supported")
    return c.add("Transpose", c.x, perm=(0, *(1 + orders[0][::-1].index(axis) for axis in orders[kind][::-1])))


def slice(c: Context) -> Sequence[Value]:
    """By sizes, of which -233 shares evenly what is left over the slices that are left, or by where slices end."""
    axis, sizes = c.along(1), c.layer.integers(0)
    left, parts = c.dims()[axis], list[int]()
    if ends := c.layer.integers(2):
        ends = [n + left if n < 0 else n for n in ends] + [left]
        sizes = [b - a for a, b in pairwise([0, *ends])]
    for i, size in enumerate(sizes):
        parts.append(left // (len(sizes) - i) if size == -233 else size)
        left -= parts[-1]
    if len(parts) != len(c.layer.tops) or left or min(parts) < 1:
        raise RefusedError(f"slices of {sizes} do not fit {c.dims()[axis]}")
    return c.split(c.x, axis, parts)


def crop(c: Context) -> Value:
    dims = c.dims()
    if len(c.inputs) > 1:
        return _cropped_like(c, c.dims(c.inputs[1]))
    axes = c.layer.integers(11)
    starts, ends = c.layer.integers(9), c.layer.integers(10)
    if starts:
        axes = [c.inner(a, len(dims)) for a in axes] or list(range(1, 1 + len(starts)))
        starts = [0 if a == -233 else a for a in starts]
        return c.slice(c.x, starts, [2**31 - 1 if e == -233 else e for e in ends], axes)
    low = [c.integer(id) for id in c.by_axis(0, 1, 13, 2)]
    high = [
        n - c.integer(behind) if c.integer(size) in (0, -233) else a + c.integer(size)
        for n, a, size, behind in zip(dims[1:], low, c.by_axis(3, 4, 14, 5), c.by_axis(6, 7, 15, 8), strict=True)
    ]
    return c.slice(c.x, low, high, range(1, len(dims)))


def _cropped_like(c: Context, like: tuple[int, ...]) -> Value:
    """To the size of another blob, from an offset; what the other has no axis for is left whole."""
    dims = c.dims()
    offsets = c.by_axis(0, 1, 13, 2)
    count = min(len(like), len(dims)) - 1
    low = [c.integer(id) for id in offsets[len(offsets) - count :]]
    high = [a + n for a, n in zip(low, like[len(like) - count :], strict=True)]
    return c.slice(c.x, low, high, range(len(dims) - count, len(dims)))


def padding(c: Context) -> Value:
    """``per_channel_pad_data_size`` numbers: a channel is padded with its own."""
    mode, rank = ("constant", "edge", "reflect")[c.integer(4)] if 0 <= c.integer(4) < 3 else "", len(c.dims()) - 1
    own = c.weights.floats(c.integer(6))
    if not mode or not 1 <= rank <= 4 or (own.size and (own.size != c.dims()[1] or rank < 3)):
        raise RefusedError(f"padding of type {c.integer(4)} with {own.size} numbers is not supported")
    before = [0, c.integer(7), c.integer(0), c.integer(2)][4 - rank :]
    after = [0, c.integer(8), c.integer(1), c.integer(3)][4 - rank :]
    if own.size and mode == "constant" and not before[0] and not after[0]:
        padded = c.add("Pad", c.x, c.ints(0, *before, 0, *after), 0.0)
        widths = [(0, 0), (0, 0), *zip(before[1:], after[1:], strict=True)]
        around = np.pad(np.zeros((1, 1, *c.dims()[2:]), bool), widths, constant_values=True)
        return c.add("Where", around, c.per_channel(own), padded)
    return c.add("Pad", c.x, c.ints(0, *before, 0, *after), c.number(5) if mode == "constant" else None, mode=mode)


def squeeze(c: Context) -> Value:
    dims = c.dims()
    named = c.by_axis(0, 1, 11, 2)
    axes = [c.inner(a, len(dims)) for a in c.layer.integers(3)]
    return c.without(c.x, axes or [i + 1 for i, id in enumerate(named) if c.integer(id) and dims[i + 1] == 1])


def expand_dims(c: Context) -> Value:
    axes = c.layer.integers(3)
    rank = len(c.dims()) + len(axes)
    if not axes:
        raise RefusedError("it names no axes")
    return c.add("Unsqueeze", c.x, c.ints(*(c.inner(a, rank) for a in axes)))


def interp(c: Context) -> Value:
    """By factors, to a size, or to the size of a second blob; a matrix is widened only."""
    kind, size = c.integer(0), (c.integer(3), c.integer(4))
    if kind not in (1, 2, 3) or 9 in c.layer.options:
        raise RefusedError(f"resize_type {kind} of these inputs is not supported")
    dims = c.dims()
    if len(c.inputs) > 1:
        high, wide = (1, *c.dims(c.inputs[1]))[-2:]
        size = (high, wide)
    mode = ("nearest", "linear", "cubic")[kind - 1]
    centre = "asymmetric" if kind == 1 else "align_corners" if c.integer(6) else "half_pixel"
    if len(dims) == 2:
        high, wide = size if all(size) else (int(c.number(1, 1.0)), int(c.number(2, 1.0)))
        return c.add("Expand", c.reshape(c.x, 1, -1, 1, 1), c.ints(1, 1, high, wide))
    if len(dims) == 3:
        wide = size[1] or int(dims[2] * c.number(2, 1.0))
        return c.reshape(c.resized(c.reshape(c.x, 1, dims[1], 1, dims[2]), 1, wide, mode, centre), 1, dims[1], wide)
    if all(size):
        return c.resized(c.x, size[0], size[1], mode, centre)
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
        x = c.reshape(c.x, *[1] * (1 + len(repeats) - rank), *c.dims())
        return c.add("Tile", x, c.ints(*[1] * (len(c.dims(x)) - len(repeats)), *repeats))
    counts = [1] * rank
    counts[c.along(0)] = c.integer(1, 1)
    return c.add("Tile", c.x, c.ints(*counts))


def glu(c: Context) -> Value:
    a, b = c.equal_parts(c.x, c.along(0), 2)
    return c.add("Mul", a, c.add("Sigmoid", b))


def matmul(c: Context) -> Value:
    """Of matrices or of stacks of them, fewer axes being the inner ones; a vector is a row or, behind, a column."""
    a, b = c.inputs
    first, second = c.dims(a)[1:], c.dims(b)[1:]
    rank = max(len(first), len(second), 2)
    left = (1, *first) if len(first) == 1 else first
    right = (*second, 1) if len(second) == 1 else second
    a = c.reshape(a, *(1,) * (1 + rank - len(left)), *left)
    b = c.swapped(c.reshape(b, *(1,) * (1 + rank - len(right)), *right), bool(c.integer(0)) and len(second) > 1)
    y = c.add("MatMul", a, b)
    dropped = [axis for axis, shape in ((rank - 1, first), (rank, second)) if len(shape) == 1]
    return c.without(y, dropped) if dropped else y


LAYERS: dict[str, Callable[[Context], Made]] = {
    **POINTWISE,
    **WINDOWS,
    **PLACES,
    **ATTENTION,
    **DETECTION,
    **RECURRENT,
    "InnerProduct": inner_product,
    "MemoryData": memory_data,
    "GroupNorm": normalization,
    "InstanceNorm": normalization,
    "LayerNorm": layer_norm,
    "Normalize": normalize,
    "MVN": mvn,
    "LRN": lrn,
    "Reshape": reshape,
    "Permute": permute,
    "Flatten": lambda c: c.reshape(c.x, 1, -1),
    "Concat": lambda c: c.add("Concat", *c.inputs, axis=c.along(0)),
    "Slice": slice,
    "Split": lambda c: [c.x] * len(c.layer.tops),
    "Crop": crop,
    "Padding": padding,
    "Squeeze": squeeze,
    "ExpandDims": expand_dims,
    "Softmax": lambda c: c.add("Softmax", c.x, axis=c.along(0)),
    "Interp": interp,
    "ShuffleChannel": shuffle_channel,
    "Reorg": reorg,
    "Tile": tile,
    "GLU": glu,
    "MatMul": matmul,
    "PixelShuffle": lambda c: c.add(
        "DepthToSpace", c.x, blocksize=c.integer(0, 1), mode="DCR" if c.integer(1) else "CRD"
    ),
}
