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
    return lambda layer: layer.net.add(
        "ScatterND", layer.x(), elements.whole(layer.net, layer.x(1)), layer.x(2), reduction=how
    )


def _subtracted(layer: Layer) -> Made:
    """Updates taken from what stands at their places."""
    net = layer.net
    places = net.add("Cast", layer.x(1), to="i64")
    return net.add("ScatterND", layer.x(), places, net.add("Neg", layer.x(2)), reduction="add")


def _contrasted(layer: Layer) -> Made:
    """Stretched about the mean of each channel of each picture."""
    net, x = layer.net, layer.x()
    mean = net.reduce("Mean", x, [-3, -2], keep=True)
    return net.add("Add", net.add("Mul", net.add("Sub", x, mean), layer.x(1)), mean)


def _segment_extreme(how: str) -> Spell:
    """As of segments in any order, but zeros where a segment has no rows."""

    def spell(layer: Layer) -> Made:
        net, numbers = layer.net, layer.array(1).ravel()
        count = int(numbers.max(initial=-1)) + 1
        made = elements.segments(net, layer.x(), layer.x(1), count, how)
        there = np.bincount(numbers, minlength=count) > 0
        if there.all():
            return made
        some = net.constant(there.reshape(-1, *(1,) * (net.type(made).rank - 1)), "some")
        return net.add("Where", some, made, net.number(0, made))

    return spell


def _segment_mean(layer: Layer) -> Made:
    net, numbers = layer.net, layer.array(1)
    count = np.maximum(np.bincount(numbers.ravel()), 1).astype(np.float32)
    total = elements.segments(net, layer.x(), layer.x(1), len(count), "sum")
    share = net.constant((1 / count).reshape(-1, *(1,) * (net.type(total).rank - 1)), "share")
    return net.add("Mul", total, share)


def _stitched(layer: Layer) -> Made:
    """Rows put together by their numbers, which are constants; of equal numbers the last counts."""
    net, half = layer.net, layer.count // 2
    numbers = [layer.array(k).ravel() for k in range(half)]
    flat = np.concatenate(numbers)
    if flat.size == 0 or flat.min() < 0 or flat.max() >= flat.size:
        raise RefusedError("its rows are not numbered from 0 on")
    order = np.zeros(flat.max() + 1, np.int64)
    order[flat] = np.arange(flat.size)
    rank = [net.type(layer.x(k)).rank for k in range(half)]
    parts = [net.reshape(layer.x(half + k), (numbers[k].size, *net.dims(layer.x(half + k))[rank[k] :]))
             for k in range(half)]  # fmt: skip
    return net.add("Gather", net.add("Concat", *parts, axis=0), net.constant(order, "order"), axis=0)


# --------------------------------------------------------------------------------------------------- rearranging
def _diagonal(layer: Layer) -> Made:
    """The diagonals of matrices."""
    family.main_only(layer, 1)
    net, x = layer.net, layer.x()
    *outer, rows, columns = net.dims(x)
    n = min(rows, columns)
    places = net.constant(np.arange(n) * (columns + 1), "places")
    return net.add("Gather", net.reshape(x, (*outer, rows * columns)), places, axis=-1)


def _linspace(layer: Layer) -> Made:
    start, stop = (float(layer.array(k).item()) for k in (0, 1))
    (count,) = layer.numbers(2)
    if not 0 < count < 1 << 24:
        raise RefusedError(f"{count} numbers are impossible")
    return layer.net.constant(np.linspace(start, stop, count).astype(layer.array(0).dtype), "numbers")


# ----------------------------------------------------------------------------------------------------- functions
def _with_one(first: str, second: str, *, after: bool) -> Spell:
    """log(1 + x), exp(x) - 1 and the like: two steps, one of them with the number one."""

    def spell(layer: Layer) -> Made:
        net, x = layer.net, layer.x()
        x = net.add(first, x) if after else net.add(first, x, net.number(1, x))
        return net.add(second, x, net.number(1, x)) if after else net.add(second, x)

    return spell


def _unless_zero(make: Callable[[Layer, Value, Value], Value], k: int) -> Spell:
    """Zero where operand ``k`` is zero, whatever the other is."""

    def spell(layer: Layer) -> Made:
        net, pair = layer.net, [layer.x(0), layer.x(1)]
        none = net.add("Equal", pair[k], net.number(0, pair[k]))
        pair[1] = net.add("Where", none, net.number(1, pair[1]), pair[1])
        return net.add("Where", none, net.number(0, pair[0]), make(layer, *pair))

    return spell


def _finite(layer: Layer) -> Made:
    net, x = layer.net, layer.x()
    return net.add("Not", net.add("Or", net.add("IsNaN", x), net.add("IsInf", x)))


def _truncated_quotient(layer: Layer) -> Made:
    net, y = layer.net, layer.net.add("Div", layer.x(0), layer.x(1))
    if not net.type(y).dtype.is_float:
        return y
    return net.add("Mul", net.add("Sign", y), net.add("Floor", net.add("Abs", y)))


def _half_of_squares(layer: Layer) -> Made:
    net, squares = layer.net, layer.net.square(layer.x())
    total = net.add("ReduceSum", squares, keepdims=0)
    return net.add("Mul", total, net.number(0.5, total))


def _erfc(layer: Layer) -> Made:
    net, x = layer.net, layer.x()
    return net.add("Sub", net.number(1, x), net.add("Erf", x))


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
        layer.net, layer.x(), np.array(list(layer.attribute("boundaries").list.f), np.float32)),
    # rearranging
    "Reverse": lambda layer: layer.net.reverse(layer.x(), np.flatnonzero(layer.array(1)).tolist()),
    "Roll": lambda layer: elements.roll(layer.net, layer.x(), layer.numbers(1), layer.numbers(2)),
    **dict.fromkeys(("MatrixDiagV2", "MatrixDiagV3", "Diag"), family.matrix_diagonal),
    **dict.fromkeys(("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3", "DiagPart"), _diagonal),
    **dict.fromkeys(("MatrixSetDiagV2", "MatrixSetDiagV3"), family.set_diagonal),
    "MatrixBandPart": lambda layer: elements.band(layer.net, layer.x(), layer.numbers(1)[0], layer.numbers(2)[0]),
    "Bitcast": lambda layer: layer.net.add("BitCast", layer.x(), to=layer.dtype("type").value),
    "EnsureShape": lambda layer: layer.x(), "Print": lambda layer: layer.x(), "PrintV2": lambda layer: layer.x(),
    "LinSpace": _linspace, "Cumprod": family.accumulated("CumProd"),
    # functions
    **each(one, """
        Acos:Acos Acosh:Acosh Asin:Asin Asinh:Asinh Atan:Atan Atanh:Atanh Cosh:Cosh Sinh:Sinh IsNan:IsNaN IsInf:IsInf
        Invert:BitwiseNot
    """),
    **each(two, "BitwiseAnd:BitwiseAnd BitwiseOr:BitwiseOr"),
    "LeftShift": lambda layer: layer.net.add("BitShift", layer.x(0), layer.x(1), direction="LEFT"),
    "Erfc": _erfc, "IsFinite": _finite,
    "Expm1": _with_one("Exp", "Sub", after=True), "Log1p": _with_one("Add", "Log", after=False),
    "DivNoNan": _unless_zero(lambda layer, x, y: layer.net.add("Div", x, y), 1),
    "MulNoNan": _unless_zero(lambda layer, x, y: layer.net.add("Mul", x, y), 1),
    "Xdivy": _unless_zero(lambda layer, x, y: layer.net.add("Div", x, y), 0),
    "Xlogy": _unless_zero(lambda layer, x, y: layer.net.add("Mul", x, layer.net.add("Log", y)), 0),
    "TruncateDiv": _truncated_quotient, "L2Loss": _half_of_squares,
    "TruncateMod": lambda layer: layer.net.add("Mod", layer.x(0), layer.x(1), fmod=1),
    "EuclideanNorm": lambda layer: layer.net.reduce("L2", layer.x(), layer.along(), layer.flag("keep_dims")),
}  # fmt: skip
