"""Functions of 16-bit integers by tables, between whose entries they interpolate: sigmoid, tanh and softmax.

See ``ops.integer_functions`` for the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, less, maximum, minimum, op, select
from tenon.machine.kernels.integer_softmax import top_bit
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.requantize import Requantize
from tenon.network.graph.types import I32, DType

ENTRIES = 256
"""Entries in the table of half a sigmoid."""

STEPS = 512
"""Steps of a table over all numbers of 16 bits."""


@dataclass(frozen=True)
class IntegerSigmoid:
    """Numbers of 16 bits times ``multiplier``, shifted ``right``, are units of 1/(24 * 512) of a sigmoid's argument, or
    of 1/(48 * 256) of a tanh's.
    """

    function: Literal["sigmoid", "tanh"]
    multiplier: int
    right: int
    count: int

    @property
    def fraction(self) -> int:
        """Bits of the argument between two entries."""
        return 9 if self.function == "sigmoid" else 8


@lru_cache(maxsize=64)
def integer_sigmoid(s: IntegerSigmoid) -> Kernel:
    """Parameters: x [count] in i16, the table i16 [256] of 65536 * sigmoid(i / 24) - 32768, y [count] in i16."""
    bits = s.fraction
    k = Builder(f"integer_{s.function}_{s.count}", f"{s.function} of {s.count} integers of 16 bits, interpolated")
    x = k.param("x", s.count, dtype=DType.I16)
    t = k.param("t", ENTRIES, dtype=DType.I16)
    y = k.param("y", s.count, dtype=DType.I16, out=True)
    (kind,), _ = deal(s.count)
    with k.loop("i", s.count, kind=kind) as i:
        scaled = cast(x[i], I32) * s.multiplier
        given = k.let("given", (scaled + (1 << (s.right - 1))) >> s.right if s.right else scaled)
        size = k.let("size", op("abs", given))
        part = op("and", size, (1 << bits) - 1)
        between = k.local("b", 1, dtype=I32)
        between[0] = 0
        with k.bind("entry", minimum(size >> bits, ENTRIES - 2), ENTRIES - 1) as entry:
            low = k.let("low", cast(t[entry], I32))
            between[0] = ((low + (1 << 15)) << bits) + part * (cast(t[entry + 1], I32) - low)
        most = (0x7FFF << 10) if s.function == "sigmoid" else (0xFFFF << 8)
        magnitude = k.let("found", select(less(size, (ENTRIES - 1) << bits), between[0], most))
        if s.function == "sigmoid":
            ends = magnitude + (1 << 9), (1 << 25) + (1 << 9) - 1 - magnitude
            y[i] = cast(select(less(given, 0), ends[1], ends[0]) >> 10, DType.I16)
        else:
            ends = magnitude - (1 << 23) + (1 << 7), (1 << 23) + (1 << 7) - 1 - magnitude
            y[i] = cast(select(less(given, 0), ends[1], ends[0]) >> 8, DType.I16)
    return k.done()


def _interpolated(k: Builder, table: Tensor, code: Expr) -> Expr:
    """A function of 16 bits by a table [513]."""
    code = k.let("code", minimum(maximum(code, -(1 << 15)), (1 << 15) - 1))
    between = k.local("b", 1, dtype=I32)
    between[0] = 0
    with k.bind("entry", (code >> 7) + STEPS // 2, STEPS) as entry:
        base = k.let("base", cast(table[entry], I32))
        slope = cast(table[entry + 1], I32) - base
        between[0] = base + ((slope * op("and", code, 127) + 64) >> 7)
    return between[0]


@lru_cache(maxsize=64)
def integer_interpolation(count: int) -> Kernel:
    """Parameters: x [count] in i16, the table i16 [513], y [count] in i16."""
    k = Builder(f"integer_interpolation_{count}", f"A function of {count} integers of 16 bits, interpolated in a table")
    x = k.param("x", count, dtype=DType.I16)
    t = k.param("t", STEPS + 1, dtype=DType.I16)
    y = k.param("y", count, dtype=DType.I16, out=True)
    (kind,), _ = deal(count)
    with k.loop("i", count, kind=kind) as i:
        y[i] = cast(_interpolated(k, t, cast(x[i], I32)), DType.I16)
    return k.done()


@lru_cache(maxsize=64)
def integer_softmax_16(rows: int, length: int, scaled: Requantize, factors: tuple[Expr, ...]) -> Kernel:
    """Parameters: x [rows, length] in i16, the tables i16 [513] of exp and of the reciprocal, y."""
    k = Builder(f"integer_softmax_16_{rows}x{length}", f"Softmax of {rows} rows of {length} integers of 16 bits")
    x = k.param("x", rows, length, dtype=DType.I16)
    exps = k.param("t", STEPS + 1, dtype=DType.I16)
    reciprocals = k.param("r", STEPS + 1, dtype=DType.I16)
    y = k.param("y", rows, length, dtype=DType.I16, out=True)
    (kind,), _ = deal(rows)
    with k.loop("i", rows, kind=kind) as i:
        most = k.local("m", 1, dtype=I32)
        total = k.local("s", 1, dtype=I32)
        most[0] = -(1 << 15)
        total[0] = 0
        with k.loop("j", length) as j:
            most[0] = maximum(most[0], cast(x[i, j], I32))
        with k.loop("j", length) as j:
            difference = k.let("d", cast(x[i, j], I32) - most[0])
            total[0] = total[0] + _interpolated(k, exps, scaled.scaled(difference, factors) + 32767)
        bits = k.let("bits", top_bit(k.let("sum", total[0])))
        whole = ((total[0] << (30 - bits)) >> 13) + 1
        reciprocal = k.let("reciprocal", _interpolated(k, reciprocals, (whole >> 1) - ((1 << 15) + (1 << 16))))
        half = k.let("half", (total[0] * 0 + 1) << (bits - 1))
        with k.loop("j", length) as j:
            difference = k.let("d", cast(x[i, j], I32) - most[0])
            share = _interpolated(k, exps, scaled.scaled(difference, factors) + 32767) * reciprocal
            y[i, j] = cast(minimum(maximum((share + half) >> bits, 0), (1 << 15) - 1), DType.I16)
    return k.done()
