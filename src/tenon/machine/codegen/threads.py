"""How threads share the calls of a program: which calls are divided among them, and where all wait for each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tenon.errors import InternalError
from tenon.machine.codegen.ranges import Ranges
from tenon.machine.codegen.spread import independent, spread
from tenon.machine.kernel_ir.loops import Buffer, Kernel
from tenon.machine.kernel_ir.spaces import SHARED, Launch, MemorySpace
from tenon.machine.kernel_ir.work_groups import WorkGroups, work_groups
from tenon.machine.kernel_ir.work_items import WorkItems, linearise
from tenon.machine.plan.program import Branch, Call, Item, Place, Repeat, SizeCheck
from tenon.machine.proofs.bounds import ConflictError, prove
from tenon.machine.proofs.count import count

TINY = 8000
"""Instructions of a kernel that is not worth dividing: in two, it saves as much time as a barrier takes."""

NEAR = 64 << 10
"""Bytes that one thread reads and writes in less time than several threads take to meet, even where other processors
have them."""


@dataclass(frozen=True)
class WorkDivision:
    """A call, and how its work items are divided; thread 0 alone runs it when ``slices`` is None."""

    call: Call
    slices: WorkItems | None


class Sharing:
    """Proves kernels and decides which threads run them.

    A kernel whose parallel iterations cannot be shown to be independent is correct when one thread runs them all.
    """

    def __init__(
        self,
        threads: int,
        *,
        grid: bool = False,
        launch: Launch | None = None,
        spaces: tuple[MemorySpace, ...] = (SHARED,),
    ) -> None:
        """``grid``: each work item has a thread of its own, instead of a slice for each of ``threads``.  ``launch`` and
        ``spaces`` are what the machine offers to work groups."""
        self.threads, self.grid, self.launch, self.spaces = threads, grid, launch or Launch(), spaces

    def part(self, call: Call) -> WorkDivision:
        """Raises OutOfRangeError if the kernel cannot be proved."""
        same = _same(call)
        if (groups := work_groups(call.kernel)) is not None:
            self.prove_groups(call, groups, same)
            return WorkDivision(call, None)
        pairs = tuple((same or {}).items())
        if self.grid and same is not None:
            call = replace(call, kernel=spread(call.kernel, pairs))
        apart = independent(call.kernel, pairs)
        slices = self.items(call.kernel) if same is not None and apart else None
        own = min(self.threads, slices.length) if slices else 1
        if any(b.space == "scratch" and p.copies < own for b, p in _arguments(call)):
            raise InternalError(f"{call.kernel.name}: threads would share the scratch memory that each needs alone")
        return WorkDivision(call, slices)

    def prove_groups(self, call: Call, groups: WorkGroups, same: dict[Buffer, Buffer] | None) -> None:
        """Raises InternalError unless the machine can run the work groups of a kernel: no single thread can."""
        name = call.kernel.name
        if groups.size > self.launch.group:
            raise InternalError(f"{name}: blocks of {groups.size} threads, more than {self.launch.group}")
        if same is None:
            raise InternalError(f"{name}: an operand of work groups overlaps a result")
        try:
            _prove(call.kernel, tuple(same.items()), self.spaces)
        except ConflictError as error:
            raise InternalError(str(error)) from None

    def items(self, kernel: Kernel) -> WorkItems | None:
        """The work items that threads share, of a kernel whose iterations are independent; None: one thread runs
        all."""
        if self.grid:
            return None if any(b.space == "scratch" for b in kernel.params) else linearise(kernel)
        return _items(kernel) if self.threads > 1 else None


@lru_cache(maxsize=1024)
def _prove(kernel: Kernel, same: tuple[tuple[Buffer, Buffer], ...], spaces: tuple[MemorySpace, ...]) -> None:
    """As ``prove``, once for the equal layers of a network."""
    prove(kernel, dict(same), spaces)


@lru_cache(maxsize=1024)
def _items(kernel: Kernel) -> WorkItems | None:
    """The work items of a kernel that is worth dividing."""
    total = count(kernel)
    return linearise(kernel) if total.instructions >= TINY or total.loaded + total.stored >= NEAR else None


def straight(items: Iterable[Item]) -> Iterator[list[Call]]:
    """The calls of a tree in order, as lists without a loop, a branch or a check between them; none of the lists is
    empty."""
    run: list[Call] = []
    for item in items:
        match item:
            case Call():
                run.append(item)
                continue
            case Repeat():
                bodies: tuple[tuple[Item, ...], ...] = (item.body,)
            case Branch():
                bodies = item.bodies
            case SizeCheck():
                bodies = ()
        if run:
            yield run
        run = []
        for body in bodies:
            yield from straight(body)
    if run:
        yield run


def firsts(items: Iterable[Item]) -> frozenset[int]:
    """The numbers of the calls before which a loop or a branch begins or ends, or a size is checked: all threads wait
    there, because one of them decides what comes next."""
    numbers, number = set[int](), 0
    for calls in straight(items):
        numbers.add(number)
        number += len(calls)
    return frozenset(numbers - {0})


def barriers(parts: Sequence[WorkDivision], firsts: Collection[int] = (), *, grid: bool = False) -> Iterator[bool]:
    """For every call: must all threads have finished the calls before it?

    Yes for those numbered in ``firsts``.  Not if it depends on none of those since the last barrier, nor if thread 0
    alone runs both, which with ``grid`` is another thread in each call.
    """
    since, alone = _Since(), _Since()  # of calls by thread 0 alone, only those that others share are waited for
    for number, part in enumerate(parts):
        shared = grid or part.slices is not None
        must = number in firsts or (since if shared else alone).conflicts(part.call)
        if must:
            since, alone = _Since(), _Since()
        since.add(part.call)
        if shared:
            alone.add(part.call)
        yield must


class _Since:
    """The calls since a barrier, and the bytes that they read and write."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.read, self.written = Ranges(), Ranges()

    def add(self, call: Call) -> None:
        self.calls.append(call)
        for buffer, place in _arguments(call):
            (self.read if buffer.space == "const" else self.written).add(place.region, *_range(buffer, place))

    def conflicts(self, call: Call) -> bool:
        """Does the call depend on one of them?  They are looked at one by one only if it touches their bytes."""
        return self._meets(call) and any(depends(call, earlier) for earlier in self.calls)

    def _meets(self, call: Call) -> bool:
        for buffer, place in _arguments(call):
            touched = (place.region, *_range(buffer, place))
            if self.written.meet(*touched) or (buffer.space != "const" and self.read.meet(*touched)):
                return True
        return False


def may_write(call: Call, place: Place, size: int) -> bool:
    """Whether a call may write one of ``size`` bytes at a place, in any iterations of the loops around both."""
    first, end = place.lowest, place.highest + size
    return any(
        buffer.space != "const"
        and own.region is place.region
        and _range(buffer, own)[0] < end
        and first < _range(buffer, own)[1]
        for buffer, own in _arguments(call)
    )


def _arguments(call: Call) -> Iterator[tuple[Buffer, Place]]:
    return zip(call.kernel.params, call.args, strict=True)


def _bytes(buffer: Buffer) -> int:
    return math.prod(extent.const for extent in buffer.shape) * buffer.type.bytes


def _range(buffer: Buffer, place: Place) -> tuple[int, int]:
    """The bytes of a region that any iteration touches: the first, and the one after the last."""
    return place.lowest, place.highest + _bytes(buffer)


def _overlap(a: Buffer, p: Place, b: Buffer, q: Place) -> bool:
    """Whether they share a byte, when both calls run in the same iteration of the loops around them."""
    if p.advances == q.advances:
        p, q = replace(p, advances=()), replace(q, advances=())
    (first_p, end_p), (first_q, end_q) = _range(a, p), _range(b, q)
    return p.region == q.region and first_p < end_q and first_q < end_p


def depends(later: Call, earlier: Call) -> bool:
    """Whether one writes what the other reads or writes, in the same iteration of the loops around both.

    Clearing a halo and filling its inside do not conflict.
    """
    clears = later.clears or earlier.clears
    for a, p in _arguments(later):
        for b, q in _arguments(earlier):
            writes = (a.space != "const") + (b.space != "const")
            inside = clears and writes == 2 and p == q
            if writes and not inside and _overlap(a, p, b, q):
                return True
    return False


def _same(call: Call) -> dict[Buffer, Buffer] | None:
    """Operands with exactly the memory of a result; None if any overlaps a result in another way."""
    results: dict[Buffer, Buffer] = {}
    arguments = list(_arguments(call))
    for i, (a, p) in enumerate(arguments):
        for b, q in arguments[i + 1 :]:
            if a.space == b.space == "const" or not _overlap(a, p, b, q):
                continue
            source, result = (b, a) if b.space == "const" else (a, b)
            alike = p == q and a.shape == b.shape and a.type == b.type
            if not alike or source.space != "const" or result.space != "global":
                return None
            results[source] = result
    return results
