"""Prefetches of weights that the next group of output channels reads, spread over the tiles of this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike

_LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, eq=False)
class Ahead:
    """Weights to prefetch, from ``start`` on.  Each of ``turns`` tiles, of which this is number ``turn``, prefetches
    its part of them in ``rounds`` rounds, so that these tiles together prefetch every weight once."""

    w: Tensor
    start: tuple[IndexLike, ...]
    turn: Index
    turns: int
    rounds: int

    def ask(self, number: Index, elements: int) -> None:
        """Part ``number``, issued by a tile that uses ``elements`` weights between one part and the next."""
        line = max(1, _LINE // self.w.buffer.type.bytes)
        each = max(1, -(-elements // (line * self.turns)))
        for i in range(each):
            self.w.build.prefetch(self.w, *self.start, (number * each + i) * line)


@contextmanager
def unrolled(k: Builder, unroll: int, round: Index, width: int, ahead: Ahead | None) -> Iterator[Index]:
    """The ``unroll`` steps of a round, each of which uses ``width`` weights, with the prefetches of ``ahead``.

    Prefetches are spread over the steps where each has one, because few cache misses can be outstanding at a time.
    """
    often = ahead is not None and width * ahead.w.buffer.type.bytes >= _LINE * ahead.turns
    number = round if ahead is None else ahead.turn * ahead.rounds + round
    if ahead and not often:
        ahead.ask(number, unroll * width)
    with k.unroll("u", unroll) as u:
        if ahead and often:
            ahead.ask(number * unroll + u, width)
        yield u
