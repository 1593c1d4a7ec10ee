"""Operators of a graph that move elements, as TFLite has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.formats.exporters.tflite.products import result_of_moved
from tenon.formats.exporters.tflite.writer import (
    Axes,
    Result,
    TensorForm,
    TfliteWriter,
    UnwritableError,
    Write,
    as_is,
    attributes,
    channels_last,
    moves_nothing,
)
from tenon.network.graph.graph import Node, Value
from tenon.network.graph.types import F32
from tenon.network.ops.requantize import limits


def _moved(w: TfliteWriter, node: Node, axes: Axes | None = None) -> tuple[Result, int]:
    """The result of an operator on elements of its first operand, and that operand."""
    result, integers = result_of_moved(w, node) if node.input(0).type.dtype is F32 else (_raw(w, node), False)
    return result, w.operand(node.input(0), axes, integers=integers)


def _raw(w: TfliteWriter, node: Node) -> Result:
    """The result of moving integers as they are."""
    record = w.model.tensors[w.forms[node.input(0)][0].tensor]
    return Result(node.output, record.quant, record.dtype)


def _transpose(w: TfliteWriter, node: Node) -> None:
    """Another order of the same axes: nothing is written until something asks for the elements in it."""
    x, perm = node.input(0), attributes(node).perm or tuple(reversed(range(node.input(0).type.rank)))
    if x not in w.forms:
        raise UnwritableError("it transposes a constant")
    w.forms[node.output] = [TensorForm(f.tensor, tuple(perm.index(a) for a in f.axes)) for f in w.forms[x]]


def _reshape(w: TfliteWriter, node: Node) -> None:
    x, dims = node.input(0), node.output.type.dims
    axes = w.order(x)
    if not moves_nothing([x.type.dims[a] for a in axes], [axes.index(a) for a in range(x.type.rank)]):
        axes = as_is(x.type.rank)
    result, i = _moved(w, node, axes)
    w.put_alike(result, i, "RESHAPE", [i, w.integers(dims)], dims, as_is(len(dims)), shape=dims)


def _identity(w: TfliteWriter, node: Node) -> None:
    if node.input(0) not in w.forms:
        w.operand(node.input(0), integers=False)
    w.forms[node.output] = w.forms[node.input(0)]


def _concat(w: TfliteWriter, node: Node) -> None:
    """Integers are requantised to the result's scale first, where theirs is another."""
    values, result = [v for v in node.inputs if v is not None], w.result(node)
    grids = [w.quant_of(v) for v in values]
    whole = result.quantised and all(g is not None and g[1] is result.dtype for g in grids)
    if not whole and not result.quantised and None not in grids and len(set(grids)) == 1:
        parts, axes = _concat_parts(w, values, node, integers=True)
        axis = axes.index(attributes(node).axis % len(axes))
        return w.put_alike(Result(node.output), parts[0], "CONCATENATION", parts, _dims(node, axes), axes, axis=axis)
    if not whole:
        result = Result(node.output)
    parts, axes = _concat_parts(w, values, node, integers=whole)
    for k, i in enumerate(parts):
        record = w.model.tensors[i]
        if whole and record.quant != result.quant:
            parts[k] = w.tensor(record.name, record.dims, result.dtype, result.quant)
            w.emit("QUANTIZE", [i], [parts[k]])
    axis = axes.index(attributes(node).axis % len(axes))
    return w.put(result, "CONCATENATION", parts, _dims(node, axes), axes, axis=axis)


def _concat_parts(w: TfliteWriter, values: Sequence[Value], node: Node, *, integers: bool) -> tuple[list[int], Axes]:
    orders = [w.order(v) for v in values if v in w.forms]
    axes = max(orders, key=orders.count) if orders else as_is(node.output.type.rank)
    return [w.operand(v, axes, integers=integers) for v in values], axes


def _dims(node: Node, axes: Axes) -> list[int]:
    return [node.output.type.dims[a] for a in axes]


def _numbers(node: Node, i: int) -> list[int] | None:
    """A constant operand."""
    value = node.inputs[i] if len(node.inputs) > i else None
    if value is None:
        return None
    if value.data is None:
        raise UnwritableError(f"operand {i} is computed at run time")
    return [int(n) for n in value.data.reshape(-1)]


def _slice(w: TfliteWriter, node: Node) -> None:
    dims, axes = node.input(0).type.dims, w.order(node.input(0))
    starts, ends = _numbers(node, 1) or [], _numbers(node, 2) or []
    chosen = _numbers(node, 3) or list(range(len(starts)))
    steps = _numbers(node, 4) or [1] * len(starts)
    begin, stride = [0] * len(dims), [1] * len(dims)
    for a, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        begin[a % len(dims)], stride[a % len(dims)] = slice(start, end, step).indices(dims[a % len(dims)])[0], step
    if any(s < 1 for s in stride):
        raise UnwritableError("TFLite has no slices with negative steps here")
    result, i = _moved(w, node, axes)
    out = _dims(node, axes)
    first, by = [begin[a] for a in axes], [stride[a] for a in axes]
    if all(s == 1 for s in by):
        return w.put_alike(result, i, "SLICE", [i, w.integers(first), w.integers(out)], out, axes)
    last = [b + (n - 1) * s + 1 for b, n, s in zip(first, out, by, strict=True)]
    operands = [i, w.integers(first), w.integers(last), w.integers(by)]
    return w.put_alike(result, i, "STRIDED_SLICE", operands, out, axes)


def _split(w: TfliteWriter, node: Node) -> None:
    """Parts in integers stay integers; what stores them elsewhere is written there."""
    x = node.input(0)
    axes, given = w.order(x), w.quant_of(x)
    i = w.operand(x, axes, integers=given is not None)
    axis = axes.index(attributes(node).axis % len(axes))
    outputs = [w.like(i, v.name, [v.type.dims[a] for a in axes]) for v in node.outputs]
    sizes = w.integers([v.type.dims[attributes(node).axis % len(axes)] for v in node.outputs])
    w.emit("SPLIT_V", [i, sizes, w.constant("axis", np.array(axis, np.int32))], outputs, num_splits=len(outputs))
    for value, y in zip(node.outputs, outputs, strict=True):
        w.forms[value] = [TensorForm(y, axes)]


def _pad(w: TfliteWriter, node: Node) -> None:
    op = attributes(node)
    rank, axes = node.input(0).type.rank, w.order(node.input(0))
    given, chosen = _numbers(node, 1) or [], _numbers(node, 3)
    chosen = [a % rank for a in chosen] if chosen else list(range(rank))
    around = {a: (given[k], given[len(chosen) + k]) for k, a in enumerate(chosen)}
    if any(min(pair) < 0 for pair in around.values()) or op.mode not in ("constant", "reflect"):
        raise UnwritableError(f"TFLite has no padding of mode {op.mode} or by negative numbers")
    result, i = _moved(w, node, axes)
    pads = w.constant("pads", np.array([around.get(a, (0, 0)) for a in axes], np.int32))
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None and value.data is None:
        raise UnwritableError("its padding is computed at run time")
    number = 0.0 if value is None else float(value.array.reshape(-1)[0])
    out, record = _dims(node, axes), w.model.tensors[i]
    if op.mode == "reflect":
        return w.put_alike(result, i, "MIRROR_PAD", [i, pads], out, axes, mode=0)
    if number == 0:
        return w.put_alike(result, i, "PAD", [i, pads], out, axes)
    filled = np.array([number], record.dtype.numpy)
    if record.quant is not None and node.input(0).type.dtype is F32:
        steps = np.rint(number / record.quant.scale[0]) + record.quant.zero_point[0]
        filled = np.array([np.clip(steps, *limits(record.dtype))], record.dtype.numpy)
    return w.put_alike(result, i, "PADV2", [i, pads, w.constant("fill", filled, record.quant)], out, axes)


def _resize(w: TfliteWriter, node: Node) -> None:
    op, x = attributes(node), node.input(0)
    place, sizes = op.coordinate_transformation_mode, node.output.type.dims[2:]
    places = {"asymmetric": (False, False), "align_corners": (True, False), "half_pixel": (False, True)}
    pairs = list(zip(sizes, x.type.dims[2:], strict=False))
    exact = all(n % m == 0 for n, m in pairs)
    floor = op.nearest_mode == "floor" or (
        op.nearest_mode == "round_prefer_floor" and all(n in (m, 2 * m) for n, m in pairs)
    )
    nearest = op.mode == "nearest" and (floor if place == "asymmetric" else exact and place == "half_pixel")
    if x.type.rank != 4 or place not in places or (op.mode != "linear" and not nearest) or op.antialias:
        raise UnwritableError(f"TFLite has no resampling of mode {op.mode} with {place} coordinates")
    corners, half = places[place]
    if nearest:
        corners, half = False, False
    result, i = _moved(w, node, channels_last(4))
    if not nearest and not result.quantised:
        result, i = Result(node.output), w.operand(x, channels_last(4), integers=False)
    dims = _dims(node, channels_last(4))
    name = "RESIZE_NEAREST_NEIGHBOR" if nearest else "RESIZE_BILINEAR"
    options = {"align_corners": corners, "half_pixel_centers": half}
    w.put_alike(result, i, name, [i, w.integers(sizes)], dims, channels_last(4), **options)


def _blocks(type: str) -> Write:
    def write(w: TfliteWriter, node: Node) -> None:
        if getattr(node.op, "mode", "DCR") != "DCR":
            raise UnwritableError("TFLite has DepthToSpace of mode DCR only")
        result, i = _moved(w, node, channels_last(4))
        dims = _dims(node, channels_last(4))
        w.put_alike(result, i, type, [i], dims, channels_last(4), block_size=attributes(node).blocksize)

    return write


def _gather(w: TfliteWriter, node: Node) -> None:
    chosen = _numbers(node, 1)
    if chosen is None or node.input(1).type.rank > 1:
        raise UnwritableError("TFLite gathers along one axis by a constant list here")
    rank = node.input(0).type.rank
    axis = attributes(node).axis % rank
    indices = np.array(chosen, np.int32) % node.input(0).type.dims[axis]
    result, i = _moved(w, node, as_is(rank))
    at = w.constant("indices", indices.reshape(node.input(1).type.dims))
    dims = node.output.type.dims
    w.put_alike(result, i, "GATHER", [i, at], dims, as_is(len(dims)), axis=axis)


MOVEMENT: dict[str, Write] = {
    "Transpose": _transpose,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "Identity": _identity,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Resize": _resize,
    "DepthToSpace": _blocks("DEPTH_TO_SPACE"),
    "SpaceToDepth": _blocks("SPACE_TO_DEPTH"),
    "Gather": _gather,
}
