"""Convolutions, matrix products and poolings of a graph as TFLite has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.formats.exporters.tflite.writer import (
    Axes,
    Result,
    TensorForm,
    TfliteWriter,
    UnwritableError,
    as_is,
    channels_last,
)
from tenon.network.graph.graph import Array, Node, Stored, Value
from tenon.network.graph.types import DType, Quant
from tenon.network.ops.convert import Cast
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.pool import AveragePool, MaxPool
from tenon.network.ops.quantised_values import dequantised, integers_of
from tenon.network.ops.reduce import GlobalMaxPool, GlobalPool
from tenon.network.ops.requantize import limits
from tenon.network.ops.window import Axis, Window

_SAME, _VALID = 0, 1


# --------------------------------------------------------------------------------------------- windows
def padding(axes: Sequence[Axis]) -> int | None:
    """TFLite's padding that gives the same windows, None if neither does."""
    if all(a.before == 0 and a.reach == 0 for a in axes):
        return _VALID
    same = (a.out == -(-a.size // a.stride) and a.before == (a.before + a.reach) // 2 for a in axes)
    return _SAME if all(same) else None


def image(w: TfliteWriter, value: Value, *, integers: bool) -> int:
    """An image as a tensor [N, H, W, C]; a signal [N, C, L] is one of a single row."""
    rank = value.type.rank
    if rank not in (3, 4):
        raise UnwritableError(f"TFLite has no windows over {rank - 2} axes")
    i = w.operand(value, channels_last(rank), integers=integers)
    if rank == 4:
        return i
    n, length, channels = w.model.tensors[i].dims
    y = w.like(i, value.name, (n, 1, length, channels))
    w.emit("RESHAPE", [i, w.integers((n, 1, length, channels))], [y], shape=(n, 1, length, channels))
    return y


def image_dims(value: Value) -> tuple[int, ...]:
    """The dimensions [N, H, W, C] of an image or a signal."""
    n, channels, *sizes = value.type.dims
    return (n, *((1, *sizes)[-2:]), channels)


def put_image(w: TfliteWriter, result: Result, type: str, inputs: Sequence[int], **options: Any) -> None:
    """An operator whose result is an image in TFLite's order; a signal gets its own shape again."""
    rank, dims = result.value.type.rank, image_dims(result.value)
    w.put(result, type, inputs, dims, channels_last(4), activates=True, **options)
    if rank == 3:
        (form,) = w.forms[result.value]
        w.forms[result.value] = [TensorForm(flat(w, form.tensor, (dims[0], dims[2], dims[3])), channels_last(3))]


def flat(w: TfliteWriter, i: int, dims: Sequence[int]) -> int:
    """A tensor in another shape."""
    y = w.like(i, w.model.tensors[i].name, dims)
    w.emit("RESHAPE", [i, w.integers(dims)], [y], shape=tuple(dims))
    return y


def padded(w: TfliteWriter, x: int, axes: Sequence[Axis], lowest: bool = False) -> int:
    """An image with the padding of windows around it: zeros, or the lowest number of its type."""
    record = w.model.tensors[x]
    around = [(a.before, a.reach) for a in axes]
    around = [(0, 0)] * (2 - len(around)) + around
    n, h, width, channels = record.dims
    dims = (n, h + sum(around[0]), width + sum(around[1]), channels)
    pads = w.constant("pads", np.array([(0, 0), *around, (0, 0)], np.int32))
    y = w.like(x, f"{record.name}_padded", dims)
    if lowest:
        number = float(np.finfo(np.float32).min) if record.dtype is DType.F32 else limits(record.dtype)[0]
        least = w.constant("lowest", np.array([number], record.dtype.numpy), record.quant)
        w.emit("PADV2", [x, pads, least], [y])
    else:
        w.emit("PAD", [x, pads], [y])
    return y


def _window_options(axes: Sequence[Axis], kind: int) -> dict[str, int]:
    strides = (1, *(a.stride for a in axes))[-2:]
    return {"padding": kind, "stride_h": strides[0], "stride_w": strides[1]}


# -------------------------------------------------------------------------------------------- operands
@dataclass(frozen=True)
class _Factors:
    """Weights [out, ...] and a bias (LiteRT's convolutions need one), as integers if ``quant`` is set; ``x`` says of
    what type the input is."""

    weights: Array
    quant: Quant | None
    dtype: DType
    bias: Array
    bias_quant: Quant | None


def _factors(w: TfliteWriter, node: Node, axis: int, result: Result) -> _Factors | None:
    """The operands of a quantised product, with output channels along ``axis``; None if it is computed in floats."""
    given, stored = w.quant_of(node.input(0)), integers_of(node.input(1))
    if not result.quantised or given is None or stored is None or given[1] is not result.dtype:
        return None
    scales = _scales(stored, axis)
    x, dtype = given
    if scales is None or stored.zero.reshape(-1).any() != bool(stored.zero.reshape(-1)[0]):
        return None
    zero = int(stored.zero.reshape(-1)[0])
    if dtype is not DType.U8 and zero:
        raise UnwritableError("its weights have a zero point: TFLite has symmetric weights beside i8 and i16")
    if dtype is DType.U8 and scales.size > 1:
        raise UnwritableError("u8 with a scale for each channel: choose --scheme int8 or uint8")
    steps = np.float32(x.scale[0]) * scales
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    kind = np.int64 if dtype is DType.I16 else np.int32
    numbers = np.zeros(stored.data.shape[axis], kind) if bias is None else _bias(bias, steps, kind)
    bias_quant = Quant(tuple(map(float, steps)), (0,) * steps.size, 0 if steps.size > 1 else None)
    quant = Quant(tuple(map(float, scales)), (zero,) * scales.size, axis if scales.size > 1 else None)
    return _Factors(stored.data, quant, DType.of(stored.data.dtype), numbers, bias_quant)


def _scales(stored: Stored, axis: int) -> Array | None:
    scale = stored.scale.astype(np.float32)
    if scale.size == 1:
        return scale.reshape(1)
    full = (1,) * (stored.data.ndim - scale.ndim) + scale.shape
    along = all(n == 1 or i == axis for i, n in enumerate(full))
    return scale.reshape(-1) if along else None


def _bias(value: Value, steps: Array, dtype: type) -> Array:
    """The bias in steps of the sums."""
    stored = integers_of(value)
    if stored is not None and stored.data.dtype == np.int32 and np.allclose(stored.scale.reshape(-1), steps, rtol=1e-5):
        return stored.data.reshape(-1).astype(dtype)
    info = np.iinfo(np.int32 if dtype is np.int32 else np.int64)
    real = dequantised(value).reshape(-1).astype(np.float64) / steps
    return np.clip(np.rint(real), info.min, info.max).astype(dtype)


def halves_of(value: Value) -> Array | None:
    """The constant of f16 that a value of f32 is a Cast of, None if it is none."""
    node = value.producer
    if node is None or not isinstance(node.op, Cast) or value.type.dtype is not DType.F32:
        return None
    return node.input(0).data if node.input(0).type.dtype is DType.F16 else None


def _real_factors(node: Node, axis: int) -> _Factors:
    given = node.inputs[2] if len(node.inputs) > 2 else None
    w, halves = node.input(1), halves_of(node.input(1))
    if any(
        v is not None and v.data is None and integers_of(v) is None for v in (given, None if halves is not None else w)
    ):
        raise UnwritableError("its weights are computed at run time, or stored in a type that TFLite's floats have not")
    weights = dequantised(w) if halves is None else halves
    bias = np.zeros(weights.shape[axis], np.float32) if given is None else dequantised(given)
    return _Factors(weights, None, DType.of(weights.dtype), bias, None)


def _written(w: TfliteWriter, name: str, factors: _Factors, perm: Sequence[int]) -> list[int]:
    """The tensors of weights, their axes in the order ``perm``, and bias."""
    quant = factors.quant
    if quant is not None and quant.axis is not None:
        quant = Quant(quant.scale, quant.zero_point, list(perm).index(quant.axis))
    data = np.ascontiguousarray(factors.weights.transpose(perm))
    weights = w.constant(f"{name}_weights", data, quant, factors.dtype)
    if factors.dtype is DType.F16:  # LiteRT's kernels of floats take f32: it widens them once
        halves, weights = weights, w.tensor(f"{name}_weights_f32", data.shape, DType.F32)
        w.emit("DEQUANTIZE", [halves], [weights])
    return [weights, w.constant(f"{name}_bias", factors.bias, factors.bias_quant)]


def _operands(w: TfliteWriter, node: Node, axis: int) -> tuple[Result, _Factors]:
    """The result, in integers if the operator can be computed in them."""
    result = w.result(node)
    factors = _factors(w, node, axis, result)
    if factors is not None:
        return result, factors
    return Result(node.output), _real_factors(node, axis)


# -------------------------------------------------------------------------------------------- products
def conv(w: TfliteWriter, node: Node) -> None:
    result, factors = _operands(w, node, 0)
    op: Any = node.op
    x, rank, name = node.input(0), node.input(0).type.rank, node.output.name
    window = Window(node.input(1).type.dims[2:], op.strides, op.dilations, op.pads, op.auto_pad)
    axes = window.axes("Conv", x.type.dims[2:])
    i = image(w, x, integers=result.quantised)
    kind = padding(axes)
    if kind is None:
        i, kind = padded(w, i, axes), _VALID
    dilations = (1, *(a.dilation for a in axes))[-2:]
    options = _window_options(axes, kind) | {"dilation_h": dilations[0], "dilation_w": dilations[1]}
    outs, ins = node.input(1).type.dims[:2]
    if rank == 3:
        factors = _Factors(factors.weights[:, :, None], factors.quant, factors.dtype, factors.bias, factors.bias_quant)
    if op.group > 1 and ins == 1:
        operands = _written(w, name, factors, (1, 2, 3, 0))
        multiplier = outs // x.type.dims[1]
        return put_image(w, result, "DEPTHWISE_CONV_2D", [i, *operands], multiplier=multiplier, **options)
    return put_image(w, result, "CONV_2D", [i, *_written(w, name, factors, (0, 2, 3, 1))], **options)


def conv_transpose(w: TfliteWriter, node: Node) -> None:
    """The whole result by TRANSPOSE_CONV without padding, then the part of it that remains."""
    op: Any = node.op
    x, y, taps = node.input(0), node.output, node.input(1).type.dims
    if op.group != 1 or x.type.rank != 4 or any(d != 1 for d in op.dilations) or op.auto_pad not in ("NOTSET", "VALID"):
        raise UnwritableError("TFLite has no transposed convolution with groups, dilations or one spatial axis")
    result, factors = _operands(w, node, 1)
    if factors.dtype is DType.I4:  # which LiteRT has in products of other kinds only
        factors = _Factors(factors.weights.astype(np.int8), factors.quant, DType.I8, factors.bias, factors.bias_quant)
    strides, pads = op.strides or (1, 1), op.pads or (0,) * 4
    whole = [(n - 1) * s + k for n, s, k in zip(x.type.dims[2:], strides, taps[2:], strict=True)]
    n, channels, *sizes = y.type.dims
    if any(a + size > most for a, size, most in zip(pads, sizes, whole, strict=False)):
        raise UnwritableError("its output padding reaches past what TFLite computes")
    weights, bias = _written(w, y.name, factors, (1, 2, 3, 0))
    dims = (n, *whole, channels)
    inputs = [w.integers(dims), weights, image(w, x, integers=result.quantised), bias]
    options = {"padding": _VALID, "stride_h": strides[0], "stride_w": strides[1]}
    w.put(result, "TRANSPOSE_CONV", inputs, dims, channels_last(4), activates=True, **options)
    if list(sizes) != whole:
        (form,) = w.forms[result.value]
        part = w.like(form.tensor, y.name, (n, *sizes, channels))
        begin, size = w.integers((0, *pads[:2], 0)), w.integers((n, *sizes, channels))
        w.emit("SLICE", [form.tensor, begin, size], [part])
        w.forms[result.value] = [TensorForm(part, channels_last(4))]


def matrix_product(w: TfliteWriter, node: Node) -> None:
    """Gemm and MatMul by constant weights."""
    op: Any = node.op
    gemm = isinstance(node.op, Gemm)
    if gemm and (op.alpha != 1 or op.beta != 1 or op.transA):
        raise UnwritableError("TFLite has no matrix product with alpha, beta or a transposed first operand")
    b = node.input(1)
    if b.type.rank != 2 or (b.data is None and integers_of(b) is None and halves_of(b) is None):
        raise UnwritableError("TFLite's matrix products here have constant weights of two axes")
    turned = gemm and op.transB
    result, factors = _operands(w, node, 0 if turned else 1)
    x, y = node.input(0), result.value
    i = w.operand(x, integers=result.quantised)
    options = {"keep_num_dims": x.type.rank != 2}
    if factors.bias.size != y.type.dims[-1]:
        bias = np.broadcast_to(factors.bias.reshape(-1), y.type.dims[-1:]).copy()
        factors = _Factors(factors.weights, factors.quant, factors.dtype, bias, factors.bias_quant)
    operands = _written(w, node.output.name, factors, (0, 1) if turned else (1, 0))
    w.put(result, "FULLY_CONNECTED", [i, *operands], y.type.dims, as_is(y.type.rank), activates=True, **options)


# -------------------------------------------------------------------------------------------- poolings
def pool(w: TfliteWriter, node: Node) -> None:
    """MaxPool and AveragePool; an average of the whole image in another quantisation is a MEAN."""
    axes = _pool_axes(node)
    whole = all(a.out == 1 and a.kernel == a.size and not a.before for a in axes)
    result, given = w.result(node), w.quant_of(node.input(0))
    averaged = (
        isinstance(node.op, AveragePool) and result.quantised and given not in (None, (result.quant, result.dtype))
    )
    if whole and averaged:
        mean(w, node)
    else:
        _pool(w, node, axes)


def _pool_axes(node: Node) -> Sequence[Axis]:
    op: Any = node.op
    if len(node.outputs) > 1:
        raise UnwritableError("TFLite has no pooling with indices")
    axes: Sequence[Axis] = op.axes(node.input(0).type.dims)
    if any(a.dilation != 1 for a in axes):
        raise UnwritableError("TFLite has no pooling with dilations")
    return axes


def _pool(w: TfliteWriter, node: Node, axes: Sequence[Axis]) -> None:
    op: Any = node.op
    highest = isinstance(node.op, MaxPool)
    result, integers = result_of_moved(w, node)
    if not highest and not result.quantised:  # an average is none of the integers
        result, integers = Result(node.output), False
    i, kind = image(w, node.input(0), integers=integers), padding(axes)
    counted = not highest and op.count_include_pad
    if kind is None or (counted and kind == _SAME):
        if not highest and not counted:
            raise UnwritableError("TFLite has no average over windows with this padding")
        if counted and any(a.reach != a.after for a in axes):
            raise UnwritableError("TFLite has no average over windows that reach past their padding")
        i, kind = padded(w, i, axes, lowest=highest), _VALID
    kernel = (1, *op.kernel_shape)[-2:]
    options = _window_options(axes, kind) | {"filter_h": kernel[0], "filter_w": kernel[1]}
    name = "MAX_POOL_2D" if highest else "AVERAGE_POOL_2D"
    y = node.output
    w.put_alike(result, i, name, [i], image_dims(y), channels_last(4), **options)
    if y.type.rank == 3:
        (form,) = w.forms[result.value]
        n, _, length, channels = image_dims(y)
        w.forms[result.value] = [TensorForm(flat(w, form.tensor, (n, length, channels)), channels_last(3))]


def result_of_moved(w: TfliteWriter, node: Node) -> tuple[Result, bool]:
    """The result of an operator that leaves the quantisation as it is, and whether integers go through it."""
    given = w.quant_of(node.input(0))
    if given is None:
        return Result(node.output), False
    return w.result(node), True


def mean(w: TfliteWriter, node: Node) -> None:
    """GlobalAveragePool and reductions along constant axes."""
    op: Any = node.op
    x, y = node.input(0), node.output
    if isinstance(node.op, GlobalPool | AveragePool):
        wanted, kept = list(range(2, x.type.rank)), True
    else:
        given = node.inputs[1] if len(node.inputs) > 1 else None
        if given is not None and given.data is None:
            raise UnwritableError("its axes are computed at run time")
        wanted = [int(a) % x.type.rank for a in given.array.reshape(-1)] if given is not None else []
        wanted, kept = wanted or list(range(x.type.rank)), bool(op.keepdims)
    kind = {"ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN", "ReduceSum": "SUM"}.get(op.name, "MEAN")
    kind = "REDUCE_MAX" if isinstance(op, GlobalMaxPool) else kind
    order: Axes = w.order(x)
    if kind.startswith("REDUCE"):
        result, integers = result_of_moved(w, node)
    else:
        result = w.result(node)
        integers = result.quantised and w.quant_of(x) is not None and kind == "MEAN"
        result = result if integers else Result(node.output)
    i = w.operand(x, order, integers=integers)
    axes = w.integers(sorted(order.index(a) for a in wanted))
    left = [a for a in order if a not in wanted]
    dims = w.model.tensors[i].dims
    if kept:
        dims, form_axes = tuple(1 if order[k] in wanted else n for k, n in enumerate(dims)), order
    else:
        dims = tuple(n for k, n in enumerate(dims) if order[k] not in wanted)
        form_axes = tuple(sorted(left).index(a) for a in left)
    if kind.startswith("REDUCE"):
        return w.put_alike(result, i, kind, [i, axes], dims, form_axes, keep_dims=kept)
    assert y.type.rank == len(dims)
    return w.put(result, kind, [i, axes], dims, form_axes, keep_dims=kept)
