"""Asynchronous copies on their way, for ``proofs.intervals``: what may not be touched, and what has arrived.

Copies are issued into a group, which a ``Commit`` ends.  A ``Wait`` lets all groups arrive but the last few; what has
arrived is seen by all threads behind the next barrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from tenon.machine.kernel_ir.index import Var
from tenon.machine.kernel_ir.loops import Buffer
from tenon.machine.proofs.race_check import Touch
from tenon.machine.proofs.written import Record, Written


@dataclass(frozen=True)
class Arrival:
    """A copy: the access to its destination, and what it writes there."""

    touch: Touch
    record: Record

    def closed(self, var: Var, iterations: int) -> Arrival:
        """The copies of all iterations of the loop over ``var``."""
        if var not in self.record.free:
            return self
        return replace(self, record=replace(self.record, closed=(*self.record.closed, (var, iterations))))


Group = tuple[Arrival, ...]


@dataclass(frozen=True)
class Arrivals:
    """``groups`` are committed, the oldest first, ``issued`` not yet; ``landed`` copies are seen behind the next
    barrier, ``seen`` are those of before."""

    groups: tuple[Group, ...] = ()
    issued: Group = ()
    landed: Group = ()
    seen: frozenset[tuple[Buffer, Record]] = field(default=frozenset())

    @property
    def pending(self) -> Group:
        """All copies that have not arrived."""
        return (*(arrival for group in self.groups for arrival in group), *self.issued)

    def issue(self, arrival: Arrival) -> Arrivals:
        return replace(self, issued=(*self.issued, arrival))

    def commit(self) -> Arrivals:
        return replace(self, groups=(*self.groups, self.issued), issued=())

    def wait(self, groups: int) -> tuple[Arrivals, Group]:
        """The state after a wait for all groups but the last few, and the copies that arrive by it."""
        kept = max(0, len(self.groups) - groups)
        arrive = tuple(arrival for group in self.groups[:kept] for arrival in group)
        return replace(self, groups=self.groups[kept:], landed=(*self.landed, *arrive)), arrive

    def barrier(self) -> Arrivals:
        return replace(self, landed=(), seen=self.seen | {(a.touch.buffer, a.record) for a in self.landed})

    def written(self, buffer: Buffer) -> Written:
        """The elements of a buffer that all threads see; not to be changed."""
        return _written(self.seen, buffer)


@lru_cache(maxsize=64)
def _written(seen: frozenset[tuple[Buffer, Record]], buffer: Buffer) -> Written:
    known = Written()
    known.begin(buffer)
    for other, record in seen:
        if other is buffer:
            known.add(buffer, record)
    return known
