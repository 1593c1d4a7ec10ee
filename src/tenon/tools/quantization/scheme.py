"""Schemes: the integers that a model is quantised to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import limits


@dataclass(frozen=True)
class QuantParams:
    """real = ``scale`` * (integer - ``zero``); vectors hold one entry per channel of weights."""

    scale: Array
    zero: Array
    dtype: DType

    def quantised(self, values: Array, axis: int | None = None) -> Array:
        """The nearest integers, halves to even, saturated; ``axis`` is that of the channels."""
        shape = [-1 if i == axis else 1 for i in range(values.ndim)] if axis is not None else [1] * values.ndim
        scale, zero = self.scale.reshape(shape), self.zero.reshape(shape)
        steps = np.rint(values.astype(np.float32) / scale) + zero.astype(np.float32)
        stored: Array = np.clip(steps, *limits(self.dtype)).astype(self.dtype.numpy)
        return stored


def bits_of(dtype: DType) -> int:
    """The number of bits that an element takes in a file."""
    if dtype.is_float:
        return 8 * dtype.bytes
    low, high = limits(dtype)
    return (high - low).bit_length()


@dataclass(frozen=True)
class Scheme:
    """Types and symmetry of activations and weights.

    ``per_channel``: one scale for each output channel of weights instead of one for all.  ``power_of_two``: scales are
    rounded up to powers of two.  Of ``activations`` in f32 weights alone are stored in ``weights``, with a scale for
    each ``block`` of those of an output channel (0: for all of them).
    """

    name: str
    activations: DType = DType.I8
    weights: DType = DType.I8
    symmetric: bool = False
    symmetric_weights: bool = True
    per_channel: bool = True
    power_of_two: bool = False
    block: int = 0

    @property
    def weights_only(self) -> bool:
        """Whether activations stay in f32."""
        return self.activations is DType.F32

    def of_outer_weights(self) -> Scheme:
        """For the first and the last layers of a network where these have few weights: of 8 bits at least, because
        their noise counts most."""
        return replace(self, weights=DType.I8) if bits_of(self.weights) < 8 else self

    def activation_grid(self, low: float, high: float) -> QuantParams:
        """The grid of a tensor of values from ``low`` to ``high``, widened to have 0."""
        return _grid(np.array([low]), np.array([high]), self.activations, self.symmetric, self.power_of_two)

    def weight_grid(self, weights: Array, axis: int) -> QuantParams:
        """The grid of weights with output channels along ``axis``."""
        others = tuple(i for i in range(weights.ndim) if i != axis) if self.per_channel else None
        low, high = (np.atleast_1d(f(weights, axis=others)).astype(np.float64) for f in (np.min, np.max))
        return _grid(low, high, self.weights, self.symmetric_weights, self.power_of_two)


OF_ZEROS = 2.0**-7
"""The scale of a tensor that is always zero.  Not 1, which stands for integers that are no real numbers."""


def _grid(low: Array, high: Array, dtype: DType, symmetric: bool, power_of_two: bool) -> QuantParams:
    least, most = limits(dtype)
    low, high = np.minimum(low, 0.0).astype(np.float64), np.maximum(high, 0.0).astype(np.float64)
    if symmetric:  # without the least integer, whose negative does not exist
        scale = np.maximum(-low, high) / (most if least < 0 else (most - least) // 2)
    else:
        scale = (high - low) / (most - least)
    scale = np.where(scale < np.finfo(np.float32).tiny, OF_ZEROS, scale)
    if power_of_two:
        scale = np.exp2(np.ceil(np.log2(scale)))
    scale = scale.astype(np.float32)
    middle = 0 if least < 0 else (most - least + 1) // 2
    zero = np.full(scale.shape, middle) if symmetric else np.clip(np.rint(least - low / scale), least, most)
    return QuantParams(scale, zero.astype(dtype.numpy), dtype)


SCHEMES = {
    each.name: each
    for each in (
        Scheme("int8"),
        Scheme("int8-symmetric", symmetric=True),
        Scheme("int8-per-tensor", per_channel=False),
        Scheme("int8-power-of-two", symmetric=True, per_channel=False, power_of_two=True),
        Scheme("uint8", DType.U8, DType.U8, symmetric_weights=False, per_channel=False),
        Scheme("uint8-per-channel", DType.U8),
        Scheme("int4-weights", weights=DType.I4),
        Scheme("int16x8", DType.I16, symmetric=True),
        Scheme("int8-weights-only", DType.F32),
        Scheme("int4-weights-only", DType.F32, DType.I4, block=32),
        Scheme("fp16", DType.F32, DType.F16),
        Scheme("bf16", DType.F32, DType.BF16),
    )
}
"""By name: ``int8`` has asymmetric activations and symmetric weights with one scale for each output channel."""


def named_scheme(name: str) -> Scheme:
    """Raises InputError for an unknown name."""
    if name not in SCHEMES:
        raise InputError(f"there is no quantisation scheme '{name}': choose one of {', '.join(SCHEMES)}")
    return SCHEMES[name]
