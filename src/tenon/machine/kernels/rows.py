"""Loops over a row of n elements in vectors and narrower tails: reductions, and a body for each part.

Long sums are blocked, so that rounding errors grow with the length of a block and not of the whole sum
(Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Type, cast, op, reduce_lanes
from tenon.network.graph.types import DType

CHAINS = 4
"""Independent partial results: enough to hide the latency of additions."""

LONGEST = 4096
"""The most additions in one chain of a sum: longer sums are blocked, and the blocks' results summed separately."""

LONGEST_PRODUCT = 1 << 15
"""Products that are accumulated unblocked; longer sums have blocks of LONGEST.  Accumulators of products fill the
registers, so that a second set costs time: only sums longer than those of common networks have one."""

LONGEST_F16 = 128
"""Products that are added up in f16; the sums of more are added in f32.  The error of a chain of n roundings, relative
to its result, is that of one times the square root of n / 2: sqrt(128 / 2) * 2**-12 is 2e-3, as of rounding to bf16."""

Part = Callable[[Index, int], Expr]
"""f(first element, lanes): those elements as a vector."""

Parts = Callable[[Index, int], Sequence[Expr]]
"""The same of several rows."""


def initial(combine: str, dtype: DType) -> Const:
    """The identity of add, mul, max or min."""
    if combine in ("add", "mul"):
        return Const(1 if combine == "mul" else 0, Type(dtype))
    if dtype.is_float:
        return Const(-np.inf if combine == "max" else np.inf, Type(dtype))
    if dtype is DType.BOOL:
        return Const(0 if combine == "max" else 1, Type(dtype))
    limits = np.iinfo(dtype.numpy.name)
    return Const(int(limits.min if combine == "max" else limits.max), Type(dtype))


def joined(combine: str, parts: list[Expr]) -> Expr:
    """The combination of all parts, pairwise."""
    while len(parts) > 1:
        pairs = [op(combine, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def partial(k: Builder, combine: str, cells: int, dtype: DType, lanes: int) -> Tensor:
    """Registers for ``cells`` partial results, set to the identity."""
    acc = k.local("a", cells, dtype=dtype, lanes=lanes)
    with k.unroll("c", cells) as c:
        acc[c] = initial(combine, dtype)
    return acc


# ------------------------------------------------------------------------------------------------ long sums
def in_blocks(
    k: Builder, loops: Sequence[tuple[str, int]], sums: Sequence[Tensor], each: int = 1, limit: int | None = LONGEST
) -> Iterator[tuple[list[Index], Sequence[Tensor]]]:
    """Loops (name, extent), outermost first, whose body makes ``each`` additions to every element of ``sums``.

    Yields the loops' indices and the registers to add to.  More than ``limit`` additions (None: any number) are split
    into blocks of at most LONGEST, which are summed in separate registers and then added to ``sums``.  The body is
    generated once for every pair yielded.
    """
    extents = [extent for _, extent in loops]
    if limit is not None and each * prod(extents) > limit:
        yield from _cut(k, loops, sums, [_additions(extents[i:], each) for i in range(1, len(extents) + 1)])
        return
    with ExitStack() as stack:
        yield [stack.enter_context(k.loop(name, extent)) for name, extent in loops], sums


def in_f16_blocks(
    k: Builder, loops: Sequence[tuple[str, int]], sums: Tensor, each: int = 1
) -> Iterator[tuple[list[Index], Tensor]]:
    """Loops (name, extent), outermost first, whose body makes ``each`` <= LONGEST_F16 additions to registers of f16.

    Yields the loops' indices and these registers, which start at zero and are added to ``sums``, of f32, after at most
    LONGEST_F16 additions.  The body is generated once for every pair yielded.
    """
    extents = [extent for _, extent in loops]
    inner = [each * prod(extents[i + 1 :]) for i in range(len(loops))]
    at = next(i for i, n in enumerate(inner) if n <= LONGEST_F16)
    (name, extent), inside = loops[at], loops[at + 1 :]
    with ExitStack() as outer:
        before = [outer.enter_context(k.loop(name, extent)) for name, extent in loops[:at]]
        for first, blocks, size in segments(extent, _even(extent, LONGEST_F16 // inner[at])):
            with k.loop("o", blocks) as o:
                parts = _zeros(k, sums, DType.F16)
                with ExitStack() as stack:
                    i = stack.enter_context(k.loop(name, size))
                    rest = [stack.enter_context(k.loop(name, extent)) for name, extent in inside]
                    yield [*before, o * size + i + first, *rest], parts
                with _cells(k, sums) as cell:
                    sums[cell] = sums[cell] + cast(parts[cell], sums.buffer.type.dtype)


def _even(extent: int, most: int) -> int:
    """A length of at most ``most`` of the parts of ``extent``: one that divides it, if one of them is not much less."""
    fewest = -(-extent // max(1, most))
    return next((extent // n for n in range(fewest, 2 * fewest + 1) if extent % n == 0), -(-extent // fewest))


def additions(extents: Sequence[int]) -> int:
    """How many additions to each sum are left of loops that are cut ``in_blocks``."""
    return _additions(extents, 1) if prod(extents) > LONGEST else prod(extents)


def plane_in_blocks(
    k: Builder, height: int, width: int, acc: Tensor, limit: int | None = LONGEST
) -> Iterator[tuple[Index, Index, Index, Tensor]]:
    """``in_blocks`` over a plane, the columns interleaved over CHAINS: (row, column, chain, registers)."""
    for (i,), (row,) in in_blocks(k, [("i", height)], [acc], additions([-(-width // CHAINS)]), limit):
        for first, count, side in segments(width, CHAINS):
            for (j,), (sums,) in in_blocks(k, [("j", count)], [row], limit=limit):
                with k.unroll("c", side) as c:
                    yield i, j * side + c + first, c, sums


def _additions(extents: Sequence[int], each: int) -> int:
    for extent in reversed(extents):
        each = each * extent if each * extent <= LONGEST else -(-extent // max(1, LONGEST // each))
    return each


def _cut(
    k: Builder, loops: Sequence[tuple[str, int]], sums: Sequence[Tensor], inner: Sequence[int]
) -> Iterator[tuple[list[Index], Sequence[Tensor]]]:
    """``in_blocks``; one iteration of the n-th loop makes ``inner[n]`` additions."""
    if not loops:
        yield [], sums
        return
    (name, extent), length = loops[0], max(1, LONGEST // inner[0])
    if extent <= length:
        with k.loop(name, extent) as i:
            for rest, registers in _cut(k, loops[1:], sums, inner[1:]):
                yield [i, *rest], registers
        return
    for first, blocks, size in segments(extent, length):
        with k.loop("o", blocks) as o:
            parts = [_zeros(k, acc) for acc in sums]
            with k.loop(name, size) as i:
                for rest, registers in _cut(k, loops[1:], parts, inner[1:]):
                    yield [o * size + i + first, *rest], registers
            for acc, part in zip(sums, parts, strict=True):
                with _cells(k, acc) as at:
                    acc[at] = acc[at] + part[at]


@contextmanager
def _cells(k: Builder, registers: Tensor) -> Iterator[tuple[Index, ...]]:
    with ExitStack() as stack:
        yield tuple(stack.enter_context(k.unroll("e", extent.const)) for extent in registers.buffer.shape)


def _zeros(k: Builder, like: Tensor, dtype: DType | None = None) -> Tensor:
    """Registers as ``like``, of ``dtype`` where it is given, set to zero."""
    kind = like.buffer.type
    zeros = k.local(like.buffer.name, *like.buffer.shape, dtype=dtype or kind.dtype, lanes=kind.lanes)
    with _cells(k, zeros) as at:
        zeros[at] = 0.0
    return zeros


# ------------------------------------------------------------------------------------------------ rows
def runs(n: int, lanes: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut n elements into runs of a few vectors: (first element, iterations, vectors per iteration, lanes)."""
    for start, iterations, width in lane_segments(n, lanes):
        for first, count, side in segments(iterations, CHAINS):
            yield start + first * width, count, side, width


def total(k: Builder, combine: str, n: int, lanes: int, dtype: DType, part: Part) -> Expr:
    """The combination of ``part`` over a row, in one lane.  ``part`` may have side effects: each is evaluated once."""
    return totals(k, combine, n, lanes, dtype, lambda at, width: (part(at, width),))[0]


def totals(k: Builder, combine: str, n: int, lanes: int, dtype: DType, parts: Parts, rows: int = 1) -> list[Expr]:
    """``total`` of several rows at once: ``parts`` gives an expression for each of ``rows``."""
    results: list[list[Expr]] = [[] for _ in range(rows)]
    for start, count, side, width in runs(n, lanes):
        accs = [partial(k, combine, side, dtype, width) for _ in range(rows)]
        for (r,), sums in in_blocks(k, [("r", count)], accs, limit=LONGEST if combine == "add" else None):
            with k.unroll("c", side) as c:
                for own, part in zip(sums, parts((r * side + c) * width + start, width), strict=True):
                    own[c] = op(combine, own[c], part)
        for own_parts, acc in zip(results, accs, strict=True):
            own_parts.append(reduce_lanes(combine, joined(combine, [acc[c] for c in range(side)])))
    return [k.let("t", joined(combine, own) if own else initial(combine, dtype)) for own in results]


def each(k: Builder, n: int, lanes: int, body: Callable[[Index, int], None]) -> None:
    """``body(first element, lanes)`` for all parts of a row."""
    for start, count, side, width in runs(n, lanes):
        with k.loop("r", count) as r, k.unroll("c", side) as c:
            body((r * side + c) * width + start, width)
