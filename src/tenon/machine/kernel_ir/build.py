"""Builder for loop IR: ``with k.loop("i", n) as i: y[i] = x[i] * 2.0``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from tenon.machine.kernel_ir.index import Index, IndexLike, Var, index
from tenon.machine.kernel_ir.loops import (
    Alloc,
    AsyncCopy,
    Barrier,
    Bind,
    Buffer,
    Commit,
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
    Type,
    Wait,
    broadcast,
)
from tenon.network.graph.types import F32, DType

At = IndexLike | tuple[IndexLike, ...]


class Tensor:
    """A buffer in the builder: t[i, j] loads, t[i, j] = e stores, t.vec(n) is a view as vectors of n lanes.

    The last index is in vectors of the view; all others are in elements.
    """

    def __init__(self, build: Builder, buffer: Buffer, lanes: int = 0) -> None:
        self.build, self.buffer, self.lanes = build, buffer, lanes or buffer.type.lanes
        self.step = self.lanes // buffer.type.lanes

    def vec(self, lanes: int) -> Tensor:
        return Tensor(self.build, self.buffer, lanes)

    def where(self, at: At) -> tuple[Index, ...]:
        *outer, last = (index(i) for i in (at if isinstance(at, tuple) else (at,)))
        return (*outer, last * self.step)

    def __getitem__(self, at: At) -> Expr:
        return Load(self.buffer, self.where(at), Type(self.buffer.type.dtype, self.lanes))

    def __setitem__(self, at: At, value: Expr | float) -> None:
        value = value if isinstance(value, Expr) else Const(value, Type(self.buffer.type.dtype))
        self.build.store(self.buffer, self.where(at), broadcast(value, self.lanes))


Operand = tuple[Tensor, At]
"""Where an operand of an instruction begins."""


def _operations(value: Expr) -> list[Op]:
    """All operations of an expression, once each, operands first; without recursion, as chains may be long."""
    order, seen, todo = list[Op](), set[int](), [(value, False)]
    while todo:
        e, visited = todo.pop()
        if not isinstance(e, Op):
            continue
        if visited:
            order.append(e)
        elif id(e) not in seen:
            seen.add(id(e))
            todo += [(e, True), *((a, False) for a in reversed(e.args))]
    return order


class Builder:
    """Collects statements; ``done()`` returns the kernel.  ``about`` as in ``loops.Kernel``."""

    def __init__(self, name: str, about: str = "") -> None:
        self.name, self.about = name, about
        self.params: list[Buffer] = []
        self.sizes: list[Var] = []
        self._blocks: list[list[Stmt]] = [[]]
        self._used: dict[str, int] = {}
        self._depth = 0

    def fresh(self, name: str) -> str:
        """``name``, or with the lowest number that makes it unique: w, w2, w3."""
        candidate, n = name, self._used.get(name, 0) + 1
        while n > 1 and (candidate := f"{name}{n}") in self._used:
            n += 1
        self._used[name] = n
        self._used.setdefault(candidate, 1)
        return candidate

    # ------------------------------------------------------------------------------------ buffers
    def _buffer(self, name: str, dtype: DType, shape: tuple[IndexLike, ...], space: str, lanes: int = 1) -> Buffer:
        return Buffer(self.fresh(name), Type(dtype, lanes), tuple(index(s) for s in shape), space)

    def param(
        self, name: str, *shape: IndexLike, dtype: DType = F32, out: bool = False, scratch: bool = False
    ) -> Tensor:
        """A parameter: read only, written if ``out``, or private to the thread if ``scratch``."""
        space = "scratch" if scratch else "global" if out else "const"
        self.params.append(self._buffer(name, dtype, shape, space))
        return Tensor(self, self.params[-1])

    def local(
        self, name: str, *shape: IndexLike, dtype: DType = F32, space: str = "register", lanes: int = 1
    ) -> Tensor:
        """Registers (named scalars or vectors), or an array in another space."""
        buffer = self._buffer(name, dtype, shape, space, lanes)
        self._emit(Alloc(buffer))
        return Tensor(self, buffer)

    def size(self, name: str, most: int) -> Index:
        """A size known only at run time, at most ``most``."""
        self.sizes.append(self._var(name, most + 1))
        return Index(((self.sizes[-1], 1),))

    # --------------------------------------------------------------------------------- statements
    def _emit(self, stmt: Stmt) -> None:
        self._blocks[-1].append(stmt)

    def let(self, name: str, value: Expr) -> Expr:
        """Name a value: computed here, once."""
        if isinstance(value, (Ref, Const)):
            return value
        value = self._share(value)
        ref = Ref(self.fresh(name), value.type)
        self._emit(Let(ref, value))
        return ref

    def store(self, buffer: Buffer, at: tuple[Index, ...], value: Expr) -> None:
        """Add a statement that stores a value."""
        self._emit(Store(buffer, at, self._share(value)))

    def _share(self, value: Expr) -> Expr:
        """Give a name to every operation that ``value`` uses more than once."""
        order = _operations(value)
        uses = Counter(id(a) for e in order for a in e.args)
        if all(uses[id(e)] <= 1 for e in order):
            return value
        done: dict[int, Expr] = {}
        for e in order:
            args = tuple(done.get(id(a), a) for a in e.args)
            new: Expr = e if all(a is b for a, b in zip(args, e.args, strict=True)) else Op(e.name, args, e.type)
            if uses[id(e)] > 1 and e.name != "broadcast":
                ref = Ref(self.fresh("t"), new.type)
                self._emit(Let(ref, new))
                new = ref
            done[id(e)] = new
        return done[id(value)]

    def barrier(self, *, cluster: bool = False) -> None:
        """Add a barrier, at which all threads of a block meet, or of a cluster of blocks."""
        self._emit(Barrier(cluster))

    def copy(self, buffer: Buffer, at: tuple[Index, ...], value: Expr) -> None:
        """Add an asynchronous copy of a load, which may be guarded with a constant elsewhere (``loops.AsyncCopy``)."""
        self._emit(AsyncCopy(buffer, at, value))

    def commit(self) -> None:
        """End a group of asynchronous copies."""
        self._emit(Commit())

    def wait(self, groups: int) -> None:
        """Wait until all groups of copies have arrived, but the last so many."""
        self._emit(Wait(groups))

    def prefetch(self, tensor: Tensor, *at: IndexLike) -> None:
        """Add a hint to load data into the cache."""
        self._emit(Prefetch(tensor.buffer, tensor.where(at)))

    # -------------------------------------------------------------------------------------- blocks
    def _var(self, name: str, *below: IndexLike) -> Var:
        self._depth += 1
        return Var(self.fresh(name), tuple(index(b) for b in below), self._depth)

    @contextmanager
    def _block(self, make: Callable[[tuple[Stmt, ...]], Stmt]) -> Iterator[None]:
        self._blocks.append([])
        yield
        body = tuple(self._blocks.pop())
        self._emit(make(body))

    @contextmanager
    def loop(self, name: str, *extent: IndexLike, kind: str = "serial") -> Iterator[Index]:
        """A loop over ``name`` from 0 to the least of ``extent``; one with a single iteration is omitted, unless it is
        parallel, of a cluster or of threads."""
        if extent == (1,) and kind not in ("parallel", "cluster", "thread"):
            yield Index()
            return
        var = self._var(name, *extent)
        with self._block(lambda body: Loop(var, body, kind)):
            yield Index(((var, 1),))

    @contextmanager
    def bind(self, name: str, value: Expr, *extent: IndexLike) -> Iterator[Index]:
        """An integer from data as an index, clamped into range(min(extent)); every extent is at least 1."""
        var, value = self._var(name, *extent), self._share(value)
        with self._block(lambda body: Bind(var, value, body)):
            yield Index(((var, 1),))

    def unroll(self, name: str, extent: int) -> AbstractContextManager[Index]:
        """A loop whose iterations are printed one after the other."""
        return self.loop(name, extent, kind="unroll")

    @contextmanager
    def outline(self, name: str, about: str = "") -> Iterator[None]:
        """A block printed as a function.  Names defined in it are released afterwards, so that equal blocks have equal
        text and share one function."""
        used = dict(self._used)
        with self._block(lambda body: Outline(name, body, about)):
            yield
        self._used = used

    @contextmanager
    def instruction(self, name: str, operands: Sequence[Operand], *numbers: int) -> Iterator[None]:
        """A block that a processor may have an instruction for (``loops.Instruction``)."""
        places = tuple((tensor.buffer, tensor.where(at)) for tensor, at in operands)
        with self._block(lambda body: Instruction(name, places, numbers, body)):
            yield

    @contextmanager
    def when(self, *facts: Index) -> Iterator[None]:
        """Run the block where every fact holds.  Constant facts are evaluated now."""
        never = any(not f.terms and f.const < 0 for f in facts)
        open_facts = tuple(f for f in facts if f.terms)
        self._blocks.append([])
        yield
        body = tuple(self._blocks.pop())
        if open_facts and not never:
            self._emit(If(open_facts, body))
        elif not never:
            self._blocks[-1] += body

    def done(self) -> Kernel:
        """The finished kernel."""
        return Kernel(self.name, tuple(self.params), tuple(self.sizes), tuple(self._blocks[0]), self.about)


def guarded(facts: tuple[Index, ...], value: Expr, other: float) -> Expr:
    """``value`` where every fact holds, else ``other``; no guard where all facts are constants."""
    fallback = broadcast(Const(other, Type(value.type.dtype)), value.type.lanes)
    if any(not fact.terms and fact.const < 0 for fact in facts):
        return fallback
    open_facts = tuple(fact for fact in facts if fact.terms)
    return Guarded(open_facts, value, fallback) if open_facts else value


def segments(n: int, step: int) -> list[tuple[int, int, int]]:
    """Split range(n) into full steps and one tail: (start, iterations, width)."""
    whole = [(0, n // step, step)] if n >= step else []
    return whole + ([(n - n % step, 1, n % step)] if n % step else [])


def lane_segments(n: int, lanes: int) -> list[tuple[int, int, int]]:
    """Split n elements into vectors, and the rest into narrower ones: (start, iterations, lanes)."""
    out, start = [], 0
    while start < n:
        iterations = (n - start) // lanes
        if iterations:
            out.append((start, iterations, lanes))
            start += iterations * lanes
        lanes = max(1, lanes // 2)
    return out
