"""Convolutions and matrix products between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.quantised_values import integers_of
from tenon.network.ops.requantize import added_factors, largest_added, largest_sums
from tenon.network.ops.window import Window
from tenon.network.passes.base import Match, attribute, make
from tenon.network.passes.integers.arithmetic import overflows, product_factors
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.operands import BYTES, Grid, Operand, bias, operand, transpose, weights
from tenon.network.passes.integers.transposed import Spread, by_output, unsupported
from tenon.options import Arithmetic

LARGEST_RANK = 4
"""Axes of the images that kernels of convolutions in integers take."""


def product(match: Match, chain: FloatChain, arithmetic: Arithmetic, added: Operand | None = None) -> Value | str:
    """A Conv, a ConvTranspose, a Gemm or a MatMul by constant weights, in integers; ``added`` to the sums of a Conv."""
    node = chain.core
    matrix, back = isinstance(node.op, Gemm | MatMul), isinstance(node.op, ConvTranspose)
    why = _unsupported(node)
    if why:
        return why
    if chain.slope != 1 and chain.grid.steps:
        return "its LeakyRelu is of quantisation steps"
    if matrix and _at_run_time(node):
        return matmul(match, chain, arithmetic)
    turned = isinstance(node.op, Gemm) and bool(attribute(node, "transB"))
    given = weights(node.input(1), 0 if turned or not (matrix or back) else 1)
    if isinstance(given, str):
        return given
    x = operand(match, node.input(0))
    if isinstance(x, str):
        return x
    if chain.scaled and not (given.steps and x.grid.steps and chain.grid.steps):
        return "a factor stands between its sums and their quantisation"
    if (given.steps or x.grid.steps) and not chain.scaled:
        return "its sums are not scaled"
    data = given.data if turned or not matrix else given.data.T
    if back:
        if given.scales.size > 1 and attribute(node, "group") > 1:
            return "its weights have scales along another axis than output channels"
        data = by_output(given.data, attribute(node, "group"))
    units = np.float32(x.grid.scale) * given.scales
    b = bias(node.inputs[2] if len(node.inputs) > 2 else None, units, steps=given.steps)
    if isinstance(b, str):
        return b
    wide = x.grid.dtype is DType.I16 and (b is None or _in_64_bits(node))
    if x.grid.dtype is DType.U16:
        return "products of unsigned integers of 16 bits are computed in float"
    factors = product_factors(arithmetic, x.grid.scale, given.scales, chain.grid.scale, gemm=matrix, wide=wide)
    if isinstance(factors, str):
        return factors
    b = None if b is None else np.broadcast_to(b, len(data)).copy()
    largest, plus = largest_sums(data, given.zero, x.grid.range, x.grid.zero, b), None
    if added is not None:
        plus = added_factors(added.grid.scale / units.astype(np.float64))
        if plus is None or x.grid.dtype not in BYTES or chain.slope != 1:
            return "what is added to its sums is computed in float"
        largest = largest + largest_added(added.grid.zero, added.grid.range, *plus)
    why = overflows(largest, factors)
    in_64_bits = (
        bool(why) and wide and factors.rounding in ("reduced", "single") and not given.zero and data.dtype == np.int8
    )
    if why and not in_64_bits:
        return why
    if in_64_bits and chain.slope != 1:
        return "a LeakyRelu of sums of 64 bits is computed in float"
    spread = Spread.of(node, len(data)) if back else None
    if spread is not None:
        data, b = spread.weights(data, given.zero), None if b is None else np.repeat(b, spread.count)
        shifts = None if factors.shifts is None else spread.spread(factors.shifts)
        factors = replace(factors, values=spread.spread(factors.values), shifts=shifts)
    low, high = chain.bounds(away=arithmetic != "onnx")
    common = {
        "rounding": factors.rounding,
        "x_zero": x.grid.zero,
        "w_zero": given.zero,
        "zero": chain.grid.zero,
        "low": low,
        "high": high,
        "to": chain.grid.dtype.value,
        "scale": chain.grid.scale,
        "slope": chain.slope,
    }
    rest = [
        match.constant("weights", np.ascontiguousarray(data)),
        None if b is None else match.constant("bias", b.astype(np.int64 if in_64_bits else np.int32)),
        match.constant("multipliers", factors.values),
        *([] if factors.shifts is None else [match.constant("shifts", factors.shifts)]),
    ]
    more: dict[str, int] = {}
    if added is not None and plus is not None:
        rest += [*([None] if factors.shifts is None else []), added.value, match.constant("added_factors", plus[0])]
        more = {"added_zero": added.grid.zero, "added_shift": plus[1]}
    kind = "IntegerWideConv" if in_64_bits else "IntegerConv"
    if data.ndim > LARGEST_RANK and factors.rounding == "float" and added is None and chain.slope == 1:
        window = _windows(node, data.shape[2:]) if spread is None else _spread_windows(node, spread)
        made = by_loop_nest(
            match, x, data.astype(np.int32) - given.zero, b, factors.values, chain.grid, (low, high), window
        )
        return chain.finish(match, made if spread is None else spread.interleaved(match, made))
    if matrix:
        return chain.finish(match, _rows(match, x.value, rest, node, common, wide=in_64_bits))
    if spread is not None:
        op = make(kind, **common, **_spread_windows(node, spread))
        made = match.add(op, x.value, *rest, origin=node.origin)
        return chain.finish(match, spread.interleaved(match, made))
    op = make(kind, **common, **more, **_windows(node, data.shape[2:]))
    return chain.finish(match, match.add(op, x.value, *rest, origin=node.origin))


def _spread_windows(node: Node, spread: Spread) -> dict[str, Any]:
    before, after = spread.window()
    return {"group": attribute(node, "group"), "pads": (*before, *after)}


def by_loop_nest(
    match: Match,
    x: Operand,
    taps: Array,
    b: Array | None,
    factors: Array,
    grid: Grid,
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


def _in_64_bits(node: Node) -> bool:
    """Whether the bias of a product was stored in 64 bits: then TFLite's sums have as many."""
    known = None if len(node.inputs) < 3 or node.inputs[2] is None else integers_of(node.inputs[2])
    return known is not None and known.data.dtype == np.int64


def _at_run_time(node: Node) -> bool:
    """Whether the second operand of a product of matrices is computed at run time, or a batch of them."""
    w = node.input(1)
    return w.type.rank != 2 or not (w.constant or integers_of(w))


def matmul(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """A product of two matrices that are both computed at run time."""
    node = chain.core
    if chain.slope != 1:
        return "a LeakyRelu of a product of two matrices at run time is computed in float"
    given = operand(match, node.input(0)), operand(match, node.input(1))
    a, b = given
    if isinstance(a, str) or isinstance(b, str):
        return str(a if isinstance(a, str) else b)
    if chain.scaled or a.grid.steps or b.grid.steps or chain.grid.steps:
        return "its numbers count steps"
    kinds = {a.grid.dtype, b.grid.dtype, chain.grid.dtype}
    sixteen = a.grid.dtype is chain.grid.dtype is DType.I16 and b.grid.dtype in (DType.I8, DType.I16)
    wide = sixteen and not (a.grid.zero or b.grid.zero or chain.grid.zero) and arithmetic != "onnx"
    if kinds - {DType.I8, DType.U8} and not wide:
        return "products of two matrices of 16-bit integers are computed in float"
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return "a product of two matrices at run time, and a bias, is computed in float"
    connected = isinstance(node.op, Gemm) and bool(
        attribute(node, "transB")
    )  # FULLY_CONNECTED, which LiteRT rounds once
    rounded = "tflm" if arithmetic == "litert" and not connected else arithmetic  # TFLite's kernels agree on the rest
    scales = a.grid.scale, np.array([b.grid.scale], np.float32), chain.grid.scale
    factors = product_factors(rounded, *scales, gemm=True, wide=wide)
    if isinstance(factors, str):
        return factors
    most = [max(abs(limit - x.grid.zero) for limit in x.grid.range) for x in (a, b)]
    largest = np.array([node.input(0).type.dims[-1] * most[0] * most[1]])
    if why := "" if wide else overflows(largest, factors):
        return why
    low, high = chain.bounds(away=arithmetic != "onnx")
    fixed = (0, 0) if factors.shifts is None else (int(factors.values[0]), int(factors.shifts[0]))
    second = b.value
    if isinstance(node.op, Gemm) and attribute(node, "transB"):
        second = transpose(match, second, (1, 0), b.grid)
    op = make(
        "IntegerMatMul",
        rounding=factors.rounding,
        zeros=(a.grid.zero, b.grid.zero, chain.grid.zero),
        low=low,
        high=high,
        to=chain.grid.dtype.value,
        scale=chain.grid.scale,
        fixed=fixed,
        factor=float(factors.values[0]) if factors.shifts is None else 1.0,
    )
    return chain.finish(match, match.add(op, a.value, second, origin=node.origin))


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
