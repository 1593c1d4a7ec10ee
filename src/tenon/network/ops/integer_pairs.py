"""Where convolutions and matrix products of quantised integers are computed by pairs (``kernels.integer_pairs``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tenon.machine.algorithms.integer_pairs import Mixed, PairStage
from tenon.machine.kernels import integer_pairs
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_pairs import PairConv, Rounding
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.requantize import Added, even_factors
from tenon.network.graph.graph import Array
from tenon.network.graph.types import ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import Arg
from tenon.network.ops.fitted_factors import fitted_factors, fitted_rows
from tenon.network.ops.requantize import Factors

BLOCK = 4
"""Channels that lie side by side."""


def layout(type: TensorType) -> Layout:
    """The layout of an image: single planes of one channel, else blocks of channels, without a halo."""
    return ROW_MAJOR if type.dims[1] == 1 else Layout(BLOCK, ((0, 0),) * (type.rank - 2))


def image(type: TensorType) -> Image:
    """An image in that layout."""
    return Image.of(type.with_layout(layout(type)))


@dataclass(frozen=True, eq=False)
class _Requantized:
    """The bias and the factors that a kernel takes, how it rounds, and ``PairConv.left``; of "even" rounding also the
    factors that are fitted, but for channels that must be multiplied by floats, and the shift to the left of sums."""

    bias: Array
    factors: Array
    rounding: Rounding = "double"
    left: int = 0
    fitted: Array | None = None
    by_floats: Array | None = None
    fitted_left: int = 0


@dataclass(frozen=True, eq=False)
class PairNumbers:
    """The weights [out, in / groups, kh, kw] of i8 of a product by pairs, and how its sums are requantised, with
    "double" rounding or in floats.

    ``bias`` includes the correction for the zero point of x; ``sums`` are the largest magnitudes of the sums.
    ``factors`` have one number for each channel, or one for all.  ``added`` is the input that is added to the sums, if
    there is one.  ``in_floats``: the machine multiplies floats fast.
    """

    weights: Array
    bias: Array
    sums: Array
    factors: Factors
    fill: int
    zero: int
    low: int
    high: int
    in_floats: bool = False
    added: Added | None = None

    @property
    def possible(self) -> bool:
        """Whether the kernels requantise by such factors."""
        return self.requantized is not None

    @cached_property
    def requantized(self) -> _Requantized | None:
        """The bias and the factors of the kernel, None where there are none.  A channel without weights has one result,
        whatever its factor, unless something is added to it."""
        count = len(self.weights)
        live = self.weights.reshape(count, -1).any(axis=1) if self.added is None else np.ones(count, bool)
        dead: Array = np.logical_not(live)
        known = self._fixed(dead) if self.factors.rounding == "double" else self._of_floats(dead)
        if known is None and self.factors.rounding == "float" and self.in_floats:
            values = np.broadcast_to(self.factors.values, count)
            return _Requantized(self.bias, np.ascontiguousarray(values[:, None]), "float")
        if known is None:
            return None
        results = np.clip(self.factors.apply(self.bias) + self.zero, self.low, self.high)
        constant = np.stack([np.full(count, -(1 << 31)), 2 * results + 1, np.ones(count)], 1)
        for factors in (known.factors, known.fitted):
            if factors is not None:
                factors[dead] = constant[dead]
        return replace(known, bias=np.where(dead, 0, self.bias).astype(np.int32))

    def _fixed(self, dead: Array) -> _Requantized | None:
        """Factors in fixed point, any for channels that are ``dead``."""
        assert self.factors.shifts is not None
        values, shifts = (np.broadcast_to(a, len(dead)) for a in (self.factors.values, self.factors.shifts))
        known = integer_pairs.factors(
            np.where(dead, 1 << 30, values),
            np.where(dead, 1, -shifts),
            self.zero,
            np.where(dead, 0, self.sums),
            signed=self.zero > self.low,
        )
        return None if known is None else _Requantized(self.bias, known)

    def _of_floats(self, dead: Array) -> _Requantized | None:
        """The same for factors in f32, in integers."""
        if self.factors.slope != 1:
            return None
        values = np.where(dead, np.float32(0.011), np.broadcast_to(self.factors.values, len(dead)))
        sums = np.where(dead, 0, self.sums)
        if (fitted := fitted_factors(values, self.zero, self.low, self.high, sums)) is not None:
            return _Requantized(self.bias, integer_pairs.wrapped(fitted[0]), "double", fitted[1])
        even = None if self.in_floats else even_factors(values, self.zero, sums)
        if even is None:
            return None
        known = _Requantized(self.bias, integer_pairs.wrapped(even[0]), "even", even[1])
        per_channel = fitted_rows(values, self.zero, self.low, self.high, sums)
        if per_channel is None:
            return known
        rows = np.array([row or (1 << 30, 0, 1) for row in per_channel[0]], np.int32).T
        by_floats = np.array([row is None for row in per_channel[0]])
        return replace(known, fitted=integer_pairs.wrapped(rows), by_floats=by_floats, fitted_left=per_channel[1])


@dataclass(frozen=True, eq=False)
class PairProduct:
    """A convolution of i8 by pairs, of numbers that are possible.

    ``operands`` are the factors and the input that is added to the sums, and the inputs that the epilogue reads.
    """

    conv: Conv
    numbers: PairNumbers
    operands: tuple[Arg, ...] = ()

    @property
    def described(self) -> PairConv:
        known, n = self._requantized, self.numbers
        signed = n.factors.rounding == "double" and n.zero > n.low
        slope = n.factors.slope
        return PairConv(self.conv, n.fill, signed, n.low, n.high, slope, n.added, n.zero, known.rounding, known.left)

    @property
    def problem(self) -> Conv:
        """The convolution that an algorithm is chosen for."""
        return replace(self.conv, paired=True, operands=())

    @property
    def stage(self) -> PairStage:
        """The convolution in its context."""
        known, mixed = self._requantized, None
        if known.fitted is not None and known.by_floats is not None:
            mixed = Mixed(known.fitted, known.by_floats, known.fitted_left)
        return PairStage(
            self.conv,
            self.numbers.weights,
            known.bias,
            self.operands,
            described=self.described,
            factors=known.factors,
            mixed=mixed,
        )

    @property
    def _requantized(self) -> _Requantized:
        known = self.numbers.requantized
        assert known is not None
        return known


def available(machine: Machine) -> bool:
    """Whether a machine uses this family of kernels at all."""
    return machine.has("dot2_i16") or machine.has("mul")


def supports(c: Conv, machine: Machine) -> bool:
    """Whether there are kernels for such images."""
    if not available(machine):
        return False
    if (c.x.dtype, c.y.dtype, c.weights) != (DType.I8,) * 3 or c.y.block not in (BLOCK, c.y.channels):
        return False
    whole = c.y.channels % BLOCK == 0 or c.y.block == c.y.channels
    if c.depthwise:
        return whole and c.x.channels > 1 and c.dilation[1] == 1 and c.x.block == BLOCK
    fours = c.x.block == BLOCK or (c.x.blocks == 1 and c.x.channels % BLOCK == 0)
    return whole and c.groups == 1 and (c.x.channels == 1 or fours)
