"""Resampling along axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.move import AffineIndex, Piece, along, move
from tenon.machine.kernels.resize import OutputRange, Resample, resample
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import F32, ROW_MAJOR, Layout, TensorType
from tenon.network.ops.base import (
    Case,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    const_input,
    register,
    typed,
)
from tenon.network.ops.move import kept, normal_axis
from tenon.network.ops.reach import Operands, Reach, Reaches, alike
from tenon.network.ops.sized_resize import resized
from tenon.network.ops.slice_gather import too_many
from tenon.network.ops.window import Ints

_ROUND: dict[str, Callable[[Array], Array]] = {  # in f64, where adding a half is exact
    "round_prefer_floor": lambda x: np.ceil(x.astype(np.float64) - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x.astype(np.float64) + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, eq=False)
class Taps:
    """Along one axis, output i is the sum over t of weights[i, t] * input[at[i, t]]; where ``outside``, it is the
    extrapolation value.  ``slope`` is about how far the input moves for one step of the output."""

    at: Array
    weights: Array
    outside: Array
    slope: Fraction

    @property
    def exact(self) -> bool:
        """Whether every output copies one input."""
        return bool(self.at.shape[1] == 1)


@register
@dataclass(frozen=True)
class Resize(Operator):
    """Inputs: data, roi, scales, sizes; one of the last two, both constant.

    Where ONNX's reference evaluator differs from PyTorch, whose exporters write most of these nodes, this is what
    onnxruntime and PyTorch compute: with align_corners the last elements meet, whatever a fractional scale times the
    extent is, and a tensor whose extents all stay the same is copied, with antialias every axis whose extent does.
    """

    antialias: int = 0
    axes: Ints = ()
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"
    arity: ClassVar[tuple[int, int]] = (1, 4)
    shape_operands: ClassVar[frozenset[int]] = frozenset({1, 2})

    # ------------------------------------------------------------------------------------- geometry
    def scales(self, dims: Ints, scales: Array | None, sizes: Array | None) -> list[tuple[int, float]]:
        """(extent of the result, scale) of every axis.  Raises ShapeError unless exactly one is given."""
        axes = [normal_axis("Resize", a, len(dims)) for a in self.axes] or list(range(len(dims)))
        sized = [(n, 1.0) for n in dims]
        given = scales if scales is not None and scales.size else sizes
        if given is None or len(given) != len(axes):
            raise ShapeError(f"Resize: scales or sizes must have one number for each of {len(axes)} axes")
        if given is scales:
            for a, s in zip(axes, scales.tolist(), strict=True):
                sized[a] = int(np.floor(np.float32(dims[a]) * np.float32(s))), s
            return sized
        ratios = [float(np.float32(n) / np.float32(max(1, dims[a]))) for a, n in zip(axes, given.tolist(), strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return [(int(given[axes.index(i)]), ratios[axes.index(i)]) if i in axes else f for i, f in enumerate(sized)]
        ratio = min(ratios) if self.keep_aspect_ratio_policy == "not_larger" else max(ratios)
        for a in axes:
            sized[a] = int(np.floor(np.float32(dims[a]) * np.float32(ratio) + np.float32(0.5))), ratio
        return sized

    def coordinates(self, n: int, out: int, scale: float, roi: tuple[float, float]) -> tuple[Array, Fraction]:
        """The input coordinate of each output, and its slope."""
        i, s = np.arange(out, dtype=np.float32), np.float32(scale)
        half = np.float32(0.5)
        mode = self.coordinate_transformation_mode
        whole = bool(out) and abs(out / n - scale) < 1e-6
        slope = Fraction(n, out) if whole else Fraction(1 / scale).limit_denominator(4096)
        if mode == "asymmetric":
            return i * np.float32(n) / np.float32(out) if whole else i / s, slope
        if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out > 1):
            return (i + half) / s - half, slope
        if mode == "half_pixel_symmetric":
            offset = np.float32(n / 2) * (1 - np.float32(out) / (s * np.float32(n)))
            return offset + (i + half) / s - half, slope
        if mode == "align_corners":
            last = max(1, out - 1)
            return i * np.float32(n - 1) / np.float32(last), Fraction(n - 1, last)
        if mode == "tf_crop_and_resize":
            start, end = roi
            if out == 1:
                return np.full(1, 0.5 * (start + end) * (n - 1), np.float32), Fraction(0)
            step = (end - start) * (n - 1) / (out - 1)
            return np.float32(start * (n - 1)) + i * np.float32(step), Fraction(step).limit_denominator(4096)
        if mode == "pytorch_half_pixel":
            return i * 0, Fraction(0)
        raise ShapeError(f"Resize: unknown coordinate_transformation_mode '{mode}'")

    def taps(self, n: int, out: int, scale: float, roi: tuple[float, float]) -> Taps:
        x, slope = self.coordinates(n, out, scale, roi)
        outside = (x < 0) | (x > n - 1) if self.coordinate_transformation_mode == "tf_crop_and_resize" else x != x
        if self.mode == "nearest":
            at = np.clip(_ROUND[self.nearest_mode](x), 0, n - 1).astype(np.int64)[:, None]
            return Taps(at, np.ones(at.shape, np.float32), outside, slope)
        reach, kernel = (1, _triangle) if self.mode == "linear" else (2, self.cubic)
        shrink = min(1.0, scale) if self.antialias else 1.0
        first = int(np.floor(-reach / shrink)) + 1
        offsets = np.arange(first, 2 - first)[: None if self.antialias else 2 * reach]
        base = np.floor(x)
        weights = kernel((offsets - (x - base)[:, None]).astype(np.float64) * shrink)
        at = base[:, None].astype(np.int64) + offsets
        if self.exclude_outside:
            weights = np.where((at < 0) | (at >= n), 0.0, weights)
        if self.exclude_outside or self.antialias:
            weights = weights / weights.sum(1, keepdims=True)
        return Taps(np.clip(at, 0, n - 1), weights.astype(np.float32), outside, slope)

    def cubic(self, x: Array) -> Array:
        """Keys' cubic convolution kernel."""
        a, x = self.cubic_coeff_a, np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    def keeps(self, dims: Ints, scales: Array | None, sizes: Array | None) -> bool:
        """Whether no extent changes, and it is not a part of the image."""
        same = all(n == out for n, (out, _) in zip(dims, self.scales(dims, scales, sizes), strict=True))
        return same and self.coordinate_transformation_mode != "tf_crop_and_resize"

    def resampled(self, dims: Ints, given: Sequence[Array | None]) -> dict[int, Taps]:
        """The taps along every axis that changes."""
        roi, scales, sizes = (*given, None, None, None)[:3]
        axes = [normal_axis("Resize", a, len(dims)) for a in self.axes] or list(range(len(dims)))
        taps_by_axis = dict[int, Taps]()
        if self.keeps(dims, scales, sizes):
            return taps_by_axis
        for axis, (n, (out, scale)) in enumerate(zip(dims, self.scales(dims, scales, sizes), strict=True)):
            part = (0.0, 1.0)
            if roi is not None and roi.size and axis in axes:
                part = float(roi[axes.index(axis)]), float(roi[axes.index(axis) + len(axes)])
            copied = bool(self.antialias) and n == out and self.coordinate_transformation_mode != "tf_crop_and_resize"
            if not copied and (n != out or scale != 1.0 or part != (0.0, 1.0)):
                taps_by_axis[axis] = self.taps(n, out, scale, part)
        return taps_by_axis

    # ------------------------------------------------------------------------------------- protocol
    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        if self.mode not in ("nearest", "linear", "cubic") or self.nearest_mode not in _ROUND:
            raise ShapeError(f"Resize: unknown mode '{self.mode}' or nearest_mode '{self.nearest_mode}'")
        scales, sizes = (const_input("Resize", what, inputs, i) for what, i in (("scales", 2), ("sizes", 3)))
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            const_input("Resize", "roi", inputs, 1)
        y = TensorType(x.dtype, tuple(n for n, _ in self.scales(x.dims, scales, sizes)))
        if y.size and not x.size:
            raise ShapeError(f"Resize: {list(x.dims)} has no elements to make {list(y.dims)} of")
        return (y,)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        rank = node.type(0).rank
        axes = [normal_axis("Resize", a, rank) for a in self.axes] or list(range(rank))
        return [resized(node, axes, self)]

    def reference(self, x: Array, *given: Array | None) -> Array:
        dtype, outside = x.dtype, np.zeros((), bool)
        for axis, taps in self.resampled(x.shape, given).items():
            if taps.exact:
                x = np.take(x, taps.at[:, 0], axis)
            else:
                matrix = np.zeros((len(taps.at), x.shape[axis]))
                np.add.at(matrix, (np.arange(len(taps.at))[:, None], taps.at), taps.weights)
                x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
            outside = outside | taps.outside.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        return (
            np.where(outside, np.float64(self.extrapolation_value), x).astype(dtype)
            if outside.any()
            else x.astype(dtype)
        )

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, given = inputs[0], [None if v is None else v.data for v in inputs[1:]]
        assert x is not None
        taps = self.resampled(x.type.dims, given).get(axis)
        if taps is None:
            return alike(inputs, axis)
        n, out = x.type.dims[axis], outputs[0].dims[axis]
        last = np.maximum.accumulate(taps.at.max(1))
        offset = int((out * last + 1 - n * np.arange(1, out + 1)).max())
        return (Reach(axis, n, offset, out), *(None for _ in inputs[1:]))

    def supported(self, site: Site) -> str:
        taps_by_axis = self.resampled(site.input(0).dims, site.constants[1:])
        if any(t.outside.any() for t in taps_by_axis.values()):
            return "tf_crop_and_resize beyond the image: crop with Slice, pad with Pad"
        if all(t.exact for t in taps_by_axis.values()):
            counts = [len(spans(t)) for t in taps_by_axis.values()]
            return too_many(int(np.prod(counts)))
        if site.output.dtype is not F32:
            return f"{self.mode} interpolation of {site.output.dtype}: only f32 is compiled"
        if site.output.rank not in (3, 4) or min(taps_by_axis) < 2:
            return "only the spatial axes of [N, C, W] or [N, C, H, W] are interpolated"
        if self.antialias:
            return "antialias: only plain interpolation is compiled"
        return too_many(int(np.prod([len(spans(t)) for t in taps_by_axis.values()])))

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        return self.coordinate_transformation_mode != "tf_crop_and_resize"

    def layouts(self, site: Site) -> Layouts:
        taps_by_axis = self.resampled(site.input(0).dims, site.constants[1:])
        image = site.output.rank in (3, 4) and site.output.dtype is F32 and min(taps_by_axis, default=2) >= 2
        if all(t.exact for t in taps_by_axis.values()):
            return kept(site) if image else Layouts((ROW_MAJOR, *(None,) * (len(site.inputs) - 1)), (ROW_MAJOR,))
        layout = Layout(site.machine.block, ((0, 0),) * (site.output.rank - 2))
        return Layouts((layout, *(None,) * (len(site.inputs) - 1)), (layout,))

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        taps_by_axis = self.resampled(x.dims, site.constants[1:])
        if all(t.exact for t in taps_by_axis.values()):
            pieces = _copies(x.dims, taps_by_axis)
            return [Step(move("resize", x, y, pieces, site.machine), (Input(0), Output()))]
        one = Taps(np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32), np.zeros(1, bool), Fraction(0))
        rows, cols = (_unchanged(n) if n > 1 else one for n in ((1, *x.dims[2:])[-2:]))
        rows, cols = taps_by_axis.get(x.rank - 2, rows) if x.rank == 4 else one, taps_by_axis.get(x.rank - 1, cols)
        s = Resample(Image.of(x), Image.of(y), tuple(spans(rows)), tuple(spans(cols)))
        weights = Weights(rows.weights), Weights(cols.weights)
        return [Step(resample(s, site.machine), (Input(0), *weights, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, shape: Ints, to: list[float] | list[int], **attributes: object) -> Case:
            sizes = all(isinstance(n, int) for n in to)
            given = (np.array(to, np.int64),) if sizes else (np.array(to, np.float32),)
            inputs = (shape, None, None, *given) if sizes else (shape, None, *given)
            op = cls(**attributes)  # type: ignore[arg-type]
            return Case(op, inputs, (3,) if sizes else (2,), label=label)

        floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        yield case("nearest_2x", (2, 19, 2, 3), [1.0, 1.0, 2.0, 2.0], **floor)
        yield case("nearest_half_pixel", (1, 5, 3, 4), [1, 5, 5, 7])
        yield case("nearest_down", (1, 5, 6, 7), [1.0, 1.0, 0.5, 0.6], nearest_mode="ceil")
        yield case("nearest_corners", (1, 4, 3, 2), [5, 7], axes=(2, 3), coordinate_transformation_mode="align_corners")
        yield case("nearest_channels", (1, 3, 2, 2), [1, 6, 2, 4])
        yield case("nearest_one_axis", (2, 6, 5), [1.0, 1.0, 3.0], **floor)
        yield case("linear_2x", (2, 5, 3, 4), [1.0, 1.0, 2.0, 2.0], mode="linear")
        yield case(
            "linear_corners",
            (1, 19, 3, 4),
            [1, 19, 5, 9],
            mode="linear",
            coordinate_transformation_mode="align_corners",
        )
        yield case(
            "linear_down",
            (1, 5, 7, 8),
            [1, 5, 3, 5],
            mode="linear",
            coordinate_transformation_mode="pytorch_half_pixel",
        )
        yield case(
            "linear_columns",
            (1, 5, 3, 4),
            [1.0, 1.0, 1.0, 1.5],
            mode="linear",
            coordinate_transformation_mode="asymmetric",
        )
        yield case("linear_one_axis", (1, 5, 4), [1.0, 1.0, 2.5], mode="linear")
        yield case("cubic", (1, 5, 4, 4), [1.0, 1.0, 2.0, 1.5], mode="cubic")
        yield case("cubic_inside", (1, 5, 4, 4), [1, 5, 7, 3], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
        corners = {"coordinate_transformation_mode": "align_corners"}
        yield case("linear_corners_broken", (1, 5, 5, 7), [1.0, 1.0, 1.3, 0.6], mode="linear", **corners)
        yield case("nearest_corners_exact", (1, 3, 1, 8), [1, 3, 1, 24], nearest_mode="floor", **corners)
        yield case("linear_same_extents", (1, 5, 3, 4), [1.0, 1.0, 1.2, 1.2], mode="linear")
        yield case("linear_one_extent", (1, 5, 3, 4), [1.0, 1.0, 1.2, 2.0], mode="linear")
        yield case("nearest_same_extents", (1, 5, 4, 4), [1.0, 1.0, 1.2, 1.2], nearest_mode="floor")
        yield case("cubic_same_extents", (1, 5, 4, 4), [1.0, 1.0, 1.2, 1.2], mode="cubic")
        yield case("antialias", (1, 2, 8, 8), [1.0, 1.0, 0.6, 0.5], mode="linear", antialias=1)
        yield case("antialias_one_extent", (1, 2, 3, 4), [1.0, 1.0, 1.2, 2.0], mode="cubic", antialias=1)
        yield case("not_larger", (1, 2, 4, 6), [7, 8], axes=(2, 3), keep_aspect_ratio_policy="not_larger")


def _triangle(x: Array) -> Array:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _unchanged(n: int) -> Taps:
    return Taps(np.arange(n)[:, None], np.ones((n, 1), np.float32), np.zeros(n, bool), Fraction(1))


def spans(taps: Taps) -> list[OutputRange]:
    """Split an axis into the longest spans over which every tap reads (start + step * i) // by."""
    table = taps.at.tolist()
    spans: list[OutputRange] = []
    first = 0
    while first < len(table):
        options = [
            _span(table, first, step, by) for step, by in ((taps.slope.numerator, taps.slope.denominator), (0, 1))
        ]
        spans.append(max(options, key=lambda s: s.count))
        first += spans[-1].count
    return spans


def _span(table: list[list[int]], first: int, step: int, by: int) -> OutputRange:
    """The longest span from ``first`` on with that slope: each position narrows where its taps may start."""
    low = [at * by for at in table[first]]
    high = [at + by - 1 for at in low]
    count = 0
    for i, taps in enumerate(table[first:]):
        lower = [max(a, at * by - step * i) for a, at in zip(low, taps, strict=True)]
        upper = [min(b, at * by + by - 1 - step * i) for b, at in zip(high, taps, strict=True)]
        if any(a > b for a, b in zip(lower, upper, strict=True)):
            break
        low, high, count = lower, upper, count + 1
    return OutputRange(first, count, tuple(low), step, by)


def _copies(dims: Ints, taps: dict[int, Taps]) -> tuple[Piece, ...]:
    """Nearest neighbours: one copy for each combination of spans."""
    axes = [spans(taps[i]) if i in taps else [OutputRange(0, n, (0,), 1, 1)] for i, n in enumerate(dims)]
    return tuple(
        Piece(
            tuple(s.count for s in combination),
            tuple(along(i, s.first) for i, s in enumerate(combination)),
            tuple(_reads(i, s) for i, s in enumerate(combination)),
        )
        for combination in product(*axes)
    )


def _reads(loop: int, s: OutputRange) -> AffineIndex:
    (start,) = s.starts
    return along(loop, start // s.by, s.step // s.by) if s.step % s.by == 0 else along(loop, start, s.step, s.by)
