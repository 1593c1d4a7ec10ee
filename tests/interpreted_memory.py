"""The memory that the interpreter of the loop IR works on: cells that know who wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from loop_operations import KernelError, numpy_type
from tenon.machine.kernel_ir.loops import Buffer
from tenon.network.graph.graph import Array


class Cells:
    """The memory of a buffer: its lanes one behind the other, and which elements have been written (None: all)."""

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], data: Array | None) -> None:
        self.buffer, self.shape = buffer, shape
        self.size = math.prod(shape)
        if data is None:
            data = np.zeros(self.size * buffer.type.lanes, numpy_type(buffer.type.dtype))
            self.written: bytearray | None = bytearray(self.size)
        else:
            self.written = None
        self.data = data.reshape(-1)
        self.arriving = bytearray(self.size) if buffer.space == "shared" else b""  # where a copy is on its way
        self.users: dict[bool, _Users] = {}  # by whether they store; made when a thread of a block touches an element

    def note(self, first: int, last: int, who: Who, store: bool) -> None:
        """Note an access by a thread of a block. Raises KernelError if another thread touches an element between the
        same barriers, or another block at any time, and one of the two stores."""
        window = range(first, last)
        if self.arriving and self.arriving.find(1, first, last) >= 0:
            raise KernelError(f"{self.buffer.name}: an element is touched before its copy has arrived")
        if self.buffer.space == "cluster":
            who = who.among(first // math.prod(self.shape[1:]), store)
        self.users = self.users or {kind: _Users(self.size) for kind in (False, True)}
        if self.users[True].others(window, who) or (store and self.users[False].others(window, who)):
            raise KernelError(f"{self.buffer.name}: an element is touched by two threads, of which one stores")
        self.users[store].add(window, who)

    def issue(self, first: int, last: int, value: Array, who: Who) -> None:
        """Begin a copy to elements, which hold nothing until it has arrived. Raises KernelError as ``note`` does."""
        assert self.written is not None
        self.note(first, last, who, True)
        self.arriving[first:last] = bytes([1] * (last - first))  # type: ignore[index]
        self.written[first:last] = bytes(last - first)
        who.issued.append((self, first, last, value))

    def arrive(self, first: int, last: int, value: Array, who: Who) -> None:
        assert self.written is not None
        self.arriving[first:last] = bytes(last - first)  # type: ignore[index]
        self.note(first, last, who, True)
        self.data[first:last] = value
        self.written[first:last] = bytes([1] * (last - first))

    def outside(self, at: Sequence[int], lanes: int) -> None:
        """Raises KernelError that names the dimension in which an access is out of range."""
        d = next((d for d, i in enumerate(at) if not 0 <= i < self.shape[d]), len(at) - 1)
        raise KernelError(f"{self.buffer.name}{list(self.shape)}: {list(at)}, {lanes} lanes, dimension {d}")

    def unwritten(self, first: int) -> None:
        at = [int(i) for i in np.unravel_index(first, self.shape)] if self.shape else []
        raise KernelError(f"{self.buffer.name}{at} is read before it is written")


@dataclass(slots=True)
class Who:
    """A thread of a block, which has the number ``rank`` in its cluster; ``interval`` counts the barriers that it has
    passed, ``meetings`` those of the cluster.  ``issued`` copies are in no group yet."""

    block: tuple[int, ...]
    thread: int
    rank: int | None = None
    interval: int = 0
    meetings: int = 0
    open: bool = False  # whether it has touched memory of the cluster since its last barrier
    issued: list[tuple[Cells, int, int, Array]] = field(default_factory=list)
    groups: list[list[tuple[Cells, int, int, Array]]] = field(default_factory=list)

    def among(self, part: int, store: bool) -> Who:
        """The thread among those of the cluster, which touches a part of its memory."""
        if store and part != self.rank:
            raise KernelError("a block stores in another's part of the memory of its cluster")
        assert self.rank is not None
        self.open = True
        return Who(self.block[:-1], self.rank << 16 | self.thread, interval=self.meetings)

    def meet(self, *, cluster: bool) -> None:
        """Pass a barrier."""
        if cluster and self.rank is None:
            raise KernelError("a barrier of a cluster outside of one")
        self.interval += 1
        self.meetings += cluster
        self.open &= not cluster

    def commit(self) -> None:
        """End a group of copies."""
        self.groups.append(self.issued)
        self.issued = []

    def wait(self, groups: int) -> None:
        """Let all groups of copies arrive but the last few."""
        while len(self.groups) > groups:
            for cells, first, last, value in self.groups.pop(0):
                cells.arrive(first, last, value, self)

    def end(self) -> None:
        """Raises KernelError for a thread that may end too early."""
        if self.issued or any(self.groups):
            raise KernelError("a thread ends before its copies have arrived")
        if self.open:
            raise KernelError("a block ends while others may touch its part of the memory of the cluster")


class _Users:
    """The block that touched each element of a buffer, and its thread since the last barrier: a number, or
    "several"."""

    def __init__(self, size: int) -> None:
        self.block: list[tuple[int, ...] | str | None] = [None] * size
        self.thread: list[tuple[int, int | str] | None] = [None] * size  # the interval, and who

    def others(self, window: range, who: Who) -> bool:
        """Whether any of the elements was touched by another block, or by another thread between the same barriers."""
        for i in window:
            if (block := self.block[i]) is not None:
                if block != who.block:
                    return True
                interval, thread = self.thread[i] or (-1, 0)
                if interval == who.interval and thread != who.thread:
                    return True
        return False

    def add(self, window: range, who: Who) -> None:
        for i in window:
            interval, thread = self.thread[i] or (-1, 0)
            several = self.block[i] == who.block and interval == who.interval and thread != who.thread
            self.thread[i] = who.interval, "several" if several else who.thread
            self.block[i] = who.block if self.block[i] in (None, who.block) else "several"


def lockstep(threads: list[Iterator[bool]]) -> Iterator[bool]:
    """Run all threads, in lockstep from barrier to barrier, and yield whether it is one of the cluster. Raises
    KernelError if some never reach a barrier."""
    while threads:
        reached = [next(thread, None) for thread in threads]
        if len(set(reached)) > 1:
            raise KernelError("a barrier that some threads never reach")
        if reached[0] is None:
            return
        yield reached[0]


def clustered(blocks: list[Iterator[bool]]) -> Iterator[bool]:
    """Run all blocks of a cluster, from one of its barriers to the next. Raises KernelError if some never reach one."""
    return (True for _ in lockstep([filter(None, block) for block in blocks]))
