"""MaxPool with indices, RoiAlign, determinants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import region as kernels
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.types import I64, DType, TensorType
from tenon.network.ops.base import Case, Input, Operator, Output, Scratch, Site, Step, Weights, register, typed
from tenon.network.ops.generic import GenericOperator, taps
from tenon.network.ops.pool import MaxPool, window_views
from tenon.network.ops.sized_slices import agreed


@register
@dataclass(frozen=True)
class MaxPoolWithIndices(GenericOperator, MaxPool):
    """The largest element of every window and, second, its flat index in the input (column-major in a plane, when
    ``storage_order``)."""

    selects: ClassVar[bool] = False  # the second result has positions

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (y,) = super().infer(inputs)
        return y, TensorType(I64, y.dims)

    def numbers(self, sizes: tuple[int, ...]) -> Array:
        """The flat index of each element of a plane."""
        count = np.arange(math.prod(sizes))
        return np.array(count.reshape(sizes[::-1]).T if self.storage_order else count.reshape(sizes))

    def reference(self, x: Array) -> tuple[Array, Array]:  # type: ignore[override]
        axes = self.axes(x.shape)
        planes = math.prod(x.shape[:2])
        number = np.arange(planes).reshape(*x.shape[:2], *(1,) * len(axes)) * math.prod(x.shape[2:])
        number = number + self.numbers(x.shape[2:])
        best = np.full((*x.shape[:2], *(a.out for a in axes)), -np.inf)
        place = np.full(best.shape, -1, np.int64)
        for part, at in zip(
            window_views(x.astype(np.float64), axes, np.nan), window_views(number, axes, -1), strict=True
        ):
            better = (part > best) | ((place < 0) & (at >= 0))
            best, place = np.where(better, part, best), np.where(better, at, place)
        return best.astype(x.dtype), place

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        axes = self.axes(x.dims)
        if not y.size:
            return []
        planes, rank = math.prod(x.dims[:2]), len(axes)
        kernel = kernels.max_with_position(
            planes, x.dims[2:], y.dims[2:], tuple(a.kernel for a in axes), taps(axes, 0, rank), x.dtype
        )
        return [Step(kernel, (Input(0), Weights(self.numbers(x.dims[2:])), Output(0), Output(1)))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(kernel_shape=(3, 2), pads=(1, 0, 1, 1), strides=(2, 1)), ((2, 3, 5, 4),), label="pads")
        yield Case(cls(kernel_shape=(2, 2), storage_order=1), ((1, 2, 3, 4),), label="columns_first")
        x = np.arange(24, dtype=np.uint8).reshape(1, 2, 12)
        yield Case(cls(kernel_shape=(3,), strides=(2,)), (x,), label="u8")


REGIONS = {
    "huge": [[-3.3, -1.2, 40.1, 19.7], [0.3, -30.4, 2.6, 41.1]],
    "vast": [[-9e5, -12.3, 9e5, 2.4], [-8.1e5, -9.2e5, 7e5, 6e5]],
    "endless": [[0.2, 0.1, 3e9, 2e9], [-4e9, -1.2, 1e9, 3.1]],
    "degenerate": [[1, 1, 1, 1], [2.2, 1.4, 0.7, 0.3], [0.3, 0.8, 2.4, 0.8], [9.3, -50.2, -60.1, 70.4]],
    "far": [[-20.3, -9.2, -3.1, 4.3], [7.4, 0.2, 30.2, 1.1], [-1.7, -1.6, 1.4, 0.9]],
}
"""Larger than twice the image, without area or turned around, and beside the image or across its edge."""


@dataclass(frozen=True)
class BinSamples:
    """Along one axis of an image of ``extent`` elements: ``count`` samples of a bin that begins at ``start``.

    Positions are Python's floats: a large region's f32 would not tell one sample from the next.
    """

    start: float
    size: float
    count: int
    extent: int

    def positions(self) -> Array:
        """The positions of the samples inside of the image, from one element before it to one after."""
        step = self.size / max(1, self.count)
        first, last = 0, self.count
        if step > 0:
            first = max(first, math.floor((-1 - self.start) / step) - 1)
            last = min(last, math.ceil((self.extent - self.start) / step) + 1)
        at = self.start + (np.arange(first, max(first, last)) + 0.5) * step
        return np.asarray(at[(at >= -1) & (at <= self.extent)])

    def neighbours(self) -> Iterable[tuple[Array, Array]]:
        """The elements before the samples and after, and the share of each."""
        at = np.clip(self.positions(), 0, self.extent - 1)
        low = at.astype(np.int64)
        yield low, 1 - (at - low)
        yield np.minimum(low + 1, self.extent - 1), at - low


@register
@dataclass(frozen=True)
class RoiAlign(Operator):
    """Inputs: x [N, C, H, W], regions [R, 4] as x1, y1, x2, y2, their batches [R].  Each region in bins of samples.

    Without a ``sampling_ratio`` a bin has as many samples as elements, rounded up; a region that ends before it begins
    has none.  Samples outside of the image are zero, and so is what has no samples, or a region that is not finite.
    """

    coordinate_transformation_mode: str = "half_pixel"
    mode: str = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0
    arity: ClassVar[tuple[int, int]] = (3, 3)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if not node.fixed(0):
            raise SizeRefusedError("RoiAlign of an image whose extents are known only at run time")
        count = agreed(node, 0, [1, 2])
        for i in (1, 2):
            node.with_masked(i, [0], 0)
        rows = self.infer(node.inputs)[0].dims[1:]
        return node.same([count, *rows])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, rois, batches = typed(inputs)
        if x.rank != 4 or rois.dims != (batches.dims[0], 4):
            raise ShapeError(f"RoiAlign: {list(x.dims)} and regions {list(rois.dims)} do not fit")
        y = TensorType(x.dtype, (rois.dims[0], x.dims[1], self.output_height, self.output_width))
        if y.size and not x.size:
            raise ShapeError(f"RoiAlign: an image of {list(x.dims)} has no elements to sample")
        return (y,)

    def reference(self, x: Array, rois: Array, batches: Array) -> Array:
        outs, half = (self.output_height, self.output_width), self.coordinate_transformation_mode == "half_pixel"
        y = np.zeros((len(rois), x.shape[1], *outs), x.dtype)
        images = np.clip(batches, 0, max(len(x) - 1, 0))  # clamped as in compiled code
        for r, roi in enumerate(rois * rois.dtype.type(self.spatial_scale) - rois.dtype.type(0.5 if half else 0)):
            with np.errstate(all="ignore"):
                size = np.array([roi[3] - roi[1], roi[2] - roi[0]])
                bins = (size if half else np.maximum(size, 1)) / np.array(outs, size.dtype)
            if not np.isfinite(bins).all():
                continue
            counts = [self.sampling_ratio or max(0, math.ceil(b)) for b in bins]
            for place in np.ndindex(*outs):
                across = [
                    BinSamples(float(roi[1 - d]) + place[d] * float(bins[d]), float(bins[d]), counts[d], x.shape[2 + d])
                    for d in (0, 1)
                ]
                y[(r, slice(None), *place)] = self.pooled(x[images[r]], *across)
        return y

    def pooled(self, x: Array, rows: BinSamples, columns: BinSamples) -> Array:
        """One bin of all channels."""
        count = rows.count * columns.count
        parts = np.stack(
            [
                x[:, i[:, None], j[None, :]] * u[:, None] * v[None, :]
                for i, u in rows.neighbours()
                for j, v in columns.neighbours()
            ]
        )
        if self.mode == "avg":
            return np.asarray(parts.sum((0, 2, 3)) / max(1, count))
        samples = parts.max(0).reshape(len(x), -1)
        outside = [np.zeros((len(x), 1))] if samples.shape[1] < max(1, count) else []
        return np.asarray(np.concatenate([samples, *outside], 1).max(1))

    def lower(self, site: Site) -> list[Step]:
        x, batches, y = site.input(0), site.input(2), site.output
        if not y.size:
            return []
        kernel = kernels.roi_align(
            x.dims,
            y.dims[0],
            y.dims[2:],
            self.sampling_ratio,
            self.spatial_scale,
            self.coordinate_transformation_mode == "half_pixel",
            self.mode == "max",
            batches.dtype,
        )
        return [Step(kernel, (Input(0), Input(1), Input(2), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rois, batches = np.array([[0.5, 1, 4.5, 3.2], [1, 0, 6, 6]], np.float32), np.array([1, 0])
        for mode in ("avg", "max"):
            op = cls("half_pixel", mode, 2, 3, 2, 0.8)
            yield Case(op, ((2, 3, 6, 7), rois, batches), label=mode)
        yield Case(cls("output_half_pixel", "avg", 2, 2, 0), ((2, 3, 6, 7), rois, batches), label="adaptive")
        for label, regions in REGIONS.items():
            ends = np.array(regions, np.float32)
            for op in (cls(output_width=3), cls("output_half_pixel", "max", output_width=3)):
                inputs = (1, 2, 2, 3), ends, np.zeros(len(ends), np.int64)
                yield Case(op, inputs, low=0.5, label=f"{label}_{op.mode}")


@register
@dataclass(frozen=True)
class Det(Operator):
    """The determinants of square matrices."""

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.rank < 2 or x.dims[-1] != x.dims[-2]:
            raise ShapeError(f"Det: {list(x.dims)} are not square matrices")
        return (TensorType(x.dtype, x.dims[:-2]),)

    def reference(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)

    def supported(self, site: Site) -> str:
        dtype = site.input(0).dtype
        return "" if dtype in (DType.F32, DType.F64) else f"element type {dtype}: convert the model to float32"

    def lower(self, site: Site) -> list[Step]:
        x, n = site.input(0), site.input(0).dims[-1]
        if not x.size:
            return []
        scratch = Scratch("matrix", n * n * x.dtype.bytes)
        return [Step(kernels.determinant(math.prod(x.dims[:-2]), n, x.dtype), (Input(0), Output(), scratch))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 4, 4),), label="matrices")
        yield Case(cls(), (np.array([[0.0, 2], [3, 4]]),), label="pivot")
        yield Case(cls(), (np.zeros((3, 3), np.float32),), label="singular")
