"""Pooling over windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.pool import Pool, Segment, lowest, pool
from tenon.machine.kernels.storage_types import NARROW
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.types import F32, ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import (
    ROUNDED,
    Arg,
    Case,
    ErrorBound,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    conv_images,
    needs_clear,
    padding_mask,
    register,
    typed,
)
from tenon.network.ops.elementwise import BLOCKED
from tenon.network.ops.patch import Patch, Span, window_patch
from tenon.network.ops.reach import Operands, Reaches, window_reach
from tenon.network.ops.sized_windows import over_images, same_padded, sized_windows
from tenon.network.ops.window import Axis, Ints, Window, last_axes, planar

MOST_TILES = 25
"""The most pairs of row and column segments for which a pooling is unrolled."""


def clipped(a: Axis, weight: Callable[[int], int]) -> tuple[Segment, ...]:
    """The windows along an axis, split where the clipped extent of a window changes."""
    kinds = [(a.inside(i), weight(i)) for i in range(a.out)]
    segments = []
    for (taps, counted), group in groupby(range(a.out), lambda i: kinds[i]):
        positions = list(group)
        start = positions[0] * a.stride - a.before + taps.start * a.dilation
        segments.append(Segment(positions[0], len(positions), start, len(taps), a.stride, float(counted)))
    return tuple(segments)


def sliding(a: Axis) -> tuple[Segment, ...]:
    """As ``clipped`` for unweighted windows: at most four segments, the clipped ones with growing loops."""
    starts = [i * a.stride - a.before for i in range(a.out)]
    kinds = {
        "front": [i for i, s in enumerate(starts) if s < 0 and s + a.kernel <= a.size],
        "all": [i for i, s in enumerate(starts) if s < 0 and s + a.kernel > a.size],
        "middle": [i for i, s in enumerate(starts) if s >= 0 and s + a.kernel <= a.size],
        "back": [i for i, s in enumerate(starts) if s >= 0 and s + a.kernel > a.size],
    }
    segments = []
    for kind, windows in kinds.items():
        if not windows:
            continue
        first, count, start = windows[0], len(windows), starts[windows[0]]
        if kind == "front":
            segments.append(Segment(first, count, 0, a.kernel + start, 0, grow=a.stride))
        elif kind == "all":
            segments.append(Segment(first, count, 0, a.size, 0))
        elif kind == "middle":
            segments.append(Segment(first, count, start, a.kernel, a.stride))
        else:
            segments.append(Segment(first, count, start, a.size - start, a.stride, grow=-a.stride))
    return tuple(segments)


def window_views(x: Array, axes: Sequence[Axis], fill: float) -> Iterable[Array]:
    """For each tap, the elements that it reads in all windows; ``fill`` outside."""
    pads = [(0, 0), (0, 0), *((a.before, max(a.after, a.reach)) for a in axes)]
    wide = np.pad(x, pads, constant_values=fill)
    for tap in np.ndindex(*(a.kernel for a in axes)):
        at = (
            slice(t * a.dilation, t * a.dilation + (a.out - 1) * a.stride + 1, a.stride)
            for t, a in zip(tap, axes, strict=True)
        )
        yield wide[last_axes(at)]


@dataclass(frozen=True)
class Pooling(Operator):
    """The base of MaxPool and AveragePool."""

    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: Ints = ()
    kernel_shape: Ints = ()
    pads: Ints = ()
    strides: Ints = ()
    fusable: ClassVar[bool] = True
    averages: ClassVar[bool] = False

    @property
    def window(self) -> Window:
        """The attributes of the windows."""
        return Window(self.kernel_shape, self.strides, self.dilations, self.pads, self.auto_pad, bool(self.ceil_mode))

    def axes(self, x: Ints) -> tuple[Axis, ...]:
        return self.window.axes(self.name, x[2:])

    def segments(self, a: Axis) -> tuple[Segment, ...]:
        return clipped(a, lambda i: 1)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.rank < 3:
            raise ShapeError(f"{self.name}: {list(x.dims)} has no spatial axes")
        return (TensorType(x.dtype, (*x.dims[:2], *(a.out for a in self.axes(x.dims)))),)

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        return all(n == 1 for n in (*self.kernel_shape, *self.strides)) and not any(self.pads)

    def layouts(self, site: Site) -> Layouts:
        flat = ((0, 0),) * (site.output.rank - 2)
        layout = Layout(site.machine.block, flat) if site.output.dtype in BLOCKED else ROW_MAJOR
        inputs = (layout, *(layout if i in site.extras else None for i in range(1, len(site.inputs))))
        return Layouts(inputs, (layout,) * len(site.outputs))

    def any_block(self, site: Site, i: int | None) -> bool:
        """The image and the result, where blocks are as a matrix unit wants them, wider than vectors."""
        floats = {site.input(0).dtype, site.output.dtype} <= {F32, *NARROW}
        return floats and i in (None, 0) and site.machine.wants_blocks(site.input(0).dtype)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        x = inputs[0]
        if x is None or self.ceil_mode:  # windows that reach past the padding count less
            return None
        return window_patch(self, self.axes(x.dims), inputs, span, auto_pad="NOTSET")

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x = inputs[0]
        assert x is not None
        return window_reach(self.axes(x.type.dims), inputs, axis)

    def supported(self, site: Site) -> str:
        axes = self.axes(site.input(0).dims)
        if len(axes) > 2:
            return f"{len(axes)} spatial axes: only 1-D and 2-D are compiled"
        if any(not a.inside(i) for a in axes for i in range(a.out)):
            return "some windows lie wholly in the padding: use smaller pads"
        return ""

    def lower(self, site: Site) -> list[Step]:
        axes = self.axes(site.input(0).dims)
        one = Segment(0, 1, 0, 1, 0)
        rows, cols = (((one,),) * 2 + tuple(self.segments(a) for a in axes))[-2:]
        if len(rows) * len(cols) > MOST_TILES and not self.averages and all(a.dilation == 1 for a in axes):
            rows, cols = (((one,),) * 2 + tuple(sliding(a) for a in axes))[-2:]
        s = Pool(
            Image.of(site.input(0)),
            Image.of(site.output),
            rows,
            cols,
            planar(tuple(a.dilation for a in axes), 1),
            self.averages,
            conv_images(site),
            site.epilogue,
            needs_clear(site),
        )
        mask: list[Arg] = [Weights(padding_mask(site.output))] if s.clear else []
        return [Step(pool(s, site.machine), (Input(0), *mask, *map(Input, site.extras), Output()))]


@register
@dataclass(frozen=True)
class MaxPool(Pooling):
    """The largest element of every window.  ``storage_order`` matters to a second output only (the indices)."""

    storage_order: int = 0
    selects: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    narrow_images: ClassVar[bool] = True

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if len(node.names) > 1:
            raise SizeRefusedError("its second output, the indices, where extents are known only at run time")
        fill = lowest(node.type(0).dtype)
        node.inputs[0], window = same_padded(node, node.input(0), self.window, fill)
        windows = sized_windows(window, node.extents(0)[2:], node.type(0).dims[2:])
        extents = over_images(node, windows, None, fill)
        node.op = replace(self, pads=windows.pads, auto_pad="NOTSET", ceil_mode=0)
        return node.same(extents)

    def reference(self, x: Array) -> Array:
        axes = self.axes(x.shape)
        fill = lowest(DType.of(x.dtype))
        out = np.full((*x.shape[:2], *(a.out for a in axes)), fill, x.dtype)
        for part in window_views(x, axes, fill):
            np.maximum(out, part, out=out)
        return out

    def supported(self, site: Site) -> str:
        if len(site.outputs) > 1:
            return "the second output (indices) is not compiled"
        return super().supported(site)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, shape: Ints, kernel: Ints, **attributes: object) -> Case:
            return Case(cls(kernel_shape=kernel, **attributes), (shape,), label=label)  # type: ignore[arg-type]

        yield case("2x2", (1, 19, 6, 4), (2, 2), strides=(2, 2))
        yield case("3x3", (2, 5, 7, 7), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
        yield case("ceil", (1, 8, 6, 7), (3, 3), strides=(2, 2), ceil_mode=1)
        yield case("ceil_drops", (1, 4, 5, 4), (1, 2), strides=(2, 3), pads=(0, 0, 0, 1), ceil_mode=1)
        yield case("dilated", (1, 6, 7, 8), (2, 3), dilations=(3, 2))
        yield case("same_lower", (1, 4, 5, 6), (3, 2), strides=(2, 1), auto_pad="SAME_LOWER")
        yield case("large", (1, 5, 7, 6), (7, 5), pads=(3, 2, 3, 2))
        yield case("larger_than_data", (1, 3, 4, 5), (9, 7), pads=(4, 3, 4, 3), strides=(1, 2))
        yield case("one_axis", (2, 6, 9), (4,), strides=(3,), pads=(1, 2))
        yield case("three_axes", (1, 2, 4, 4, 4), (2, 2, 2))
        bf16 = cls(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
        yield Case(bf16, ((1, 19, 7, 6),), tolerance=0, label="bf16", dtypes=(DType.BF16,))
        yield Case(bf16, ((1, 19, 7, 6),), tolerance=0, label="f16", dtypes=(DType.F16,))
        signed = np.arange(-12, 12, dtype=np.int8).reshape(1, 2, 3, 4)
        yield Case(cls(kernel_shape=(2, 2), pads=(1, 1, 0, 0)), (signed,), label="integers")
        unsigned = np.random.default_rng(3).integers(0, 256, (2, 5, 7, 6)).astype(np.uint8)
        yield Case(bf16, (unsigned,), label="unsigned")


@register
@dataclass(frozen=True)
class AveragePool(Pooling):
    """The mean of every window; elements in the padding count where ``count_include_pad`` says so."""

    count_include_pad: int = 0
    averages: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    def weight(self, a: Axis, i: int) -> int:
        """The divisor of window ``i`` of an axis; 1 for an empty window, whose mean is zero."""
        if not self.count_include_pad:
            return max(1, len(a.inside(i)))
        start = i * a.stride - a.before
        return max(1, sum(start + t * a.dilation < a.size + a.after for t in range(a.kernel)))

    def segments(self, a: Axis) -> tuple[Segment, ...]:
        return clipped(a, lambda i: self.weight(a, i))

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        ones = node.constant(np.ones((1, 1, *node.type(0).dims[2:]), node.type(0).dtype.numpy))
        ones = node.masked(node.sizes.state(ones, [1, 1, *node.extents(0)[2:]]), range(2, ones.type.rank), 0.0)
        ones, _ = same_padded(node, ones, self.window, 0.0)
        before = node.input(0)
        node.inputs[0], window = same_padded(node, before, self.window, 0.0)
        padded = node.input(0) is not before
        windows = sized_windows(window, node.extents(0)[2:], node.type(0).dims[2:])
        if self.ceil_mode and self.count_include_pad:
            raise SizeRefusedError("ceil_mode with count_include_pad, where extents are known only at run time")
        extents = over_images(node, windows, None, 0.0)
        node.op = whole = replace(self, pads=windows.pads, auto_pad="NOTSET", ceil_mode=0, count_include_pad=1)
        if self.count_include_pad or not (padded or any(windows.pads) or windows.reaching):
            return node.same(extents)
        attributes = {f.name: getattr(whole, f.name) for f in fields(whole)}
        total, count = (node.whole("AveragePool", x, **attributes) for x in (node.input(0), ones))
        return [node.add("Div", node.state(total, extents), node.state(count, [1, 1, *extents[2:]]))]

    def reference(self, x: Array) -> Array:
        axes = self.axes(x.shape)
        total = np.zeros((*x.shape[:2], *(a.out for a in axes)), np.float64 if x.dtype == np.float64 else np.float32)
        for part in window_views(x, axes, 0.0):
            total += part
        for d, a in enumerate(axes):
            counts = np.array([self.weight(a, i) for i in range(a.out)], total.dtype)
            total = total / counts.reshape(-1, *(1,) * (len(axes) - 1 - d))
        return total.astype(x.dtype)

    def supported(self, site: Site) -> str:
        if site.input(0).dtype not in (F32, DType.BF16, DType.F16):
            return f"element type {site.input(0).dtype}: only f32 is compiled"
        return super().supported(site)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, shape: Ints, kernel: Ints, **attributes: object) -> Case:
            return Case(cls(kernel_shape=kernel, **attributes), (shape,), label=label)  # type: ignore[arg-type]

        yield case("global", (2, 19, 7, 7), (7, 7))
        yield case("3x3", (1, 5, 6, 7), (3, 3), pads=(1, 1, 1, 1))
        yield case("with_pads", (1, 5, 6, 7), (3, 3), pads=(1, 1, 1, 1), count_include_pad=1)
        yield case("ceil", (1, 6, 6, 7), (3, 3), strides=(2, 2), ceil_mode=1)
        yield case(
            "ceil_with_pads", (1, 6, 6, 7), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), ceil_mode=1, count_include_pad=1
        )
        yield case("dilated", (1, 6, 7, 8), (2, 3), dilations=(3, 2), pads=(1, 1, 1, 1))
        yield case("same_upper", (1, 4, 5, 6), (3, 2), strides=(2, 1), auto_pad="SAME_UPPER")
        yield case("one_axis", (2, 6, 9), (4,), strides=(3,), pads=(1, 2), count_include_pad=1)
        bf16 = cls(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        yield Case(bf16, ((1, 19, 7, 6),), tolerance=ROUNDED, label="bf16", dtypes=(DType.BF16,))
        yield Case(bf16, ((1, 19, 7, 6),), tolerance=ROUNDED / 8, label="f16", dtypes=(DType.F16,))
