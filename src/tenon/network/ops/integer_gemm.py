"""Matrix product of quantised integers and constant weights, requantised by fixed-point or f32 factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels.image import Image, identity
from tenon.machine.kernels.requantize import Rounding
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import ROW_MAJOR, DType, TensorType
from tenon.network.ops.base import Case, Layouts, Site, Step, register, typed
from tenon.network.ops.integer_conv_cases import sums_case
from tenon.network.ops.integer_product import SUMMED, IntegerProduct, stored_type
from tenon.network.ops.reach import Operands, Reaches, alike
from tenon.network.ops.requantize import quantized_multipliers
from tenon.network.ops.window import Ints


@register
@dataclass(frozen=True)
class IntegerGemm(IntegerProduct):
    """Rows [N, ...] of K elements each times constant weights [M, K], transposed: see ``IntegerProduct``.

    The axes after the first ``batch`` ones are one row, in their order.  An image is read in the layout that it has.
    """

    batch: int = 1
    fusable: ClassVar[bool] = True

    @property
    def fused_types(self) -> frozenset[DType]:
        return SUMMED

    @property
    def takes_epilogue(self) -> bool:
        return self.rounding == "none"

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        return row_image(operand, output.dims) is not None

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = typed(inputs)[:2]
        if x.rank <= self.batch or w.rank != 2 or math.prod(x.dims[self.batch :]) != w.dims[1]:
            raise ShapeError(f"{self.name}: rows {list(x.dims)} do not fit weights {list(w.dims)}")
        self.check(inputs, w.dims[0])
        return (self.result((*x.dims[: self.batch], w.dims[0])),)

    def reference(
        self, x: Array, w: Array, b: Array | None, factors: Array | None, shifts: Array | None = None
    ) -> Array:
        rows = x.reshape(*x.shape[: self.batch], w.shape[1])
        wide, weights = self.centred(rows, factors), w.astype(np.int64) - self.w_zero
        exact = np.float64 if w.shape[1] * 2**33 < 2**53 else np.int64
        sums = (wide.astype(exact) @ weights.T.astype(exact)).astype(np.int64)
        return self.stored(sums if b is None else sums + b, factors, shifts)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return alike(inputs, axis) if axis < self.batch else None

    def supported(self, site: Site) -> str:
        return self.compiled(site)

    def rows(self, site: Site) -> dense.Conv:
        """The product as a convolution of one row of positions, over all that an image has in memory."""
        physical, batch = site.input(0).physical, self.batch
        n, deep, outs = math.prod(physical[:batch]), math.prod(physical[batch:]), site.output.dims[-1]
        x = Image(1, deep, 1, n, deep, dtype=site.input(0).dtype)
        y = Image(1, outs, 1, n, outs, dtype=site.output.dtype)
        images = [row_image(site.input(i), site.output.dims) for i in site.extras]
        operands = tuple(image for image in images if image is not None)
        return dense.Conv(x, y, weights=stored_type(site.input(1).dtype), operands=operands, epilogue=site.epilogue)

    def problem(self, site: Site) -> dense.Conv | None:
        s = replace(self.rows(site), operands=(), epilogue=identity)
        product = self.paired(site, s, self.pair_numbers(site))
        return s if product is None else product.problem

    def layouts(self, site: Site) -> Layouts:
        x = site.input(0)
        whole = x.layout.image and x.rank > 2 and x.dims[1] % x.block == 0 and self.batch == 1
        layout = replace(x.layout, halo=((0, 0),) * (x.rank - 2)) if whole else ROW_MAJOR
        read = (*site.extras, 3)
        others = (ROW_MAJOR if i in read else None for i in range(1, len(site.inputs)))
        return Layouts((layout, *others), (ROW_MAJOR,))

    def in_memory_order(self, weights: Array, x: TensorType) -> Array:
        """Weights [M, K] in the order in which a row of x lies in memory; nothing is added for halos and lanes past
        the last channel."""
        if x.layout.in_order:
            return weights
        whole = weights.astype(np.int16).reshape(len(weights), *x.dims[1:]) - self.w_zero
        packed = replace(x.layout, fill=0).pack(whole).reshape(len(weights), -1) + self.w_zero
        return packed.astype(weights.dtype)

    def lower(self, site: Site) -> list[Step]:
        weights = site.constants[1]
        assert weights is not None
        weights, s = self.in_memory_order(weights, site.input(0)), self.rows(site)
        site = replace(site, constants=(site.constants[0], weights, *site.constants[2:]))
        if (product := self.paired(site, s, self.pair_numbers(site))) is not None:
            return self.tiled(site, product.stage, product.problem)
        return self.tiled(site, self.stage(site, s, weights), s)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[1] is not None
        return outputs[0].size * inputs[1].dims[1]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(6)
        wide = [rng.integers(-(1 << 15), 1 << 15, (3, 40)).astype(np.int16)]
        wide += [rng.integers(-127, 128, (19, 40)).astype(np.int8), rng.integers(-(10**6), 10**6, 19).astype(np.int32)]
        roundings: tuple[Rounding, ...] = ("reduced", "double", "single")
        for kind in roundings:
            op = cls(kind, low=-(1 << 15), high=(1 << 15) - 1, to="i16", scale=0.5)
            fixed = quantized_multipliers(rng.uniform(0.001, 0.005, 19).tolist())
            yield Case(op, (*wide, *fixed), (1, 2, 3, 4), 0, label=f"16_bits_{kind}")
        for rounding in ("double", "single", "float"):
            for n, k, m in ((1, 37, 21), (5, 8, 16), (3, 12, 1), (16, 16, 2), (7, 1, 1)):
                x = rng.integers(-128, 128, (n, k)).astype(np.int8)
                w = rng.integers(-127, 128, (m, k)).astype(np.int8)
                b = rng.integers(-5000, 5000, m).astype(np.int32)
                factors: tuple[Array, ...] = quantized_multipliers([0.011])
                if rounding == "float":
                    factors = (np.array([0.011], np.float32),)
                op = cls(rounding, -3, zero=4, scale=0.25)
                yield Case(
                    op, (x, w, b, *factors), (1, 2, 3, 4)[: 2 + len(factors)], 0, label=f"{n}x{k}x{m}_{rounding}"
                )
                yield Case(
                    replace(op, slope=0.25),
                    (x, w, b, *factors),
                    (1, 2, 3, 4)[: 2 + len(factors)],
                    0,
                    label=f"{n}x{k}x{m}_{rounding}_slope",
                )
        for x_dims, outs in (((3, 37), 21), ((2, 5, 16), 33), ((1, 4, 3, 8), 5), ((1, 1), 1)):
            for dtypes, zero in (((DType.U8, DType.I8), 0), ((DType.I8, DType.U8), 131), ((DType.I8, DType.I8), -3)):
                more = {"batch": len(x_dims) - 1}
                yield sums_case(cls, rng, f"{len(x_dims)}x{outs}", x_dims, (outs, x_dims[-1]), more, dtypes, zero)
        x = rng.integers(-128, 128, (2, 8, 3, 2)).astype(np.int8)
        w, b = rng.integers(-127, 128, (5, 48)).astype(np.int8), rng.integers(-5000, 5000, 5).astype(np.int32)
        op = cls("double", -3, zero=4, scale=0.25)
        yield Case(op, (x, w, b, *quantized_multipliers([0.011])), (1, 2, 3, 4), 0, label="images")


def row_image(operand: TensorType, output: Ints) -> Image | None:
    """An operand that broadcasts to rows [..., M], as the image of one row of positions that a kernel reads; None
    where no image can express it."""
    dims = (1,) * (len(output) - operand.rank) + operand.dims
    rows, all_rows = math.prod(dims[:-1]), math.prod(output[:-1])
    fits = len(dims) == len(output) and dims[-1] in (1, output[-1]) and rows in (1, all_rows)
    if operand.dtype not in SUMMED or not fits or (rows > 1 and dims[:-1] != output[:-1]):
        return None
    return Image(1, dims[-1], 1, rows, dims[-1], dtype=operand.dtype)
