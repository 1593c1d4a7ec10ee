"""Products of four channels of an image at a time, where a multiply-add takes one lane of a vector (NEON).

The channels of a position are one vector, of which each lane is multiplied by the weights of its channel, in the order
of the channels; the weights of all four stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, broadcast, lanes_of
from tenon.machine.kernels.ahead import Ahead
from tenon.machine.kernels.machine import Machine

CHANNELS = 4


def applies(machine: Machine, block: int, unroll: int, lanes: int, positions: int) -> bool:
    """Whether steps of ``unroll`` channels of blocks of ``block`` are multiplied so, by vectors of ``lanes`` channels,
    for several positions."""
    return machine.by_lane and unroll == lanes == CHANNELS and block % CHANNELS == 0 and positions > 1


def ask(ahead: Ahead | None, round: Index, width: int) -> None:
    """Prefetch what belongs to such a step, of ``width`` output channels."""
    if ahead is not None:
        ahead.ask(ahead.turn * ahead.rounds + round, CHANNELS * width)


def multiply_add(
    k: Builder,
    acc: Tensor,
    size: tuple[int, int],
    weights: Sequence[Sequence[Expr]],
    value: Callable[[Index, Index], Expr],
) -> None:
    """acc[i, j, v] += value(i, j)[u] * weights[u][v] over a tile of ``size`` positions; ``value`` is a vector of four
    channels, and ``weights`` are those of each."""
    with k.unroll("p", size[0]) as i, k.unroll("q", size[1]) as j:
        x = k.let("x", value(i, j))
        for lane, own in zip(lanes_of(x), weights, strict=True):
            for v, weight in enumerate(own):
                acc[i, j, v] = acc[i, j, v] + broadcast(lane, CHANNELS) * weight
