"""Convolutions and matrix products between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.requantize import Factors
from tenon.network.ops.window import Window
from tenon.network.passes.base import Match, attribute, make
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.matrices import at_run_time, matmul
from tenon.network.passes.integers.operands import Operand, TensorGrid
from tenon.network.passes.integers.product_sums import ProductSums, Rescaling, is_matrix, rescaling_of, sums_of
from tenon.network.passes.integers.transposed import Spread, unsupported
from tenon.options import Arithmetic

LARGEST_RANK = 4
"""Axes of the images that kernels of convolutions in integers take."""


def product(match: Match, chain: FloatChain, arithmetic: Arithmetic, added: Operand | None = None) -> Value | str:
    """A Conv, a ConvTranspose, a Gemm or a MatMul by constant weights, in integers; ``added`` to the sums of a Conv."""
    node = chain.core
    if why := _unsupported(node):
        return why
    if chain.slope != 1 and chain.grid.steps:
        return "its LeakyRelu is of quantisation steps"
    if is_matrix(node) and at_run_time(node):
        return matmul(match, chain, arithmetic)
    sums = sums_of(match, chain)
    if isinstance(sums, str):
        return sums
    rescaling = rescaling_of(sums, chain, arithmetic, added)
    if isinstance(rescaling, str):
        return rescaling
    bounds = chain.bounds(away=arithmetic != "onnx")
    if not isinstance(node.op, ConvTranspose):
        return chain.finish(match, _made(match, chain, sums, rescaling, bounds, added, None))
    spread = Spread.of(node, len(sums.weights))
    spread_sums, spread_rescaling = sums.spread(spread), rescaling.spread(spread)
    made = _made(match, chain, spread_sums, spread_rescaling, bounds, added, spread)
    return chain.finish(match, spread.interleaved(match, made))


def _made(
    match: Match,
    chain: FloatChain,
    sums: ProductSums,
    rescaling: Rescaling,
    bounds: tuple[int, int],
    added: Operand | None,
    spread: Spread | None,
) -> Value:
    """The product in integers; that of a transposed convolution is not interleaved yet."""
    node, factors = chain.core, rescaling.factors
    if sums.weights.ndim > LARGEST_RANK and factors.rounding == "float" and added is None and chain.slope == 1:
        window = _window(node, sums, spread)
        taps = sums.weights.astype(np.int32) - sums.w_zero
        return by_loop_nest(match, sums.x, taps, sums.bias, factors.values, chain.grid, bounds, window)
    common = _attributes(chain, sums, factors, bounds)
    rest = _operands(match, sums, rescaling)
    if is_matrix(node):
        return _rows(match, sums.x.value, rest, node, common, wide=rescaling.in_64_bits)
    if added is not None and rescaling.added is not None:
        own, shift = rescaling.added
        rest += [*([None] if factors.shifts is None else []), added.value, match.constant("added_factors", own)]
        common |= {"added_zero": added.grid.zero, "added_shift": shift}
    op = make("IntegerWideConv" if rescaling.in_64_bits else "IntegerConv", **common, **_window(node, sums, spread))
    return match.add(op, sums.x.value, *rest, origin=node.origin)


def _attributes(chain: FloatChain, sums: ProductSums, factors: Factors, bounds: tuple[int, int]) -> dict[str, object]:
    """The attributes that convolutions and products of matrices in integers share."""
    return {
        "rounding": factors.rounding,
        "x_zero": sums.x.grid.zero,
        "w_zero": sums.w_zero,
        "zero": chain.grid.zero,
        "low": bounds[0],
        "high": bounds[1],
        "to": chain.grid.dtype.value,
        "scale": chain.grid.scale,
        "slope": chain.slope,
    }


def _operands(match: Match, sums: ProductSums, rescaling: Rescaling) -> list[Value | None]:
    """Weights, bias, and factors or multipliers and shifts."""
    factors, b = rescaling.factors, sums.bias
    return [
        match.constant("weights", np.ascontiguousarray(sums.weights)),
        None if b is None else match.constant("bias", b.astype(np.int64 if rescaling.in_64_bits else np.int32)),
        match.constant("multipliers", factors.values),
        *([] if factors.shifts is None else [match.constant("shifts", factors.shifts)]),
    ]


def _window(node: Node, sums: ProductSums, spread: Spread | None) -> dict[str, Any]:
    return _windows(node, sums.weights.shape[2:]) if spread is None else _spread_windows(node, spread)


def _spread_windows(node: Node, spread: Spread) -> dict[str, Any]:
    before, after = spread.window()
    return {"group": attribute(node, "group"), "pads": (*before, *after)}


def by_loop_nest(
    match: Match,
    x: Operand,
    taps: Array,
    b: Array | None,
    factors: Array,
    grid: TensorGrid,
    bounds: tuple[int, int],
    window: dict[str, Any],
) -> Value:
    """A convolution of more than two spatial axes: sums of i32 by the generic loop nest, times factors in f32, rounded
    halves to even as by ``IntegerConv``."""

    def number(value: float, kind: type) -> Value:
        return match.constant("number", np.array(value, kind))

    channels = (1, -1, *(1,) * (taps.ndim - 2))
    image = match.add("Sub", match.add(make("Cast", to="i32"), x.value), number(x.grid.zero, np.int32))
    rest = [match.constant("weights", taps)] + ([] if b is None else [match.constant("bias", b.astype(np.int32))])
    sums = match.add(make("Conv", **window), image, *rest, origin=match.root.origin)
    scales = match.constant("factors", factors.astype(np.float32).reshape(channels))
    rounded = match.add("Round", match.add("Mul", match.add(make("Cast", to="f32"), sums), scales))
    shifted = match.add("Add", rounded, number(grid.zero, np.float32))
    low, high = (number(bound, np.float32) for bound in bounds)
    return match.add(make("Cast", to=grid.dtype.value), match.add("Min", match.add("Max", shifted, low), high))


def _windows(node: Node, kernel: tuple[int, ...]) -> dict[str, Any]:
    """The attributes of a Conv that say which elements its weights of this size multiply."""
    window = Window(
        kernel,
        attribute(node, "strides"),
        attribute(node, "dilations"),
        attribute(node, "pads"),
        attribute(node, "auto_pad"),
    )
    axes = window.axes("Conv", node.input(0).type.dims[2:])
    return {
        "group": attribute(node, "group"),
        "strides": tuple(a.stride for a in axes),
        "dilations": tuple(a.dilation for a in axes),
        "pads": (*(a.before for a in axes), *(a.after for a in axes)),
    }


def _unsupported(node: Node) -> str:
    if isinstance(node.op, Gemm):
        plain = attribute(node, "alpha") == 1.0 and attribute(node, "beta") == 1.0 and not attribute(node, "transA")
        return "" if plain else "alpha, beta or transA are not those of a plain product"
    if isinstance(node.op, ConvTranspose):
        return unsupported(node)
    if isinstance(node.op, Conv) and any(p < 0 for p in attribute(node, "pads")):
        return "negative pads"
    return ""


def _rows(
    match: Match, x: Value, rest: list[Value | None], node: Node, common: Mapping[str, object], *, wide: bool
) -> Value:
    """The product of the last axis of x with weights."""
    if wide:
        return _wide_rows(match, x, rest, node, common)
    dims, op = x.type.dims, make("IntegerGemm", **common)
    if len(dims) == 2:
        return match.add(op, x, *rest, origin=node.origin)
    flat = match.constant("rows", np.array([-1, dims[-1]], np.int64))
    y = match.add(op, match.add("Reshape", x, flat), *rest, origin=node.origin)
    return match.add("Reshape", y, match.constant("shape", np.array(node.output.type.dims, np.int64)))


def _wide_rows(match: Match, x: Value, rest: list[Value | None], node: Node, common: Mapping[str, object]) -> Value:
    """The product of the last axis of x with weights, as a convolution of images of one element."""
    w, deep = rest[0], x.type.dims[-1]
    assert w is not None
    image = match.add("Reshape", x, match.constant("image", np.array([-1, deep, 1], np.int64)))
    taps = match.constant("weights", w.array[..., None])
    y = match.add(make("IntegerWideConv", **common), image, taps, *rest[1:], origin=node.origin)
    return match.add("Reshape", y, match.constant("shape", np.array(node.output.type.dims, np.int64)))
