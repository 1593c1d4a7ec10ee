"""Convolution of quantised integers with sums of 64 bits, for activations of 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_wide import SUMS, WideConv, wide_conv
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, I64, DType, Layout, TensorType
from tenon.network.ops.base import Arg, Case, Input, Layouts, Output, Site, Step, Weights, register, typed
from tenon.network.ops.conv import check_operands
from tenon.network.ops.integer_product import IntegerProduct
from tenon.network.ops.pool import window_views
from tenon.network.ops.requantize import Factors, quantized_multipliers, row_type
from tenon.network.ops.window import Axis, Ints, Window, planar


@register
@dataclass(frozen=True)
class IntegerWideConv(IntegerProduct):
    """``IntegerConv`` of i8 or i16 with weights of i8 or i16 without a zero point, bias in i64, and sums in i64.

    With the rounding "double" sums are saturated to 32 bits before they are rounded; "reduced" and "single" are the
    others.
    """

    dilations: Ints = ()
    group: int = 1
    pads: Ints = ()
    strides: Ints = ()

    def axes(self, x: Ints, w: Ints) -> tuple[Axis, ...]:
        return Window(w[2:], self.strides, self.dilations, self.pads).axes(self.name, x[2:])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = check_operands(self.name, inputs[:2], 1, self.group)
        x_type, w_type = (t.dtype for t in typed(inputs)[:2])
        if {x_type, w_type} - {DType.I8, DType.I16} or self.w_zero or self.rounding == "float":
            raise ShapeError(f"{self.name}: no products of {x_type} and {w_type} with {self.rounding} rounding")
        if self.slope != 1:
            raise ShapeError(f"{self.name}: sums of 64 bits have no slope")
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None and (bias.type.dtype, bias.type.dims) != (I64, (w[0],)):
            raise ShapeError(f"{self.name}: bias {bias.type} is not i64[{w[0]}]")
        given = [v.type for v in inputs[3:] if v is not None]
        if len(given) != 2 or any(t.dtype is not I32 or t.dims not in ((w[0],), (1,)) for t in given):
            raise ShapeError(f"{self.name}: factors {', '.join(map(str, given))} do not fit {w[0]} channels")
        return (self.result((x[0], w[0], *(a.out for a in self.axes(x, w)))),)

    def reference(self, x: Array, w: Array, b: Array | None, factors: Array, shifts: Array) -> Array:
        axes = self.axes(x.shape, w.shape)
        n, g, deep, per = x.shape[0], self.group, x.shape[1] // self.group, w.shape[0] // self.group
        wide, taps = x.astype(np.int64) - self.x_zero, w.astype(np.int64)
        total = np.zeros((n, g, per, int(np.prod([a.out for a in axes]))), np.int64)
        for tap, part in zip(np.ndindex(*w.shape[2:]), window_views(wide, axes, 0), strict=True):
            weights = taps[(slice(None), slice(None), *tap)].reshape(1, g, per, deep)
            total += weights @ part.reshape(n, g, deep, -1)
        sums = np.moveaxis(total.reshape(n, w.shape[0], *(a.out for a in axes)), 1, -1)
        sums = sums if b is None else sums + b
        sums = np.clip(sums, -SUMS, SUMS) if self.rounding == "double" else sums
        return np.moveaxis(self.stored(sums, factors, shifts), -1, 1)

    def supported(self, site: Site) -> str:
        if site.input(0).rank > 4:
            return f"{site.input(0).rank - 2} spatial axes: only 1-D and 2-D are compiled"
        return self.compiled(site)

    def problem(self, site: Site) -> dense.Conv | None:
        return None

    def layouts(self, site: Site) -> Layouts:
        x = site.input(0)
        halo = tuple((a.before, a.reach) for a in self.axes(x.dims, site.input(1).dims))
        output = Layout(1, ((0, 0),) * (x.rank - 2))
        return Layouts((Layout(1, halo, self.x_zero), *(None,) * (len(site.inputs) - 1)), (output,))

    def lower(self, site: Site) -> list[Step]:
        weights, factors, shifts = site.constants[1], site.constants[3], site.constants[4]
        assert weights is not None
        assert factors is not None
        known = Factors(self.rounding, factors, shifts)
        axes = self.axes(site.input(0).dims, weights.shape)
        names = ("kernel", "stride", "dilation")
        kernel, stride, dilation = (planar(tuple(getattr(a, name) for a in axes), 1) for name in names)
        taps = weights.reshape(*weights.shape[:2], *kernel).astype(np.int64)
        bias = -self.x_zero * taps.reshape(len(taps), -1).sum(1)
        bias = bias if site.constants[2] is None else bias + site.constants[2]
        largest = np.abs(taps).sum(1).max(initial=0) << (8 * site.input(0).dtype.bytes - 1)
        rows = known.rows()
        s = WideConv(
            Image.of(site.input(0)),
            Image.of(site.output),
            kernel,
            stride,
            dilation,
            planar(tuple(a.before for a in axes), 0),
            weights.shape[1],
            self.group,
            DType.of(weights.dtype),
            bool(largest <= SUMS),
            known.kernel(self.zero, self.low, self.high, DType(self.to), SUMS),
            tuple(row_type(self.rounding, name) for name in rows),
            tuple(len(row) == 1 for row in rows.values()),
        )
        packed = np.ascontiguousarray(np.moveaxis(weights.reshape(*weights.shape[:2], *kernel), 1, -1))
        args: list[Arg] = [Input(0), Weights(packed), Weights(bias.astype(np.int64)), *map(Weights, rows.values())]
        return [Step(wide_conv(s, site.machine), (*args, Output()))]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[1] is not None
        return outputs[0].size * inputs[1].size // inputs[1].dims[0]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(16)
        plain = cls("reduced", low=-(1 << 15), high=(1 << 15) - 1, to="i16")
        for label, dims, shape, reach, op, factor in (
            ("deep", (1, 600, 2, 3), (3, 600, 1, 1), 127, plain, 3e-6),
            (
                "padded",
                (1, 6, 5, 4),
                (4, 3, 3, 3),
                127,
                replace(plain, pads=(1, 1, 1, 1), strides=(2, 1), group=2),
                0.003,
            ),
            ("once", (1, 700, 3), (3, 700, 1), 127, replace(plain, rounding="single"), 3e-6),
            ("filters", (2, 8, 9), (4, 2, 9), 32767, cls("double", group=4, zero=3), 2e-9),
        ):
            x = rng.integers(-(1 << 15), 1 << 15, dims).astype(np.int16)
            w = rng.integers(-reach, reach + 1, shape).astype(np.int8 if reach == 127 else np.int16)
            b = rng.integers(-(1 << 33), 1 << 33, shape[0])
            factors = quantized_multipliers([factor * (1 + i) for i in range(shape[0])])
            yield Case(op, (x, w, b, *factors), (1, 2, 3, 4), 0, label=label)
