"""Paddle's operators that sort, scatter and move elements, or make them.

Definitions: paddle/phi/api/yaml of PaddlePaddle/Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.decompositions.layers import adaptive_pool, affine_grid, deformed, sampled, unfolded
from tenon.decompositions.onnx_operator import spelled
from tenon.graph_builder.errors import RefusedError
from tenon.importers.paddle.context import Context, Result, numpy_type
from tenon.ir.graph import Array, Value

MOST = 1 << 26
"""Elements of a constant that is written out."""


def _constant(c: Context, data: Array, code: int) -> Value:
    return c.builder.constant(data.astype(numpy_type(code)), "values")


def _known(c: Context, *slots: str) -> Array | None:
    """A constant input; None where there is none.  Raises RefusedError if it is computed."""
    value = next((v for slot in slots if (v := c.get(slot)) is not None), None)
    if value is None:
        return None
    if not value.constant:
        raise RefusedError(f"its input {slots[0]} is computed at run time; it must be a constant")
    return value.array


# ------------------------------------------------------------------------------------------------------- sorting
def top_k(c: Context) -> Result:
    k = _known(c, "K")
    count = int(k.item()) if k is not None else c.integer("k", 1)
    options = {"axis": c.integer("axis", -1), "largest": c.integer("largest", 1), "sorted": c.integer("sorted", 1)}
    values, places = c.builder.adds("TopK", 2, c.x, c.ints(count), **options)
    return {"Out": values, "Indices": places}


def argsort(c: Context) -> Result:
    axis = c.axis(c.integer("axis", -1), len(c.dims))
    values, places = c.builder.adds("TopK", 2, c.x, c.ints(c.dims[axis]), axis=axis, largest=c.integer("descending"))
    return {"Out": values, "Indices": places}


# ---------------------------------------------------------------------------------------- gathering, scattering
def gather_nd(c: Context) -> Value:
    return c.add("GatherND", c.x, c.add("Cast", c.input("Index"), to="i64"))


def scatter(c: Context) -> Value:
    """Rows overwritten, or summed over zeros in the rows that are named."""
    ids = c.reshape(c.add("Cast", c.input("Ids"), to="i64"), -1, 1)
    updates = c.input("Updates")
    if c.integer("overwrite", 1):
        return c.add("ScatterND", c.x, ids, updates)
    cleared = c.add("ScatterND", c.x, ids, np.zeros(c.builder.dims(updates), c.builder.type(updates).dtype.numpy))
    return c.add("ScatterND", cleared, ids, updates, reduction="add")


def scatter_nd_add(c: Context) -> Value:
    return c.add("ScatterND", c.x, c.add("Cast", c.input("Index"), to="i64"), c.input("Updates"), reduction="add")


def along_axis(c: Context) -> Value:
    """take_along_axis, and index_sample along the second axis."""
    x, index = c.input("X", "Input"), c.add("Cast", c.input("Index"), to="i64")
    return c.add("GatherElements", x, index, axis=c.integer("Axis", 1 if c.type == "index_sample" else 0))


def put_along_axis(c: Context) -> Value:
    how = {"assign": "none", "add": "add", "mul": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
    kind = c.text("Reduce", "assign")
    if kind not in how:
        raise RefusedError(f"Reduce {kind} is not supported")
    index, values = c.add("Cast", c.input("Index"), to="i64"), c.input("Value")
    values = c.add("Expand", values, c.ints(*c.builder.dims(index)))
    return c.add("ScatterElements", c.input("Input", "X"), index, values, axis=c.integer("Axis"), reduction=how[kind])


def set_value(c: Context) -> Value:
    """A slice with constant bounds overwritten by one number or by a tensor."""
    x = c.input("Input", "X")
    dims, axes = c.builder.dims(x), c.numbers("axes")
    lists = [c.numbers(name) for name in ("starts", "ends", "steps")]
    ranges = [range(n) for n in dims]
    for axis, start, end, step in zip(axes, *lists, strict=True):
        ranges[axis] = range(*slice(start, end, step).indices(dims[axis]))
    places = np.stack(np.meshgrid(*map(np.array, ranges), indexing="ij"), -1).astype(np.int64)
    value = c.get("ValueTensor")
    if value is None:
        kept = [c.attributes.get(f"{kind}_values", []) for kind in ("bool", "int32", "int64", "fp32", "fp64")]
        numbers = next((np.asarray(v) for v in (*kept, c.attributes.get("values", [])) if len(np.atleast_1d(v))), None)
        if numbers is None:
            raise RefusedError("it has no values")
        value = c.builder.constant(numbers.astype(c.builder.type(x).dtype.numpy).reshape(c.numbers("shape")), "values")
    lost = [a for a in c.numbers("decrease_axes") if a not in c.numbers("none_axes")]
    shape = [n for a, n in enumerate(places.shape[:-1]) if a not in lost]
    value = c.reshape(c.add("Expand", value, c.ints(*shape)), *places.shape[:-1])
    return c.add("ScatterND", x, places, value)


# ------------------------------------------------------------------------------------------------------- moving
def flip(c: Context) -> Value:
    axes = [c.axis(a, len(c.dims)) for a in c.numbers("axis")]
    return c.slice(c.x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


def roll(c: Context) -> Value:
    """Elements that fall off an axis come in at its other end; without axes all are one line."""
    shifts, axes, x = c.numbers("shifts"), c.numbers("axis"), c.x
    if not axes:
        x, axes = c.reshape(x, -1), [0]
    for shift, axis in zip(shifts, axes, strict=True):
        n = c.builder.dims(x)[axis]
        if n and shift % n:
            ends = c.split(x, c.axis(axis, len(c.builder.dims(x))), [n - shift % n, shift % n])
            x = c.add("Concat", *ends[::-1], axis=axis)
    return c.reshape(x, *c.dims)


def triangle(c: Context) -> Value:
    (rows, columns), offset = c.dims[-2:], c.integer("diagonal")
    lower = np.tri(rows, columns, offset if c.integer("lower") else offset - 1, dtype=bool)
    kept = lower if c.integer("lower") else ~lower
    return c.add("Where", kept, c.x, c.builder.constant(np.zeros((), c.builder.type(c.x).dtype.numpy), "zero"))


def mesh(c: Context) -> Sequence[Value]:
    values = c.slots["X"]
    shape = [math.prod(c.builder.dims(v)) for v in values]
    lines = [c.reshape(v, *(n if a == i else 1 for a, n in enumerate(shape))) for i, v in enumerate(values)]
    return [c.add("Expand", line, c.ints(*shape)) for line in lines]


def unbind(c: Context) -> Sequence[Value]:
    axis = c.axis(c.integer("axis"), len(c.dims))
    return [c.add("Squeeze", part, c.ints(axis)) for part in c.equal_parts(c.x, axis, c.dims[axis])]


def expand_as(c: Context) -> Value:
    like = c.get("Y") or c.get("target_tensor")
    shape = c.numbers("target_shape") or list(c.builder.dims(like) if like is not None else ())
    if c.type == "expand_as" and like is not None:  # whole times of every axis
        return c.add("Tile", c.x, c.ints(*(n // m for n, m in zip(shape, c.dims, strict=True))))
    return c.add("Expand", c.x, c.ints(*shape))


def diagonal(c: Context) -> Value:
    """A vector as a square matrix, or the diagonal of a matrix."""
    offset, padding = c.integer("offset"), c.number("padding_value")
    if len(c.dims) == 1:
        n = c.dims[0] + abs(offset)
        column = c.add("Pad", c.x, c.ints(max(0, -offset), max(0, offset)))
        return c.add("Where", np.eye(n, k=offset, dtype=bool), c.reshape(column, n, 1), padding)
    rows, columns = c.dims
    places = np.flatnonzero(np.eye(rows, columns, k=offset))
    return c.add("Gather", c.reshape(c.x, -1), places.astype(np.int64))


def diagonal_of_two_axes(c: Context) -> Value:
    """As the last axis."""
    if math.prod(c.dims) > MOST:
        raise RefusedError(f"{list(c.dims)} has too many elements")
    places = np.arange(math.prod(c.dims)).reshape(c.dims)
    axes = [c.axis(c.integer(name, i), len(c.dims)) for i, name in enumerate(("axis1", "axis2"))]
    return c.add("Gather", c.reshape(c.x, -1), np.diagonal(places, c.integer("offset"), *axes).astype(np.int64))


def index_add(c: Context) -> Value:
    """Slices of an axis added to those that are named."""
    axis = c.axis(c.integer("axis"), len(c.dims))
    updates = c.input("AddValue")
    index = c.channels(c.add("Cast", c.input("Index"), to="i64"), c.x, axis)
    index = c.add("Expand", index, c.ints(*c.builder.dims(updates)))
    return c.add("ScatterElements", c.x, index, updates, axis=axis, reduction="add")


def kronecker(c: Context) -> Value:
    """Each element of the first times the whole second."""
    first, second = c.dims, c.builder.dims(c.input("Y"))
    rank = max(len(first), len(second))
    first, second = (1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second
    a = c.reshape(c.x, *(n for m in first for n in (m, 1)))
    b = c.reshape(c.input("Y"), *(n for m in second for n in (1, m)))
    return c.reshape(c.add("Mul", a, b), *(m * n for m, n in zip(first, second, strict=True)))


def windows(c: Context) -> Value:
    pads = c.numbers("paddings")
    pads = pads * 2 if len(pads) == 2 else pads
    return unfolded(c, c.x, c.numbers("kernel_sizes"), c.numbers("strides"), pads, c.numbers("dilations"))


def temporal_shift(c: Context) -> Value:
    """Some channels of every picture from the one before it, some from the one after."""
    steps, ratio = c.integer("seg_num", 1), c.number("shift_ratio", 0.25)
    (count, channels, h, w) = c.dims
    if steps < 1 or count % steps:
        raise RefusedError(f"{count} pictures do not make sequences of {steps}")
    first, second = int(channels * ratio), int(channels * 2 * ratio)
    x = c.reshape(c.x, count // steps, steps, channels, h, w)
    past, future, rest = c.split(x, 2, [first, second - first, channels - second])
    past = c.slice(c.add("Pad", past, c.ints(0, 1, 0, 0, 0, 0, 0, 0, 0, 0), 0.0), [0], [steps], [1])
    future = c.slice(c.add("Pad", future, c.ints(0, 0, 0, 0, 0, 0, 1, 0, 0, 0), 0.0), [1], [steps + 1], [1])
    return c.reshape(c.add("Concat", past, future, rest, axis=2), *c.dims)


# ------------------------------------------------------------------------------------------------------ constants
def counted(c: Context) -> Value:
    start, end, step = (_known(c, slot) for slot in ("Start", "End", "Step"))
    if start is None or end is None or step is None or not step.item():
        raise RefusedError("its bounds are missing")
    if abs((end.item() - start.item()) / step.item()) > MOST:
        raise RefusedError("its range is impossible")
    numbers = np.arange(start.item(), end.item(), step.item())
    code = c.integer("dtype", -1)
    return c.builder.constant(numbers.astype(start.dtype if code < 0 else numpy_type(code)), "range")


def linspace(c: Context) -> Value:
    start, stop, count = (_known(c, slot) for slot in ("Start", "Stop", "Num"))
    if start is None or stop is None or count is None or not 0 < count.item() < MOST:
        raise RefusedError("its bounds are missing")
    return _constant(c, np.linspace(start.item(), stop.item(), int(count.item())), c.integer("dtype", 5))


def eye(c: Context) -> Value:
    rows, columns = c.integer("num_rows"), c.integer("num_columns", -1)
    columns = rows if columns < 0 else columns
    if not 0 < rows * columns < MOST:
        raise RefusedError(f"a matrix of {rows}x{columns} is impossible")
    return _constant(c, np.eye(rows, columns), c.integer("dtype", 5))


def fill_like(c: Context) -> Value:
    code = c.integer("dtype", -1)
    data = np.full(c.dims, c.number("value"))
    if code >= 0 and c.type != "fill_zeros_like":
        return _constant(c, data, code)
    return c.builder.constant(data.astype(c.builder.type(c.x).dtype.numpy), "values")


def fill_batch(c: Context) -> Value:
    """A constant with one axis as long as one of the input's."""
    dims = c.numbers("shape")
    dims[c.integer("output_dim_idx")] = c.dims[c.integer("input_dim_idx")]
    if not all(0 <= d < MOST for d in dims) or math.prod(dims) > MOST:
        raise RefusedError(f"the shape {dims} is impossible")
    return _constant(c, np.full(dims, c.number("value")), c.integer("dtype", 5))


def one_hot(c: Context) -> Value:
    depth = _known(c, "depth_tensor")
    count = int(depth.item()) if depth is not None else c.integer("depth", 1)
    x = c.x
    if c.type == "one_hot" and c.dims[-1:] == (1,):
        x = c.add("Squeeze", x, c.ints(-1))
    return c.add("OneHot", c.add("Cast", x, to="i64"), c.ints(count), np.array([0, 1], np.float32), axis=-1)


# ----------------------------------------------------------------------------------------------------- sampling
def grid_sample(c: Context) -> Value:
    mode = {"bilinear": "linear", "nearest": "nearest"}.get(c.text("mode", "bilinear"))
    padding = c.text("padding_mode", "zeros")
    if mode is None or padding not in ("zeros", "border", "reflection"):
        raise RefusedError(f"mode {c.text('mode')} with padding {padding} is not supported")
    return sampled(c, c.x, c.input("Grid"), mode, padding, corners=bool(c.integer("align_corners", 1)))


def grid_of_affine(c: Context) -> Value:
    shape = _known(c, "OutputShape")
    sizes = [int(n) for n in shape.ravel()] if shape is not None else c.numbers("output_shape")
    if len(sizes) != 4:
        raise RefusedError(f"the shape {sizes} is not that of pictures")
    return affine_grid(c, c.input("Theta"), (sizes[2], sizes[3]), corners=bool(c.integer("align_corners", 1)))


def deformable_convolution(c: Context) -> Value:
    pads = c.numbers("paddings")
    pads = pads * 2 if len(pads) == 2 else [*pads[::2], *pads[1::2]]
    window: dict[str, object] = {
        "strides": c.numbers("strides"),
        "dilations": c.numbers("dilations"),
        "pads": pads,
        "group": max(1, c.integer("groups", 1)),
    }
    inputs = [c.input("Input"), c.input("Filter"), c.input("Offset"), None, c.get("Mask")]
    return deformed(c, inputs, window, max(1, c.integer("deformable_groups", 1)))


def max_with_places(c: Context) -> Result:
    """Places count in their plane."""
    size, dims = c.numbers("ksize"), c.dims
    if c.integer("adaptive"):
        if c.used(*c.outputs.get("Mask", ())):
            raise RefusedError("adaptive pooling with places is not supported")
        return {"Out": adaptive_pool(c, c.x, size, average=False)}
    if c.integer("global_pooling"):
        window = {"kernel_shape": list(dims[2:]), "strides": [1, 1]}
    else:
        window = {"kernel_shape": size, "strides": c.numbers("strides"), "pads": c.numbers("paddings") * 2}
    values, places = c.builder.adds("MaxPoolWithIndices", 2, c.x, **window)
    plane = np.array(math.prod(dims[2:]), np.int64)
    return {"Out": values, "Mask": c.add("Cast", c.add("Mod", places, plane), to="i32")}


def unpool(c: Context) -> Value:
    """Places count in the planes of the result."""
    n, channels, *_ = c.dims
    window = {name: c.numbers(name) for name in ("ksize", "strides", "paddings")}
    sizes = (
        c.numbers("output_size")
        if c.numbers("output_size")
        else [(m - 1) * s - 2 * p + k for m, k, s, p in zip(c.dims[2:], *window.values(), strict=True)]
    )
    plane = np.arange(n * channels).reshape(n, channels, 1, 1) * math.prod(sizes[-2:])
    at = c.add("Add", c.add("Cast", c.input("Indices"), to="i64"), plane.astype(np.int64))
    shape = c.ints(n, channels, *sizes[-2:])
    kernel = {"kernel_shape": window["ksize"], "strides": window["strides"], "pads": window["paddings"] * 2}
    return spelled(c.builder, "MaxUnpool", [c.x, at, shape], 1, **kernel)[0]


ELEMENTS: dict[str, Callable[[Context], Result]] = {
    **dict.fromkeys(("top_k", "top_k_v2"), top_k),
    "argsort": argsort,
    "gather_nd": gather_nd,
    "scatter": scatter,
    "scatter_nd_add": scatter_nd_add,
    "index_sample": along_axis,
    "take_along_axis": along_axis,
    "index_select": lambda c: c.add("Gather", c.x, c.add("Cast", c.input("Index"), to="i64"), axis=c.integer("dim")),
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
    "max_pool2d_with_index": max_with_places,
    "unpool": unpool,
    "space_to_depth": lambda c: c.add("SpaceToDepth", c.x, blocksize=c.integer("blocksize", 1)),
    "cumsum": lambda c: c.add(
        "CumSum",
        c.reshape(c.x, -1) if c.integer("flatten") else c.x,
        np.array(0 if c.integer("flatten") else c.integer("axis", -1), np.int64),
        exclusive=c.integer("exclusive"),
        reverse=c.integer("reverse"),
    ),
    "size": lambda c: c.builder.constant(np.array(math.prod(c.dims), np.int64), "size"),
}
