"""Products of a vector of channels of an image at a time, where a multiply-add takes one of its lanes (NEON).

The channels of a position are one vector, of which each lane is multiplied by the weights of its channel, in the order
of the channels.  Of f32, the weights of all four stay in registers while positions are loaded one after the other; of
f16, which are eight, all positions stay there instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Expr, broadcast, lanes_of, op
from tenon.machine.kernels.ahead import Ahead
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import DType

_SPARE = 1
"""Registers that compilers need besides."""


def applies(machine: Machine, block: int, deep: int, lanes: int, positions: int) -> bool:
    """Whether ``deep`` channels of blocks of ``block`` are multiplied so, by vectors of ``lanes`` channels, for several
    positions."""
    whole = lanes % 4 == 0 and block % lanes == deep % lanes == 0
    return machine.by_lane and whole and positions > 1


def fits(machine: Machine, positions: int, vecs: int, *, half: bool) -> bool:
    """Whether a tile leaves enough registers for weights and values; ``half``: of f16."""
    others = positions + 2 * vecs if half else machine.lanes * vecs + 2
    return positions * vecs + others + _SPARE <= machine.registers


def ask(ahead: Ahead | None, round: Index, weights: int) -> None:
    """Prefetch what belongs to such a step, of so many weights."""
    if ahead is not None:
        ahead.ask(ahead.turn * ahead.rounds + round, weights)


def by_lanes(
    operation: str,
    k: Builder,
    acc: Tensor,
    size: tuple[int, int],
    weights: Sequence[Callable[[], Sequence[Expr]]],
    value: Callable[[Index, Index], Expr],
) -> None:
    """acc[i, j, v] += products of lane u of value(i, j) by weights[u]()[v], by an operation that takes a lane, over a
    tile of ``size`` positions, whose values stay in registers."""
    held = {(i, j): k.let("x", value(index(i), index(j))) for i in range(size[0]) for j in range(size[1])}
    for u, own in enumerate(weights):
        vectors = own()
        for (i, j), x in held.items():
            for v, weight in enumerate(vectors):
                acc[i, j, v] = op(f"{operation}_lane{u}", acc[i, j, v], weight, x)


def multiply_add(
    k: Builder,
    acc: Tensor,
    size: tuple[int, int],
    weights: Sequence[Callable[[], Sequence[Expr]]],
    value: Callable[[Index, Index], Expr],
) -> None:
    """acc[i, j, v] += value(i, j)[u] * weights[u]()[v] over a tile of ``size`` positions; ``value`` is a vector of
    channels, of f32 or of f16, and ``weights`` are those of each."""
    if acc.buffer.type.dtype is DType.F16:
        by_lanes("fma_f16", k, acc, size, weights, value)
        return
    fours = [own() for own in weights]
    with k.unroll("p", size[0]) as row, k.unroll("q", size[1]) as col:
        x = k.let("x", value(row, col))
        for lane, vectors in zip(lanes_of(x), fours, strict=True):
            for v, weight in enumerate(vectors):
                acc[row, col, v] = acc[row, col, v] + broadcast(lane, len(fours)) * weight
