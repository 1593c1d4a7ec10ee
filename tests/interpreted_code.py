"""Kernels of the loop IR as Python programs, which the interpreter runs.

Statements become statements and every node of an expression a local variable, an array of its lanes. Checks that depend
on data stand beside the accesses that they guard; an error that is known without data is raised where it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from interpreted_memory import Cells, Who, clustered, lockstep
from loop_operations import EXACT, MIXED, OPERATIONS, KernelError, convert, numpy_type
from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    OPS,
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
    Wait,
)
from tenon.network.graph.types import DType

Program = Callable[..., Iterator[bool]]
"""Runs a kernel, given the cells of each parameter; pauses at barriers that no thread loop is around."""


def program(kernel: Kernel, sizes: Mapping[str, int]) -> Program:
    """The kernel for these sizes as a Python function."""
    return _Code(kernel, sizes).function()


def _fail(message: str) -> None:
    raise KernelError(message)


def _quotient(of: int, by: int) -> int:
    if of < 0:
        raise KernelError(f"{of} // {by} of a negative number")
    return of // by


def _remainder(of: int, by: int) -> int:
    if of < 0:
        raise KernelError(f"{of} % {by} of a negative number")
    return of % by


def _is_cast_of_integers(source: DType, target: DType) -> bool:
    """Whether NumPy's cast is that of the loop IR: not from floats to integers, nor of bf16, which is held as bits."""
    if DType.BF16 in (source, target):
        return False
    return numpy_type(source).kind != "f" or numpy_type(target).kind == "f"


class _Code:
    """The lines of a kernel, and the objects that they name."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.sizes = {v: sizes[v.name] for v in kernel.sizes}
        self.lines: list[str] = []
        self.indent = 0
        self.names: dict[object, str] = {}
        self.shapes: dict[Buffer, list[str]] = {}  # extents, each a number or an expression
        self.block: list[str] = []  # the variables of the loops over blocks around
        self.cluster: list[str] = []  # that of the loop over the blocks of a cluster, if it is around
        self.who = "None"  # the thread of a block that runs here
        self.objects: dict[str, Any] = {
            "Cells": Cells,
            "KernelError": KernelError,
            "Who": Who,
            "fail": _fail,
            "lockstep": lockstep,
            "clustered": clustered,
            "quotient": _quotient,
            "remainder": _remainder,
            "shared": {},
        }
        self.kept: list[object] = []  # keeps ids of nodes from being used again

    def function(self) -> Program:
        parameters = []
        for buffer in self.kernel.params:
            name = self.named(buffer)
            self.shapes[buffer] = [self.integer(i) for i in buffer.shape]
            parameters.append(f"c{name}")
        with self.inside(f"def kernel({', '.join(parameters)}):"):
            for buffer in self.kernel.params:
                self.open(buffer)
            self.body(self.kernel.body)
            self.line("return")
            self.line("yield False")
        exec("\n".join(self.lines), self.objects)
        made: Program = self.objects["kernel"]
        return made

    # ------------------------------------------------------------------------------------------ text
    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        self.line(head)
        self.indent += 1
        self.line("pass")
        yield
        self.indent -= 1

    def named(self, thing: object) -> str:
        return self.names.setdefault(thing, f"n{len(self.names)}")

    def given(self, value: object) -> str:
        """The name of an object that the program uses."""
        name = f"k{len(self.objects)}"
        self.objects[name] = value
        return name

    def fresh(self, text: str) -> str:
        """A new local variable with a value."""
        name = self.named(object())
        self.line(f"{name} = {text}")
        return name

    def fails(self, message: str) -> None:
        self.line(f"fail({message!r})")

    # --------------------------------------------------------------------------------------- indices
    def integer(self, i: Index) -> str:
        terms = [str(i.const)] if i.const or not i.terms else []
        for atom, k in i.terms:
            terms.append(self.atom(atom) if k == 1 else f"{k}*{self.atom(atom)}")
        return "+".join(terms)

    def atom(self, atom: Var | Quotient) -> str:
        if isinstance(atom, Var):
            return str(self.sizes[atom]) if atom in self.sizes else self.named(atom)
        return f"{'remainder' if atom.rest else 'quotient'}({self.integer(atom.of)}, {atom.by})"

    def facts(self, facts: tuple[Index, ...]) -> str:
        return " and ".join(f"{self.integer(f)} >= 0" for f in facts) or "True"

    def range(self, var: Var) -> str:
        ends = [self.integer(b) for b in var.below]
        return ends[0] if len(ends) == 1 else f"min({', '.join(ends)})"

    # ---------------------------------------------------------------------------------------- memory
    def open(self, buffer: Buffer) -> None:
        """Local names of the arrays of a buffer, whose cells have a name."""
        name = self.named(buffer)
        self.line(f"d{name} = c{name}.data")
        self.line(f"w{name} = c{name}.written")

    def allocate(self, buffer: Buffer) -> None:
        name = self.named(buffer)
        self.shapes[buffer] = [
            text if text.isdigit() else self.fresh(text) for text in (self.integer(i) for i in buffer.shape)
        ]
        made = f"Cells({self.given(buffer)}, ({''.join(f'{e}, ' for e in self.shapes[buffer])}), None)"
        if buffer.space == "shared":
            key = f"({name!r}, {self.cluster[0] if self.cluster else None})"
            self.line(f"c{name} = shared.get({key}) or shared.setdefault({key}, {made})")
        else:
            self.line(f"c{name} = {made}")
        self.open(buffer)

    def position(self, buffer: Buffer, index: tuple[Index, ...], lanes: int, *, store: bool) -> tuple[str, str]:
        """The first and last element in memory of an access, once it is known to be inside."""
        name, count = self.named(buffer), lanes // buffer.type.lanes
        if buffer not in self.shapes:
            self.fails(f"{buffer.name} is used before its Alloc")
            return "0", "0"
        extents, where, inside = self.shapes[buffer], [], []
        for d, (i, extent) in enumerate(zip(index, extents, strict=True)):
            room = count - 1 if d == len(extents) - 1 else 0
            if not i.terms and extent.isdigit() and i.const >= 0 and i.const + room < int(extent):
                where.append(str(i.const))
                continue
            where.append(text := self.fresh(self.integer(i)) if i.terms else str(i.const))
            inside.append(f"0 <= {text} < {extent}{f'-{room}' if room else ''}")
        if inside:
            at = "".join(f"{i}, " for i in where)
            self.line(f"if not ({' and '.join(inside)}): c{name}.outside(({at}), {lanes})")
        flat = where[0] if where else "0"
        for place, extent in zip(where[1:], extents[1:], strict=True):
            flat = f"({flat})*{extent}+{place}"
        first = flat if flat.isidentifier() or flat.isdigit() else self.fresh(flat)
        last = self.fresh(f"{first}+{count}")
        if self.who != "None" and buffer.space in ("shared", "cluster", "global"):
            self.line(f"c{name}.note({first}, {last}, {self.who}, {store})")
        return first, last

    def load(self, e: Load) -> str:
        buffer, lanes = e.buffer, e.type.lanes
        name, width = self.named(buffer), buffer.type.lanes
        first, last = self.position(buffer, e.index, lanes, store=False)
        self.line(f"if w{name} is not None and w{name}.find(0, {first}, {last}) >= 0: c{name}.unwritten({first})")
        if numpy_type(buffer.type.dtype) != numpy_type(e.type.dtype) or lanes % width:
            self.fails(f"{e} is {lanes} lanes of {buffer.type}, not {e.type}")
        return self.fresh(f"d{name}[{_scaled(first, width)}:{_scaled(last, width)}].copy()")

    def store(self, s: Store) -> None:
        name, width, lanes = self.named(s.buffer), s.buffer.type.lanes, s.value.type.lanes
        value = self.value(s.value, {})
        if s.buffer.space == "const":
            self.fails(f"store to the constant {s.buffer.name}")
        if isinstance(s, AsyncCopy):
            self.copy(s, value)
            return
        first, last = self.position(s.buffer, s.index, lanes, store=True)
        self.line(f"d{name}[{_scaled(first, width)}:{_scaled(last, width)}] = {value}")
        self.line(f"if w{name} is not None: w{name}[{first}:{last}] = {bytes([1] * (lanes // width))!r}")

    def copy(self, s: AsyncCopy, value: str) -> None:
        """The elements hold nothing until the copy arrives."""
        if self.who == "None" or s.buffer.space != "shared":
            self.fails(f"a copy to {s.buffer.name}, which is no memory of a block")
            return
        who, self.who = self.who, "None"  # the access is noted when it is issued
        first, last = self.position(s.buffer, s.index, s.value.type.lanes, store=True)
        self.who = who
        self.line(f"c{self.named(s.buffer)}.issue({first}, {last}, {value}, {who})")

    # ----------------------------------------------------------------------------------- expressions
    def value(self, e: Expr, known: dict[int, str]) -> str:
        """The name of the value; ``known`` has those of this statement that are computed on every way to here."""
        if id(e) not in known:
            self.kept.append(e)
            known[id(e)] = self.compute(e, known)
        return known[id(e)]

    def compute(self, e: Expr, known: dict[int, str]) -> str:
        match e:
            case Op():
                return self.operation(e, known)
            case Load():
                return self.load(e)
            case Ref():
                return self.named(e)
            case Const():
                dtype = e.type.dtype
                value = e.value if dtype.carrier is dtype else dtype.bits(e.value)
                return self.given(np.full(e.type.lanes, value, numpy_type(dtype)))
            case Guarded():
                result = self.fresh("None")
                with self.inside(f"if {self.facts(e.facts)}:"):
                    self.line(f"{result} = {self.value(e.value, dict(known))}")
                with self.inside("else:"):
                    self.line(f"{result} = {self.value(e.other, dict(known))}")
                return result
        self.fails(f"{e} is no expression")
        return "None"

    def operation(self, e: Op, known: dict[int, str]) -> str:
        dtype, lanes = numpy_type(e.type.dtype), e.type.lanes
        if e.name not in OPERATIONS and (meaning := OPS[e.name].meaning) is not None:
            return self.checked(e, self.value(meaning(*e.args), known))
        args = [self.value(a, known) for a in e.args]
        types = [(numpy_type(a.type.dtype), a.type.lanes) for a in e.args]
        if e.name == "broadcast":
            return self.checked(e, self.fresh(f"{args[0]}.repeat({lanes})"), exact=types == [(dtype, 1)])
        if e.name == "bitcast":
            return self.checked(e, self.fresh(f"{args[0]}.view({self.given(dtype)})"))
        if e.name == "cast":
            source, target = e.args[0].type.dtype, e.type.dtype
            if _is_cast_of_integers(source, target):
                return self.checked(e, self.fresh(f"{args[0]}.astype({self.given(dtype)})"))
            function = self.given(lambda a: convert(a, source, target))
            return self.checked(e, self.fresh(f"{function}({args[0]})"))
        operands = {t for t, _ in (types[1:] if e.name == "select" else types)}
        if e.name not in MIXED and len(operands) > 1:
            self.fails(f"{e.name} of {', '.join(str(t) for t, _ in types)}")
        call = f"{self.given(OPERATIONS[e.name])}({', '.join(args)})"
        exact = e.name in EXACT and all(t == (dtype, lanes) for t in types)
        return self.checked(
            e, self.fresh(call if exact else f"{call}.astype({self.given(dtype)}, copy=False)"), exact=exact
        )

    def checked(self, e: Expr, value: str, *, exact: bool = False) -> str:
        """The name of a value that has exactly its type; ``exact`` if it has by construction."""
        if not exact:
            dtype = numpy_type(e.type.dtype)
            wrong = f"len({value}) != {e.type.lanes} or {value}.dtype != {self.given(dtype)}"
            self.line(f"if {wrong}: fail(f'{{len({value})}} lanes of {{{value}.dtype}} instead of {e.type}')")
        return value

    # ------------------------------------------------------------------------------------ statements
    def body(self, body: Sequence[Stmt]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        match s:
            case Let():
                self.line(f"{self.named(s.ref)} = {self.value(s.value, {})}")
                if (s.ref.type.lanes, numpy_type(s.ref.type.dtype)) != (
                    s.value.type.lanes,
                    numpy_type(s.value.type.dtype),
                ):
                    self.fails(f"{s.ref} of {s.ref.type} is {s.value.type}")
            case Store():
                self.store(s)
            case Prefetch():
                pass  # a prefetch may point anywhere
            case Alloc():
                self.allocate(s.buffer)
            case Outline() | Instruction():
                self.body(s.body)
            case If():
                with self.inside(f"if {self.facts(s.facts)}:"):
                    self.body(s.body)
            case Bind():
                self.bind(s)
            case Loop():
                self.loop(s)
            case Barrier():
                if self.who != "None":
                    self.line(f"{self.who}.meet(cluster={s.cluster})")
                self.line(f"yield {s.cluster}")
            case Commit():
                self.line(f"{self.who}.commit()")
            case Wait():
                self.line(f"{self.who}.wait({s.groups})")
            case _:
                self.fails(f"{s} is no statement")

    def bind(self, s: Bind) -> None:
        name, end = self.named(s.var), self.fresh(self.range(s.var))
        self.line(f"if {end} < 1: fail({f'{s.var.name} has no value: its range is empty'!r})")
        self.line(f"{name} = min(max(int({self.value(s.value, {})}[0]), 0), {end}-1)")
        self.body(s.body)

    def loop(self, s: Loop) -> None:
        name = self.named(s.var)
        if s.kind == "thread":
            self.threads(s)
            return
        if s.kind == "cluster":
            self.blocks_of_cluster(s)
            return
        count = f"range({self.range(s.var)})"
        with self.inside(f"for {name} in {count if s.kind in ('serial', 'unroll') else f'reversed({count})'}:"):
            if s.kind == "block":
                self.line("shared.clear()")
                self.block.append(name)
            self.body(s.body)
            if s.kind == "block":
                self.block.pop()

    def blocks_of_cluster(self, s: Loop) -> None:
        """A generator for each block, which pauses at barriers of the cluster."""
        name = self.named(s.var)
        self.block.append(name)
        self.cluster.append(name)
        with self.inside(f"def run{name}({name}):"):
            self.body(s.body)
            self.line("return")
            self.line("yield")
        self.line(f"yield from clustered([run{name}({name}) for {name} in reversed(range({self.range(s.var)}))])")
        self.cluster.pop()
        self.block.pop()

    def threads(self, s: Loop) -> None:
        """A generator for each thread, which pauses at barriers. Threads that have none run one after the other."""
        name, outer = self.named(s.var), self.who
        number = f"{name}" if outer == "None" else f"{outer}.thread*{s.var.below[0].const}+{name}"
        rank = self.cluster[0] if self.cluster else None
        made = f"Who(({''.join(f'{b}, ' for b in self.block)}), {number}, {rank})"
        self.who = f"who{name}"
        numbers = f"reversed(range({self.range(s.var)}))"
        if _pauses(s):
            with self.inside(f"def run{name}({name}, {self.who}):"):
                self.body(s.body)
                self.line(f"{self.who}.end()")
            self.line(f"yield from lockstep([run{name}({name}, {made}) for {name} in {numbers}])")
        else:
            with self.inside(f"for {name} in {numbers}:"):
                self.line(f"{self.who} = {made}")
                self.body(s.body)
                self.line(f"{self.who}.end()")
        self.who = outer


def _scaled(position: str, by: int) -> str:
    return position if by == 1 else f"{by}*({position})"


def _pauses(s: Stmt) -> bool:
    return isinstance(s, Barrier) or (isinstance(s, BLOCKS) and any(map(_pauses, s.body)))
