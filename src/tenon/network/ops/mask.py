"""The elements of a tensor beyond its extent along an axis, which is known at run time, set to a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.image import Box
from tenon.machine.kernels.mask import mask
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I64, ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import Case, Input, Layouts, Operator, Output, Site, Step, register, typed
from tenon.network.ops.move import Reorder, normal_axis, own, reordered
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.reach import CountedRead, Operands, Reaches, alike


def zeros_beyond(value: Value, axis: int) -> bool:
    """Whether a Mask has stored zeros beyond the extent of an axis, as far as anything reads them."""
    maker = value.producer
    while maker is not None and isinstance(maker.op, Mask | Reorder):
        if isinstance(maker.op, Mask) and maker.op.axis % value.type.rank == axis:
            return maker.op.value == 0
        maker = maker.input(0).producer
    return False


@register
@dataclass(frozen=True)
class Mask(Operator):
    """Inputs: x, an extent (i64 scalar).  x where the index along ``axis`` is below the extent, else ``value``.

    ``value`` is a number of x's type: 0, an infinity, a zero point.
    """

    axis: int = 0
    value: float = 0.0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, extent = typed(inputs)
        normal_axis("Mask", self.axis, x.rank)
        if extent.dtype is not I64 or extent.rank:
            raise ShapeError(f"Mask: the extent must be an i64 scalar, not {extent}")
        return (TensorType(x.dtype, x.shape, quant=x.quant),)

    def reference(self, x: Array, extent: Array) -> Array:
        result = x.copy()
        first = min(max(int(extent), 0), x.shape[self.axis])
        result[(*(slice(None),) * (self.axis % x.ndim), slice(first, None))] = self.value
        return result

    def layouts(self, site: Site) -> Layouts:
        layout = self._layout(site.input(0))
        return Layouts((layout, ROW_MAJOR), (layout,))

    def _layout(self, x: TensorType) -> Layout:
        """The operand's layout, unless a number other than zero would get into the lanes that fill a block."""
        padded = bool(self.value) and x.layout.image and x.dims[1] % x.block != 0
        return ROW_MAJOR if padded or self.axis % x.rank == 1 else own(x)

    @property
    def edits(self) -> bool:
        return True

    def in_place(self, site: Site) -> tuple[int, ...]:
        """Where there is a halo, it is stored around the elements beyond the extent, too."""
        layout = site.output.layout
        return (0,) if not any(map(any, layout.halo)) or layout.fill == self.value else ()

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        return None if span.axis == self.axis % output.rank else Patch(self, (span, None))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return None if axis == self.axis % outputs[0].rank else alike(inputs, axis)

    def counted_reads(self, inputs: Operands) -> tuple[CountedRead, ...]:
        assert inputs[0] is not None
        return (CountedRead(0, self.axis % inputs[0].type.rank, 1),)

    def lower(self, site: Site) -> list[Step]:
        y = site.output
        value = self.value if y.dtype.is_float or y.dtype.is_small_float else int(self.value)
        halo = any(map(any, y.layout.halo)) and y.layout.fill == value
        step = Step(mask(Box.of(y), self.axis % y.rank, value, site.machine, halo=halo), (Input(1), Output()))
        return [step] if 0 in site.placed else [*reordered(site), step]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, axis: int, value: float, x: Array | tuple[int, ...], extent: int) -> Case:
            return Case(cls(axis, value), (x, np.array(extent, np.int64)), tolerance=0, label=label)

        yield case("rows", 1, 0.0, (1, 7, 19), 3)
        yield case("columns", -1, -np.inf, (2, 3, 21), 10)
        yield case("image_rows", 2, 0.0, (1, 19, 5, 3), 2)
        yield case("image_columns", 3, 0.0, (2, 16, 3, 5), 4)
        yield case("channels", 1, 1.0, (1, 19, 2, 3), 5)
        yield case("filled_blocks", 3, -1.5, (1, 5, 2, 3), 1)
        yield case("batch", 0, 0.0, (4, 5), 0)
        yield case("everything", 0, 2.0, (6,), 6)
        yield case("beyond", 0, 2.0, (6,), 9)
        integers = np.arange(24, dtype=np.int8).reshape(1, 4, 2, 3)
        yield case("bytes", 2, -128, integers, 1)
        yield case("i64", 1, 7, integers.astype(np.int64), 2)
        yield case("bools", 3, 0, integers > 9, 2)
        yield Case(cls(2, 0.0), ((2, 16, 2), np.array(1, np.int64)), tolerance=0, label="bf16", dtypes=(DType.BF16,))
