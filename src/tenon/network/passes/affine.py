"""Scales and shifts per channel, folded into the convolutions and matrix products around them.

BatchNormalization, and Mul, Add, Sub and Div by a constant per channel, are all y = scale * x + shift.  After a
convolution they always fold into its weights and bias. Before one, the scale always folds; the shift folds only without
padding, because it does not apply to the padding's zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any as Anything

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.normalize import BatchNormalization
from tenon.network.ops.pointwise import Add, Div, Mul, Sub
from tenon.network.passes.base import Match, Result, attribute, make, rule, rules
from tenon.network.passes.patterns import Any, Constant, IsOp

_AFFINE = "BatchNormalization|Mul|Add|Sub|Div"


# ---------------------------------------------------------------------------------- affine operators
@dataclass(frozen=True)
class Affine:
    """y = scale * x + shift, both f64 [C] along ``axis`` of x."""

    x: Value
    axis: int
    scale: Array
    shift: Array


def affine(node: Node, axis: int) -> Affine | None:
    """``node`` as an affine operator along ``axis`` (from the front), or None if it is not affine."""
    if isinstance(node.op, BatchNormalization):
        normal = normalization(node)
        return normal if normal is not None and normal.axis == axis else None
    if not isinstance(node.op, Mul | Add | Sub | Div) or len(node.inputs) != 2:
        return None
    a, b = node.input(0), node.input(1)
    if a.constant and isinstance(node.op, Operator) and node.op.commutative:
        a, b = b, a
    if a.constant or not b.constant or a.type != node.output.type or not a.type.dtype.is_float:
        return None
    c = per_channel(b.array, a.type.dims, axis)
    if c is None or (isinstance(node.op, Div) and not c.all()):
        return None
    ones, zeros = np.ones_like(c), np.zeros_like(c)
    scale, shift = {"Mul": (c, zeros), "Div": (1 / c if c.all() else c, zeros), "Add": (ones, c), "Sub": (ones, -c)}[
        node.op.name
    ]
    return Affine(a, axis, scale, shift)


def normalization(node: Node) -> Affine | None:
    """A BatchNormalization with constant statistics, as an affine operator."""
    x, *rest = (node.input(i) for i in range(5))
    if not all(v.constant for v in rest) or x.type.rank < 2:
        return None
    scale, bias, mean, variance = (v.array.astype(np.float64) for v in rest)
    scale = scale / np.sqrt(variance + attribute(node, "epsilon"))
    return Affine(x, 1, scale, bias - mean * scale)


def per_channel(data: Array, shape: tuple[int, ...], axis: int) -> Array | None:
    """``data``, broadcast against ``shape``, as f64 [C] if it varies along ``axis`` only."""
    if data.ndim > len(shape):
        return None
    dims = (1,) * (len(shape) - data.ndim) + data.shape
    if any(n != 1 for i, n in enumerate(dims) if i != axis) or not -len(shape) <= axis < len(shape):
        return None
    return np.array(np.broadcast_to(data.reshape(-1), shape[axis]), np.float64)


def spread(values: Array, like: Value, axis: int) -> Array:
    """[C] as a constant that broadcasts along ``axis`` of ``like``."""
    dims = [1] * like.type.rank
    dims[axis] = -1
    return values.reshape(dims).astype(like.type.dtype.numpy)


# ---------------------------------------------------------------------------------- linear operators
@dataclass(frozen=True)
class Linear:
    """A node y = W x + b with constant W and b; b is f64 [C] or None."""

    node: Node
    weights: Array
    bias: Array | None

    @property
    def axis(self) -> int:
        """The axis of x and y that holds the channels."""
        return self.node.output.type.rank - 1 if isinstance(self.node.op, Gemm | MatMul) else 1

    @property
    def channels(self) -> int:
        return self.node.output.type.dims[self.axis]

    def copy(self) -> Array:
        """The weights as a new f64 array, of which ``grouped`` is a view."""
        return np.array(self.weights, np.float64, order="C")

    def grouped(self, weights: Array) -> Array:
        """A view as [groups, out / groups, in / groups, taps...]."""
        op, w = self.node.op, weights
        if isinstance(op, Conv):
            return w.reshape(attribute(self.node, "group"), -1, *w.shape[1:])
        if isinstance(op, ConvTranspose):
            return w.reshape(attribute(self.node, "group"), -1, *w.shape[1:]).swapaxes(1, 2)
        transposed = isinstance(op, Gemm) and attribute(self.node, "transB")
        return (w if transposed else w.swapaxes(0, 1))[None]

    @property
    def pads(self) -> bool:
        """Whether there is zero padding, so that a shift of the input is not one of the output."""
        if isinstance(self.node.op, Conv):
            quiet = attribute(self.node, "auto_pad") in ("NOTSET", "VALID")
            return not quiet or any(attribute(self.node, "pads"))
        return isinstance(self.node.op, ConvTranspose)


def linear(node: Node) -> Linear | None:
    """``node`` as a linear operator with constant weights; None if scaling would make integer weights inexact."""
    if not isinstance(node.op, Operator) or not node.op.bilinear or len(node.inputs) < 2:
        return None
    w = node.input(1)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if w.data is None or (bias is not None and bias.data is None) or not w.type.dtype.is_float:
        return None
    if w.type.quant is not None and w.type.quant.steps:
        return None  # sums of products of integers are exact
    if isinstance(node.op, MatMul) and (w.type.rank != 2 or node.input(0).type.rank < 2):
        return None
    if isinstance(node.op, Gemm) and (attribute(node, "transA") or attribute(node, "alpha") != 1.0):
        return None
    if bias is None or bias.data is None:
        return Linear(node, w.data, None)
    if not isinstance(node.op, Gemm):
        return Linear(node, w.data, bias.data.astype(np.float64))
    flat = per_channel(bias.data, node.output.type.dims, 1)
    return None if flat is None else Linear(node, w.data, flat * attribute(node, "beta"))


def rebuilt(match: Match, was: Linear, x: Value, weights: Array, bias: Array) -> Value:
    """The linear node with other weights and bias; a matrix product of rank above 2 gets an Add for its bias."""
    node, dtype, origin = was.node, was.weights.dtype, was.node.origin
    w, data = node.input(1), np.ascontiguousarray(weights.astype(dtype))
    if not np.array_equal(data, was.weights):  # the same ones keep the grid that they are known to be on
        w = match.constant(w.name.removesuffix("_folded") + "_folded", data)
    plain = not bias.any() and was.bias is None
    b = None if plain else match.constant(f"{node.output.name}_bias", bias.astype(dtype))
    extra = () if b is None else (b,)
    if isinstance(node.op, MatMul):
        if b is None or node.output.type.rank == 2:
            return match.add(make("Gemm") if b is not None else node.op, x, w, *extra, origin=origin)
        return match.add("Add", match.add(node.op, x, w, origin=origin), b)
    op: Anything = node.op
    return match.add(replace(op, beta=1.0) if isinstance(op, Gemm) else op, x, w, *extra, origin=origin)


# ----------------------------------------------------------------------------------------------- rules
@rule(IsOp(_AFFINE))
def affine_after_linear(match: Match) -> Result:
    """affine(W x + b) = (scale * W) x + (scale * b + shift)"""
    for value in match.root.inputs[:2]:
        was = linear(value.producer) if value is not None and value.producer is not None else None
        after = affine(match.root, was.axis) if was is not None else None
        if was is None or after is None or after.x is not value:
            continue
        if not match.sole(after.x):
            return f"the result of {was.node.origin} has other readers"
        if isinstance(was.node.op, MatMul) and was.node.output.type.rank != 2 and after.shift.any():
            return None
        weights = was.copy()
        grouped = was.grouped(weights)
        grouped *= after.scale.reshape(*grouped.shape[:2], *(1,) * (grouped.ndim - 2))
        bias = after.shift + (0 if was.bias is None else was.bias * after.scale)
        return rebuilt(match, was, was.node.input(0), weights, bias)
    return None


@rule(IsOp("*", where=lambda op: op.bilinear))
def affine_before_linear(match: Match) -> Result:
    """W (scale * x + shift) + b = (W * scale) x + (W shift + b), the shift only where nothing is padded"""
    was = linear(match.root)
    before = match.root.input(0).producer
    if was is None or before is None:
        return None
    scaled = affine(before, match.root.input(0).type.rank - 1 if was.axis != 1 else 1)
    if scaled is None:
        return None
    if not match.sole(match.root.input(0)):
        return f"the result of {before.origin} has other readers"
    x, shift = scaled.x, scaled.shift
    if was.pads and shift.any():
        if not isinstance(before.op, BatchNormalization) or not scaled.scale.all():
            return "its shift does not apply to the padding"
        ahead = match.constant(f"{x.name}_shift", spread(shift / scaled.scale, x, 1))
        x, shift = match.add("Add", x, ahead), np.zeros_like(shift)
    weights = was.copy()
    grouped = was.grouped(weights)
    per_in = shift.reshape(grouped.shape[0], 1, grouped.shape[2], *(1,) * (grouped.ndim - 3))
    bias = (grouped * per_in).sum(axis=tuple(range(2, grouped.ndim))).reshape(-1)
    grouped *= scaled.scale.reshape(per_in.shape)
    return rebuilt(match, was, x, weights, bias + (0 if was.bias is None else was.bias))


@rule(
    IsOp(
        "Conv|ConvTranspose",
        IsOp("Add", IsOp("Mul", Any("x"), Constant("scale"), name="mul"), Constant("shift"), name="add"),
        Constant("w"),
    )
)
def scale_before_shift(match: Match) -> Result:
    """W (scale * x + shift) = (W * scale) (x + shift / scale): the scale folds, whatever the padding"""
    return _scale_past_shift(match)


@rule(
    IsOp(
        "Conv|ConvTranspose",
        IsOp("Add", IsOp("Mul", Any("x"), Constant("scale"), name="mul"), Constant("shift"), name="add"),
        Constant("w"),
        Constant("b"),
    )
)
def scale_before_shift_with_bias(match: Match) -> Result:
    """The same for a convolution that has a bias."""
    return _scale_past_shift(match)


def _scale_past_shift(match: Match) -> Result:
    was, scaled, shifted = linear(match.root), affine(match.node("mul"), 1), affine(match.node("add"), 1)
    if was is None or scaled is None or shifted is None or not scaled.scale.all() or not was.pads:
        return None
    ahead = match.constant(f"{scaled.x.name}_shift", spread(shifted.shift / scaled.scale, scaled.x, 1))
    x = match.add("Add", scaled.x, ahead)
    weights = was.copy()
    grouped = was.grouped(weights)
    grouped *= scaled.scale.reshape(grouped.shape[0], 1, grouped.shape[2], *(1,) * (grouped.ndim - 3))
    bias = np.zeros(was.channels) if was.bias is None else was.bias
    return rebuilt(match, was, x, weights, bias)


@rule(IsOp("Mul|Add|Sub|Div"))
def affine_after_affine(match: Match) -> Result:
    """Two scales, or two shifts, in a row are one"""
    axis = 1 if match.root.output.type.rank > 1 else 0
    outer = affine(match.root, axis)
    before = outer.x.producer if outer is not None else None
    inner = affine(before, axis) if before is not None and not isinstance(before.op, BatchNormalization) else None
    if outer is None or inner is None or not match.sole(outer.x):
        return None
    scales = not outer.shift.any() and not inner.shift.any()
    if not scales and not ((outer.scale == 1).all() and (inner.scale == 1).all()):
        return None
    values = outer.scale * inner.scale if scales else outer.shift + inner.shift
    one = len(set(values.tolist())) == 1
    data = values[:1].reshape(()).astype(inner.x.type.dtype.numpy) if one else spread(values, inner.x, axis)
    return match.add("Mul" if scales else "Add", inner.x, match.constant(f"{match.root.output.name}_merged", data))


@rule(IsOp("Mul|Div", IsOp("Add|Sub", Any("a"), Any("b"), name="inner"), Constant("scale")))
def scale_after_shift(match: Match) -> Result:
    """(x + shift) * scale = x * scale + shift * scale: shifts gather behind, scales in front"""
    axis = 1 if match.root.output.type.rank > 1 else 0
    outer, inner = affine(match.root, axis), affine(match.node("inner"), axis)
    if outer is None or inner is None:
        return None
    stem = match.root.output.name
    scale = match.constant(f"{stem}_scale", spread(outer.scale, inner.x, axis))
    shift = match.constant(f"{stem}_shift", spread(inner.shift * outer.scale, inner.x, axis))
    return match.add("Add", match.add("Mul", inner.x, scale), shift)


@rule(IsOp("MatMul"))
def factor_after_product(match: Match) -> Result:
    """(a * number) @ b = (a @ b) * number, and the same for b: a product can scale what it stores"""
    operands = [match.root.input(0), match.root.input(1)]
    for i, value in enumerate(operands):
        made = value.producer
        factor = made.inputs[1] if made is not None and isinstance(made.op, Mul | Div) else None
        if made is None or factor is None or factor.data is None or factor.data.size != 1 or not match.sole(value):
            continue
        if made.input(0).type == value.type:
            operands[i] = made.input(0)
            number = match.constant(factor.name, factor.data.reshape(()))
            return match.add(made.op, match.add(match.root.op, *operands), number, origin=made.origin)
    return None


@rule(IsOp("BatchNormalization"))
def decompose_normalization(match: Match) -> Result:
    """Normalisations that could not be folded become x * scale + shift"""
    normal = normalization(match.root)
    x = match.root.input(0)
    if normal is None:
        return _decompose_at_run_time(match)
    scale = match.constant(f"{match.root.output.name}_scale", spread(normal.scale, x, 1))
    shift = match.constant(f"{match.root.output.name}_shift", spread(normal.shift, x, 1))
    return match.add("Add", match.add("Mul", x, scale), shift)


def _decompose_at_run_time(match: Match) -> Value:
    """Decompose to (x - mean) / sqrt(variance + epsilon) * scale + bias."""
    x, *rest = (match.root.input(i) for i in range(5))
    dims = match.constant("per_channel", np.array([1, -1, *(1,) * (x.type.rank - 2)][: x.type.rank], np.int64))
    scale, bias, mean, variance = (match.add("Reshape", v, dims) for v in rest)
    epsilon = match.constant("epsilon", np.array(attribute(match.root, "epsilon"), variance.type.dtype.numpy))
    deviation = match.add("Sqrt", match.add("Add", variance, epsilon))
    normal = match.add("Div", match.add("Sub", x, mean), deviation)
    return match.add("Add", match.add("Mul", normal, scale), bias)


FOLD = rules(
    "fold scale and shift",
    affine_after_linear,
    affine_before_linear,
    scale_before_shift,
    scale_before_shift_with_bias,
    affine_after_affine,
    scale_after_shift,
    factor_after_product,
    level=2,
    ensures="no scale or shift per channel could be folded into a neighbouring convolution",
)
DECOMPOSE = rules(
    "decompose batch normalization",
    decompose_normalization,
    level=0,
    ensures="batch normalization is Mul and Add",
    leaves=lambda op: isinstance(op, BatchNormalization),
)
