"""Any function of 8-bit integers, by a table of its 256 results; monotonic ones of 16 bits to 8 bits, by thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import lookup as kernels
from tenon.machine.kernels.image import Box
from tenon.machine.kernels.pointwise import image_box, mask_box
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, Quant, TensorType
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
)
from tenon.network.ops.elementwise import overwritable, pointwise_layouts
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.reach import Operands, Reaches, alike


@register
@dataclass(frozen=True)
class Lookup(Operator):
    """``table[x - the least number of its type]``: inputs x in i8 or u8 and a constant table [256].

    ``scale`` and ``zero`` are the quantisation of the result where its integers have one, else ``scale`` is 0.
    """

    scale: float = 0.0
    zero: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, table = (v.type for v in inputs if v is not None)
        if x.dtype not in (DType.I8, DType.U8) or table.dims != (kernels.CODES,):
            raise ShapeError(f"Lookup: {x} has no results in a table {table}")
        quant = Quant((self.scale,), (self.zero,)) if self.scale else None
        return (TensorType(table.dtype, x.dims, quant=quant),)

    def reference(self, x: Array, table: Array) -> Array:
        return np.asarray(table[x.astype(np.int64) - kernels.lowest(DType.of(x.dtype))])

    def supported(self, site: Site) -> str:
        return "" if site.constants[1] is not None else "its table is computed at run time: it must be a constant"

    def layouts(self, site: Site) -> Layouts:
        alone = pointwise_layouts(_without_table(site))
        return Layouts((alone.inputs[0], None), alone.outputs)

    def in_place(self, site: Site) -> tuple[int, ...]:
        return overwritable(_without_table(site))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return alike(inputs, axis)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        return Patch(self, (span, None))

    def lower(self, site: Site) -> list[Step]:
        x, table = site.input(0), site.constants[1]
        assert table is not None
        zero = self.reference(np.zeros(1, x.dtype.numpy), table)[0]
        return lower_lookup(site, [table], kernels.lowest(x.dtype), keeps_zero=not zero)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(8)
        for dtype, to in ((np.int8, np.int8), (np.uint8, np.uint8), (np.int8, np.float32)):
            kind = np.iinfo(dtype)
            for shape in ((1, 7, 3, 5), (2, 16, 4), (300,), ()):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                table = rng.integers(-100, 100, 256).astype(to)
                yield Case(cls(), (x, table), (1,), 0, label=f"{np.dtype(dtype)}_{np.dtype(to)}_{len(shape)}")


LEAST, MOST = -(1 << 15), (1 << 15) - 1
"""Limits of integers of 16 bits."""


@register
@dataclass(frozen=True)
class LookupThresholds(Operator):
    """The least integer of ``to`` plus the number of thresholds that x reaches: inputs x in i16 and constant thresholds
    i32 [256] in ascending order, of which the first does not count.

    ``scale`` and ``zero`` are the quantisation of the result.
    """

    to: str = "i8"
    scale: float = 1.0
    zero: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, table = (v.type for v in inputs if v is not None)
        if x.dtype is not DType.I16 or table.dtype is not DType.I32 or table.dims != (kernels.CODES,):
            raise ShapeError(f"{self.name}: {x} has no results by thresholds {table}")
        return (TensorType(DType(self.to), x.dims, quant=Quant((self.scale,), (self.zero,))),)

    def reference(self, x: Array, table: Array) -> Array:
        reached = np.searchsorted(table[1:], x.astype(np.int32), "right")
        return np.asarray((reached + kernels.lowest(DType(self.to))).astype(DType(self.to).numpy))

    def supported(self, site: Site) -> str:
        return (
            "" if site.constants[1] is not None else "its thresholds are computed at run time: they must be constants"
        )

    def layouts(self, site: Site) -> Layouts:
        alone = pointwise_layouts(_without_table(site))
        return Layouts((alone.inputs[0], None), alone.outputs)

    def lower(self, site: Site) -> list[Step]:
        table = site.constants[1]
        assert table is not None
        keeps_zero = not self.reference(np.zeros(1, np.int16), table)[0]
        shift, *tables = kernels.steps_of(table, DType(self.to)) or (0, table)
        return lower_lookup(site, tables, kernels.lowest(DType(self.to)), keeps_zero=keeps_zero, shift=shift)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(8)
        for to in ("i8", "u8"):
            for shape in ((1, 7, 3, 5), (2, 16, 4), (300,), ()):
                x = rng.integers(LEAST, MOST + 1, shape).astype(np.int16)
                apart = np.linspace(LEAST, MOST, 256).astype(np.int32) + rng.integers(0, 100, 256).astype(np.int32)
                dense = np.sort(rng.integers(LEAST, MOST + 2, 256)).astype(np.int32)
                for label, table in (("apart", apart), ("dense", dense)):
                    yield Case(cls(to), (x, table), (1,), 0, label=f"{to}_{label}_{len(shape)}")


def thresholds(results: Array, lowest: int) -> Array | None:
    """i32 [256]: the least integer of 16 bits that each result is for, of those of all integers in ascending order;
    ``MOST`` + 1 where there is none.  None if they do not ascend."""
    codes = results.astype(np.int64)
    if (np.diff(codes) < 0).any():
        return None
    return (np.searchsorted(codes, lowest + np.arange(kernels.CODES)) + LEAST).astype(np.int32)


def lower_lookup(site: Site, tables: Sequence[Array], lowest: int, *, keeps_zero: bool, shift: int = 0) -> list[Step]:
    """The kernel of ``kernels.lookup`` for the first input of ``site`` and its output."""
    x, out = site.input(0), site.output
    args: list[Arg] = [Input(0), *map(Weights, tables)]
    if out.layout.block == 1 and not out.layout.halo:
        boxes, mask = (Box.of(x, max(1, x.rank)), Box.of(out, max(1, out.rank))), None
    else:
        boxes = tuple(image_box(t.dims, t.layout, t.dims[1], t.dtype) for t in (x, out))  # type: ignore[assignment]
        mask = mask_box(boxes[1]) if out.dims[1] % out.layout.block and not keeps_zero else None
        args += [Weights(padding_mask(out))] if mask else []
    return [Step(kernels.lookup(kernels.Lookup(*boxes, lowest, mask, shift), site.machine), (*args, Output()))]


def _without_table(site: Site) -> Site:
    return replace(site, inputs=site.inputs[:1], constants=site.constants[:1])
