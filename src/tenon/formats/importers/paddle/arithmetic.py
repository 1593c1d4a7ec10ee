"""Paddle's operators that compute: arithmetic, matrix products, reductions, casts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import _TYPES, PaddleNode
from tenon.network.graph.graph import Value
from tenon.network.graph.types import BOOL


def alpha(type: str, ours: str, theirs: str, default: float) -> Callable[[PaddleNode], Value]:
    return lambda node: node.add(type, node.x, **{ours: node.number(theirs, default)})


# ------------------------------------------------------------------------------------------ arithmetic
def binary(type: str) -> Callable[[PaddleNode], Value]:
    """The second operand lies along the first's axes from ``axis`` on."""

    def import_node(node: PaddleNode) -> Value:
        a, b = node.broadcast(node.x, node.slot("Y"), node.integer("axis", -1))
        return node.add(type, a, b)

    return import_node


def both(type: str) -> Callable[[PaddleNode], Value]:
    return lambda node: node.add(type, node.x, node.slot("Y"))


def matrix_product(node: PaddleNode) -> Value:
    """``mul``: both operands made matrices first."""
    y, columns = node.slot("Y"), node.integer("x_num_col_dims", 1)
    left, right = node.as_matrix(node.x, columns), node.as_matrix(y, node.integer("y_num_col_dims", 1))
    tail = node.builder.dims(y)[node.integer("y_num_col_dims", 1) :]
    return node.reshape(node.add("Gemm", left, right), *node.dims[:columns], *tail)


def fully_connected(node: PaddleNode) -> Value:
    weights, columns = node.slot("W"), node.integer("in_num_col_dims", 1)
    x = node.add("Gemm", node.as_matrix(node.x, columns), weights, node.optional_slot("Bias"))
    x = node.reshape(x, *node.dims[:columns], node.builder.dims(weights)[1])
    return node.add("Relu", x) if node.text("activation_type") == "relu" else x


def matmul(node: PaddleNode) -> Value:
    flags = ("transpose_X", "transpose_Y") if node.type == "matmul" else ("trans_x", "trans_y")
    a, b = (node.transpose_last(v, bool(node.integer(f))) for v, f in zip((node.x, node.slot("Y")), flags, strict=True))
    x, factor = node.add("MatMul", a, b), node.number("alpha", 1.0)
    return x if factor == 1 else node.add("Mul", x, factor)


def scale(node: PaddleNode) -> Value:
    if node.optional_slot("ScaleTensor") is not None:
        raise RefusedError("a scale computed at run time is not supported")
    factor = node.number("scale", 1.0)
    offset = node.number("bias")
    after = node.integer("bias_after_scale", 1)
    kind = node.builder.type(node.x).dtype.numpy
    x = node.x if after or not offset else node.add("Add", node.x, np.array(offset, kind))
    x = x if factor == 1 else node.add("Mul", x, np.array(factor, kind))
    return node.add("Add", x, np.array(offset, kind)) if after and offset else x


def clip(node: PaddleNode) -> Value:
    low, high = node.optional_slot("Min"), node.optional_slot("Max")
    low = low if low is None else node.reshape(low)
    high = high if high is None else node.reshape(high)
    return node.add(
        "Clip", node.x, node.number("min") if low is None else low, node.number("max") if high is None else high
    )


def reduce(type: str) -> Callable[[PaddleNode], Value]:
    def import_node(node: PaddleNode) -> Value:
        x = node.add("Cast", node.x, to="i64") if node.builder.type(node.x).dtype is BOOL else node.x
        return node.add(type, x, node.ints(*node.reduced), keepdims=node.integer("keep_dim"))

    return import_node


def hard_swish(node: PaddleNode) -> Value:
    """x * min(max(x + offset, 0), threshold) / scale."""
    top = node.number("threshold", 6.0)
    factor = node.number("scale", 6.0)
    offset = node.number("offset", 3.0)
    if (top, factor, offset) == (6.0, 6.0, 3.0):
        return node.add("HardSwish", node.x)
    return node.add(
        "Mul", node.x, node.add("Mul", node.add("Clip", node.add("Add", node.x, offset), 0.0, top), 1 / (factor or 1.0))
    )


def normalize(node: PaddleNode) -> Value:
    """L2 over one axis; with ``norm`` the root is of the sum plus epsilon."""
    total = node.add("ReduceSumSquare", node.x, node.ints(node.integer("axis", -1)), keepdims=1)
    return node.add("Div", node.x, node.add("Sqrt", node.add("Add", total, node.number("epsilon", 1e-10))))


def arg(type: str) -> Callable[[PaddleNode], Value]:
    def import_node(node: PaddleNode) -> Value:
        x, axis = (node.reshape(node.x, -1), 0) if node.integer("flatten") else (node.x, node.integer("axis", -1))
        indices = node.add(type, x, axis=axis, keepdims=node.integer("keepdims"))
        return node.add("Cast", indices, to="i32") if node.integer("dtype", 3) == 2 else indices

    return import_node


def cast(node: PaddleNode) -> Value:
    code = node.integer("out_dtype", 5)
    if code not in _TYPES:
        raise RefusedError(f"elements of type {code} are not supported")
    return node.add("Cast", node.x, to=_TYPES[code])
