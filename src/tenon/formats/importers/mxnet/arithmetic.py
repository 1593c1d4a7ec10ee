"""MXNet's operators that compute: arithmetic, comparisons, reductions, normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tenon.formats.decompositions.layers import group_norm
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.mxnet.node import MxnetNode
from tenon.network.graph.graph import Value


def binary(type: str) -> Callable[[MxnetNode], Value]:
    return lambda node: node.add(type, node.x, node.parameter(1))


def scalar(type: str, swapped: bool = False) -> Callable[[MxnetNode], Value]:
    def import_node(node: MxnetNode) -> Value:
        number = node.number("scalar")
        return node.add(type, number, node.x) if swapped else node.add(type, node.x, number)

    return import_node


def compare(type: str, *, scalar: bool = False) -> Callable[[MxnetNode], Value]:
    """1.0 where it is true; operands that are not zero count as true."""

    def import_node(node: MxnetNode) -> Value:
        sides: list[Any] = [node.x, node.number("scalar") if scalar else node.parameter(1)]
        if type in ("And", "Or", "Xor"):
            sides = [node.add("Not", node.add("Equal", side, 0.0)) for side in sides]
        result = node.add("Equal" if type == "NotEqual" else type, *sides)
        return node.add("Cast", node.add("Not", result) if type == "NotEqual" else result, to="f32")

    return import_node


def logarithm(base: float) -> Callable[[MxnetNode], Value]:
    return lambda node: node.add("Mul", node.add("Log", node.x), float(1 / np.log(base)))


def truth_of(type: str) -> Callable[[MxnetNode], Value]:
    return lambda node: node.add("Cast", node.add(type, node.x), to="f32")


def root_of_three(node: MxnetNode) -> Value:
    y = node.add("Mul", node.add("Sign", node.x), node.add("Pow", node.add("Abs", node.x), 1 / 3))
    return node.add("Reciprocal", y) if node.kind == "rcbrt" else y


def smooth_l1(node: MxnetNode) -> Value:
    squared = node.number("scalar", 1.0) ** 2
    size = node.add("Abs", node.x)
    near = node.add("Mul", node.add("Mul", node.x, node.x), 0.5 * squared)
    return node.add(
        "Where", node.add("Less", size, 1 / (squared or 1.0)), near, node.add("Sub", size, 0.5 / (squared or 1.0))
    )


def norm(node: MxnetNode) -> Value:
    order, rank = node.integer("ord", 2), len(node.dims)
    axes = [node.axis(a, rank) for a in node.integers("axis")] or list(range(rank))
    if order not in (1, 2):
        raise RefusedError(f"the norm {order} is not supported")
    return _at_least_one(
        node, node.add(f"ReduceL{order}", node.x, node.ints(*axes), keepdims=int(node.flag("keepdims")))
    )


def normalised_groups(node: MxnetNode) -> Value:
    """Scaled by channel, or by group as MXNet 1.6 to 1.9 have it."""
    groups, channels = node.integer("num_groups", 1), node.dims[1]
    vectors = []
    for i in (1, 2):
        vector = node.parameter(i, channels)
        if node.builder.dims(vector) == (groups,) != (channels,):
            vector = node.add(
                "Gather", vector, np.repeat(np.arange(groups), channels // max(1, groups)).astype(np.int64)
            )
        vectors.append(vector)
    gamma, beta = vectors
    return group_norm(node, node.x, groups, gamma, beta, node.number("eps", 1e-5))


def reduce(type: str) -> Callable[[MxnetNode], Value]:
    def import_node(node: MxnetNode) -> Value:
        rank = len(node.dims)
        axes = [node.axis(a, rank) for a in node.integers("axis")] or list(range(rank))
        if node.flag("exclude"):
            axes = [a for a in range(rank) if a not in axes]
        return _at_least_one(node, node.add(type, node.x, node.ints(*axes), keepdims=int(node.flag("keepdims"))))

    return import_node


def _at_least_one(node: MxnetNode, y: Value) -> Value:
    """MXNet has no tensors of rank 0, except for the operators named after NumPy's."""
    return y if node.builder.dims(y) or node.kind.startswith("_np") else node.reshape(y, 1)


def softmax(node: MxnetNode) -> Value:
    """Softmax over the first elements of each row where ``use_length`` is set, zeros after them."""
    x, temperature = node.x, node.number("temperature", 1.0)
    if node.flag("use_length"):
        return _softmax_within(node)
    x = x if temperature == 1 else node.add("Mul", x, 1 / (temperature or 1.0))
    return node.add("LogSoftmax" if node.kind == "log_softmax" else "Softmax", x, axis=node.integer("axis", -1))


def _softmax_within(node: MxnetNode) -> Value:
    axis = node.axis(node.integer("axis", -1), len(node.dims))
    lengths = node.add("Unsqueeze", node.add("Cast", node.parameter(1), to="f32"), node.ints(axis))
    positions = np.arange(node.dims[axis], dtype=np.float32).reshape(-1, *[1] * (len(node.dims) - 1 - axis))
    there = node.add("Less", positions, lengths)
    x = node.add("Mul", node.x, 1 / (node.number("temperature", 1.0) or 1.0))
    y = node.add("Softmax", node.add("Where", there, x, float(np.finfo(np.float32).min)), axis=axis)
    return node.add("Where", there, y, 0.0)


def softmax_output(node: MxnetNode) -> Value:
    """Over channels, or over everything but the batch."""
    if len(node.dims) <= 2 or node.flag("multi_output") or node.flag("preserve_shape"):
        return node.add("Softmax", node.x, axis=-1 if node.flag("preserve_shape") else min(1, len(node.dims) - 1))
    return node.reshape(node.add("Softmax", node.as_matrix(node.x), axis=1), *node.dims)


def softmax_activation(node: MxnetNode) -> Value:
    """Normalised over channels, or over the last axis."""
    return node.add("Softmax", node.x, axis=1 if node.text("mode", "instance") == "channel" else -1)


def l2_normalization(node: MxnetNode) -> Value:
    axes = {"instance": range(1, len(node.dims)), "channel": (1,), "spatial": range(2, len(node.dims))}
    chosen = axes.get(node.text("mode", "instance"))
    if chosen is None:
        raise RefusedError(f"mode {node.text('mode')} is not supported")
    total = node.add("ReduceSumSquare", node.x, node.ints(*chosen), keepdims=1)
    return node.add("Div", node.x, node.add("Sqrt", node.add("Add", total, node.number("eps", 1e-10))))


def instance_norm(node: MxnetNode) -> Value:
    gamma, beta = (node.parameter(i, node.dims[1]) for i in (1, 2))
    return node.add("InstanceNormalization", node.x, gamma, beta, epsilon=node.number("eps", 1e-3))


def layer_norm(node: MxnetNode) -> Value:
    rank = len(node.dims)
    axis = node.axis(node.integer("axis", -1), rank)
    gamma, beta = (node.parameter(i, node.dims[axis]) for i in (1, 2))
    order = [*(i for i in range(rank) if i != axis), axis]
    x = node.x if axis == rank - 1 else node.add("Transpose", node.x, perm=order)
    y = node.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=node.number("eps", 1e-5))
    return y if axis == rank - 1 else node.add("Transpose", y, perm=np.argsort(order))


def lrn(node: MxnetNode) -> Value:
    return node.add(
        "LRN",
        node.x,
        size=node.integer("nsize", 5),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
        bias=node.number("knorm", 2.0),
    )


def dot(node: MxnetNode) -> Value:
    return node.add(
        "MatMul",
        node.transpose_last(node.x, node.flag("transpose_a")),
        node.transpose_last(node.parameter(1), node.flag("transpose_b")),
    )


def arg(type: str) -> Callable[[MxnetNode], Value]:
    def import_node(node: MxnetNode) -> Value:
        every = node.text("axis", "None") == "None"
        x, axis, keep = (
            (node.reshape(node.x, -1), 0, 1) if every else (node.x, node.integer("axis"), int(node.flag("keepdims")))
        )
        return node.add("Cast", node.add(type, x, axis=axis, keepdims=keep), to="f32")

    return import_node
