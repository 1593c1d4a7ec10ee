"""TFLite's operators for those of a graph: one small function for each, or one line of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tenon.formats.exporters.half_precision import products_in_f32
from tenon.formats.exporters.tflite.data_movement import MOVEMENT
from tenon.formats.exporters.tflite.products import conv, conv_transpose, halves_of, matrix_product, mean, pool
from tenon.formats.exporters.tflite.writer import (
    Axes,
    Result,
    TensorForm,
    TfliteWriter,
    UnwritableError,
    Write,
    as_is,
    attributes,
    moves_nothing,
    quantisation,
)
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import DType, Quant
from tenon.network.ops.quantised_values import bounds, integers_of


def to_tflite(graph: Graph) -> bytes:
    """The TFLite file of a bound graph.  Raises UnsupportedError listing every operator that TFLite cannot express."""
    return TfliteWriter(products_in_f32(graph), OPERATORS).write()


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
    """The readers of the floats decide whether they are computed; a constant is written where it is read."""
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


def _cast(w: TfliteWriter, node: Node) -> None:
    """Weights in f16, which are written where they are read."""
    if halves_of(node.output) is None:
        raise UnwritableError("TFLite's operators have no Cast here but of constant weights in f16")


# ---------------------------------------------------------------------------------------------- pointwise
def _broadcast(w: TfliteWriter, values: Sequence[Value], rank: int, *, integers: bool) -> tuple[list[int], Axes]:
    """Tensors of operands that broadcast to a result of this rank, and their common order of axes."""
    computed = [v for v in values if v in w.forms and v.type.rank == rank and not _is_constant(v)]
    axes = w.order(computed[0]) if computed else as_is(rank)
    operands = []
    for value in values:
        if value.type.rank == rank or value.type.size == 1:
            operands.append(w.operand(value, axes if value.type.rank == rank else None, integers=integers))
            continue
        i = w.operand(value, integers=integers)
        wide = (1,) * (rank - value.type.rank) + value.type.dims
        record = w.model.tensors[i]
        dims = [wide[a] for a in axes]
        if record.data is not None:
            data = np.ascontiguousarray(record.data.reshape(wide).transpose(axes))
            operands.append(w.constant(record.name, data, record.quant, record.dtype))
        elif moves_nothing(wide, axes):
            y = w.like(i, record.name, dims)
            w.emit("RESHAPE", [i, w.integers(dims)], [y], shape=dims)
            operands.append(y)
        else:
            raise UnwritableError("it broadcasts an operand with fewer axes")
    return operands, axes


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
        operands, axes = _broadcast(w, values, node.output.type.rank, integers=in_integers)
        dims = [node.output.type.dims[a] for a in axes]
        while len(operands) > 2:
            y = w.tensor(node.output.name, dims, DType.F32)
            w.emit(type, operands[:2], [y])
            operands[:2] = [y]
        w.put(result, type, operands, dims, axes, activates=activates)

    return write


def _same_scale(type: str) -> Write:
    """MAXIMUM and MINIMUM: integers of one scale, else floats."""

    def write(w: TfliteWriter, node: Node) -> None:
        grids = {w.quant_of(v) for v in node.inputs if v is not None}
        result = w.result(node)
        alike = len(grids) == 1 and None not in grids and len(node.inputs) == 2
        if not alike or (result.quantised and (result.quant, result.dtype) not in grids):
            return _binary(type, integers=False)(w, node)
        operands, axes = _broadcast(w, [node.input(0), node.input(1)], node.output.type.rank, integers=True)
        return w.put_alike(result, operands[0], type, operands, [node.output.type.dims[a] for a in axes], axes)

    return write


def _unary(type: str, *, integers: bool = False, fixed: Mapping[DType, tuple[float, int]] | None = None) -> Write:
    """``integers``: TFLite computes them too, with ``fixed`` scales and zero points of the result, if there are any."""

    def write(w: TfliteWriter, node: Node) -> None:
        x = node.input(0)
        axes, given, result = w.order(x), w.quant_of(x), w.result(node)
        whole = (integers or fixed is not None) and given is not None and result.quantised and given[1] is result.dtype
        options = {"alpha": op.alpha} if type == "LEAKY_RELU" and (op := attributes(node)) else {}
        whole = whole and not (type == "HARD_SWISH" and result.dtype is DType.I16)
        i = w.operand(x, axes, integers=whole)
        dims = w.model.tensors[i].dims
        if not whole:
            return w.put(Result(node.output), type, [i], dims, axes, **options)
        if fixed is None:
            return w.put(result, type, [i], dims, axes, **options)
        return _put_fixed(w, result, type, i, axes, fixed)

    return write


def _put_fixed(
    w: TfliteWriter,
    result: Result,
    type: str,
    i: int,
    axes: Axes,
    fixed: Mapping[DType, tuple[float, int]],
    **options: Any,
) -> None:
    """An operator on the integers of tensor ``i`` whose result has the scale that is ``fixed`` for their type; a
    QUANTIZE follows if the graph stores it with another."""
    record = w.model.tensors[i]
    y = w.tensor(result.value.name, record.dims, record.dtype, _fixed(fixed, record.dtype))
    w.emit(type, [i], [y], **options)
    if result.quantised and (result.quant != w.model.tensors[y].quant or result.limits is not None):
        return w.put(result, "QUANTIZE", [y], record.dims, axes)
    w.done.update(map(id, result.covers))
    w.forms[result.value] = [TensorForm(y, axes)]
    return None


def _fixed(by_type: Mapping[DType, tuple[float, int]], dtype: DType) -> Quant:
    scale, zero = by_type[dtype]
    return Quant((scale,), (zero,))


_SIGMOID = {DType.I8: (1 / 256, -128), DType.U8: (1 / 256, 0), DType.I16: (1 / 32768, 0)}
_TANH = {DType.I8: (1 / 128, 0), DType.U8: (1 / 128, 128), DType.I16: (1 / 32768, 0)}


def _bounded(w: TfliteWriter, node: Node) -> None:
    """Relu and Clip that are not part of the operator before them."""
    limits = bounds(node)
    if limits is None:
        raise UnwritableError("its bounds are computed at run time")
    x = node.input(0)
    axes, given = w.order(x), w.quant_of(x)
    names = {(0.0, float("inf")): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
    result = w.result(node)
    if given is not None and result.quantised and limits in names and limits[0] == 0:
        i = w.operand(x, axes, integers=True)
        return w.put(result, names[limits], [i], w.model.tensors[i].dims, axes)
    i = w.operand(x, axes, integers=False)
    dims = w.model.tensors[i].dims
    if limits in names:
        return w.put(Result(node.output), names[limits], [i], dims, axes)
    low = w.tensor(node.output.name, dims, DType.F32)
    w.emit("MAXIMUM", [i, w.constant("low", np.array(limits[0], np.float32))], [low])
    high = w.constant("high", np.array(limits[1], np.float32))
    return w.put(Result(node.output), "MINIMUM", [low, high], dims, axes)


def _swish(w: TfliteWriter, node: Node) -> None:
    x, alpha = node.input(0), attributes(node).alpha
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
    """Over the last axis of the tensor.  Of integers it is computed in integers, with the scale that TFLite prescribes,
    unless other operators read its result as floats."""
    x = node.input(0)
    rank, result, given = x.type.rank, w.result(node), w.quant_of(x)
    axis = attributes(node).axis % rank
    axes = (*(a for a in range(rank) if a != axis), axis)
    whole = given is not None and (given[1] is result.dtype if result.quantised else w.ends(node.output))
    i = w.operand(x, axes, integers=whole)
    dims = w.model.tensors[i].dims
    if not whole or given is None:
        return w.put(Result(node.output), "SOFTMAX", [i], dims, axes, beta=1.0)
    return _put_fixed(w, result, "SOFTMAX", i, axes, _SIGMOID, beta=1.0)


OPERATORS: dict[str, Write] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Cast": _cast,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": matrix_product,
    "MatMul": matrix_product,
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), mean),
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
    **{
        name: _unary(name.upper())
        for name in ("Abs", "Ceil", "Cos", "Elu", "Exp", "Floor", "Log", "Neg", "Round", "Sin", "Sqrt")
    },
    "Swish": _swish,
    "Softmax": _softmax,
    **MOVEMENT,
}
