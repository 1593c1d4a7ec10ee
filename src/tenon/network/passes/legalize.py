"""Rewrites nodes that kernels do not support into a form that they do.

Floats narrower than f32 are computed in f32 and rounded once; products, convolutions and pooling of other types and
ranks, and those with operands computed at run time, become generic loop nests.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from tenon.network.graph.graph import Node, Value
from tenon.network.graph.types import F32, DType
from tenon.network.graph.writer import can_fold, evaluate
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.convert import Cast
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.generic import GENERIC
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.pool import MaxPool
from tenon.network.ops.resize import Resize
from tenon.network.ops.softmax import LogSoftmax
from tenon.network.passes.base import Match, Result, attribute, make, rule, rules
from tenon.network.passes.patterns import IsOp
from tenon.network.passes.site import plain_site


@rule(IsOp("*"))
def results_of_nothing(match: Match) -> Result:
    """results of reducing no elements are constants: a product over them is zero, a mean is NaN"""
    node = match.root
    empty = any(v is not None and not v.constant and not v.type.size for v in node.inputs)
    if not empty or not can_fold(node) or not any(v.type.size for v in node.outputs):
        return None
    return [match.constant(v.name, a) for v, a in zip(node.outputs, evaluate(node), strict=True)]


@rule(IsOp("Gemm"))
def gemm_over_nothing(match: Match) -> Result:
    """a product over no elements is zero, so that only the addend is left"""
    node, op = match.root, match.root.op
    assert isinstance(op, Gemm)
    c = node.inputs[2] if len(node.inputs) > 2 else None
    if node.input(0).type.size or node.input(1).type.size or c is None or not node.output.type.size:
        return None
    beta = match.constant("beta", np.array(op.beta, c.type.dtype.numpy))
    shape = match.constant("shape", np.array(node.output.type.dims, np.int64))
    y = match.add("Expand", match.add("Mul", c, beta), shape)
    return y if y.type.dtype is node.output.type.dtype else match.add(Cast(node.output.type.dtype.value), y)


def _narrow(node: Node) -> bool:
    return any(v is not None and (v.type.dtype is DType.F16 or v.type.dtype.is_small_float) for v in node.inputs)


@rule(IsOp("*"))
def compute_in_single(match: Match) -> Result:
    """operators that are not elementwise compute half and narrower floats in f32, rounded once"""
    node = match.root
    op = node.op
    if isinstance(op, Pointwise) or (isinstance(op, Operator) and (op.moves or op.widens)) or not _narrow(node):
        return None
    wide = {
        v: match.add(Cast(F32.value), v)
        for v in dict.fromkeys(node.inputs)
        if v is not None and (v.type.dtype is DType.F16 or v.type.dtype.is_small_float)
    }
    inputs = [None if v is None else wide.get(v, v) for v in node.inputs]
    results = match.add_all(node.op, *inputs, count=len(node.outputs))
    return [
        new if old.type.dtype is new.type.dtype else match.add(Cast(old.type.dtype.value), new)
        for old, new in zip(node.outputs, results, strict=True)
    ]


def _needs_loop_nest(node: Node) -> bool:
    """Whether the fast kernels of an operator in GENERIC do not support this node."""
    x = node.input(0).type
    if x.dtype is DType.F16 or x.dtype.is_small_float:  # chosen for a kernel that computes in it
        return False
    if x.dtype is not F32 and not isinstance(node.op, MaxPool):
        return True
    if isinstance(node.op, MatMul):
        return False
    if x.rank > 4:
        return True
    if isinstance(node.op, Conv | ConvTranspose):
        loose = any(v is not None and not v.constant for v in node.inputs[1:])
        return loose or any(p < 0 for p in node.op.pads)
    axes = attribute(node, "axes")(x.dims)
    return any(not a.inside(i) for a in axes for i in range(a.out))


@rule(IsOp("*"))
def generic_loop_nest(match: Match) -> Result:
    """products, convolutions and pooling that the fast kernels do not compute become one loop nest"""
    node = match.root
    generic = GENERIC.get(node.op.name)
    if generic is None or len(node.outputs) != 1 or 0 in node.input(0).type.dims or not _needs_loop_nest(node):
        return None
    attributes = {f.name: getattr(node.op, f.name) for f in fields(node.op)}  # type: ignore[arg-type]
    return match.add(generic(**attributes), *node.inputs)


@rule(IsOp("Gemm"))
def gemm_of_other_types(match: Match) -> Result:
    """a Gemm of other types than f32 is a MatMul, scaled and added to"""
    node, op = match.root, match.root.op
    assert isinstance(op, Gemm)
    a, b, dtype = node.input(0), node.input(1), node.input(0).type.dtype
    if dtype is F32:
        return None
    if op.transA:
        a = match.add(make("Transpose"), a)
    if op.transB:
        b = match.add(make("Transpose"), b)
    y = _scaled(match, match.add("MatMul", a, b), op.alpha)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        c = node.input(2)
        c = c if c.type.dtype is y.type.dtype else match.add(make("Cast", to=str(y.type.dtype)), c)
        y = match.add("Add", y, _scaled(match, c, op.beta))
    return y


def _scaled(match: Match, value: Value, factor: float) -> Value:
    if factor == 1.0:
        return value
    dtype = value.type.dtype
    return match.add("Mul", value, match.constant("factor", np.array(factor, dtype.numpy)))


@rule(IsOp("Softmax|LogSoftmax"))
def softmax_of_doubles(match: Match) -> Result:
    """a softmax of f64 is decomposed"""
    node = match.root
    x = node.input(0)
    if x.type.dtype is not DType.F64:
        return None
    axes = match.constant("axes", np.array([attribute(node, "axis")], np.int64))
    shifted = match.add("Sub", x, match.add("ReduceMax", x, axes))
    powers = match.add("Exp", shifted)
    total = match.add("ReduceSum", powers, axes)
    if isinstance(node.op, LogSoftmax):
        return match.add("Sub", shifted, match.add("Log", total))
    return match.add("Div", powers, total)


@rule(IsOp("BatchNormalization"))
def normalization_at_run_time(match: Match) -> Result:
    """a normalisation by statistics computed at run time is decomposed into scale and shift"""
    node = match.root
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    if all(v.constant for v in (scale, bias, mean, variance)) and x.type.dtype is F32:
        return None
    if attribute(node, "training_mode"):
        return None
    epsilon = match.constant("epsilon", np.array(attribute(node, "epsilon"), variance.type.dtype.numpy))
    deviation = match.add("Sqrt", match.add("Add", variance, epsilon))
    shape = match.constant("columns", np.array([-1, *(1,) * (x.type.rank - 2)], np.int64))
    mean, factor, bias = (match.add("Reshape", v, shape) for v in (mean, match.add("Div", scale, deviation), bias))
    return match.add("Add", match.add("Mul", match.add("Sub", x, mean), factor), bias)


@rule(IsOp("Resize"))
def resize_by_tables(match: Match) -> Result:
    """interpolation that kernels do not support is a product with a table along each axis"""
    node, op = match.root, match.root.op
    assert isinstance(op, Resize)
    x, outside = node.input(0), np.zeros((), bool)
    if not node.output.type.size or not op.supported(plain_site(node)):
        return None
    y, rank = x, x.type.rank
    wide = x.type.dtype if x.type.dtype is DType.F64 else F32
    if x.type.dtype is not wide:
        y = match.add(Cast(wide.value), y)
    for axis, taps in op.resampled(x.type.dims, [v if v is None else v.data for v in node.inputs[1:]]).items():
        table = np.zeros((y.type.dims[axis], len(taps.at)), wide.numpy)
        np.add.at(table, (taps.at, np.arange(len(taps.at))[:, None]), taps.weights)
        order = [*(i for i in range(rank) if i != axis), axis]
        moved = y if axis == rank - 1 else match.add(make("Transpose", perm=tuple(order)), y)
        moved = match.add("MatMul", moved, match.constant("table", table))
        back = tuple(int(i) for i in np.argsort(order))
        y = moved if axis == rank - 1 else match.add(make("Transpose", perm=back), moved)
        outside = outside | taps.outside.reshape(-1, *(1,) * (rank - 1 - axis))
    if outside.any():
        value = np.array(op.extrapolation_value, wide.numpy)
        y = match.add("Where", match.constant("outside", outside), match.constant("value", value), y)
    return y if x.type.dtype is wide else match.add(Cast(x.type.dtype.value), y)


GENERALIZE = rules(
    "general forms",
    results_of_nothing,
    gemm_over_nothing,
    compute_in_single,
    gemm_of_other_types,
    softmax_of_doubles,
    normalization_at_run_time,
    resize_by_tables,
    level=0,
    ensures="every operator is one that kernels compute for its types",
)

LOOP_NESTS = rules(
    "generic loop nests",
    generic_loop_nest,
    level=0,
    ensures="fast kernels compute all products, convolutions and pooling that are not generic loop nests",
)
