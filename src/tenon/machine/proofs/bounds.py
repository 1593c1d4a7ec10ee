"""Proof, before anything is printed, that a kernel touches only what it may.

For every load and store, each index is shown to stay inside its own dimension.  The proof asks for
the largest value of an index expression (``kernel_ir.upper``).

Also shown: whatever is divided is never negative, in every index, loop bound and test, because C truncates where the
IR floors; offsets and all that is computed on the way fit 31 bits; variables, values and buffers are used where they
are in scope; registers are indexed by what is known when they are printed; registers and stack arrays are written
before they are read (see ``proofs.written``) and take no more than ``STACK`` bytes, shared memory no more than its
space has; and what threads do at the same time does not meet (see ``proofs.race_check``, and ``proofs.intervals`` for
the threads of work groups, which also shows that what is copied asynchronously has arrived where it is read).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tenon.errors import InternalError
from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    Alloc,
    AsyncCopy,
    Bind,
    Buffer,
    CallSource,
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
    Type,
    constant_of,
)
from tenon.machine.kernel_ir.spaces import SHARED, MemorySpace
from tenon.machine.kernel_ir.upper import Facts, Memo, upper
from tenon.machine.kernel_ir.walk import loads_of, statements
from tenon.machine.kernel_ir.work_groups import KINDS, WorkGroups, buffer_bytes, work_groups
from tenon.machine.proofs.intervals import group_conflict, has_barrier
from tenon.machine.proofs.race_check import Touch, conflict
from tenon.machine.proofs.written import Written
from tenon.network.graph.types import LARGEST_BUFFER

STACK = 1 << 18
"""Bytes of registers and stack arrays in one kernel: a quarter of what the threads of ``runtime/c/threads.c`` have."""

_LIMIT = LARGEST_BUFFER
_PRIVATE = ("register", "stack")
_OF_GROUPS = ("shared", "cluster")
_MADE = (*_PRIVATE, *_OF_GROUPS)
"""Spaces whose contents are undefined at first."""


class OutOfRangeError(InternalError):
    """A kernel would touch memory that is not its own.  Names the buffer, the dimension and the distance."""


def _cuts(fact: Index) -> Iterator[Index]:
    """The bounds that follow for the terms that are multiples of a number, from a fact that the others only lower:
    c - 4 * i - j >= 0 gives c // 4 - i >= 0."""
    for by in {abs(k) for _, k in fact.terms} - {1}:
        kept = tuple((a, k // by) for a, k in fact.terms if k % by == 0)
        if all(k < 0 for _, k in fact.terms if k % by):
            yield Index(kept, fact.const // by)


class ConflictError(OutOfRangeError):
    """Two threads would touch one element.  Names the buffer and the loops."""


def prove(
    kernel: Kernel, same: Mapping[Buffer, Buffer] | None = None, spaces: tuple[MemorySpace, ...] = (SHARED,)
) -> int:
    """Raise OutOfRangeError unless every access is proved; returns how many accesses there are.

    ``same`` maps parameters to others of their shape that the caller gives the same memory; ``spaces`` are those that
    the machine has.  Raises ConflictError where only the loops over parallel iterations, blocks or threads are at
    fault, InternalError for loops over blocks and threads that make no launch.
    """
    groups = work_groups(kernel)
    proof = _Proof(kernel, same or {}, groups, spaces)
    proof.run()
    if proof.parallel and (what := proof.kept_apart() or conflict(proof.touches, frozenset(proof.common))):
        raise ConflictError(f"{kernel.name}: {what}")
    if groups is not None and (what := group_conflict(groups, same or {})):
        raise ConflictError(f"{kernel.name}: {what}")
    return proof.accesses


@dataclass(frozen=True)
class _Iteration:
    """The position of a statement: the parallel loops around it, and whether the innermost contains no other."""

    loops: tuple[Var, ...] = ()
    leaf: bool = False

    @property
    def chain(self) -> tuple[Var, ...]:
        """Empty if every thread executes the statement."""
        return self.loops if self.leaf else ()


def has_parallel(body: tuple[Stmt, ...]) -> bool:
    """Whether any loop in ``body`` is parallel."""
    return any(
        (isinstance(s, Loop) and s.kind == "parallel") or (isinstance(s, BLOCKS) and has_parallel(s.body)) for s in body
    )


class _Scope:
    """The variables, values and buffers that a statement may name.  Raises OutOfRangeError for any other."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.live: dict[Var | Ref | Buffer, None] = {}
        self.names: dict[str, int] = {}
        self.unrolled: set[Var] = set()
        self.known: dict[Index, frozenset[Var]] = {}  # the variables of an index

    def open(self, what: Var | Ref | Buffer) -> None:
        if what.name in self.names:
            raise OutOfRangeError(f"{self.kernel}: {what.name} is the name of two things at once")
        self.names[what.name] = 1
        self.live[what] = None

    def close(self, count: int) -> None:
        """Back to the ``count`` things that were live before."""
        while len(self.live) > count:
            what = self.live.popitem()[0]
            self.names.pop(what.name)

    def use(self, what: Var | Ref | Buffer) -> None:
        if what not in self.live:
            raise OutOfRangeError(f"{self.kernel}: {what.name} is used where it is not in scope")

    def vars(self, i: Index) -> frozenset[Var]:
        """The variables of an index, all of them in scope."""
        variables = self.known.get(i)
        if variables is None:
            variables = self.known[i] = frozenset().union(*(a.vars for a, _ in i.terms))
        for v in variables:
            self.use(v)
        return variables


class _Proof:
    def __init__(
        self,
        kernel: Kernel,
        same: Mapping[Buffer, Buffer],
        groups: WorkGroups | None,
        spaces: tuple[MemorySpace, ...],
    ) -> None:
        self.kernel = kernel
        self.same = same
        self.groups = groups
        self.spaces = {space.name: space for space in spaces}
        self.allocated = dict.fromkeys(self.spaces, 0)
        self.parallel = has_parallel(kernel.body)
        self.touches: list[Touch] = []
        self.homes: dict[Buffer, tuple[Var, ...]] = {}  # the parallel loops around each buffer that a thread makes
        self.scratch: dict[
            Buffer, tuple[set[tuple[Var, ...]], set[tuple[Var, ...]]]
        ] = {}  # around loads, around stores
        self.bound: set[Var] = set()  # from data
        self.common: set[Var] = set(kernel.sizes)  # the same number in all iterations of all loops
        self.memo: Memo = {}
        self.whole: set[tuple[Index, Facts]] = set()  # indices of which everything but the scope is shown
        self.accesses = 0
        self.stack = 0
        self.scope = _Scope(kernel.name)
        self.written = Written()
        self.alike: frozenset[Index] = frozenset()  # tests around with barriers inside, which all threads make alike
        self.arriving = {s.buffer for s in statements(kernel.body) if isinstance(s, AsyncCopy)}

    def run(self) -> None:
        for v in self.kernel.sizes:
            self.bounds(v, ())
            self.scope.open(v)
        for b in self.kernel.params:
            for extent in b.shape:
                self.index(extent, (), f"shape of {b.name}")
            if self.groups is not None and b.space == "scratch":
                raise OutOfRangeError(f"{self.kernel.name}: {b.name} is memory of a thread, which blocks have not")
            self.scope.open(b)
        self.visit(self.kernel.body, (), _Iteration())

    # ------------------------------------------------------------------------------------- statements
    def visit(self, body: tuple[Stmt, ...], guards: Facts, iteration: _Iteration) -> None:
        count = len(self.scope.live)
        for s in body:
            match s:
                case Let():
                    self.value(s.value, guards, iteration)
                    self.scope.open(s.ref)
                case Store():
                    if isinstance(s, AsyncCopy):
                        self.copy(s)
                    self.value(s.value, guards, iteration)
                    self.store(s, guards, iteration)
                case Prefetch():
                    self.prefetch(s, guards)
                case Alloc():
                    self.alloc(s.buffer, iteration)
                case CallSource():
                    self.call_source(s)
                case Loop():
                    self.loop(s, guards, iteration)
                case Bind():
                    self.bind(s, guards, iteration)
                case If():
                    self.facts(s.facts, guards)
                    before, self.written = self.written, self.written.fork()
                    told, outside = self.told(s.facts), self.alike
                    if together := self.groups is not None and has_barrier(s.body):
                        self.alike |= {*told}
                    self.visit(s.body, guards + told, iteration)
                    if not together:
                        before.under(self.written, s.facts)
                    self.written, self.alike = before, outside
                case Outline():
                    self.outline(s, guards, iteration)
                case Instruction():
                    for buffer, at in s.operands:
                        self.access("operand", buffer, at, buffer.type, guards)
                    self.visit(s.body, guards, iteration)
        self.scope.close(count)

    def bounds(self, var: Var, guards: Facts) -> None:
        for b in var.below:
            self.index(b, guards, f"bound of {var.name}")
        if var.most() >= _LIMIT:
            raise OutOfRangeError(f"{self.kernel.name}: {var.name} needs more than 31 bits")

    def loop(self, s: Loop, guards: Facts, iteration: _Iteration) -> None:
        self.bounds(s.var, guards)
        if s.kind == "unroll" and (len(s.var.below) > 1 or s.var.below[0].terms):
            raise OutOfRangeError(f"{self.kernel.name}: unrolled {s.var.name} has no constant number of iterations")
        if any(upper(b, guards, self.memo) <= 0 for b in s.var.below):
            return
        parallel = s.kind == "parallel" or s.kind in KINDS
        inside = _Iteration((*iteration.loops, s.var), not has_parallel(s.body)) if parallel else iteration
        before, self.written = self.written, self.written.fork()
        self.scope.open(s.var)
        if s.kind == "unroll":
            self.scope.unrolled.add(s.var)
        self.visit(s.body, guards, inside)
        self.scope.close(len(self.scope.live) - 1)
        self.scope.unrolled.discard(s.var)
        if not parallel:
            least = -max(upper(-b, guards, self.memo) for b in s.var.below)
            before.join(self.written, s.var, int(max(least, 0)))
        self.written = before

    def bind(self, s: Bind, guards: Facts, iteration: _Iteration) -> None:
        self.bounds(s.var, guards)
        self.value(s.value, guards, iteration)
        if any(upper(1 - b, guards, self.memo) > 0 for b in s.var.below):
            raise OutOfRangeError(f"{self.kernel.name}: the range of {s.var.name} may be empty")
        before, self.written = self.written, self.written.fork()
        self.bound.add(s.var)
        if self.constant(s.value):
            self.common.add(s.var)
        self.scope.open(s.var)
        self.visit(s.body, guards, iteration)
        self.scope.close(len(self.scope.live) - 1)
        before.keep(self.written, s.var)
        self.written = before

    def constant(self, value: Expr) -> bool:
        """Whether a value is the same in all iterations of all loops: it is computed from fixed elements of memory that
        the kernel does not write."""
        read, written = [load for load, _ in loads_of(value, ())], {self.same.get(b, b) for b in self.kernel.params}
        written = {b for b in written if b.space != "const"}
        fixed = all(not i.terms for load in read for i in load.index)
        return (
            fixed
            and bool(read)
            and not any(self.same.get(x.buffer, x.buffer) in written for x in read)
            and not refs(value)
        )

    def outline(self, s: Outline, guards: Facts, iteration: _Iteration) -> None:
        """A function of its own, which sees variables and memory but neither values nor registers of its caller."""
        outer, inner = self.scope, _Scope(self.kernel.name)
        for what in outer.live:
            if not isinstance(what, Ref) and not (isinstance(what, Buffer) and what.space == "register"):
                inner.open(what)
        self.scope, inner.unrolled = inner, outer.unrolled
        self.visit(s.body, guards, iteration)
        self.scope = outer

    def alloc(self, b: Buffer, iteration: _Iteration) -> None:
        if b.space in _PRIVATE:
            if any(extent.terms for extent in b.shape):
                raise OutOfRangeError(f"{self.kernel.name}: {b.name} has no constant size")
            self.stack += b.strides[0] * b.shape[0].const * b.type.bytes if b.shape else b.type.bytes
            if self.stack > STACK:
                raise OutOfRangeError(
                    f"{self.kernel.name}: {b.name} makes {self.stack} bytes of stack, more than {STACK}"
                )
            self.written.begin(b)
        elif b.space in _OF_GROUPS:
            self.alloc_shared(b)
        self.homes[b] = iteration.loops
        self.scope.open(b)

    def alloc_shared(self, b: Buffer) -> None:
        """Memory of a block, of a constant size that fits what the machine has."""
        if "shared" not in self.spaces:
            raise OutOfRangeError(f"{self.kernel.name}: {b.name} is in {b.space} memory, which the machine has not")
        if any(extent.terms for extent in b.shape):
            raise OutOfRangeError(f"{self.kernel.name}: {b.name} has no constant size")
        self.allocated["shared"] += buffer_bytes(b)
        if (total := self.allocated["shared"]) > (most := self.spaces["shared"].bytes):
            raise OutOfRangeError(
                f"{self.kernel.name}: {b.name} makes {total} bytes of shared memory, more than {most}"
            )
        self.written.begin(b)

    def store(self, s: Store, guards: Facts, iteration: _Iteration) -> None:
        if s.buffer.space == "const":
            raise OutOfRangeError(f"{self.kernel.name}: stores to the read-only {s.buffer.name}")
        self.access("store", s.buffer, s.index, s.value.type, guards)
        self.touch(iteration, s.buffer, s.index, s.value.type.lanes, store=True)
        if s.buffer.space in _MADE and s.buffer not in self.arriving:
            width = s.value.type.lanes // s.buffer.type.lanes
            guards = tuple(g for g in guards if g not in self.alike)
            self.written.store(s.buffer, s.index, width, guards, self.threads(s, guards))
        if s.buffer.space in _OF_GROUPS:
            return
        if self.homes.get(s.buffer, iteration.loops) != iteration.loops:
            what = (
                f"{s.buffer.name} carries a value from one iteration of parallel {iteration.loops[-1].name} to another"
            )
            raise ConflictError(f"{self.kernel.name}: {what}")

    def copy(self, s: AsyncCopy) -> None:
        """A copy moves 4, 8 or 16 bytes of read-only memory to shared memory, or a constant."""
        source = s.value.value if isinstance(s.value, Guarded) else s.value
        moves = isinstance(source, Load) and source.buffer.space == "const" and s.buffer.space == "shared"
        constant = not isinstance(s.value, Guarded) or constant_of(s.value.other) is not None
        if self.groups is None or not moves or not constant or s.value.type.bytes not in (4, 8, 16):
            raise OutOfRangeError(
                f"{self.kernel.name}: a copy to {s.buffer.name} is not one of 4, 8 or 16 bytes of read-only memory, or "
                "a constant, to shared memory"
            )

    def threads(self, s: Store, guards: Facts) -> tuple[Var, ...]:
        """The loops over threads, all of which make a store to shared memory, so that any of them may load what the
        others stored; whether there is a barrier between, ``proofs.intervals`` finds.  None where the place depends on
        data, which may be other data in each thread."""
        if self.groups is None or s.buffer.space not in _OF_GROUPS:
            return ()
        moving = frozenset().union(*(a.vars for i in (*s.index, *guards) for a, _ in i.terms))
        if moving & self.bound:
            return ()
        cluster = (self.groups.cluster,) if self.groups.cluster and s.buffer.space == "cluster" else ()
        return (*cluster, *self.groups.threads)

    def prefetch(self, s: Prefetch, guards: Facts) -> None:
        """It may point past the end, but not further than a pointer can be moved."""
        self.scope.use(s.buffer)
        where = f"prefetch of {s.buffer.name}"
        for i in s.index:
            self.index(i, guards, where)
        self.narrow(s.buffer.flat(s.index) * s.buffer.type.bytes, where)

    def call_source(self, s: CallSource) -> None:
        """It gets parameters of the kernel, whole, and is called once; what it does with them is not known."""
        several = self.parallel or self.groups is not None
        if several or any(b not in self.kernel.params for b in s.buffers):
            what = "is called by several threads" if several else "takes memory that is no parameter"
            raise OutOfRangeError(f"{self.kernel.name}: the C function {s.function} {what}")
        self.accesses += len(s.buffers)

    def kept_apart(self) -> str:
        """Empty, or which scratch memory is read where another thread, which has its own, may have written it."""
        for b, (loaded, stored) in self.scratch.items():
            if any(load[: len(store)] != store for load in loaded for store in stored):
                return f"{b.name} carries a value from one parallel loop to another"
        return ""

    # ----------------------------------------------------------------------------------------- values
    def value(self, e: Expr, guards: Facts, iteration: _Iteration) -> None:
        """Every load, test and name under ``e``."""
        if isinstance(e, Load):
            b, width = e.buffer, e.type.lanes // e.buffer.type.lanes
            self.access("load", b, e.index, e.type, guards)
            self.touch(iteration, b, e.index, e.type.lanes)
            known = b.space not in _MADE or b in self.arriving
            if not known and not self.written.covers(b, e.index, width, guards):
                raise OutOfRangeError(f"{self.kernel.name}: {b.space} {b.name} is read before it is written")
        elif isinstance(e, Ref):
            self.scope.use(e)
        elif isinstance(e, Op):
            for a in e.args:
                self.value(a, guards, iteration)
        elif isinstance(e, Guarded):
            self.facts(e.facts, guards)
            self.value(e.value, guards + self.told(e.facts), iteration)
            self.value(e.other, guards, iteration)

    def touch(
        self, iteration: _Iteration, buffer: Buffer, idx: tuple[Index, ...], lanes: int, *, store: bool = False
    ) -> None:
        """Record an access that may conflict with another thread's; buffers that are never written are ignored."""
        buffer = self.same.get(buffer, buffer)
        if self.parallel and buffer.space == "scratch":
            self.scratch.setdefault(buffer, (set(), set()))[store].add(iteration.loops)
        if self.parallel and buffer.space == "global":
            self.touches.append(Touch.of(iteration.chain, buffer, store, idx, lanes // buffer.type.lanes))

    def access(self, what: str, b: Buffer, idx: tuple[Index, ...], type: Type, guards: Facts) -> None:
        self.accesses += 1
        where = f"{what} of {b.name}"
        self.scope.use(b)
        if len(idx) != len(b.shape):
            raise OutOfRangeError(f"{self.kernel.name}: {where}: {len(idx)} indices for {len(b.shape)} dimensions")
        self.lanes(b, type, where)
        width = type.lanes // b.type.lanes
        for d, (i, extent) in enumerate(zip(idx, b.shape, strict=True)):
            w = width if d == len(idx) - 1 else 1
            if not i.terms and not extent.terms and 0 <= i.const <= extent.const - w:
                continue
            at = f"{where}, dimension {d}"
            moving = self.index(i, guards, at)
            if b.space == "register" and not moving <= self.scope.unrolled:
                raise OutOfRangeError(f"{self.kernel.name}: {at}: a register's index is known only when it runs")
            if (over := upper(i + w - extent, guards, self.memo)) > 0:
                raise OutOfRangeError(f"{self.kernel.name}: {at}: passes the end by {over}")
            if (under := upper(-i, guards, self.memo)) > 0:
                raise OutOfRangeError(f"{self.kernel.name}: {at}: starts {under} before 0")
        if self.groups is not None:
            self.aligned(b, idx, width, where)
        if b.space != "register" and upper(b.flat(idx), guards, self.memo) >= _LIMIT // b.type.bytes:
            raise OutOfRangeError(f"{self.kernel.name}: {where}: offsets need more than 31 bits")

    def aligned(self, b: Buffer, idx: tuple[Index, ...], width: int, where: str) -> None:
        """Several elements of memory lie at a multiple of their size: devices have no other vectors."""
        if width > 1 and b.space != "register":
            flat = b.flat(idx)
            if flat.const % width or any(k % width for _, k in flat.terms):
                raise OutOfRangeError(f"{self.kernel.name}: {where}: {width} elements that may not be aligned")

    def lanes(self, b: Buffer, type: Type, where: str) -> None:
        """Registers are whole vectors, memory is single elements, and a vector is a power of two of them."""
        fits = type == b.type if b.space == "register" else b.type.lanes == 1 and type.lanes & (type.lanes - 1) == 0
        if not fits or type.dtype is not b.type.dtype:
            raise OutOfRangeError(f"{self.kernel.name}: {where}: {type} does not fit {b.type}")

    # ---------------------------------------------------------------------------------------- indices
    def told(self, facts: Facts) -> Facts:
        """The facts that hold where a test does, in a launch of work groups: there an index is often cut into a tile
        and the place in it, which tests of the whole say something of."""
        return facts if self.groups is None else (*facts, *(cut for f in facts for cut in _cuts(f)))

    def facts(self, facts: Facts, guards: Facts) -> None:
        """Tests are made in order: each is computed where those before it hold."""
        for i, f in enumerate(facts):
            self.index(f, guards + facts[:i], "test")

    def index(self, i: Index, guards: Facts, where: str) -> frozenset[Var]:
        """The variables of an index that is computed where ``guards`` hold."""
        moving = self.scope.vars(i)
        if (i, guards) not in self.whole:
            self.quotients(i, guards, where)
            self.narrow(i, where)
            self.whole.add((i, guards))
        return moving

    def quotients(self, i: Index, guards: Facts, where: str) -> None:
        for a, _ in i.terms:
            if isinstance(a, Quotient):
                self.quotients(a.of, guards, where)
                self.narrow(a.of, where)
                if a.by < 1 or upper(-a.of, guards, self.memo) > 0:
                    raise OutOfRangeError(f"{self.kernel.name}: {where}: divides a negative number")

    def narrow(self, i: Index, where: str) -> None:
        """Each term by itself and all of one sign together fit 31 bits, so every sum of some of them does."""
        low, high = i.span()
        if low <= -_LIMIT or high >= _LIMIT:
            raise OutOfRangeError(f"{self.kernel.name}: {where}: {i!r} needs more than 31 bits")


def refs(e: Expr) -> bool:
    """Whether a value depends on the value of a Let."""
    if isinstance(e, Guarded):
        return refs(e.value) or refs(e.other)
    return isinstance(e, Ref) or (isinstance(e, Op) and any(map(refs, e.args)))
