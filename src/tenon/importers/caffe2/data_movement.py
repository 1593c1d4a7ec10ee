"""Caffe2's operators that compute, compare, pick or measure elements, and the pooling of rows by lengths.

Definitions: the operator catalogue of Caffe2, caffe2/operators of pytorch/pytorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made, simple
from tenon.importers.shared.named_arguments import Arguments
from tenon.ir.graph import Value
from tenon.ir.types import DType
from tenon.ir.writer import is_known

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


def binary(type: str, *after: str) -> Callable[[Arguments], Value]:
    """With ``broadcast`` the second operand lies along the axes from ``axis`` on."""

    def made(c: Arguments) -> Value:
        a, b = c.x, c.input(1)
        known = is_known(a) and is_known(b) and c.integer("broadcast")
        return c.chain(c.add(type, *(c.broadcast(a, b, c.integer("axis", -1)) if known else (a, b))), *after)

    return made


def cast(c: Arguments) -> Value:
    name = c.text("to").upper() or _NUMBERS.get(c.integer("to", 1), "")
    if name not in _TYPES:
        raise RefusedError(f"type {name or c.integer('to')} is not supported")
    return c.add("Cast", c.x, to=str(_TYPES[name]))


def logit(c: Arguments) -> Value:
    eps = c.number("eps", 1e-6)
    x = c.add("Clip", c.x, eps, 1 - eps)
    return c.add("Log", c.add("Div", x, c.add("Sub", c.builder.scalar(1.0), x)))


def replaced(c: Arguments) -> Value:
    """A number where there is none."""
    return c.add("Where", c.add("IsNaN", c.x), c.number("value"), c.x)


def mean(c: Arguments) -> Value:
    return c.add("Mul", c.fold("Add", c.inputs), 1 / len(c.inputs))


def ends(type: str, *, front: bool) -> Callable[[Arguments], Value]:
    """Over the first axes, or over the last."""

    def made(c: Arguments) -> Value:
        if len(c.inputs) > 1:
            raise RefusedError("lengths are not supported")
        count, rank = c.integer("num_reduce_dim", 1), len(c.dims)
        axes = range(count) if front else range(rank - count, rank)
        return c.add(type, c.x, c.ints(*axes), keepdims=0)

    return made


def norm(c: Arguments) -> Value:
    """The sum of absolute values or of squares, perhaps over their number."""
    total = c.add("ReduceL1" if c.integer("p", 2) == 1 else "ReduceSumSquare", c.x, keepdims=0)
    return c.reshape(c.add("Mul", total, 1 / math.prod(c.dims)) if c.integer("average") else total, 1)


def _rows(c: Arguments, i: int) -> Value:
    x = c.input(i)
    return c.reshape(x, c.builder.dims(x)[0], -1)


def dot(c: Arguments) -> Value:
    """Of each row with each row."""
    return c.add("ReduceSum", c.add("Mul", _rows(c, 0), _rows(c, 1)), c.ints(1), keepdims=0)


def distance(c: Arguments) -> Value:
    away = c.add("Sub", _rows(c, 0), _rows(c, 1))
    return c.add("Mul", c.add("ReduceSumSquare", away, c.ints(1), keepdims=0), 0.5)


def cosine(c: Arguments) -> Value:
    lengths = [
        c.add("Sqrt", c.add("Max", c.add("ReduceSumSquare", _rows(c, i), c.ints(1), keepdims=0), 1e-12)) for i in (0, 1)
    ]
    return c.add("Div", dot(c), c.add("Mul", *lengths))


def expanded(c: Arguments) -> Value:
    shape = c.add("Cast", c.input(1), to="i64") if len(c.inputs) > 1 else c.ints(*c.integers("shape"))
    return c.add("Expand", c.x, shape)


def tiled(c: Arguments) -> Value:
    if len(c.inputs) > 1:
        raise RefusedError("counts computed at run time are not supported")
    counts = [1] * len(c.dims)
    counts[c.axis(c.integer("axis"), len(counts))] = c.integer("tiles", 1)
    return c.add("Tile", c.x, c.ints(*counts))


def top(c: Arguments) -> Made:
    return c.builder.adds("TopK", 2, c.x, c.ints(c.integer("k", 1)), axis=c.integer("axis", -1))


def picked(c: Arguments, axis: int) -> Value:
    return c.add("Gather", c.x, c.add("Cast", c.input(1), to="i64"), axis=axis)


def merged(c: Arguments) -> Value:
    count = c.integer("num_dims", 1) + 1
    return c.reshape(c.x, math.prod(c.dims[:count]), *c.dims[count:])


def prepended(c: Arguments) -> Value:
    size = c.integer("dim_size")
    if size < 1 or c.dims[0] % size:
        raise RefusedError(f"{c.dims[0]} does not divide into {size}")
    return c.reshape(c.x, size, c.dims[0] // size, *c.dims[1:])


# --------------------------------------------------------------------------------------------- lengths
def pooled(*, sparse: bool, weighted: bool, average: bool) -> Callable[[Arguments], Value]:
    """Runs of rows added up; how long each run is, the last input says.

    Rows are picked by numbers first where ``sparse``, and weighed by the second input where ``weighted``.
    """

    def made(c: Arguments) -> Value:
        rows, lengths = c.x, c.reshape(c.add("Cast", c.inputs[-1], to="f32"), 1, -1)
        if sparse:
            numbers = c.reshape(c.add("Cast", c.input(2 if weighted else 1), to="i64"), -1)
            rows = c.add("Gather", rows, numbers, axis=0)
        dims = c.builder.dims(rows)
        rows = c.reshape(rows, dims[0], -1)
        if weighted:
            rows = c.add("Mul", rows, c.reshape(c.input(1), -1, 1))
        stop = c.add("CumSum", lengths, c.ints(1))
        at = np.arange(dims[0], dtype=np.float32).reshape(-1, 1)
        inside = c.add("And", c.add("GreaterOrEqual", at, c.add("Sub", stop, lengths)), c.add("Less", at, stop))
        total = c.add("MatMul", c.swapped(c.add("Cast", inside, to="f32")), rows)
        if average:
            total = c.add("Div", total, c.add("Max", c.swapped(lengths), 1.0))
        return c.reshape(total, -1, *dims[1:])

    return made


ELEMENTS: dict[str, Callable[[Arguments], Made]] = {
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
    "Rsqrt": lambda c: c.chain(c.x, "Sqrt", "Reciprocal"),
    "Cube": lambda c: c.add("Mul", c.square(c.x), c.x),
    "HardSigmoid": lambda c: c.add("HardSigmoid", c.x, alpha=c.number("alpha", 0.2), beta=c.number("beta", 0.5)),
    "ThresholdedRelu": lambda c: c.add("ThresholdedRelu", c.x, alpha=c.number("alpha", 1.0)),
    "Where": lambda c: c.add("Where", *c.inputs),
    "LpNorm": norm,
    "DotProduct": dot,
    "SquaredL2Distance": distance,
    "CosineSimilarity": cosine,
    "Expand": expanded,
    "Tile": tiled,
    "TopK": top,
    "MergeDim": merged,
    "PrependDim": prepended,
    "ResizeLike": lambda c: c.reshape(c.x, *c.builder.dims(c.input(1))),
    "Gather": lambda c: picked(c, 0),
    "BatchGather": lambda c: picked(c, 1),
    "CumSum": lambda c: c.add("CumSum", c.x, c.ints(c.integer("axis"))),
    "RowMul": lambda c: c.add("Mul", c.x, c.reshape(c.input(1), -1, *[1] * (len(c.dims) - 1))),
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
