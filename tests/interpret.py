"""The interpreter of the loop IR: the reference semantics that all generated code is compared with.

A value is an array of its lanes.  Everything that C leaves undefined is an error here: an index out of range
in any one dimension, a register or stack cell read before it is written, a store to a constant, a shift by more
than the width, a float that does not fit the integer it is cast to.

A thread is a generator that pauses at each barrier; a thread loop runs its threads in lockstep between barriers, so a
barrier that some of them do not reach is an error and not a hang. Iterations of a parallel loop run in reverse order,
since their order must not matter; that of threads between two barriers, and that of blocks, does not matter because an
element that one of them writes and another one touches is an error, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loop_operations import MIXED, OPERATIONS, KernelError, convert, numpy_type
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    OPS,
    Alloc,
    Barrier,
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
from tenon.network.graph.graph import Array

# -------------------------------------------------------------------------------------------- running
Env = dict[Var, int]


def evaluate(i: Index, env: Mapping[Var, int]) -> int:
    """The value of an index, given its variables."""
    total = i.const
    for atom, k in i.terms:
        if isinstance(atom, Var):
            total += k * env[atom]
            continue
        of = evaluate(atom.of, env)
        if of < 0:
            raise KernelError(f"{atom!r} of {of}, which is negative")
        total += k * (of % atom.by if atom.rest else of // atom.by)
    return total


class _Cells:
    """The memory of a buffer: its elements, and a mask of those that have been written."""

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], data: Array | None) -> None:
        self.buffer, self.shape = buffer, shape
        rows = (math.prod(shape), buffer.type.lanes)
        self.data = np.zeros(rows, numpy_type(buffer.type.dtype)) if data is None else data.reshape(rows)
        self.written = None if data is not None else np.zeros(rows[0], bool)
        self.users: dict[bool, _Users] = {}  # by whether they store; made when a thread of a block touches an element

    def note(self, window: slice, who: _Who | None, *, store: bool) -> None:
        """Note an access by a thread of a block. Raises KernelError if another thread touches an element between the
        same barriers, or another block at any time, and one of the two stores."""
        if who is None or self.buffer.space not in ("shared", "global"):
            return
        self.users = self.users or {kind: _Users(len(self.data)) for kind in (False, True)}
        if self.users[True].others(window, who) or (store and self.users[False].others(window, who)):
            raise KernelError(f"{self.buffer.name}: an element is touched by two threads, of which one stores")
        self.users[store].add(window, who)

    def window(self, at: Sequence[int], lanes: int) -> slice:
        """The elements that ``lanes`` lanes from ``at`` take. Raises KernelError if one is out of range in any
        dimension.
        """
        count, first = lanes // self.buffer.type.lanes, 0
        for i, extent in zip(at, self.shape, strict=True):
            if not 0 <= i < extent:
                raise self._outside(at, lanes)
            first = first * extent + i
        if at[-1] + count > self.shape[-1]:
            raise self._outside(at, lanes)
        return slice(first, first + count)

    def _outside(self, at: Sequence[int], lanes: int) -> KernelError:
        d = next((d for d, i in enumerate(at) if not 0 <= i < self.shape[d]), len(at) - 1)
        return KernelError(f"{self.buffer.name}{list(self.shape)}: {list(at)}, {lanes} lanes, dimension {d}")

    def read(self, at: Sequence[int], lanes: int, who: _Who | None = None) -> Array:
        window = self.window(at, lanes)
        self.note(window, who, store=False)
        if self.written is not None and not self.written[window].all():
            raise KernelError(f"{self.buffer.name}{list(at)} is read before it is written")
        lanes_read: Array = self.data[window].reshape(-1).copy()
        return lanes_read

    def write(self, at: Sequence[int], value: Array, who: _Who | None = None) -> None:
        if self.buffer.space == "const":
            raise KernelError(f"store to the constant {self.buffer.name}")
        window = self.window(at, len(value))
        self.note(window, who, store=True)
        self.data[window] = value.reshape(-1, self.buffer.type.lanes)
        if self.written is not None:
            self.written[window] = True


@dataclass
class _Who:
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

    def others(self, window: slice, who: _Who) -> bool:
        """Whether any of the elements was touched by another block, or by another thread between the same barriers."""
        for i in range(window.start, window.stop):
            if (block := self.block[i]) is not None:
                if block != who.block:
                    return True
                interval, thread = self.thread[i] or (-1, 0)
                if interval == who.interval and thread != who.thread:
                    return True
        return False

    def add(self, window: slice, who: _Who) -> None:
        for i in range(window.start, window.stop):
            interval, thread = self.thread[i] or (-1, 0)
            several = self.block[i] == who.block and interval == who.interval and thread != who.thread
            self.thread[i] = who.interval, "several" if several else who.thread
            self.block[i] = who.block if self.block[i] in (None, who.block) else "several"


_Value = Callable[["_Thread"], Array]
"""Computes the lanes of an expression, of exactly its type."""

_Action = Callable[["_Thread"], None]
"""Runs a statement without barriers."""


class _Thread:
    """One flow of control: the values of its variables, names and private buffers, and the shared memory."""

    def __init__(
        self, code: _Code, memory: dict[Buffer, _Cells], env: Env, names: dict[Ref, Array], own: dict[Buffer, _Cells]
    ) -> None:
        self.code, self.memory, self.env, self.names, self.own = code, memory, env, names, own
        self.block: tuple[int, ...] = ()
        self.who: _Who | None = None

    def child(self, var: Var, value: int, kind: str) -> _Thread:
        thread = _Thread(self.code, self.memory, {**self.env, var: value}, dict(self.names), dict(self.own))
        thread.block = (*self.block, value) if kind == "block" else self.block
        if kind == "thread":
            outer = self.who.thread if self.who else 0
            thread.who = _Who(self.block, outer * var.below[0].const + value)
        return thread

    def holds(self, facts: tuple[Index, ...]) -> bool:
        return all(evaluate(f, self.env) >= 0 for f in facts)

    def cells(self, buffer: Buffer) -> _Cells:
        cells = self.own.get(buffer) or self.memory.get(buffer)
        if cells is None:
            raise KernelError(f"{buffer.name} is used before its Alloc")
        return cells

    # ----------------------------------------------------------------------------------- statements
    def run(self, body: Sequence[Stmt]) -> Iterator[None]:
        """Run statements, pausing at each barrier."""
        for s in body:
            if _pauses(s):
                yield from self._paused(s)
            else:
                self.code.action(s)(self)

    def _paused(self, s: Stmt) -> Iterator[None]:
        match s:
            case Barrier():
                if self.who:
                    self.who.interval += 1
                yield
            case Outline() | Instruction():
                yield from self.run(s.body)
            case If():
                if self.holds(s.facts):
                    yield from self.run(s.body)
            case Bind():
                self.bind(s)
                yield from self.run(s.body)
            case Loop() if s.kind == "thread":
                yield from _run_lockstep([thread.run(s.body) for thread in self.iterations(s)])
            case Loop():
                for thread in self.iterations(s):
                    yield from thread.run(s.body)

    def bind(self, s: Bind) -> None:
        below = min(evaluate(b, self.env) for b in s.var.below)
        if below < 1:
            raise KernelError(f"{s.var.name} has no value: its range is empty")
        self.env[s.var] = min(max(int(self.code.value(s.value)(self)[0]), 0), below - 1)

    def iterations(self, s: Loop) -> Iterator[_Thread]:
        """This thread for each iteration of a serial loop; a new thread for each iteration of any other."""
        iterations = range(min(evaluate(b, self.env) for b in s.var.below))
        if s.kind in ("serial", "unroll"):
            for i in iterations:
                self.env[s.var] = i
                yield self
            return
        for i in reversed(iterations):
            if s.kind == "block":
                for buffer in [b for b in self.memory if b.space == "shared"]:
                    del self.memory[buffer]
            yield self.child(s.var, i, s.kind)

    def allocate(self, buffer: Buffer) -> None:
        cells = _Cells(buffer, tuple(evaluate(i, self.env) for i in buffer.shape), None)
        if buffer.space == "shared":
            self.memory.setdefault(buffer, cells)
        else:
            self.own[buffer] = cells


class _Code:
    """The expressions and statements of a kernel as functions of a thread, each made when it is first used."""

    def __init__(self) -> None:
        self._values: dict[int, _Value] = {}
        self._actions: dict[int, _Action] = {}

    # ---------------------------------------------------------------------------------- expressions
    def value(self, e: Expr) -> _Value:
        evaluate = self._values.get(id(e))
        if evaluate is None:
            evaluate = self._values[id(e)] = self._checked(e)
        return evaluate

    def _checked(self, e: Expr) -> _Value:
        compute, lanes, dtype = self._expression(e), e.type.lanes, numpy_type(e.type.dtype)

        def checked(thread: _Thread) -> Array:
            result = compute(thread)
            if len(result) != lanes or result.dtype != dtype:
                raise KernelError(f"{e} is {len(result)} lanes of {result.dtype}, not {e.type}")
            return result

        return checked

    def _expression(self, e: Expr) -> _Value:
        match e:
            case Op():
                return self._operation(e)
            case Load():
                buffer, lanes, where = e.buffer, e.type.lanes, _position(e.index)
                return lambda thread: thread.cells(buffer).read(where(thread.env), lanes, thread.who)
            case Ref():
                return lambda thread: thread.names[e]
            case Const():
                dtype = e.type.dtype
                value = e.value if dtype.carrier is dtype else dtype.bits(e.value)
                constant = np.full(e.type.lanes, value, numpy_type(dtype))
                return lambda thread: constant
            case Guarded():
                first, other, facts = self.value(e.value), self.value(e.other), e.facts
                return lambda thread: (first if thread.holds(facts) else other)(thread)
        raise KernelError(f"{e} is no expression")

    def _operation(self, e: Op) -> _Value:
        dtype, lanes, args = numpy_type(e.type.dtype), e.type.lanes, [self.value(a) for a in e.args]
        first = args[0]
        if e.name == "broadcast":
            return lambda thread: np.repeat(first(thread), lanes)
        if e.name == "bitcast":
            return lambda thread: first(thread).view(dtype)
        if e.name == "cast":
            source, target = e.args[0].type.dtype, e.type.dtype
            return lambda thread: convert(first(thread), source, target)
        if e.name not in OPERATIONS:
            meaning = OPS[e.name].meaning
            assert meaning is not None, f"{e.name} has neither a meaning nor a definition here"
            return self.value(meaning(*e.args))
        operands = {numpy_type(a.type.dtype) for a in (e.args[1:] if e.name == "select" else e.args)}
        if e.name not in MIXED and len(operands) > 1:
            raise KernelError(f"{e.name} of {', '.join(str(numpy_type(a.type.dtype)) for a in e.args)}")
        function = OPERATIONS[e.name]
        if len(args) == 2:
            second = args[1]
            return lambda thread: function(first(thread), second(thread)).astype(dtype, copy=False)
        return lambda thread: function(*[a(thread) for a in args]).astype(dtype, copy=False)

    # ----------------------------------------------------------------------------------- statements
    def action(self, s: Stmt) -> _Action:
        run = self._actions.get(id(s))
        if run is None:
            run = self._actions[id(s)] = self._statement(s)
        return run

    def _statement(self, s: Stmt) -> _Action:
        match s:
            case Let():
                return self._let(s)
            case Store():
                return self._store(s)
            case Prefetch():
                return lambda thread: None  # a prefetch may point anywhere
            case Alloc():
                return lambda thread: thread.allocate(s.buffer)
            case Outline() | Instruction():
                return self._body(s.body)
            case If():
                run = self._body(s.body)
                return lambda thread: run(thread) if thread.holds(s.facts) else None
            case Bind():
                return self._bound(s)
            case Loop():
                return self._loop(s)
            case Barrier():
                raise KernelError("a barrier outside of run()")
        raise KernelError(f"{s} is no statement")

    def _let(self, s: Let) -> _Action:
        compute, ref = self.value(s.value), s.ref

        def let(thread: _Thread) -> None:
            thread.names[ref] = compute(thread)

        return let

    def _store(self, s: Store) -> _Action:
        compute, buffer, where = self.value(s.value), s.buffer, _position(s.index)
        return lambda thread: thread.cells(buffer).write(where(thread.env), compute(thread), thread.who)

    def _body(self, body: Sequence[Stmt]) -> _Action:
        """The statements, made when they are first reached."""
        made: list[_Action] = []

        def run(thread: _Thread) -> None:
            if not made:
                made.extend(map(self.action, body))
            for act in made:
                act(thread)

        return run

    def _bound(self, s: Bind) -> _Action:
        run = self._body(s.body)

        def bound(thread: _Thread) -> None:
            thread.bind(s)
            run(thread)

        return bound

    def _loop(self, s: Loop) -> _Action:
        run = self._body(s.body)

        def loop(thread: _Thread) -> None:
            for each in thread.iterations(s):
                run(each)

        return loop


def _position(index: tuple[Index, ...]) -> Callable[[Env], list[int]]:
    places = [_place(i) for i in index]
    return lambda env: [place(env) for place in places]


def _place(i: Index) -> Callable[[Env], int]:
    const, terms = i.const, i.terms
    if not terms:
        return lambda env: const
    if len(terms) == 1 and isinstance(var := terms[0][0], Var):
        step = terms[0][1]
        return lambda env: const + step * env[var]
    return lambda env: evaluate(i, env)


def _run_lockstep(threads: list[Iterator[None]]) -> Iterator[None]:
    """Run all threads, in lockstep from barrier to barrier."""
    while threads:
        waiting = [thread for thread in threads if next(thread, "done") != "done"]
        if waiting and len(waiting) < len(threads):
            raise KernelError("a barrier that some threads never reach")
        threads = waiting
        if threads:
            yield


def _pauses(s: Stmt) -> bool:
    return isinstance(s, Barrier) or (isinstance(s, BLOCKS) and any(map(_pauses, s.body)))


def interpret(kernel: Kernel, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None) -> None:
    """Run a kernel over one array per parameter, of the parameter's type and size; writes into the arrays. Raises
    KernelError for undefined behaviour.
    """
    env: Env = {v: (sizes or {})[v.name] for v in kernel.sizes}
    memory: dict[Buffer, _Cells] = {}
    for buffer, array in zip(kernel.params, arrays, strict=True):
        data = array.view(np.uint8) if array.dtype == np.bool_ else array
        if data.dtype != numpy_type(buffer.type.dtype) or not data.flags.c_contiguous:
            raise KernelError(f"{buffer.name} wants contiguous {buffer.type}, not {array.dtype}")
        shape = tuple(evaluate(i, env) for i in buffer.shape)
        if data.size != np.prod(shape, dtype=int) * buffer.type.lanes:
            raise KernelError(f"{buffer.name}{list(shape)} does not fit an array of {array.shape}")
        memory[buffer] = _Cells(buffer, shape, data)
    with np.errstate(all="ignore"):
        for _ in _Thread(_Code(), memory, env, {}, {}).run(kernel.body):
            pass  # every thread has reached the barrier
