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
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

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
    Outline,
    Stmt,
    Store,
    Type,
    op,
)
from tenon.machine.kernel_ir.narrow import Narrowed, positional_loops, widths
from tenon.machine.kernel_ir.needed import NeededAxis, NeededCount, StorePosition
from tenon.machine.kernel_ir.rewrite import Substitution
from tenon.machine.kernel_ir.upper import upper
from tenon.machine.kernel_ir.walk import statements
from tenon.network.graph.types import I64

_SPREAD = 4
"""Depths of variables are multiplied by this, to make room for those of split loops."""


class CutKernel(NamedTuple):
    """A kernel that is cut short, and the same with all of its loops whole, split like those."""

    kernel: Kernel
    whole: Kernel


@lru_cache(maxsize=1024)
def clipped(kernel: Kernel, needed: tuple[NeededAxis, ...], extents: int, *, narrow: bool = False) -> CutKernel:
    """``kernel`` with ``extents`` more parameters, i64s of one element that the bounds of ``needed`` name, computing
    what is needed; without them where no loop can be cut short.  With ``narrow`` there are tiles of fewer
    positions for the end of what is needed, which take more code."""
    names = _FreshNames(kernel)
    params = tuple(Buffer(names.fresh("extent"), Type(I64), (Index((), 1),), "const") for _ in range(extents))
    whole = replace(kernel, params=(*kernel.params, *params))
    split = replace(whole, body=_Splitting(whole, needed, names).body(_spread(kernel.body)))
    numbers: dict[tuple[tuple[NeededCount, ...], int], Var] = {}  # the same one for axes of which as much is needed
    for i, axis in enumerate(needed):
        number = Var(names.fresh("needed"), (Index((), axis.count + 1),), -i)
        numbers.setdefault((axis.bounds, axis.count), number)
    cut = _Clipping(whole, narrow, [(axis, numbers[axis.bounds, axis.count]) for axis in needed])
    body = cut.body(split.body, ())
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
class _Clipping:
    """Cuts loops short; ``used`` are the variables of the extents that loops and tests depend on."""

    def __init__(self, kernel: Kernel, narrow: bool, binds: Sequence[tuple[NeededAxis, Var]]) -> None:
        self.kernel, self.narrow, self.binds = kernel, narrow, binds
        self.used: set[Var] = set()
        self.env: dict[Var, Index] = {}

    def body(self, body: tuple[Stmt, ...], cut: tuple[Var, ...]) -> tuple[Stmt, ...]:
        """Statements, of which a loop around is cut short by the extents ``cut``."""
        return tuple(made for s in body for made in self.versions(s, cut))

    def versions(self, s: Stmt, cut: tuple[Var, ...]) -> Iterator[Stmt]:
        """A statement cut short, in versions for fewer positions if it is a tile."""
        if isinstance(s, Outline) and self.narrow:
            for axis, var in self.binds:
                tile = self.tile(s, axis)
                if tile is not None:
                    yield from self.narrowed(s, *tile, axis, var)
                    return
        yield self.statement(s, cut)

    def tile(self, s: Outline, axis: NeededAxis) -> tuple[Index, frozenset[Var]] | None:
        """The position along an axis at which a tile of several begins, and its loops over these positions."""
        places = self.places(outliving((s,)), axis)
        if not places:
            return None
        inner = {x.var for x in statements(s.body) if isinstance(x, Loop | Bind)}
        stored, starts = dict[int, Var](), set[Index]()
        for number, place in enumerate(places):
            moving = [(a, k) for a, k in place.at.terms if a.vars & inner]
            if place.parts != 1 or len(moving) != 1 or moving[0][1] != 1 or not isinstance(moving[0][0], Var):
                return None
            stored[number] = moving[0][0]
            starts.add(place.at - Index(tuple(moving)))
        cut = positional_loops(s, stored)
        return (starts.pop(), cut) if cut and len(starts) == 1 else None

    def narrowed(self, s: Outline, start: Index, cut: frozenset[Var], axis: NeededAxis, var: Var) -> Iterator[Stmt]:
        """A tile in versions of fewer positions, of which one runs."""
        width = next(iter(cut)).below[0].const
        left = Index(((var, 1),)) + axis.start - start  # positions of the tile that are needed
        least = 1
        for narrow in (*widths(width), width):
            facts = (left - least, *([narrow - left] if narrow < width else []))
            name = f"{s.name}_{narrow}" if narrow < width else s.name
            about = f"{s.about}, the first {narrow} of its {width} positions" if narrow < width else s.about
            body = Narrowed(cut, narrow).body(s.body) if narrow < width else s.body
            yield If(facts, (Outline(name, body, about),))
            least = narrow + 1
        self.used.add(var)

    def statement(self, s: Stmt, cut: tuple[Var, ...]) -> Stmt:
        if not isinstance(s, BLOCKS) or isinstance(s, Instruction):
            return s
        stores = outliving((s,), own=isinstance(s, Loop) and s.kind == "parallel")
        if isinstance(s, Loop) and s.kind in ("serial", "parallel"):
            bounds = [b for b in (self.end(s, stores, *bind) for bind in self.binds) if b is not None]
            if bounds:
                self.used |= {var for var, _ in bounds}
                below = (*s.var.below, *(bound for _, bound in bounds))
                var = replace(s.var, below=below)
                inside = _Renaming({s.var: var, **_defined(s.body)}).body(s.body)
                inner = self.body(inside, (*cut, *(var for var, _ in bounds)))
                return Loop(var, inner, s.kind)
        facts = [f for f in (self.begins(s, stores, *bind) for bind in self.binds if bind[1] not in cut) if f]
        made = replace(s, body=self.body(s.body, (*cut, *(var for var, _ in facts))))
        if not facts:
            return made
        self.used |= {var for var, _ in facts}
        return If(tuple(fact for _, fact in facts), (made,))

    def end(self, s: Loop, stores: Sequence[Store] | None, axis: NeededAxis, var: Var) -> tuple[Var, Index] | None:
        """The iteration from which on all stores of a loop go beyond what is needed."""
        places = self.places(stores, axis)
        if places is None:
            return None
        beyond: dict[int, list[Index]] = {}  # by how far an iteration moves
        inner = {x.var for x in statements(s.body) if isinstance(x, Loop | Bind)}
        for place in places:
            step = next((k for a, k in place.at.terms if a is s.var), 0)
            if step <= 0 or any(isinstance(a, Quotient) and s.var in a.vars for a, _ in place.at.terms):
                return None
            rest = _limit(axis, var, place) - _least(place.at - Index(((s.var, step),)), inner)
            beyond.setdefault(step, []).append(rest)
        ends = [(_greatest(rests), step) for step, rests in beyond.items()]
        if any(rest is None for rest, _ in ends):
            return None
        last = _greatest([_ceil(rest, step) for rest, step in ends if rest is not None])
        most = min(b.span()[1] for b in s.var.below)
        return None if last is None or last.span()[0] >= most else (var, last)

    def begins(self, s: Stmt, stores: Sequence[Store] | None, axis: NeededAxis, var: Var) -> tuple[Var, Index] | None:
        """What is negative where all stores of a statement go beyond what is needed, if that can be."""
        places = self.places(stores, axis)
        if places is None:
            return None
        inner = {x.var for x in statements((s,)) if isinstance(x, Loop | Bind)}
        facts = [_limit(axis, var, place) - _least(place.at, inner) - 1 for place in places]
        fact = _greatest(facts)
        if fact is None or upper(Index(((var, 1),)) * places[0].parts - fact - 1) <= 0:
            return None  # it runs whenever anything is needed
        return var, fact

    def places(self, stores: Sequence[Store] | None, axis: NeededAxis) -> list[StorePosition] | None:
        """Where stores go along an axis; None where there are none, or one may go elsewhere."""
        if not stores:
            return None
        listed = list[StorePosition]()
        for store in stores:
            place = axis.place(store) if store.buffer is self.kernel.params[axis.param] else None
            if place is None:
                return None
            listed.append(place)
        return list(dict.fromkeys(listed))


def _limit(axis: NeededAxis, var: Var, place: StorePosition) -> Index:
    """The first place that is not needed."""
    return (Index(((var, 1),)) + axis.start) * place.parts


def outliving(body: tuple[Stmt, ...], *, own: bool = False) -> list[Store] | None:
    """The stores of statements that others may see; None where they do more than to store.  With ``own`` they are an
    iteration of a parallel loop, whose scratch memory is undefined after it."""
    made, stores = set[Buffer](), list[Store]()
    for each in statements(body):
        match each:
            case Alloc():
                made.add(each.buffer)
            case Store():
                stores.append(each)
            case Barrier() | CallSource():
                return None
    return [s for s in stores if s.buffer not in made and not (own and s.buffer.space == "scratch")]


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
