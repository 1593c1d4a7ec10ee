"""Averages, maxima, concatenations and softmax between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tenon.network.graph.graph import Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.activation import Clip
from tenon.network.ops.byte_softmax import LONGEST
from tenon.network.ops.pointwise import Mul
from tenon.network.ops.pool import AveragePool
from tenon.network.ops.quantize import DequantizeLinear
from tenon.network.ops.reduce import GlobalAveragePool, ReduceMean, ReduceSum
from tenon.network.ops.requantize import SUMS, quantized_multiplier
from tenon.network.passes.base import Match, attribute, make
from tenon.network.passes.integers.arithmetic import concatenated_u8, mean_factor
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.float_results import integer_scores, scores
from tenon.network.passes.integers.functions import softmax_16
from tenon.network.passes.integers.operands import BYTES, Operand, operand, transpose
from tenon.network.passes.integers.pointwise import _looked_up
from tenon.options import Arithmetic


def average(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """AveragePool, GlobalAveragePool, and ReduceMean over the spatial axes of an image."""
    node = chain.core
    x = operand(match, node.input(0))
    if isinstance(x, str):
        return x
    if why := _unfit(chain, x):
        return why
    if isinstance(node.op, ReduceMean):
        return _reduced(match, chain, x, arithmetic, _axes_of(node))
    sizes = x.value.type.dims[2:]
    rank = len(sizes)
    whole = isinstance(node.op, GlobalAveragePool)
    kernel = sizes if whole else attribute(node, "kernel_shape")
    more = (
        {}
        if whole
        else {
            name: attribute(node, name) for name in ("strides", "dilations", "pads", "ceil_mode", "count_include_pad")
        }
    )
    if not whole and attribute(node, "auto_pad") not in ("NOTSET", "VALID"):
        return "its padding follows from auto_pad"
    if arithmetic == "onnx" and x.grid.dtype is DType.I16:
        return "averages of 16-bit integers are computed in float"
    if arithmetic == "onnx":
        rounding, factor = "float", float(np.float32(x.grid.scale) / np.float32(chain.grid.scale))
    elif more.get("count_include_pad"):
        return "its padding counts"
    elif x.grid.same(chain.grid):
        rounding, factor = "away", 1.0
    elif kernel == sizes and not any(more.get("pads") or ()):
        return _reduced(match, chain, x, arithmetic, list(range(2, 2 + rank)))
    else:
        return _requantised(match, chain, x, arithmetic, kernel, more)
    assert rank
    if rank > 2 and kernel == sizes and not any(more.get("pads") or ()):
        return chain.finish(match, _pooled_whole(match, chain, x, rounding, arithmetic, factor))
    return chain.finish(match, _pooled(match, chain, x, rounding, arithmetic, kernel, factor=factor, **more))


def _pooled_whole(
    match: Match, chain: FloatChain, x: Operand, rounding: str, arithmetic: Arithmetic, factor: float
) -> Value:
    """The average over all spatial axes of any number, as of one."""
    batch, channels, *sizes = x.value.type.dims
    row = match.constant("row", np.array([batch, channels, math.prod(sizes)], np.int64))
    flat = Operand(match.add("Reshape", x.value, row), x.grid)
    y = _pooled(match, chain, flat, rounding, arithmetic, (math.prod(sizes),), factor=factor)
    shape = match.constant("shape", np.array(chain.core.output.type.dims, np.int64))
    return match.add("Reshape", y, shape)


def _requantised(
    match: Match,
    chain: FloatChain,
    x: Operand,
    arithmetic: Arithmetic,
    kernel: tuple[int, ...],
    more: Mapping[str, object],
) -> Value | str:
    """Averages in the quantisation of the input, as TFLite has them, and a QUANTIZE."""
    alike = replace(chain, grid=x.grid, low=-math.inf, high=math.inf)
    if chain.bounds(away=True) != chain.grid.range or {x.grid.dtype, chain.grid.dtype} - {DType.I8, DType.U8}:
        return "its result has another quantisation than its input"
    pooled = Operand(_pooled(match, alike, x, "away", arithmetic, kernel, factor=1.0, **more), x.grid)
    result = _looked_up(match, pooled, chain.grid, ([], [], []), arithmetic)
    return result if isinstance(result, str) else chain.finish(match, result)


def _unfit(chain: FloatChain, x: Operand) -> str:
    if chain.scaled or x.grid.steps or chain.grid.steps:
        return "its values are quantisation steps"
    wide = x.grid.dtype is chain.grid.dtype is DType.I16
    pooled = isinstance(chain.core.op, AveragePool | GlobalAveragePool)
    wide = wide and (x.grid.same(chain.grid) if pooled else not x.grid.zero)
    if {x.grid.dtype, chain.grid.dtype} - {DType.I8, DType.U8} and not wide:
        return "averages of 16-bit integers are computed in float"
    return ""


def _pooled(
    match: Match,
    chain: FloatChain,
    x: Operand,
    rounding: str,
    arithmetic: Arithmetic,
    kernel: tuple[int, ...],
    **more: object,
) -> Value:
    low, high = chain.bounds(away=arithmetic != "onnx")
    op = make(
        "IntegerAveragePool",
        rounding=rounding,
        kernel_shape=tuple(kernel),
        x_zero=x.grid.zero,
        zero=chain.grid.zero,
        low=low,
        high=high,
        to=chain.grid.dtype.value,
        scale=chain.grid.scale,
        **more,
    )
    return match.add(op, x.value, origin=chain.core.origin)


def total(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """ReduceSum, as TFLite's kernels compute it: a mean without the division."""
    x = operand(match, chain.core.input(0))
    if isinstance(x, str):
        return x
    if arithmetic == "onnx":
        return "sums along axes are computed in float"
    return _unfit(chain, x) or _reduced(match, chain, x, arithmetic, _axes_of(chain.core))


def _axes_of(node: Node) -> list[int] | None:
    """The axes that a reduction names; None if they are not constant."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    return None if given is None or given.data is None else [int(a) for a in given.data.reshape(-1)]


def _reduced(
    match: Match, chain: FloatChain, x: Operand, arithmetic: Arithmetic, along: Sequence[int] | None
) -> Value | str:
    """A mean or a sum along axes, as a pooling of the whole image."""
    node = chain.core
    dims = x.value.type.dims
    if along is None:
        return "its axes are not constant"
    axes = sorted({a % len(dims) for a in along})
    kept = [a for a in range(len(dims)) if a not in axes]
    count = math.prod(dims[a] for a in axes)
    if x.grid.dtype is DType.I16 and arithmetic == "onnx":
        return "averages of 16-bit integers are computed in float"
    if isinstance(node.op, ReduceSum):
        fixed = quantized_multiplier(x.grid.scale / chain.grid.scale)
    else:
        fixed = mean_factor(x.grid.scale, chain.grid.scale, count)
    if count * max(abs(limit - x.grid.zero) for limit in x.grid.range) << max(fixed[1], 0) > SUMS:
        return "its sums could be too large for 32 bits"
    image = transpose(match, x.value, (*kept, *axes), x.grid)
    rows = dims[kept[0]] if kept else 1
    sizes = [dims[a] for a in axes] if len(axes) == 2 else [count]
    extents = [rows, math.prod(dims[a] for a in kept[1:]), *sizes]
    image = match.add("Reshape", image, match.constant("image", np.array(extents, np.int64)))
    moved = Operand(image, x.grid)
    if arithmetic == "onnx":
        more: dict[str, object] = {"factor": float(np.float32(x.grid.scale) / np.float32(chain.grid.scale))}
        rounding = "float"
    else:
        rounding, more = "double", {"fixed": fixed}
    y = _pooled(match, chain, moved, rounding, arithmetic, tuple(sizes), **more)
    shape = match.constant("shape", np.array(node.output.type.dims, np.int64))
    return chain.finish(match, match.add("Reshape", y, shape))


EXACT = 1 << 24
"""Whole numbers up to this are exact in f32, and so are their sums in any order."""


def sized_mean(match: Match, chain: FloatChain, node: Node) -> Value | str:
    """The sum ``node`` over axes whose extents are known at run time, divided by the number of their elements.

    It has the bits of an IntegerAveragePool of those extents: whole numbers are added in f32, without rounding, and
    their sum is multiplied by the quotient in f32 of the scales' and the number of elements.
    """
    x, count = operand(match, node.input(0)), chain.core.input(1)
    if isinstance(x, str):
        return x
    if why := _unfit(chain, x):
        return why
    if not match.sole(node.output):
        return "the sum that a quotient is computed of is read by others too"
    if x.grid.dtype is DType.I16:
        return "averages of 16-bit integers are computed in float"
    terms = node.input(0).type.size // node.output.type.size
    if terms * max(abs(limit - x.grid.zero) for limit in x.grid.range) > EXACT:
        return "its sums could be too large to be exact in f32"
    one, grid = match.constant("one", np.array(1, np.float32)), chain.grid
    factor = match.constant("factor", np.array(np.float32(x.grid.scale) / np.float32(grid.scale)))
    zeros = [match.constant("zero", np.array(g.zero, g.dtype.numpy)) for g in (x.grid, grid)]
    whole = match.add("DequantizeLinear", x.value, one, zeros[0])
    total = match.add(node.op, whole, *node.inputs[1:], origin=node.origin)
    mean = match.add("Mul", total, match.add("Div", factor, count))
    if (bounds := chain.bounds(away=False)) != grid.range:
        limits = [match.constant("limit", np.array(bound - grid.zero, np.float32)) for bound in bounds]
        mean = match.add("Clip", mean, *limits)
    return chain.finish(match, match.add(make("QuantizeLinear", to=grid.dtype.value), mean, one, zeros[1]))


def is_sized_mean(node: Node) -> bool:
    """Whether a QuantizeLinear rounds what ``sized_mean`` made: sums of integers by a factor known at run time."""
    mean = node.input(0).producer
    mean = mean.input(0).producer if mean is not None and isinstance(mean.op, Clip) else mean
    total = mean.input(0).producer if mean is not None and isinstance(mean.op, Mul) else None
    whole = total.input(0).producer if total is not None and isinstance(total.op, ReduceSum) else None
    scale = whole.input(1).data if whole is not None and isinstance(whole.op, DequantizeLinear) else None
    return scale is not None and bool((scale == 1).all())


def softmax(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """Softmax over the last axis, for a result of the scale 2**-8 or 2**-16; that of ONNX Runtime gives floats."""
    node, grid = chain.core, chain.grid
    if arithmetic == "onnx":
        return _byte_softmax(match, chain)
    source, beta = scores(node)
    x = operand(match, source)
    if isinstance(x, str):
        return x
    last = attribute(node, "axis") % node.output.type.rank == node.output.type.rank - 1
    if x.grid.dtype is grid.dtype is DType.I16 and last and not (chain.scaled or x.grid.steps or grid.steps):
        return softmax_16(match, chain, x.value, x.grid, beta, arithmetic)
    usual = grid.scale == 1 / (1 << 8 * grid.dtype.bytes) and grid.zero == grid.range[0]
    alike = grid.dtype in (x.grid.dtype, DType.I16)
    if x.grid.dtype not in BYTES or chain.scaled or x.grid.steps or grid.steps or not (usual and alike and last):
        return "only softmax of 8 bits over the last axis to a scale of 1/256 or 1/65536 is computed in integers"
    to = "" if x.grid.dtype is grid.dtype else grid.dtype.value
    y = match.add(make("IntegerSoftmax", x_scale=x.grid.scale * beta, to=to), x.value, origin=node.origin)
    return chain.finish(match, y)


def _byte_softmax(match: Match, chain: FloatChain) -> Value | str:
    """Softmax over the last axis of 8 bits, whose results are rounded to 8 bits."""
    node, grid = chain.core, chain.grid
    given = integer_scores(match, node)
    if given is None:
        return "softmax is computed in float, as ONNX Runtime does"
    (x, scale), rank = given, node.output.type.rank
    whole = grid.dtype in BYTES and not grid.steps and not chain.scaled and chain.bounds(away=False) == grid.range
    if not whole or attribute(node, "axis") % rank != rank - 1 or node.output.type.dims[-1] > LONGEST:
        return ""
    op = make("ByteSoftmax", x_scale=scale, scale=grid.scale, zero=grid.zero, to=grid.dtype.value)
    return chain.finish(match, match.add(op, x.value, origin=node.origin))


def concat(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """Parts requantised to the grid of the result."""
    node = chain.core
    if chain.scaled:
        return "a factor stands between its result and its quantisation"
    if chain.bounds(away=True) != chain.grid.range:
        return "a concatenation followed by bounds is computed in float"
    parts = []
    for given in node.inputs:
        assert given is not None
        part = operand(match, given)
        if isinstance(part, str):
            return part
        if arithmetic == "litert" and part.grid.dtype is chain.grid.dtype is DType.U8:
            value: Value | str = _part_u8(match, part, chain)
        else:
            value = _looked_up(match, part, chain.grid, ([], [], []), arithmetic)
        if isinstance(value, str):
            return value
        parts.append(value)
    return chain.finish(match, match.add(node.op, *parts, origin=node.origin))


def _part_u8(match: Match, part: Operand, chain: FloatChain) -> Value:
    """A part of a concatenation in LiteRT's arithmetic, which has one of its own for u8."""
    if part.grid.same(chain.grid):
        return part.value
    grid = chain.grid
    codes = concatenated_u8(np.arange(256), part.grid.scale, part.grid.zero, grid.scale, grid.zero)
    table = match.constant("table", codes.astype(np.uint8))
    op = make("Lookup", scale=grid.scale, zero=grid.zero)
    return match.add(op, part.value, table, origin=chain.core.origin)


def resize(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """Bilinear resampling of an image, its quantisation unchanged."""
    node = chain.core
    x = operand(match, node.input(0))
    if isinstance(x, str):
        return x
    place = attribute(node, "coordinate_transformation_mode")
    linear = attribute(node, "mode") == "linear" and not attribute(node, "antialias")
    if arithmetic == "onnx" or not linear or place not in ("asymmetric", "align_corners", "half_pixel"):
        return "this resampling is computed in float"
    if arithmetic == "litert" and x.grid.dtype is DType.U8:
        return "LiteRT resamples u8 in float"
    dims, out = x.value.type.dims, node.output.type.dims
    same = x.grid.same(chain.grid) and not chain.scaled and chain.bounds(away=True) == chain.grid.range
    if _unfit(chain, x) or not same or len(dims) != 4 or dims[:2] != out[:2]:
        return "its result has another quantisation than its input"
    op = make(
        "IntegerResizeLinear",
        sizes=out[2:],
        align_corners=int(place == "align_corners"),
        half_pixel=int(place == "half_pixel"),
        scale=chain.grid.scale,
        zero=chain.grid.zero,
    )
    return chain.finish(match, match.add(op, x.value, origin=node.origin))
