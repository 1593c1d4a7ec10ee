"""Pooling of regions: ONNX's MaxRoiPool, and R-FCN's position-sensitive averages of pixels or bilinear samples."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.roi_pool import PooledRegions, aligned_regions, average_regions, max_regions
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, Weights, register, typed


def _checked(name: str, types: Sequence[TensorType]) -> tuple[tuple[int, int, int, int], int]:
    """The extents of the image and how many regions there are.  Raises ShapeError."""
    x, regions = types
    if x.rank != 4 or 0 in x.dims or regions.size % 5 or regions.dims[1:2] != (5,) or x.dtype is not F32:
        raise ShapeError(f"{name}: {x} and {regions} are not an image [N, C, H, W] and regions [R, 5]")
    n, c, h, w = x.dims
    return (n, c, h, w), regions.dims[0]


def _steps(d: PooledRegions, average: bool) -> list[Step]:
    numbers = Weights(np.arange(max(d.rows, d.columns) + 1, dtype=np.float32))
    kernel = average_regions(d) if average else max_regions(d)
    return [Step(kernel, (Input(0), Input(1), numbers, Output()))]


def _away(x: float) -> float:
    """C's round: halves away from zero."""
    return math.copysign(float(np.floor(abs(x) + 0.5)), x)


def _within(x: float, most: int) -> int:
    """The whole number between 0 and ``most`` that is nearest; 0 for NaN, as in compiled code."""
    return 0 if math.isnan(x) else int(min(max(x, 0), most))


def _bins(low: np.float32, size: np.float32, count: int, extent: int, whole: bool) -> list[tuple[int, int]]:
    """Where the bins of one axis begin and end; ``whole`` says that ``low`` is added after rounding."""
    bins = []
    for i in range(count):
        begin, end = size * np.float32(i), size * np.float32(i + 1)
        a, b = (np.floor(begin) + low, np.ceil(end) + low) if whole else (np.floor(begin + low), np.ceil(end + low))
        bins.append((_within(a, extent), _within(b, extent)))
    return bins


@dataclass(frozen=True)
class _RegionPool(Operator):
    """Inputs: an image, and regions of it.  One channel of the output for each group of the image's."""

    arity: ClassVar[tuple[int, int]] = (2, 2)

    @abstractmethod
    def plan(self, types: Sequence[TensorType]) -> PooledRegions:
        """Raises ShapeError when the inputs do not fit."""

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        return (TensorType(F32, self.plan(typed(inputs)).result),)

    def prepared(self, x: Array, regions: Array) -> tuple[PooledRegions, Array]:
        """The geometry, and zeros for the result."""
        d = self.plan([TensorType(F32, x.shape), TensorType(F32, regions.shape)])
        return d, np.zeros(d.result, np.float32)


@register
@dataclass(frozen=True)
class MaxRoiPool(_RegionPool):
    """Inputs: x [N, C, H, W] and regions [R, 5] of (image, x0, y0, x1, y1).  Output [R, C, *pooled_shape].

    Corners are scaled and rounded to whole pixels, halves away from zero; an empty bin gives 0.
    """

    pooled_shape: tuple[int, ...] = (1, 1)
    spatial_scale: float = 1.0
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def plan(self, types: Sequence[TensorType]) -> PooledRegions:
        """Raises ShapeError when the inputs do not fit."""
        dims, count = _checked("MaxRoiPool", types)
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise ShapeError(f"MaxRoiPool: cannot pool to {list(self.pooled_shape)}")
        rows, columns = self.pooled_shape
        return PooledRegions(count, *dims, rows, columns, self.spatial_scale)

    def reference(self, x: Array, regions: Array) -> Array:
        d, y = self.prepared(x, regions)
        for r, region in enumerate(regions):
            corner = [np.float32(_away(float(v * np.float32(d.scale)))) for v in region[1:]]
            size = [max(np.float32(1), corner[2 + i] - corner[i] + 1) for i in range(2)]
            columns = _bins(corner[0], np.float32(size[0] / np.float32(d.columns)), d.columns, d.width, True)
            rows = _bins(corner[1], np.float32(size[1] / np.float32(d.rows)), d.rows, d.height, True)
            image = x[_within(region[0], d.items - 1)]
            for v, (top, bottom) in enumerate(rows):
                for u, (left, right) in enumerate(columns):
                    if top < bottom and left < right:
                        y[r, :, v, u] = image[:, top:bottom, left:right].max((1, 2))
        return y

    def lower(self, site: Site) -> list[Step]:
        return _steps(self.plan([site.input(0), site.input(1)]), False)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        regions = np.array(
            [[0, 0, 0, 31, 23], [1, 5.5, 3, 12, 40], [1, 30, 20, 10, 2], [0, -9, -9, -4, -2]], np.float32
        )
        yield Case(cls((3, 2), 0.25), ((2, 5, 6, 8), regions), label="quarter")
        yield Case(cls((2, 2), 0.5), ((2, 3, 9, 7), regions), (1,), label="half")


@register
@dataclass(frozen=True)
class PsRoiPool(_RegionPool):
    """Position-sensitive pooling of R-FCN.  Inputs: x [N, output_dim * group², H, W], regions [R, 5] as MaxRoiPool's.

    Output [R, output_dim, group, group]: the mean over bin (v, u) of channel (c * group + v) * group + u; 0 where the
    bin is empty.  Source: Dai et al., R-FCN, and the layer that came with it.
    """

    output_dim: int = 1
    group_size: int = 1
    spatial_scale: float = 1.0

    def plan(self, types: Sequence[TensorType]) -> PooledRegions:
        """Raises ShapeError when the inputs do not fit."""
        dims, count = _checked("PsRoiPool", types)
        group = self.group_size
        if group < 1 or dims[1] != self.output_dim * group * group:
            raise ShapeError(f"PsRoiPool: {dims[1]} channels for {self.output_dim} outputs in {group} x {group} groups")
        return PooledRegions(count, *dims, group, group, self.spatial_scale, group)

    def reference(self, x: Array, regions: Array) -> Array:
        d, y = self.prepared(x, regions)
        scale, least = np.float32(d.scale), np.float32(0.1)
        for r, region in enumerate(regions):
            first = [np.float32(_away(float(v))) * scale for v in region[1:3]]
            last = [(np.float32(_away(float(v))) + 1) * scale for v in region[3:5]]
            size = [max(least, b - a) / np.float32(d.group) for a, b in zip(first, last, strict=True)]
            columns = _bins(first[0], size[0], d.group, d.width, False)
            rows = _bins(first[1], size[1], d.group, d.height, False)
            image = x[_within(region[0], d.items - 1)].reshape(d.outputs, d.group, d.group, d.height, d.width)
            for v, (top, bottom) in enumerate(rows):
                for u, (left, right) in enumerate(columns):
                    if top < bottom and left < right:
                        y[r, :, v, u] = image[:, v, u, top:bottom, left:right].mean((1, 2))
        return y

    def lower(self, site: Site) -> list[Step]:
        return _steps(self.plan([site.input(0), site.input(1)]), True)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        regions = np.array([[0, 0, 0, 31, 23], [1, 5.5, 3, 12, 40], [1, 30, 20, 10, 2]], np.float32)
        yield Case(cls(3, 2, 0.25), ((2, 12, 6, 8), regions), label="quarter")
        yield Case(cls(2, 3, 0.5), ((2, 18, 9, 7), regions), (1,), label="half")


@register
@dataclass(frozen=True)
class PsRoiAlign(_RegionPool):
    """As PsRoiPool, but nothing is rounded: bin (v, u) is the mean of ``sample_num`` x ``sample_num`` bilinear samples.

    Points lie between four pixels and are interpolated.  Bins are cut at the middles of the outermost pixels, where
    points at or past their end count as zero.  Source: the layer PSROIAlign of R-FCN's Caffe.
    """

    output_dim: int = 1
    group_size: int = 1
    spatial_scale: float = 1.0
    sample_num: int = 2

    def plan(self, types: Sequence[TensorType]) -> PooledRegions:
        """Raises ShapeError when the inputs do not fit."""
        if self.sample_num < 1:
            raise ShapeError(f"PsRoiAlign: {self.sample_num} points along each side of a bin")
        return PsRoiPool(self.output_dim, self.group_size, self.spatial_scale).plan(types)

    def reference(self, x: Array, regions: Array) -> Array:
        d, y = self.prepared(x, regions)
        for r, region in enumerate(regions):
            across, down = (self._points(region[i : i + 3 : 2], extent) for i, extent in ((1, d.width), (2, d.height)))
            image = x[_within(region[0], d.items - 1)].reshape(d.outputs, d.group, d.group, d.height, d.width)
            y[r] = np.einsum("cvuhw,vh,uw->cvu", image, down, across) / self.sample_num**2
        return y

    def _points(self, ends: Array, extent: int) -> Array:
        """[group, extent]: the weight of each pixel of an axis in each bin, over all samples of the bin."""
        begin, scale = ends[0] * np.float32(self.spatial_scale), np.float32(self.spatial_scale)
        size = max((ends[1] + 1) * scale - begin, np.float32(0.1)) / np.float32(self.group_size)
        step = size / np.float32(self.sample_num + 1)
        points = np.zeros((self.group_size, extent), np.float32)
        for i in range(self.group_size):
            low, high = (np.clip(size * np.float32(k) + begin, 0, np.float32(extent - 1)) for k in (i, i + 1))
            for point in (low + step * np.float32(k + 1) for k in range(self.sample_num)):
                if point < high:
                    points[i] += np.maximum(1 - np.abs(np.arange(extent, dtype=np.float32) - point), 0)
        return points

    def lower(self, site: Site) -> list[Step]:
        d = self.plan([site.input(0), site.input(1)])
        numbers = Weights(np.arange(max(d.group, self.sample_num) + 1, dtype=np.float32))
        return [Step(aligned_regions(d, self.sample_num), (Input(0), Input(1), numbers, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        regions = np.array([[0, 0, 0, 31, 23], [1, 5.5, 3, 12, 40], [1, 30, 20, 10, 2]], np.float32)
        yield Case(cls(3, 2, 0.25), ((2, 12, 6, 8), regions), label="quarter")
        yield Case(cls(2, 3, 0.5, 4), ((2, 18, 9, 7), regions), (1,), label="half")
