"""The effect of 16-bit numbers on a sum of products: the largest error over the RMS of its output channel.

For inputs that are random, of mean zero and independent, an output is a sum with a standard deviation that follows from
the weights, and so is its error: with d the most that storage moves a weight w, the deviations are in the ratio of
sqrt(sum d^2) and sqrt(sum w^2).  The error of Winograd's algorithm, whose transformed weights and inputs are rounded,
follows through the squares of its transforms.  ``SIGMAS`` deviations are the largest of some millions of outputs.
"""

from __future__ import annotations

import numpy as np

from tenon.machine.kernels.rows import LONGEST_F16
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

SIGMAS = 5.0

_BITS = {DType.F16: (11, -14), DType.BF16: (8, -126)}
"""Bits of a number, and the exponent of the least that has them all."""


def relative(dtype: DType) -> float:
    """By how much rounding moves a number, over the number: the root of the mean square."""
    return 2.0 ** -(_BITS[dtype][0] + 1) if dtype in _BITS else 0.0


_AT_ONCE = 1 << 20
"""Weights whose errors are computed at a time, in f64."""


def half_steps(a: Array, dtype: DType) -> Array:
    """The most that rounding to ``dtype`` moves each element; f64, zeros for types that are not narrow.  Of i8 it is
    half a step of the scale."""
    if dtype is DType.I8:
        return np.full(a.shape, 0.5)
    if dtype not in _BITS:
        return np.zeros(a.shape)
    bits, least = _BITS[dtype]
    exponents = np.maximum(np.frexp(a.astype(np.float64))[1] - 1, least)
    return np.where(a == 0, 0.0, np.ldexp(1.0, exponents - bits))


def direct(weights: Array, x: DType, y: DType, *, halves: bool = False) -> float:
    """Error of sums by ``weights`` [outputs, ...], as stored, of inputs of the type ``x`` and for outputs of ``y``.

    ``halves``: products are added in f16, ``LONGEST_F16`` at a time.  A chain of n additions rounds n partial results,
    which are on average half of the whole in mean square.
    """
    rows = weights.reshape(len(weights), -1)
    largest, step = 0.0, max(1, _AT_ONCE // max(1, rows.shape[1]))
    for first in range(0, len(rows), step):
        wide = rows[first : first + step].astype(np.float64)
        power = (wide**2).sum(1)
        off = (half_steps(wide, DType.of(weights.dtype)) ** 2).sum(1) + relative(x) ** 2 * power
        if halves:
            off += (min(wide.shape[1], LONGEST_F16) + 1) / 2 * relative(DType.F16) ** 2 * power
        largest = max(largest, _largest(off, power))
    return SIGMAS * float(np.sqrt(largest + _result(y)))


def transformed(u: Array, dtype: DType, x: DType, left: Array, right: Array, weights: Array) -> float:
    """Error of Winograd's algorithm with transformed weights ``u`` [rows, cols, outputs, inputs] stored as ``dtype``
    and transformed inputs rounded to ``x``.

    ``left`` and ``right`` are (squares of A^T [m, side]) * (power of inputs [side]) of rows and columns; ``weights``
    [outputs, ...] are those that were transformed.
    """
    off = (half_steps(u, dtype) ** 2).sum(3) + relative(x) ** 2 * (u.astype(np.float64) ** 2).sum(3)
    products = np.einsum("pi,qj,ijo->pqo", left, right, off).max((0, 1))
    power = (weights.astype(np.float64).reshape(len(weights), -1) ** 2).sum(1)
    return SIGMAS * float(np.sqrt(_largest(products, power)))


def _largest(off: Array, power: Array) -> float:
    return float(np.max(off / np.where(power > 0, power, np.inf), initial=0.0))


def _result(y: DType) -> float:
    """The mean square, over that of the result, of rounding a result of ``SIGMAS`` deviations."""
    return (2 * relative(y)) ** 2
