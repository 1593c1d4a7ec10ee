"""LSTM of integers as TFLite Micro's kernels compute it, with states of 8 or 16 bits.

Every product is requantised to 16 bits by itself; sigmoid and tanh interpolate in a table of 256 entries.
Source: tensorflow/lite/micro/kernels/lstm_eval.h and lstm_eval_common.cc.
"""

from __future__ import annotations

import numpy as np

from tenon.formats.decompositions.fixed_point import limited
from tenon.formats.decompositions.integer_arithmetic import Integers
from tenon.formats.importers.tflite.integer_lstm import IntegerLstm, scale_of, zero_of
from tenon.network.graph.types import I32, DType
from tenon.network.ops.requantize import limits, quantized_multiplier

FRACTION = 2.0**-15
"""The scale of what sigmoid and tanh give."""


class MicroLstm(IntegerLstm):
    """Without a coupled input gate, peepholes, a projection or normalised gates, which TFLite Micro lacks."""

    activations = (DType.I8, DType.I16)
    optional = ()

    @classmethod
    def takes(cls, gates: range) -> bool:
        return len(gates) == 4

    def factor(self, a: float, b: float, unit: float) -> float:
        return float(np.float32(a) * np.float32(b)) / unit

    def sums(self, own: Integers, h: Integers) -> Integers:
        return _added(own, self.again(h, DType.I16))

    def function(self, name: str, x: Integers, power: int = -12) -> Integers:
        """Sigmoid or tanh of numbers of the scale 2**power."""
        up = power + 12
        return x.node("IntegerSigmoid", function=name, multiplier=3 << max(up, 0), right=max(-up, 0))

    def mul(self, a: Integers, b: Integers, factor: float, to: DType, zero: int = 0) -> Integers:
        low, high = limits(to)
        return a.node(
            "IntegerMul", b, zeros=(0, 0, zero), low=low, high=high, to=to.value, factor=quantized_multiplier(factor)
        )

    def step(self, sums: dict[int, Integers], c: Integers) -> tuple[Integers, Integers]:
        enter, forget, out = (self.function("sigmoid", sums[k]) for k in (0, 1, 3))
        new = self.function("tanh", sums[2])
        unit = 2.0**self.power
        c = _added(self.mul(forget, c, FRACTION, DType.I16), self.mul(enter, new, FRACTION**2 / unit, DType.I16))
        if most := self.clip():
            c = c.minimum(most).maximum(-most)
        squashed = self.function("tanh", c, self.power)
        h = self.h
        return self.mul(squashed, out, FRACTION**2 / scale_of(h), h.dtype, zero_of(h)), c


def _added(a: Integers, b: Integers) -> Integers:
    """The sum of numbers of 16 bits, saturated."""
    return limited(a.to(I32) + b.to(I32)).to(DType.I16)
