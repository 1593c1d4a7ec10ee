"""Sums of products over any loop nest: the generic form of matrix products, convolutions and pooling.

No blocking and no packing: this computes what the fast generators do not support (element types other than f32, three
spatial axes, weights computed at run time), vectorised along the last axis where all operands are contiguous in it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, lane_segments
from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, broadcast, cast, op
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.image import Epilogue, identity
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.move import AffineIndex
from tenon.machine.kernels.rows import LONGEST_PRODUCT, in_blocks, initial
from tenon.network.graph.types import F32, DType


@dataclass(frozen=True)
class Factor:
    """A buffer and how it is read: each index is an affine function of the loops.

    Reads outside of the buffer give the identity of the reduction: 0 in a sum, the lowest number in a maximum.
    """

    shape: tuple[int, ...]
    index: tuple[AffineIndex, ...]
    dtype: DType = F32


@dataclass(frozen=True)
class Contraction:
    """``output[outer loops] = finish(combine over the inner loops of the product of all factors)``.

    Loops are numbered outer ones first.  ``scales`` are factors by outer loops alone, given to ``finish`` (after the
    accumulated value).  Everything is computed in ``sums_in``.
    """

    name: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    factors: tuple[Factor, ...]
    result: DType = F32
    sums_in: DType = F32
    combine: str = "add"
    map: Epilogue = identity
    finish: Epilogue = identity
    scales: tuple[Factor, ...] = ()


@lru_cache(maxsize=256)
def contraction(s: Contraction, machine: Machine) -> Kernel:
    """Parameters: the factors, the scales, the output."""
    k = Builder(
        f"{s.name}_{'x'.join(map(str, s.outer))}",
        "Sums of products of all factors along shared axes (Einstein summation)",
    )
    tensors = [k.param("x", *(f.shape or (1,)), dtype=f.dtype) for f in (*s.factors, *s.scales)]
    y = k.param("y", *(s.outer or (1,)), dtype=s.result, out=True)
    last = len(s.outer) - 1
    lanes = _lanes(s, machine) if s.outer else 1
    with ExitStack() as stack:
        at: list[IndexLike] = [stack.enter_context(k.loop("ijklmn"[i % 6], n)) for i, n in enumerate(s.outer[:-1])]
        for start, iterations, width in lane_segments(s.outer[-1], lanes) if s.outer else [(0, 1, 1)]:
            with k.loop("v", iterations) as v:
                here = [*at, v * width + start] if s.outer else []
                _point(k, s, tensors, y, here, width, last)
    return k.done()


def _point(
    k: Builder, s: Contraction, tensors: list[Tensor], y: Tensor, here: list[IndexLike], lanes: int, last: int
) -> None:
    acc = k.local("acc", 1, dtype=s.sums_in, lanes=lanes)
    acc[0] = initial(s.combine, s.sums_in)
    long = LONGEST_PRODUCT if s.combine == "add" and s.sums_in is F32 else None
    for inside, (sums,) in in_blocks(k, [("r", n) for n in s.inner], [acc], limit=long):
        loops = [*here, *inside]
        values = [_read(f, t, loops, s, lanes, last) for f, t in zip(s.factors, tensors, strict=False)]
        product = values[0]
        for value in values[1:]:
            product = product * value
        facts = tuple(fact for f in s.factors for fact in _facts(f, loops, s))
        neutral = initial(s.combine, s.sums_in).value
        sums[0] = op(s.combine, sums[0], guarded(facts, broadcast(s.map(product), lanes), neutral))
    scales = [_read(f, t, here, s, lanes, last) for f, t in zip(s.scales, tensors[len(s.factors) :], strict=True)]
    value = storage_types.stored(s.finish(acc[0], *scales), s.result)
    k.store(y.buffer, tuple(index(i) for i in here) or (index(0),), broadcast(value, lanes))


def _read(f: Factor, t: Tensor, loops: list[IndexLike], s: Contraction, lanes: int, last: int) -> Expr:
    at = tuple(a.at(loops) for a in f.index) or (Index(),)
    wide = bool(f.index) and f.index[-1].coefficient(last) == 1 and last >= 0
    value = storage_types.loaded(Load(t.buffer, at, Type(f.dtype, lanes if wide else 1)))
    return cast(value, s.sums_in)


def _facts(f: Factor, loops: list[IndexLike], s: Contraction) -> list[Index]:
    """The conditions under which a factor's indices are inside of its buffer."""
    facts = []
    extents = (*s.outer, *s.inner)
    for axis, n in zip(f.index, f.shape, strict=True):
        ends = [k * (extents[i] - 1) for i, k in axis.terms]
        low = axis.start + sum(e for e in ends if e < 0)
        high = axis.start + sum(e for e in ends if e > 0)
        if low < 0:
            facts.append(axis.at(loops) >= 0)
        if high >= n * axis.by:
            facts.append(axis.at(loops) < n)
    return [index(fact) for fact in facts]


def _lanes(s: Contraction, machine: Machine) -> int:
    """Vector lanes along the last outer loop, if each factor is contiguous in it or invariant, and no guard uses it."""
    last, extents = len(s.outer) - 1, (*s.outer, *s.inner)
    for f in (*s.factors, *s.scales):
        for d, axis in enumerate(f.index):
            k = axis.coefficient(last)
            if k == 0:
                continue
            if k != 1 or axis.by != 1 or d != len(f.index) - 1:
                return 1
            low = axis.start + sum(min(0, c * (extents[i] - 1)) for i, c in axis.terms)
            high = axis.start + sum(max(0, c * (extents[i] - 1)) for i, c in axis.terms)
            if low < 0 or high >= f.shape[d]:
                return 1
    return machine.lanes_of(s.sums_in)
