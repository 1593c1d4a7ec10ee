"""TensorFlow's operators that scatter and rearrange elements, and functions of numbers that few graphs have.

Source of their meaning: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.decompositions import tensorflow_data_movement as elements
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.shared import tensorflow_family as family
from tenon.importers.shared.tensorflow_family import each, one, two
from tenon.importers.tensorflow.importer import Layer
from tenon.ir.graph import Value

Spell = Callable[[Layer], Made]


# --------------------------------------------------------------------------------------------------- scattering
def _scattered(how: str) -> Spell:
    return lambda layer: layer.builder.add(
        "ScatterND", layer.x(), elements.whole(layer.builder, layer.x(1)), layer.x(2), reduction=how
    )


def _subtracted(layer: Layer) -> Made:
    """Updates taken from what stands at their places."""
    builder = layer.builder
    places = builder.add("Cast", layer.x(1), to="i64")
    return builder.add("ScatterND", layer.x(), places, builder.add("Neg", layer.x(2)), reduction="add")


def _contrasted(layer: Layer) -> Made:
    """Stretched about the mean of each channel of each picture."""
    builder, x = layer.builder, layer.x()
    mean = builder.reduce("Mean", x, [-3, -2], keep=True)
    return builder.add("Add", builder.add("Mul", builder.add("Sub", x, mean), layer.x(1)), mean)


def _segment_extreme(how: str) -> Spell:
    """As of segments in any order, but zeros where a segment has no rows."""

    def spell(layer: Layer) -> Made:
        builder, numbers = layer.builder, layer.array(1).ravel()
        count = int(numbers.max(initial=-1)) + 1
        made = elements.segments(builder, layer.x(), layer.x(1), count, how)
        there = np.bincount(numbers, minlength=count) > 0
        if there.all():
            return made
        some = builder.constant(there.reshape(-1, *(1,) * (builder.type(made).rank - 1)), "some")
        return builder.add("Where", some, made, builder.number(0, made))

    return spell


def _segment_mean(layer: Layer) -> Made:
    builder, numbers = layer.builder, layer.array(1)
    count = np.maximum(np.bincount(numbers.ravel()), 1).astype(np.float32)
    total = elements.segments(builder, layer.x(), layer.x(1), len(count), "sum")
    share = builder.constant((1 / count).reshape(-1, *(1,) * (builder.type(total).rank - 1)), "share")
    return builder.add("Mul", total, share)


def _stitched(layer: Layer) -> Made:
    """Rows put together by their numbers, which are constants; of equal numbers the last counts."""
    builder, half = layer.builder, layer.count // 2
    numbers = [layer.array(k).ravel() for k in range(half)]
    flat = np.concatenate(numbers)
    if flat.size == 0 or flat.min() < 0 or flat.max() >= flat.size:
        raise RefusedError("its rows are not numbered from 0 on")
    order = np.zeros(flat.max() + 1, np.int64)
    order[flat] = np.arange(flat.size)
    rank = [builder.type(layer.x(k)).rank for k in range(half)]
    parts = [
        builder.reshape(layer.x(half + k), (numbers[k].size, *builder.dims(layer.x(half + k))[rank[k] :]))
        for k in range(half)
    ]
    return builder.add("Gather", builder.add("Concat", *parts, axis=0), builder.constant(order, "order"), axis=0)


# --------------------------------------------------------------------------------------------------- rearranging
def _diagonal(layer: Layer) -> Made:
    """The diagonals of matrices."""
    family.main_only(layer, 1)
    builder, x = layer.builder, layer.x()
    *outer, rows, columns = builder.dims(x)
    n = min(rows, columns)
    places = builder.constant(np.arange(n) * (columns + 1), "places")
    return builder.add("Gather", builder.reshape(x, (*outer, rows * columns)), places, axis=-1)


def _linspace(layer: Layer) -> Made:
    start, stop = (float(layer.array(k).item()) for k in (0, 1))
    (count,) = layer.numbers(2)
    if not 0 < count < 1 << 24:
        raise RefusedError(f"{count} numbers are impossible")
    return layer.builder.constant(np.linspace(start, stop, count).astype(layer.array(0).dtype), "numbers")


# ----------------------------------------------------------------------------------------------------- functions
def _with_one(first: str, second: str, *, after: bool) -> Spell:
    """log(1 + x), exp(x) - 1 and the like: two steps, one of them with the number one."""

    def spell(layer: Layer) -> Made:
        builder, x = layer.builder, layer.x()
        x = builder.add(first, x) if after else builder.add(first, x, builder.number(1, x))
        return builder.add(second, x, builder.number(1, x)) if after else builder.add(second, x)

    return spell


def _unless_zero(make: Callable[[Layer, Value, Value], Value], k: int) -> Spell:
    """Zero where operand ``k`` is zero, whatever the other is."""

    def spell(layer: Layer) -> Made:
        builder, pair = layer.builder, [layer.x(0), layer.x(1)]
        none = builder.add("Equal", pair[k], builder.number(0, pair[k]))
        pair[1] = builder.add("Where", none, builder.number(1, pair[1]), pair[1])
        return builder.add("Where", none, builder.number(0, pair[0]), make(layer, *pair))

    return spell


def _finite(layer: Layer) -> Made:
    builder, x = layer.builder, layer.x()
    return builder.add("Not", builder.add("Or", builder.add("IsNaN", x), builder.add("IsInf", x)))


def _truncated_quotient(layer: Layer) -> Made:
    builder, y = layer.builder, layer.builder.add("Div", layer.x(0), layer.x(1))
    if not builder.type(y).dtype.is_float:
        return y
    return builder.add("Mul", builder.add("Sign", y), builder.add("Floor", builder.add("Abs", y)))


def _half_of_squares(layer: Layer) -> Made:
    builder, squares = layer.builder, layer.builder.square(layer.x())
    total = builder.add("ReduceSum", squares, keepdims=0)
    return builder.add("Mul", total, builder.number(0.5, total))


def _erfc(layer: Layer) -> Made:
    builder, x = layer.builder, layer.x()
    return builder.add("Sub", builder.number(1, x), builder.add("Erf", x))


ELEMENTS: dict[str, Spell] = {
    # scattering
    **each(_scattered, "TensorScatterUpdate:none TensorScatterAdd:add TensorScatterMax:max TensorScatterMin:min"),
    **each(_segment_extreme, "SegmentMax:max SegmentMin:min"),
    **each(family.segments, "SegmentProd:prod"),
    "SegmentMean": _segment_mean,
    "AdjustContrastv2": _contrasted,
    "TensorScatterSub": _subtracted,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _stitched),
    "Bucketize": lambda layer: elements.bucketize(
        layer.builder, layer.x(), np.array(list(layer.attribute("boundaries").list.f), np.float32)
    ),
    # rearranging
    "Reverse": lambda layer: layer.builder.reverse(layer.x(), np.flatnonzero(layer.array(1)).tolist()),
    "Roll": lambda layer: elements.roll(layer.builder, layer.x(), layer.numbers(1), layer.numbers(2)),
    **dict.fromkeys(("MatrixDiagV2", "MatrixDiagV3", "Diag"), family.matrix_diagonal),
    **dict.fromkeys(("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3", "DiagPart"), _diagonal),
    **dict.fromkeys(("MatrixSetDiagV2", "MatrixSetDiagV3"), family.set_diagonal),
    "MatrixBandPart": lambda layer: elements.band(layer.builder, layer.x(), layer.numbers(1)[0], layer.numbers(2)[0]),
    "Bitcast": lambda layer: layer.builder.add("BitCast", layer.x(), to=layer.dtype("type").value),
    "EnsureShape": lambda layer: layer.x(),
    "Print": lambda layer: layer.x(),
    "PrintV2": lambda layer: layer.x(),
    "LinSpace": _linspace,
    "Cumprod": family.accumulated("CumProd"),
    # functions
    **each(
        one,
        """
        Acos:Acos Acosh:Acosh Asin:Asin Asinh:Asinh Atan:Atan Atanh:Atanh Cosh:Cosh Sinh:Sinh IsNan:IsNaN IsInf:IsInf
        Invert:BitwiseNot
    """,
    ),
    **each(two, "BitwiseAnd:BitwiseAnd BitwiseOr:BitwiseOr"),
    "LeftShift": lambda layer: layer.builder.add("BitShift", layer.x(0), layer.x(1), direction="LEFT"),
    "Erfc": _erfc,
    "IsFinite": _finite,
    "Expm1": _with_one("Exp", "Sub", after=True),
    "Log1p": _with_one("Add", "Log", after=False),
    "DivNoNan": _unless_zero(lambda layer, x, y: layer.builder.add("Div", x, y), 1),
    "MulNoNan": _unless_zero(lambda layer, x, y: layer.builder.add("Mul", x, y), 1),
    "Xdivy": _unless_zero(lambda layer, x, y: layer.builder.add("Div", x, y), 0),
    "Xlogy": _unless_zero(lambda layer, x, y: layer.builder.add("Mul", x, layer.builder.add("Log", y)), 0),
    "TruncateDiv": _truncated_quotient,
    "L2Loss": _half_of_squares,
    "TruncateMod": lambda layer: layer.builder.add("Mod", layer.x(0), layer.x(1), fmod=1),
    "EuclideanNorm": lambda layer: layer.builder.reduce("L2", layer.x(), layer.along(), layer.flag("keep_dims")),
}
