"""Re-proves the text form of a kernel by running all of its iterations at once, without its data.

Shares nothing with ``machine.proofs``: its own parser, and concrete numbers in place of inequalities.  A *frame* holds
one row for every iteration that reaches a statement, with the values of the loop variables; a loop multiplies rows, a
condition removes some, and a value bound from data takes every value of its range.  Every index of every row is
compared with the shape.  For each register and stack array the accesses of all rows are put in the order in which they
happen: a load must come after a store to the same element by the same thread, whatever the data were.  For memory that
the kernel writes, no element may be touched by two work items of which one stores.

In a launch of work groups all threads of a block have one time, so that a barrier must be reached by all of them at
once; the number of barriers before an access is its interval. No element may be touched by two threads of a block in
one interval, or by two blocks, if one stores; a load of shared memory comes after a store in an earlier interval, or by
the same thread.  Barriers inside of an instruction order only what that instruction alone touches.  An asynchronous
copy stores in every interval from where it is issued to the wait that it arrives by; blocks of a cluster are threads of
one block where they access its memory.

Where a frame would have more than ``MAX_ROWS`` rows (``GROUP_ROWS`` in a launch), only the first two, the last and some
other iterations of outer loops are checked, but all threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

MAX_ROWS, GROUP_ROWS, STACK, SHARED, _LIMIT = 10_000, 300_000, 1 << 18, 48 << 10, 2**31
_BYTES = {
    "f64": 8,
    "i64": 8,
    "u64": 8,
    "f32": 4,
    "i32": 4,
    "u32": 4,
    "q8": 4,
    "b2": 4,
    "f16": 2,
    "bf16": 2,
    "i16": 2,
    "u16": 2,
}
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?)|[A-Za-z_][\w.]*|//|>=|\S)')
Ints = np.ndarray[Any, np.dtype[np.int64]]


class FaultError(Exception):
    """The kind ("range", "unwritten", "scope", "divide", "limit", "threads" or "barrier") and a description."""


class Linear(NamedTuple):
    """sum(k * atom) + const; an atom is a variable's name or (of, sign, by)."""

    terms: tuple[tuple[int, Any], ...]
    const: int


class Memory(NamedTuple):
    name: str
    space: str
    dtype: str
    lanes: int
    shape: tuple[Linear, ...]
    serial: int


class Access(NamedTuple):
    memory: Memory
    at: tuple[Linear, ...]
    lanes: int


class When(NamedTuple):
    facts: tuple[Linear, ...]
    value: list[Any]
    other: list[Any]


class Statement(NamedTuple):
    """``reads`` are the accesses and conditional values of its expression, ``body`` the statements of its block."""

    what: str
    reads: Sequence[Any] = ()
    store: Access | None = None
    name: str = ""
    below: tuple[Linear, ...] = ()
    facts: tuple[Linear, ...] = ()
    memory: Memory | None = None
    body: Sequence[Any] = ()
    groups: int = 0


class Parser:
    """Scopes are checked while parsing: a name is known from its statement to the end of the block."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        self.known: dict[str, Any] = {}  # a Memory, "var", or the lanes of a value
        self.serial = 0

    def peek(self, ahead: int = 0) -> str:
        return str(self.tokens[self.at + ahead]) if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if expected and token != expected:
            raise ValueError(f"expected {expected}, not {token}")
        self.at += 1
        return token

    def has(self, token: str) -> bool:
        self.at += (matches := self.peek() == token)
        return matches

    def define(self, name: str, what: Any) -> None:
        if name in self.known:
            raise FaultError("scope", f"{name} twice")
        self.known[name] = what

    def lookup(self, name: str, kind: type) -> Any:
        if isinstance(self.known.get(name), kind):
            return self.known[name]
        raise FaultError("scope", f"{name} is not known here")

    def index(self) -> Linear:
        terms: list[tuple[int, Any]] = []
        const = 0
        while True:
            k = int(self.take()) if re.fullmatch(r"-?\d+", self.peek()) else None
            if k is not None and not self.has("*"):
                const += k
            elif self.has("("):
                of, sign, by = self.index(), self.take(), int(self.take())
                self.take(")")
                terms.append((1 if k is None else k, (of, sign, by)))
            else:
                name = self.take()
                self.lookup(name, str)
                terms.append((1 if k is None else k, name))
            if not self.has("+"):
                return Linear(tuple(terms), const)

    def indices(self, close: str) -> tuple[Linear, ...]:
        parsed = []
        while not self.has(close):
            parsed.append(self.index())
            self.has(",")
        return tuple(parsed)

    def facts(self) -> tuple[Linear, ...]:
        fact = self.index()
        self.take(">="), self.take("0")
        return (fact, *(self.facts() if self.has(",") else ()))

    def type(self) -> tuple[str, int]:
        match = re.fullmatch(r"([a-z]\w*?)(?:x(\d+))?", self.take())
        assert match is not None
        return match[1], int(match[2] or 1)

    def buffer(self) -> Memory:
        space, name = self.take(), self.take()
        self.take(":")
        dtype, lanes = self.type()
        self.take("[")
        self.serial += 1
        memory = Memory(name, space, dtype, lanes, self.indices("]"), self.serial)
        self.define(name, memory)
        return memory

    def below(self) -> tuple[str, tuple[Linear, ...]]:
        name = self.take()
        self.take("<")
        several = self.has("min") and self.has("(")
        return name, self.indices(")") if several else (self.index(),)

    def access(self) -> Access:
        memory: Memory = self.lookup(self.take(), Memory)
        self.take("[")
        return Access(memory, self.indices("]"), memory.lanes)

    def expr(self) -> tuple[list[Any], int]:
        """The accesses of an expression, and its number of lanes."""
        token = self.take()
        if re.match(r"-?(\d|inf$|nan$)|True$|False$", token):
            self.take(":")
            return [], self.type()[1]
        if token == "load":
            accessed = self.access()
            accessed = accessed._replace(lanes=self.type()[1]) if self.has(":") else accessed
            return [accessed], accessed.lanes
        if token == "when" and self.has("("):
            facts = self.facts()
            self.take(";")
            value, lanes = self.expr()
            self.take(";")
            other, _ = self.expr()
            self.take(")")
            return [When(facts, value, other)], lanes
        if not self.has("("):
            return [], int(self.lookup(token, int))
        args = []
        while not self.has(")"):
            args.append(self.expr())
            self.has(",")
        derived = 1 if re.match(r"reduce|lane\d$", token) else args[min(1, len(args) - 1)][1]
        lanes = self.type()[1] if self.has(":") else derived
        return [r for reads, _ in args for r in reads], lanes

    def block(self, hidden: bool = False) -> list[Statement]:
        """``hidden``: a separate function, which sees neither values nor registers of its caller."""
        outer = dict(self.known)
        for name, what in outer.items():
            if hidden and (isinstance(what, int) or (isinstance(what, Memory) and what.space == "register")):
                del self.known[name]
        self.take("{")
        body = []
        while not self.has("}"):
            body.append(self.statement())
        self.known = outer
        return body

    def within(self, name: str) -> list[Statement]:
        self.define(name, "var")
        body = self.block()
        del self.known[name]
        return body

    def statement(self) -> Statement:
        if self.peek(1) == "[":
            place = self.access()
            self.take("=")
            reads, lanes = self.expr()
            return Statement("store", reads, place._replace(lanes=lanes))
        match self.take():
            case "let":
                name = self.take()
                self.take(":"), self.type(), self.take("=")
                reads, lanes = self.expr()
                self.define(name, lanes)
                return Statement("let", reads)
            case "alloc":
                return Statement("alloc", memory=self.buffer())
            case "prefetch":
                return Statement("prefetch", store=self.access())
            case "for":
                kind = "serial" if self.peek(1) == "<" else self.take()
                name, below = self.below()
                return Statement(kind, name=name, below=below, body=self.within(name))
            case "bind":
                name, below = self.below()
                self.take("=")
                reads, _ = self.expr()
                return Statement("bind", reads, name=name, below=below, body=self.within(name))
            case "if":
                return Statement("if", facts=self.facts(), body=self.block())
            case "barrier":
                return Statement("barrier", name="cluster" if self.has("cluster") else "")
            case "copy":
                place = self.access()
                self.take("=")
                reads, lanes = self.expr()
                return Statement("copy", reads, place._replace(lanes=lanes))
            case "commit":
                return Statement("commit")
            case "wait":
                return Statement("wait", groups=int(self.take()))
            case "outline":
                self.take()
                return Statement("outline", body=self.block(hidden=True))
            case "instruction":
                self.take(), self.take("(")
                operands = []
                while not self.has(";"):
                    operands.append(self.access())
                    self.has(",")
                while not self.has(")"):
                    self.take()
                body = self.block()
                written = stored_in(body)  # an operand says where the results of all threads begin
                return Statement("instruction", [o for o in operands if o.memory not in written], body=body)
        raise ValueError(f"{self.peek(-1)} begins no statement")

    def kernel(self) -> tuple[list[tuple[str, tuple[Linear, ...]]], list[Statement]]:
        """The sizes and the body."""
        self.take("kernel"), self.take(), self.take("(")
        sizes = []
        while self.peek(1) == "<":
            sizes.append(self.below())
            self.define(sizes[-1][0], "var")
            self.has(",")
        self.has(";")
        while not self.has(")"):
            self.buffer()
            self.has(",")
        return sizes, self.block()


@dataclass
class Frame:
    """One row for each iteration; ``time`` has columns that order them, ``worlds`` the values bound from data."""

    env: dict[str, Ints]
    rows: int
    items: Ints  # the work item that a row belongs to
    time: tuple[Ints, ...] = ()
    worlds: tuple[Ints, ...] = ()
    fixed: int = 0  # how many of ``worlds`` are the same for all work items: bound outside of all loops
    looped: bool = False  # whether a loop is around
    inside: int = 0  # parallel loops around
    leaf: bool = False  # whether the innermost of them contains no other parallel loop, so that one thread executes it
    block: Ints | None = None  # of a launch: numbers of the blocks and threads
    thread: Ints | None = None
    instruction: int = 0  # the number of the one around; 0: none

    def pick(self, rows: Ints) -> Frame:
        env = {name: values[rows] for name, values in self.env.items()}
        time, worlds = (tuple(c[rows] for c in columns) for columns in (self.time, self.worlds))
        block, thread = (None if c is None else c[rows] for c in (self.block, self.thread))
        made = replace(self, env=env, rows=len(rows), items=self.items[rows], time=time, worlds=worlds)
        return replace(made, block=block, thread=thread)


class Event(NamedTuple):
    store: bool
    frame: Frame
    cells: Ints  # rows x width
    made: Ints  # the instance of the buffer
    copy: bool = False


@dataclass
class Checker:
    """Raises FaultError from ``run``."""

    text: str
    accesses: int = 0
    stack: int = 0
    serial: int = 0
    events: dict[Memory, list[Event]] = field(default_factory=dict)
    homes: dict[Memory, tuple[str, int]] = field(default_factory=dict)
    barriers: list[Frame] = field(default_factory=list)
    meetings: list[Frame] = field(default_factory=list)  # barriers of clusters
    marks: list[tuple[int, Frame]] = field(default_factory=list)  # ends of groups of copies (-1), waits for groups
    threads: int = 0  # of a block
    cluster: int = 1  # blocks of one
    sampled: bool = False
    shared: int = 0

    def run(self) -> int:
        """The number of accesses, each checked in all of its iterations."""
        sizes, body = Parser(self.text).kernel()
        empty = Frame({}, 1, np.zeros(1, np.int64))
        worst = [(int(self.value(below[0], empty)[0]), name) for name, below in sizes]
        for share in (0.0, 0.5, 1.0):
            self.events, self.homes, self.barriers, self.stack, self.threads, self.shared = {}, {}, [], 0, 0, 0
            self.meetings, self.marks, self.cluster, self.sampled = [], [], 1, False
            self.block(body, replace(empty, env={name: np.array([int((n - 1) * share)]) for n, name in worst}))
            if self.threads:
                check_barriers([*self.barriers, *(frame for _, frame in self.marks)], self.threads)
            if self.marks and self.sampled:
                raise ValueError("too many iterations to count groups of copies")
            for memory, events in self.events.items():
                if self.threads and memory.space == "cluster":
                    check_cluster(memory, events, self.meetings, self.cluster, self.threads)
                elif self.threads and memory.space in ("shared", "global"):
                    for accesses, barriers in ordered(events, self.barriers):
                        check_intervals(memory, accesses, barriers, self.marks)
                elif memory in self.homes and not all(e.store for e in events):
                    check_order(memory, events)
                elif memory.space == "global":
                    check_races(memory, events)
            if not sizes:
                break
        return self.accesses

    def value(self, i: Linear, frame: Frame) -> Ints:
        total: Ints = np.full(frame.rows, i.const, np.int64)
        for k, atom in i.terms:
            if isinstance(atom, str):
                part = frame.env[atom]
            else:
                of = self.value(atom[0], frame)
                if (of < 0).any():
                    raise FaultError("divide", f"{atom} of {of.min()}")
                part = of % atom[2] if atom[1] == "%" else of // atom[2]
            total = total + k * part
        if (abs(total) >= _LIMIT).any():
            raise FaultError("limit", f"{i} needs more than 31 bits")
        return total

    def where(self, facts: tuple[Linear, ...], frame: Frame) -> Ints:
        """The rows in which all conditions hold; each one is evaluated only in rows where those before it hold."""
        rows = np.arange(frame.rows)
        for f in facts:
            rows = rows[self.value(f, frame.pick(rows)) >= 0]
        return rows

    def block(self, body: Sequence[Statement], frame: Frame) -> None:
        if not frame.rows:
            return
        for position, s in enumerate(body):
            self.statement(s, replace(frame, time=(*frame.time, np.full(frame.rows, position))))

    def statement(self, s: Statement, frame: Frame) -> None:
        self.reads(s.reads, frame)
        if s.what == "prefetch" and s.store:
            for i in s.store.at:
                self.value(i, frame)
        elif s.store:
            if s.store.memory.space == "const":
                raise FaultError("range", f"store to {s.store.memory.name}")
            if s.what == "copy" and s.store.memory.space != "shared":
                raise FaultError("range", f"copy to {s.store.memory.name}")
            self.access(s.store, frame, store=True, copy=s.what == "copy")
        elif s.memory:
            self.alloc(s.memory, frame)
        elif s.what == "barrier":
            self.barriers.append(frame)
            self.meetings += [frame] * (s.name == "cluster")
        elif s.what in ("commit", "wait"):
            self.marks.append((-1 if s.what == "commit" else s.groups, frame))
        elif s.what == "if":
            self.block(s.body, frame.pick(self.where(s.facts, frame)))
        elif s.what == "instruction":
            self.block(s.body, replace(frame, instruction=id(s)))
        elif s.what == "outline":
            self.block(s.body, frame)
        elif s.below:
            self.loop(s, frame)

    def loop(self, s: Statement, frame: Frame) -> None:
        counts = np.min([self.value(b, frame) for b in s.below], axis=0)
        if s.what == "bind" and (counts < 1).any():
            raise FaultError("range", f"{s.name} has no value")
        counts = np.maximum(counts, 0)
        rows = np.repeat(np.arange(frame.rows), counts)
        each = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        most = GROUP_ROWS if re.search(r"for thread ", self.text) else MAX_ROWS
        if len(rows) * (inside := weight(s.body)) > most and s.what not in ("thread", "cluster"):
            self.sampled = self.sampled or s.what != "block"
            rows, each = sampled(counts, most // (inside * max(frame.rows, 1)))
        inner = frame.pick(rows)
        inner.env[s.name] = each
        if s.what in ("block", "cluster", "thread"):
            self.launched(s, inner, each, int(counts.max(initial=1)))
        else:
            inner.time = (*inner.time, each)
        inner.looped = frame.looped or s.what != "bind"
        if s.what == "bind":
            inner.fixed += (
                not frame.looped
                and frame.fixed == len(frame.worlds)
                and all(
                    isinstance(r, Access) and r.memory.space == "const" and not any(i.terms for i in r.at)
                    for r in s.reads
                )
            )
            inner.worlds = (*inner.worlds, self.serial * (1 << 32) + np.arange(len(rows)))
        self.serial += 1
        if s.what == "parallel":
            inner.inside, inner.leaf = frame.inside + 1, not any(map(has_parallel, s.body))
            pairs = np.stack([inner.items, each], 1)  # the same in every iteration of a serial loop
            inner.items = self.serial * (1 << 32) + np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        self.block(s.body, inner)

    def launched(self, s: Statement, inner: Frame, each: Ints, extent: int) -> None:
        """Number the blocks, or the threads in each."""
        outer = inner.thread if s.what == "thread" else inner.block
        number = each if outer is None else outer * extent + each
        if s.what == "cluster":
            self.cluster = extent
        if s.what != "thread":
            inner.block = number
        else:
            inner.thread = number
            self.threads = max(self.threads, int(number.max(initial=0)) + 1)

    def reads(self, reads: Sequence[Any], frame: Frame) -> None:
        for r in reads:
            if isinstance(r, Access):
                self.access(r, frame, store=False)
            else:
                rows = self.where(r.facts, frame)
                self.reads(r.value, frame.pick(rows))
                self.reads(r.other, frame.pick(np.setdiff1d(np.arange(frame.rows), rows)))

    def alloc(self, memory: Memory, frame: Frame) -> None:
        size = memory.lanes * _BYTES.get(memory.dtype, 1) * int(np.prod([e.const for e in memory.shape]))
        if memory.space in ("shared", "cluster"):
            self.shared += size // (memory.shape[0].const if memory.space == "cluster" else 1)
            if self.shared > SHARED:
                raise FaultError("limit", f"{self.shared} bytes of shared memory")
            size = 0
        self.stack += size
        if self.stack > STACK:
            raise FaultError("limit", f"{self.stack} bytes of stack")
        self.homes[memory] = f"made {memory.serial}", frame.inside
        self.events[memory] = []
        frame.env[f"made {memory.serial}"] = np.arange(frame.rows)

    def access(self, a: Access, frame: Frame, *, store: bool, copy: bool = False) -> None:
        memory = a.memory
        if not frame.rows:
            return
        self.accesses += 1
        shape = [self.value(e, frame) for e in memory.shape]
        width, odd = divmod(a.lanes, memory.lanes)
        if len(shape) != len(a.at) or odd or (memory.space == "register" and width != 1):
            raise FaultError("range", f"{a} does not fit")
        flat = np.zeros(frame.rows, np.int64)
        for d, (i, extent) in enumerate(zip(a.at, shape, strict=True)):
            value = self.value(i, frame)
            last = value + (width - 1 if d == len(shape) - 1 else 0)
            if (value < 0).any() or (last >= extent).any():
                raise FaultError(
                    "range", f"{memory.name}, dimension {d}: {value.min()}..{last.max()} of {extent.max()}"
                )
            flat = flat * extent + value
        if ((flat + width) * _BYTES.get(memory.dtype, 1) >= _LIMIT + 1).any():
            raise FaultError("limit", f"{memory.name}: offset")
        if memory in self.homes:
            made, inside = self.homes[memory]
            if store and frame.inside != inside and memory.space not in ("shared", "cluster"):
                raise FaultError("threads", f"{memory.name} is carried from one thread to another")
            copies = frame.env[made]
        elif memory.space == "global":
            copies = np.zeros(frame.rows, np.int64)
        else:
            return
        cells = flat[:, None] + np.arange(width)
        self.events.setdefault(memory, []).append(Event(store, frame, cells, copies, copy))


def has_parallel(s: Statement) -> bool:
    return s.what == "parallel" or any(map(has_parallel, s.body))


def weight(body: Sequence[Statement]) -> int:
    """Estimated number of rows that the loops of ``body`` make of one row."""
    return max((iteration_count(s) * weight(s.body) for s in body if s.body), default=1)


def iteration_count(s: Statement) -> int:
    return max(1, min((b.const for b in s.below if not b.terms), default=8)) if s.below else 1


def sampled(counts: Ints, limit: int) -> tuple[Ints, Ints]:
    """(row, iteration): the first two, the last and others, at most about ``limit`` of each row."""
    top = int(counts.max())
    chosen = np.unique(np.concatenate([[0, 1], np.random.default_rng(top).integers(0, top, max(limit - 3, 0))]))
    rows, each = np.nonzero(chosen[None, :] < counts[:, None])
    some = np.nonzero(counts)[0]
    pairs = np.unique(
        np.stack([np.concatenate([rows, some]), np.concatenate([chosen[each], counts[some] - 1])], 1), axis=0
    )
    return pairs[:, 0], pairs[:, 1]


def check_order(memory: Memory, events: list[Event]) -> None:
    """Every load comes after a store in the same scope of data-bound values or in an enclosing one.  Times of one
    statement have the same columns up to it; its loads come before its store.
    """
    depth, levels = max(len(e.frame.time) for e in events), max(len(e.frame.worlds) for e in events)
    rows = []
    for e in events:
        time = [*e.frame.time, np.full(e.frame.rows, int(e.store)), *[0 * e.made] * (depth - len(e.frame.time))]
        worlds = [*e.frame.worlds, *[0 * e.made - 1] * (levels - len(e.frame.worlds))]
        columns = np.stack([e.made, *worlds, *time], 1).repeat(e.cells.shape[1], axis=0)
        rows.append(np.column_stack([np.full(e.cells.size, e.store), e.cells.reshape(-1), columns]))
    table = np.concatenate(rows)
    stores, moment = table[:, 0] == 1, np.empty(len(table), np.int64)
    moment[np.lexsort(table.T[: 2 + levels : -1])] = np.arange(len(table))
    fine = stores.copy()
    for level in range(levels + 1):
        group = np.unique(table[:, 1 : 3 + level], axis=0, return_inverse=True)[1].reshape(-1)
        first = np.full(group.max() + 1, len(moment))
        usable = stores if level == levels else stores & (table[:, 3 + level] == -1)
        np.minimum.at(first, group[usable], moment[usable])
        fine |= first[group] < moment
    if not fine.all():
        raise FaultError("unwritten", f"{memory.name}: element {table[~fine][0, 1]} is read before it is written")


def check_barriers(barriers: list[Frame], threads: int) -> None:
    """Every barrier is reached by all threads of its block at one time."""
    for frame in barriers:
        assert frame.thread is not None
        if frame.worlds:
            raise FaultError("barrier", "under a value from data")
        block = np.zeros(frame.rows, np.int64) if frame.block is None else frame.block
        _, count = np.unique(np.stack([block, *frame.time], 1), axis=0, return_counts=True)
        if (count != threads).any():
            raise FaultError("barrier", f"{count.min()} of {threads} threads reach it")


def check_cluster(memory: Memory, events: list[Event], meetings: list[Frame], cluster: int, threads: int) -> None:
    """Accesses of the threads of a cluster, which meet at its barriers, as those of one block."""

    def joined(frame: Frame) -> Frame:
        assert frame.block is not None
        assert frame.thread is not None
        return replace(frame, block=frame.block // cluster, thread=frame.block % cluster * threads + frame.thread)

    part = int(np.prod([e.const for e in memory.shape[1:]]))
    for e in events:
        assert e.frame.block is not None
        if e.store and (e.cells // part != (e.frame.block % cluster)[:, None]).any():
            raise FaultError("threads", f"{memory.name}: a block stores in another's part")
        if not any(times_of(frame)[-1] > times_of(e.frame)[-1] for frame in meetings):
            raise FaultError("threads", f"{memory.name}: no barrier of the cluster after the last access")
    check_intervals(memory, [e._replace(frame=joined(e.frame)) for e in events], [joined(m) for m in meetings], [])


def times_of(frame: Frame) -> list[tuple[int, ...]]:
    """The times at which threads are at a statement, in order."""
    return sorted(set(zip(*(column.tolist() for column in frame.time), strict=True)))


def arrival_times(marks: list[tuple[int, Frame]], depth: int) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
    """The time of the end of each group of copies, and that of the wait by which it arrives."""
    every = []
    for groups, frame in marks:
        every += [((*time, *[0] * (depth - len(time))), groups) for time in times_of(frame)]
    every.sort()
    ends = [time for time, groups in every if groups < 0]
    arrivals: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = []
    for number, end in enumerate(ends):
        waits = (t for t, n in every if n >= 0 and t > end and sum(e < t for e in ends) - n > number)
        arrivals.append((end, next(waits, None)))
    return arrivals


def landing(memory: Memory, e: Event, marks: list[tuple[int, Frame]], depth: int) -> Frame:
    """The frame of a copy with the times at which it arrives."""
    groups = arrival_times(marks, depth)
    times = np.stack([*e.frame.time, *[np.zeros(e.frame.rows, np.int64)] * (depth - len(e.frame.time))], 1)
    arrived = []
    for time in map(tuple, times.tolist()):
        at = next((wait for end, wait in groups if end > time), None)
        if at is None:
            raise FaultError("unwritten", f"{memory.name}: a copy is never waited for")
        arrived.append(at)
    return replace(e.frame, time=tuple(np.array(arrived, np.int64).T))


def stored_in(body: Sequence[Statement]) -> list[Memory]:
    """The memory that statements store in."""
    inside = [memory for s in body for memory in stored_in(s.body)]
    return inside + [s.store.memory for s in body if s.store]


def ordered(events: list[Event], barriers: list[Frame]) -> list[tuple[list[Event], list[Frame]]]:
    """Accesses and the barriers that order them: those in an instruction order only accesses to elements that this
    instruction alone touches."""
    outside = [frame for frame in barriers if not frame.instruction]
    if len(outside) == len(barriers):
        return [(events, barriers)]
    owners: dict[int, set[int]] = {}
    for e in events:
        for cell in np.unique(e.cells).tolist():
            owners.setdefault(cell, set()).add(e.frame.instruction)
    own = np.array([cell for cell, numbers in owners.items() if len(numbers) == 1 and 0 not in numbers], np.int64)
    groups: list[list[Event]] = [[], []]
    for e in events:
        alone = np.isin(e.cells, own).all(axis=1)
        for group, rows in zip(groups, (alone, ~alone), strict=True):
            at = np.flatnonzero(rows)
            if at.size:
                group.append(e._replace(frame=e.frame.pick(at), cells=e.cells[at]))
    return [(group, of) for group, of in zip(groups, (barriers, outside), strict=True) if group]


def check_intervals(memory: Memory, events: list[Event], barriers: list[Frame], marks: list[tuple[int, Frame]]) -> None:
    """Accesses of the threads of a block to an element between two barriers, and blocks at any time."""
    frames = [*(e.frame for e in events), *barriers, *(frame for _, frame in marks)]
    depth = max(len(frame.time) for frame in frames)

    def columns(frame: Frame, stores: bool) -> Ints:
        block = np.zeros(frame.rows, np.int64) if frame.block is None else frame.block
        thread = np.zeros(frame.rows, np.int64) if frame.thread is None else frame.thread
        time = [*frame.time, np.full(frame.rows, int(stores)), *[np.zeros(frame.rows, np.int64)] * depth]
        return np.stack([block, *time[: depth + 1], thread], 1)

    copies = [e for e in events if e.copy]
    events = events + [e._replace(frame=landing(memory, e, marks, depth)) for e in copies]
    tables = [columns(e.frame, e.store).repeat(e.cells.shape[1], axis=0) for e in events]
    marks = [table[table[:, -1] == 0] for table in (columns(frame, False) for frame in barriers)]
    table = np.concatenate([*tables, *marks])
    store = np.concatenate([np.full(e.cells.size, e.store) for e in events] + [np.zeros(len(m), bool) for m in marks])
    cell = np.concatenate([e.cells.reshape(-1) for e in events] + [np.full(len(m), -1) for m in marks])
    bound = np.concatenate(
        [np.full(e.cells.size, bool(e.frame.worlds)) for e in events] + [np.zeros(len(m), bool) for m in marks]
    )
    order = np.lexsort(table[:, :-1].T[::-1])
    interval, moment = np.empty(len(table), np.int64), np.empty(len(table), np.int64)
    interval[order] = np.cumsum(cell[order] == -1)
    # Accesses of all threads at one time have one moment.
    moment[order] = np.cumsum(np.any(np.diff(table[order][:, :-1], axis=0, prepend=-1), axis=1))
    ends = np.cumsum([0, *(e.cells.size for e in events)])
    first = len(events) - len(copies)
    issued = [i for i, e in enumerate(events[:first]) if e.copy]
    flights = [
        (np.arange(ends[i], ends[i + 1]), np.arange(ends[first + n], ends[first + n + 1])) for n, i in enumerate(issued)
    ]
    check_flights(memory, table, cell, interval, moment, flights)
    real = cell >= 0
    for begun, _ in flights:
        real[begun] = False  # nothing is written yet, and nobody else touches it
    block, thread, cell, store, bound = table[real, 0], table[real, -1], cell[real], store[real], bound[real]
    interval, moment = interval[real], moment[real]
    meet("threads", memory, np.stack([cell, block, interval], 1), thread, store)
    if memory.space == "global":
        meet("threads", memory, cell[:, None], block, store)
        return
    fine = store.copy()
    for own, before in ((np.stack([cell, block], 1), interval), (np.stack([cell, block, thread], 1), moment)):
        group = np.unique(own, axis=0, return_inverse=True)[1].reshape(-1)
        earliest = np.full(group.max() + 1, 1 << 62)
        usable = store & ~bound
        np.minimum.at(earliest, group[usable], before[usable])
        fine |= earliest[group] < before
    if not fine.all():
        raise FaultError("unwritten", f"{memory.name}: element {cell[~fine][0]} is read before it is written")


def check_flights(
    memory: Memory, table: Ints, cell: Ints, interval: Ints, moment: Ints, flights: list[tuple[Ints, Ints]]
) -> None:
    """Nobody touches an element from where its copy is issued to where that arrives: other threads of the block in
    these intervals, the thread itself at a time between."""
    for begun, arrived in flights:
        for i, j in zip(begun.tolist(), arrived.tolist(), strict=True):
            near = (cell == cell[i]) & (table[:, 0] == table[i, 0])
            near[[i, j]] = False
            own = near & (table[:, -1] == table[i, -1]) & (moment > moment[i]) & (moment < moment[j])
            others = near & (table[:, -1] != table[i, -1]) & (interval >= interval[i]) & (interval <= interval[j])
            if own.any() or others.any():
                raise FaultError("threads", f"{memory.name}: element {cell[i]} is touched while a copy is on its way")


def meet(kind: str, memory: Memory, where: Ints, who: Ints, store: Ints) -> None:
    """No place is touched by several of which one stores."""
    _, group = np.unique(where, axis=0, return_inverse=True)
    group = group.reshape(-1)
    low, high, written = (np.full(group.max() + 1, n) for n in (1 << 62, -1, 0))
    np.minimum.at(low, group, who)
    np.maximum.at(high, group, who)
    np.maximum.at(written, group, store.astype(np.int64))
    if (bad := (written > 0) & (low != high)).any():
        raise FaultError(kind, f"{memory.name}: element {where[bad[group]][0][0]} is touched by two at a time")


def _fixed_worlds(frame: Frame) -> Ints:
    """A number for each row that tells apart the values which are bound outside of all loops."""
    number = np.zeros(frame.rows, np.int64)
    for world in frame.worlds[: frame.fixed]:
        number = number * 1_000_003 + world
    return number


def check_races(memory: Memory, events: list[Event]) -> None:
    """No element accessed by several work items is stored to; kernels without work items run on one thread."""
    if not any(e.frame.inside for e in events):
        return
    cell = np.concatenate([e.cells.reshape(-1) for e in events])
    if any(e.frame.fixed for e in events):  # elements of two runs with other data are not one element
        worlds = np.concatenate([np.repeat(_fixed_worlds(e.frame), e.cells.shape[1]) for e in events])
        cell = np.unique(np.stack([cell, worlds], 1), axis=0, return_inverse=True)[1].reshape(-1)
    nobody = [e.frame.items if e.frame.leaf else np.full(e.frame.rows, -1) for e in events]
    item = np.concatenate([np.repeat(i, e.cells.shape[1]) for i, e in zip(nobody, events, strict=True)])
    store = np.concatenate([np.full(e.cells.size, e.store) for e in events])
    names, group = np.unique(cell, return_inverse=True)
    low, high, written = np.full(len(names), 1 << 62), np.full(len(names), -2), np.zeros(len(names), bool)
    np.minimum.at(low, group, item)
    np.maximum.at(high, group, item)
    np.logical_or.at(written, group, store)
    if (bad := written & ((low != high) | (low == -1))).any():
        raise FaultError("threads", f"{memory.name}: element {names[bad][0]} is touched by two work items")


def check(text: str) -> int:
    """Raises FaultError; returns the number of accesses checked."""
    return Checker(text).run()
