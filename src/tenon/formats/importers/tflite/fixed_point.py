"""Sigmoid and tanh of 16-bit fixed-point numbers, as tables of what gemmlowp's arithmetic gives for each of them.

Source of the arithmetic: fixedpoint/fixedpoint.h of google/gemmlowp.  A number of n integer bits has 15 - n behind the
point; every step rounds to 16 bits, so the tables differ from rounded real functions by a few units.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tenon.network.graph.graph import Array

_ONE = 32767
"""The largest number without integer bits stands for 1."""


def high_product(a: Array, b: Array | int) -> Array:
    """Twice the product's upper half, ties rounded away from zero."""
    both = a * np.int64(b) if isinstance(b, int) else a * b
    nudged = both + np.where(both >= 0, 1 << 14, 1 - (1 << 14))
    return np.asarray(np.minimum(np.sign(nudged) * (np.abs(nudged) >> 15), _ONE))


def _divided(x: Array, bits: int) -> Array:
    """Over a power of two, ties rounded away from zero."""
    rest, half = x & ((1 << bits) - 1), (1 << bits) >> 1
    return np.asarray((x >> bits) + (rest > half - 1 + (x < 0)))


def _saturated(x: Array) -> Array:
    return np.clip(x, -32768, 32767)


def _constant(number: int) -> int:
    """A constant of 31 bits in 15."""
    return (number + (1 << 15)) >> 16


def _exp_of_quarter(a: Array) -> Array:
    """exp of [-1/4, 0), by a polynomial around -1/8."""
    x = a + (1 << 12)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    sixths = high_product(_divided(x4, 2) + x3, _constant(715827883)) + x2
    term = _constant(1895147668)
    return _saturated(term + high_product(x + _divided(sixths, 1), term))


def _exp_of_negative(a: Array, bits: int) -> Array:
    """exp of numbers that are not positive, of ``bits`` integer bits: a factor for each bit of whole quarters."""
    behind = 15 - bits
    quarter = 1 << (behind - 2)
    part = (a & (quarter - 1)) - quarter
    result = _exp_of_quarter(_saturated(part << bits))
    rest = part - a
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for exponent, factor in zip(range(-2, 5), factors, strict=True):
        if bits > exponent:
            result = np.where(rest & (1 << (behind + exponent)), high_product(result, _constant(factor)), result)
    if bits > 5:
        result = np.where(a < -(1 << (behind + 5)), 0, result)
    return np.where(a == 0, _ONE, result)


def _newton(a: Array) -> Array:
    """2 / (1 + a) of [0, 1], with two integer bits, by three steps of Newton's division."""
    total = a + _ONE
    half = np.sign(total) * ((np.abs(total) + 1) // 2)
    x = _constant(1515870810) + high_product(half, _constant(-1010580540))
    for _ in range(3):
        left = (1 << 13) - high_product(half, x)
        x = x + _saturated(high_product(x, left) << 2)
    return np.asarray(x)


def _numbers() -> Array:
    return np.arange(-32768, 32768, dtype=np.int64)


@lru_cache(maxsize=1)
def sigmoid_table() -> Array:
    """i16 [65536]: the sigmoid of i / 4096 for i from -32768 on, in units of 2**-15."""
    a = _numbers()
    x = _newton(_exp_of_negative(-np.abs(a), 3))
    positive = _saturated(x << 1)  # half of it, without integer bits
    result = np.where(a > 0, positive, _ONE - positive)
    return np.where(a == 0, 1 << 14, result).astype(np.int16)


@lru_cache(maxsize=8)
def tanh_table(bits: int) -> Array:
    """i16 [65536]: tanh of numbers of ``bits`` integer bits, from the least on, in units of 2**-15."""
    a = _numbers()
    x = _newton(_exp_of_negative(-np.abs(a), bits + 1)) - (1 << 13)
    positive = _saturated(x << 2)
    return np.where(a == 0, 0, np.where(a < 0, -positive, positive)).astype(np.int16)
