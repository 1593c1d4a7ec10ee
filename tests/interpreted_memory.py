"""The memory that the interpreter of the loop IR works on: cells that know who wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        self.users: dict[bool, _Users] = {}  # by whether they store; made when a thread of a block touches an element

    def note(self, first: int, last: int, who: Who, store: bool) -> None:
        """Note an access by a thread of a block. Raises KernelError if another thread touches an element between the
        same barriers, or another block at any time, and one of the two stores."""
        window = range(first, last)
        self.users = self.users or {kind: _Users(self.size) for kind in (False, True)}
        if self.users[True].others(window, who) or (store and self.users[False].others(window, who)):
            raise KernelError(f"{self.buffer.name}: an element is touched by two threads, of which one stores")
        self.users[store].add(window, who)

    def outside(self, at: Sequence[int], lanes: int) -> None:
        """Raises KernelError that names the dimension in which an access is out of range."""
        d = next((d for d, i in enumerate(at) if not 0 <= i < self.shape[d]), len(at) - 1)
        raise KernelError(f"{self.buffer.name}{list(self.shape)}: {list(at)}, {lanes} lanes, dimension {d}")

    def unwritten(self, first: int) -> None:
        at = [int(i) for i in np.unravel_index(first, self.shape)] if self.shape else []
        raise KernelError(f"{self.buffer.name}{at} is read before it is written")


@dataclass(slots=True)
class Who:
    """A thread of a block; ``interval`` counts the barriers that it has passed."""

    block: tuple[int, ...]
    thread: int
    interval: int = 0


class _Users:
    """Which block touched each element of a buffer, and which of its threads since the last barrier: a number of it, or
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


def lockstep(threads: list[Iterator[None]]) -> Iterator[None]:
    """Run all threads, in lockstep from barrier to barrier. Raises KernelError if some never reach a barrier."""
    while threads:
        waiting = [thread for thread in threads if next(thread, "done") != "done"]
        if waiting and len(waiting) < len(threads):
            raise KernelError("a barrier that some threads never reach")
        threads = waiting
        if threads:
            yield
