"""Caffe2's operators that compute, compare, pick or measure elements, and the pooling of rows by lengths.

Definitions: the operator catalogue of Caffe2, caffe2/operators of pytorch/pytorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, simple
from tenon.formats.importers.shared.named_arguments import NamedArgumentNode
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType
from tenon.network.graph.writer import is_known

_TYPES = {
    "FLOAT": DType.F32,
    "INT32": DType.I32,
    "BOOL": DType.BOOL,
    "UINT8": DType.U8,
    "INT8": DType.I8,
    "INT64": DType.I64,
    "FLOAT16": DType.F16,
    "DOUBLE": DType.F64,
}
_NUMBERS = {1: "FLOAT", 2: "INT32", 5: "BOOL", 6: "UINT8", 7: "INT8", 10: "INT64", 12: "FLOAT16", 13: "DOUBLE"}


def binary(type: str, *after: str) -> Callable[[NamedArgumentNode], Value]:
    """With ``broadcast`` the second operand lies along the axes from ``axis`` on."""

    def import_node(node: NamedArgumentNode) -> Value:
        a, b = node.x, node.input(1)
        known = is_known(a) and is_known(b) and node.integer("broadcast")
        return node.chain(
            node.add(type, *(node.broadcast(a, b, node.integer("axis", -1)) if known else (a, b))), *after
        )

    return import_node


def cast(node: NamedArgumentNode) -> Value:
    name = node.text("to").upper() or _NUMBERS.get(node.integer("to", 1), "")
    if name not in _TYPES:
        raise RefusedError(f"type {name or node.integer('to')} is not supported")
    return node.add("Cast", node.x, to=str(_TYPES[name]))


def logit(node: NamedArgumentNode) -> Value:
    eps = node.number("eps", 1e-6)
    x = node.add("Clip", node.x, eps, 1 - eps)
    return node.add("Log", node.add("Div", x, node.add("Sub", node.builder.scalar(1.0), x)))


def replaced(node: NamedArgumentNode) -> Value:
    """A number where there is none."""
    return node.add("Where", node.add("IsNaN", node.x), node.number("value"), node.x)


def mean(node: NamedArgumentNode) -> Value:
    return node.add("Mul", node.fold("Add", node.inputs), 1 / len(node.inputs))


def ends(type: str, *, front: bool) -> Callable[[NamedArgumentNode], Value]:
    """Over the first axes, or over the last."""

    def import_node(node: NamedArgumentNode) -> Value:
        if len(node.inputs) > 1:
            raise RefusedError("lengths are not supported")
        count, rank = node.integer("num_reduce_dim", 1), len(node.dims)
        axes = range(count) if front else range(rank - count, rank)
        return node.add(type, node.x, node.ints(*axes), keepdims=0)

    return import_node


def norm(node: NamedArgumentNode) -> Value:
    """The sum of absolute values or of squares, perhaps over their number."""
    total = node.add("ReduceL1" if node.integer("p", 2) == 1 else "ReduceSumSquare", node.x, keepdims=0)
    return node.reshape(node.add("Mul", total, 1 / math.prod(node.dims)) if node.integer("average") else total, 1)


def _rows(node: NamedArgumentNode, i: int) -> Value:
    x = node.input(i)
    return node.reshape(x, node.builder.dims(x)[0], -1)


def dot(node: NamedArgumentNode) -> Value:
    """The dot product of each row of one matrix with the same row of the other."""
    return node.add("ReduceSum", node.add("Mul", _rows(node, 0), _rows(node, 1)), node.ints(1), keepdims=0)


def distance(node: NamedArgumentNode) -> Value:
    away = node.add("Sub", _rows(node, 0), _rows(node, 1))
    return node.add("Mul", node.add("ReduceSumSquare", away, node.ints(1), keepdims=0), 0.5)


def cosine(node: NamedArgumentNode) -> Value:
    lengths = [
        node.add("Sqrt", node.add("Max", node.add("ReduceSumSquare", _rows(node, i), node.ints(1), keepdims=0), 1e-12))
        for i in (0, 1)
    ]
    return node.add("Div", dot(node), node.add("Mul", *lengths))


def expanded(node: NamedArgumentNode) -> Value:
    shape = node.add("Cast", node.input(1), to="i64") if len(node.inputs) > 1 else node.ints(*node.integers("shape"))
    return node.add("Expand", node.x, shape)


def tiled(node: NamedArgumentNode) -> Value:
    if len(node.inputs) > 1:
        raise RefusedError("counts computed at run time are not supported")
    counts = [1] * len(node.dims)
    counts[node.axis(node.integer("axis"), len(counts))] = node.integer("tiles", 1)
    return node.add("Tile", node.x, node.ints(*counts))


def top(node: NamedArgumentNode) -> Outputs:
    return node.builder.adds("TopK", 2, node.x, node.ints(node.integer("k", 1)), axis=node.integer("axis", -1))


def picked(node: NamedArgumentNode, axis: int) -> Value:
    return node.add("Gather", node.x, node.add("Cast", node.input(1), to="i64"), axis=axis)


def merged(node: NamedArgumentNode) -> Value:
    count = node.integer("num_dims", 1) + 1
    return node.reshape(node.x, math.prod(node.dims[:count]), *node.dims[count:])


def prepended(node: NamedArgumentNode) -> Value:
    size = node.integer("dim_size")
    if size < 1 or node.dims[0] % size:
        raise RefusedError(f"{node.dims[0]} does not divide into {size}")
    return node.reshape(node.x, size, node.dims[0] // size, *node.dims[1:])


# --------------------------------------------------------------------------------------------- lengths
def pooled(*, sparse: bool, weighted: bool, average: bool) -> Callable[[NamedArgumentNode], Value]:
    """Runs of rows added up; their lengths are the last input.

    Rows are gathered first where ``sparse``, and multiplied by the second input where ``weighted``.
    """

    def import_node(node: NamedArgumentNode) -> Value:
        rows, lengths = node.x, node.reshape(node.add("Cast", node.inputs[-1], to="f32"), 1, -1)
        if sparse:
            numbers = node.reshape(node.add("Cast", node.input(2 if weighted else 1), to="i64"), -1)
            rows = node.add("Gather", rows, numbers, axis=0)
        dims = node.builder.dims(rows)
        rows = node.reshape(rows, dims[0], -1)
        if weighted:
            rows = node.add("Mul", rows, node.reshape(node.input(1), -1, 1))
        stop = node.add("CumSum", lengths, node.ints(1))
        at = np.arange(dims[0], dtype=np.float32).reshape(-1, 1)
        inside = node.add(
            "And", node.add("GreaterOrEqual", at, node.add("Sub", stop, lengths)), node.add("Less", at, stop)
        )
        total = node.add("MatMul", node.transpose_last(node.add("Cast", inside, to="f32")), rows)
        if average:
            total = node.add("Div", total, node.add("Max", node.transpose_last(lengths), 1.0))
        return node.reshape(total, -1, *dims[1:])

    return import_node


ELEMENTS: dict[str, Callable[[NamedArgumentNode], Outputs]] = {
    **{
        name: simple(name)
        for name in ("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Erf", "Sign", "Reciprocal", "Not", "Round")
    },
    **{
        name: binary(type)
        for name, type in (
            ("Add", "Add"),
            ("Sub", "Sub"),
            ("Mul", "Mul"),
            ("Div", "Div"),
            ("EQ", "Equal"),
            ("LT", "Less"),
            ("LE", "LessOrEqual"),
            ("GT", "Greater"),
            ("GE", "GreaterOrEqual"),
            ("And", "And"),
            ("Or", "Or"),
            ("Xor", "Xor"),
        )
    },
    "NE": binary("Equal", "Not"),
    "Cast": cast,
    "Logit": logit,
    "ReplaceNaN": replaced,
    "Mean": mean,
    "Rsqrt": lambda node: node.chain(node.x, "Sqrt", "Reciprocal"),
    "Cube": lambda node: node.add("Mul", node.square(node.x), node.x),
    "HardSigmoid": lambda node: node.add(
        "HardSigmoid", node.x, alpha=node.number("alpha", 0.2), beta=node.number("beta", 0.5)
    ),
    "ThresholdedRelu": lambda node: node.add("ThresholdedRelu", node.x, alpha=node.number("alpha", 1.0)),
    "Where": lambda node: node.add("Where", *node.inputs),
    "LpNorm": norm,
    "DotProduct": dot,
    "SquaredL2Distance": distance,
    "CosineSimilarity": cosine,
    "Expand": expanded,
    "Tile": tiled,
    "TopK": top,
    "MergeDim": merged,
    "PrependDim": prepended,
    "ResizeLike": lambda node: node.reshape(node.x, *node.builder.dims(node.input(1))),
    "Gather": lambda node: picked(node, 0),
    "BatchGather": lambda node: picked(node, 1),
    "CumSum": lambda node: node.add("CumSum", node.x, node.ints(node.integer("axis"))),
    "RowMul": lambda node: node.add("Mul", node.x, node.reshape(node.input(1), -1, *[1] * (len(node.dims) - 1))),
    **{
        f"Reduce{where}{kind}": ends(f"Reduce{kind}", front=where == "Front")
        for where in ("Front", "Back")
        for kind in ("Sum", "Mean", "Max")
    },
    **{
        f"{sparse}Lengths{weighted}{kind}": pooled(sparse=bool(sparse), weighted=bool(weighted), average=kind == "Mean")
        for sparse in ("Sparse", "")
        for weighted, kind in (("Weighted", "Sum"), ("", "Sum"), ("", "Mean"))
    },
}
