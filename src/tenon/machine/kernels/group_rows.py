"""Rows in work groups: a block for each row, whose threads share its elements and combine their results in a tree.

Thread t takes elements t, t + T, ... of a row, which it keeps in registers where they are few.  The results of 32
neighbouring threads are combined by exchanges (``isa.subgroups``), halves with halves, and those of all 32s by every
thread, so that the order of the additions is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.isa.subgroups import SHUFFLE_XOR
from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, op
from tenon.machine.kernels import math
from tenon.machine.kernels.image import Epilogue, Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.rows import initial, joined
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.network.graph.types import F32, DType

SHORTEST = 32
"""Elements of a row that occupy the threads of a block; shorter rows have a thread each."""

_LONGEST = 1 << 18
"""Elements of a row of which no thread adds up too many."""

_BLOCKS = 1 << 16

_KEPT = 8
"""The most elements of a row that a thread keeps."""

_EACH = 4
"""Elements of a thread where there can be enough threads: they are loaded at once."""

SUBGROUP = 32
"""Threads that combine their results by exchanges."""


def by_groups(machine: Machine, rows: int, n: int) -> bool:
    """Whether rows of n elements should have a block each."""
    return machine.launch is not None and SHORTEST <= n <= _LONGEST and rows <= _BLOCKS


def threads_of(machine: Machine, n: int) -> int:
    """The threads of a block for a row of n elements: a power of two."""
    assert machine.launch is not None
    most, threads = min(256, machine.launch.group), machine.launch.width
    while _EACH * threads < n and 2 * threads <= most:
        threads *= 2
    return threads


@dataclass(frozen=True)
class Cells:
    """Shared memory for one combination: what threads exchange in each step, and the results of every subgroup."""

    exchanged: Tensor
    parts: Tensor | None  # where there are several


@dataclass(frozen=True)
class Values:
    """Elements of a thread: in registers, or where they are many in memory, from where they are loaded again."""

    load: Callable[[Index], Expr]
    kept: Tensor | None

    def first(self, at: Index, number: Index) -> Expr:
        """An element that was not read before."""
        if self.kept is None:
            return self.load(at)
        self.kept[number] = self.load(at)
        return self.kept[number]

    def again(self, at: Index, number: Index) -> Expr:
        """An element that was read before."""
        return self.load(at) if self.kept is None else self.kept[number]


class GroupRow:
    """The work of the threads of a block on a row of ``n`` elements; ``side`` rows are interleaved in it, each combined
    by itself."""

    def __init__(self, k: Builder, n: int, threads: int, side: int = 1) -> None:
        self.k, self.n, self.threads, self.side = k, n, threads, side
        self.lanes = min(SUBGROUP, threads)
        self.each = -(-n // threads)
        self.subgroup, self.lane = Index(), Index()

    @property
    def thread(self) -> Index:
        """The number of the thread in its block."""
        return self.subgroup * self.lanes + self.lane

    @property
    def distances(self) -> list[int]:
        """The distances between threads that exchange their results, step by step."""
        return [self.lanes >> step for step in range(1, self.lanes.bit_length()) if self.lanes >> step >= self.side]

    def cells(self, dtype: DType = F32) -> Cells:
        """Shared memory for one combination, to be allocated before the loop over threads."""
        subgroups = self.threads // self.lanes
        exchanged = self.k.local("cells", len(self.distances), subgroups, self.lanes, dtype=dtype, space="shared")
        shape = subgroups, self.side
        return Cells(exchanged, self.k.local("parts", *shape, dtype=dtype, space="shared") if subgroups > 1 else None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The loops over threads."""
        with (
            self.k.loop("g", self.threads // self.lanes, kind="thread") as self.subgroup,
            self.k.loop("t", self.lanes, kind="thread") as self.lane,
        ):
            yield

    def first(self, count: int = 1) -> tuple[Index, Index]:
        """The facts that hold in the first ``count`` threads of a block, at most those of a subgroup."""
        return -self.subgroup, count - 1 - self.lane

    def elements(self, body: Callable[[Index, Index], None]) -> None:
        """Run ``body`` for the elements of this thread, with the place of each in the row and its number in the thread;
        the numbers of a few are constants."""
        if self.each > _KEPT:
            with self.k.loop("r", self.each) as number:
                self.element(number, body)
        else:
            for i in range(self.each):
                self.element(Index((), i), body)

    def element(self, number: Index, body: Callable[[Index, Index], None]) -> None:
        """Run ``body`` for the element of that number, if the row has it."""
        at = self.thread + number * self.threads
        with self.k.when(*([self.n - 1 - at] if at.span()[1] >= self.n else [])):
            body(at, number)

    def values(self, load: Callable[[Index], Expr]) -> Values:
        """The elements of this thread as floats, by how each is loaded."""
        return Values(load, self.k.local("v", self.each) if self.each <= _KEPT else None)

    def exchange(self, cells: Tensor, step: int, distance: int, value: Tensor, other: Tensor) -> None:
        """Get the value of the thread at a distance that is a power of two."""
        pair = 2 * distance
        partner = self.lane // pair * pair + (self.lane + distance) % pair
        own, others = (step, self.subgroup, self.lane), (step, self.subgroup, partner)
        operands = [(cells, own), (cells, others), (value, (0,)), (other, (0,))]
        with self.k.instruction(SHUFFLE_XOR, operands, distance):
            cells[own] = value[0]
            self.k.barrier()
            other[0] = cells[others]

    def total(self, cells: Cells, combine: str, dtype: DType, part: Callable[[Index, Index], Expr]) -> Expr:
        """The combination of ``part``, which takes what ``elements`` gives, over a row, in all threads of that row."""
        k = self.k
        acc, other = k.local("a", 1, dtype=dtype), k.local("b", 1, dtype=dtype)
        acc[0] = initial(combine, dtype)

        def add(at: Index, number: Index) -> None:
            acc[0] = op(combine, acc[0], part(at, number))

        self.elements(add)
        for step, distance in enumerate(self.distances):
            self.exchange(cells.exchanged, step, distance, acc, other)
            acc[0] = op(combine, acc[0], other[0])
        if cells.parts is None:
            return k.let("t", acc[0])
        with k.when(self.side - 1 - self.lane):
            cells.parts[self.subgroup, self.lane] = acc[0]
        k.barrier()
        row = self.lane % self.side if self.side > 1 else Index()
        return k.let("t", joined(combine, [cells.parts[i, row] for i in range(self.threads // self.lanes)]))


@lru_cache(maxsize=256)
def softmax_groups(outer: int, n: int, log: bool, machine: Machine, dtype: DType = F32) -> Kernel:
    """Softmax, or its logarithm, along rows of n.  Parameters: x, y, which may be the same memory."""
    name = f"{'log_' if log else ''}softmax_{outer}x{n}"
    k = Builder(name, f"{'Log-softmax' if log else 'Softmax'} along the rows of [{outer}, {n}], a block each")
    x, y = k.param("x", outer, n, dtype=dtype), k.param("y", outer, n, dtype=dtype, out=True)
    row = GroupRow(k, n, threads_of(machine, n))
    with k.loop("o", outer, kind="block") as o:
        tops, sums = row.cells(), row.cells()
        with row.running():
            values = row.values(lambda at: loaded(x[o, at]))
            top = row.total(tops, "max", F32, values.first)

            def exponential(at: Index, number: Index) -> Expr:
                e = k.let("e", math.exp_of_negative(values.again(at, number) - top))
                if values.kept is not None and not log:
                    values.kept[number] = e
                elif keeps_terms(log, dtype):
                    y[o, at] = e
                return e

            whole = row.total(sums, "add", F32, exponential)
            scale = k.let("s", math.log(whole) if log else 1.0 / whole)

            def finish(at: Index, number: Index) -> None:
                if values.kept is None:
                    y[o, at] = of_term(log, x[o, at], y[o, at], top, scale)
                else:
                    value = values.kept[number]
                    y[o, at] = stored((value - top) - scale if log else value * scale, dtype)

            row.elements(finish)
    return k.done()


def keeps_terms(log: bool, dtype: DType) -> bool:
    """Whether the exponentials of a softmax are kept in its result until they are divided: not in 16 bits, which would
    round them twice."""
    return not log and dtype is F32


def of_term(log: bool, x: Expr, y: Expr, top: Expr, scale: Expr) -> Expr:
    """An element of the result, of that of the input or of its exponential ``y``, if that is kept."""
    if log:
        return stored((loaded(x) - top) - scale, x.type.dtype)
    if keeps_terms(log, x.type.dtype):
        return y * scale
    return stored(math.exp_of_negative(loaded(x) - top) * scale, x.type.dtype)


@lru_cache(maxsize=256)
def plane_groups(x: Image, y: Image, combine: str, map: Epilogue, finish: Epilogue, machine: Machine) -> Kernel:
    """``reduce.plane`` with a block for each group of channels, whose neighbours neighbouring threads take."""
    k = Builder(
        f"{combine}_plane_{x.channels}_{x.h}x{x.w}",
        f"Every channel of {x.shown} reduced to one element ({combine}), a block for {x.block}",
    )
    source = k.param("x", *x.shape, dtype=x.dtype)
    target = k.param("y", *y.shape, dtype=y.dtype, out=True)
    row = GroupRow(k, x.h * x.w * x.block, threads_of(machine, x.h * x.w * x.block), x.block)
    with k.loop("n", x.n, kind="block") as n, k.loop("b", x.blocks, kind="block") as b:
        cells = row.cells()
        with row.running():
            channel = row.lane % x.block

            def element(at: Index, _: Index) -> Expr:
                position = at // x.block
                return map(loaded(source[n, b, position // x.w + x.top, position % x.w + x.left, channel]))

            total = row.total(cells, combine, F32, element)
            with k.when(*row.first(x.block)):
                target[n, b, y.top, y.left, row.lane] = stored(finish(total), y.dtype)
    return k.done()
