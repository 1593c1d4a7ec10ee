"""Scratch memory of which tiles of positions are needed: as many as hold the positions that are needed of a result.

Where intermediate results are read, added to and written again tile by tile, the loops over them can only be cut short
together: a tile is not read if the loops that would read it end before it.  So it is assumed of all such memory at once
(``needs``), and what the loops that were cut short still read is compared with it (``TileNeed.holds``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Buffer, Load, Loop, Stmt, Store
from tenon.machine.kernel_ir.needed import StorePosition
from tenon.machine.kernel_ir.upper import Facts, upper
from tenon.machine.kernel_ir.walk import loads, statements


@dataclass(frozen=True)
class TileNeed:
    """Loads of a scratch buffer read the first tiles along a dimension only: as many tiles of ``width`` as hold the
    number ``var`` of positions."""

    buffer: Buffer
    dim: int
    width: int
    var: Var

    @property
    def end(self) -> Index:
        """The first element that is not read."""
        return (Index(((self.var, 1),)) + (self.width - 1)) // self.width * self.width

    def place(self, store: Store | Load, facts: Facts = ()) -> tuple[StorePosition, Index] | None:
        """Where a store goes along the dimension, and the first element that is not read."""
        return (StorePosition(store.index[self.dim], 1), self.end) if store.buffer is self.buffer else None

    def holds(self, body: tuple[Stmt, ...]) -> bool:
        """Whether the statements read no other element."""
        own = ((load, facts) for load, facts in loads(body) if load.buffer is self.buffer)
        return all(upper(load.index[self.dim] + 1 - self.end, facts) <= 0 for load, facts in own)


def needs(body: tuple[Stmt, ...], numbers: Iterable[Var]) -> list[TileNeed]:
    """The assumptions that are worth a try: of buffers of which tiles are read, dimensions as long as an axis."""
    serial = {s.var for s in statements(body) if isinstance(s, Loop) and s.kind == "serial"}
    read: dict[Buffer, list[Load]] = {}
    for load, _ in loads(body):
        if load.buffer.space == "scratch":
            read.setdefault(load.buffer, []).append(load)
    tiled = [(b, d, w) for b, own in read.items() for d, w in _tiled_dims(own, serial)]
    return [
        TileNeed(b, d, w, var) for var in numbers for b, d, w in tiled if b.shape[d].const == var.below[0].const - 1
    ]


def _tiled_dims(read: list[Load], serial: set[Var]) -> Iterator[tuple[int, int]]:
    """The dimensions along which loops read tiles of a width, and that width."""
    for dim in range(len(read[0].index) - 1):
        steps = {k for load in read for a, k in load.index[dim].terms if isinstance(a, Var) and a in serial}
        for width in steps - {1} if len(steps - {1}) == 1 else ():
            yield dim, width
