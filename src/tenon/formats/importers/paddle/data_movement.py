"""Paddle's operators that sort, scatter and move elements, or make them.

Definitions: paddle/phi/api/yaml of PaddlePaddle/Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions import layers
from tenon.formats.decompositions.layers import adaptive_pool, affine_grid, deformed, sampled, unfolded
from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import PaddleNode, Result, numpy_type
from tenon.network.graph.graph import Array, Value

MAX_ELEMENTS = 1 << 26
"""Elements of a constant that is written out."""


def _constant(node: PaddleNode, data: Array, code: int) -> Value:
    return node.builder.constant(data.astype(numpy_type(code)), "values")


def _known(node: PaddleNode, *slots: str) -> Array | None:
    """A constant input; None where there is none.  Raises RefusedError if it is computed."""
    value = next((v for slot in slots if (v := node.optional_slot(slot)) is not None), None)
    if value is None:
        return None
    if not value.constant:
        raise RefusedError(f"its input {slots[0]} is computed at run time; it must be a constant")
    return value.array


# ------------------------------------------------------------------------------------------------------- sorting
def top_k(node: PaddleNode) -> Result:
    k = _known(node, "K")
    count = int(k.item()) if k is not None else node.integer("k", 1)
    options = {
        "axis": node.integer("axis", -1),
        "largest": node.integer("largest", 1),
        "sorted": node.integer("sorted", 1),
    }
    values, positions = node.builder.adds("TopK", 2, node.x, node.ints(count), **options)
    return {"Out": values, "Indices": positions}


def argsort(node: PaddleNode) -> Result:
    axis = node.axis(node.integer("axis", -1), node.x_rank)
    values, positions = node.builder.adds(
        "TopK", 2, node.x, node.ints(node.dims[axis]), axis=axis, largest=node.integer("descending")
    )
    return {"Out": values, "Indices": positions}


# ---------------------------------------------------------------------------------------- gathering, scattering
def gather_nd(node: PaddleNode) -> Value:
    return node.add("GatherND", node.x, node.add("Cast", node.slot("Index"), to="i64"))


def scatter(node: PaddleNode) -> Value:
    """Rows overwritten, or summed over zeros at the given indices."""
    ids = node.reshape(node.add("Cast", node.slot("Ids"), to="i64"), -1, 1)
    updates = node.slot("Updates")
    if node.integer("overwrite", 1):
        return node.add("ScatterND", node.x, ids, updates)
    cleared = node.add(
        "ScatterND", node.x, ids, np.zeros(node.builder.dims(updates), node.builder.type(updates).dtype.numpy)
    )
    return node.add("ScatterND", cleared, ids, updates, reduction="add")


def scatter_nd_add(node: PaddleNode) -> Value:
    return node.add(
        "ScatterND", node.x, node.add("Cast", node.slot("Index"), to="i64"), node.slot("Updates"), reduction="add"
    )


def along_axis(node: PaddleNode) -> Value:
    """take_along_axis, and index_sample along the second axis."""
    x, index = node.slot("X", "Input"), node.add("Cast", node.slot("Index"), to="i64")
    return node.add("GatherElements", x, index, axis=node.integer("Axis", 1 if node.type == "index_sample" else 0))


def put_along_axis(node: PaddleNode) -> Value:
    how = {"assign": "none", "add": "add", "mul": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
    kind = node.text("Reduce", "assign")
    if kind not in how:
        raise RefusedError(f"Reduce {kind} is not supported")
    index, values = node.add("Cast", node.slot("Index"), to="i64"), node.slot("Value")
    values = node.add("Expand", values, node.ints(*node.builder.dims(index)))
    return node.add(
        "ScatterElements", node.slot("Input", "X"), index, values, axis=node.integer("Axis"), reduction=how[kind]
    )


def set_value(node: PaddleNode) -> Value:
    """A slice with constant bounds overwritten by one number or by a tensor."""
    x = node.slot("Input", "X")
    dims, axes = node.builder.dims(x), node.integers("axes")
    lists = [node.integers(name) for name in ("starts", "ends", "steps")]
    ranges = [range(n) for n in dims]
    for axis, start, end, step in zip(axes, *lists, strict=True):
        ranges[axis] = range(*slice(start, end, step).indices(dims[axis]))
    positions = np.stack(np.meshgrid(*map(np.array, ranges), indexing="ij"), -1).astype(np.int64)
    value = node.optional_slot("ValueTensor")
    if value is None:
        kept = [node.attributes.get(f"{kind}_values", []) for kind in ("bool", "int32", "int64", "fp32", "fp64")]
        numbers = next(
            (np.asarray(v) for v in (*kept, node.attributes.get("values", [])) if len(np.atleast_1d(v))), None
        )
        if numbers is None:
            raise RefusedError("it has no values")
        value = node.builder.constant(
            numbers.astype(node.builder.type(x).dtype.numpy).reshape(node.integers("shape")), "values"
        )
    lost = [a for a in node.integers("decrease_axes") if a not in node.integers("none_axes")]
    shape = [n for a, n in enumerate(positions.shape[:-1]) if a not in lost]
    value = node.reshape(node.add("Expand", value, node.ints(*shape)), *positions.shape[:-1])
    return node.add("ScatterND", x, positions, value)


# ------------------------------------------------------------------------------------------------------- moving
def flip(node: PaddleNode) -> Value:
    axes = [node.axis(a, node.x_rank) for a in node.integers("axis")]
    return node.slice(node.x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


def roll(node: PaddleNode) -> Value:
    """Elements shifted along axes, wrapping around; without axes in flattened order."""
    shifts, axes, x = node.integers("shifts"), node.integers("axis"), node.x
    if not axes:
        x, axes = node.reshape(x, -1), [0]
    for shift, axis in zip(shifts, axes, strict=True):
        n = node.builder.dims(x)[axis]
        if n and shift % n:
            ends = node.split(x, node.axis(axis, node.builder.rank(x)), [n - shift % n, shift % n])
            x = node.add("Concat", *ends[::-1], axis=axis)
    return node.reshape(x, *node.dims)


def triangle(node: PaddleNode) -> Value:
    (rows, columns), offset = node.dims[-2:], node.integer("diagonal")
    lower = np.tri(rows, columns, offset if node.integer("lower") else offset - 1, dtype=bool)
    kept = lower if node.integer("lower") else ~lower
    return node.add(
        "Where", kept, node.x, node.builder.constant(np.zeros((), node.builder.type(node.x).dtype.numpy), "zero")
    )


def mesh(node: PaddleNode) -> Sequence[Value]:
    values = node.slots["X"]
    shape = [math.prod(node.builder.dims(v)) for v in values]
    lines = [node.reshape(v, *(n if a == i else 1 for a, n in enumerate(shape))) for i, v in enumerate(values)]
    return [node.add("Expand", line, node.ints(*shape)) for line in lines]


def unbind(node: PaddleNode) -> Sequence[Value]:
    axis = node.axis(node.integer("axis"), node.x_rank)
    return [node.add("Squeeze", part, node.ints(axis)) for part in node.equal_parts(node.x, axis, node.dims[axis])]


def expand_as(node: PaddleNode) -> Value:
    like = node.optional_slot("Y") or node.optional_slot("target_tensor")
    shape = node.integers("target_shape") or list(node.builder.dims(like) if like is not None else ())
    if node.type == "expand_as" and like is not None:  # whole times of every axis
        return node.add("Tile", node.x, node.ints(*(n // m for n, m in zip(shape, node.dims, strict=True))))
    return node.add("Expand", node.x, node.ints(*shape))


def diagonal(node: PaddleNode) -> Value:
    """A vector as a square matrix, or the diagonal of a matrix."""
    offset, padding = node.integer("offset"), node.number("padding_value")
    if node.x_rank == 1:
        n = node.dims[0] + abs(offset)
        column = node.add("Pad", node.x, node.ints(max(0, -offset), max(0, offset)))
        return node.add("Where", np.eye(n, k=offset, dtype=bool), node.reshape(column, n, 1), padding)
    rows, columns = node.dims
    positions = np.flatnonzero(np.eye(rows, columns, k=offset))
    return node.add("Gather", node.reshape(node.x, -1), positions.astype(np.int64))


def diagonal_of_two_axes(node: PaddleNode) -> Value:
    """As the last axis."""
    if math.prod(node.dims) > MAX_ELEMENTS:
        raise RefusedError(f"{list(node.dims)} has too many elements")
    positions = np.arange(math.prod(node.dims)).reshape(node.dims)
    axes = [node.axis(node.integer(name, i), node.x_rank) for i, name in enumerate(("axis1", "axis2"))]
    return node.add(
        "Gather", node.reshape(node.x, -1), np.diagonal(positions, node.integer("offset"), *axes).astype(np.int64)
    )


def index_add(node: PaddleNode) -> Value:
    """Slices of an axis added at the given indices."""
    axis = node.axis(node.integer("axis"), node.x_rank)
    updates = node.slot("AddValue")
    index = node.channels(node.add("Cast", node.slot("Index"), to="i64"), node.x, axis)
    index = node.add("Expand", index, node.ints(*node.builder.dims(updates)))
    return node.add("ScatterElements", node.x, index, updates, axis=axis, reduction="add")


def kronecker(node: PaddleNode) -> Value:
    """The Kronecker product."""
    first, second = node.dims, node.builder.dims(node.slot("Y"))
    rank = max(len(first), len(second))
    first, second = (1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second
    a = node.reshape(node.x, *(n for m in first for n in (m, 1)))
    b = node.reshape(node.slot("Y"), *(n for m in second for n in (1, m)))
    return node.reshape(node.add("Mul", a, b), *(m * n for m, n in zip(first, second, strict=True)))


def windows(node: PaddleNode) -> Value:
    pads = node.integers("paddings")
    pads = pads * 2 if len(pads) == 2 else pads
    return unfolded(
        node, node.x, node.integers("kernel_sizes"), node.integers("strides"), pads, node.integers("dilations")
    )


def temporal_shift(node: PaddleNode) -> Value:
    """Temporal shift: some channels of every image from the previous one, some from the next."""
    steps, ratio = node.integer("seg_num", 1), node.number("shift_ratio", 0.25)
    (count, channels, h, w) = node.dims
    if steps < 1 or count % steps:
        raise RefusedError(f"{count} images cannot be divided into sequences of {steps}")
    first, second = int(channels * ratio), int(channels * 2 * ratio)
    x = node.reshape(node.x, count // steps, steps, channels, h, w)
    past, future, rest = node.split(x, 2, [first, second - first, channels - second])
    past = node.slice(node.add("Pad", past, node.ints(0, 1, 0, 0, 0, 0, 0, 0, 0, 0), 0.0), [0], [steps], [1])
    future = node.slice(node.add("Pad", future, node.ints(0, 0, 0, 0, 0, 0, 1, 0, 0, 0), 0.0), [1], [steps + 1], [1])
    return node.reshape(node.add("Concat", past, future, rest, axis=2), *node.dims)


# ------------------------------------------------------------------------------------------------------ constants
def counted(node: PaddleNode) -> Value:
    start, end, step = (_known(node, slot) for slot in ("Start", "End", "Step"))
    if start is None or end is None or step is None or not step.item():
        raise RefusedError("its bounds are missing")
    if abs((end.item() - start.item()) / step.item()) > MAX_ELEMENTS:
        raise RefusedError("its range is impossible")
    numbers = np.arange(start.item(), end.item(), step.item())
    code = node.integer("dtype", -1)
    return node.builder.constant(numbers.astype(start.dtype if code < 0 else numpy_type(code)), "range")


def linspace(node: PaddleNode) -> Value:
    start, stop, count = (_known(node, slot) for slot in ("Start", "Stop", "Num"))
    if start is None or stop is None or count is None or not 0 < count.item() < MAX_ELEMENTS:
        raise RefusedError("its bounds are missing")
    return _constant(node, np.linspace(start.item(), stop.item(), int(count.item())), node.integer("dtype", 5))


def eye(node: PaddleNode) -> Value:
    rows, columns = node.integer("num_rows"), node.integer("num_columns", -1)
    columns = rows if columns < 0 else columns
    if not 0 < rows * columns < MAX_ELEMENTS:
        raise RefusedError(f"a matrix of {rows}x{columns} is impossible")
    return _constant(node, np.eye(rows, columns), node.integer("dtype", 5))


def fill_like(node: PaddleNode) -> Value:
    code = node.integer("dtype", -1)
    data = np.full(node.dims, node.number("value"))
    if code >= 0 and node.type != "fill_zeros_like":
        return _constant(node, data, code)
    return node.builder.constant(data.astype(node.builder.type(node.x).dtype.numpy), "values")


def fill_batch(node: PaddleNode) -> Value:
    """A constant with one axis as long as one of the input's."""
    dims = node.integers("shape")
    dims[node.integer("output_dim_idx")] = node.dims[node.integer("input_dim_idx")]
    if not all(0 <= d < MAX_ELEMENTS for d in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise RefusedError(f"the shape {dims} is impossible")
    return _constant(node, np.full(dims, node.number("value")), node.integer("dtype", 5))


def one_hot(node: PaddleNode) -> Value:
    depth = _known(node, "depth_tensor")
    count = int(depth.item()) if depth is not None else node.integer("depth", 1)
    x = node.x
    if node.type == "one_hot" and node.dims[-1:] == (1,):
        x = node.add("Squeeze", x, node.ints(-1))
    return layers.one_hot(node, x, count, np.array([0, 1], np.float32))


# ----------------------------------------------------------------------------------------------------- sampling
def grid_sample(node: PaddleNode) -> Value:
    mode = {"bilinear": "linear", "nearest": "nearest"}.get(node.text("mode", "bilinear"))
    padding = node.text("padding_mode", "zeros")
    if mode is None or padding not in ("zeros", "border", "reflection"):
        raise RefusedError(f"mode {node.text('mode')} with padding {padding} is not supported")
    return sampled(node, node.x, node.slot("Grid"), mode, padding, corners=bool(node.integer("align_corners", 1)))


def grid_of_affine(node: PaddleNode) -> Value:
    shape = _known(node, "OutputShape")
    sizes = [int(n) for n in shape.ravel()] if shape is not None else node.integers("output_shape")
    if len(sizes) != 4:
        raise RefusedError(f"the shape {sizes} is not that of images")
    return affine_grid(node, node.slot("Theta"), (sizes[2], sizes[3]), corners=bool(node.integer("align_corners", 1)))


def deformable_convolution(node: PaddleNode) -> Value:
    pads = node.integers("paddings")
    pads = pads * 2 if len(pads) == 2 else [*pads[::2], *pads[1::2]]
    window: dict[str, object] = {
        "strides": node.integers("strides"),
        "dilations": node.integers("dilations"),
        "pads": pads,
        "group": max(1, node.integer("groups", 1)),
    }
    inputs = [node.slot("Input"), node.slot("Filter"), node.slot("Offset"), None, node.optional_slot("Mask")]
    return deformed(node, inputs, window, max(1, node.integer("deformable_groups", 1)))


def max_with_indices(node: PaddleNode) -> Result:
    """Indices are relative to their plane."""
    size, dims = node.integers("ksize"), node.dims
    if node.integer("adaptive"):
        if node.used(*node.outputs.get("Mask", ())):
            raise RefusedError("adaptive pooling with indices is not supported")
        return {"Out": adaptive_pool(node, node.x, size, average=False)}
    if node.integer("global_pooling"):
        window = {"kernel_shape": list(dims[2:]), "strides": [1, 1]}
    else:
        window = {"kernel_shape": size, "strides": node.integers("strides"), "pads": node.integers("paddings") * 2}
    values, positions = node.builder.adds("MaxPoolWithIndices", 2, node.x, **window)
    plane = np.array(math.prod(dims[2:]), np.int64)
    return {"Out": values, "Mask": node.add("Cast", node.add("Mod", positions, plane), to="i32")}


def unpool(node: PaddleNode) -> Value:
    """Indices are relative to the planes of the result."""
    n, channels, *_ = node.dims
    window = {name: node.integers(name) for name in ("ksize", "strides", "paddings")}
    sizes = (
        node.integers("output_size")
        if node.integers("output_size")
        else [(m - 1) * s - 2 * p + k for m, k, s, p in zip(node.dims[2:], *window.values(), strict=True)]
    )
    plane = np.arange(n * channels).reshape(n, channels, 1, 1) * math.prod(sizes[-2:])
    at = node.add("Add", node.add("Cast", node.slot("Indices"), to="i64"), plane.astype(np.int64))
    shape = node.ints(n, channels, *sizes[-2:])
    kernel = {"kernel_shape": window["ksize"], "strides": window["strides"], "pads": window["paddings"] * 2}
    return decomposed(node.builder, "MaxUnpool", [node.x, at, shape], 1, **kernel)[0]


ELEMENTS: dict[str, Callable[[PaddleNode], Result]] = {
    **dict.fromkeys(("top_k", "top_k_v2"), top_k),
    "argsort": argsort,
    "gather_nd": gather_nd,
    "scatter": scatter,
    "scatter_nd_add": scatter_nd_add,
    "index_sample": along_axis,
    "take_along_axis": along_axis,
    "index_select": lambda node: node.add(
        "Gather", node.x, node.add("Cast", node.slot("Index"), to="i64"), axis=node.integer("dim")
    ),
    "put_along_axis": put_along_axis,
    "set_value": set_value,
    "flip": flip,
    "reverse": flip,
    "roll": roll,
    "tril_triu": triangle,
    "meshgrid": mesh,
    "unbind": unbind,
    **dict.fromkeys(("expand_as", "expand_as_v2"), expand_as),
    "diagonal": diagonal_of_two_axes,
    "index_add": index_add,
    "kron": kronecker,
    "diag_v2": diagonal,
    "unfold": windows,
    "temporal_shift": temporal_shift,
    "range": counted,
    "linspace": linspace,
    "eye": eye,
    **dict.fromkeys(("fill_any_like", "fill_zeros_like"), fill_like),
    "fill_constant_batch_size_like": fill_batch,
    **dict.fromkeys(("one_hot", "one_hot_v2"), one_hot),
    "grid_sampler": grid_sample,
    "affine_grid": grid_of_affine,
    **dict.fromkeys(("deformable_conv", "deformable_conv_v1"), deformable_convolution),
    "max_pool2d_with_index": max_with_indices,
    "unpool": unpool,
    "space_to_depth": lambda node: node.add("SpaceToDepth", node.x, blocksize=node.integer("blocksize", 1)),
    "cumsum": lambda node: node.add(
        "CumSum",
        node.reshape(node.x, -1) if node.integer("flatten") else node.x,
        np.array(0 if node.integer("flatten") else node.integer("axis", -1), np.int64),
        exclusive=node.integer("exclusive"),
        reverse=node.integer("reverse"),
    ),
    "size": lambda node: node.builder.constant(np.array(math.prod(node.dims), np.int64), "size"),
}
