"""The elements of registers, stack arrays and shared memory that have certainly been written.

A store gives a *record*: the buffer, the index of each dimension, and the tests that it stood under.  While the loops
around it are open, the record holds for this iteration of theirs: a load with the same index finds it.  When a loop
ends that certainly ran, its variable is *closed*: every value below the least number of iterations has been taken, so
the record covers a set of elements: those for which its tests hold, where these depend on closed variables only.  A
loop that may not have run takes its records with it; so does a test that the load does not stand under too, and a
parallel loop, whose iterations other threads run.  A store to shared memory closes the loops over threads at once, as
every thread runs it.  What is covered by records of which every variable is closed is kept element by element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Buffer
from tenon.network.graph.graph import Array

_MOST = 1 << 18
"""Elements of a set that is listed; a larger one counts as not covered."""

Extents = dict[Var, int]


@dataclass(frozen=True)
class Record:
    """A store of ``width`` elements from ``index`` on, under ``guards``; ``closed`` has the variables that took every
    value below a number."""

    index: tuple[Index, ...]
    width: int
    guards: frozenset[Index]
    closed: tuple[tuple[Var, int], ...] = ()

    @property
    def free(self) -> frozenset[Var]:
        """The variables that have one value: those of loops still open."""
        return _vars((*self.index, *self.guards)) - {v for v, _ in self.closed}

    @property
    def settled(self) -> frozenset[Index]:
        """The tests that say which elements are covered: they depend on closed variables only."""
        closed = {v for v, _ in self.closed}
        return frozenset(g for g in self.guards if (variables := _vars((g,))) and variables <= closed)

    def holds_under(self, given: frozenset[Index]) -> bool:
        """Whether the tests that say nothing of single elements are among ``given``."""
        rest = self.guards - self.settled
        return rest <= given and not _vars(rest) & {v for v, _ in self.closed}


@dataclass
class Written:
    """Knowledge at one point of a kernel."""

    records: dict[Buffer, frozenset[Record]] = field(default_factory=dict)
    cells: dict[Buffer, Array] = field(default_factory=dict)  # a bool for each element

    def begin(self, buffer: Buffer) -> None:
        """Nothing of ``buffer`` is written."""
        self.records[buffer] = frozenset()
        self.cells[buffer] = np.zeros([extent.const for extent in buffer.shape], bool)

    def fork(self) -> Written:
        """Knowledge at the beginning of a block."""
        return Written(dict(self.records), {b: c.copy() for b, c in self.cells.items()})

    def store(
        self,
        buffer: Buffer,
        index: tuple[Index, ...],
        width: int,
        guards: tuple[Index, ...],
        threads: tuple[Var, ...] = (),
    ) -> None:
        """A store by all of ``threads``, where ``guards`` hold."""
        if width == 1 and not guards and (at := _constant(index)) is not None:
            self.cells[buffer][at] = True
            return
        moving = _vars((*index, *guards))
        closed = tuple((v, v.most() + 1) for v in threads if v in moving)
        self.add(buffer, Record(index, width, frozenset(guards), closed))

    def add(self, buffer: Buffer, record: Record) -> None:
        """Note what a record covers."""
        if not record.free and record.guards == record.settled:
            image = _image(record.index, record.width, dict(record.closed), record.settled)
            if image is not None:
                self.cells[buffer][image] = True
                return
        self.records[buffer] |= {record}

    def covers(self, buffer: Buffer, index: tuple[Index, ...], width: int, guards: tuple[Index, ...]) -> bool:
        """Whether all that a load reads has been written."""
        if width == 1 and (at := _constant(index)) is not None and self.cells[buffer][at]:
            return True
        given = frozenset(guards)
        every = {v: v.most() + 1 for v in _vars(index)}
        cells = self.cells[buffer]
        for r in self.records[buffer]:
            if r.holds_under(given) and _within(r, index, width, every, cells.shape):
                return True
        image = _image(index, width, every)
        if image is None:
            return False
        return bool(cells[_inside(image, cells.shape)].all())

    def join(self, inner: Written, var: Var, iterations: int) -> None:
        """After a loop over ``var`` that ran at least that often, ``inner`` being known at the end of its body."""
        if iterations < 1:
            return
        for buffer in self.records:
            self.cells[buffer] |= inner.cells[buffer]
            for r in inner.records[buffer]:
                if var not in r.free:
                    self.add(buffer, r)
                elif var not in _vars(r.guards) or buffer.space in ("shared", "cluster"):
                    self.add(buffer, Record(r.index, r.width, r.guards, (*r.closed, (var, iterations))))

    def keep(self, inner: Written, var: Var | None = None) -> None:
        """After a block that ran once; what depends on ``var``, which it bound, is forgotten."""
        for buffer in self.records:
            self.cells[buffer] |= inner.cells[buffer]
            self.records[buffer] |= {r for r in inner.records[buffer] if var not in r.free}

    def under(self, inner: Written, guards: Iterable[Index]) -> None:
        """After a block that ran where ``guards`` hold: what it wrote is written under them."""
        tests = frozenset(guards)
        for buffer in self.records:
            self.records[buffer] |= inner.records[buffer]
            if buffer.space in ("shared", "cluster"):  # its cells are those for which the tests of some thread hold
                self.cells[buffer] |= inner.cells[buffer]
                continue
            fresh = inner.cells[buffer] & ~self.cells[buffer]
            if fresh.any():
                for at in np.argwhere(fresh).tolist():
                    self.add(buffer, Record(tuple(Index((), i) for i in at), 1, tests))


def _vars(indices: Iterable[Index]) -> frozenset[Var]:
    return frozenset().union(*(a.vars for i in indices for a, _ in i.terms))


def _constant(index: tuple[Index, ...]) -> tuple[int, ...] | None:
    return None if any(i.terms for i in index) else tuple(i.const for i in index)


def _within(r: Record, index: tuple[Index, ...], width: int, every: Extents, shape: tuple[int, ...]) -> bool:
    """Whether ``r`` covers the load: the dimensions that its closed variables move by sets of elements, the others by
    equal indices."""
    closed = dict(r.closed)
    last = len(index) - 1
    moving = []
    for d, (have, want) in enumerate(zip(r.index, index, strict=True)):
        variables = _vars((have,))
        if have == want and not variables & closed.keys() and (d != last or width <= r.width):
            continue
        if variables - closed.keys():
            return False
        moving.append(d)
    if not moving:
        return not r.settled
    if not r.settled and _apart(r.index, moving, closed):
        return all(_covers_line(r, index, d, width if d == last else 1, every, closed) for d in moving)
    wide = width if last in moving else 1
    return _covers_box(r, [index[d] for d in moving], moving, wide, every, [shape[d] for d in moving])


def _apart(index: tuple[Index, ...], moving: list[int], closed: Extents) -> bool:
    """Whether no closed variable moves two dimensions, so that what is covered is a box."""
    each = [_vars((index[d],)) & closed.keys() for d in moving]
    return sum(map(len, each)) == len(frozenset().union(*each))


def _covers_line(r: Record, index: tuple[Index, ...], d: int, width: int, every: Extents, closed: Extents) -> bool:
    has = _line(r.index[d], r.width if d == len(index) - 1 else 1, closed)
    asks = _line(index[d], width, every)
    return has is not None and asks is not None and bool(np.isin(asks, has).all())


def _covers_box(r: Record, index: list[Index], moving: list[int], width: int, every: Extents, shape: list[int]) -> bool:
    """The same of dimensions that one variable moves together, element by element."""
    own = r.width if len(r.index) - 1 in moving else 1
    has = _image(tuple(r.index[d] for d in moving), own, dict(r.closed), r.settled)
    asks = _image(tuple(index), width, {v: every[v] for v in _vars(index)})
    if has is None or asks is None:
        return False
    cells = np.zeros(shape, bool)
    cells[_inside(has, cells.shape)] = True
    return bool(cells[_inside(asks, cells.shape)].all())


def _inside(image: tuple[Array, ...], shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The part of a range that lies inside of the buffer; the rest is another proof's concern."""
    inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(image, shape, strict=True)])
    return tuple(i[inside] for i in image)


def _line(index: Index, width: int, extents: Mapping[Var, int]) -> Array | None:
    """The values of one dimension."""
    image = _image((index,), width, extents)
    return None if image is None else np.unique(image[0])


def _image(
    index: tuple[Index, ...], width: int, extents: Mapping[Var, int], tests: Iterable[Index] = ()
) -> tuple[Array, ...] | None:
    """The elements of ``width`` from ``index`` on, for every value of the variables for which ``tests`` hold; None if
    there are too many."""
    facts = tuple(tests)
    names = sorted(_vars((*index, *facts)), key=lambda v: v.depth)
    total = width
    for v in names:
        total *= extents[v]
    if total > _MOST:
        return None
    axes = np.meshgrid(*(np.arange(extents[v]) for v in names), np.arange(width), indexing="ij", sparse=True)
    env = dict(zip(names, axes[:-1], strict=True))
    values = [_values(i, env) for i in index]
    values[-1] = values[-1] + axes[-1]
    if not facts:
        return tuple(np.broadcast_arrays(*values))
    *values, least = np.broadcast_arrays(*values, reduce(np.minimum, [_values(f, env) for f in facts]))
    return tuple(i[least >= 0] for i in values)


def _values(index: Index, env: Mapping[Var, Array]) -> Array:
    total: Array = np.array(index.const)
    for atom, k in index.terms:
        if isinstance(atom, Var):
            value = env[atom]
        else:
            of = _values(atom.of, env)
            value = of % atom.by if atom.rest else of // atom.by
        total = total + k * value
    return total
