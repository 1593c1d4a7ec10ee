"""Convolution of an image of f32 that is quantised when it is read: the first layer of a quantised network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels.image import Image
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, ROW_MAJOR, DType, TensorType
from tenon.network.ops.base import Case, Layouts, Site, Step, register
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.quantize import QuantizeLinear


@register
@dataclass(frozen=True)
class IntegerImageConv(IntegerConv):
    """``IntegerConv`` of QuantizeLinear(x) with the scale ``image_scale`` and the zero point ``x_zero`` to integers of
    type ``image``: x [N, C, H, W] is f32."""

    image_scale: float = 1.0
    image: str = "u8"
    arity: ClassVar[tuple[int, int]] = (4, 5)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = inputs[0]
        if x is None or x.type.dtype is not F32 or not self.image_scale > 0:
            raise ShapeError(f"{self.name}: {x} is not an image of f32 to be divided by a scale of {self.image_scale}")
        return super().infer([Value(x.name, self.quantised_type(x.type)), *inputs[1:]])

    def quantised_type(self, x: TensorType) -> TensorType:
        """The type of the image once it is quantised."""
        return TensorType(DType(self.image), x.dims)

    def reference(self, x: Array, w: Array, *others: Array | None) -> Array:
        scale, zero = np.array(self.image_scale, np.float32), np.array(self.x_zero, DType(self.image).numpy)
        integers = QuantizeLinear(self.image).reference(x, scale, zero)
        return super().reference(integers, w, *others)

    def quantised_site(self, site: Site) -> Site:
        """The site of the convolution alone, whose image is not in memory."""
        return replace(site, inputs=(self.quantised_type(site.input(0)), *site.inputs[1:]))

    def supported(self, site: Site) -> str:
        if why := super().supported(self.quantised_site(site)):
            return why
        if self.w_zero or site.input(1).dtype is not DType.I8 or not self.candidates(site):
            return "an image that is quantised when it is read: the machine has no kernel for it"
        return ""

    def layouts(self, site: Site) -> Layouts:
        output = super().layouts(self.quantised_site(site)).outputs[0]
        output = replace(output, halo=((0, 0),) * (site.output.rank - 2))
        return Layouts((ROW_MAJOR, *self._other_layouts(site, output)), (output,))

    def any_block(self, site: Site, i: int | None) -> bool:
        return False

    def in_place(self, site: Site) -> tuple[int, ...]:
        return ()

    def problem(self, site: Site) -> dense.Conv | None:
        problem = super().problem(self.quantised_site(site))
        return None if problem is None else replace(problem, image_scale=self.image_scale)

    def lower(self, site: Site) -> list[Step]:
        weights, problem, inner = site.constants[1], self.problem(site), self.quantised_site(site)
        assert weights is not None
        assert problem is not None
        x = Image(problem.x.n, problem.x.channels, problem.x.h, problem.x.w, problem.x.block, dtype=problem.x.dtype)
        s = replace(self.described(inner, x, Image.of(site.output)), image_scale=self.image_scale)
        return self.tiled(site, self.stage(inner, s, weights), problem)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(9)
        for label, kernel, stride, pad, size, to in (
            ("7x7", 7, 2, 3, (20, 34), "u8"),
            ("3x3", 3, 2, 1, (13, 19), "i8"),
            ("two", 3, 2, 0, (12, 40), "u8"),
        ):
            zero = 0 if to == "u8" else -5
            op = cls(
                "float",
                zero,
                to=to,
                low=0 if to == "u8" else -128,
                high=255 if to == "u8" else 127,
                scale=0.5,
                pads=(pad,) * 4,
                strides=(stride, stride),
                image_scale=0.03,
                image=to,
            )
            x: Array = rng.standard_normal((2 if label == "two" else 1, 3, *size)).astype(np.float32)
            if label == "two":  # halves and numbers out of range
                op, x = replace(op, image_scale=0.25), np.round(x * 8) / np.float32(8)
                x[0, 0, 0, :4] = np.inf, -np.inf, 1e38, -1e38
            w = rng.integers(-127, 128, (20, 3, kernel, kernel), np.int8)
            b = rng.integers(-999, 999, 20, np.int32)
            factors = rng.uniform(0.0005, 0.002, 20).astype(np.float32)
            yield Case(op, (x, w, b, factors), (1, 2, 3), tolerance=0, label=label)
