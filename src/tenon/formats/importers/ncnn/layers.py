"""ncnn's layers in ONNX operators: one function per layer, and ``LAYERS``.

Definitions: "operators" of the ncnn documentation, src/layer/*.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.decompositions.layers import group_norm
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.ncnn.attention import ATTENTION
from tenon.formats.importers.ncnn.data_movement import DATA_MOVEMENT
from tenon.formats.importers.ncnn.detection import DETECTION
from tenon.formats.importers.ncnn.node import AXES, NcnnLayer
from tenon.formats.importers.ncnn.pointwise import POINTWISE, activation
from tenon.formats.importers.ncnn.recurrent import RECURRENT
from tenon.formats.importers.ncnn.windows import WINDOWS, weights
from tenon.network.graph.graph import Value


def inner_product(layer: NcnnLayer) -> Value:
    """A product of a whole blob with weights, or of each row of h x w where the rows have the size of the weights."""
    outputs, size, dims = layer.integer(0), layer.integer(2), layer.dims
    if min(outputs, size) < 1 or size % outputs:
        raise RefusedError(f"{size} weights do not make {outputs} outputs")
    inputs = size // outputs
    raw, offset = weights(layer, size, outputs, 1)
    if len(dims) == 3 and dims[2] == inputs:
        x = layer.add("MatMul", layer.x, np.ascontiguousarray(raw.reshape(outputs, inputs).T))
        x = x if offset is None else layer.add("Add", x, offset)
    else:
        x = layer.add(
            "Gemm", layer.reshape(layer.x, 1, math.prod(dims)), raw.reshape(outputs, inputs), offset, transB=1
        )
    return activation(layer, x)


def memory_data(layer: NcnnLayer) -> Value:
    dims = [d for d in (layer.integer(2), layer.integer(11), layer.integer(1), layer.integer(0)) if d]
    if any(d < 0 for d in dims):
        raise RefusedError(f"the shape {dims} is impossible")
    stored = layer.weights.floats if layer.integer(21, 1) else layer.weights.array
    return layer.builder.constant(stored(math.prod(dims)).reshape(1, *dims), "data")


def normalization(layer: NcnnLayer) -> Value:
    """GroupNorm and InstanceNorm: every group of channels normalised, then scaled by channel."""
    groups_wanted = layer.record.type == "GroupNorm"
    dims = layer.dims
    affine, eps = layer.integer(3 if groups_wanted else 2, 1), layer.number(2 if groups_wanted else 1, 0.001)
    gamma, beta = (layer.weights.floats(dims[1]) if affine else None for _ in range(2))
    return group_norm(layer, layer.x, layer.integer(0, 1) if groups_wanted else dims[1], gamma, beta, eps)


def layer_norm(layer: NcnnLayer) -> Value:
    size = layer.integer(0)
    axes, shape = layer.inner_axes(size)
    affine = layer.integer(2, 1)
    gamma = layer.weights.floats(size) if affine else np.ones(size, np.float32)
    beta = layer.weights.floats(size) if affine else np.zeros(size, np.float32)
    return layer.add(
        "LayerNormalization",
        layer.x,
        gamma.reshape(shape),
        beta.reshape(shape),
        axis=axes.start,
        epsilon=layer.number(1, 0.001),
    )


def normalize(layer: NcnnLayer) -> Value:
    """L2 normalisation over channels, positions or both, times a scale."""
    spatial = layer.integer(0)
    channel = layer.integer(4)
    eps = layer.number(2, 1e-4)
    rank = len(layer.dims)
    factors = layer.weights.floats(layer.integer(3))
    if not spatial and not channel:
        return layer.x
    axes = [*((1,) if channel else ()), *(range(2, rank) if spatial else ())]
    total = layer.add("ReduceSumSquare", layer.x, layer.ints(*axes), keepdims=1)
    mode = layer.integer(9)
    if mode == 0:
        length = layer.add("Sqrt", layer.add("Add", total, eps))
    elif mode == 1:
        length = layer.add("Max", layer.add("Sqrt", total), eps)
    else:
        length = layer.add("Sqrt", layer.add("Max", total, eps))
    x = layer.add("Div", layer.x, length)
    return layer.add("Mul", x, factors if layer.integer(1) else layer.per_channel(factors)) if factors.size else x


def mvn(layer: NcnnLayer) -> Value:
    eps = layer.number(2, 1e-4) if layer.integer(0) else None
    return family.mean_variance(layer, layer.x, across_channels=bool(layer.integer(1)), eps=eps)


def lrn(layer: NcnnLayer) -> Value:
    size = layer.integer(1, 5)
    alpha = layer.number(2, 1.0)
    beta = layer.number(3, 0.75)
    bias = layer.number(4, 1.0)
    return family.local_response(layer, layer.x, size, alpha, beta, bias, within=bool(layer.integer(0)))


# -------------------------------------------------------------------------------------------- movement
def reshape(layer: NcnnLayer) -> Value:
    """Options are w, h, d and c: 0 keeps the input's extent, -1 is inferred."""
    dims = layer.dims
    own = dict(zip(AXES.get(len(dims) - 1, ""), dims[1:], strict=True))
    wanted = {
        "c": layer.integer(2, -233),
        "d": layer.integer(11, -233),
        "h": layer.integer(1, -233),
        "w": layer.integer(0, -233),
    }
    if 6 in layer.record.options:
        raise RefusedError("a shape given as an expression is not supported")
    if not layer.integer(12, 233) == layer.integer(13, 233) == 233:
        raise RefusedError("an axis that becomes the batch, or was it, is not supported")
    shape = [own.get(name, 1) if n == 0 else n for name, n in wanted.items() if n != -233]
    if not layer.integer(3) or len(dims) != 4:
        return layer.reshape(layer.x, 1, *shape)
    last = layer.add("Transpose", layer.x, perm=(0, 2, 3, 1))
    if len(shape) != 3:
        return layer.reshape(last, 1, *shape)
    return layer.add("Transpose", layer.reshape(last, 1, shape[1], shape[2], shape[0]), perm=(0, 3, 1, 2))


_ORDERS = {
    2: ("wh", "hw"),
    3: ("whc", "hwc", "wch", "cwh", "hcw", "chw"),
    4: (
        "whdc",
        "hwdc",
        "wdhc",
        "dwhc",
        "hdwc",
        "dhwc",
        "whcd",
        "hwcd",
        "wchd",
        "cwhd",
        "hcwd",
        "chwd",
        "wdch",
        "dwch",
        "wcdh",
        "cwdh",
        "dcwh",
        "cdwh",
        "hdcw",
        "dhcw",
        "hcdw",
        "chdw",
        "dchw",
        "cdhw",
    ),
}
"""The axes along w, h, d and c after a permutation, by its code."""


def permute(layer: NcnnLayer) -> Value:
    rank, kind = len(layer.dims) - 1, layer.integer(0)
    orders = _ORDERS.get(rank, ())
    if rank == 1:
        return layer.x
    if not 0 <= kind < len(orders):
        raise RefusedError(f"order_type {kind} of {rank} axes is not supported")
    return layer.add("Transpose", layer.x, perm=(0, *(1 + orders[0][::-1].index(axis) for axis in orders[kind][::-1])))


def slice(layer: NcnnLayer) -> Sequence[Value]:
    """By sizes, of which -233 divides the rest evenly, or by end positions."""
    axis, sizes = layer.along(1), layer.integers(0)
    left, parts = layer.dims[axis], list[int]()
    if ends := layer.integers(2):
        ends = [n + left if n < 0 else n for n in ends] + [left]
        sizes = [b - a for a, b in pairwise([0, *ends])]
    for i, size in enumerate(sizes):
        parts.append(left // (len(sizes) - i) if size == -233 else size)
        left -= parts[-1]
    if len(parts) != len(layer.record.tops) or left or min(parts) < 1:
        raise RefusedError(f"slices of {sizes} do not fit {layer.dims[axis]}")
    return layer.split(layer.x, axis, parts)


def crop(layer: NcnnLayer) -> Value:
    dims = layer.dims
    if len(layer.inputs) > 1:
        return _cropped_like(layer, layer.builder.dims(layer.inputs[1]))
    axes = layer.integers(11)
    starts, ends = layer.integers(9), layer.integers(10)
    if starts:
        axes = [layer.inner(a, len(dims)) for a in axes] or list(range(1, 1 + len(starts)))
        starts = [0 if a == -233 else a for a in starts]
        return layer.slice(layer.x, starts, [2**31 - 1 if e == -233 else e for e in ends], axes)
    low = [layer.integer(id) for id in layer.by_axis(0, 1, 13, 2)]
    high = [
        n - layer.integer(behind) if layer.integer(size) in (0, -233) else a + layer.integer(size)
        for n, a, size, behind in zip(
            dims[1:], low, layer.by_axis(3, 4, 14, 5), layer.by_axis(6, 7, 15, 8), strict=True
        )
    ]
    return layer.slice(layer.x, low, high, range(1, len(dims)))


def _cropped_like(layer: NcnnLayer, like: tuple[int, ...]) -> Value:
    """To the size of another blob, from an offset; axes that the other lacks are kept."""
    dims = layer.dims
    offsets = layer.by_axis(0, 1, 13, 2)
    count = min(len(like), len(dims)) - 1
    low = [layer.integer(id) for id in offsets[len(offsets) - count :]]
    high = [a + n for a, n in zip(low, like[len(like) - count :], strict=True)]
    return layer.slice(layer.x, low, high, range(len(dims) - count, len(dims)))


def padding(layer: NcnnLayer) -> Value:
    """``per_channel_pad_data_size`` numbers: a channel is padded with its own."""
    mode, rank = (
        ("constant", "edge", "reflect")[layer.integer(4)] if 0 <= layer.integer(4) < 3 else "",
        len(layer.dims) - 1,
    )
    own = layer.weights.floats(layer.integer(6))
    if not mode or not 1 <= rank <= 4 or (own.size and (own.size != layer.dims[1] or rank < 3)):
        raise RefusedError(f"padding of type {layer.integer(4)} with {own.size} numbers is not supported")
    before = [0, layer.integer(7), layer.integer(0), layer.integer(2)][4 - rank :]
    after = [0, layer.integer(8), layer.integer(1), layer.integer(3)][4 - rank :]
    if own.size and mode == "constant" and not before[0] and not after[0]:
        padded = layer.add("Pad", layer.x, layer.ints(0, *before, 0, *after), 0.0)
        widths = [(0, 0), (0, 0), *zip(before[1:], after[1:], strict=True)]
        around = np.pad(np.zeros((1, 1, *layer.dims[2:]), bool), widths, constant_values=True)
        return layer.add("Where", around, layer.per_channel(own), padded)
    return layer.add(
        "Pad", layer.x, layer.ints(0, *before, 0, *after), layer.number(5) if mode == "constant" else None, mode=mode
    )


def squeeze(layer: NcnnLayer) -> Value:
    dims = layer.dims
    named = layer.by_axis(0, 1, 11, 2)
    axes = [layer.inner(a, len(dims)) for a in layer.integers(3)]
    return layer.without(
        layer.x, axes or [i + 1 for i, id in enumerate(named) if layer.integer(id) and dims[i + 1] == 1]
    )


def expand_dims(layer: NcnnLayer) -> Value:
    axes = layer.integers(3)
    rank = len(layer.dims) + len(axes)
    if not axes:
        raise RefusedError("it names no axes")
    return layer.add("Unsqueeze", layer.x, layer.ints(*(layer.inner(a, rank) for a in axes)))


def interp(layer: NcnnLayer) -> Value:
    """By factors, to a size, or to the size of a second blob; a matrix is widened only."""
    kind, size = layer.integer(0), (layer.integer(3), layer.integer(4))
    if kind not in (1, 2, 3) or 9 in layer.record.options:
        raise RefusedError(f"resize_type {kind} of these inputs is not supported")
    dims = layer.dims
    if len(layer.inputs) > 1:
        high, wide = (1, *layer.builder.dims(layer.inputs[1]))[-2:]
        size = (high, wide)
    mode = ("nearest", "linear", "cubic")[kind - 1]
    centre = "asymmetric" if kind == 1 else "align_corners" if layer.integer(6) else "half_pixel"
    if len(dims) == 2:
        high, wide = size if all(size) else (int(layer.number(1, 1.0)), int(layer.number(2, 1.0)))
        return layer.add("Expand", layer.reshape(layer.x, 1, -1, 1, 1), layer.ints(1, 1, high, wide))
    if len(dims) == 3:
        wide = size[1] or int(dims[2] * layer.number(2, 1.0))
        return layer.reshape(
            layer.resize(layer.reshape(layer.x, 1, dims[1], 1, dims[2]), 1, wide, mode, centre), 1, dims[1], wide
        )
    if all(size):
        return layer.resize(layer.x, size[0], size[1], mode, centre)
    layer.image(layer.x)
    factors = np.array([1, 1, layer.number(1, 1.0), layer.number(2, 1.0)], np.float32)
    options = {"mode": mode, "coordinate_transformation_mode": centre, "nearest_mode": "floor"}
    return layer.add("Resize", layer.x, None, factors, **options)


def shuffle_channel(layer: NcnnLayer) -> Value:
    group = layer.integer(0, 1)
    return layer.channel_shuffle(layer.x, layer.dims[1] // max(1, group) if layer.integer(1) else group)


def reorg(layer: NcnnLayer) -> Value:
    """Blocks of pixels as channels: those of a place together, or those of a channel in an order that ONNX does not
    have."""
    stride, (n, channels, height, width) = layer.integer(0, 1), layer.image(layer.x)
    if layer.integer(1):
        return layer.add("SpaceToDepth", layer.x, blocksize=stride)
    if stride < 1 or height % stride or width % stride:
        raise RefusedError(f"{height}x{width} pixels cannot be rearranged by {stride}")
    x = layer.reshape(layer.x, channels, height // stride, stride, width // stride, stride)
    x = layer.add("Transpose", x, perm=(0, 2, 4, 1, 3))
    return layer.reshape(x, n, channels * stride * stride, height // stride, width // stride)


def tile(layer: NcnnLayer) -> Value:
    rank, repeats = len(layer.dims), layer.integers(2)
    if repeats:
        x = layer.reshape(layer.x, *[1] * (1 + len(repeats) - rank), *layer.dims)
        return layer.add("Tile", x, layer.ints(*[1] * (len(layer.builder.dims(x)) - len(repeats)), *repeats))
    counts = [1] * rank
    counts[layer.along(0)] = layer.integer(1, 1)
    return layer.add("Tile", layer.x, layer.ints(*counts))


def glu(layer: NcnnLayer) -> Value:
    a, b = layer.equal_parts(layer.x, layer.along(0), 2)
    return layer.add("Mul", a, layer.add("Sigmoid", b))


def matmul(layer: NcnnLayer) -> Value:
    """A product of matrices or of stacks of them; missing axes are the outer ones, and a vector is a row as first
    operand, a column as second."""
    a, b = layer.inputs
    first, second = layer.builder.dims(a)[1:], layer.builder.dims(b)[1:]
    rank = max(len(first), len(second), 2)
    left = (1, *first) if len(first) == 1 else first
    right = (*second, 1) if len(second) == 1 else second
    a = layer.reshape(a, *(1,) * (1 + rank - len(left)), *left)
    b = layer.transpose_last(
        layer.reshape(b, *(1,) * (1 + rank - len(right)), *right), bool(layer.integer(0)) and len(second) > 1
    )
    y = layer.add("MatMul", a, b)
    dropped = [axis for axis, shape in ((rank - 1, first), (rank, second)) if len(shape) == 1]
    return layer.without(y, dropped) if dropped else y


LAYERS: dict[str, Callable[[NcnnLayer], Outputs]] = {
    **POINTWISE,
    **WINDOWS,
    **DATA_MOVEMENT,
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
    "Flatten": lambda layer: layer.reshape(layer.x, 1, -1),
    "Concat": lambda layer: layer.add("Concat", *layer.inputs, axis=layer.along(0)),
    "Slice": slice,
    "Split": lambda layer: [layer.x] * len(layer.record.tops),
    "Crop": crop,
    "Padding": padding,
    "Squeeze": squeeze,
    "ExpandDims": expand_dims,
    "Softmax": lambda layer: layer.add("Softmax", layer.x, axis=layer.along(0)),
    "Interp": interp,
    "ShuffleChannel": shuffle_channel,
    "Reorg": reorg,
    "Tile": tile,
    "GLU": glu,
    "MatMul": matmul,
    "PixelShuffle": lambda layer: layer.add(
        "DepthToSpace", layer.x, blocksize=layer.integer(0, 1), mode="DCR" if layer.integer(1) else "CRD"
    ),
}
