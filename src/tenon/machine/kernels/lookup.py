"""Functions by tables: of 8-bit integers by 256 results; of f32 or i16 to those of 8 bits by 255 thresholds.

A monotonic function with 256 results is known exactly by the least number that each result is for, which bisection
finds in eight steps without arithmetic of floats: their bits are ordered as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir import loops
from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, cast, op, select
from tenon.machine.kernels.image import Box, collapse
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.pointwise import load_elements, place
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

CODES = 256
"""Entries of a table."""
NARROWEST = 16
"""The fewest bytes that are looked up at once."""


@dataclass(frozen=True)
class Lookup:
    """``output = table[input - lowest]``; of an f32 or an i16, ``lowest`` plus the number of thresholds of the table,
    from its second entry on, that it (an f32 by its ``order``) reaches.  Where the i32 ``mask`` is zero the output is
    zero.

    With a ``shift`` the table has starts for an i16, and a second one the threshold after each result: the output is
    ``table[(input + 2**15) >> shift]``, and one more where the input reaches the threshold after that.
    """

    input: Box
    output: Box
    lowest: int
    mask: Box | None = None
    shift: int = 0


@lru_cache(maxsize=256)
def lookup(s: Lookup, machine: Machine) -> Kernel:
    """Parameters: x, the table, with a shift thresholds in i32 [256], the mask if there is one, y."""
    source, out, *masks = collapse([s.input, s.output, *([s.mask] if s.mask else [])])
    size, bisected = "x".join(map(str, out.size)), source.dtype in (F32, DType.I16) and not s.shift
    in_vectors = out.dtype.bytes == source.dtype.bytes == 1 and out.size[-1] >= NARROWEST
    entries = machine.table.entries if machine.table and in_vectors else 0
    named = ("thresholds", "255 thresholds, by bisection") if bisected else ("lookup", "a table of 256 results")
    if s.shift:
        named = "steps", "a table of starts and a threshold"
    many = "Many elements at once" if entries else "Element by element"
    k = Builder(f"{named[0]}_{size}", f"{many} by {named[1]}")
    x = k.param("x", *source.shape, dtype=source.dtype)
    table = k.param("t", (1 << 16) >> s.shift if s.shift else CODES, dtype=I32 if bisected else out.dtype)
    following = k.param("n", CODES, dtype=I32) if s.shift else None
    m = k.param("m", *masks[0].shape, dtype=I32) if masks else None
    y = k.param("y", *out.shape, dtype=out.dtype, out=True)
    parts = table_parts(k, table, entries, s.lowest) if entries else []
    with ExitStack() as rows:
        kinds, inside = deal(*out.size[:-1])
        outer = [rows.enter_context(k.loop("i", n, kind=kind)) for n, kind in zip(out.size[:-1], kinds, strict=True)]
        for start, count, lanes in _pieces(out.size[-1], entries):
            with ExitStack() as stack:
                at = (*outer, stack.enter_context(k.loop("j", count, kind=inside)) * lanes + start)
                code = load_elements(x, source, at, lanes)
                if bisected:
                    key = k.let("key", ordered(code) if source.dtype is F32 else cast(code, I32))
                    value = cast(_reached(k, stack, table, key) + s.lowest, out.dtype)
                elif following is not None:
                    value = cast(_stepped(k, stack, table, following, cast(code, I32), s), out.dtype)
                elif lanes > 1:
                    value = loops.lookup(bitcast(code, out.dtype), parts)
                else:
                    value = table[stack.enter_context(k.bind("code", cast(code, I32) - s.lowest, CODES))]
                if m is not None:
                    value = _kept(load_elements(m, masks[0], at, lanes), value)
                k.store(y.buffer, place(out, at), value)
    return k.done()


def steps_of(thresholds: Array, dtype: DType) -> tuple[int, Array, Array] | None:
    """(shift, starts, threshold after each result) for a ``Lookup`` with a shift: of at most 4096 starts, where no
    more than one threshold is between two starts.  None if there are more."""
    inner = thresholds[1:].astype(np.int64)
    for shift in range(15, 3, -1):
        firsts = np.arange(-(1 << 15), 1 << 15, 1 << shift)
        starts = np.searchsorted(inner, firsts, "right")
        lasts = np.searchsorted(inner, firsts + (1 << shift) - 1, "right")
        if (lasts - starts <= 1).all():
            following = np.append(inner, 1 << 15).astype(np.int32)
            return shift, (starts + lowest(dtype)).astype(dtype.numpy), following
    return None


def _kept(mask: Expr, value: Expr) -> Expr:
    """``value``, or zero of its type."""
    dtype = value.type.dtype
    return select(mask, value, 0.0) if dtype is F32 else cast(select(mask, cast(value, I32), 0), dtype)


def table_parts(k: Builder, table: Tensor, entries: int, lowest: int) -> list[Expr]:
    """A table in vectors, in the order of the bytes that look it up: those of numbers below zero are the greater."""
    parts: list[Expr] = [k.let("part", table.vec(entries)[i]) for i in range(CODES // entries)]
    halfway = len(parts) // 2 if lowest else 0
    return parts[halfway:] + parts[:halfway]


def _pieces(n: int, entries: int) -> list[tuple[int, int, int]]:
    """``n`` elements in vectors of at most ``entries``, and the rest one by one: (start, iterations, lanes)."""
    if not entries:
        return [(0, n, 1)]
    wide = [piece for piece in lane_segments(n, entries) if piece[2] >= NARROWEST]
    done = wide[-1][0] + wide[-1][1] * wide[-1][2]
    return [*wide, *([(done, n - done, 1)] if done < n else [])]


def ordered(x: Expr) -> Expr:
    """An i32 that is less than that of another f32 where the f32 is."""
    bits = bitcast(x, I32)
    return op("xor", bits, op("and", bits >> 31, 0x7FFFFFFF))


def _reached(k: Builder, stack: ExitStack, table: Tensor, key: Expr) -> Expr:
    """The last entry of the table that is not above ``key``; 0: none but perhaps the first."""
    position: Expr = Const(0, Type(I32))
    for step in (1 << bit for bit in reversed(range(8))):
        at = stack.enter_context(k.bind("at", _either(position, Const(step, Type(I32))), CODES))
        reached = op("and", op("less_equal", table[at], key), step)
        position = k.let("found", _either(position, reached))
    return position


def _stepped(k: Builder, stack: ExitStack, starts: Tensor, following: Tensor, x: Expr, s: Lookup) -> Expr:
    """The start that ``x`` is after, or the next result."""
    x = k.let("code", x)
    bucket = stack.enter_context(k.bind("bucket", (x + (1 << 15)) >> s.shift, (1 << 16) >> s.shift))
    start = k.let("start", cast(starts[bucket], I32))
    result = stack.enter_context(k.bind("result", start - s.lowest, CODES))
    return start + op("and", op("less_equal", following[result], x), 1)


def _either(a: Expr, b: Expr) -> Expr:
    """The bits of both."""
    return b if isinstance(a, Const) else op("or", a, b)


def thresholds(function: Callable[[Array], Array], low: int) -> Array:
    """i32 [256]: the ``ordered`` least f32 for which a monotonic ``function`` is ``low`` + the number of the entry or
    more.  It takes f32 arrays without NaN; minus infinity gives ``low``, infinity ``low`` + 255.
    """
    wanted = low + np.arange(CODES)
    below, reached = (np.full(CODES, _order(value), np.int64) for value in (-np.inf, np.inf))
    for _ in range(32):
        middle = (below + reached) // 2
        enough = function(_number(middle)).astype(np.int64) >= wanted
        reached, below = np.where(enough, middle, reached), np.where(enough, below, middle)
    return reached.astype(np.int32)


def _order(value: float) -> int:
    bits = int(np.float32(value).view(np.int32))
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def _number(keys: Array) -> Array:
    """The f32 of each key."""
    whole = keys.astype(np.int32)
    numbers: Array = (whole ^ (whole >> 31 & 0x7FFFFFFF)).view(np.float32)
    return numbers


def lowest(dtype: DType) -> int:
    """The integer that the first entry of a table is for."""
    return -128 if dtype.is_signed else 0
