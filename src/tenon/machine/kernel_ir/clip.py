"""Kernels computed only as far as their results are needed: loops end at extents that are known at run time.

Where all stores of an iteration of a loop go to elements that nothing reads (``kernel_ir.needed``) from some iteration
on, the loop ends there.  The position of a store is an affine function of the loops around it, so that the first such
iteration is one of the extent and of the outer loops, rounded up; tiles and blocks are computed whole.  A loop over
several axes at once is split where its extents allow it.  What lies beyond the last whole tile is run under a test.

Loops of which this cannot be shown stay as they are; ``proofs.needed`` shows of the result that nothing which is
needed is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tenon.machine.isa import fp16
from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    Alloc,
    Barrier,
    Bind,
    Buffer,
    CallSource,
    Const,
    Expr,
    If,
    Instruction,
    Kernel,
    Load,
    Loop,
    Op,
    Outline,
    Stmt,
    Store,
    Type,
    op,
)
from tenon.machine.kernel_ir.narrow import Narrowed, positional_loops, widths
from tenon.machine.kernel_ir.needed import CutShort, NeededAxis, NeededCount, StorePosition
from tenon.machine.kernel_ir.read_tiles import TileNeed
from tenon.machine.kernel_ir.read_tiles import needs as tile_needs
from tenon.machine.kernel_ir.rewrite import Substitution
from tenon.machine.kernel_ir.text import show_expr
from tenon.machine.kernel_ir.upper import Facts, upper
from tenon.machine.kernel_ir.walk import loads, statements, statements_under_tests
from tenon.network.graph.types import I64

_SPREAD = 4
"""Depths of variables are multiplied by this, to make room for those of split loops."""


class CutKernel(NamedTuple):
    """A kernel that is cut short, and the same with all of its loops whole, split like those."""

    kernel: Kernel
    whole: Kernel


@lru_cache(maxsize=1024)
def clipped(
    kernel: Kernel,
    needed: tuple[NeededAxis, ...],
    extents: int,
    absorbed: tuple[NeededAxis, ...] = (),
    *,
    narrow: bool = False,
) -> CutKernel:
    """``kernel`` with ``extents`` more parameters, i64s of one element that the bounds of ``needed`` name, computing
    what is needed; without them where no loop can be cut short.  ``absorbed`` is as in
    ``CutShort``.  With ``narrow`` there are tiles of fewer
    positions for the end of what is needed, which take more code."""
    names = _FreshNames(kernel)
    params = tuple(Buffer(names.fresh("extent"), Type(I64), (Index((), 1),), "const") for _ in range(extents))
    whole = replace(kernel, params=(*kernel.params, *params))
    split = replace(whole, body=_Splitting(whole, needed, names).body(_spread(kernel.body)))
    numbers: dict[tuple[tuple[NeededCount, ...], int], Var] = {}  # the same one for axes of which as much is needed
    for i, axis in enumerate((*needed, *absorbed)):
        number = Var(names.fresh("needed"), (Index((), axis.count + 1),), -i)
        numbers.setdefault((axis.bounds, axis.count), number)
    needs = [_OutputNeed(axis, whole.params[axis.param], numbers[axis.bounds, axis.count]) for axis in needed]
    summed = [_OutputNeed(axis, whole.params[axis.param], numbers[axis.bounds, axis.count]) for axis in absorbed]
    tiles = narrow and not any(p.space == "scratch" for p in kernel.params)
    cut = _Clipping(tiles, needs, summed)
    body = cut.without_unread(cut.body(split.body, ()))
    if not cut.used:
        return CutKernel(kernel, kernel)
    for (bounds, _), var in reversed(numbers.items()):
        if var in cut.used:
            body = (Bind(var, largest(bounds, whole.params), body),)
    return CutKernel(replace(whole, body=body), split)


def _spread(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The same statements with depths that leave room between them."""
    env = {s.var: replace(s.var, depth=s.var.depth * _SPREAD) for s in statements(body) if isinstance(s, Loop | Bind)}
    return _Renaming(env).body(body)


class _Renaming(Substitution):
    """Replaces variables by others, which their loops define."""

    def __init__(self, names: dict[Var, Var]) -> None:
        super().__init__({old: Index(((new, 1),)) for old, new in names.items()})
        self.names = names

    def defined(self, var: Var) -> Var:
        new = replace(self.names[var], below=self.indices(var.below))
        self.env[var] = Index(((new, 1),))
        return new


def largest(bounds: Sequence[NeededCount], params: Sequence[Buffer]) -> Expr:
    """The greatest of several bounds, which are rounded up; what is below zero may be rounded to zero."""
    values = [_bound(b, params[b.param]) for b in bounds]
    result = values[0]
    for value in values[1:]:
        result = op("max", result, value)
    return result


def _bound(b: NeededCount, number: Buffer) -> Expr:
    value: Expr = Load(number, (Index(),), Type(I64))
    value = op("mul", value, Const(b.factor, Type(I64)))
    if b.offset + b.divisor - 1:
        value = op("add", value, Const(b.offset + b.divisor - 1, Type(I64)))
    return op("div", value, Const(b.divisor, Type(I64)))


class _FreshNames:
    """Names that a kernel does not use yet."""

    def __init__(self, kernel: Kernel) -> None:
        self.used = {b.name for b in kernel.params} | {v.name for v in kernel.sizes}
        for s in statements(kernel.body):
            if isinstance(s, Loop | Bind):
                self.used.add(s.var.name)
            elif isinstance(s, Alloc):
                self.used.add(s.buffer.name)
            elif hasattr(s, "ref"):
                self.used.add(s.ref.name)

    def fresh(self, name: str) -> str:
        """``name``, or with a number that makes it unique."""
        number, candidate = 1, name
        while candidate in self.used:
            number += 1
            candidate = f"{name}{number}"
        self.used.add(candidate)
        return candidate


# -------------------------------------------------------------------------------------------------- splitting
class _Splitting:
    """Splits loops that run over several positions of the dimensions around a needed one."""

    def __init__(self, kernel: Kernel, needed: Sequence[NeededAxis], names: _FreshNames) -> None:
        self.kernel, self.needed, self.names = kernel, needed, names

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Statements with such loops split, as often as is possible."""
        while splits := dict(self.splits(body)):
            body = _Split(splits, self.names).body(body)
        return body

    def splits(self, body: tuple[Stmt, ...]) -> Iterator[tuple[Var, int]]:
        """Loop variables, and the number of iterations that stay within one period of a needed dimension."""
        loops = {s.var: s for s in statements(body) if isinstance(s, Loop) and s.kind in ("serial", "parallel")}
        for axis in self.needed:
            own = self.kernel.params[axis.param]
            for s in statements(body):
                if isinstance(s, Store) and s.buffer is own and axis.place(s) is None:
                    yield from _split_of(axis.stride * axis.extent, s, loops)


def _split_of(period: int, store: Store, loops: dict[Var, Loop]) -> Iterator[tuple[Var, int]]:
    for atom, k in store.buffer.flat(store.index).terms:
        if isinstance(atom, Var) and atom in loops and 0 < k < period and period % k == 0:
            (extent, *more), each = atom.below, period // k
            if not more and not extent.terms and extent.const > each and extent.const % each == 0:
                yield atom, each


class _Split(Substitution):
    """Each loop of ``splits`` becomes two, of which the inner one has the given number of iterations."""

    def __init__(self, splits: dict[Var, int], names: _FreshNames) -> None:
        super().__init__({})
        self.splits, self.names = splits, names

    def statement(self, s: Stmt) -> Stmt:
        if not isinstance(s, Loop) or s.var not in self.splits:
            return super().statement(s)
        each, var = self.splits[s.var], s.var
        outer = replace(var, below=(Index((), var.below[0].const // each),))
        inner = Var(self.names.fresh(var.name), (Index((), each),), var.depth + 1)
        self.env[var] = Index(((outer, each),)) + Index(((inner, 1),))
        return Loop(outer, (Loop(inner, self.body(s.body), s.kind),), s.kind)


# --------------------------------------------------------------------------------------------------- clipping
@dataclass(frozen=True)
class _OutputNeed:
    """The positions that are needed of a result along an axis, by the variable of their number."""

    axis: NeededAxis
    buffer: Buffer
    var: Var

    def place(self, store: Store | Load, facts: Facts = ()) -> tuple[StorePosition, Index] | None:
        """Where a store goes where facts hold, and the first place that is not needed; of an operand, where a load
        does."""
        place = self.axis.place(store, facts) if store.buffer is self.buffer else None
        return None if place is None else (place, (Index(((self.var, 1),)) + self.axis.start) * place.parts)


@dataclass(frozen=True)
class _PrivateNeed:
    """The elements that are read of memory of the thread: those whose index along a dimension, times
    ``factor``, is at most the number ``var`` times ``step`` plus ``more``."""

    buffer: Buffer
    dim: int
    var: Var
    factor: int
    step: int
    more: int

    def place(self, store: Store, facts: Facts = ()) -> tuple[StorePosition, Index] | None:
        """As ``_OutputNeed.place``."""
        if store.buffer is not self.buffer:
            return None
        return StorePosition(store.index[self.dim] * self.factor, 1), Index(((self.var, self.step),)) + self.more + 1


TestedStore = tuple[Store, Facts]
"""A store, and the tests around it."""
_Need = _OutputNeed | _PrivateNeed | TileNeed
_Places = list[tuple[StorePosition, Index]]


class _Clipping:
    """Cuts loops short; ``used`` are the variables of the extents that loops and tests depend on."""

    def __init__(self, narrow: bool, needs: Sequence[_Need], summed: Sequence[_OutputNeed]) -> None:
        self.narrow, self.needs, self.summed = narrow, needs, summed
        self.numbers = list(dict.fromkeys(need.var for need in (*needs, *summed)))
        self.used: set[Var] = set()
        self.first = True

    def without_unread(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements, with those loops cut short that store what others do not read any more."""
        body = self.without_tiles(body)
        known = tuple(need for need in self.needs if not isinstance(need, _PrivateNeed))
        cut = {need.buffer for need in known if isinstance(need, TileNeed)}
        for _ in range(_ROUNDS if self.used else 0):
            self.needs, self.first = (*known, *_private_needs(body, self.used, cut)), False
            body = self.body(body, ())
        return body

    def without_tiles(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements, with the loops over tiles of scratch memory cut short together."""
        own, assumed = self.needs, tile_needs(body, sorted(self.used, key=lambda v: v.name))
        while assumed:
            self.needs, self.first = (*own, *assumed), False
            made = self.body(body, ())
            kept = [need for need in assumed if need.holds(made)]
            if len(kept) == len(assumed):
                return made
            assumed = kept
        self.needs = own
        return body

    def body(self, body: tuple[Stmt, ...], cut: tuple[Var, ...]) -> tuple[Stmt, ...]:
        """Statements, of which a loop around is cut short by the extents ``cut``."""
        return tuple(made for s in body for made in self.versions(s, cut))

    def versions(self, s: Stmt, cut: tuple[Var, ...]) -> Iterator[Stmt]:
        """A statement cut short, in versions for fewer positions if it is a tile."""
        if isinstance(s, Outline) and self.narrow and self.first:
            for var in self.numbers:
                tile = self.tile(s, var)
                if tile is not None:
                    self.used.add(var)
                    yield from _narrowed(s, *tile)
                    return
        yield self.statement(s, cut)

    def tile(self, s: Outline, var: Var) -> tuple[Index, frozenset[Var]] | None:
        """How many positions from the beginning of a tile on are needed, and its loops over these positions."""
        places = self.places(outliving((s,)), var)
        inner = {x.var for x in statements(s.body) if isinstance(x, Loop | Bind)}
        stored, needed = dict[int, Var](), set[Index]()
        for number, (place, end) in enumerate(places or ()):
            moving = [(a, k) for a, k in place.at.terms if a.vars & inner]
            if place.parts != 1 or len(moving) != 1 or moving[0][1] != 1 or not isinstance(moving[0][0], Var):
                return None
            stored[number] = moving[0][0]
            needed.add(end - (place.at - Index(tuple(moving))))
        cut = positional_loops(s, stored) if stored else None
        return (needed.pop(), cut) if cut and len(needed) == 1 else None

    def statement(self, s: Stmt, cut: tuple[Var, ...]) -> Stmt:
        """A statement cut short: a loop by a bound, another one by a test."""
        if not isinstance(s, BLOCKS) or isinstance(s, Instruction):
            return s
        stores = outliving((s,), own=isinstance(s, Loop) and s.kind == "parallel")
        if isinstance(s, Loop) and s.kind in ("serial", "parallel"):
            bounds = {var: end for var in self.numbers if (end := self.end(s, stores, var)) is not None}
            if bounds:
                self.used |= bounds.keys()
                var = replace(s.var, below=(*s.var.below, *bounds.values()))
                inside = _Renaming({s.var: var, **_defined(s.body)}).body(s.body)
                return Loop(var, self.body(inside, (*cut, *bounds)), s.kind)
        open_numbers = [var for var in self.numbers if var not in cut] if self.first else []
        facts = {var: fact for var in open_numbers if (fact := self.begins(s, stores, var)) is not None}
        body = self.body(s.body, (*cut, *facts))
        made = s if body == s.body else replace(s, body=body)
        self.used |= facts.keys()
        return If(tuple(facts.values()), (made,)) if facts else made

    def end(self, s: Loop, stores: Sequence[TestedStore] | None, var: Var) -> Index | None:
        """The iteration from which on all stores of a loop go beyond what is needed."""
        sums = [store for store in stores or () if accumulates(store[0])]
        others = [store for store in stores or () if store not in sums]
        places = self.places(others, var, s.var) if others else []
        if places is not None and sums:
            read = self.read(s.body, var)
            places = [*places, *read] if read else None
        if not places or any(var in a.vars for b in s.var.below for a, _ in b.terms):
            return None
        beyond: dict[int, list[Index]] = {}  # by how far an iteration moves
        inner = {x.var for x in statements(s.body) if isinstance(x, Loop | Bind)}
        for place, limit in places:
            step = next((k for a, k in place.at.terms if a is s.var), 0)
            if step <= 0 or any(isinstance(a, Quotient) and s.var in a.vars for a, _ in place.at.terms):
                return None
            rest = limit - _least(place.at - Index(((s.var, step),)), inner)
            beyond.setdefault(step, []).append(rest)
        ends = [(_greatest(rests), step) for step, rests in beyond.items()]
        if any(rest is None for rest, _ in ends):
            return None
        last = _greatest([_ceil(rest, step) for rest, step in ends if rest is not None])
        most = min(b.span()[1] for b in s.var.below)
        return None if last is None or last.span()[0] >= most else last

    def read(self, body: tuple[Stmt, ...], var: Var) -> _Places | None:
        """Where loads of an operand go whose elements change no sum from a number of positions on; None if they may go
        elsewhere."""
        for need in self.summed:
            own = [load for load, _ in loads(body) if load.buffer is need.buffer]
            places = [need.place(load) for load in own] if need.var is var else []
            if places and all(place is not None for place in places):
                return [place for place in dict.fromkeys(places) if place is not None]
        return None

    def begins(self, s: Stmt, stores: Sequence[TestedStore] | None, var: Var) -> Index | None:
        """An expression that is negative where all stores of a statement go beyond what is needed, if that can be."""
        places = self.places(stores, var)
        if places is None:
            return None
        inner = {x.var for x in statements((s,)) if isinstance(x, Loop | Bind)}
        fact = _greatest([limit - _least(place.at, inner) - 1 for place, limit in places])
        if fact is None or upper(Index(((var, 1),)) * places[0][0].parts - fact - 1) <= 0:
            return None  # it runs whenever anything is needed
        return fact

    def places(self, stores: Sequence[TestedStore] | None, var: Var, moving: Var | None = None) -> _Places | None:
        """Where stores go, and the first places that are not needed by a number; None where one may go elsewhere.  Of
        several axes of which as much is needed, that along which a loop moves."""
        places: _Places = []
        for store, facts in stores or ():
            candidates = [p for need in self.needs if need.var is var and (p := need.place(store, facts)) is not None]
            along = (p for p in candidates if any(a is moving for a, _ in p[0].at.terms))
            place = next(along, next(iter(candidates), None))
            if place is None:
                return None
            places.append(place)
        return list(dict.fromkeys(places)) or None


def _narrowed(s: Outline, left: Index, cut: frozenset[Var]) -> Iterator[Stmt]:
    """A tile of which ``left`` positions are needed, in versions of fewer positions, of which one runs."""
    width = next(iter(cut)).below[0].const
    least = 1
    for narrow in widths(width):
        about = f"{s.about}, the first {narrow} of its {width} positions"
        version = Outline(f"{s.name}_{narrow}", Narrowed(cut, narrow).body(s.body), about)
        yield If((left - least, narrow - left), (version,))
        least = narrow + 1
    yield If((left - least,), (s,))


_ROUNDS = 2
"""How often loops are cut short that store what later loops read."""

_SCALES = ((1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (1, 2), (1, 4), (1, 8), (1, 16))
"""(factor, step) of ``_PrivateNeed`` that are tried."""


def _private_needs(body: tuple[Stmt, ...], numbers: Iterable[Var], cut: set[Buffer]) -> Iterator[_PrivateNeed]:
    """The loads from each memory of the thread, but for buffers that are ``cut`` already."""
    read: dict[Buffer, list[tuple[Load, tuple[Index, ...]]]] = {}
    for load, facts in loads(body):
        if load.buffer.space in ("register", "stack", "scratch") and load.buffer not in cut:
            read.setdefault(load.buffer, []).append((load, facts))
    for buffer, own in read.items():
        for dim, extent in enumerate(buffer.shape):
            for var in numbers if extent.const > 1 else ():
                need = _private_need(buffer, dim, var, own)
                if need is not None:
                    yield need


def _private_need(
    buffer: Buffer, dim: int, var: Var, read: Sequence[tuple[Load, tuple[Index, ...]]]
) -> _PrivateNeed | None:
    """The elements read along a dimension, by the scale that leaves the least for half of the largest number."""
    number, half = Index(((var, 1),)), (var.below[0].const - 1) // 2
    if not any(var in a.vars for load, facts in read for i in _bounds(load.index[dim], facts) for a, _ in i.terms):
        return None
    best: tuple[float, _PrivateNeed] | None = None
    for factor, step in _SCALES:
        more = max(upper(_last(load, dim) * factor - number * step, facts) for load, facts in read)
        if more < float("inf"):
            left = (half * step + more) / factor + 1
            if left < buffer.shape[dim].const and (best is None or left < best[0]):
                best = left, _PrivateNeed(buffer, dim, var, factor, step, int(more))
    return None if best is None else best[1]


def _bounds(i: Index, facts: tuple[Index, ...]) -> Iterator[Index]:
    """The bounds of the variables of an index, of those in these, and facts."""
    yield from facts
    for atom, _ in i.terms:
        for v in atom.vars:
            for bound in v.below:
                yield bound
                yield from _bounds(bound, ())


def _last(load: Load, dim: int) -> Index:
    """The index of the last element of a load along a dimension."""
    lanes = load.type.lanes // load.buffer.type.lanes if dim == len(load.index) - 1 else 1
    return load.index[dim] + (lanes - 1)


def outliving(body: tuple[Stmt, ...], *, own: bool = False) -> list[TestedStore] | None:
    """The stores of statements that others may see, with the tests around each; None where they do more than to store.
    With ``own`` they are an iteration of a parallel loop, whose scratch memory is undefined after it."""
    made, stores = set[Buffer](), list[TestedStore]()
    for each, facts in statements_under_tests(body):
        match each:
            case Alloc():
                made.add(each.buffer)
            case Store():
                stores.append((each, facts))
            case Barrier() | CallSource():
                return None
    return [(s, facts) for s, facts in stores if s.buffer not in made and not (own and s.buffer.space == "scratch")]


_SUMS = frozenset({"add", "max", "min", "dot2", "dot2_odd", *fp16.PRODUCTS})
"""Operations that add to their first operand, or take an extreme of it and others."""


def accumulates(store: Store) -> bool:
    """Whether a store adds to an element of memory of the thread what changes nothing if it is absorbed."""
    value = store.value
    if store.buffer.space not in ("register", "stack") or not isinstance(value, Op) or value.name not in _SUMS:
        return False
    first = value.args[0]
    return isinstance(first, Load) and first.buffer is store.buffer and first.index == store.index


def reads_little(kernel: Kernel, cut: CutShort) -> bool:
    """Whether no load of an operand goes further beyond its extent than ``cut`` allows."""
    numbers, body = dict[str, Var](), kernel.body
    while len(body) == 1 and isinstance(s := body[0], Bind):
        numbers[show_expr(s.value)], body = s.var, s.body
    for axis in cut.absorbed:
        number = numbers.get(show_expr(largest(axis.bounds, kernel.params)))
        for load, facts in loads(body):
            if load.buffer is kernel.params[axis.param]:
                place = axis.place(load)
                if place is None or number is None:
                    return False
                end = (Index(((number, 1),)) + axis.start + cut.spare) * place.parts
                if upper(place.at + load.type.lanes - end, facts) > 0:
                    return False
    return True


def _defined(body: tuple[Stmt, ...]) -> dict[Var, Var]:
    return {s.var: s.var for s in statements(body) if isinstance(s, Loop | Bind)}


def _least(place: Index, inner: Iterable[Var]) -> Index:
    """The least value of an index while the variables ``inner`` run."""
    variables = set(inner)
    kept = Index(tuple((a, k) for a, k in place.terms if not a.vars & variables), place.const)
    moving = Index(tuple((a, k) for a, k in place.terms if a.vars & variables))
    return kept + moving.span()[0]


def _ceil(i: Index, by: int) -> Index:
    """ceil(i / by), with a quotient of what is never negative."""
    if by == 1:
        return i
    up = max(0, -(i.span()[0] // by))
    return (i + (by - 1 + up * by)) // by - up


def _greatest(indices: Sequence[Index]) -> Index | None:
    """The one that is never below another one."""
    return next((a for a in indices if all(upper(b - a) <= 0 for b in indices)), None)
