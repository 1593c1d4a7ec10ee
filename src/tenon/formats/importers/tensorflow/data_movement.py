"""TensorFlow's operators that scatter and rearrange elements, and functions of numbers that few graphs have.

Source: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions import tensorflow_data_movement as elements
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.shared import tensorflow_family as family
from tenon.formats.importers.shared.tensorflow_family import binary, each, unary
from tenon.formats.importers.tensorflow.importer import TensorflowNode
from tenon.network.graph.graph import Value

OperatorFunction = Callable[[TensorflowNode], Outputs]


# --------------------------------------------------------------------------------------------------- scattering
def _scattered(how: str) -> OperatorFunction:
    return lambda node: node.builder.add(
        "ScatterND", node.x, elements.as_i64(node.builder, node.input(1)), node.input(2), reduction=how
    )


def _subtracted(node: TensorflowNode) -> Outputs:
    """Updates combined with the elements at their indices."""
    builder = node.builder
    indices = builder.add("Cast", node.input(1), to="i64")
    return builder.add("ScatterND", node.x, indices, builder.add("Neg", node.input(2)), reduction="add")


def _contrasted(node: TensorflowNode) -> Outputs:
    """Contrast scaled about the mean of each channel of each image."""
    builder, x = node.builder, node.x
    mean = builder.reduce("Mean", x, [-3, -2], keep=True)
    return builder.add("Add", builder.add("Mul", builder.add("Sub", x, mean), node.input(1)), mean)


def _segment_extreme(how: str) -> OperatorFunction:
    """As of segments in any order, but zeros where a segment has no rows."""

    def function(node: TensorflowNode) -> Outputs:
        builder, numbers = node.builder, node.constant_input(1).ravel()
        count = int(numbers.max(initial=-1)) + 1
        result = elements.segments(builder, node.x, node.input(1), count, how)
        there = np.bincount(numbers, minlength=count) > 0
        if there.all():
            return result
        some = builder.constant(there.reshape(-1, *(1,) * (builder.type(result).rank - 1)), "some")
        return builder.add("Where", some, result, builder.number(0, result))

    return function


def _segment_mean(node: TensorflowNode) -> Outputs:
    builder, numbers = node.builder, node.constant_input(1)
    count = np.maximum(np.bincount(numbers.ravel()), 1).astype(np.float32)
    total = elements.segments(builder, node.x, node.input(1), len(count), "sum")
    share = builder.constant((1 / count).reshape(-1, *(1,) * (builder.type(total).rank - 1)), "share")
    return builder.add("Mul", total, share)


def _stitched(node: TensorflowNode) -> Outputs:
    """Rows merged by their indices, which are constants; of equal indices the last wins."""
    builder, half = node.builder, node.count // 2
    numbers = [node.constant_input(k).ravel() for k in range(half)]
    flat = np.concatenate(numbers)
    if flat.size == 0 or flat.min() < 0 or flat.max() >= flat.size:
        raise RefusedError("its rows are not numbered from 0 on")
    order = np.zeros(flat.max() + 1, np.int64)
    order[flat] = np.arange(flat.size)
    rank = [builder.type(node.input(k)).rank for k in range(half)]
    parts = [
        builder.reshape(node.input(half + k), (numbers[k].size, *builder.dims(node.input(half + k))[rank[k] :]))
        for k in range(half)
    ]
    return builder.add("Gather", builder.add("Concat", *parts, axis=0), builder.constant(order, "order"), axis=0)


# --------------------------------------------------------------------------------------------------- rearranging
def _diagonal(node: TensorflowNode) -> Outputs:
    """The main diagonals of matrices."""
    family.main_only(node, 1)
    builder, x = node.builder, node.x
    *outer, rows, columns = builder.dims(x)
    n = min(rows, columns)
    indices = builder.constant(np.arange(n) * (columns + 1), "places")
    return builder.add("Gather", builder.reshape(x, (*outer, rows * columns)), indices, axis=-1)


def _linspace(node: TensorflowNode) -> Outputs:
    start, stop = (float(node.constant_input(k).item()) for k in (0, 1))
    (count,) = node.constant_integers(2)
    if not 0 < count < 1 << 24:
        raise RefusedError(f"{count} numbers are impossible")
    return node.builder.constant(np.linspace(start, stop, count).astype(node.constant_input(0).dtype), "numbers")


# ----------------------------------------------------------------------------------------------------- functions
def _with_one(first: str, second: str, *, after: bool) -> OperatorFunction:
    """log(1 + x), exp(x) - 1 and the like: a function and an operation with the number one."""

    def function(node: TensorflowNode) -> Outputs:
        builder, x = node.builder, node.x
        x = builder.add(first, x) if after else builder.add(first, x, builder.number(1, x))
        return builder.add(second, x, builder.number(1, x)) if after else builder.add(second, x)

    return function


def _unless_zero(make: Callable[[TensorflowNode, Value, Value], Value], k: int) -> OperatorFunction:
    """Zero where operand ``k`` is zero, even if the other is infinite or NaN."""

    def function(node: TensorflowNode) -> Outputs:
        builder, pair = node.builder, [node.input(0), node.input(1)]
        none = builder.add("Equal", pair[k], builder.number(0, pair[k]))
        pair[1] = builder.add("Where", none, builder.number(1, pair[1]), pair[1])
        return builder.add("Where", none, builder.number(0, pair[0]), make(node, *pair))

    return function


def _finite(node: TensorflowNode) -> Outputs:
    builder, x = node.builder, node.x
    return builder.add("Not", builder.add("Or", builder.add("IsNaN", x), builder.add("IsInf", x)))


def _truncated_quotient(node: TensorflowNode) -> Outputs:
    builder, y = node.builder, node.builder.add("Div", node.input(0), node.input(1))
    if not builder.type(y).dtype.is_float:
        return y
    return builder.add("Mul", builder.add("Sign", y), builder.add("Floor", builder.add("Abs", y)))


def _half_of_squares(node: TensorflowNode) -> Outputs:
    builder, squares = node.builder, node.builder.square(node.x)
    total = builder.add("ReduceSum", squares, keepdims=0)
    return builder.add("Mul", total, builder.number(0.5, total))


def _erfc(node: TensorflowNode) -> Outputs:
    builder, x = node.builder, node.x
    return builder.add("Sub", builder.number(1, x), builder.add("Erf", x))


ELEMENTS: dict[str, OperatorFunction] = {
    # scattering
    **each(_scattered, "TensorScatterUpdate:none TensorScatterAdd:add TensorScatterMax:max TensorScatterMin:min"),
    **each(_segment_extreme, "SegmentMax:max SegmentMin:min"),
    **each(family.segments, "SegmentProd:prod"),
    "SegmentMean": _segment_mean,
    "AdjustContrastv2": _contrasted,
    "TensorScatterSub": _subtracted,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), _stitched),
    "Bucketize": lambda node: elements.bucketize(
        node.builder, node.x, np.array(list(node.message("boundaries").list.f), np.float32)
    ),
    # rearranging
    "Reverse": lambda node: node.builder.reverse(node.x, np.flatnonzero(node.constant_input(1)).tolist()),
    "Roll": lambda node: elements.roll(node.builder, node.x, node.constant_integers(1), node.constant_integers(2)),
    **dict.fromkeys(("MatrixDiagV2", "MatrixDiagV3", "Diag"), family.matrix_diagonal),
    **dict.fromkeys(("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3", "DiagPart"), _diagonal),
    **dict.fromkeys(("MatrixSetDiagV2", "MatrixSetDiagV3"), family.set_diagonal),
    "MatrixBandPart": lambda node: elements.band(
        node.builder, node.x, node.constant_integers(1)[0], node.constant_integers(2)[0]
    ),
    "Bitcast": lambda node: node.builder.add("BitCast", node.x, to=node.dtype("type").value),
    "EnsureShape": lambda node: node.x,
    "Print": lambda node: node.x,
    "PrintV2": lambda node: node.x,
    "LinSpace": _linspace,
    "Cumprod": family.accumulated("CumProd"),
    # functions
    **each(
        unary,
        """
        Acos:Acos Acosh:Acosh Asin:Asin Asinh:Asinh Atan:Atan Atanh:Atanh Cosh:Cosh Sinh:Sinh IsNan:IsNaN IsInf:IsInf
        Invert:BitwiseNot
    """,
    ),
    **each(binary, "BitwiseAnd:BitwiseAnd BitwiseOr:BitwiseOr"),
    "LeftShift": lambda node: node.builder.add("BitShift", node.input(0), node.input(1), direction="LEFT"),
    "Erfc": _erfc,
    "IsFinite": _finite,
    "Expm1": _with_one("Exp", "Sub", after=True),
    "Log1p": _with_one("Add", "Log", after=False),
    "DivNoNan": _unless_zero(lambda node, x, y: node.builder.add("Div", x, y), 1),
    "MulNoNan": _unless_zero(lambda node, x, y: node.builder.add("Mul", x, y), 1),
    "Xdivy": _unless_zero(lambda node, x, y: node.builder.add("Div", x, y), 0),
    "Xlogy": _unless_zero(lambda node, x, y: node.builder.add("Mul", x, node.builder.add("Log", y)), 0),
    "TruncateDiv": _truncated_quotient,
    "L2Loss": _half_of_squares,
    "TruncateMod": lambda node: node.builder.add("Mod", node.input(0), node.input(1), fmod=1),
    "EuclideanNorm": lambda node: node.builder.reduce("L2", node.x, node.along(), node.flag("keep_dims")),
}
