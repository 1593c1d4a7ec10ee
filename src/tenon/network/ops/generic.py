"""Products, convolutions and pooling as generic loop nests, for what the fast kernels do not support.

Each is the operator that it derives from, lowered to one loop nest (``kernels.contraction``); a pass substitutes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.machine.kernel_ir.loops import Expr
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.contraction import Contraction, Factor, contraction
from tenon.machine.kernels.move import AffineIndex, Piece, along, move
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, ROW_MAJOR, DType, TensorType
from tenon.network.ops.base import (
    Algorithm,
    Arg,
    Case,
    Input,
    Layouts,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    Weights,
    register,
)
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.matmul import MatMul, _matrices
from tenon.network.ops.pool import AveragePool, MaxPool, Pooling
from tenon.network.ops.window import Axis, Ints


def row_major(site: Site) -> Layouts:
    return Layouts((ROW_MAJOR,) * len(site.inputs), (ROW_MAJOR,) * len(site.outputs))


def summed_in(dtype: DType) -> DType:
    """The accumulator type for elements of ``dtype``."""
    return storage_types.computed(dtype)


@dataclass(frozen=True)
class WithBias:
    """Adds the second value, where there is one."""

    def __call__(self, total: Expr, *bias: Expr) -> Expr:
        return total + bias[0] if bias else total


@register
@dataclass(frozen=True)
class DirectMatMul(MatMul):
    """MatMul of any element type."""

    fusable: ClassVar[bool] = False
    bilinear: ClassVar[bool] = False  # what passes do to products they did before it was chosen
    narrow_images: ClassVar[bool] = False

    def supported(self, site: Site) -> str:
        return ""

    def lower(self, site: Site) -> list[Step]:
        a, b, y = site.input(0), site.input(1), site.output
        left, right = _matrices(a.dims, b.dims)
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        count, last = len(batch), len(batch) + 2
        outer = (*batch, left[-2], right[-1])
        if not y.size:
            return []

        def matrix(dims: Ints, rows: int, cols: int, dtype: DType) -> Factor:
            first = count - (len(dims) - 2)
            axes = [along(first + i) if n > 1 else AffineIndex() for i, n in enumerate(dims[:-2])]
            return Factor(dims, (*axes, along(rows), along(cols)), dtype)

        factors = (matrix(left, count, last, a.dtype), matrix(right, last, count + 1, b.dtype))
        spec = Contraction("matmul", outer, (left[-1],), factors, y.dtype, summed_in(y.dtype))
        return [Step(contraction(spec, site.machine), (Input(0), Input(1), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(0)
        for dtype in (np.float64, np.int32, np.uint64):
            a, b = (rng.integers(0, 99, s).astype(dtype) for s in ((2, 1, 3, 5), (4, 5, 18)))
            yield Case(cls(), (a, b), label=np.dtype(dtype).name)
        yield Case(cls(), (np.arange(5), np.arange(10).reshape(5, 2)), label="row")
        yield Case(cls(), ((3, 0), (0, 4)), label="no_terms")


def taps(axes: tuple[Axis, ...], first: int, inner: int) -> tuple[AffineIndex, ...]:
    """The input indices of an output position (loops from ``first`` on) and tap (loops from ``inner`` on)."""
    return tuple(AffineIndex(-a.before, ((first + i, a.stride), (inner + i, a.dilation))) for i, a in enumerate(axes))


class GenericOperator:
    """The base of operators that stand in for faster ones where those cannot: they take row-major operands of
    any type, and there is one algorithm for them."""

    fusable: ClassVar[bool] = False
    bilinear: ClassVar[bool] = False  # what passes do to products they did before these were chosen
    narrow_images: ClassVar[bool] = False

    def layouts(self, site: Site) -> Layouts:
        return row_major(site)

    def supported(self, site: Site) -> str:
        return ""

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return ()


@register
@dataclass(frozen=True)
class DirectConv(GenericOperator, Conv):
    """Conv of any element type and rank, with any weights."""

    def lower(self, site: Site) -> list[Step]:
        x, w = site.input(0), site.input(1)
        return direct(site, x.dims, w.dims, self.axes(x.dims, w.dims), self.group, Input(0), Input(1))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(pads=(1, 1, 1, 1), strides=(2, 1)), ((1, 3, 5, 6), (4, 3, 3, 3), (4,)), label="run_time")
        yield Case(cls(group=2), ((2, 4, 3, 3, 4), (6, 2, 2, 1, 2)), label="three_axes")
        yield Case(cls(), (np.ones((1, 2, 5), np.float64), np.ones((3, 2, 2))), label="f64")


def direct(
    site: Site, x: Ints, w: Ints, axes: tuple[Axis, ...], group: int, left: Arg, right: Arg, flip: bool = False
) -> list[Step]:
    """A convolution of [N, C, ...] with [M, C / group, ...] (or [C, M / group, ...] turned around, when ``flip``)."""
    y, rank = site.output, len(axes)
    if not y.size:
        return []
    per_in = x[1] // group
    per_out = y.dims[1] // group
    outer = (x[0], group, per_out, *y.dims[2:])
    # loops: n, g, m, positions..., c, taps...
    channel = 3 + rank
    spatial = taps(axes, 3, channel + 1)
    image = Factor(x, (along(0), AffineIndex(0, ((1, per_in), (channel, 1))), *spatial), site.input(0).dtype)
    tap = [along(channel + 1 + i) for i in range(rank)]
    if flip:
        tap = [AffineIndex(a.kernel - 1, ((channel + 1 + i, -1),)) for i, a in enumerate(axes)]
        kernel = (AffineIndex(0, ((1, per_in), (channel, 1))), along(2), *tap)
    else:
        kernel = (AffineIndex(0, ((1, per_out), (2, 1))), along(channel), *tap)
    factors = (image, Factor(w, kernel, site.input(1).dtype))
    args = [left, right]
    scales: tuple[Factor, ...] = ()
    if len(site.inputs) > 2 and site.has(2):
        scales = (Factor((y.dims[1],), (AffineIndex(0, ((1, per_out), (2, 1))),), site.input(2).dtype),)
        args.append(Input(2))
    spec = Contraction(
        "conv",
        outer,
        (per_in, *(a.kernel for a in axes)),
        factors,
        y.dtype,
        summed_in(y.dtype),
        finish=WithBias(),
        scales=scales,
    )
    return [Step(contraction(spec, site.machine), (*args, Output()))]


@register
@dataclass(frozen=True)
class DirectConvTranspose(GenericOperator, ConvTranspose):
    """ConvTranspose of any element type and rank, with any weights: zeros between the elements, then a convolution."""

    def lower(self, site: Site) -> list[Step]:
        x, w = site.input(0), site.input(1)
        axes = self.axes(x.dims, w.dims)
        spread = (*x.dims[:2], *((a.size - 1) * a.stride + 1 for a in axes))
        wide = TensorType(x.dtype, spread)
        clear = Piece(spread, tuple(along(i) for i in range(x.rank)))
        strides = (1, 1, *(a.stride for a in axes))
        copy = Piece(
            x.dims, tuple(along(i, 0, s) for i, s in enumerate(strides)), tuple(along(i) for i in range(x.rank))
        )
        scratch = Scratch("spread", max(1, wide.nbytes))
        steps = [
            Step(move("clear", None, wide, (clear,), site.machine), (scratch,)),
            Step(move("spread", x, wide, (copy,), site.machine), (Input(0), scratch)),
        ]
        turned = tuple(
            Axis(n, a.kernel, 1, a.dilation, (a.kernel - 1) * a.dilation - a.before, 0, a.out)
            for n, a in zip(spread[2:], axes, strict=True)
        )
        return steps + direct(site, spread, w.dims, turned, self.group, scratch, Input(1), flip=True)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(strides=(2, 3), pads=(1, 0, 0, 1)), ((1, 4, 3, 4), (4, 2, 3, 3), (2,)), label="run_time")
        yield Case(cls(group=2, strides=(2, 2)), ((2, 4, 3, 3), (4, 3, 2, 3), (6,)), label="groups")
        yield Case(cls(dilations=(2, 2, 1)), ((1, 2, 2, 3, 2), (2, 3, 2, 2, 2)), label="three_axes")


@dataclass(frozen=True)
class ScaledTotal:
    """Multiplies by the second value."""

    def __call__(self, total: Expr, *scale: Expr) -> Expr:
        return total * scale[0] if scale else total


@dataclass(frozen=True)
class DirectPooling(GenericOperator, Pooling):
    """Pooling of any element type and rank."""

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        axes = self.axes(x.dims)
        if not y.size:
            return []
        outer = (math.prod(x.dims[:2]), *y.dims[2:])
        rank = len(axes)
        window = (along(0), *taps(axes, 1, 1 + rank))
        factor = Factor((outer[0], *x.dims[2:]), window, x.dtype)
        scale = self.scale(axes)
        args: list[Arg] = [Input(0)]
        scales: tuple[Factor, ...] = ()
        if scale is not None:
            scales = (Factor(scale.shape, tuple(along(1 + i) for i in range(rank)), F32),)
            args.append(Weights(scale))
        spec = Contraction(
            self.name.lower(),
            outer,
            tuple(a.kernel for a in axes),
            (factor,),
            y.dtype,
            summed_in(y.dtype),
            combine="add" if self.averages else "max",
            finish=ScaledTotal(),
            scales=scales,
        )
        return [Step(contraction(spec, site.machine), (*args, Output()))]

    def scale(self, axes: tuple[Axis, ...]) -> Array | None:
        """The factor of each window's sum."""
        return None


@register
@dataclass(frozen=True)
class DirectMaxPool(DirectPooling, MaxPool):
    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(kernel_shape=(2, 2, 2), pads=(1, 0, 0, 0, 1, 0)), ((1, 3, 4, 4, 3),), label="three_axes")
        x = np.arange(40, dtype=np.uint8).reshape(1, 2, 4, 5)
        yield Case(cls(kernel_shape=(3, 2), strides=(2, 2), ceil_mode=1), (x,), label="u8")


@register
@dataclass(frozen=True)
class DirectAveragePool(DirectPooling, AveragePool):
    def scale(self, axes: tuple[Axis, ...]) -> Array:
        table = np.ones([a.out for a in axes])
        for d, a in enumerate(axes):
            counts = np.array([self.weight(a, i) for i in range(a.out)], np.float64)
            table /= counts.reshape(-1, *(1,) * (len(axes) - 1 - d))
        return table.astype(np.float32)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(
            cls(kernel_shape=(2, 3, 2), pads=(1, 1, 0, 0, 1, 1), strides=(1, 2, 1)), ((2, 2, 4, 5, 3),), label="three"
        )
        for i, included in enumerate((0, 1)):
            dilated = cls(kernel_shape=(2,), dilations=(2,), pads=(1, 1), strides=(3,), count_include_pad=included)
            yield Case(dilated, ((3, 1, 1),), label=f"padding_only_{i}")
        yield Case(cls(kernel_shape=(2, 2), pads=(2, 1, 2, 0), strides=(2, 1)), ((1, 2, 4, 3),), label="padding_rows")
        yield Case(cls(kernel_shape=(1,), pads=(1, 1), strides=(3,)), ((3, 1, 1),), label="nothing_but_padding")


GENERIC: dict[str, type[Operator]] = {
    "AveragePool": DirectAveragePool,
    "Conv": DirectConv,
    "ConvTranspose": DirectConvTranspose,
    "MatMul": DirectMatMul,
    "MaxPool": DirectMaxPool,
}
"""Generic operators by the name of the operator that they replace."""
