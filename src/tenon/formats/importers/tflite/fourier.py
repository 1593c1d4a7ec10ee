"""The Fourier transform in fixed point that TensorFlow Lite Micro computes, every rounding included.

A transform of n complex numbers (n a power of two) goes through stages of radix 4, one of radix 2 first where n is no
power of four.  A stage of radix p divides by p, multiplies by roots of unity and adds.  All that is stored has B bits
(16 or 32) and wraps around; products are rounded to the nearest from twice as many.  Division is a product with
(2**(B-1) - 1) // p, the roots are scaled by 2**(B-1) - 1.  A real transform of 2 n numbers is a complex one of the even
ones and the odd ones as real and imaginary parts, unravelled.  The inverse uses the conjugate roots and divides too.

Source of the definition: kissfft's documentation of FIXED_POINT, revision 33d9ad3, as TFLM builds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.integer_arithmetic import Integers, joined, stacked
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

MAX_LENGTH = 1 << 16
"""Numbers of one real transform."""

_TWICE = {DType.I16: DType.I32, DType.I32: DType.I64}


@dataclass(frozen=True)
class _Complex:
    """Complex numbers of B bits."""

    re: Integers
    im: Integers

    def __add__(self, other: _Complex) -> _Complex:
        return _Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: _Complex) -> _Complex:
        return _Complex(self.re - other.re, self.im - other.im)

    def times_i(self, sign: int) -> _Complex:
        """Times i, or -i."""
        return _Complex(-self.im, self.re) if sign > 0 else _Complex(self.im, -self.re)

    def conjugate(self) -> _Complex:
        return _Complex(self.re, -self.im)

    def over(self, divisor: int) -> _Complex:
        factor = _max_value(self.re.dtype) // divisor
        return _Complex(_rounded(_wide(self.re) * factor), _rounded(_wide(self.im) * factor))

    def times(self, roots: Array) -> _Complex:
        """``roots`` are scaled."""
        a = _wide(self.re)
        b = _wide(self.im)
        c = roots.real.astype(np.int64)
        d = roots.imag.astype(np.int64)
        return _Complex(_rounded(a * c - b * d), _rounded(a * d + b * c))

    def reshape(self, *dims: int) -> _Complex:
        return _Complex(self.re.reshape(*dims), self.im.reshape(*dims))

    def parts(self, axis: int) -> list[_Complex]:
        return [_Complex(*pair) for pair in zip(self.re.parts(axis), self.im.parts(axis), strict=True)]

    def take(self, indices: Array) -> _Complex:
        return _Complex(self.re.take(indices), self.im.take(indices))


def _together(values: list[_Complex]) -> _Complex:
    """End to end along the first axis."""
    return _Complex(joined([v.re for v in values], 0), joined([v.im for v in values], 0))


def _max_value(dtype: DType) -> int:
    return (1 << (8 * dtype.bytes - 1)) - 1


def _wide(x: Integers) -> Integers:
    return x.to(_TWICE[x.dtype])


def _rounded(product: Integers) -> Integers:
    narrow = DType.I16 if product.dtype is DType.I32 else DType.I32
    fraction = 8 * narrow.bytes - 1
    return ((product + (1 << (fraction - 1))) >> fraction).to(narrow)


def _roots(turns: Array, maximum: int) -> Array:
    """exp(2 pi i turns), scaled and rounded to the nearest."""
    angle = 2 * np.pi * turns
    return np.floor(0.5 + maximum * np.cos(angle)) + 1j * np.floor(0.5 + maximum * np.sin(angle))


def _transform(x: _Complex, sign: int) -> _Complex:
    """The complex Fourier transform along the first axis of [n, outer]; forward with -1, backward with 1.

    Before a stage, the array [m, p, rest] holds the transforms (of length m) of every rest * p-th number; it combines p
    of them into one.
    """
    n, outer = x.re.dims
    done, maximum = 1, _max_value(x.re.dtype)
    while done < n:
        radix = 2 if done == 1 and n.bit_length() % 2 == 0 else 4
        rest = n // (done * radix)
        x = x.reshape(done, radix, rest * outer).over(radix)
        if done > 1:  # else all roots are 1, and a product with 1 changes nothing that was just divided
            turns = np.outer(np.arange(done), np.arange(radix)) / (done * radix)
            x = x.times(_roots(sign * turns[:, :, None], maximum))
        x = _together(_butterfly(x.parts(1), sign))
        done *= radix
    return x.reshape(n, outer)


def _butterfly(x: list[_Complex], sign: int) -> list[_Complex]:
    """The transform of two or four numbers."""
    if len(x) == 2:
        return [x[0] + x[1], x[0] - x[1]]
    even, odd = [x[0] + x[2], x[0] - x[2]], [x[1] + x[3], (x[1] - x[3]).times_i(sign)]
    return [even[0] + odd[0], even[1] + odd[1], even[0] - odd[0], even[1] - odd[1]]


def real_transform(x: Integers) -> Integers:
    """The real Fourier transform along the last axis of [outer, 2 n]: [outer, 2 n + 2], real and imaginary parts
    interleaved.

    Raises RefusedError for lengths that are no powers of two.
    """
    outer, length = x.dims
    n = _half(length)
    z = _transform(_pairs(x), -1)
    ends, zeros = z.take(np.arange(1)).over(2), x.like(np.zeros((1, outer)))
    first, last = _Complex(ends.re + ends.im, zeros), _Complex(ends.re - ends.im, zeros)
    k = np.arange(1, n // 2 + 1)
    a, b = z.take(k).over(2), z.take(n - k).conjugate().over(2)
    times_i = (a - b).times(_roots(-_between(k, n), _max_value(x.dtype)))
    low, high = _half_sums(a + b, times_i)
    # the middle number is both; the second of the two is what stays
    y = _together([first, low.take(k[:-1] - 1), high.take(k[::-1] - 1), last])
    return _in_turns(y)


def real_inverse(x: Integers) -> Integers:
    """The inverse real Fourier transform along the last axis of [outer, 2 n + 2], real and imaginary parts interleaved:
    [outer, 2 n].

    Raises RefusedError for lengths that are no powers of two.
    """
    n = _half(x.dims[1] - 2)
    y = _pairs(x)
    first, last = y.take(np.arange(1)), y.take(np.arange(n, n + 1))
    ends = _Complex(first.re + last.re, first.re - last.re).over(2)
    k = np.arange(1, n // 2 + 1)
    a, b = y.take(k).over(2), y.take(n - k).conjugate().over(2)
    times_i = (a - b).times(_roots(_between(k, n), _max_value(x.dtype)))
    low, high = a + b + times_i, (a + b - times_i).conjugate()
    return _in_turns(_transform(_together([ends, low.take(k[:-1] - 1), high.take(k[::-1] - 1)]), 1))


def _half(length: int) -> int:
    if not 8 <= length <= MAX_LENGTH or length & (length - 1):
        raise RefusedError(f"a transform of {length} numbers is not supported; only powers of two from 8 on are")
    return length // 2


def _between(k: Array, n: int) -> Array:
    """The angles, in turns, between the spectra of even and odd elements, plus a quarter."""
    return (k[:, None] / n + 0.5) / 2


def _pairs(x: Integers) -> _Complex:
    """[n, outer] from pairs along the last axis of [outer, 2 n]."""
    parts = x.reshape(x.dims[0], -1, 2).parts(2)
    return _Complex(*(part.node("Transpose", perm=(1, 0)) for part in parts))


def _in_turns(y: _Complex) -> Integers:
    """[outer, 2 n] from [n, outer]."""
    n, outer = y.re.dims
    return stacked([y.re, y.im], 2).node("Transpose", perm=(1, 0, 2)).reshape(outer, 2 * n)


def _half_sums(a: _Complex, b: _Complex) -> tuple[_Complex, _Complex]:
    """(a + b) / 2 and the conjugate of (a - b) / 2, rounded down."""
    re, im, dtype = (_wide(a.re), _wide(b.re)), (_wide(a.im), _wide(b.im)), a.re.dtype

    def half(x: Integers) -> Integers:
        return (x >> 1).to(dtype)

    return (
        _Complex(half(re[0] + re[1]), half(im[0] + im[1])),
        _Complex(half(re[0] - re[1]), half(im[1] - im[0])),
    )
