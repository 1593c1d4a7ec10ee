"""MXNet's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: the symbol API of MXNet 1.x, src/operator of apache/mxnet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tenon.formats.decompositions.layers import finite, remainder, truncated
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, same, simple
from tenon.formats.importers.mxnet.arithmetic import (
    arg,
    binary,
    compare,
    dot,
    instance_norm,
    l2_normalization,
    layer_norm,
    logarithm,
    lrn,
    norm,
    normalised_groups,
    reduce,
    root_of_three,
    scalar,
    smooth_l1,
    softmax,
    softmax_activation,
    softmax_output,
    truth_of,
)
from tenon.formats.importers.mxnet.data_movement import ELEMENTS, limited
from tenon.formats.importers.mxnet.detection import DETECTION
from tenon.formats.importers.mxnet.layers import (
    activation,
    batch_norm,
    bilinear,
    convolution,
    crop,
    deconvolution,
    fully_connected,
    leaky,
    pooling,
    upsampling,
)
from tenon.formats.importers.mxnet.node import MxnetNode
from tenon.formats.importers.mxnet.recurrent import rnn
from tenon.network.graph.graph import Value


def reshape(node: MxnetNode) -> Value:
    """0 keeps an axis, -1 is inferred, -2 all that follow, -3 joins two, -4 splits one in two."""
    direction = slice(None, None, -1 if node.flag("reverse") else 1)  # codes are matched from the back
    dims, wanted = node.dims[direction], (node.integers("shape") or node.integers("target_shape"))[direction]
    if node.flag("reverse") and -4 in wanted:
        raise RefusedError("splitting an axis from the back is not supported")
    shape: list[int] = []
    at = i = 0
    while i < len(wanted):
        code, step = wanted[i], 1
        if code == -2:
            shape += dims[at:]
            step = len(dims) - at
        elif code == -3:
            shape.append(dims[at] * dims[at + 1])
            step = 2
        elif code == -4:
            a, b = wanted[i + 1], wanted[i + 2]
            a = dims[at] // b if a == -1 else a
            shape += [a, dims[at] // a if b == -1 else b]
            i += 2
        else:
            shape.append(dims[at] if code == 0 else code)
        at, i = at + step, i + 1
    return node.reshape(node.x, *shape[direction])


def concat(node: MxnetNode) -> Value:
    return node.add("Concat", *node.values, axis=node.integer("dim", 1))


def split(node: MxnetNode) -> Sequence[Value]:
    """_split_v2: equal parts, or parts that begin at the given indices (the first of which is 0)."""
    axis = node.axis(node.integer("axis"), len(node.dims))
    if node.integer("sections") > 0:
        parts = node.equal_parts(node.x, axis, node.integer("sections"))
    else:
        ends = [*node.integers("indices"), node.dims[axis]]
        parts = node.split(node.x, axis, [b - a for a, b in pairwise(ends)])
    return [node.add("Squeeze", part, node.ints(axis)) for part in parts] if node.flag("squeeze_axis") else parts


def slice_channel(node: MxnetNode) -> Sequence[Value]:
    axis = node.axis(node.integer("axis", 1), len(node.dims))
    parts = node.equal_parts(node.x, axis, node.integer("num_outputs", 1))
    return [node.add("Squeeze", part, node.ints(axis)) for part in parts] if node.flag("squeeze_axis") else parts


def slice_axis(node: MxnetNode) -> Value:
    end = node.text("end", "None")
    return node.slice(
        node.x, [node.integer("begin")], [2**31 - 1 if end == "None" else int(end)], [node.integer("axis")]
    )


_LAST = 2**31 - 1
_OPEN = 1 << 40
"""A bound of a slice that is not given."""


def slices(node: MxnetNode) -> Value:
    starts, ends = node.bounds("begin", _OPEN), node.bounds("end", _OPEN)
    steps = [1 if step == _OPEN else step for step in node.bounds("step", _OPEN)] or [1] * len(starts)
    for i, step in enumerate(steps):
        first, last = (0, _LAST) if step > 0 else (_LAST, -_LAST)
        starts[i], ends[i] = (b if b != _OPEN else o for b, o in ((starts[i], first), (ends[i], last)))
    return node.slice(node.x, starts, ends, range(len(starts)), steps)


def transpose(node: MxnetNode) -> Value:
    return node.add("Transpose", node.x, perm=node.integers("axes", range(len(node.dims))[::-1]))


def swap_axis(node: MxnetNode) -> Value:
    order = list(range(len(node.dims)))
    a, b = (node.axis(node.integer(name), len(order)) for name in ("dim1", "dim2"))
    order[a], order[b] = b, a
    return node.add("Transpose", node.x, perm=order)


def pad(node: MxnetNode) -> Value:
    widths, mode = node.integers("pad_width"), node.text("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise RefusedError(f"mode {mode} is not supported")
    value = node.number("constant_value") if mode == "constant" else None
    return node.add("Pad", node.x, node.ints(*widths[::2], *widths[1::2]), value, mode=mode)


def embedding(node: MxnetNode) -> Value:
    table = node.parameter(1, node.integer("input_dim", 1), node.integer("output_dim", 1))
    rows = node.builder.dims(table)[0]
    return node.add("Gather", table, limited(node, node.x, rows, "clip"), axis=0)


def take(node: MxnetNode) -> Value:
    """Indices are clamped, or wrap around."""
    axis = node.axis(node.integer("axis"), len(node.dims))
    index = limited(node, node.parameter(1), node.dims[axis], node.text("mode", "clip"))
    return node.add("Gather", node.x, index, axis=axis)


def cast(node: MxnetNode) -> Value:
    names = {
        "float32": "f32",
        "float64": "f64",
        "float16": "f16",
        "int32": "i32",
        "int64": "i64",
        "int8": "i8",
        "uint8": "u8",
        "bool": "bool",
    }
    if node.text("dtype") not in names:
        raise RefusedError(f"dtype {node.text('dtype')} is not supported")
    return node.add("Cast", node.x, to=names[node.text("dtype")])


def tile(node: MxnetNode) -> Value:
    times, dims = node.integers("reps"), node.dims
    rank = max(len(times), len(dims))
    x = node.reshape(node.x, *[1] * (rank - len(dims)), *dims)
    return node.add("Tile", x, node.ints(*[1] * (rank - len(times)), *times))


_BINARY = {
    "add": "Add",
    "plus": "Add",
    "sub": "Sub",
    "minus": "Sub",
    "mul": "Mul",
    "div": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
}
_COMPARISONS = {
    "equal": "Equal",
    "not_equal": "NotEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "lesser": "Less",
    "lesser_equal": "LessOrEqual",
}
_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sin": "Sin",
    "cos": "Cos",
    "softsign": "Softsign",
    "reciprocal": "Reciprocal",
    "sign": "Sign",
    "erf": "Erf",
}

OPERATORS: dict[str, Callable[[MxnetNode], Outputs]] = {
    **DETECTION,
    **{
        f"{prefix}{name}": binary(type)
        for name, type in _BINARY.items()
        for prefix in ("broadcast_", "elemwise_", "_", "_np_", "_npi_")
    },
    **{
        name: binary(type)
        for name, type in (
            ("_Plus", "Add"),
            ("_Minus", "Sub"),
            ("_Mul", "Mul"),
            ("_Div", "Div"),
            ("_Power", "Pow"),
            ("_grad_add", "Add"),
            ("_maximum", "Max"),
            ("_minimum", "Min"),
            ("dot_product", "MatMul"),
        )
    },
    **{f"{prefix}{name}_scalar": scalar(type) for name, type in _BINARY.items() for prefix in ("_", "_npi_")},
    **{
        name: scalar(type)
        for name, type in (
            ("_PlusScalar", "Add"),
            ("_MinusScalar", "Sub"),
            ("_MulScalar", "Mul"),
            ("_DivScalar", "Div"),
            ("_PowerScalar", "Pow"),
        )
    },
    **{
        name: scalar(type, True)
        for name, type in (
            ("_rminus_scalar", "Sub"),
            ("_rdiv_scalar", "Div"),
            ("_rpower_scalar", "Pow"),
            ("_RMinusScalar", "Sub"),
            ("_RDivScalar", "Div"),
        )
    },
    **{f"{prefix}{name}": compare(type) for name, type in _COMPARISONS.items() for prefix in ("broadcast_", "_")},
    **{f"_{name}_scalar": compare(type, scalar=True) for name, type in _COMPARISONS.items()},
    **dict.fromkeys(("broadcast_mod", "_mod", "_Mod"), lambda node: remainder(node, node.x, node.parameter(1))),
    "_mod_scalar": lambda node: remainder(node, node.x, node.number("scalar")),
    "_rmod_scalar": lambda node: remainder(node, node.number("scalar"), node.x),
    "_hypot_scalar": lambda node: node.add(
        "Sqrt", node.add("Add", node.add("Mul", node.x, node.x), node.number("scalar") ** 2)
    ),
    **dict.fromkeys(
        ("broadcast_hypot", "_hypot"),
        lambda node: node.add("Sqrt", node.add("Add", node.square(node.x), node.square(node.parameter(1)))),
    ),
    **{name: simple(type) for name, type in _UNARY.items()},
    **{
        name: reduce(f"Reduce{type}")
        for name, type in (
            ("mean", "Mean"),
            ("sum", "Sum"),
            ("sum_axis", "Sum"),
            ("max", "Max"),
            ("min", "Min"),
            ("prod", "Prod"),
        )
    },
    **ELEMENTS,
    **{
        name: simple(type)
        for name, type in (
            ("tan", "Tan"),
            ("arcsin", "Asin"),
            ("arccos", "Acos"),
            ("arctan", "Atan"),
            ("sinh", "Sinh"),
            ("cosh", "Cosh"),
            ("arcsinh", "Asinh"),
            ("arccosh", "Acosh"),
            ("arctanh", "Atanh"),
            ("rint", "Round"),
        )
    },
    **{name: truth_of(type) for name, type in (("_contrib_isnan", "IsNaN"), ("_contrib_isinf", "IsInf"))},
    "_contrib_isfinite": lambda node: node.add("Cast", finite(node, node.x), to="f32"),
    "logical_not": lambda node: node.add("Cast", node.add("Equal", node.x, 0.0), to="f32"),
    "expm1": lambda node: node.add("Sub", node.add("Exp", node.x), 1.0),
    "log1p": lambda node: node.add("Log", node.add("Add", node.x, 1.0)),
    "log2": logarithm(2),
    "log10": logarithm(10),
    **dict.fromkeys(("trunc", "fix"), lambda node: truncated(node, node.x)),
    **dict.fromkeys(("cbrt", "rcbrt"), root_of_three),
    "smooth_l1": smooth_l1,
    "norm": norm,
    "degrees": lambda node: node.add("Mul", node.x, float(np.rad2deg(1))),
    "radians": lambda node: node.add("Mul", node.x, float(np.deg2rad(1))),
    "softmin": lambda node: node.add("Softmax", node.add("Neg", node.x), axis=node.integer("axis", -1)),
    "GroupNorm": normalised_groups,
    "amp_multicast": lambda node: node.values,
    **dict.fromkeys(("amp_cast", "_copyto", "_CrossDeviceCopy", "IdentityAttachKLSparseReg"), same),
    **dict.fromkeys(
        (
            "Dropout",
            "_copy",
            "identity",
            "BlockGrad",
            "stop_gradient",
            "MakeLoss",
            "make_loss",
            "LinearRegressionOutput",
            "MAERegressionOutput",
            "SVMOutput",
        ),
        same,
    ),
    "LogisticRegressionOutput": simple("Sigmoid"),
    "Convolution": convolution,
    "Convolution_v1": convolution,
    "Deconvolution": deconvolution,
    "FullyConnected": fully_connected,
    "BatchNorm": batch_norm,
    "BatchNorm_v1": batch_norm,
    "_contrib_SyncBatchNorm": batch_norm,
    "Pooling": pooling,
    "Pooling_v1": pooling,
    "Activation": activation,
    "LeakyReLU": leaky,
    "Concat": concat,
    "concat": concat,
    "stack": lambda node: node.stack(node.values, node.integer("axis")),
    "Flatten": lambda node: node.as_matrix(node.x),
    "flatten": lambda node: node.as_matrix(node.x),
    "Reshape": reshape,
    "reshape": reshape,
    "SoftmaxOutput": softmax_output,
    "Softmax": softmax_output,
    "softmax": softmax,
    "log_softmax": softmax,
    "SoftmaxActivation": softmax_activation,
    "ElementWiseSum": lambda node: node.fold("Add", node.values),
    "add_n": lambda node: node.fold("Add", node.values),
    "square": lambda node: node.add("Mul", node.x, node.x),
    "rsqrt": lambda node: node.chain(node.x, "Sqrt", "Reciprocal"),
    "clip": lambda node: node.add("Clip", node.x, node.number("a_min"), node.number("a_max")),
    "hard_sigmoid": lambda node: node.add(
        "HardSigmoid", node.x, alpha=node.number("alpha", 0.2), beta=node.number("beta", 0.5)
    ),
    "L2Normalization": l2_normalization,
    "InstanceNorm": instance_norm,
    "LayerNorm": layer_norm,
    "LRN": lrn,
    "_split_v2": split,
    "SliceChannel": slice_channel,
    "split": slice_channel,
    "slice_axis": slice_axis,
    "slice": slices,
    "crop": slices,
    "transpose": transpose,
    "SwapAxis": swap_axis,
    "swapaxes": swap_axis,
    "Pad": pad,
    "pad": pad,
    "Crop": crop,
    "expand_dims": lambda node: node.add("Unsqueeze", node.x, node.ints(node.integer("axis"))),
    "squeeze": lambda node: node.add(
        "Squeeze", node.x, node.ints(*node.integers("axis")) if node.integers("axis") else None
    ),
    "UpSampling": upsampling,
    "_contrib_BilinearResize2D": bilinear,
    "Embedding": embedding,
    "take": take,
    "dot": dot,
    "batch_dot": dot,
    "Cast": cast,
    "cast": cast,
    "argmax": arg("ArgMax"),
    "argmin": arg("ArgMin"),
    "tile": tile,
    "depth_to_space": lambda node: node.add("DepthToSpace", node.x, blocksize=node.integer("block_size", 1)),
    "space_to_depth": lambda node: node.add("SpaceToDepth", node.x, blocksize=node.integer("block_size", 1)),
    "RNN": rnn,
    "_rnn_param_concat": concat,
    "where": lambda node: node.add("Where", node.add("Cast", node.x, to="bool"), node.parameter(1), node.parameter(2)),
}
OPERATORS |= {
    ours: OPERATORS[theirs]
    for ours, theirs in (
        ("_npx_activation", "Activation"),
        ("_npx_batch_norm", "BatchNorm"),
        ("_npx_convolution", "Convolution"),
        ("_npx_deconvolution", "Deconvolution"),
        ("_npx_dropout", "Dropout"),
        ("_npx_embedding", "Embedding"),
        ("_npx_fully_connected", "FullyConnected"),
        ("_npx_layer_norm", "LayerNorm"),
        ("_npx_leaky_relu", "LeakyReLU"),
        ("_npx_log_softmax", "log_softmax"),
        ("_npx_pooling", "Pooling"),
        ("_npx_relu", "relu"),
        ("_npx_sigmoid", "sigmoid"),
        ("_npx_softmax", "softmax"),
    )
}
"""MXNet 2 has new names for these."""
