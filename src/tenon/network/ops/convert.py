"""Conversions between element types, by value and by bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Expr, cast, op
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.move import Piece, move, whole
from tenon.machine.kernels.narrow_image import narrow_image, reads_blocks
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sizes import equal, expression, trunc
from tenon.network.graph.types import BOOL, F32, ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import Alias, Case, Input, Layouts, Operator, Output, Site, Step, register, typed
from tenon.network.ops.elementwise import Pointwise, truth

_SMALL = storage_types.INTEGERS


@register
@dataclass(frozen=True)
class Cast(Pointwise):
    """Convert to the element type named ``to``; float to integer truncates, anything but zero is true.

    Floats of 8 bits: ``saturate`` clamps overflow to the largest finite number.  f8e8m0 rounds as ``round_mode`` says.
    """

    to: str = "f32"
    saturate: int = 1
    round_mode: str = "up"
    converts: ClassVar[bool] = True

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        return True

    def result(self, dtypes: Sequence[DType]) -> DType:
        return DType(self.to)

    def scalar(self, x: Expr) -> Expr:
        target = DType(self.to)
        if target is BOOL:
            return x if x.type.dtype is BOOL else truth(op("not_equal", x, 0))
        if target is DType.F16:  # rounded here, so that later steps of a fused kernel read the rounded value
            return cast(cast(cast(x, F32), target), F32)
        if target is DType.F8E8M0:
            code = storage_types.narrow_exponent(cast(x, F32), self.round_mode, saturate=bool(self.saturate))
            return storage_types.widen(code)
        if target.is_small_float:
            return storage_types.widen(storage_types.narrow(cast(x, F32), target, saturate=bool(self.saturate)))
        if target in _SMALL:
            return storage_types.lowest(x, *_SMALL[target])
        return cast(x, target)

    def layouts(self, site: Site) -> Layouts:
        """An image becomes planes with room for a halo, or blocks: the layout that a first convolution reads."""
        x = site.input(0)
        if self._in_blocks(site):
            return Layouts((ROW_MAJOR,), (Layout(site.machine.block, ((0, 0),) * (x.rank - 2)),))
        if DType(self.to) in storage_types.NARROW and x.layout.in_order and x.rank in (3, 4) and x.dims[1] <= 4:
            return Layouts((ROW_MAJOR,), (Layout(1, ((0, 0),) * (x.rank - 2)),))
        return super().layouts(site)

    def _in_blocks(self, site: Site) -> bool:
        """Whether a work item stores all channels of a position."""
        x = site.input(0)
        planes = x.rank == 4 and x.dtype is F32 and x.layout.in_order
        return planes and reads_blocks(site.machine, DType(self.to), x.dims[1])

    def fills_halo(self, site: Site) -> bool:
        return self._in_blocks(site) and site.output.layout.image and not site.output.layout.fill

    def lower(self, site: Site) -> list[Step]:
        if self.fills_halo(site):
            return [Step(narrow_image(Image.of(site.input(0)), Image.of(site.output)), (Input(0), Output()))]
        return super().lower(site)

    def of_numbers(self, x: Any, *, floats: bool) -> Any:
        target = DType(self.to)
        if target is BOOL:
            return bool(x) if isinstance(x, bool) else not equal(x, 0)
        if isinstance(x, bool):
            return expression(int(x))
        if floats or x.integral:
            return x
        return trunc(x, 1)

    def reference(self, x: Array) -> Array:
        target = DType(self.to)
        if target in _SMALL:
            bits, signed = _SMALL[target]
            whole = x.astype(np.float64).astype(np.int64) if x.dtype.kind not in "iu" else x.astype(np.int64)
            whole &= (1 << bits) - 1
            if signed:
                whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
            return whole.astype(np.int8).astype(target.numpy)
        if target.is_small_float and target is not DType.BF16:
            return _rounded(x.astype(np.float32), target, bool(self.saturate), self.round_mode)
        if x.dtype.kind == "V" and target.numpy.kind in "iub":
            x = x.astype(np.float32)
        return x.astype(target.numpy)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.array([[-2.5, 0.0, 3.75, 100.0, 7.0]], np.float32)
        for to in ("i64", "i32", "i8", "bool", "f64", "f16", "bf16", "f8e4m3fn", "f8e5m2fnuz", "f4e2m1", "i4", "u2"):
            yield Case(cls(to), (x,), tolerance=0, label=f"f32_{to}")
        wild = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-3, -3e-6, 1e9, 449, 464, 465, 17.3, 57344, 6e4], np.float32
        )
        for dtype in (DType.F8E4M3, DType.F8E4M3U, DType.F8E5M2, DType.F8E5M2U, DType.F4E2M1, DType.F8E8M0, DType.BF16):
            for saturate in (1, 0):
                numbers = np.abs(wild) if dtype is DType.F8E8M0 else wild
                yield Case(cls(dtype.value, saturate), (numbers,), tolerance=0, label=f"wild_{dtype}_{saturate}")
            codes = np.arange(16 if dtype is DType.F4E2M1 else 256, dtype=np.uint8)
            numbers = codes.view(dtype.numpy) if dtype.bytes == 1 else codes.astype(dtype.numpy)
            yield Case(cls("f32"), (numbers,), tolerance=0, label=f"{dtype}_f32")
        yield Case(cls("f32"), (x.astype(np.int64),), tolerance=0, label="i64_f32")
        yield Case(cls("f32"), (x > 0,), tolerance=0, label="bool_f32")
        yield Case(cls("i32"), (x.astype(np.float16),), tolerance=0, label="f16_i32")
        yield Case(cls("f32"), ((1, 5, 3, 3),), tolerance=0, label="f32_f32")


def _rounded(x: Array, dtype: DType, saturate: bool, mode: str) -> Array:
    """Floats of 8 bits and fewer as ONNX rounds them."""
    if dtype is DType.F8E8M0:
        return _exponents(np.abs(x), saturate, mode)
    f = storage_types.FORMATS[dtype]
    result = np.clip(x, -f.maximum, f.maximum).astype(dtype.numpy)
    if f.nan is None:
        return np.where(np.isnan(x), np.uint8(1 << (f.bits - 1)), result.view(np.uint8)).view(dtype.numpy)
    if not saturate:
        spacing = 2.0 ** (np.floor(np.log2(f.maximum)) - f.mantissa)
        limit = f.maximum + spacing / 2
        too_large = np.abs(x) >= limit if f.largest & 1 else np.abs(x) > limit
        code = f.nan if f.infinity is None else f.infinity
        sign = np.signbit(x) & (not f.one_zero)
        beyond = np.where(sign, code | 0x80, code).astype(np.uint8).view(dtype.numpy)
        result = np.where(too_large, beyond, result)
    return result


def _exponents(size: Array, saturate: bool, mode: str) -> Array:
    bits = size.view(np.uint32)
    code, fraction = (bits >> 23).astype(np.int64), bits & 0x7FFFFF
    if mode == "up":
        code += (fraction > 0) & (bits > 0x400000)
    elif mode == "nearest":
        code += fraction >= np.where(bits < 0x800000, 0x600000, 0x400000)
    code = np.minimum(code, 254 if saturate else 255)
    return np.where(np.isnan(size), 255, code).astype(np.uint8).view(DType.F8E8M0.numpy)


@register
@dataclass(frozen=True)
class BitCast(Operator):
    """The same bits as elements of another type of that width."""

    to: str = "i32"
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        target = DType(self.to)
        if target.bytes != x.dtype.bytes:
            raise ShapeError(f"BitCast: {x.dtype} and {target} differ in width")
        return (TensorType(target, x.dims),)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view(DType(self.to).numpy).reshape(x.shape)

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(0, 0),)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        bits = TensorType({1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}[x.dtype.bytes], x.dims)
        kernel = move("bits", bits, bits, (Piece(x.dims, whole(x.rank), whole(x.rank)),), site.machine)
        return [Step(kernel, (Input(0), Output()))] if x.size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.array([[-2.5, 0.0, 3.75], [1e9, -0.0, 7]], np.float32)
        yield Case(cls("i32"), (x,), tolerance=0, label="f32_i32")
        yield Case(cls("f64"), (np.arange(5, dtype=np.int64) << 60,), tolerance=0, label="i64_f64")
