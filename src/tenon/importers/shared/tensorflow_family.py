"""What TensorFlow and TFLite share: how operators see their operands, and ``SHARED``, what means the same in both.

Source of their meaning: the documentation of tf.raw_ops.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tenon.decompositions import tensorflow_data_movement as elements
from tenon.decompositions.channels_last import ChannelsLast
from tenon.decompositions.nms import suppressed
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.ir.graph import Array, Value


class Operands(ABC):
    """An operator of a file: its operands, numbered from 0, and its attributes by TensorFlow's names."""

    builder: ChannelsLast

    @property
    @abstractmethod
    def count(self) -> int:
        """How many operands there are."""

    @abstractmethod
    def x(self, k: int = 0) -> Value:
        """Operand ``k`` as what it stands for.  Raises RefusedError if there is none."""

    @abstractmethod
    def integer(self, name: str, default: int = 0) -> int: ...

    @abstractmethod
    def number(self, name: str, default: float = 0.0) -> float: ...

    @abstractmethod
    def flag(self, name: str) -> bool: ...

    @abstractmethod
    def ints(self, name: str) -> list[int]: ...

    def stored(self, k: int) -> Value:
        """Operand ``k`` as it is stored."""
        return self.x(k)

    def xs(self) -> list[Value]:
        return [self.x(k) for k in range(self.count)]

    def array(self, k: int) -> Array:
        """A constant operand.  Raises RefusedError if it is computed at run time."""
        found = self.stored(k)
        if found.data is None:
            raise RefusedError(f"input {k} ('{found.name}') is computed at run time; it must be a constant")
        return found.data

    def numbers(self, k: int) -> list[int]:
        """A constant operand of integers."""
        found = self.array(k)
        if found.dtype.kind not in "iu":
            raise RefusedError(f"input {k} must hold integers")
        return [int(v) for v in found.ravel()]

    def along(self, k: int = 1) -> list[int]:
        """A constant operand of axes of the first one, counted from the front."""
        found, rank = self.numbers(k), self.builder.type(self.x()).rank
        if any(not -rank <= a < rank for a in found):
            raise RefusedError(f"axes {found} do not fit {rank} dimensions")
        return sorted({a % rank for a in found})


_Made = TypeVar("_Made")
Spell = Callable[[Operands], Made]


def one(op: str, **attributes: object) -> Spell:
    return lambda layer: layer.builder.add(op, layer.x(), **attributes)


def two(op: str) -> Spell:
    return lambda layer: layer.builder.add(op, layer.x(0), layer.x(1))


def with_ints(op: str) -> Spell:
    """The second operand is a constant vector."""
    return lambda layer: layer.builder.add(op, layer.x(), layer.builder.ints(*layer.numbers(1)))


def each(make: Callable[[str], _Made], pairs: str) -> dict[str, _Made]:
    """A table of what ``make`` makes of the second word of each "theirs:ours"."""
    return {theirs: make(ours) for theirs, ours in (pair.split(":") for pair in pairs.split())}


# --------------------------------------------------------------------------------------------------- arithmetic
def _not_equal(layer: Operands) -> Made:
    return layer.builder.add("Not", layer.builder.add("Equal", layer.x(0), layer.x(1)))


def _squared_difference(layer: Operands) -> Made:
    return layer.builder.square(layer.builder.add("Sub", layer.x(0), layer.x(1)))


def _select(layer: Operands, *, rows: bool) -> Made:
    """``rows``: a vector chooses whole rows."""
    condition, x, y = layer.stored(0), layer.x(1), layer.x(2)
    rank = layer.builder.type(x).rank
    if rows and layer.builder.type(condition).rank == 1 < rank:
        condition = layer.builder.reshape(condition, (-1, *(1,) * (rank - 1)))
    return layer.builder.add("Where", condition, x, y)


def matmul(layer: Operands) -> Made:
    operands = []
    for k, names in ((0, ("transpose_a", "adj_x")), (1, ("transpose_b", "adj_y"))):
        x = layer.x(k)
        rank = layer.builder.type(x).rank
        turned = any(layer.flag(name) for name in names)
        operands.append(layer.builder.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if turned else x)
    flat = all(layer.builder.type(x).rank == 2 for x in operands)
    return layer.builder.add("Gemm" if flat else "MatMul", *operands)


def lrn(layer: Operands, radius: int) -> Made:
    size, builder = 2 * radius + 1, layer.builder
    alpha, beta, bias = layer.number("alpha", 1), layer.number("beta", 0.5), layer.number("bias", 1)
    return builder.last(
        builder.add("LRN", builder.first(layer.x()), size=size, alpha=alpha * size, beta=beta, bias=bias)
    )


def fake_quant(layer: Operands, low: float, high: float) -> Made:
    return layer.builder.fake_quant(
        layer.x(), low, high, layer.integer("num_bits", 8), narrow=layer.flag("narrow_range")
    )


# ---------------------------------------------------------------------------------------------- moving elements
def _part(layer: Operands) -> Made:
    """From where, and how much; -1 is all the rest."""
    x, starts, sizes = layer.x(), layer.numbers(1), layer.numbers(2)
    dims = layer.builder.dims(x)
    ends = [n if size == -1 else a + size for a, size, n in zip(starts, sizes, dims, strict=True)]
    return layer.builder.slice(x, starts, ends, range(len(dims)))


def _strided_slice(layer: Operands) -> Made:
    masks = {name: layer.integer(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    begin, end = layer.numbers(1), layer.numbers(2)
    if layer.flag("offset"):  # ends are counted from where the slices begin
        end = [a + b for a, b in zip(begin, end, strict=True)]
    return layer.builder.strided_slice(layer.x(), begin, end, layer.numbers(3), masks)


def split(layer: Operands, count: int) -> Made:
    (axis,), x = layer.numbers(0), layer.x(1)
    return layer.builder.split(x, [layer.builder.dims(x)[axis] // count] * count, axis)


def _one_hot(layer: Operands) -> Made:
    builder = layer.builder
    values = builder.add("Concat", builder.reshape(layer.x(3), (1,)), builder.reshape(layer.x(2), (1,)), axis=0)
    return builder.add(
        "OneHot", layer.stored(0), builder.ints(*layer.numbers(1)), values, axis=layer.integer("axis", -1)
    )


# --------------------------------------------------------------------------------------------------- reductions
def reduce(kind: str) -> Spell:
    """``kind`` is ONNX's name without "Reduce"."""
    return lambda layer: layer.builder.reduce(kind, layer.x(), layer.along(), layer.flag("keep_dims"))


def reduce_truth(kind: str) -> Spell:
    def spell(layer: Operands) -> Made:
        y = layer.builder.reduce(
            kind, layer.builder.add("Cast", layer.x(), to="i32"), layer.along(), layer.flag("keep_dims")
        )
        return layer.builder.add("Cast", y, to="bool")

    return spell


def accumulated(op: str) -> Spell:
    def spell(layer: Operands) -> Made:
        flags = {name: int(layer.flag(name)) for name in ("exclusive", "reverse")}
        return layer.builder.add(op, layer.x(), layer.builder.ints(*layer.numbers(1)), **flags)

    return spell


def segments(how: str) -> Spell:
    """The numbers of the segments are constants, or how many there are is an operand."""

    def spell(layer: Operands) -> Made:
        count = layer.numbers(2)[0] if layer.count > 2 else int(layer.array(1).max(initial=-1)) + 1
        return elements.segments(layer.builder, layer.x(), layer.stored(1), count, how)

    return spell


def suppression(layer: Operands, *, scores_too: bool) -> Made:
    """The numbers of the boxes that stay (and their scores), as many rows as asked for, and how many count."""
    if scores_too and layer.array(5).item() != 0:
        raise RefusedError("scores that fade with the overlap are not supported")
    (most,) = layer.numbers(2)
    numbers, scores, count = suppressed(layer.builder, layer.x(0), layer.x(1), most, layer.x(3), layer.x(4))
    return (numbers, scores, count) if scores_too else (numbers, count)


# ---------------------------------------------------------------------------------------------------- diagonals
def main_only(layer: Operands, k: int) -> None:
    """Raises RefusedError if operand ``k`` asks for other diagonals."""
    if layer.count > k and any(layer.numbers(k)):
        raise RefusedError("only main diagonals are supported")


def set_diagonal(layer: Operands) -> Made:
    main_only(layer, 2)
    return elements.set_diagonal(layer.builder, layer.x(), layer.x(1))


def matrix_diagonal(layer: Operands) -> Made:
    main_only(layer, 1)
    n = layer.builder.dims(layer.x())[-1]
    if any(layer.numbers(k)[0] not in (-1, n) for k in (2, 3) if layer.count > k):
        raise RefusedError("only square matrices are supported")
    return elements.matrix_diagonal(layer.builder, layer.x())


# ---------------------------------------------------------------------------------------------------- constants
def _broadcast_args(layer: Operands) -> Made:
    shape = np.broadcast_shapes(tuple(layer.numbers(0)), tuple(layer.numbers(1)))
    return layer.builder.constant(np.array(shape, layer.array(0).dtype), "shape")


def _rank(layer: Operands) -> Made:
    return layer.builder.constant(np.array(layer.builder.type(layer.stored(0)).rank, np.int32), "rank")


def _fill(layer: Operands) -> Made:
    dims, value = layer.numbers(0), layer.x(1)
    if value.data is not None and value.data.size == 1:
        return layer.builder.constant(np.broadcast_to(value.data.reshape(()), tuple(dims)), "filled")
    return layer.builder.add("Expand", value, layer.builder.ints(*dims))


def like(number: int) -> Spell:
    """A constant of the operand's shape."""

    def spell(layer: Operands) -> Made:
        type = layer.builder.type(layer.x())
        return layer.builder.constant(np.broadcast_to(np.array(number, type.dtype.numpy), type.dims), "filled")

    return spell


SHARED: dict[str, Spell] = {
    **each(
        one,
        """
        Abs:Abs Ceil:Ceil Cos:Cos Elu:Elu Exp:Exp Floor:Floor Log:Log LogicalNot:Not Neg:Neg Relu:Relu Round:Round
        Sign:Sign Sin:Sin Sqrt:Sqrt Tanh:Tanh
    """,
    ),
    **each(
        two,
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
    "AddN": lambda layer: layer.builder.add("Sum", *layer.xs()),
    "Atan2": lambda layer: elements.atan2(layer.builder, layer.x(0), layer.x(1)),
    "BatchToSpaceND": lambda layer: layer.builder.batch_to_space(layer.x(), layer.numbers(1), layer.array(2)),
    "BroadcastArgs": _broadcast_args,
    "Cumsum": accumulated("CumSum"),
    "DepthToSpace": lambda layer: layer.builder.depth_to_space(layer.x(), layer.integer("block_size")),
    "ExpandDims": lambda layer: layer.builder.expand_dims(layer.x(), layer.numbers(1)[0]),
    "Fill": _fill,
    "FloorDiv": lambda layer: layer.builder.floor_div(layer.x(0), layer.x(1)),
    "FloorMod": lambda layer: layer.builder.floor_mod(layer.x(0), layer.x(1)),
    "GatherNd": lambda layer: layer.builder.add(
        "GatherND", layer.x(), layer.builder.add("Cast", layer.stored(1), to="i64")
    ),
    "LeakyRelu": lambda layer: layer.builder.add("LeakyRelu", layer.x(), alpha=layer.number("alpha", 0.2)),
    "LogSoftmax": one("LogSoftmax", axis=-1),
    "MatrixDiag": matrix_diagonal,
    "MatrixSetDiag": set_diagonal,
    "NotEqual": _not_equal,
    "OneHot": _one_hot,
    "Pack": lambda layer: layer.builder.pack(layer.xs(), layer.integer("axis")),
    "Rank": _rank,
    "Relu6": lambda layer: layer.builder.clip(layer.x(), 0, 6),
    "ReverseSequence": lambda layer: elements.reverse_sequence(
        layer.builder, layer.x(), layer.stored(1), layer.integer("seq_dim"), layer.integer("batch_dim")
    ),
    "ReverseV2": lambda layer: layer.builder.reverse(layer.x(), layer.along()),
    "RightShift": lambda layer: layer.builder.add("BitShift", layer.x(0), layer.x(1), direction="RIGHT"),
    "Rsqrt": lambda layer: layer.builder.add("Reciprocal", layer.builder.add("Sqrt", layer.x())),
    "ScatterNd": lambda layer: elements.scatter_nd(layer.builder, layer.stored(0), layer.x(1), layer.numbers(2)),
    "Select": lambda layer: _select(layer, rows=True),
    "SelectV2": lambda layer: _select(layer, rows=False),
    "Slice": _part,
    "SpaceToBatchND": lambda layer: layer.builder.space_to_batch(layer.x(), layer.numbers(1), layer.array(2)),
    "SpaceToDepth": lambda layer: layer.builder.space_to_depth(layer.x(), layer.integer("block_size")),
    "SparseToDense": lambda layer: elements.sparse_to_dense(
        layer.builder, layer.stored(0), layer.numbers(1), layer.x(2), layer.x(3)
    ),
    "SplitV": lambda layer: layer.builder.split(layer.x(), layer.numbers(1), layer.numbers(2)[0]),
    "Square": lambda layer: layer.builder.square(layer.x()),
    "SquaredDifference": _squared_difference,
    "Squeeze": lambda layer: layer.builder.squeeze(layer.x(), layer.ints("squeeze_dims")),
    "StridedSlice": _strided_slice,
    "Transpose": lambda layer: layer.builder.transpose(layer.x(), layer.numbers(1)),
    "Unpack": lambda layer: layer.builder.unpack(layer.x(), layer.integer("axis")),
    "ZerosLike": like(0),
}
"""Operators by TensorFlow's names; TFLite spells them in capitals (``in_capitals``)."""


def in_capitals(name: str) -> str:
    """SPACE_TO_BATCH_ND for SpaceToBatchND."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
