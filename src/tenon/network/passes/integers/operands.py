"""Operands of integer rules: quantised tensors before DequantizeLinear, and their quantisation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.types import DType, Quant
from tenon.network.ops.mask import Mask
from tenon.network.ops.pointwise import Mul
from tenon.network.ops.pool import MaxPool
from tenon.network.ops.quantised_values import integers_of
from tenon.network.ops.quantize import DequantizeLinear
from tenon.network.ops.reduce import GlobalMaxPool
from tenon.network.ops.requantize import limits
from tenon.network.ops.slice_gather import Pad
from tenon.network.ops.traits import rearranges, selects
from tenon.network.passes.base import Match, attribute, make

ACTIVATIONS = (DType.I8, DType.U8, DType.I16, DType.U16)


@dataclass(frozen=True)
class TensorGrid:
    """Quantisation by one f32 scale: real = scale * (integer - zero). ``steps`` is true if the float values of the
    graph are multiples of the scale (steps) instead of real numbers.
    """

    scale: float
    zero: int
    dtype: DType
    steps: bool = False

    @property
    def quant(self) -> Quant:
        return Quant((self.scale,), (self.zero,))

    @property
    def range(self) -> tuple[int, int]:
        return limits(self.dtype)

    def same(self, other: TensorGrid) -> bool:
        return (self.scale, self.zero, self.dtype) == (other.scale, other.zero, other.dtype)


@dataclass(frozen=True)
class Operand:
    """A quantised tensor: its integers, after data movement, and their grid."""

    value: Value
    grid: TensorGrid


def grid_of(node: Node) -> TensorGrid | str:
    """The grid of a DequantizeLinear or QuantizeLinear, or the reason why integer operators do not support it."""
    stored = node.input(0) if isinstance(node.op, DequantizeLinear) else node.output
    scale, zero = node.input(1).data, node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or (zero is not None and zero.data is None):
        return "its scale or zero point is computed at run time"
    if scale.size != 1 or (zero is not None and zero.type.size != 1):
        return "it has a scale per channel"
    if stored.type.dtype not in ACTIVATIONS:
        return f"integers of {stored.type.dtype} are not supported"
    step, offset = (
        float(np.float32(scale.reshape(-1)[0])),
        0 if zero is None or zero.data is None else int(zero.data.reshape(-1)[0]),
    )
    if not np.isfinite(step) or step <= 0:
        return "its scale is not a positive number"
    known = stored.type.quant
    if step == 1.0 and known is not None and known.scalar and known.zero_point[0] == offset:
        return TensorGrid(known.scale[0], offset, stored.type.dtype, steps=True)
    return TensorGrid(step, offset, stored.type.dtype)


BYTES = (DType.I8, DType.U8)


def operand(match: Match, value: Value, constants: tuple[DType, ...] = BYTES) -> Operand | str:
    """``value`` as a quantised tensor: a constant, of the first of these types that holds it, or through data movement
    back to DequantizeLinear."""
    if value.constant and (known := _constant(match, value, constants)) is not None:
        return known
    traced = _source(value)
    if isinstance(traced, str):
        return traced
    source, grid, moves = traced
    for node in reversed(moves):
        source = moved(match, node, source, grid)
    return Operand(source, grid)


def _constant(match: Match, value: Value, dtypes: tuple[DType, ...]) -> Operand | None:
    """A constant of floats on a grid of one scale that one of these types holds."""
    stored, quant = value.stored, value.type.quant
    if stored is not None and stored.data.dtype.kind in "iu" and stored.scale.size == stored.zero.size == 1:
        scale, zero = float(np.float32(stored.scale.reshape(()))), int(stored.zero.reshape(()))
        data = stored.data.astype(np.int64)
    elif quant is not None and quant.scalar and not quant.steps and value.array.dtype.kind == "f":
        scale, zero = quant.scale[0], quant.zero_point[0]
        steps = value.array.astype(np.float64) / scale
        if (np.abs(np.rint(steps) - steps) > np.maximum(1e-3, np.abs(steps) * 2.0**-23)).any():  # products in f32
            return None
        data = np.rint(steps).astype(np.int64) + zero
    else:
        return None
    for dtype in dtypes:
        low, high = limits(dtype)
        if low <= min(zero, data.min(initial=zero)) and max(zero, data.max(initial=zero)) <= high:
            grid = TensorGrid(scale, zero, dtype)
            integers = match.constant("integers", data.astype(dtype.numpy))
            integers.type = replace(integers.type, quant=grid.quant)
            return Operand(integers, grid)
    return None


def is_quantised(value: Value) -> bool:
    return not isinstance(_source(value), str)


def _source(value: Value) -> tuple[Value, TensorGrid, list[Node]] | str:
    """The integers that ``value`` represents, their grid, and the data movement between them, last node first."""
    moves: list[Node] = []
    factor: float | None = None
    while value.producer is not None and not isinstance(value.producer.op, DequantizeLinear):
        node = value.producer
        if isinstance(node.op, Mul) and factor is None and node.input(1).constant and node.input(1).type.size == 1:
            factor, value = float(node.input(1).array.reshape(-1)[0]), node.input(0)
            continue
        if not (can_move(node) or below_all(node, moves)) or value is not node.output:
            return f"it reads the result of {node.op.name}, which is not quantised"
        moves.append(node)
        value = node.input(0)
    source = value.producer
    if source is None:
        return "its input is a float tensor that is not quantised"
    grid = grid_of(source)
    if isinstance(grid, str):
        return f"the quantisation of its input is not supported: {grid}"
    if factor is not None:
        if not grid.steps or factor != grid.scale:
            return "a factor stands between it and what it reads"
        grid = replace(grid, steps=False)  # steps times the scale are the real numbers
    return source.input(0), grid, moves


def can_move(node: Node) -> bool:
    """Whether a node only moves data, so that it can move the integers instead.  A Mask stores zeros beyond an extent,
    which are zero points among integers."""
    if isinstance(node.op, Mask):
        return node.op.value == 0
    if isinstance(node.op, Pad):
        value = node.inputs[2] if len(node.inputs) > 2 else None
        return attribute(node, "mode") != "constant" or value is None or value.data is not None
    return rearranges(node) or (selects(node) and len(node.outputs) == 1)


def below_all(node: Node, readers: list[Node]) -> bool:
    """Whether a Mask stores -inf for a MaxPool, the last of ``readers`` but for other Masks, which any number that no
    element is below replaces."""
    if not isinstance(node.op, Mask) or node.op.value != -np.inf:
        return False
    maxima = next((reader for reader in reversed(readers) if not isinstance(reader.op, Mask)), None)
    return maxima is not None and isinstance(maxima.op, GlobalMaxPool | MaxPool)


def moved(match: Match, node: Node, source: Value, grid: TensorGrid) -> Value:
    """The integers ``source`` after the data movement ``node``."""
    rest, op = list(node.inputs[1:]), node.op
    if isinstance(op, Mask):
        op = replace(op, value=grid.zero if op.value == 0 else grid.range[0])
    if isinstance(op, Pad) and attribute(node, "mode") == "constant":
        given = rest[1] if len(rest) > 1 else None
        real = 0.0 if given is None or given.data is None else float(given.data.reshape(-1)[0])
        steps = real if grid.steps else real / grid.scale
        low, high = grid.range
        filled = int(np.clip(np.rint(steps) + grid.zero, low, high))
        rest[1:2] = [match.constant("pad_value", np.array(filled, grid.dtype.numpy))]
    result = match.add(op, source, *rest, origin=node.origin)
    result.type = replace(result.type, quant=grid.quant)
    return result


# ---------------------------------------------------------------------------------------------- constants
@dataclass(frozen=True)
class QuantisedWeights:
    """Integers [out, ...], a scale for each output channel or one for all (f32), and their zero point.

    ``quant`` has ``steps`` set if the float weights of the graph are integers.
    """

    data: Array
    scales: Array
    zero: int
    steps: bool


def weights(value: Value, axis: int) -> QuantisedWeights | str:
    """Constant weights with output channels along ``axis``, or the reason why they are not quantised."""
    known = integers_of(value)
    if known is not None:
        if DType.of(known.data.dtype).is_small_float or known.data.dtype.kind == "f":
            return f"weights of {known.data.dtype} are not integers"
        along = _along(known.scale, known.data, axis), _along(known.zero.astype(np.int64), known.data, axis)
        return _weights(known.data.astype(np.int64), *along, steps=False)
    if value.data is None:
        return "its weights are computed at run time"
    quant = value.type.quant
    if quant is None:
        return "its weights are not quantised"
    if quant.axis not in (None, axis % value.type.rank):
        return "its weights have scales along another axis than output channels"
    scales, zeros = np.array(quant.scale, np.float32), np.array(quant.zero_point, np.int64)
    data = value.data.astype(np.float64)
    if not quant.steps:
        shape = [-1 if i == quant.axis else 1 for i in range(data.ndim)]
        data = data / scales.astype(np.float64).reshape(shape if quant.axis is not None else ())
    whole = np.rint(data)
    if np.abs(whole - data).max(initial=0) > 1e-3:
        return "its weights are not multiples of their scale"
    shape = [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
    offset = zeros.reshape(shape) if zeros.size > 1 else zeros.reshape(())
    return _weights(whole.astype(np.int64) + offset, scales, zeros, steps=quant.steps)


def _along(parameter: Array, data: Array, axis: int) -> Array | None:
    """A parameter that broadcasts to ``data`` along one axis, as a vector or a scalar; None if it does not."""
    if parameter.size == 1:
        return parameter.reshape(1)
    full = (1,) * (data.ndim - parameter.ndim) + parameter.shape
    alone = all(n == 1 or i == axis % data.ndim for i, n in enumerate(full))
    return parameter.reshape(-1) if alone else None


def _weights(data: Array, scales: Array | None, zeros: Array | None, *, steps: bool) -> QuantisedWeights | str:
    if scales is None or zeros is None:
        return "its weights have scales along another axis than output channels"
    if zeros.size and (zeros != zeros[0]).any():
        return "its weights have several zero points"
    zero = int(zeros[0]) if zeros.size else 0
    least, most = int(data.min(initial=min(0, zero))), int(data.max(initial=max(0, zero)))
    held = [t for t in (DType.I4, DType.I8, DType.U8, DType.I16) if limits(t)[0] <= least and most <= limits(t)[1]]
    if not held:
        return "its weights do not fit 16 bits"
    dtype = next(t for t in held if t is not DType.I4 or not zero)
    return QuantisedWeights(data.astype(dtype.numpy), scales.astype(np.float32), zero, steps)


def bias(value: Value | None, scales: Array, *, steps: bool) -> Array | str | None:
    """A bias as i64 in units of ``scales``, the scales of the sums (of 1 with ``steps``); or the reason why it is not
    representable.
    """
    if value is None:
        return None
    known = integers_of(value)
    if known is not None:
        wanted = np.ones(1) if steps else scales.astype(np.float64)
        if known.zero.any():
            return "its bias has a zero point"
        if not np.allclose(known.scale.reshape(-1).astype(np.float64), wanted, rtol=1e-5, atol=0):
            return "its bias has another scale than the product of those of input and weights"
        return known.data.astype(np.int64).reshape(-1)
    if value.data is None:
        return "its bias is computed at run time"
    real = value.data.reshape(-1)
    if value.type.quant is not None and value.type.quant.steps:
        return np.rint(real.astype(np.float64)).astype(np.int64)
    if steps:
        return "its bias is not quantised"
    return _exact_steps(real.astype(np.float32), scales.astype(np.float32))


def _exact_steps(real: Array, scales: Array) -> Array | str:
    """A bias of floats as the whole numbers of ``scales`` that f32 rounds to it, or to a neighbour of it."""
    whole = np.rint(real.astype(np.float64) / scales)
    if np.abs(whole).max(initial=0) >= 1 << 31:
        return "its bias is too large for 32 bits"
    near = np.abs(whole * scales - real) <= np.spacing(np.abs(real))
    return whole.astype(np.int64) if near.all() else "its bias is not quantised"


def transpose(match: Match, value: Value, perm: tuple[int, ...], grid: TensorGrid) -> Value:
    result = match.add(make("Transpose", perm=perm), value)
    result.type = replace(result.type, quant=grid.quant)
    return result
