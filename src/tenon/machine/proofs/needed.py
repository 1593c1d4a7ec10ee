"""Proof that a kernel which is cut short (``kernel_ir.clip``) computes what is needed as the whole one does.

The two are walked side by side.  They are the same statements, but for further bounds of loops and for tests, which
may depend on the numbers of needed positions that the kernel reads at its start, and for several versions of one
statement, each under a test.  Of everything that is left out, whatever the other loops do, it is shown that

* a store to a result goes to a position that is not needed, and not to a halo;
* a store to memory of the thread goes to an element that no load which is left reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

from tenon.errors import InternalError
from tenon.machine.kernel_ir.clip import accumulates, largest, outliving
from tenon.machine.kernel_ir.index import Atom, Index, Var
from tenon.machine.kernel_ir.loops import (
    Alloc,
    Bind,
    Buffer,
    Const,
    Expr,
    Guarded,
    If,
    Instruction,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    Outline,
    Prefetch,
    Ref,
    Stmt,
    Store,
)
from tenon.machine.kernel_ir.needed import CutShort, NeededAxis
from tenon.machine.kernel_ir.rewrite import Substitution
from tenon.machine.kernel_ir.text import show_expr
from tenon.machine.kernel_ir.upper import Facts, upper
from tenon.machine.kernel_ir.walk import loads
from tenon.machine.plan.program import Call, Program, mapped


class LeftOutError(InternalError):
    """A kernel that is cut short may leave out a result that is needed.  Names the kernel and what differs."""


@lru_cache(maxsize=4096)
def prove_needed(kernel: Kernel, cut: CutShort) -> int:
    """Raise LeftOutError unless ``kernel`` stores everything that is needed as the whole kernel does; returns how many
    bounds, tests and versions of statements were shown to leave out nothing else."""
    whole = cut.whole
    if kernel.params != whole.params or kernel.sizes != whole.sizes:
        raise LeftOutError(f"{kernel.name}: its parameters are not those of the whole kernel")
    proof = _SideBySide(kernel, cut)
    proof.block(whole.body, proof.inner, ())
    proof.absorb_few()
    return proof.shown


def with_proved_cuts(program: Program) -> Program:
    """The program with whole kernels in place of those cut short of which it cannot be shown that they compute what is
    needed.  Raises LeftOutError for those whose sums end at extents, beyond which their operands are not written."""

    def proved(call: Call) -> Call:
        if call.cut is None:
            return call
        try:
            prove_needed(call.kernel, call.cut)
        except LeftOutError:
            if call.cut.absorbed:
                raise
            return replace(call, kernel=call.cut.whole, cut=None)
        return call

    return replace(program, items=mapped(program.items, proved))


class _SideBySide:
    """``numbers`` are the variables of the numbers of needed positions, with the axes of each; ``whole_index`` rewrites
    indices of the cut kernel to variables of the whole one."""

    def __init__(self, kernel: Kernel, cut: CutShort) -> None:
        self.kernel, self.cut = kernel, cut
        self.numbers: dict[Var, list[NeededAxis]] = {}
        self.inner = self.inside_of_numbers((*cut.needed, *cut.absorbed))
        self.to_whole = Substitution({})
        self.copies: dict[Buffer, Buffer] = {b: b for b in kernel.params}  # of the cut kernel, by those of the whole
        self.loads = list(loads(self.inner))
        self.shown = 0

    def inside_of_numbers(self, needed: Sequence[NeededAxis]) -> tuple[Stmt, ...]:
        """The statements inside of the numbers of needed positions."""
        body, axes = self.kernel.body, dict[tuple[str, int], list[NeededAxis]]()
        for axis in needed:
            key = show_expr(largest(axis.bounds, self.kernel.params)), axis.count + 1
            axes.setdefault(key, []).append(axis)
        while len(body) == 1 and isinstance(s := body[0], Bind):
            (extent, *more), value = s.var.below, show_expr(s.value)
            if more or extent.terms or (value, extent.const) not in axes:
                break
            self.numbers[s.var], body = axes[value, extent.const], s.body
        return body

    def refuse(self, why: str) -> LeftOutError:
        return LeftOutError(f"{self.kernel.name}: {why}")

    # -------------------------------------------------------------------------------------- statements
    def block(self, whole: tuple[Stmt, ...], cut: tuple[Stmt, ...], facts: Facts) -> None:
        at = 0
        for s in whole:
            at += self.versions(s, cut[at:], facts)
        if at != len(cut):
            raise self.refuse("it has statements that the whole kernel has not")

    def versions(self, s: Stmt, cut: tuple[Stmt, ...], facts: Facts) -> int:
        """How many of the statements ``cut`` stand for ``s``: itself, or versions of it under tests of numbers."""
        if not cut:
            raise self.refuse("it lacks a statement")
        tests = list[Facts]()
        while len(tests) < len(cut) and self.tests_numbers(version := cut[len(tests)]):
            assert isinstance(version, If)
            tests.append(self.to_whole.indices(version.facts))
            self.block((s,), version.body, (*facts, *tests[-1]))
            if self.covered(s, tests, facts):
                self.shown += 1
                return len(tests)
        if tests:
            raise self.refuse("a statement may not run where it is needed")
        self.same(s, cut[0], facts)
        return 1

    def tests_numbers(self, s: Stmt) -> bool:
        return isinstance(s, If) and any(a.vars & self.numbers.keys() for f in s.facts for a, _ in f.terms)

    def covered(self, s: Stmt, tests: Sequence[Facts], facts: Facts) -> bool:
        """Whether the stores of a statement are not needed where all of some tests fail."""
        for failing in product(*tests):
            here = (*facts, *(-f - 1 for f in failing))
            if not _impossible(here) and not self.dead((s,), here):
                return False
        return True

    def same(self, s: Stmt, cut: Stmt, facts: Facts) -> None:
        """Both are the same statement, but for what is left out in them."""
        match s, cut:
            case Loop(), Loop():
                self.loop(s, cut, facts)
            case Bind(), Bind():
                self.equal(s.value, cut.value)
                self.to_whole.env[cut.var] = Index(((s.var, 1),))
                self.check(self.to_whole.indices(cut.var.below) == s.var.below, "a range")
                self.block(s.body, cut.body, facts)
            case If(), If():
                self.check(self.to_whole.indices(cut.facts) == s.facts, "a test")
                self.block(s.body, cut.body, (*facts, *s.facts))
            case Outline(), Outline():
                self.block(s.body, cut.body, facts)
            case Instruction(), Instruction():
                operands = [(self.copies.get(b), at) for b, at in s.operands]
                given = [(b, self.to_whole.indices(at)) for b, at in cut.operands]
                self.check((s.name, s.numbers, operands) == (cut.name, cut.numbers, given), "an instruction")
                self.block(s.body, cut.body, facts)
            case Let(), Let():
                self.equal(s.value, cut.value)
                self.check(s.ref is cut.ref, "a name")
            case Store(), Store():
                self.access(s.buffer, s.index, cut.buffer, cut.index)
                self.equal(s.value, cut.value)
            case Alloc(), Alloc():
                a, b = s.buffer, cut.buffer
                self.check((a.type, a.shape, a.space) == (b.type, b.shape, b.space), "an array")
                self.copies[a] = b
            case Prefetch(), Prefetch():
                pass
            case _:
                self.check(s is cut, "a statement")

    def loop(self, s: Loop, cut: Loop, facts: Facts) -> None:
        """The cut loop has the same bounds and further ones, or one for a bound that it does not exceed."""
        self.check(s.kind == cut.kind, "a loop")
        self.to_whole.env[cut.var] = Index(((s.var, 1),))
        bounds = self.to_whole.indices(cut.var.below)
        more = [b for b in bounds if b not in s.var.below]
        for missing in (b for b in s.var.below if b not in bounds):
            self.check(any(upper(b - missing, facts) <= 0 for b in more), f"the bound of {s.var.name}")
        at = Index(((s.var, 1),))
        for bound in more:
            if not self.dead(s.body, (*facts, at - bound), own=s.kind == "parallel"):
                raise self.refuse(f"loop {s.var.name} may leave out a store that is needed")
            self.shown += 1
        self.block(s.body, cut.body, (*facts, *(b - 1 - at for b in more)))

    # ------------------------------------------------------------------------------------------ values
    def equal(self, whole: Expr, cut: Expr) -> None:
        """Both are the same value, of elements that both have."""
        match whole, cut:
            case Const(), Const():
                self.check(show_expr(whole) == show_expr(cut), "a number")
            case Ref(), Ref():
                self.check(whole is cut or whole == cut or whole.name == cut.name, "a name")
            case Load(), Load():
                self.check(whole.type == cut.type, "a load")
                self.access(whole.buffer, whole.index, cut.buffer, cut.index)
            case Op(), Op():
                self.check((whole.name, whole.type, len(whole.args)) == (cut.name, cut.type, len(cut.args)), "a value")
                for a, b in zip(whole.args, cut.args, strict=True):
                    self.equal(a, b)
            case Guarded(), Guarded():
                self.check(self.to_whole.indices(cut.facts) == whole.facts, "a guard")
                self.equal(whole.value, cut.value)
                self.equal(whole.other, cut.other)
            case _:
                self.check(whole is cut, "a value")

    def access(self, a: Buffer, at: tuple[Index, ...], b: Buffer, cut: tuple[Index, ...]) -> None:
        self.check(self.copies.get(a, a) is b and self.to_whole.indices(cut) == at, f"an element of {a.name}")

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise self.refuse(f"{what} is not that of the whole kernel")

    # ----------------------------------------------------------------------------------- what is left out
    def dead(self, body: tuple[Stmt, ...], facts: Facts, *, own: bool = False) -> bool:
        """Whether nothing reads what statements store where ``facts`` hold; ``own`` says that they are an iteration of
        a parallel loop, whose scratch memory is undefined after it."""
        stores, absorbed = outliving(body, own=own), self.absorbed(body, facts)
        return stores is not None and all(
            self.beyond(s, (*facts, *tests)) or self.unread(s, (*facts, *tests)) or (absorbed and accumulates(s))
            for s, tests in stores
        )

    def absorbed(self, body: tuple[Stmt, ...], facts: Facts) -> bool:
        """Whether statements read an operand only where its elements change no sum."""
        for number, axes in self.numbers.items():
            for axis in (a for a in axes if a in self.cut.absorbed):
                read = [load for load, _ in loads(body) if load.buffer is self.kernel.params[axis.param]]
                if read and all(_from(axis, load, number, facts) for load in read):
                    return True
        return False

    def absorb_few(self) -> None:
        """No load of an operand goes further beyond its extent than is written."""
        for axis in self.cut.absorbed:
            number = next((v for v, axes in self.numbers.items() if axis in axes), None)
            for load, facts in self.loads:
                if load.buffer is self.kernel.params[axis.param]:
                    place, lanes = axis.place(load), load.type.lanes
                    end = None if number is None else Index(((number, 1),)) + (axis.start + self.cut.spare)
                    if place is None or end is None or upper(place.at + lanes - end * place.parts, facts) > 0:
                        raise self.refuse(f"{load.buffer.name} is read further than it is written")

    def beyond(self, store: Store, facts: Facts) -> bool:
        """Whether a store goes beyond what is needed along an axis."""
        for number, axes in self.numbers.items():
            for axis in axes:
                own = axis in self.cut.needed and store.buffer is self.kernel.params[axis.param]
                if own and _from(axis, store, number, facts):
                    return True
        return False

    def unread(self, store: Store, facts: Facts) -> bool:
        """Whether no load of the cut kernel reads an element of memory of the thread."""
        if store.buffer.space not in ("register", "stack", "scratch"):
            return False
        copy = self.copies.get(store.buffer)
        read = ((load, more) for load, more in self.loads if load.buffer is copy)
        reading = _Reading(store, facts)
        return copy is not None and all(reading.before(load, more) for load, more in read)


def _from(axis: NeededAxis, access: Store | Load, number: Var, facts: Facts) -> bool:
    """Whether a store or load goes to positions from ``number`` on."""
    place = axis.place(access, facts)
    if place is None:
        return False
    first = (Index(((number, 1),)) + axis.start) * place.parts
    elements = axis.stride // place.parts  # in which a test may count
    return any(upper((first - place.at) * each, facts) <= 0 for each in (1, elements))


class _Reading:
    """Whether loads read elements before those of a store, along one dimension.  The dimension that was right last is
    tried first, and loads are compared once whose index along it runs over the same numbers."""

    def __init__(self, store: Store, facts: Facts) -> None:
        self.store, self.facts = store, facts
        self.known = {v for i in (*store.index, *facts) for atom, _ in i.terms for v in atom.vars}
        self.dims = list(range(len(store.index)))
        self.compared: dict[tuple[object, ...], bool] = {}

    def before(self, load: Load, more: Facts) -> bool:
        """Whether a load where ``more`` holds does."""
        for dim in self.dims:
            lanes = load.type.lanes // load.buffer.type.lanes if dim == len(load.index) - 1 else 1
            last = load.index[dim] + (lanes - 1)
            key = dim, self.form(last, more), more
            if key not in self.compared:
                self.compared[key] = upper(last - self.store.index[dim], (*self.facts, *more)) < 0
            if self.compared[key]:
                self.dims.remove(dim)
                self.dims.insert(0, dim)
                return True
        return False

    def form(self, i: Index, more: Facts) -> tuple[object, ...]:
        """An index without the names of variables that neither the store nor facts depend on."""
        other = {v for f in more for atom, _ in f.terms for v in atom.vars}

        def variable(atom: Atom) -> object:
            own = isinstance(atom, Var) and atom not in self.known and atom not in other
            return atom.below if isinstance(atom, Var) and own else atom

        return tuple((variable(a), k) for a, k in i.terms), i.const


def _impossible(facts: Facts) -> bool:
    return any(upper(f, (*facts[:i], *facts[i + 1 :])) < 0 for i, f in enumerate(facts))
