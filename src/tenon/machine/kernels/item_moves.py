"""Copies between tensors by a thread for each element of the target, or for four that lie side by side.

Neighbouring threads store neighbouring elements, whatever the order of the source: caches of devices are shared by so
many threads that square tiles gain nothing, and every loop is parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Load, Type, broadcast, vector4
from tenon.machine.kernels.fours import FOUR, VECTORS, aligned, loops_over
from tenon.machine.kernels.move_nests import Nest, Side
from tenon.network.graph.types import DType


def emit_items(k: Builder, nest: Nest, source: Tensor | None, target: Tensor) -> None:
    """Add the loops of a copy."""
    along = _contiguous(nest.target, nest.extents)
    order = [i for i, n in enumerate(nest.extents) if n > 1 and i != along]
    lanes = _lanes(nest, target, along)
    loops: list[IndexLike] = [0] * len(nest.extents)
    with ExitStack() as stack:
        for i in order:
            loops[i] = stack.enter_context(k.loop("ijklmn"[i % 6], nest.extents[i], kind="parallel"))
        count = 1 if along is None else nest.extents[along] // lanes
        last = stack.enter_context(k.loop("v", count, kind="parallel"))
        if along is not None:
            loops[along] = last * lanes
        value = _value(nest, source, target.buffer.type.dtype, loops, along, lanes)
        k.store(target.buffer, _at(nest.target, loops), value)


def _at(side: Side, loops: Sequence[IndexLike]) -> tuple[Index, ...]:
    return tuple(dim.at(loops) for dim in side)


def _value(
    nest: Nest, source: Tensor | None, dtype: DType, loops: Sequence[IndexLike], along: int | None, lanes: int
) -> Expr:
    """The value that is stored: ``lanes`` elements from where ``loops`` are."""
    if nest.source is None or source is None:
        return broadcast(nest.value if isinstance(nest.value, Expr) else Const(nest.value or 0.0, Type(dtype)), lanes)
    if lanes == 1 or along is None:
        return Load(source.buffer, _at(nest.source, loops), Type(dtype))
    if not any(dim.uses(along) for dim in nest.source):
        return broadcast(Load(source.buffer, _at(nest.source, loops), Type(dtype)), lanes)
    if _contiguous(nest.source, nest.extents) == along and _by_fours(nest.source, source, nest.extents, along):
        return Load(source.buffer, _at(nest.source, loops), Type(dtype, lanes))
    steps = [[loop + e if i == along else loop for i, loop in enumerate(loops)] for e in range(lanes)]
    return vector4(*(Load(source.buffer, _at(nest.source, each), Type(dtype)) for each in steps))


def _contiguous(side: Side, extents: Sequence[int]) -> int | None:
    """The longest loop of stride one."""
    *outer, last = side
    loops = (i for i, n in enumerate(extents) if n > 1 and last.walks(i) and not any(dim.uses(i) for dim in outer))
    return max(loops, key=lambda i: extents[i], default=None)


def _lanes(nest: Nest, target: Tensor, along: int | None) -> int:
    """Elements of the target that a thread stores."""
    if along is None or nest.extents[along] % FOUR or target.buffer.type.dtype not in VECTORS:
        return 1
    return FOUR if _by_fours(nest.target, target, nest.extents, along) else 1


def _by_fours(side: Side, tensor: Tensor, extents: Sequence[int], along: int) -> bool:
    """Whether every fourth element along a loop lies at a multiple of four."""
    return aligned(tensor.buffer, _at(side, loops_over(extents, along)))
