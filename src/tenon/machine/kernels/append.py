"""Rows written into a tensor from a position on that is known at run time."""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.loops import Kernel, cast
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import I64, DType


@lru_cache(maxsize=256)
def append(
    outer: int,
    extent: int,
    count: int,
    inner: int,
    dtype: DType,
    machine: Machine,
    positions: int = 0,
    *,
    counted: bool = False,
    turned: bool = False,
) -> Kernel:
    """y[o, at + i] = x[o, i] for ``count`` rows of ``inner`` elements, where ``counted`` the first n of them, as far as
    there is room in ``extent`` rows, or where there are ``positions``, as far as there are, at (at + i) modulo
    ``extent``.  Parameters: x, where ``turned`` [count, outer, inner], at (i64), where ``counted`` n (i64), y."""
    k = Builder(
        f"append_{outer}x{count}x{inner}{'_counted' * counted}{'_turned' * turned}",
        f"Rows of {inner} elements written from a position on",
    )
    x = k.param("x", *((count, outer) if turned else (outer, count)), inner, dtype=dtype)
    position = k.param("at", 1, dtype=I64)
    number = k.param("n", 1, dtype=I64) if counted else None
    y = k.param("y", outer, extent, inner, dtype=dtype, out=True)
    with ExitStack() as nest:
        ends = [] if number is None else [nest.enter_context(k.bind("n", number[0], count + 1))]
        at = nest.enter_context(k.bind("at", cast(position[0], I64), (positions or extent) + 1))
        o = nest.enter_context(k.loop("o", outer, kind="parallel"))
        kind = "serial" if positions else "parallel"
        i = nest.enter_context(k.loop("i", count, (positions or extent) - at, *ends, kind=kind))
        row = (at + i) % extent if positions else at + i
        for start, iterations, width in lane_segments(inner, machine.lanes_of(dtype)):
            with k.loop("v", iterations) as v:
                own = (i, o) if turned else (o, i)
                y.vec(width)[o, row, v + start // width] = x.vec(width)[(*own, v + start // width)]
    return k.done()


@lru_cache(maxsize=256)
def append_to_slots(
    slots: int, dims: tuple[int, int, int], count: int, dtype: DType, machine: Machine, positions: int = 0
) -> Kernel:
    """y[slot[i], h, at[i]] = x[h, i] for the first n rows; ``dims`` are heads, extent and elements of a row.  Where
    there are ``positions``, at[i] is below these and counts modulo the extent.  Parameters: x [heads, count, elements],
    at (i64 [count]), slot (i64 [count]), n (i64 [1]), y [slots, *dims]."""
    heads, extent, inner = dims
    k = Builder(f"append_to_slots_{heads}x{count}x{inner}", f"Rows of {inner} elements written to places of their own")
    x = k.param("x", heads, count, inner, dtype=dtype)
    at, slot = (k.param(name, count, dtype=I64) for name in ("at", "slot"))
    number = k.param("n", 1, dtype=I64)
    y = k.param("y", slots, heads, extent, inner, dtype=dtype, out=True)
    with (
        k.loop("h", heads, kind="parallel") as h,
        k.bind("n", number[0], count + 1) as n,
        k.loop("i", count, n) as i,
        k.bind("s", slot[i], slots) as s,
        k.bind("p", at[i], positions or extent) as position,
    ):
        row = position % extent if positions else position
        for start, iterations, width in lane_segments(inner, machine.lanes_of(dtype)):
            with k.loop("v", iterations) as v:
                column = v + start // width
                y.vec(width)[s, h, row, column] = x.vec(width)[h, i, column]
    return k.done()
