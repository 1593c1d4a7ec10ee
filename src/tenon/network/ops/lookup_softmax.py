"""Softmax of 8-bit integers and its logarithm in f32, the same bits on every machine.

The distance of an integer from the greatest of its row takes 256 values, so exp is a table.  What is left are additions
in a fixed order, a division and products that nothing is added to: each rounds once, with fused multiply-adds and
without, in vectors of any width.  The logarithm of a sum is one of polynomials (``kernels.math.rounded_log``) whose
products are rounded by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels import lookup_softmax as kernels
from tenon.machine.kernels.lookup import CODES
from tenon.machine.kernels.math import LOG, LOG_2, SQRT_HALF
from tenon.machine.kernels.rows import CHAINS, LONGEST
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, DType, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, Weights, register, typed
from tenon.network.ops.reduce import check_axes

FARTHEST = 69.0
"""Exponentials of numbers below -FARTHEST count as zero: the others are at least 1e-30, and over the sum of any row
still no subnormal numbers, which vectors of some machines flush to zero."""


@lru_cache(maxsize=64)
def exponentials(scale: float) -> Array:
    """f32 [256]: exp(-``scale`` * i), rounded once (the same bits wherever it is computed); zero beyond FARTHEST."""
    exact = Context(prec=30)
    counted = [i for i in range(CODES) if i * scale <= FARTHEST]
    table = np.zeros(CODES, np.float32)
    table[: len(counted)] = [float(exact.exp(exact.multiply(Decimal(-i), Decimal(scale)))) for i in counted]
    return table


def logarithm(x: Array) -> Array:
    """f32: ``kernels.math.rounded_log``."""
    bits = x.view(np.int32)
    exponent = (bits - SQRT_HALF) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - np.float32(1)
    e, square, p = exponent.astype(np.float32), f * f, np.full_like(f, LOG[0])
    for c in LOG[1:]:
        p = f * p + np.float32(c)
    high, low = map(np.float32, LOG_2)
    result: Array = f + (f * square * p + e * low - square * np.float32(0.5)) + e * high
    return result


def in_chains(x: Array) -> Array:
    """f32 [...]: the sums along the last axis of ``x``, in the order of ``kernels.rows.total`` for one lane."""
    parts = []
    for start, count, side in segments(x.shape[-1], CHAINS):
        chains = x[..., start : start + count * side].reshape(*x.shape[:-1], count, side)
        acc = np.zeros((*x.shape[:-1], side), np.float32)
        for first in range(0, count, LONGEST):
            acc = acc + np.add.accumulate(chains[..., first : first + LONGEST, :], axis=-2)[..., -1, :]
        parts.append(_pairwise([acc[..., i] for i in range(side)]))
    return _pairwise(parts)


def _pairwise(parts: list[Array]) -> Array:
    while len(parts) > 1:
        rest = parts[len(parts) & ~1 :]
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + rest
    return parts[0]


@register
@dataclass(frozen=True)
class LookupSoftmax(Operator):
    """Softmax of ``scale`` times x along ``axis``, of x in i8 or u8 to f32.  A zero point of x makes no difference."""

    axis: int = -1
    scale: float = 1.0
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    along_axis: ClassVar[bool] = True
    log: ClassVar[bool] = False

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        check_axes(self.name, [self.axis], x.rank)
        if x.dtype not in (DType.I8, DType.U8):
            raise ShapeError(f"{self.name}: {x} has no 8-bit integers")
        return (TensorType(F32, x.dims),)

    def reference(self, x: Array) -> Array:
        rows = np.moveaxis(x, self.axis, -1).astype(np.int64)
        distances = rows.max(-1, keepdims=True) - rows
        e = exponentials(self.scale)[distances]
        return np.ascontiguousarray(np.moveaxis(self.finished(distances, e, in_chains(e)[..., None]), -1, self.axis))

    def finished(self, distances: Array, e: Array, total: Array) -> Array:
        """The results, of the distances of a row's integers from the greatest and their exponentials e, f32."""
        result: Array = e * (np.float32(1) / total)
        return result

    def lower(self, site: Site) -> list[Step]:
        dims = site.input(0).dims
        axis = self.axis % len(dims)
        outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
        scale = self.scale if self.log else 1.0  # of the same kernel otherwise
        spec = kernels.LookupSoftmax(outer, dims[axis], inner, site.input(0).dtype, self.log, scale)
        kernel = kernels.lookup_softmax(spec, site.machine)
        return [Step(kernel, (Input(0), Weights(exponentials(self.scale)), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(11)
        for dtype in (np.int8, np.uint8):
            kind = np.iinfo(dtype)
            for axis, shape in ((-1, (3, 37)), (0, (7,)), (1, (2, 5, 3, 7)), (-2, (4, 6, 1)), (-1, (2, 1))):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                for scale in (0.07, 3.0):
                    label = f"{np.dtype(dtype)}_{'x'.join(map(str, shape))}_{scale}"
                    yield Case(cls(axis, scale), (x,), (), 0, label=label)


@register
@dataclass(frozen=True)
class LookupLogSoftmax(LookupSoftmax):
    """The logarithm of ``LookupSoftmax``."""

    log: ClassVar[bool] = True

    def finished(self, distances: Array, e: Array, total: Array) -> Array:
        result: Array = (-distances).astype(np.float32) * np.float32(self.scale) - logarithm(total)
        return result
