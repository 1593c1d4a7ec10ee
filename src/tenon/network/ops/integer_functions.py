"""Sigmoid, tanh and softmax of integers of 16 bits, as TFLite's and TFLite Micro's kernels compute them.

Sources: tensorflow/lite/kernels/internal/reference (integer_ops/logistic.h, integer_ops/tanh.h, softmax.h) and
internal/common.h (LUTPopulate, LUTLookup).  Results have the scale 2**-15 and no zero point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Const, Type
from tenon.machine.kernels import integer_functions as kernels
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, DType, Quant, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, Weights, register, typed
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.requantize import Factors, quantized_multiplier, rescaled

LONGEST = 1 << 16
"""Elements of a row whose exponentials 32 bits can sum."""


@dataclass(frozen=True)
class IntegerFunction(Operator):
    """A function of integers of 16 bits to fractions of 2**15."""

    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.dtype is not DType.I16:
            raise ShapeError(f"{self.name}: {x} is no tensor of 16-bit integers")
        return (TensorType(DType.I16, x.dims, quant=Quant((2.0**-15,), (0,))),)


# -------------------------------------------------------------------------------------- sigmoid and tanh
@lru_cache(maxsize=1)
def sigmoid_table() -> Array:
    """i64 [256]: sigmoid(i / 24) in units of 2**-16, raised by half the error of the interpolation to the next entry.

    The last entry is 1 less than 65536.
    """
    at = np.arange(kernels.ENTRIES)
    here, middle, following = (65536 / (1 + np.exp(-(at + part) / 24)) for part in (0, 0.5, 1))
    table = np.rint(here + (middle - (here + following) / 2) / 2).astype(np.int64)
    table[-1] = 65535
    return table


def argument(scale: float, function: Literal["sigmoid", "tanh"]) -> Fixed | None:
    """The multiplier and the shift to the right that bring numbers of a scale to the table's argument; None for
    scales that are too large or too small."""
    power = math.log2(scale)
    whole = abs(power - round(power)) < 1e-3  # powers of two are shifted only
    if whole and 0 <= round(power) + 12 <= (0 if function == "sigmoid" else 1):
        return 3 << (round(power) + 12), 0
    multiplier, right = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and right <= 30:
        multiplier, right = multiplier * 2.0, right + 1
    return (int(multiplier), right) if multiplier < 32768 and right < 30 else None


@register
@dataclass(frozen=True)
class IntegerSigmoid(IntegerFunction):
    """Sigmoid or tanh of x times ``multiplier``, shifted ``right`` (see ``argument``), by a table of 256 entries."""

    function: Literal["sigmoid", "tanh"] = "sigmoid"
    multiplier: int = 3
    right: int = 0

    def reference(self, x: Array) -> Array:
        table, bits = sigmoid_table(), 9 if self.function == "sigmoid" else 8
        half = (1 << self.right) >> 1
        given = (x.astype(np.int64) * self.multiplier + half) >> self.right
        size = np.abs(given)
        at = np.minimum(size >> bits, kernels.ENTRIES - 2)
        between = (table[at] << bits) + (size & ((1 << bits) - 1)) * (table[at + 1] - table[at])
        most = (0x7FFF << 10) if self.function == "sigmoid" else (0xFFFF << 8)
        magnitude = np.where(size >> bits >= kernels.ENTRIES - 1, most, between)
        if self.function == "sigmoid":
            result = np.where(given >= 0, magnitude + (1 << 9), (1 << 25) - magnitude + (1 << 9) - 1) >> 10
        else:
            result = np.where(given >= 0, magnitude - (1 << 23) + (1 << 7), (1 << 23) - magnitude + (1 << 7) - 1) >> 8
        return np.asarray(result, np.int16)

    def lower(self, site: Site) -> list[Step]:
        s = kernels.IntegerSigmoid(self.function, self.multiplier, self.right, site.input(0).size)
        table = (sigmoid_table() - 32768).astype(np.int16)
        return [Step(kernels.integer_sigmoid(s), (Input(0), Weights(table), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        every = np.linspace(-(1 << 15), (1 << 15) - 1, 400).astype(np.int16)
        for function in ("sigmoid", "tanh"):
            for scale in (2.0**-12, 0.0013, 1e-5):
                fixed = argument(scale, function)
                assert fixed is not None
                yield Case(cls(function, *fixed), (every.reshape(2, 200),), (), 0, label=f"{function}_{scale:.0e}")


# ------------------------------------------------------------------------------------------------ softmax
def interpolation_table(
    function: Callable[[Array], Array], low: float, high: float, dtype: DType, units: float = 2.0**15
) -> Array:
    """i16 [513]: a function from ``low`` to ``high`` in so many ``units``, each entry moved by half the error of the
    interpolation to the next one; computed in f32 or f64."""
    kind: Any = dtype.numpy.type
    step = (kind(high) - kind(low)) / kind(kernels.STEPS)
    at = kind(low) + np.arange(kernels.STEPS + 1).astype(kind) * step

    def value(x: Array) -> Array:
        return np.asarray(function(x.astype(np.float64)).astype(kind) * kind(units))

    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is the greatest integer
        exact, middle = value(at), _round(value(at[:-1] + step / kind(2)))
        samples = _round(exact[:-1])
        error = _round((exact[1:] + samples) / kind(2)) - middle
        entries = np.append(samples - _round(error / kind(2)), _round(value(np.array([high], kind))))
    entries = np.where(np.append(np.isfinite(error), True), entries, kind(32767))
    return np.asarray(np.clip(entries, -32768, 32767), np.int16)


@register
@dataclass(frozen=True)
class IntegerInterpolation(Operator):
    """A function of i16, by a constant table i16 [513] of its results for -32768, -32640 ... 32768.

    ``scale`` is that of the result; neither tensor has a zero point.
    """

    scale: float = 1.0
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, table = typed(inputs)
        if (x.dtype, table.dtype, table.dims) != (DType.I16, DType.I16, (kernels.STEPS + 1,)):
            raise ShapeError(f"{self.name}: {x} has no results in a table {table}")
        return (TensorType(DType.I16, x.dims, quant=Quant((self.scale,), (0,))),)

    def reference(self, x: Array, table: Array) -> Array:
        return interpolated(table, x.astype(np.int64)).astype(np.int16)

    def supported(self, site: Site) -> str:
        return "" if site.constants[1] is not None else "its table is computed at run time: it must be a constant"

    def lower(self, site: Site) -> list[Step]:
        table = site.constants[1]
        assert table is not None
        return [Step(kernels.integer_interpolation(site.input(0).size), (Input(0), Weights(table), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        every = np.linspace(-(1 << 15), (1 << 15) - 1, 400).astype(np.int16)
        table = interpolation_table(np.tanh, -4, 4, DType.F32)
        yield Case(cls(), (every.reshape(2, 200), table), (1,), 0, label="tanh")


def _round(x: Array) -> Array:
    return np.asarray(np.trunc(x + np.copysign(x.dtype.type(0.5), x)))


@lru_cache(maxsize=2)
def softmax_tables(computed: str) -> tuple[Array, Array]:
    """i16 [513] each, computed in "f32" or "f64": exp from -10 to 0, and 1 / (1 + x) from 0 to 1."""
    dtype = DType(computed)
    return interpolation_table(np.exp, -10.0, 0.0, dtype), interpolation_table(lambda x: 1 / (1 + x), 0.0, 1.0, dtype)


def interpolated(table: Array, code: Array) -> Array:
    """The function of a table [513] of numbers of 16 bits."""
    at, wide = 256 + (code >> 7), table.astype(np.int64)
    return np.asarray(wide[at] + (((wide[at + 1] - wide[at]) * (code & 127) + 64) >> 7))


@register
@dataclass(frozen=True)
class IntegerSoftmax16(IntegerFunction):
    """Softmax over the last axis of x times ``factor``, a fixed-point number of units of 10 / 65535.

    Its tables are ``computed`` in f32 (TFLite Micro) or f64 (LiteRT).
    """

    factor: Fixed = (1 << 30, 1)
    computed: Literal["f32", "f64"] = "f32"

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (y,) = super().infer(inputs)
        if not y.rank or y.dims[-1] > LONGEST:
            raise ShapeError(f"{self.name}: rows of {y} are too long to be summed")
        return (y,)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.int64)
        scaled = rescaled(wide - wide.max(-1, keepdims=True), *self.factor, "double")
        exps, reciprocals = softmax_tables(self.computed)
        parts = interpolated(exps, np.clip(scaled + 32767, -32768, 32767))
        total = parts.sum(-1, keepdims=True)
        bits = np.array([int(t).bit_length() - 1 for t in total.ravel()]).reshape(total.shape)
        whole = ((total << (30 - bits)) + (1 << 13)) >> 14
        reciprocal = interpolated(reciprocals, np.clip(whole - ((1 << 15) + (1 << 16)), -32768, 32767))
        result = (parts * reciprocal + ((np.int64(1) << bits) >> 1)) >> bits
        return np.asarray(np.clip(result, 0, 32767), np.int16)

    def lower(self, site: Site) -> list[Step]:
        dims, (multiplier, shift) = site.input(0).dims, self.factor
        known = Factors("double", np.array([multiplier]), np.array([shift]))
        rows = tuple(Const(int(row[0]), Type(I32)) for row in known.rows().values())
        kernel = kernels.integer_softmax_16(
            math.prod(dims[:-1]), dims[-1], known.kernel(0, -(2**31), 2**31 - 1, I32), rows
        )
        return [Step(kernel, (Input(0), *map(Weights, softmax_tables(self.computed)), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(11)
        for shape, factor in (((3, 10), 0.9), ((1, 1), 1.0), ((2, 3, 17), 0.03), ((1, 300), 2.5)):
            x = rng.integers(-(1 << 15), 1 << 15, shape).astype(np.int16)
            yield Case(cls(quantized_multiplier(factor)), (x,), (), 0, label=f"{shape[-1]}")
