"""Scalar definitions of TensorFlow Lite Micro's signal operators in Python integers, which graphs are compared with."""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping, Sequence

Numbers = Sequence[int]


def signed(x: int, bits: int) -> int:
    """Wrapped around into ``bits`` bits."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def unsigned(x: int, bits: int = 32) -> int:
    return x & ((1 << bits) - 1)


def window(x: Numbers, weights: Numbers, shift: int) -> list[int]:
    return [min(max(x[i] * weights[i % len(weights)] >> shift, -32768), 32767) for i in range(len(x))]


def auto_scale(x: Numbers) -> tuple[list[int], int]:
    largest = max(abs(v) for v in x)
    bits = max(0, 15 - largest.bit_length()) if largest else 0
    return [v << bits for v in x], bits


# ------------------------------------------------------------------------------------- fixed-point transform
class Fixed:
    """Complex arithmetic on pairs of ``bits``-bit integers, with the rounding of the definition."""

    def __init__(self, bits: int) -> None:
        self.bits, self.most = bits, (1 << (bits - 1)) - 1

    def cut(self, x: int) -> int:
        return signed(x, self.bits)

    def rounded(self, x: int) -> int:
        return self.cut((x + (1 << (self.bits - 2))) >> (self.bits - 1))

    def root(self, turns: float) -> tuple[int, int]:
        z = cmath.exp(2j * math.pi * turns)
        return math.floor(0.5 + self.most * z.real), math.floor(0.5 + self.most * z.imag)

    def over(self, z: tuple[int, int], divisor: int) -> tuple[int, int]:
        return self.rounded(z[0] * (self.most // divisor)), self.rounded(z[1] * (self.most // divisor))

    def times(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return self.rounded(a[0] * b[0] - a[1] * b[1]), self.rounded(a[0] * b[1] + a[1] * b[0])

    def add(self, a: tuple[int, int], b: tuple[int, int], sign: int = 1) -> tuple[int, int]:
        return self.cut(a[0] + sign * b[0]), self.cut(a[1] + sign * b[1])

    def transform(self, x: list[tuple[int, int]], sign: int = -1) -> list[tuple[int, int]]:
        """FFT of a power-of-two length, radix 4 where possible, else radix 2; ``sign=1`` is the inverse."""
        n = len(x)
        if n == 1:
            return x
        radix = 4 if n % 4 == 0 else 2
        m = n // radix
        parts = [self.transform(x[q::radix], sign) for q in range(radix)]
        y = [(0, 0)] * n
        for k in range(m):
            z = [self.times(self.over(parts[q][k], radix), self.root(sign * q * k / n)) for q in range(radix)]
            z[0] = self.over(parts[0][k], radix)
            if radix == 2:
                y[k], y[k + m] = self.add(z[0], z[1]), self.add(z[0], z[1], -1)
                continue
            sums, gap = self.add(z[1], z[3]), self.add(z[1], z[3], -1)
            even, odd = self.add(z[0], z[2]), self.add(z[0], z[2], -1)
            turned = (self.cut(sign * -gap[1]), self.cut(sign * gap[0]))
            y[k], y[k + 2 * m] = self.add(even, sums), self.add(even, sums, -1)
            y[k + m], y[k + 3 * m] = self.add(odd, turned), self.add(odd, turned, -1)
        return y


def rfft(x: Numbers, length: int, bits: int = 16) -> list[int]:
    """Real and imaginary parts, interleaved."""
    fixed, n = Fixed(bits), length // 2
    x = [*x, *[0] * (length - len(x))]
    z = fixed.transform(list(zip(x[::2], x[1::2], strict=True)))
    y = [(0, 0)] * (n + 1)
    re, im = fixed.over(z[0], 2)
    y[0], y[n] = (fixed.cut(re + im), 0), (fixed.cut(re - im), 0)
    for k in range(1, n // 2 + 1):
        a, b = fixed.over(z[k], 2), fixed.over((z[n - k][0], fixed.cut(-z[n - k][1])), 2)
        total, turned = fixed.add(a, b), fixed.times(fixed.add(a, b, -1), fixed.root(-(k / n + 0.5) / 2))
        y[k] = fixed.cut((total[0] + turned[0]) >> 1), fixed.cut((total[1] + turned[1]) >> 1)
        y[n - k] = fixed.cut((total[0] - turned[0]) >> 1), fixed.cut((turned[1] - total[1]) >> 1)
    return [part for pair in y for part in pair]


def irfft(x: Numbers, bits: int = 16) -> list[int]:
    """From interleaved real and imaginary parts."""
    fixed, n = Fixed(bits), len(x) // 2 - 1
    f = list(zip(x[::2], x[1::2], strict=True))
    z = [(0, 0)] * n
    z[0] = fixed.over((fixed.cut(f[0][0] + f[n][0]), fixed.cut(f[0][0] - f[n][0])), 2)
    for k in range(1, n // 2 + 1):
        a, b = fixed.over(f[k], 2), fixed.over((f[n - k][0], fixed.cut(-f[n - k][1])), 2)
        total, turned = fixed.add(a, b), fixed.times(fixed.add(a, b, -1), fixed.root((k / n + 0.5) / 2))
        z[k], last = fixed.add(total, turned), fixed.add(total, turned, -1)
        z[n - k] = last[0], fixed.cut(-last[1])
    return [part for pair in fixed.transform(z, 1) for part in pair]


def energy(x: Numbers, start: int, end: int) -> list[int]:
    inside = range(start, end)
    return [unsigned(x[2 * i] ** 2 + x[2 * i + 1] ** 2) if i in inside else 0 for i in range(len(x) // 2)]


# ------------------------------------------------------------------------------------------------ filter bank
def filter_bank(x: Numbers, tables: Sequence[Numbers], channels: int) -> list[int]:
    weights, unweights, frequencies, places, widths = tables
    sums, carried = list[int](), 0
    for i in range(channels + 1):
        rising, fading = carried, 0
        for j in range(widths[i]):
            rising += weights[places[i] + j] * x[frequencies[i] + j]
            fading += unweights[places[i] + j] * x[frequencies[i] + j]
        sums.append(unsigned(rising, 64))
        carried = fading
    return sums[1:]


def square_root(x: Numbers, shift: int) -> list[int]:
    def root(n: int) -> int:
        r = math.isqrt(n)
        return min(r + (n - r * r > r), 0xFFFF if n >> 32 == 0 else 0xFFFFFFFF)

    return [root(n) >> shift for n in x]


def spectral_subtraction(x: Numbers, noise: Numbers, options: Mapping[str, int]) -> tuple[list[int], list[int]]:
    y, after = list[int](), list[int]()
    bits, fraction = options["smoothing_bits"], options["spectral_subtraction_bits"]
    for i, (v, old) in enumerate(zip(x, noise, strict=True)):
        prefix = "alternate_" if i % 2 else ""
        scaled = unsigned(v << bits)
        mean = scaled * options[f"{prefix}smoothing"] + old * options[f"{prefix}one_minus_smoothing"]
        estimate = unsigned(mean >> fraction)
        less = min(estimate, scaled)
        after.append(less if options["clamping"] else estimate)
        y.append(max((scaled - less) >> bits, unsigned(v * options["min_signal_remaining"] >> fraction)))
    return y, after


# --------------------------------------------------------------------------------------------------- loudness
def gain(noise: int, table: Numbers) -> int:
    if noise <= 2:
        return table[noise]
    bits = noise.bit_length()
    a, b, c = table[4 * bits - 6 : 4 * bits - 3]
    fraction = (noise << (11 - bits) if bits < 11 else noise >> (bits - 11)) & 0x3FF
    return signed((((c * fraction >> 5) + (b << 5)) * fraction + (1 << 14) >> 15) + a, 16)


def pcan(x: Numbers, noise: Numbers, table: Numbers, shift: int) -> list[int]:
    y = []
    for v, n in zip(x, noise, strict=True):
        ratio = unsigned(v * unsigned(gain(n, table)) >> shift)
        y.append(ratio * ratio >> 20 if ratio < 2 << 12 else (ratio >> 6) - (1 << 6))
    return y


def logarithm(x: Numbers, scale: int, correction: int) -> list[int]:
    table = [round(65536 * (math.log2(1 + i / 128) - i / 128)) for i in range(129)]

    def log(v: int) -> int:
        if v <= 1:
            return 0
        whole = v.bit_length() - 1
        rest = v - (1 << whole)
        rest = rest << (16 - whole) if whole < 16 else rest >> (whole - 16)
        place = rest >> 9
        line = (table[place + 1] - table[place]) * (rest - 512 * place) >> 16
        natural = unsigned((((whole << 16) + rest + table[place] + line) * 45426 + 32768) >> 16)
        return min(unsigned(scale * natural + 32768) >> 16, 32767)

    return [log(unsigned(v << correction)) for v in x]
