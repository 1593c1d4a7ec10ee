"""OneFlow's operations that move elements: shapes, slices, padding, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.oneflow.node import OneflowNode
from tenon.formats.importers.oneflow.text import MAX_CHARACTERS
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType


def flatten(node: OneflowNode) -> Value:
    dims = node.dims
    first, last = (
        node.axis(int(node.number(name, default)), len(dims)) for name, default in (("start_dim", 0), ("end_dim", -1))
    )
    return node.reshape(node.x, *dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :])


def pad(node: OneflowNode) -> Value:
    before, after = node.integers("padding_before"), node.integers("padding_after")
    return node.add(
        "Pad",
        node.x,
        node.ints(*before, *after),
        node.number("floating_constant_value") or node.number("integral_constant_value"),
    )


def pad_ends(mode: str) -> Callable[[OneflowNode], Value]:
    """Padding before and after each axis, the last axis first."""

    def import_node(node: OneflowNode) -> Value:
        given = node.integers("padding")
        free = [0] * (len(node.dims) - len(given) // 2)
        value = node.number("floating_value") or node.number("integral_value")
        pads = node.ints(*free, *given[::2][::-1], *free, *given[1::2][::-1])
        return node.add("Pad", node.x, pads, value if mode == "constant" else None, mode=mode)

    return import_node


def narrow(node: OneflowNode) -> Value:
    start = int(node.number("start"))
    return node.slice(node.x, [start], [start + int(node.number("length"))], [int(node.number("dim"))])


def sliced(node: OneflowNode) -> Value:
    starts, stops, steps = (node.integers(name) for name in ("start", "stop", "step"))
    return node.slice(node.x, starts, stops, range(len(starts)), steps)


def bounded(node: OneflowNode) -> Value:
    """Clamped to the named bounds, integers or floats."""
    whole = node.builder.type(node.x).dtype is not DType.F32
    low, high = (node.attributes.get(f"{'integral' if whole else 'floating'}_{end}") for end in ("min", "max"))
    kind = node.operation.type.removeprefix("clip_by_scalar")
    ends = (None if kind == "_max" else low, None if kind == "_min" else high)
    numbers = (None if end is None else np.array(end, node.builder.type(node.x).dtype.numpy) for end in ends)
    return node.add("Clip", node.x, *numbers)


def filled(node: OneflowNode) -> Value:
    """A constant, or a row of numbers, in the type of the result."""
    if not node.operation.types:
        raise RefusedError("its type is not known")
    type = node.operation.types[0]
    if math.prod(type.dims) > MAX_CHARACTERS:
        raise RefusedError(f"{list(type.dims)} is too large for a constant")
    if node.operation.type == "arange":
        names = ("float_start", "float_delta") if type.dtype is DType.F32 else ("integer_start", "integer_delta")
        data = node.number(names[0]) + np.arange(math.prod(type.dims)) * node.number(names[1], 1)
    else:
        value = node.number("floating_value") if node.flag("is_floating_value") else node.number("integer_value")
        data = np.full(type.dims, value)
    return node.builder.constant(data.astype(type.dtype.numpy), "constant")


def expanded(node: OneflowNode) -> Value:
    """Reshaped or expanded to the shape of the result."""
    if not node.operation.types:
        raise RefusedError("its type is not known")
    new = node.integers("broadcast_axes")
    dims = node.operation.types[0].dims
    x = node.add("Unsqueeze", node.x, node.ints(*new)) if new and len(node.dims) + len(new) == len(dims) else node.x
    return node.add("Expand", x, node.ints(*dims))


def top(node: OneflowNode) -> Value:
    """The indices of the largest along the last axis."""
    values = node.builder.adds("TopK", 2, node.x, node.ints(int(node.number("k", 1))), axis=len(node.dims) - 1)
    return node.add("Cast", values[1], to="i64")


def triangle(node: OneflowNode) -> Value:
    """The triangle below or above a diagonal; the rest is one number."""
    lower, first = node.operation.type == "tril", int(node.number("diagonal"))
    positions = np.ones(node.dims[-2:], bool)
    fill = (
        node.number("floating_fill_value") if node.flag("is_floating_fill_value") else node.number("integer_fill_value")
    )
    kept = np.tril(positions, first) if lower else np.triu(positions, first)
    return node.add("Where", kept, node.x, np.array(fill, node.builder.type(node.x).dtype.numpy))


def flipped(node: OneflowNode) -> Value:
    axes = node.integers("dims")
    return node.slice(node.x, [-1] * len(axes), [-(1 << 31)] * len(axes), axes, [-1] * len(axes))


def joined(node: OneflowNode) -> Value:
    return node.add("Concat", *node.inputs, axis=int(node.number("axis")))
