"""ncnn's layers that compute every element alone, and what all layers of ncnn share.

A blob of ncnn has no batch: w, h x w, c x h x w or c x d x h x w.  Here it is a tensor with a leading 1, so that an
axis of ncnn is the next axis here.  Definitions: "operators" of the ncnn documentation, src/layer/*.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, same, simple
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.network.graph.graph import Value


def activation(layer: NcnnLayer, x: Value) -> Value:
    """The activation that a layer carries, by its number."""
    kind, (a, b) = layer.integer(9), [*layer.numbers(10), 0.0, 0.0][:2]
    outputs: dict[int, Callable[[], Value]] = {
        0: lambda: x,
        1: lambda: layer.add("Relu", x),
        2: lambda: layer.add("LeakyRelu", x, alpha=a),
        3: lambda: layer.add("Clip", x, a, b),
        4: lambda: layer.add("Sigmoid", x),
        5: lambda: layer.add("Mish", x),
        6: lambda: layer.add("Mul", x, layer.add("HardSigmoid", x, alpha=a, beta=b)),
    }
    if kind not in outputs:
        raise RefusedError(f"activation_type {kind} is not supported")
    return outputs[kind]()


def prelu(layer: NcnnLayer) -> Value:
    slope = layer.weights.floats(layer.integer(0))
    return layer.add("PRelu", layer.x, layer.per_channel(slope) if slope.size > 1 else slope)


def hard_swish(layer: NcnnLayer) -> Value:
    return layer.add(
        "Mul", layer.x, layer.add("HardSigmoid", layer.x, alpha=layer.number(0, 0.2), beta=layer.number(1, 0.5))
    )


def _of_line(function: Callable[..., Value], first: float) -> Callable[[NcnnLayer], Value]:
    """Power, Exp and Log: an exponent or base, then the scale and the shift of the input."""
    return lambda layer: function(layer, layer.x, layer.number(0, first), layer.number(1, 1.0), layer.number(2))


def shrink(layer: NcnnLayer) -> Value:
    """Shrink: moved towards zero by ``bias`` where |x| exceeds ``lambd``, else 0."""
    move, limit = layer.number(0), layer.number(1, 0.5)
    high, low = layer.add("Greater", layer.x, limit), layer.add("Less", layer.x, -limit)
    return layer.add(
        "Where", high, layer.add("Sub", layer.x, move), layer.add("Where", low, layer.add("Add", layer.x, move), 0.0)
    )


# ------------------------------------------------------------------------------------------ arithmetic
_LATER: dict[int, tuple[str, ...]] = {
    18: ("Round",),
    20: ("Sign",),
    22: ("Sinh",),
    23: ("Asinh",),
    24: ("Cosh",),
    25: ("Acosh",),
    26: ("Atanh",),
}
"""Unary functions of ncnn beyond Tengine's."""


def unary(layer: NcnnLayer) -> Value:
    """17 is the logarithm to base 10, 19 truncates."""
    kind = layer.integer(0)
    if kind == 17:
        return family.logarithm(layer, layer.x, 10.0, 1.0, 0.0)
    if kind == 19:
        return layer.add("Mul", layer.add("Sign", layer.x), layer.chain(layer.x, "Abs", "Floor"))
    return family.unary(layer, layer.x, kind, _LATER)


_BINARY = {
    0: "Add",
    1: "Sub",
    2: "Mul",
    3: "Div",
    4: "Max",
    5: "Min",
    6: "Pow",
    7: "Sub",
    8: "Div",
    9: "Pow",
    12: "Mod",
    13: "Mod",
    15: "Div",
    16: "Div",
}
_SWAPPED = (7, 8, 9, 13, 16)
"""The operands are swapped."""


def binary(layer: NcnnLayer) -> Value:
    kind = layer.integer(0)
    if kind not in _BINARY:
        raise RefusedError(f"op_type {kind} is not supported")
    if layer.integer(1):
        a, b = layer.x, layer.builder.scalar(layer.number(2))
    elif len(layer.inputs) != 2:
        raise RefusedError(f"it has {len(layer.inputs)} inputs instead of 2")
    else:
        a, b = broadcast(layer, layer.inputs[0], layer.inputs[1])
    if kind in _SWAPPED:
        a, b = b, a
    result = layer.add(_BINARY[kind], a, b, **({"fmod": 1} if kind in (12, 13) else {}))
    return layer.add("Floor", result) if kind in (15, 16) else result


def broadcast(layer: NcnnLayer, a: Value, b: Value) -> tuple[Value, Value]:
    """Two blobs made of one rank: a vector lies along the outermost axis if it fits, else along the innermost; what
    has two axes or more lies along the outer ones."""
    first, second = layer.builder.dims(a), layer.builder.dims(b)
    if len(first) == len(second):
        return a, b
    if len(first) > len(second):
        return a, _expanded(layer, b, second, first)
    return _expanded(layer, a, first, second), b


def _expanded(layer: NcnnLayer, small: Value, dims: Sequence[int], like: Sequence[int]) -> Value:
    missing = (1,) * (len(like) - len(dims))
    if len(dims) == 2 and dims[1] not in (1, like[1]):
        return layer.reshape(small, 1, *missing, dims[1])
    return layer.reshape(small, *dims, *missing)


def eltwise(layer: NcnnLayer) -> Value:
    kind = layer.integer(0)
    if kind not in (0, 1, 2) or len(layer.inputs) < 2:
        raise RefusedError(f"op_type {kind} with {len(layer.inputs)} inputs is not supported")
    return family.eltwise(layer, ("Mul", "Add", "Max")[kind], layer.inputs, layer.numbers(1))


def scale(layer: NcnnLayer) -> Value:
    size = layer.integer(0)
    if size == -233:
        small = layer.inputs[1]
        factor, size = _expanded(layer, small, layer.builder.dims(small), layer.dims), layer.builder.dims(small)[1]
        x = layer.add("Mul", layer.x, factor)
    else:
        x = layer.add("Mul", layer.x, layer.per_channel(layer.weights.floats(size)))
    return layer.add("Add", x, layer.per_channel(layer.weights.floats(size))) if layer.integer(1) else x


def bias(layer: NcnnLayer) -> Value:
    """One number per channel; a blob of one or two axes is a single channel."""
    offset = layer.weights.floats(layer.integer(0))
    return layer.add("Add", layer.x, layer.per_channel(offset) if len(layer.dims) > 3 else offset[:1])


def batch_norm(layer: NcnnLayer) -> Value:
    slope, mean, variance, offset = (layer.weights.floats(layer.integer(0)) for _ in range(4))
    return layer.add("BatchNormalization", layer.x, slope, offset, mean, variance, epsilon=layer.number(1))


_REDUCTIONS = {
    0: "ReduceSum",
    1: "ReduceL1",
    2: "ReduceSumSquare",
    3: "ReduceMean",
    4: "ReduceMax",
    5: "ReduceMin",
    6: "ReduceProd",
    7: "ReduceL1",
    8: "ReduceL2",
    9: "ReduceLogSum",
    10: "ReduceLogSumExp",
}


def reduction(layer: NcnnLayer) -> Value:
    rank, kind, keep = len(layer.dims), layer.integer(0), layer.integer(4)
    if kind not in _REDUCTIONS:
        raise RefusedError(f"operation {kind} is not supported")
    axes = list(range(1, rank)) if layer.integer(1, 1) else [layer.inner(a, rank) for a in layer.integers(3)]
    x = layer.add(_REDUCTIONS[kind], layer.x, layer.ints(*axes), keepdims=1)
    return family.affine(layer, x if keep else layer.without(x, axes), layer.number(2, 1.0), 0.0)


POINTWISE: dict[str, Callable[[NcnnLayer], Outputs]] = {
    "AbsVal": simple("Abs"),
    "BNLL": simple("Softplus"),
    "Sigmoid": simple("Sigmoid"),
    "TanH": simple("Tanh"),
    "Mish": simple("Mish"),
    "Swish": simple("Swish"),
    "Softplus": simple("Softplus"),
    "Erf": simple("Erf"),
    **dict.fromkeys(("Noop", "DeepCopy", "Packing", "Cast"), same),
    "ReLU": lambda layer: family.rectified(layer, layer.x, layer.number(0)),
    "PReLU": prelu,
    "Clip": lambda layer: layer.add("Clip", layer.x, layer.number(0, -3.4028234e38), layer.number(1, 3.4028234e38)),
    "HardSwish": hard_swish,
    "Power": _of_line(family.power, 1.0),
    "Exp": _of_line(family.exponential, -1.0),
    "Log": _of_line(family.logarithm, -1.0),
    "HardSigmoid": lambda layer: layer.add(
        "HardSigmoid", layer.x, alpha=layer.number(0, 0.2), beta=layer.number(1, 0.5)
    ),
    "ELU": lambda layer: layer.add("Elu", layer.x, alpha=layer.number(0, 0.1)),
    "CELU": lambda layer: layer.add("Celu", layer.x, alpha=layer.number(0, 1.0)),
    "SELU": lambda layer: layer.add(
        "Selu", layer.x, alpha=layer.number(0, 1.67326324), gamma=layer.number(1, 1.050700987)
    ),
    "GELU": lambda layer: layer.add("Gelu", layer.x, approximate="tanh" if layer.integer(0) else "none"),
    "Threshold": lambda layer: family.exceeds(layer, layer.x, layer.number(0)),
    "UnaryOp": unary,
    "BinaryOp": binary,
    "Eltwise": eltwise,
    "Scale": scale,
    "BatchNorm": batch_norm,
    "Reduction": reduction,
    "Bias": bias,
    "Shrink": shrink,
    "Dropout": lambda layer: family.affine(layer, layer.x, layer.number(0, 1.0), 0.0),
}
