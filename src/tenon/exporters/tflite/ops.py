"""TFLite's operators for those of a graph: one small function for each, or one line of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.exporters.tflite.products import conv, conv_transpose, matrix_product, mean, pool, result_of_moved
from tenon.exporters.tflite.writer import (
    Axes,
    Form,
    Result,
    TfliteWriter,
    UnwritableError,
    as_is,
    channels_last,
    moves_nothing,
    quantisation,
)
from tenon.ir.graph import Graph, Node, Value
from tenon.ir.quantised import bounds, integers_of
from tenon.ir.types import F32, DType, Quant
from tenon.ops.quantize import limits

Write = Callable[[TfliteWriter, Node], None]


def to_tflite(graph: Graph) -> bytes:
    """The TFLite file of a bound graph.  Raises UnsupportedError listing every operator that TFLite cannot express."""
    return TfliteWriter(graph, OPERATORS).write()


# ------------------------------------------------------------------------------------------- conversions
def _quantize(w: TfliteWriter, node: Node) -> None:
    grid = quantisation(node)
    if grid is None:
        raise UnwritableError("TFLite quantises tensors to i8, u8 or i16 with one constant scale")
    x = node.input(0)
    if w.quant_of(x) == grid:
        w.forms[node.output] = [f for f in w.forms[x] if w.model.tensors[f.tensor].quant is not None]
        return
    axes = w.order(x)
    i = w.operand(x, axes, integers=w.quant_of(x) is not None)
    w.put(Result(node.output, *grid), "QUANTIZE", [i], w.model.tensors[i].dims, axes)


def _dequantize(w: TfliteWriter, node: Node) -> None:
    """What reads the floats decides whether they are computed; a constant is written where it is read."""
    x = node.input(0)
    if integers_of(node.output) is not None:
        return
    grid = quantisation(node)
    if grid is None:
        raise UnwritableError("TFLite dequantises tensors of i8, u8 or i16 with one constant scale")
    for form in w.forms[x]:
        record = w.model.tensors[form.tensor]
        if record.quant is None:
            record.quant = grid[0]
        if (record.quant, record.dtype) != grid:
            raise UnwritableError("its integers have another scale where they are made")
    w.forms[node.output] = w.forms[x]


# ---------------------------------------------------------------------------------------------- pointwise
def _broadcast(w: TfliteWriter, values: Sequence[Value], rank: int, *, integers: bool) -> tuple[list[int], Axes]:
    """Tensors of operands that broadcast to a result of this rank, and their common order of axes."""
    computed = [v for v in values if v in w.forms and v.type.rank == rank and not _is_constant(v)]
    axes = w.order(computed[0]) if computed else as_is(rank)
    found = []
    for value in values:
        if value.type.rank == rank or value.type.size == 1:
            found.append(w.operand(value, axes if value.type.rank == rank else None, integers=integers))
            continue
        i = w.operand(value, integers=integers)
        wide = (1,) * (rank - value.type.rank) + value.type.dims
        record = w.model.tensors[i]
        dims = [wide[a] for a in axes]
        if record.data is not None:
            data = np.ascontiguousarray(record.data.reshape(wide).transpose(axes))
            found.append(w.constant(record.name, data, record.quant, record.dtype))
        elif moves_nothing(wide, axes):
            y = w.like(i, record.name, dims)
            w.emit("RESHAPE", [i, w.integers(dims)], [y], shape=dims)
            found.append(y)
        else:
            raise UnwritableError("it broadcasts an operand with fewer axes")
    return found, axes


def _is_constant(value: Value) -> bool:
    return value.constant or integers_of(value) is not None


def _binary(type: str, *, integers: bool = True, activates: bool = False) -> Write:
    def write(w: TfliteWriter, node: Node) -> None:
        values = [v for v in node.inputs if v is not None]
        result = w.result(node)
        grids = [w.quant_of(v) for v in values]
        in_integers = integers and result.quantised and all(g is not None and g[1] is result.dtype for g in grids)
        if not in_integers:
            result = Result(node.output)
        found, axes = _broadcast(w, values, node.output.type.rank, integers=in_integers)
        dims = [node.output.type.dims[a] for a in axes]
        while len(found) > 2:
            y = w.tensor(node.output.name, dims, DType.F32)
            w.emit(type, found[:2], [y])
            found[:2] = [y]
        w.put(result, type, found, dims, axes, activates=activates)

    return write


def _same_scale(type: str) -> Write:
    """MAXIMUM and MINIMUM: integers of one scale, else floats."""

    def write(w: TfliteWriter, node: Node) -> None:
        grids = {w.quant_of(v) for v in node.inputs if v is not None}
        result = w.result(node)
        alike = len(grids) == 1 and None not in grids and len(node.inputs) == 2
        if not alike or (result.quantised and (result.quant, result.dtype) not in grids):
            return _binary(type, integers=False)(w, node)
        found, axes = _broadcast(w, [node.input(0), node.input(1)], node.output.type.rank, integers=True)
        return w.put_alike(result, found[0], type, found, [node.output.type.dims[a] for a in axes], axes)

    return write


def _unary(type: str, *, integers: bool = False, fixed: Mapping[DType, tuple[float, int]] | None = None) -> Write:
    """``integers``: TFLite computes them too, with ``fixed`` scales and zero points of the result, if there are any."""

    def write(w: TfliteWriter, node: Node) -> None:
        x = node.input(0)
        axes, given, result = w.order(x), w.quant_of(x), w.result(node)
        whole = (integers or fixed is not None) and given is not None and result.quantised and given[1] is result.dtype
        options = {"alpha": op.alpha} if type == "LEAKY_RELU" and (op := _any(node.op)) else {}
        whole = whole and not (type == "HARD_SWISH" and result.dtype is DType.I16)
        i = w.operand(x, axes, integers=whole)
        dims = w.model.tensors[i].dims
        if not whole:
            return w.put(Result(node.output), type, [i], dims, axes, **options)
        if fixed is None:
            return w.put(result, type, [i], dims, axes, **options)
        y = w.tensor(node.output.name, dims, result.dtype, _fixed(fixed, result.dtype))
        if result.quant == w.model.tensors[y].quant and result.limits is None:
            w.done.update(map(id, result.covers))
            w.forms[result.value] = [Form(y, axes)]
            return w.emit(type, [i], [y])
        w.emit(type, [i], [y])
        return w.put(result, "QUANTIZE", [y], dims, axes)

    return write


def _any(op: Any) -> Any:
    return op


def _fixed(by_type: Mapping[DType, tuple[float, int]], dtype: DType) -> Quant:
    scale, zero = by_type[dtype]
    return Quant((scale,), (zero,))


_SIGMOID = {DType.I8: (1 / 256, -128), DType.U8: (1 / 256, 0), DType.I16: (1 / 32768, 0)}
_TANH = {DType.I8: (1 / 128, 0), DType.U8: (1 / 128, 128), DType.I16: (1 / 32768, 0)}


def _bounded(w: TfliteWriter, node: Node) -> None:
    """Relu and Clip that are not part of the operator before them."""
    found = bounds(node)
    if found is None:
        raise UnwritableError("its bounds are computed at run time")
    x = node.input(0)
    axes, given = w.order(x), w.quant_of(x)
    names = {(0.0, float("inf")): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
    result = w.result(node)
    if given is not None and result.quantised and found in names and found[0] == 0:
        i = w.operand(x, axes, integers=True)
        return w.put(result, names[found], [i], w.model.tensors[i].dims, axes)
    i = w.operand(x, axes, integers=False)
    dims = w.model.tensors[i].dims
    if found in names:
        return w.put(Result(node.output), names[found], [i], dims, axes)
    low = w.tensor(node.output.name, dims, DType.F32)
    w.emit("MAXIMUM", [i, w.constant("low", np.array(found[0], np.float32))], [low])
    high = w.constant("high", np.array(found[1], np.float32))
    return w.put(Result(node.output), "MINIMUM", [low, high], dims, axes)


def _swish(w: TfliteWriter, node: Node) -> None:
    x, alpha = node.input(0), _any(node.op).alpha
    axes = w.order(x)
    i = scaled = w.operand(x, axes, integers=False)
    dims = w.model.tensors[i].dims
    if alpha != 1:
        scaled = w.tensor(node.output.name, dims, DType.F32)
        w.emit("MUL", [i, w.constant("alpha", np.array(alpha, np.float32))], [scaled])
    gate = w.tensor(node.output.name, dims, DType.F32)
    w.emit("LOGISTIC", [scaled], [gate])
    w.put(Result(node.output), "MUL", [i, gate], dims, axes)


def _softmax(w: TfliteWriter, node: Node) -> None:
    """Over the last axis of the tensor."""
    x = node.input(0)
    rank, result, given = x.type.rank, w.result(node), w.quant_of(x)
    axis = _any(node.op).axis % rank
    axes = (*(a for a in range(rank) if a != axis), axis)
    whole = given is not None and result.quantised and result.limits is None and given[1] is result.dtype
    whole = whole and result.quant == _fixed(_SIGMOID, result.dtype)
    i = w.operand(x, axes, integers=whole)
    w.put(result if whole else Result(node.output), "SOFTMAX", [i], w.model.tensors[i].dims, axes, beta=1.0)


# ------------------------------------------------------------------------------------------ moving elements
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
    x, perm = node.input(0), _any(node.op).perm or tuple(reversed(range(node.input(0).type.rank)))
    if x not in w.forms:
        raise UnwritableError("it transposes a constant")
    w.forms[node.output] = [Form(f.tensor, tuple(perm.index(a) for a in f.axes)) for f in w.forms[x]]


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
        found, axes = _concat_parts(w, values, node, integers=True)
        axis = axes.index(_any(node.op).axis % len(axes))
        return w.put_alike(Result(node.output), found[0], "CONCATENATION", found, _dims(node, axes), axes, axis=axis)
    if not whole:
        result = Result(node.output)
    found, axes = _concat_parts(w, values, node, integers=whole)
    for k, i in enumerate(found):
        record = w.model.tensors[i]
        if whole and record.quant != result.quant:
            found[k] = w.tensor(record.name, record.dims, result.dtype, result.quant)
            w.emit("QUANTIZE", [i], [found[k]])
    axis = axes.index(_any(node.op).axis % len(axes))
    return w.put(result, "CONCATENATION", found, _dims(node, axes), axes, axis=axis)


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
    axis = axes.index(_any(node.op).axis % len(axes))
    outputs = [w.like(i, v.name, [v.type.dims[a] for a in axes]) for v in node.outputs]
    sizes = w.integers([v.type.dims[_any(node.op).axis % len(axes)] for v in node.outputs])
    w.emit("SPLIT_V", [i, sizes, w.constant("axis", np.array(axis, np.int32))], outputs, num_splits=len(outputs))
    for value, y in zip(node.outputs, outputs, strict=True):
        w.forms[value] = [Form(y, axes)]


def _pad(w: TfliteWriter, node: Node) -> None:
    op = _any(node.op)
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
    op, x = _any(node.op), node.input(0)
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
        w.put_alike(result, i, type, [i], dims, channels_last(4), block_size=_any(node.op).blocksize)

    return write


def _gather(w: TfliteWriter, node: Node) -> None:
    chosen = _numbers(node, 1)
    if chosen is None or node.input(1).type.rank > 1:
        raise UnwritableError("TFLite gathers along one axis by a constant list here")
    rank = node.input(0).type.rank
    axis = _any(node.op).axis % rank
    indices = np.array(chosen, np.int32) % node.input(0).type.dims[axis]
    result, i = _moved(w, node, as_is(rank))
    at = w.constant("indices", indices.reshape(node.input(1).type.dims))
    dims = node.output.type.dims
    w.put_alike(result, i, "GATHER", [i, at], dims, as_is(len(dims)), axis=axis)


OPERATORS: dict[str, Write] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": matrix_product,
    "MatMul": matrix_product,
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), mean
    ),
    **{name: _binary(name.upper(), activates=True) for name in ("Add", "Mul", "Sub")},
    "Div": _binary("DIV", integers=False),
    "Pow": _binary("POW", integers=False),
    "PRelu": _binary("PRELU"),
    "Max": _same_scale("MAXIMUM"),
    "Min": _same_scale("MINIMUM"),
    **dict.fromkeys(("Relu", "Clip"), _bounded),
    "Sigmoid": _unary("LOGISTIC", fixed=_SIGMOID),
    "Tanh": _unary("TANH", fixed=_TANH),
    "HardSwish": _unary("HARD_SWISH", integers=True),
    "LeakyRelu": _unary("LEAKY_RELU", integers=True),
    **{name: _unary(name.upper()) for name in ("Abs", "Ceil", "Cos", "Elu", "Exp", "Floor", "Log", "Neg", "Round",
                                              "Sin", "Sqrt")},
    "Swish": _swish,
    "Softmax": _softmax,
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
}  # fmt: skip
