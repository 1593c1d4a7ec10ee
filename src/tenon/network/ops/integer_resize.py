"""Bilinear resampling of quantised integers.

Source: ResizeBilinearInteger of tensorflow/lite/kernels/internal/reference/resize_bilinear.h.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_resize import FRACTION, IntegerResize, integer_resize
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import Layout, Quant, TensorType
from tenon.network.ops.base import (
    Case,
    ErrorBound,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    register,
    typed,
)
from tenon.network.ops.integer_product import ACTIVATIONS

ONE = 1 << FRACTION


@register
@dataclass(frozen=True)
class IntegerResizeLinear(Operator):
    """[N, C, H, W] of i8, u8 or i16 as an image of ``sizes``, of the same quantisation ``scale`` and ``zero``."""

    sizes: tuple[int, int] = (1, 1)
    align_corners: int = 0
    half_pixel: int = 0
    scale: float = 1.0
    zero: int = 0
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.dtype not in ACTIVATIONS or x.rank != 4 or min(*self.sizes, *x.dims[2:]) < 1:
            raise ShapeError(f"{self.name}: {x} cannot become an image of {list(self.sizes)}")
        return (TensorType(x.dtype, (*x.dims[:2], *self.sizes), quant=Quant((self.scale,), (self.zero,))),)

    def positions(self, size: int, out: int) -> Array:
        """i32 [3, out]: the first and the last element of x that each one lies between, and the last one's weight."""
        step = (ONE * size + out // 2) // out
        if self.align_corners and out > 1:
            step = (ONE * (size - 1) + (out - 1) // 2) // (out - 1)
        at = np.arange(out) * step + (step // 2 - ONE // 2 if self.half_pixel else 0)
        first = np.maximum(np.sign(at) * (np.abs(at) // ONE), 0)
        after = at + ONE - 1
        last = np.minimum(np.sign(after) * (np.abs(after) // ONE), size - 1)
        return np.stack([np.minimum(first, size - 1), np.maximum(last, 0), at - ONE * first]).astype(np.int32)

    def reference(self, x: Array) -> Array:
        (top, bottom, down), (left, right, across) = (
            self.positions(size, out) for size, out in zip(x.shape[2:], self.sizes, strict=True)
        )
        wide, total = x.astype(np.int64), np.zeros((*x.shape[:2], *self.sizes), np.int64)
        for rows, row_weight in ((top, ONE - down), (bottom, down)):
            for cols, col_weight in ((left, ONE - across), (right, across)):
                weights = row_weight[:, None].astype(np.int64) * col_weight
                total += wide[:, :, rows[:, None], cols] * weights
        half = np.where(total > 0, ONE * ONE // 2, -ONE * ONE // 2)
        rounded = total + half
        result: Array = (np.sign(rounded) * (np.abs(rounded) // (ONE * ONE))).astype(x.dtype)
        return result

    def layouts(self, site: Site) -> Layouts:
        layout = Layout(site.machine.block, ((0, 0),) * 2)
        return Layouts((layout,), (layout,))

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        tables = [Weights(self.positions(n, out)) for n, out in zip(x.dims[2:], self.sizes, strict=True)]
        kernel = integer_resize(IntegerResize(Image.of(x), Image.of(y)), site.machine)
        return [Step(kernel, (Input(0), *tables, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(11)
        for dtype in (np.int8, np.uint8, np.int16):
            kind = np.iinfo(dtype)
            for label, op in (
                ("asymmetric", cls((7, 5))),
                ("align_corners", cls((7, 9), align_corners=1)),
                ("half_pixel", cls((2, 11), half_pixel=1)),
            ):
                x = rng.integers(kind.min, kind.max + 1, (1, 5, 3, 4)).astype(dtype)
                yield Case(op, (x,), (), 0, label=f"{label}_{np.dtype(dtype)}")
