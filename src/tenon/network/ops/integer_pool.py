"""Averages of quantised integers.

Sources: the TensorFlow Lite quantization specification (AVERAGE_POOL_2D, MEAN); ONNX Runtime's QLinearAveragePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_pool import IntegerPool, integer_pool
from tenon.machine.kernels.pool import Segment
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, Layout, Quant, TensorType
from tenon.network.ops.base import (
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
    padding_mask,
    register,
    typed,
)
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.integer_product import ACTIVATIONS
from tenon.network.ops.patch import Patch, Span, window_patch
from tenon.network.ops.pool import clipped, window_views
from tenon.network.ops.reach import Operands, Reaches, window_reach
from tenon.network.ops.requantize import Factors, clamped
from tenon.network.ops.window import Axis, Ints, Window, planar


@register
@dataclass(frozen=True)
class IntegerAveragePool(Operator):
    """The average of every window over its elements inside the image, or over all with ``count_include_pad``.

    ``rounding`` "away": the integers as they are, halves away from zero, for a result of the same quantisation.
    "float": the sum of x - ``x_zero``, in f32, times the quotient in f32 of ``factor`` and the count, halves to even.
    "double": the sum times ``fixed``, a fixed-point factor that has the count in it, for windows of one size.
    """

    rounding: Literal["away", "float", "double"] = "away"
    kernel_shape: Ints = ()
    pads: Ints = ()
    strides: Ints = ()
    dilations: Ints = ()
    ceil_mode: int = 0
    count_include_pad: int = 0
    x_zero: int = 0
    zero: int = 0
    low: int = -128
    high: int = 127
    to: str = "i8"
    scale: float = 1.0
    factor: float = 1.0
    fixed: Fixed = (0, 0)
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    fusable: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    @property
    def takes_epilogue(self) -> bool:
        """Only that of ``passes.real_results``."""
        return False

    def zero_points(self) -> tuple[int | None]:
        return (None if self.rounding == "away" else self.x_zero,)

    def axes(self, x: Ints) -> tuple[Axis, ...]:
        window = Window(self.kernel_shape, self.strides, self.dilations, self.pads, ceil_mode=bool(self.ceil_mode))
        return window.axes(self.name, x[2:])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.dtype not in ACTIVATIONS or x.rank < 3:
            raise ShapeError(f"{self.name}: {x} is not an image of quantised integers")
        dims = (*x.dims[:2], *(a.out for a in self.axes(x.dims)))
        return (TensorType(DType(self.to), dims, quant=Quant((self.scale,), (self.zero,))),)

    def weight(self, a: Axis, i: int) -> int:
        """Elements along an axis that window ``i`` counts: the padding at the end, but not what is beyond it."""
        if not self.count_include_pad:
            return len(a.inside(i))
        start = i * a.stride
        taps = (start + t * a.dilation for t in range(a.kernel))
        return sum(t < a.size + a.before + a.after for t in taps)

    def factors(self) -> Factors | None:
        return None if self.rounding == "away" else Factors.single(self.rounding, self.factor, self.fixed)

    def reference(self, x: Array) -> Array:
        axes, wide = self.axes(x.shape), x.astype(np.int64)
        known = self.factors()
        total = np.sum(list(window_views(wide if known is None else wide - self.x_zero, axes, 0)), axis=0)
        counts = [np.array([self.weight(a, i) for i in range(a.out)]) for a in axes]
        count: Array = reduce(np.multiply.outer, counts)
        if known is None:
            mean = np.sign(total) * ((np.abs(total) + count // 2) // count)
            return clamped(mean, self.low, self.high, DType(self.to))
        if self.rounding == "float":
            known = Factors("float", np.float32(self.factor) / count.astype(np.float32))
        return clamped(known.apply(total) + self.zero, self.low, self.high, DType(self.to))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x = inputs[0]
        assert x is not None
        return window_reach(self.axes(x.type.dims), inputs, axis)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        (x,) = inputs
        if x is None or self.ceil_mode:  # windows that reach past the padding count less
            return None
        return window_patch(self, self.axes(x.dims), inputs, span)

    def supported(self, site: Site) -> str:
        axes = self.axes(site.input(0).dims)
        if len(axes) > 2:
            return f"{len(axes)} spatial axes: only 1-D and 2-D are compiled"
        if any(not a.inside(i) for a in axes for i in range(a.out)):
            return "some windows lie wholly in the padding: use smaller pads"
        return ""

    def layouts(self, site: Site) -> Layouts:
        layout = Layout(site.machine.block, ((0, 0),) * (site.output.rank - 2))
        return Layouts((layout, *[None] * (len(site.inputs) - 1)), (layout,))

    def lower(self, site: Site) -> list[Step]:
        axes = self.axes(site.input(0).dims)
        one, known = Segment(0, 1, 0, 1, 0), self.factors()
        segments = [clipped(a, lambda i, a=a: self.weight(a, i)) for a in axes]  # type: ignore[misc]
        rows, cols = (((one,),) * 2 + tuple(segments))[-2:]
        kernel = None if known is None else known.kernel(self.zero, self.low, self.high, DType(self.to))
        given = () if known is None else tuple(row[0].item() for row in known.rows().values())
        clear = site.output.dims[1] % site.machine.block != 0
        s = IntegerPool(
            Image.of(site.input(0)),
            Image.of(site.output),
            rows,
            cols,
            planar(tuple(a.dilation for a in axes), 1),
            self.low,
            self.high,
            DType(self.to),
            self.x_zero,
            kernel,
            given,
            clear,
            site.epilogue,
        )
        mask: list[Arg] = [Weights(padding_mask(site.output))] if clear else []
        return [Step(integer_pool(s, site.machine), (Input(0), *mask, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(9)
        for label, dims, op in (
            ("padded", (1, 7, 5, 6), cls(kernel_shape=(3, 3), pads=(1, 1, 1, 1))),
            ("global", (2, 16, 5, 3), cls(kernel_shape=(5, 3), low=-3, high=90)),
            ("1d", (1, 5, 9), cls(kernel_shape=(4,), strides=(2,), pads=(1, 1))),
            ("float", (1, 7, 5, 6), cls("float", (2, 3), (1, 0, 0, 1), x_zero=-7, zero=4, factor=1.7)),
            ("float_all", (1, 8, 5, 6), cls("float", (3, 3), (1, 1, 1, 1), (2, 2), count_include_pad=1, factor=0.3)),
            ("mean", (1, 9, 7, 4), cls("double", (7, 4), x_zero=9, zero=-1, fixed=(1503238554, -4))),
        ):
            yield Case(op, (rng.integers(-128, 128, dims).astype(np.int8),), (), 0, label=label)
