"""ncnn's layers that compute every element alone, and what all layers of ncnn share.

A blob of ncnn has no batch: w, h x w, c x h x w or c x d x h x w.  Here it is a tensor with a leading 1, so that an
axis of ncnn is the next axis here.  Definitions: "operators" of the ncnn documentation, src/layer/*.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.decompositions import caffe_family as family
from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Emitter, Made, same, simple
from tenon.importers.ncnn.file import Layer, Weights
from tenon.ir.graph import Array, Value

AXES = {1: "w", 2: "hw", 3: "chw", 4: "cdhw"}
"""The axes of a blob, by how many they are."""


class Context(Emitter):
    """The layer about to be made: ``x`` is its first input."""

    def __init__(self, builder: GraphBuilder, layer: Layer, weights: Weights) -> None:
        super().__init__(builder)
        self.layer, self.weights = layer, weights
        self.inputs = [builder[name] for name in layer.bottoms]
        self.integer, self.number = layer.integer, layer.number

    @property
    def x(self) -> Value:
        if not self.inputs:
            raise RefusedError("it has no input")
        return self.inputs[0]

    def dims(self, value: Value | None = None) -> tuple[int, ...]:
        return self.builder.dims(self.x if value is None else value)

    def inner(self, axis: int, rank: int) -> int:
        """An axis of a blob counted with the batch in front."""
        return axis + rank if axis < 0 else axis + 1

    def along(self, id: int, default: int = 0) -> int:
        """An axis counted with the batch in front."""
        rank = len(self.dims())
        axis = self.inner(self.integer(id, default), rank)
        if not 1 <= axis < rank:
            raise RefusedError(f"axis {self.integer(id, default)} of {rank - 1} is impossible")
        return axis

    def by_axis(self, w: int, h: int, d: int, c: int) -> list[int]:
        """Of ids of options for w, h, d and c those of the axes that the first blob has, the outermost first."""
        ids = {"w": w, "h": h, "d": d, "c": c}
        return [ids[name] for name in AXES.get(len(self.dims()) - 1, "")]

    def without(self, x: Value, axes: Sequence[int]) -> Value:
        """Fewer axes of one element; a blob keeps at least one."""
        left = [d for i, d in enumerate(self.dims(x)) if i not in axes]
        return self.reshape(x, *(left if len(left) > 1 else [1, 1]))

    def per_channel(self, values: Array, x: Value | None = None) -> Array:
        """One number per outermost element of a blob, shaped to broadcast against it."""
        return values.reshape(1, -1, *(1,) * (len(self.dims(x)) - 2))

    def inner_axes(self, size: int) -> tuple[range, tuple[int, ...]]:
        """The last axes that have ``size`` elements together, and their lengths."""
        dims = self.dims()
        first, taken = len(dims), 1
        while first > 1 and taken < size:
            first -= 1
            taken *= dims[first]
        if taken != size:
            raise RefusedError(f"{size} does not fit the inner axes of {list(dims)}")
        return range(first, len(dims)), dims[first:]

    def scaled(self, stored: Array, scales: Array) -> Array:
        """Weights in int8 as real numbers, by one scale for every outermost element or one in all."""
        if stored.dtype != np.int8:
            return stored
        if stored.size % scales.size:
            raise RefusedError(f"{stored.size} weights cannot have {scales.size} scales")
        divided = stored.reshape(scales.size, -1) / np.where(scales == 0, 1, scales)[:, None]
        return np.asarray(divided, np.float32).reshape(stored.shape)


# ----------------------------------------------------------------------------------------- activations
def activation(c: Context, x: Value) -> Value:
    """The activation that a layer carries, by its number."""
    kind, (a, b) = c.integer(9), [*c.layer.numbers(10), 0.0, 0.0][:2]
    made: dict[int, Callable[[], Value]] = {
        0: lambda: x,
        1: lambda: c.add("Relu", x),
        2: lambda: c.add("LeakyRelu", x, alpha=a),
        3: lambda: c.add("Clip", x, a, b),
        4: lambda: c.add("Sigmoid", x),
        5: lambda: c.add("Mish", x),
        6: lambda: c.add("Mul", x, c.add("HardSigmoid", x, alpha=a, beta=b)),
    }
    if kind not in made:
        raise RefusedError(f"activation_type {kind} is not supported")
    return made[kind]()


def prelu(c: Context) -> Value:
    slope = c.weights.floats(c.integer(0))
    return c.add("PRelu", c.x, c.per_channel(slope) if slope.size > 1 else slope)


def hard_swish(c: Context) -> Value:
    return c.add("Mul", c.x, c.add("HardSigmoid", c.x, alpha=c.number(0, 0.2), beta=c.number(1, 0.5)))


def _of_line(spell: Callable[..., Value], first: float) -> Callable[[Context], Value]:
    """Power, Exp and Log: an exponent or base, then the scale and the shift of the input."""
    return lambda c: spell(c, c.x, c.number(0, first), c.number(1, 1.0), c.number(2))


def shrink(c: Context) -> Value:
    """Moved towards zero by ``bias`` where it is farther than ``lambd``, else 0; ncnn's first version left the rest."""
    move, limit = c.number(0), c.number(1, 0.5)
    high, low = c.add("Greater", c.x, limit), c.add("Less", c.x, -limit)
    return c.add("Where", high, c.add("Sub", c.x, move), c.add("Where", low, c.add("Add", c.x, move), 0.0))


# ------------------------------------------------------------------------------------------ arithmetic
_LATER: dict[int, tuple[str, ...]] = {
    18: ("Round",), 20: ("Sign",), 22: ("Sinh",), 23: ("Asinh",), 24: ("Cosh",), 25: ("Acosh",), 26: ("Atanh",),
}  # fmt: skip
"""Functions of one number that ncnn has and Tengine lacks."""


def unary(c: Context) -> Value:
    """17 is the logarithm to base 10, 19 cuts off what is behind the point."""
    kind = c.integer(0)
    if kind == 17:
        return family.logarithm(c, c.x, 10.0, 1.0, 0.0)
    if kind == 19:
        return c.add("Mul", c.add("Sign", c.x), c.chain(c.x, "Abs", "Floor"))
    return family.unary(c, c.x, kind, _LATER)


_BINARY = {0: "Add", 1: "Sub", 2: "Mul", 3: "Div", 4: "Max", 5: "Min", 6: "Pow", 7: "Sub", 8: "Div", 9: "Pow",
           12: "Mod", 13: "Mod", 15: "Div", 16: "Div"}  # fmt: skip
_TURNED = (7, 8, 9, 13, 16)
"""The operands change places."""


def binary(c: Context) -> Value:
    kind = c.integer(0)
    if kind not in _BINARY:
        raise RefusedError(f"op_type {kind} is not supported")
    if c.integer(1):
        a, b = c.x, c.builder.scalar(c.number(2))
    elif len(c.inputs) != 2:
        raise RefusedError(f"it has {len(c.inputs)} inputs instead of 2")
    else:
        a, b = broadcast(c, c.inputs[0], c.inputs[1])
    if kind in _TURNED:
        a, b = b, a
    made = c.add(_BINARY[kind], a, b, **({"fmod": 1} if kind in (12, 13) else {}))
    return c.add("Floor", made) if kind in (15, 16) else made


def broadcast(c: Context, a: Value, b: Value) -> tuple[Value, Value]:
    """Two blobs made of one rank: a vector lies along the outermost axis if it fits, else along the innermost; what
    has two axes or more lies along the outer ones."""
    first, second = c.dims(a), c.dims(b)
    if len(first) == len(second):
        return a, b
    if len(first) > len(second):
        return a, _expanded(c, b, second, first)
    return _expanded(c, a, first, second), b


def _expanded(c: Context, small: Value, dims: Sequence[int], like: Sequence[int]) -> Value:
    missing = (1,) * (len(like) - len(dims))
    if len(dims) == 2 and dims[1] not in (1, like[1]):
        return c.reshape(small, 1, *missing, dims[1])
    return c.reshape(small, *dims, *missing)


def eltwise(c: Context) -> Value:
    kind = c.integer(0)
    if kind not in (0, 1, 2) or len(c.inputs) < 2:
        raise RefusedError(f"op_type {kind} with {len(c.inputs)} inputs is not supported")
    return family.eltwise(c, ("Mul", "Add", "Max")[kind], c.inputs, c.layer.numbers(1))


def scale(c: Context) -> Value:
    size = c.integer(0)
    if size == -233:
        small = c.inputs[1]
        factor, size = _expanded(c, small, c.dims(small), c.dims()), c.dims(small)[1]
        x = c.add("Mul", c.x, factor)
    else:
        x = c.add("Mul", c.x, c.per_channel(c.weights.floats(size)))
    return c.add("Add", x, c.per_channel(c.weights.floats(size))) if c.integer(1) else x


def bias(c: Context) -> Value:
    """One number per channel; a blob of one or two axes is a single channel."""
    offset = c.weights.floats(c.integer(0))
    return c.add("Add", c.x, c.per_channel(offset) if len(c.dims()) > 3 else offset[:1])


def batch_norm(c: Context) -> Value:
    slope, mean, variance, offset = (c.weights.floats(c.integer(0)) for _ in range(4))
    return c.add("BatchNormalization", c.x, slope, offset, mean, variance, epsilon=c.number(1))


_REDUCTIONS = {0: "ReduceSum", 1: "ReduceL1", 2: "ReduceSumSquare", 3: "ReduceMean", 4: "ReduceMax", 5: "ReduceMin",
               6: "ReduceProd", 7: "ReduceL1", 8: "ReduceL2", 9: "ReduceLogSum", 10: "ReduceLogSumExp"}  # fmt: skip


def reduction(c: Context) -> Value:
    rank, kind, keep = len(c.dims()), c.integer(0), c.integer(4)
    if kind not in _REDUCTIONS:
        raise RefusedError(f"operation {kind} is not supported")
    axes = list(range(1, rank)) if c.integer(1, 1) else [c.inner(a, rank) for a in c.layer.integers(3)]
    x = c.add(_REDUCTIONS[kind], c.x, c.ints(*axes), keepdims=1)
    return family.affine(c, x if keep else c.without(x, axes), c.number(2, 1.0), 0.0)


POINTWISE: dict[str, Callable[[Context], Made]] = {
    "AbsVal": simple("Abs"),
    "BNLL": simple("Softplus"),
    "Sigmoid": simple("Sigmoid"),
    "TanH": simple("Tanh"),
    "Mish": simple("Mish"),
    "Swish": simple("Swish"),
    "Softplus": simple("Softplus"),
    "Erf": simple("Erf"),
    **dict.fromkeys(("Noop", "DeepCopy", "Packing", "Cast"), same),
    "ReLU": lambda c: family.rectified(c, c.x, c.number(0)),
    "PReLU": prelu,
    "Clip": lambda c: c.add("Clip", c.x, c.number(0, -3.4028234e38), c.number(1, 3.4028234e38)),
    "HardSwish": hard_swish,
    "Power": _of_line(family.power, 1.0),
    "Exp": _of_line(family.exponential, -1.0),
    "Log": _of_line(family.logarithm, -1.0),
    "HardSigmoid": lambda c: c.add("HardSigmoid", c.x, alpha=c.number(0, 0.2), beta=c.number(1, 0.5)),
    "ELU": lambda c: c.add("Elu", c.x, alpha=c.number(0, 0.1)),
    "CELU": lambda c: c.add("Celu", c.x, alpha=c.number(0, 1.0)),
    "SELU": lambda c: c.add("Selu", c.x, alpha=c.number(0, 1.67326324), gamma=c.number(1, 1.050700987)),
    "GELU": lambda c: c.add("Gelu", c.x, approximate="tanh" if c.integer(0) else "none"),
    "Threshold": lambda c: family.exceeds(c, c.x, c.number(0)),
    "UnaryOp": unary,
    "BinaryOp": binary,
    "Eltwise": eltwise,
    "Scale": scale,
    "BatchNorm": batch_norm,
    "Reduction": reduction,
    "Bias": bias,
    "Shrink": shrink,
    "Dropout": lambda c: family.affine(c, c.x, c.number(0, 1.0), 0.0),
}
