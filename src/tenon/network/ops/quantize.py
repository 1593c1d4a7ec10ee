"""Elementwise quantisation with broadcast scales and zero points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Const, Expr, Type, cast, less, maximum, minimum, op, select
from tenon.machine.kernels import quantize as kernels
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.lookup import thresholds
from tenon.network.graph.graph import Array, Stored, Value
from tenon.network.graph.types import F32, I32, DType, Layout, TensorType
from tenon.network.ops.base import Case, Input, Layouts, Output, Site, Step, broadcast_shapes, register, typed
from tenon.network.ops.convert import Cast
from tenon.network.ops.elementwise import Pointwise, alone, lower_chain
from tenon.network.ops.integer_lookup import lower_lookup
from tenon.network.ops.requantize import limits

_BELOW_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))


@dataclass(frozen=True)
class Quantisation(Pointwise):
    """Inputs: data, scale, zero point; the latter broadcast to the data."""

    to: str = "u8"
    arity: ClassVar[tuple[int, int]] = (2, 3)
    converts: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, *parameters = typed(inputs)
        if broadcast_shapes(self.name, [x, *parameters]) != x.dims:
            raise ShapeError(f"{self.name}: scale {list(parameters[0].dims)} does not broadcast to {list(x.dims)}")
        return (TensorType(DType(self.to), x.dims),)

    def result(self, dtypes: Sequence[DType]) -> DType:
        return DType(self.to)


@register
@dataclass(frozen=True)
class QuantizeLinear(Quantisation):
    """round(x / scale) + zero point, kept within the range of ``to``; 8-bit floats as Cast rounds.

    Halves are rounded to even, as ONNX has it, or with ``ties`` "away" from zero, as TFLite's QUANTIZE.
    """

    saturate: int = 1
    ties: str = "even"

    def scalar(self, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
        target = DType(self.to)
        ratio = cast(x, F32) / cast(scale, F32)
        if target.is_small_float:
            return storage_types.widen(storage_types.narrow(ratio, target, saturate=bool(self.saturate)))
        value = op("round", ratio) if self.ties == "even" else _rounded_away(ratio)
        if zero is not None:
            value = value + cast(zero, F32)
        low, high = limits(target)
        return cast(minimum(maximum(value, float(low)), float(high)), storage_types.computed(target))

    def lower(self, site: Site) -> list[Step]:
        """Processors that multiply pairs of 16 bits round and clamp in integers; those without instructions for floats
        find the integer by its thresholds."""
        if not site.machine.float_unit and (table := self.thresholds(site)) is not None:
            low = limits(DType(self.to))[0]
            zero = self.exactly(np.zeros(1, np.float32), *site.constants[1:])[0]
            return lower_lookup(site, [table], low, keeps_zero=not zero)
        if self.to_words(site) and site.output.layout.image:
            zero = [Input(2)] if site.has(2) else []
            images = Image.of(site.input(0)), Image.of(site.output)
            kernel = kernels.quantize_words(*images, bool(zero), self.scalar, around=self.fills_halo(site))
            return [Step(kernel, (Input(0), Input(1), *zero, Output()))]
        if self.by_inverse(site):
            zero = [Input(2)] if site.has(2) else []
            spec = kernels.Quantize(site.output.size, DType(self.to), limits(DType(self.to)), bool(zero))
            return [Step(kernels.quantize(spec, site.machine), (Input(0), Input(1), *zero, Output()))]
        if not site.machine.has("dot2_i16") or DType(self.to) not in (DType.I8, DType.U8, DType.I16, DType.U16):
            return super().lower(site)
        return lower_chain(self.name, site, alone(_ByIntegers(self.to, ties=self.ties), site), DType(self.to))

    def layouts(self, site: Site) -> Layouts:
        """An image of few channels is stored in blocks, as convolutions of work groups read it."""
        usual = super().layouts(site)
        if not self.to_words(site) or usual.outputs[0].image:
            return usual
        return Layouts(usual.inputs, (Layout(site.machine.block, ((0, 0),) * (site.output.rank - 2)),))

    def fills_halo(self, site: Site) -> bool:
        """The zero point, which a quantised zero is."""
        zero, layout = site.constants[2] if site.has(2) else np.zeros(1, np.int8), site.output.layout
        return self.to_words(site) and layout.image and zero is not None and layout.fill == int(zero.reshape(-1)[0])

    def to_words(self, site: Site) -> bool:
        """Whether a work item stores the bytes of all channels of a position: planes of f32, by one scale."""
        x, machine = site.input(0), site.machine
        planes = x.rank in (3, 4) and x.dtype is F32 and x.layout.in_order and x.dims[1] <= machine.block == 4
        single = all(site.input(i).size == 1 and site.input(i).dtype is not DType.F16 for i in (1, 2) if site.has(i))
        return machine.launch is not None and planes and single and DType(self.to) in (DType.I8, DType.U8)

    def by_inverse(self, site: Site) -> bool:
        """Whether vectors are multiplied by the inverse of one scale, and divided only beside halves: of f32 to 8 bits,
        where elements lie side by side."""
        machine, eight = site.machine, DType(self.to) in (DType.I8, DType.U8)
        floats = site.input(0).dtype is F32 and site.input(1).dtype is F32
        single = all(site.input(i).size == 1 for i in (1, 2) if site.has(i))
        in_order = site.input(0).layout.in_order and site.output.layout.in_order
        vectors = machine.lanes > 1 and not machine.has("dot2_i16")
        return vectors and eight and self.ties == "even" and floats and single and in_order and site.output.size > 0

    def thresholds(self, site: Site) -> Array | None:
        """The least numbers of each integer; None where they are not those of one function of f32 to 8 bits."""
        x, scale, *zero = site.constants
        single = all(c is not None and c.size == 1 for c in (scale, *zero))
        if x is not None or not single or site.input(0).dtype is not F32 or DType(self.to) not in (DType.I8, DType.U8):
            return None
        if scale is None or not 0 < float(scale.reshape(())) < np.inf:
            return None
        return thresholds(lambda numbers: self.exactly(numbers, scale, *zero), limits(DType(self.to))[0])

    def exactly(self, x: Array, scale: Array | None, zero: Array | None = None) -> Array:
        """The reference for any f32 but NaN and constants of one element."""
        assert scale is not None
        most = np.float32(1 << 24)  # beyond it every result is a limit of the type
        with np.errstate(over="ignore"):
            ratio = np.clip(x / scale.astype(np.float32).reshape(()), -most, most)
        return self.rounded(ratio, None if zero is None else zero.reshape(()))

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Array:
        ratio = x.astype(np.float32) / scale.astype(np.float32)
        if DType(self.to).is_small_float:
            return Cast(self.to, self.saturate).reference(ratio)
        return self.rounded(ratio, zero)

    def rounded(self, ratio: Array, zero: Array | None) -> Array:
        """The integers of numbers that the scale has divided; NaN becomes the least."""
        target = DType(self.to)
        away = np.copysign(np.floor(np.abs(ratio.astype(np.float64)) + 0.5), ratio)
        rounded = np.rint(ratio) if self.ties == "even" else away.astype(np.float32)
        value = rounded + (0 if zero is None else zero.astype(np.float32))
        low, high = limits(target)
        result: Array = np.where(np.isnan(value), low, np.clip(value, low, high)).astype(target.numpy)
        return result

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x, scale = np.array([[-300, -1.5, 0.5, 2.5, 90, 1000]], np.float32), np.array(0.5, np.float32)
        for dtype in (DType.U8, DType.I8, DType.I16, DType.I4, DType.U2):
            zero = np.array(1, dtype.numpy)
            yield Case(cls(dtype.value), (x, scale, zero), (1, 2), tolerance=0, label=dtype.value)
        for dtype in (DType.U8, DType.I16):
            away = cls(dtype.value, ties="away")
            near = np.nextafter(np.array([[0.25, -0.25]], np.float32), np.float32(0))
            more = np.array([[1.25, -1.25, 1.75, -0.25, np.inf, -np.inf, 4194303.75]], np.float32)
            halves = np.concatenate([x, -x, near, more], 1)
            yield Case(away, (halves, scale, np.array(100, dtype.numpy)), (1, 2), tolerance=0, label=f"{dtype}_away")
        for dtype in (DType.U8, DType.I8):  # planes of few channels, which work groups store in blocks
            zero, image = np.array(7, dtype.numpy), (2, 3, 4, 5)
            yield Case(cls(dtype.value), (image, scale / 50, zero), (1, 2), tolerance=0, label=f"{dtype}_image")
        yield Case(cls("f8e4m3fn"), (x, scale), tolerance=0, label="f8")
        yield Case(cls("i8"), ((2, 3, 4), np.array([[[1]], [[2]]], np.float32) / 50), tolerance=0, label="per_axis")


def _rounded_away(x: Expr) -> Expr:
    """To the nearest integer, halves away from zero, by truncation.  The greatest f32 below a half is added: a half
    would make 1 of 0.49999997, and halves still reach the next integer, as sums are rounded to even."""
    below, above = (Const(number, Type(F32)) for number in (-_BELOW_HALF, _BELOW_HALF))
    return op("trunc", x + select(less(x, 0.0), below, above))


@dataclass(frozen=True)
class _ByIntegers(QuantizeLinear):
    """Rounds to an i32 first: the same numbers, as what is rounded away lies far outside of the result's range."""

    def scalar(self, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
        target = DType(self.to)
        ratio = cast(x, F32) / cast(scale, F32)
        nearest = "nearest_add" if self.ties == "even" else "nearest_away_add"
        whole = op(nearest, ratio, Const(0, Type(I32)) if zero is None else cast(zero, I32))
        if target is DType.I8:
            return cast(op("saturate_i8", whole), target)
        low, high = limits(target)
        return cast(minimum(maximum(whole, low), high), target)


@register
@dataclass(frozen=True)
class DequantizeLinear(Quantisation):
    """(x - zero point) * scale, as ``to``."""

    to: str = "f32"

    def dequantised_from(self, inputs: Sequence[Value | None], dims: tuple[int, ...]) -> Stored | None:
        x, scale, zero = (None if v is None else v.data for v in (*inputs, None)[:3])
        if x is None or scale is None:
            return None
        return Stored(x, scale, np.zeros((), x.dtype) if zero is None else zero)

    def scalar(self, x: Expr, scale: Expr, zero: Expr | None = None) -> Expr:
        if x.type.dtype is F32:
            return cast(x, F32) * cast(scale, F32)
        whole = cast(x, I32)
        if zero is not None:
            whole = whole - cast(zero, I32)
        return cast(whole, F32) * cast(scale, F32)

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Array:
        whole = x.astype(np.float32) if zero is None else x.astype(np.float32) - zero.astype(np.float32)
        return (whole * scale.astype(np.float32)).astype(DType(self.to).numpy)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        scale = np.array([0.5, 2, 3], np.float32)
        for dtype in (np.uint8, np.int8, np.int16, np.int32):
            yield Case(cls(), (np.array([[0, 3, 100]], dtype), scale, np.array(5, dtype)), label=np.dtype(dtype).name)
        codes = np.arange(16, dtype=np.int8).astype(DType.U4.numpy)
        yield Case(cls("f16"), (codes, scale[:1].astype(np.float16)), label="u4_f16")
