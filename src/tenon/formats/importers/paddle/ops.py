"""PaddlePaddle's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: paddle/phi/api/yaml and paddle/fluid/operators of PaddlePaddle/Paddle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.layers import truncated
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import same, simple
from tenon.formats.importers.paddle.arithmetic import (
    alpha,
    arg,
    binary,
    both,
    cast,
    clip,
    fully_connected,
    hard_swish,
    matmul,
    matrix_product,
    normalize,
    reduce,
    scale,
)
from tenon.formats.importers.paddle.boxes import BOXES
from tenon.formats.importers.paddle.data_movement import ELEMENTS
from tenon.formats.importers.paddle.detection import DETECTION
from tenon.formats.importers.paddle.functions import FUNCTIONS
from tenon.formats.importers.paddle.layers import (
    batch_norm,
    convolution,
    deconvolution,
    dropout,
    fold,
    instance_norm,
    interpolate,
    layer_norm,
    normalised_groups,
    pooling,
    prelu,
)
from tenon.formats.importers.paddle.node import PaddleNode, Result, numpy_type
from tenon.formats.importers.paddle.recurrent import rnn
from tenon.network.graph.graph import Value


def reshape(node: PaddleNode) -> Value:
    shape = node.vector("ShapeTensor", "Shape")
    return node.add("Reshape", node.x, shape if shape is not None else node.ints(*node.integers("shape")))


def transpose(node: PaddleNode) -> Value:
    return node.add("Transpose", node.x, perm=node.integers("axis"))


def flatten(node: PaddleNode) -> Value:
    dims, axis = node.dims, node.integer("axis", 1)
    return node.reshape(node.x, math.prod(dims[:axis]), math.prod(dims[axis:]))


def flatten_range(node: PaddleNode) -> Value:
    dims = node.dims
    start, stop = (node.axis(node.integer(f"{end}_axis", 1), len(dims)) for end in ("start", "stop"))
    return node.reshape(node.x, *dims[:start], math.prod(dims[start : stop + 1]), *dims[stop + 1 :])


def squeeze(node: PaddleNode) -> Value:
    axes = [a for a in node.integers("axes") if node.dims[node.axis(a, node.x_rank)] == 1]
    return (
        node.add("Squeeze", node.x, node.ints(*axes)) if axes or node.integers("axes") else node.add("Squeeze", node.x)
    )


def unsqueeze(node: PaddleNode) -> Value:
    axes = node.vector("AxesTensorList", "AxesTensor")
    return node.add("Unsqueeze", node.x, axes if axes is not None else node.ints(*node.integers("axes")))


def slices(node: PaddleNode) -> Value:
    """With a negative step, the attribute -1 as end is the position before the first, as in 2.x."""
    starts, ends = node.vector("StartsTensorList", "StartsTensor"), node.vector("EndsTensorList", "EndsTensor")
    axes, steps = node.integers("axes"), node.integers("strides") if node.type == "strided_slice" else []
    starts = starts if starts is not None else node.ints(*node.integers("starts"))
    if ends is None:
        past = dict(enumerate(steps))
        ends = node.ints(
            *(-(2**31) if n == -1 and past.get(i, 1) < 0 else n for i, n in enumerate(node.integers("ends")))
        )
    x = node.add("Slice", node.x, starts, ends, node.ints(*axes), node.ints(*steps) if steps else None)
    removed_axes = node.integers("decrease_axis")
    return node.add("Squeeze", x, node.ints(*removed_axes)) if removed_axes else x


def split(node: PaddleNode) -> Sequence[Value]:
    axis, sizes = node.axis(node.integer("axis"), node.x_rank), node.integers("sections")
    if not sizes:
        return node.equal_parts(node.x, axis, node.integer("num") or len(node.outputs.get("Out", [])))
    rest = node.dims[axis] - sum(s for s in sizes if s > 0)
    return node.split(node.x, axis, [rest if s < 0 else s for s in sizes])


def concat(node: PaddleNode) -> Value:
    return node.add("Concat", *node.slots["X"], axis=node.integer("axis"))


def expand(node: PaddleNode) -> Value:
    shape = node.integers("shape")
    pad = [1] * (len(shape) - node.x_rank)
    return node.add(
        "Expand", node.x, node.ints(*(n if s == -1 else s for s, n in zip(shape, [*pad, *node.dims], strict=True)))
    )


def tile(node: PaddleNode) -> Value:
    times = node.integers("repeat_times" if node.type == "tile" else "expand_times")
    rank = max(len(times), node.x_rank)
    x = node.reshape(node.x, *(1,) * (rank - node.x_rank), *node.dims)
    return node.add("Tile", x, node.ints(*(1,) * (rank - len(times)), *times))


def pad(node: PaddleNode) -> Value:
    """pad2d: top, bottom, left, right; pad3d: left, right, top, bottom, front, back; pad: all axes."""
    pads, rank = node.integers("paddings"), node.x_rank
    if node.type == "pad":
        before, after = pads[::2], pads[1::2]
    elif node.type == "pad2d":
        before, after = [0, 0, *pads[::2]], [0, 0, *pads[1::2]]
    else:
        before, after = [0, 0, *pads[::2][::-1]], [0, 0, *pads[1::2][::-1]]
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap"}.get(
        node.text("mode", "constant")
    )
    if mode is None or not len(before) == len(after) == rank:
        raise RefusedError(f"padding {pads} of mode {node.text('mode')} is not supported")
    value = node.number("pad_value", node.number("value")) if mode == "constant" else None
    return node.add("Pad", node.x, node.ints(*before, *after), value, mode=mode)


def pixel_unshuffle(node: PaddleNode) -> Value:
    n, channels, height, width = node.image(node.x)
    r = max(1, node.integer("downscale_factor", 1))
    x = node.reshape(node.x, n, channels, height // r, r, width // r, r)
    return node.reshape(node.add("Transpose", x, perm=(0, 1, 3, 5, 2, 4)), n, channels * r * r, height // r, width // r)


def repeated(node: PaddleNode) -> Value:
    """Each element of an axis repeated."""
    axis = node.axis(node.integer("dim", node.integer("axis")), node.x_rank)
    indices = np.repeat(np.arange(node.dims[axis]), node.integer("Repeats", node.integer("repeats", 1)))
    return node.add("Gather", node.x, indices.astype(np.int64), axis=axis)


def crop(node: PaddleNode) -> Value:
    given = [(slot, name) for slot, name in (("Offsets", "offsets"), ("Shape", "shape"))]
    starts, sizes = (
        [int(n) for n in v.array] if (v := node.vector(slot)) is not None and v.constant else node.integers(name)
        for slot, name in given
    )
    ends = [n if k < 0 else s + k for s, k, n in zip(starts, sizes, node.dims, strict=True)]
    return node.slice(node.x, starts, ends, range(node.x_rank))


# ----------------------------------------------------------------------------------------------- other
def shape(node: PaddleNode) -> Value:
    return node.add("Cast", node.add("Shape", node.x), to="i32")


def fill_constant(node: PaddleNode) -> Value:
    dims = node.vector("ShapeTensor", "ShapeTensorList")
    text = node.text("str_value")
    number = float(text) if re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", text) else node.number("value")
    data = np.array(number).astype(numpy_type(node.integer("dtype", 5)))
    return node.add("Expand", data, dims if dims is not None else node.ints(*node.integers("shape")))


def assign_value(node: PaddleNode) -> Value:
    code = node.integer("dtype", 5)
    field = {0: "bool_values", 2: "int32_values", 3: "int64_values"}.get(code, "fp32_values")
    values = node.attributes.get("values", [])
    values = values if len(values) else node.attributes.get(field, [])
    dims = node.integers("shape")
    return node.builder.constant(np.asarray(values).astype(numpy_type(code)).reshape(dims), "values")


def gather(node: PaddleNode) -> Value:
    index = node.slot("Index")
    flat = node.reshape(index, -1) if node.builder.rank(index) == 2 else index
    return node.add("Gather", node.x, node.add("Cast", flat, to="i64"), axis=node.integer("axis"))


def lookup(node: PaddleNode) -> Value:
    ids = node.slot("Ids")
    if node.type == "lookup_table" and node.builder.dims(ids)[-1:] == (1,):
        ids = node.add("Squeeze", ids, node.ints(-1))
    return node.add("Gather", _table(node), node.add("Cast", ids, to="i64"), axis=0)


def _table(node: PaddleNode) -> Value:
    """The table of a lookup, whose row ``padding_idx`` counts as zeros unless that is -1."""
    table, padding = node.slot("W"), node.integer("padding_idx", -1)
    if padding < 0:
        return table
    rows = np.arange(node.builder.dims(table)[0]).reshape(-1, 1)
    return node.add("Where", rows == padding, np.zeros((), node.builder.type(table).dtype.numpy), table)


OPERATORS: dict[str, Callable[[PaddleNode], Result]] = {
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
    "relu6": lambda node: node.add("Clip", node.x, 0.0, node.number("threshold", 6.0)),
    "square": lambda node: node.add("Mul", node.x, node.x),
    "rsqrt": lambda node: node.chain(node.x, "Sqrt", "Reciprocal"),
    "leaky_relu": alpha("LeakyRelu", "alpha", "alpha", 0.02),
    "elu": alpha("Elu", "alpha", "alpha", 1.0),
    "swish": alpha("Swish", "alpha", "beta", 1.0),
    "gelu": lambda node: node.add("Gelu", node.x, approximate="tanh" if node.integer("approximate") else "none"),
    "selu": lambda node: node.add(
        "Selu", node.x, alpha=node.number("alpha", 1.6732632), gamma=node.number("scale", 1.050701)
    ),
    "hard_sigmoid": lambda node: node.add(
        "HardSigmoid", node.x, alpha=node.number("slope", 0.2), beta=node.number("offset", 0.5)
    ),
    "hard_swish": hard_swish,
    "prelu": prelu,
    "pow": lambda node: node.add("Pow", node.x, node.number("factor", 1.0)),
    "clip": clip,
    "scale": scale,
    "mul": matrix_product,
    "fc": fully_connected,
    "matmul": matmul,
    "matmul_v2": matmul,
    "softmax": lambda node: node.add("Softmax", node.x, axis=node.integer("axis", -1)),
    "log_softmax": lambda node: node.add("LogSoftmax", node.x, axis=node.integer("axis", -1)),
    "sum": lambda node: node.fold("Add", node.slots["X"]),
    "mean": lambda node: node.add("ReduceMean", node.x, keepdims=0),
    "layer_norm": layer_norm,
    "instance_norm": instance_norm,
    "group_norm": normalised_groups,
    "norm": normalize,
    "affine_channel": lambda node: node.add(
        "Add",
        node.add("Mul", node.x, node.channels(node.slot("Scale"), node.x)),
        node.channels(node.slot("Bias"), node.x),
    ),
    "lrn": lambda node: node.add(
        "LRN",
        node.x,
        size=node.integer("n", 5),
        alpha=node.number("alpha", 1e-4) * node.integer("n", 5),
        beta=node.number("beta", 0.75),
        bias=node.number("k", 2.0),
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
    "stack": lambda node: node.stack(node.slots["X"], node.integer("axis")),
    "unstack": lambda node: node.unstack(node.x, node.integer("axis")),
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
    "trunc": lambda node: truncated(node, node.x),
    "channel_shuffle": lambda node: node.channel_shuffle(node.x, node.integer("groups", 1)),
    "pixel_unshuffle": pixel_unshuffle,
    "repeat_interleave": repeated,
    "crop_tensor": crop,
    "fold": fold,
    "einsum": lambda node: node.add("Einsum", *node.slots["Operands"], equation=node.text("equation")),
    "increment": lambda node: node.add(
        "Add", node.x, np.array(node.number("step", node.number("value", 1.0)), node.builder.type(node.x).dtype.numpy)
    ),
    "shape64": lambda node: node.add("Shape", node.x),
    "pixel_shuffle": lambda node: node.add(
        "DepthToSpace", node.x, blocksize=node.integer("upscale_factor", 1), mode="CRD"
    ),
    "shuffle_channel": lambda node: node.channel_shuffle(node.x, node.integer("group", 1)),
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
    "where": lambda node: node.add("Where", node.slot("Condition"), node.x, node.slot("Y")),
    **DETECTION,
    **BOXES,
    **ELEMENTS,
    **FUNCTIONS,
    "conv3d_transpose": deconvolution,
    "share_data": same,
    "memcpy": same,
}
