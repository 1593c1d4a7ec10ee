"""Parts that TensorFlow and TFLite share: the node class, and ``SHARED``, the operators that are equal in both.

Source: the documentation of tf.raw_ops.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tenon.formats.decompositions import tensorflow_data_movement as elements
from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.decompositions.layers import one_hot
from tenon.formats.decompositions.nms import suppressed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext, Outputs
from tenon.network.graph.graph import Array, Value


class TensorflowFamilyNode(NodeContext):
    """An operator of a file: its operands, numbered from 0, and its attributes by TensorFlow's names."""

    builder: ChannelsLast

    @property
    def count(self) -> int:
        """How many operands there are."""
        return len(self.inputs)

    def stored(self, k: int) -> Value:
        """Operand ``k`` as it is stored; of a quantised one the integers."""
        return self.input(k)

    def all_inputs(self) -> list[Value]:
        return [self.input(k) for k in range(self.count)]

    def constant_input(self, i: int) -> Array:
        """The stored data of a constant operand.  Raises RefusedError if it is computed at run time."""
        value = self.stored(i)
        if value.data is None:
            raise RefusedError(f"input {i} ('{value.name}') is computed at run time; it must be a constant")
        return value.data

    def constant_integers(self, i: int) -> list[int]:
        """A constant operand of integers."""
        data = self.constant_input(i)
        if data.dtype.kind not in "iu":
            raise RefusedError(f"input {i} must hold integers")
        return [int(v) for v in data.ravel()]

    def along(self, k: int = 1) -> list[int]:
        """A constant operand of axes of the first one, counted from the front."""
        axes, rank = self.constant_integers(k), self.builder.type(self.x).rank
        if any(not -rank <= a < rank for a in axes):
            raise RefusedError(f"axes {axes} do not fit {rank} dimensions")
        return sorted({a % rank for a in axes})


_Row = TypeVar("_Row")
OperatorFunction = Callable[[TensorflowFamilyNode], Outputs]


def unary(op: str, **attributes: object) -> OperatorFunction:
    return lambda node: node.builder.add(op, node.x, **attributes)


def binary(op: str) -> OperatorFunction:
    return lambda node: node.builder.add(op, node.input(0), node.input(1))


def with_ints(op: str) -> OperatorFunction:
    """The second operand is a constant vector."""
    return lambda node: node.builder.add(op, node.x, node.builder.ints(*node.constant_integers(1)))


def each(make: Callable[[str], _Row], pairs: str) -> dict[str, _Row]:
    """A table of ``make(ours)`` by the first name of each pair "theirs:ours"."""
    return {theirs: make(ours) for theirs, ours in (pair.split(":") for pair in pairs.split())}


# --------------------------------------------------------------------------------------------------- arithmetic
def _not_equal(node: TensorflowFamilyNode) -> Outputs:
    return node.builder.add("Not", node.builder.add("Equal", node.input(0), node.input(1)))


def _squared_difference(node: TensorflowFamilyNode) -> Outputs:
    return node.builder.square(node.builder.add("Sub", node.input(0), node.input(1)))


def _select(node: TensorflowFamilyNode, *, rows: bool) -> Outputs:
    """``rows``: a vector selects rows."""
    condition, x, y = node.stored(0), node.input(1), node.input(2)
    rank = node.builder.type(x).rank
    if rows and node.builder.type(condition).rank == 1 < rank:
        condition = node.builder.reshape(condition, (-1, *(1,) * (rank - 1)))
    return node.builder.add("Where", condition, x, y)


def matmul(node: TensorflowFamilyNode) -> Outputs:
    operands = []
    for k, names in ((0, ("transpose_a", "adj_x")), (1, ("transpose_b", "adj_y"))):
        x = node.input(k)
        rank = node.builder.type(x).rank
        transposed = any(node.flag(name) for name in names)
        operands.append(node.builder.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if transposed else x)
    flat = all(node.builder.type(x).rank == 2 for x in operands)
    return node.builder.add("Gemm" if flat else "MatMul", *operands)


def lrn(node: TensorflowFamilyNode, radius: int) -> Outputs:
    size, builder = 2 * radius + 1, node.builder
    alpha, beta, bias = node.number("alpha", 1), node.number("beta", 0.5), node.number("bias", 1)
    return builder.last(builder.add("LRN", builder.first(node.x), size=size, alpha=alpha * size, beta=beta, bias=bias))


def fake_quant(node: TensorflowFamilyNode, low: float, high: float) -> Outputs:
    return node.builder.fake_quant(node.x, low, high, node.integer("num_bits", 8), narrow=node.flag("narrow_range"))


# ---------------------------------------------------------------------------------------------- moving elements
def _part(node: TensorflowFamilyNode) -> Outputs:
    """Slice by begins and sizes; -1 is all the rest."""
    x, starts, sizes = node.x, node.constant_integers(1), node.constant_integers(2)
    dims = node.builder.dims(x)
    ends = [n if size == -1 else a + size for a, size, n in zip(starts, sizes, dims, strict=True)]
    return node.builder.slice(x, starts, ends, range(len(dims)))


def _strided_slice(node: TensorflowFamilyNode) -> Outputs:
    masks = {name: node.integer(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    begin, end = node.constant_integers(1), node.constant_integers(2)
    if node.flag("offset"):  # ends are counted from where the slices begin
        end = [a + b for a, b in zip(begin, end, strict=True)]
    return node.builder.strided_slice(node.x, begin, end, node.constant_integers(3), masks)


def split(node: TensorflowFamilyNode, count: int) -> Outputs:
    (axis,), x = node.constant_integers(0), node.input(1)
    return node.builder.split(x, [node.builder.dims(x)[axis] // count] * count, axis)


def _one_hot(node: TensorflowFamilyNode) -> Outputs:
    builder = node.builder
    values = builder.add("Concat", builder.reshape(node.input(3), (1,)), builder.reshape(node.input(2), (1,)), axis=0)
    (depth,) = node.constant_integers(1)
    return one_hot(node, node.stored(0), depth, values, node.integer("axis", -1))


# --------------------------------------------------------------------------------------------------- reductions
def reduce(kind: str) -> OperatorFunction:
    """``kind`` is ONNX's name without "Reduce"."""
    return lambda node: node.builder.reduce(kind, node.x, node.along(), node.flag("keep_dims"))


def reduce_truth(kind: str) -> OperatorFunction:
    def function(node: TensorflowFamilyNode) -> Outputs:
        y = node.builder.reduce(kind, node.builder.add("Cast", node.x, to="i32"), node.along(), node.flag("keep_dims"))
        return node.builder.add("Cast", y, to="bool")

    return function


def accumulated(op: str) -> OperatorFunction:
    def function(node: TensorflowFamilyNode) -> Outputs:
        flags = {name: int(node.flag(name)) for name in ("exclusive", "reverse")}
        return node.builder.add(op, node.x, node.builder.ints(*node.constant_integers(1)), **flags)

    return function


def segments(how: str) -> OperatorFunction:
    """The numbers of the segments are constants, or how many there are is an operand."""

    def function(node: TensorflowFamilyNode) -> Outputs:
        count = node.constant_integers(2)[0] if node.count > 2 else int(node.constant_input(1).max(initial=-1)) + 1
        return elements.segments(node.builder, node.x, node.stored(1), count, how)

    return function


def suppression(node: TensorflowFamilyNode, *, scores_too: bool) -> Outputs:
    """Indices of the boxes that NMS keeps (and their scores), padded to the rows asked for, and their count."""
    if scores_too and node.constant_input(5).item() != 0:
        raise RefusedError("soft NMS (soft_nms_sigma) is not supported")
    (most,) = node.constant_integers(2)
    numbers, scores, count = suppressed(node.builder, node.input(0), node.input(1), most, node.input(3), node.input(4))
    return (numbers, scores, count) if scores_too else (numbers, count)


# ---------------------------------------------------------------------------------------------------- diagonals
def main_only(node: TensorflowFamilyNode, k: int) -> None:
    """Raises RefusedError if operand ``k`` asks for other diagonals."""
    if node.count > k and any(node.constant_integers(k)):
        raise RefusedError("only main diagonals are supported")


def set_diagonal(node: TensorflowFamilyNode) -> Outputs:
    main_only(node, 2)
    return elements.set_diagonal(node.builder, node.x, node.input(1))


def matrix_diagonal(node: TensorflowFamilyNode) -> Outputs:
    main_only(node, 1)
    n = node.builder.dims(node.x)[-1]
    if any(node.constant_integers(k)[0] not in (-1, n) for k in (2, 3) if node.count > k):
        raise RefusedError("only square matrices are supported")
    return elements.matrix_diagonal(node.builder, node.x)


# ---------------------------------------------------------------------------------------------------- constants
def _broadcast_args(node: TensorflowFamilyNode) -> Outputs:
    shape = np.broadcast_shapes(tuple(node.constant_integers(0)), tuple(node.constant_integers(1)))
    return node.builder.constant(np.array(shape, node.constant_input(0).dtype), "shape")


def _rank(node: TensorflowFamilyNode) -> Outputs:
    return node.builder.constant(np.array(node.builder.type(node.stored(0)).rank, np.int32), "rank")


def _fill(node: TensorflowFamilyNode) -> Outputs:
    dims, value = node.constant_integers(0), node.input(1)
    if value.data is not None and value.data.size == 1:
        return node.builder.constant(np.broadcast_to(value.data.reshape(()), tuple(dims)), "filled")
    return node.builder.add("Expand", value, node.builder.ints(*dims))


def like(number: int) -> OperatorFunction:
    """A constant of the operand's shape."""

    def function(node: TensorflowFamilyNode) -> Outputs:
        type, dims = node.builder.type(node.x), node.builder.dims(node.x)
        return node.builder.constant(np.broadcast_to(np.array(number, type.dtype.numpy), dims), "filled")

    return function


SHARED: dict[str, OperatorFunction] = {
    **each(
        unary,
        """
        Abs:Abs Ceil:Ceil Cos:Cos Elu:Elu Exp:Exp Floor:Floor Log:Log LogicalNot:Not Neg:Neg Relu:Relu Round:Round
        Sign:Sign Sin:Sin Sqrt:Sqrt Tanh:Tanh
    """,
    ),
    **each(
        binary,
        """
        Equal:Equal Greater:Greater GreaterEqual:GreaterOrEqual Less:Less LessEqual:LessOrEqual LogicalAnd:And
        LogicalOr:Or Maximum:Max Minimum:Min Pow:Pow BitwiseXor:BitwiseXor
    """,
    ),
    **each(with_ints, "BroadcastTo:Expand Tile:Tile"),
    **each(reduce, "Mean:Mean Sum:Sum"),
    **each(
        segments,
        """
        SegmentSum:sum UnsortedSegmentMax:max UnsortedSegmentMin:min UnsortedSegmentProd:prod UnsortedSegmentSum:sum
    """,
    ),
    "AddN": lambda node: node.builder.add("Sum", *node.all_inputs()),
    "Atan2": lambda node: elements.atan2(node.builder, node.input(0), node.input(1)),
    "BatchToSpaceND": lambda node: node.builder.batch_to_space(
        node.x, node.constant_integers(1), node.constant_input(2)
    ),
    "BroadcastArgs": _broadcast_args,
    "Cumsum": accumulated("CumSum"),
    "DepthToSpace": lambda node: node.builder.depth_to_space(node.x, node.integer("block_size")),
    "ExpandDims": lambda node: node.builder.expand_dims(node.x, node.constant_integers(1)[0]),
    "Fill": _fill,
    "FloorDiv": lambda node: node.builder.floor_div(node.input(0), node.input(1)),
    "FloorMod": lambda node: node.builder.floor_mod(node.input(0), node.input(1)),
    "GatherNd": lambda node: node.builder.add("GatherND", node.x, node.builder.add("Cast", node.stored(1), to="i64")),
    "LeakyRelu": lambda node: node.builder.add("LeakyRelu", node.x, alpha=node.number("alpha", 0.2)),
    "LogSoftmax": unary("LogSoftmax", axis=-1),
    "MatrixDiag": matrix_diagonal,
    "MatrixSetDiag": set_diagonal,
    "NotEqual": _not_equal,
    "OneHot": _one_hot,
    "Pack": lambda node: node.builder.pack(node.all_inputs(), node.integer("axis")),
    "Rank": _rank,
    "Relu6": lambda node: node.builder.clip(node.x, 0, 6),
    "ReverseSequence": lambda node: elements.reverse_sequence(
        node.builder, node.x, node.stored(1), node.integer("seq_dim"), node.integer("batch_dim")
    ),
    "ReverseV2": lambda node: node.builder.reverse(node.x, node.along()),
    "RightShift": lambda node: node.builder.add("BitShift", node.input(0), node.input(1), direction="RIGHT"),
    "Rsqrt": lambda node: node.builder.add("Reciprocal", node.builder.add("Sqrt", node.x)),
    "ScatterNd": lambda node: elements.scatter_nd(
        node.builder, node.stored(0), node.input(1), node.constant_integers(2)
    ),
    "Select": lambda node: _select(node, rows=True),
    "SelectV2": lambda node: _select(node, rows=False),
    "Slice": _part,
    "SpaceToBatchND": lambda node: node.builder.space_to_batch(
        node.x, node.constant_integers(1), node.constant_input(2)
    ),
    "SpaceToDepth": lambda node: node.builder.space_to_depth(node.x, node.integer("block_size")),
    "SparseToDense": lambda node: elements.sparse_to_dense(
        node.builder, node.stored(0), node.constant_integers(1), node.input(2), node.input(3)
    ),
    "SplitV": lambda node: node.builder.split(node.x, node.constant_integers(1), node.constant_integers(2)[0]),
    "Square": lambda node: node.builder.square(node.x),
    "SquaredDifference": _squared_difference,
    "Squeeze": lambda node: node.builder.squeeze(node.x, node.integers("squeeze_dims")),
    "StridedSlice": _strided_slice,
    "Transpose": lambda node: node.builder.transpose(node.x, node.constant_integers(1)),
    "Unpack": lambda node: node.builder.unpack(node.x, node.integer("axis")),
    "ZerosLike": like(0),
}
"""Operators by TensorFlow's names; TFLite writes them in capitals (``in_capitals``)."""


def in_capitals(name: str) -> str:
    """SPACE_TO_BATCH_ND for SpaceToBatchND."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
