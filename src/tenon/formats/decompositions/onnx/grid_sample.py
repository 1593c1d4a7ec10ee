"""GridSample and its like of ONNX: positions computed element by element, and a gather for every neighbour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import FIX

if TYPE_CHECKING:
    from tenon.network.ops.window import Axis


class Sampler:
    """Arithmetic on values of one layer."""

    def __init__(self, node: OnnxNode) -> None:
        self.layer = node
        dtype = node.input(0).type.dtype
        self.dtype = dtype.numpy if dtype.is_float and dtype.bytes > 2 else np.dtype(np.float32)

    def number(self, value: float) -> Value:
        return self.layer.constant(np.array(value, self.dtype), "number")

    def of(self, type: str, *inputs: Value | float) -> Value:
        return self.layer.add(type, *(self.number(v) if isinstance(v, int | float) else v for v in inputs))

    def whole(self, x: Value) -> Value:
        return self.layer.add("Cast", x, to="i64")

    def clip(self, x: Value, low: float, high: Value | float) -> Value:
        return self.of("Max", self.of("Min", x, high), low)

    def moved(self, n: Value | float, by: float) -> Value | float:
        """A number of a run, or one that is known, plus another one."""
        return self.of("Add", n, by) if isinstance(n, Value) else n + by

    def extent(self, x: Value, axis: int) -> tuple[Value | float, Value]:
        """The extent of an axis as a float, and as an i64, of rank 1 where it is known."""
        sizes, n = self.layer.builder.writer.sizes, x.type.dims[axis]
        extent = sizes.of(x)[axis]
        if extent.known:
            return float(n), self.layer.int_constant("n", [n])
        number = sizes.number(extent, self.layer.origin)
        return self.layer.add("Cast", number, to="f64" if self.dtype.itemsize == 8 else "f32"), number

    def inside(self, x: Value, n: Value | float) -> Value:
        """Whether a position lies on an axis of n."""
        last = self.moved(n, -1.0)
        return self.layer.add("And", self.of("GreaterOrEqual", x, 0.0), self.of("LessOrEqual", x, last))

    def reflected(self, x: Value, low: float, high: Value | float) -> Value:
        """A position folded back into low .. high."""
        span: Value | float = self.moved(high, -low)
        if span == 0.0:
            return self.of("Mul", x, 0.0)
        if isinstance(span, Value):
            span = self.of("Max", span, 1e-6)
        away = self.of("Abs", self.of("Sub", x, low))
        turns = self.of("Floor", self.of("Div", away, span))
        rest = self.of("Sub", away, self.of("Mul", turns, span))
        odd = self.of("Sub", turns, self.of("Mul", self.of("Floor", self.of("Mul", turns, 0.5)), 2.0))
        back = self.layer.add("Where", self.of("Greater", odd, 0.5), self.of("Sub", span, rest), rest)
        return self.of("Add", back, low)

    def cubic(self, t: Value, a: float) -> list[Value]:
        """Keys' weights of the neighbours -1, 0, 1, 2 at the fraction t."""

        def near(x: Value) -> Value:
            inner = self.of("Sub", self.of("Mul", x, a + 2), a + 3)
            return self.of("Add", self.of("Mul", self.of("Mul", inner, x), x), 1.0)

        def far(x: Value) -> Value:
            inner = self.of("Add", self.of("Mul", self.of("Sub", self.of("Mul", x, a), 5 * a), x), 8 * a)
            return self.of("Sub", self.of("Mul", inner, x), 4 * a)

        rest = self.of("Sub", self.number(1.0), t)
        return [far(self.of("Add", t, 1.0)), near(t), near(rest), far(self.of("Add", rest, 1.0))]


def grid_sample(node: OnnxNode) -> Sequence[Value]:
    """Every output is a weighted sum of neighbours of a position in -1 .. 1 along each axis."""
    s = Sampler(node)
    x, dims = node.input(0), node.dims_of(0)
    known = node.builder.writer.sizes.of
    if not all(e.known for e in (*known(x)[:2], known(node.input(1))[0])):
        raise RefusedError("GridSample of a number of images or channels that a run decides", FIX)
    rank = len(dims) - 2
    sizes = [s.extent(x, axis) for axis in range(2, len(dims))]
    mode, padding = node.attributes.get("mode", "linear"), node.attributes.get("padding_mode", "zeros")
    corners = bool(node.attributes.get("align_corners", 0))
    grid = node.add("Cast", node.input(1), to={8: "f64"}.get(s.dtype.itemsize, "f32"))
    flat = node.add("Reshape", grid, node.int_constant("flat", [dims[0], 1, -1, rank]))
    taps: list[list[tuple[Value, Value | None]]] = []
    for axis, (n, _) in enumerate(sizes):
        where = node.constant(np.array(rank - 1 - axis, np.int64), "axis")
        g = node.add("Gather", flat, where, axis=-1)  # [N, 1, count]
        if corners:
            last = s.moved(n, -1.0)
            position = s.of("Mul", s.of("Add", g, 1.0), s.of("Mul", last, 0.5) if isinstance(last, Value) else last / 2)
        else:
            position = s.of("Mul", s.of("Sub", s.of("Mul", s.of("Add", g, 1.0), n), 1.0), 0.5)
        taps.append(_taps(s, position, n, mode, padding, corners))
    data = node.add("Reshape", x, node.int_constant("rows", [dims[0], dims[1], -1]))
    begin = node.int_constant("begin", dims[:2])
    whole = node.add("Concat", begin, node.add("Shape", flat, start=2, end=3), axis=0)
    total: Value | None = None
    for neighbour in product(*taps):
        weight, inside, at = None, None, None
        for (position, w), (n, count) in zip(neighbour, sizes, strict=True):
            if padding == "zeros":
                here = s.inside(position, n)
                inside = here if inside is None else node.add("And", inside, here)
            step = s.whole(s.clip(position, 0.0, s.moved(n, -1.0)))
            at = step if at is None else node.add("Add", node.add("Mul", at, count), step)
            if w is not None:
                weight = w if weight is None else s.of("Mul", weight, w)
        assert at is not None
        part = node.add("GatherElements", data, node.add("Expand", at, whole), axis=2)
        if inside is not None:
            zero = node.constant(np.array(0, x.type.dtype.numpy), "zero")
            part = node.add("Where", inside, part, zero)
        if weight is not None:
            part = node.add("Mul", part, weight)
        total = part if total is None else node.add("Add", total, part)
    assert total is not None
    shape = node.add("Concat", begin, node.add("Shape", grid, start=1, end=rank + 1), axis=0)
    return [node.add("Reshape", total, shape)]


def _taps(
    s: Sampler, x: Value, n: Value | float, mode: str, padding: str, corners: bool
) -> list[tuple[Value, Value | None]]:
    """(position, weight) of the neighbours along one axis, positions moved onto the axis as ``padding`` says."""
    last = s.moved(n, -1.0)
    low, high = (0.0, last) if corners else (-0.5, s.moved(n, -0.5))

    def placed(position: Value) -> Value:
        if padding == "border":
            return s.clip(position, 0.0, last)
        if padding == "reflection":
            return s.clip(s.reflected(position, low, high), 0.0, last)
        return position

    if mode == "nearest":
        return [(s.of("Round", placed(x)), None)]
    if mode == "linear":
        x = placed(x)
        base = s.of("Floor", x)
        t = s.of("Sub", x, base)
        return [(base, s.of("Sub", s.number(1.0), t)), (s.of("Add", base, 1.0), t)]
    base = s.of("Floor", x)
    weights = s.cubic(s.of("Sub", x, base), -0.75)
    return [(placed(s.of("Add", base, float(i - 1))), w) for i, w in enumerate(weights)]


def _tap_neighbours(
    s: Sampler, offsets: Value, axes: Sequence[Axis], kernel: Sequence[int], d: int
) -> list[tuple[Value, Value]]:
    """(position, weight) along axis ``d`` of both neighbours of every tap, moved by the offsets."""
    node, axis = s.layer, axes[d]
    start = np.arange(axis.out) * axis.stride - axis.before
    tap = np.arange(axis.kernel) * axis.dilation
    grid = tap.reshape([-1 if e == d else 1 for e in (0, 1)] + [1, 1])
    grid = grid + start.reshape([1, 1] + [-1 if e == d else 1 for e in (0, 1)])
    base = np.broadcast_to(grid, (*kernel, *(b.out for b in axes))).reshape(1, 1, math.prod(kernel), -1)
    moved = node.add("Gather", offsets, node.constant(np.array(d, np.int64), "axis"), axis=3)
    position = s.of("Add", moved, node.constant(base.astype(s.dtype), "base"))
    low = s.of("Floor", position)
    part = s.of("Sub", position, low)
    return [(low, s.of("Sub", s.number(1.0), part)), (s.of("Add", low, 1.0), part)]


def deform_conv(node: OnnxNode) -> Sequence[Value]:
    """Every tap reads a position moved by an offset: samples gathered, then one product with the weights."""
    from tenon.network.ops.window import Window

    s = Sampler(node)
    (n, channels, *sizes), (outs, _, *kernel) = node.dims_of(0), node.dims_of(1)
    attributes = node.attributes
    given = {k: tuple(attributes.get(k) or ()) for k in ("strides", "dilations", "pads")}
    axes = Window(tuple(kernel), given["strides"], given["dilations"], given["pads"]).axes("DeformConv", sizes)
    groups, parts = attributes.get("group", 1), attributes.get("offset_group", 1)
    taps, positions = math.prod(kernel), math.prod(a.out for a in axes)
    if math.prod(node.dims_of(2)) != 2 * n * parts * taps * positions:
        raise RefusedError(f"offsets {list(node.dims_of(2))} do not fit {positions} positions of {taps} taps")
    offsets = node.add("Reshape", node.input(2), node.int_constant("offsets", [n, parts, taps, 2, positions]))
    rows = node.int_constant("rows", [n, channels, -1])
    data = node.add("Reshape", node.input(0), rows)

    def spread(x: Value) -> Value:
        """[N, offset groups, taps, positions] for every channel: [N, C, taps * positions]."""
        wide = node.add("Unsqueeze", x, node.int_constant("channel", [2]))
        wide = node.add("Expand", wide, node.int_constant("wide", [n, parts, channels // parts, taps, positions]))
        return node.add("Reshape", wide, rows)

    sides = [_tap_neighbours(s, offsets, axes, kernel, d) for d in (0, 1)]
    total: Value | None = None
    for (y, wy), (x, wx) in product(*sides):
        inside = node.add("And", s.inside(y, sizes[0]), s.inside(x, sizes[1]))
        at = [s.whole(s.clip(v, 0.0, float(m - 1))) for v, m in ((y, sizes[0]), (x, sizes[1]))]
        number = node.add("Add", node.add("Mul", at[0], node.int_constant("width", [sizes[1]])), at[1])
        weight = node.add("Where", inside, s.of("Mul", wy, wx), s.number(0.0))
        sample = node.add("GatherElements", data, spread(number), axis=2)
        sample = node.add("Mul", sample, spread(weight))
        total = sample if total is None else node.add("Add", total, sample)
    assert total is not None
    if node.has(4):
        mask = node.add("Reshape", node.input(4), node.int_constant("mask", [n, parts, taps, positions]))
        total = node.add("Mul", total, spread(mask))
    columns = node.add(
        "Reshape", total, node.int_constant("columns", [n, groups, channels // groups * taps, positions])
    )
    matrix = node.add("Reshape", node.input(1), node.int_constant("matrix", [1, groups, outs // groups, -1]))
    shape = node.int_constant("shape", [n, outs, *(a.out for a in axes)])
    result = node.add("Reshape", node.add("MatMul", matrix, columns), shape)
    if node.has(3):
        bias = node.add("Reshape", node.input(3), node.int_constant("bias", [1, -1, 1, 1]))
        result = node.add("Add", result, bias)
    return [result]
