"""The walk that every dialect shares: scopes, hoisted pointers, outlined functions, unrolling.

Addresses.  A flattened index is split by loop: the part that moves with a loop becomes a pointer declared at the
top of that loop, so that the innermost accesses read ``x_k[constant]``.  Seen from an outlined function, the part
that belongs to the caller's loops is simply a pointer parameter; equal bodies share one function.  In a language
without pointers it becomes the number of an element, accesses read ``x[x_k + constant]``, and nothing is outlined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from tenon.errors import InputError
from tenon.machine.codegen.address import Address
from tenon.machine.codegen.comments import kernel_comment, part_comment
from tenon.machine.codegen.declarations import Declarations
from tenon.machine.codegen.function import (
    CodeLine,
    Function,
    Helper,
    HelperName,
    PrintedFunction,
    Scope,
    Terms,
    helpers_in,
)
from tenon.machine.codegen.parentheses import bare, factor
from tenon.machine.kernel_ir.index import Atom, Index, Quotient, Var
from tenon.machine.kernel_ir.loops import (
    Alloc,
    Barrier,
    Bind,
    Buffer,
    CallSource,
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
)
from tenon.machine.kernel_ir.work_groups import KINDS, WorkGroups, work_groups
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.network.graph.types import DType

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "shl": "<<", "shr": ">>", "and": "&", "or": "|", "xor": "^"}
COMPARE = {"less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!="}


class Printer(Declarations, ABC):
    """Prints kernels into one translation unit.  Subclasses are dialects: mostly data."""

    names: ClassVar[dict[DType, str]]
    int_type: ClassVar[str]
    outlined: ClassVar[str]
    spaces: ClassVar[dict[str, str]] = {}  # words before a pointer's type, by space
    pointers: ClassVar[bool] = True  # whether the language has any

    def __init__(self) -> None:
        self.functions: dict[str, PrintedFunction] = {}  # by their text from the parameter list on
        self.taken: set[str] = set()
        self.helpers: dict[str, Helper] = {}  # by name; one that another calls comes before it
        self.sources: dict[str, str] = {}  # of C functions that operators bring, by their names
        self.vectors: dict[Type, str] = {}
        self.env: dict[Var, int] = {}
        self.flat: dict[int, Index] = {}
        self.kernel_name = ""
        self.line_of: WorkItems | None = None
        self.groups: WorkGroups | None = None  # of the kernel being printed
        self.items: list[tuple[Index, int]] = []  # first item and number of items of each parallel iteration around
        self.f = Function(outlined=False)
        self._print: dict[type, Callable[..., None]] = {
            Let: self.on_let,
            Store: self.on_store,
            Prefetch: self.on_prefetch,
            Alloc: self.on_alloc,
            Barrier: self.on_barrier,
            Loop: self.on_loop,
            Bind: self.on_bind,
            If: self.on_if,
            Outline: self.on_outline,
            Instruction: self.on_instruction,
            CallSource: self.on_call_source,
        }

    # ------------------------------------------------------------------------- what a dialect says
    @abstractmethod
    def load(self, t: Type, address: Address) -> str: ...

    @abstractmethod
    def stored(self, t: Type, address: Address, value: str) -> str: ...

    @abstractmethod
    def splat(self, text: str, t: Type) -> str: ...

    @abstractmethod
    def call(self, e: Op, args: list[str]) -> str: ...

    def infix(self, e: Op, a: str, b: str) -> str:
        """An operation of two operands that has a sign."""
        return f"({a} {INFIX[e.name]} {b})"

    def adds_up(self, t: Type) -> bool:
        """Whether a sum over that type may be written ``x += y``."""
        return True

    @abstractmethod
    def literal(self, e: Const) -> str: ...

    @abstractmethod
    def loop_head(self, loop: Loop) -> str: ...

    @abstractmethod
    def slice_head(self, loop: Loop, first: str, each: int) -> str:
        """The head of a loop (see ``loop_head``) over the iterations in a slice of the work items.

        ``first`` is the number of the loop's first work item; every iteration has ``each`` items.
        """

    @abstractmethod
    def slice_test(self, first: Index, each: int) -> str:
        """Whether the slice contains any of the ``each`` work items from ``first`` on."""

    @abstractmethod
    def clamp(self, value: str, t: Type, below: str) -> str:
        """``value``, an integer of type ``t``, clamped into range(below)."""

    @abstractmethod
    def on_prefetch(self, s: Prefetch) -> None:
        """Prefetching is optional: a dialect without it prints nothing."""

    @abstractmethod
    def on_barrier(self, s: Barrier) -> None: ...

    # ---------------------------------------------------------------------------------------- text
    def line(self, text: str, gives: object = None) -> None:
        """A line, which takes whatever was named while its text was made."""
        self.f.scopes[-1].lines.append(CodeLine("  " * self.f.depth + text, frozenset(self.f.taken), gives))
        self.f.taken.clear()

    @contextmanager
    def aside(self) -> Iterator[set[object]]:
        """Render a helper line; yields its uses, which are collected apart from the current line's."""
        outer, self.f.taken = self.f.taken, set()
        yield self.f.taken
        self.f.taken = outer

    def take(self, what: Ref | Var | Buffer) -> None:
        """The line being printed needs the latest copy of ``what``, if it is made in this function."""
        if what in self.f.made:
            self.f.taken.add(self.f.made[what])

    def require(self, name: str, text: Callable[[], str]) -> str:
        """The line (or the helper) being printed calls the helper function of that name; ``text`` prints it when it is
        first asked for.  Returns the name."""
        self.f.taken.add(HelperName(name))
        if name not in self.helpers:
            with self.aside() as takes:
                printed = text()
            self.helpers[name] = Helper(printed, helpers_in(takes))
        return name

    def needed_helpers(self) -> list[str]:
        """The helper functions that the functions printed so far call, and those that they call themselves: lines that
        were left out may have asked for more."""
        needed = {name for function in self.functions.values() for name in function.helpers}
        for name, helper in reversed(self.helpers.items()):
            if name in needed:
                needed |= helper.calls
        return [helper.text for name, helper in self.helpers.items() if name in needed]

    def type(self, t: Type) -> str:
        if t.lanes == 1:
            return self.names[t.dtype]
        self.vectors[t] = name = f"{t.dtype}x{t.lanes}"
        return name

    @classmethod
    def pointer_type(cls, buffer: Buffer) -> str:
        return f"{cls.space_words(buffer)}{cls.names[buffer.type.dtype]} *"

    @classmethod
    def space_words(cls, buffer: Buffer) -> str:
        """The address space and qualifiers before the type in a pointer to a buffer."""
        return f"{cls.spaces.get(buffer.space, '')}{'const ' if buffer.space == 'const' else ''}"

    def unique(self, name: str) -> str:
        """A function name not used before in this unit."""
        n, candidate = 1, name
        while candidate in self.taken:
            n += 1
            candidate = f"{name}_{n}"
        self.taken.add(candidate)
        return candidate

    # ------------------------------------------------------------------------------------- indices
    def index(self, e: Index) -> str:
        e = self.now(e)
        words = [self.term(a, k) for a, k in e.terms] + ([str(e.const)] if e.const or not e.terms else [])
        return " + ".join(words).replace("+ -", "- ")

    def term(self, atom: Atom, k: int) -> str:
        text = self.var(atom) if isinstance(atom, Var) else self.quotient(atom)
        return text if k == 1 else f"{k} * {text}"

    def quotient(self, atom: Quotient) -> str:
        """Divisions are named once, at the top of the loop that fixes them."""
        scope = self.home(atom.vars)
        if atom not in scope.quotients:
            what = f"{'mod' if atom.rest else 'div'}{atom.by}"
            name = self.f.fresh(f"{scope.var.name if scope.var else 'n'}_{what}")
            scope.quotients[atom] = name
            sign = "%" if atom.rest else "/"
            with self.aside() as takes:
                text = self.constant(self.int_type, name, f"{factor(self.index(atom.of))} {sign} {atom.by}")
                scope.head.append(CodeLine(text, frozenset(takes), name))
        self.f.taken.add(scope.quotients[atom])
        return scope.quotients[atom]

    def var(self, var: Var) -> str:
        if self.f.outlined and not any(s.var is var for s in self.f.scopes):
            self.f.vars.setdefault(var, var.name)
            self.f.taken.add(var.name)
        self.take(var)
        self.f.taken.add(var)
        return var.name

    def now(self, e: Index) -> Index:
        """``e`` in this copy of the unrolled body."""
        const, kept = e.const, []
        for atom, k in e.terms:
            if isinstance(atom, Var):
                if atom in self.env:
                    const += self.env[atom] * k
                    continue
            elif not atom.vars.isdisjoint(self.env):
                return e.subst(self.env)
            kept.append((atom, k))
        return Index(tuple(kept), const)

    # ----------------------------------------------------------------------------------- addresses
    def home(self, vars: frozenset[Var]) -> Scope:
        """The innermost open loop among ``vars``, or the function itself."""
        return next((s for s in reversed(self.f.scopes) if s.var in vars), self.f.scopes[0])

    def place(self, buffer: Buffer, idx: tuple[Index, ...]) -> Address:
        """The address of an element in memory."""
        if id(idx) not in self.flat:
            self.flat[id(idx)] = buffer.flat(idx)
        flat = self.now(self.flat[id(idx)])
        name, base = self.pointer(buffer, flat.terms, flat.const)
        array = "" if self.pointers else self.f.arrays.get(buffer, buffer.name)
        return Address(name, flat.const - base, array, self.space_words(buffer))

    def pointer(self, buffer: Buffer, terms: Terms, const: int) -> tuple[str, int]:
        scope = self.home(frozenset().union(*(a.vars for a, _ in terms)))
        key = (buffer, terms)
        if key not in scope.pointers:
            scope.pointers[key] = self.new_pointer(scope, buffer, terms, const)
        if (pointer_to := scope.pointers[key])[0] == buffer.name or not self.pointers:
            self.take(buffer)
        self.f.taken |= {pointer_to[0]} if self.pointers else {pointer_to[0], buffer.name}
        return pointer_to

    def new_pointer(self, scope: Scope, buffer: Buffer, terms: Terms, const: int) -> tuple[str, int]:
        if scope.var is None and self.f.outlined:  # the caller's part: a parameter, rebased to the first access
            parameter = self.f.pointers[buffer, terms] = self.f.fresh(buffer.name), const
            return parameter
        if not terms:
            return buffer.name if self.pointers else "", 0
        inner = tuple(t for t in terms if scope.var is None or scope.var in t[0].vars)
        outer = tuple(t for t in terms if t not in inner)
        with self.aside() as takes:
            parent, base = self.pointer(buffer, outer, const)
            name = self.f.fresh(f"{buffer.name}_{scope.var.name if scope.var else 'n'}")
            moved = f"{f'{parent} + ' if parent else ''}{self.index(Index(inner))}"
            pointed = f"{self.pointer_type(buffer)}{name} = {moved};"
            text = pointed if self.pointers else self.constant(self.int_type, name, moved)
            scope.head.append(CodeLine(text, frozenset(takes), name))
        return name, base

    def register(self, buffer: Buffer, idx: tuple[Index, ...]) -> str:
        at = [self.now(i) for i in idx]
        if any(i.terms for i in at):
            raise TypeError(f"register tile {buffer.name} is indexed by a loop that is not unrolled")
        return "_".join([buffer.name, *(str(i.const) for i in at)])

    def cell(self, buffer: Buffer, name: str) -> object:
        """A register of the latest copy of ``buffer``."""
        return self.f.made.get(buffer), name

    # -------------------------------------------------------------------------------------- values
    def value(self, e: Expr, whole: bool = True) -> str:
        """Text of ``e``; ``whole`` asks for a vector even where arithmetic would spread a scalar by itself."""
        if isinstance(e, Ref):
            self.take(e)
            return e.name
        if isinstance(e, Const):
            text = self.literal(e)
            return self.splat(text, e.type) if e.type.lanes > 1 else text
        if isinstance(e, Load):
            if e.buffer.space == "register":
                name = self.register(e.buffer, e.index)
                self.f.taken.add(self.cell(e.buffer, name))
                return name
            return self.load(e.type, self.place(e.buffer, e.index))
        if isinstance(e, Guarded):
            test = self.test(e.facts)
            if test in ("0", "1"):
                return self.value(e.value if test == "1" else e.other, whole)
            return self.conditional(test, self.exactly(e.value), self.exactly(e.other))
        assert isinstance(e, Op)
        if e.name == "broadcast":
            text = self.value(e.args[0])
            return self.splat(text, e.type) if whole else text
        if e.name in INFIX:
            return self.infix(e, self.value(e.args[0], False), self.value(e.args[1], False))
        return self.call(e, [self.value(a) for a in e.args])

    def test(self, facts: tuple[Index, ...]) -> str:
        """Whether all hold: "0" or "1" where that is known in this copy of the unrolled body."""
        now = [self.now(f) for f in facts]
        if any(not f.terms and f.const < 0 for f in now):
            return "0"
        return " && ".join(f"{self.index(f)} >= 0" for f in now if f.terms) or "1"

    def exactly(self, e: Expr) -> str:
        """Text of ``e``, of its very type: both arms of a conditional must agree."""
        return f"({self.type(e.type)})({self.value(e)})" if e.type.lanes > 1 else self.value(e)

    # ---------------------------------------------------------------------------------- statements
    def block(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            self._print[type(s)](s)

    def on_let(self, s: Let) -> None:
        text = self.constant(self.type(s.ref.type), s.ref.name, bare(self.value(s.value)))
        self.f.made[s.ref] = object()
        self.line(text, self.f.made[s.ref])

    def on_store(self, s: Store) -> None:
        if s.buffer.space != "register":
            text = self.stored(s.value.type, self.place(s.buffer, s.index), bare(self.value(s.value)))
            return self.line(text, self.f.made.get(s.buffer))
        name, v = self.register(s.buffer, s.index), s.value
        cell = self.cell(s.buffer, name)
        if isinstance(v, Op) and v.name == "add" and self.adds_up(v.type):
            first = v.args[0]
            if isinstance(first, Load) and first.buffer is s.buffer and first.index == s.index:
                return self.line(f"{name} += {bare(self.value(v.args[1], False))};", cell)
        return self.line(f"{name} = {bare(self.value(v))};", cell)

    def on_alloc(self, s: Alloc) -> None:
        b = s.buffer
        if b.space in ("shared", "cluster"):  # a parameter, which the caller has made
            return
        self.f.made[b] = object()
        if b.space == "register":
            names = [b.name]
            for extent in b.shape:
                names = [f"{c}_{i}" for c in names for i in range(extent.const)]
            self.line(self.type(b.type))
            self.f.scopes[-1].lines[-1].cells = tuple((self.cell(b, name), name) for name in names)
            return
        size = b.strides[0] * b.shape[0].const
        if not self.pointers:
            self.alloc_array(b, size)
            return
        array = CodeLine(self.array(b, size), gives=self.f.made[b])
        self.f.scopes[0].head.insert(0, array)  # before any pointer into it
        self.f.scopes[0].pointers[b, ()] = b.name, 0

    def alloc_array(self, b: Buffer, size: int) -> None:
        """An array of a function into which others are printed: several may have one name."""
        first = b not in self.f.arrays
        name = self.f.arrays.setdefault(b, self.f.fresh(b.name) if first else "")
        if first:
            self.f.scopes[0].head.insert(0, CodeLine(self.array(replace(b, name=name), size)))

    def array(self, b: Buffer, size: int) -> str:
        return f"{self.type(b.type)} {b.name}[{size}];"

    def on_if(self, s: If) -> None:
        test = self.test(s.facts)
        if test == "1":
            self.copy(s.body)
        elif test != "0":
            self.braced(f"if ({test}) {{", s.body)

    def on_outline(self, s: Outline) -> None:
        """Print the body as a function; what it takes from outside becomes its parameters."""
        if not self.pointers:
            self.braced("{", s.body)
            return
        caller, self.f = self.f, Function(outlined=True)
        text = self.body(s.body)
        inner, self.f = self.f, caller
        head = [f"{self.int_type} {name}" for name in inner.vars.values() if name in inner.needed]
        args = [self.var(var) for var, name in inner.vars.items() if name in inner.needed]
        for (buffer, terms), (name, base) in inner.pointers.items():
            if name not in inner.needed:
                continue
            head.append(f"{self.pointer_type(buffer)}{name}")
            pointer, at = self.pointer(buffer, terms, base)
            args.append(f"{pointer} + {base - at}" if base != at else pointer)
        text = f"({', '.join(head)}) {{\n{text}\n}}\n"
        if text not in self.functions:
            name = self.unique(f"{self.kernel_name}_{s.name}")
            comment = part_comment(self.kernel_name, s.about or s.name)
            self.functions[text] = PrintedFunction(name, text, comment, tuple(inner.calls), helpers_in(inner.needed))
        name = self.functions[text].name
        self.f.calls[name] = None
        self.line(f"{name}({', '.join(args)});")

    def on_instruction(self, s: Instruction) -> None:
        """As its body, where a dialect knows no better."""
        self.block(s.body)

    def on_call_source(self, s: CallSource) -> None:
        """The source is a helper of the unit, printed once."""
        if not self.pointers:
            raise TypeError(f"the C function {s.function} takes pointers, which this language has not")
        if self.sources.setdefault(s.function, s.source) != s.source:
            raise InputError(f"two operators define a C function '{s.function}': rename it in one of them")
        self.require(s.source, lambda: s.source)
        operands = [self.pointer(b, (), 0)[0] for b in s.buffers] + [self.literal(n) for n in s.numbers]
        self.line(f"{s.function}({', '.join(operands)});")

    def on_loop(self, s: Loop) -> None:
        if s.kind == "unroll":
            self.unrolled(s)
            return
        if s.kind in KINDS:
            self.launched(s)
            return
        sliced = self.line_of if s.kind == "parallel" else None
        once = self.at_most_once(s)
        if sliced:
            first, each = self.now(sliced.first[s.var]), sliced.each[s.var]
            self.items.append((first if once else first + Index(((s.var, each),)), each))
        if once:
            self.once(s)
        else:
            self.line(self.slice_head(s, self.index(first), each) if sliced else self.loop_head(s))
            self.inside(s.var, s.body)
        if sliced:
            self.items.pop()

    def launched(self, s: Loop) -> None:
        """A loop over blocks or threads: its variable follows from the number of the block, or of the thread in it."""
        assert self.groups is not None
        step, extent = self.groups.place(s.var)
        if extent == 1:
            self.env[s.var] = 0
            self.block(s.body)
            return
        outermost = s.var in (*self.groups.blocks[:1], *self.groups.threads[:1])
        kind = "thread" if s.kind == "thread" else "block"
        value = f"{kind}_number{f' / {step}' if step > 1 else ''}{'' if outermost else f' % {extent}'}"
        self.line("{")
        self.f.made[s.var] = object()
        self.line(f"  {self.constant(self.int_type, s.var.name, value)}", self.f.made[s.var])
        self.inside(s.var, s.body)

    def at_most_once(self, s: Loop) -> bool:
        """Whether a loop that is not unrolled has no second iteration."""
        return min(self.now(b).span()[1] for b in s.var.below) <= 1

    def once(self, s: Loop) -> None:
        """Print the only iteration of a loop without a loop, under a test where it may not run."""
        bounds = [self.now(b) for b in s.var.below]
        if any(not b.terms and b.const < 1 for b in bounds):
            return
        tests = [f"{self.index(b)} > 0" for b in bounds if b.terms]
        if self.line_of and s.kind == "parallel" and self.items[-1] not in self.items[-2:-1]:
            tests.append(self.slice_test(*self.items[-1]))
        self.env[s.var] = 0
        if tests:
            self.braced(f"if ({' && '.join(tests)}) {{", s.body)
        else:
            self.block(s.body)
        del self.env[s.var]

    def on_bind(self, s: Bind) -> None:
        value = self.clamp(self.value(s.value), s.value.type, self.bound(s.var))
        text, takes = f"  {self.constant(self.int_type, s.var.name, value)}", frozenset(self.f.taken)
        self.f.taken.clear()
        self.line("{")
        self.f.made[s.var] = object()
        self.f.taken |= takes
        self.line(text, self.f.made[s.var])
        self.inside(s.var, s.body)

    def inside(self, var: Var, body: tuple[Stmt, ...]) -> None:
        """The rest of a block that fixes ``var``: pointers that move with it on top."""
        self.f.depth += 1
        self.f.scopes.append(Scope(var))
        self.block(body)
        inner = self.f.scopes.pop()
        for pointer in inner.head:
            pointer.text = "  " * self.f.depth + pointer.text
        self.f.scopes[-1].lines += inner.head + inner.lines
        self.f.depth -= 1
        self.line("}")

    def unrolled(self, s: Loop) -> None:
        copies = s.var.below[0].const
        for i in range(copies):
            self.env[s.var] = i
            if copies > 1:
                self.copy(s.body)
            else:
                self.block(s.body)
        self.env.pop(s.var, None)

    def copy(self, body: tuple[Stmt, ...]) -> None:
        """Print a block that may be printed several times in one scope: in braces if it names anything."""
        if self.declares(body):
            self.braced("{", body)
        else:
            self.block(body)

    def declares(self, body: tuple[Stmt, ...]) -> bool:
        """Whether a block names anything outside of braces of its own."""
        return any(
            isinstance(s, Let | Alloc)
            or (isinstance(s, Loop) and self.plain(s) and self.declares(s.body))
            or (isinstance(s, Instruction) and self.declares(s.body))
            for s in body
        )

    def plain(self, s: Loop) -> bool:
        """Whether a loop is printed as its body alone."""
        return s.var.below[0] == Index((), 1) if s.kind == "unroll" else self.at_most_once(s)

    def braced(self, head: str, body: tuple[Stmt, ...]) -> None:
        self.line(head)
        self.f.depth += 1
        self.block(body)
        self.f.depth -= 1
        self.line("}")

    def bound(self, var: Var) -> str:
        """The least of the bounds of a variable; a constant that another bound never exceeds is left out."""
        most = min((b.span()[1] for b in var.below if b.terms), default=None)
        text, *words = (self.index(b) for b in var.below if b.terms or most is None or b.const < most)
        for word in words:
            text = self.conditional(f"{text} < {word}", text, word)
        return text

    # -------------------------------------------------------------------------------------- kernels
    def body(self, body: tuple[Stmt, ...]) -> str:
        """The text inside the function that ``self.f`` is: pointers on top, nothing that is not needed."""
        self.block(body)
        top = self.f.scopes[0]
        for pointer in top.head:
            pointer.text = "  " + pointer.text
        return "\n".join(self.f.kept(top.head + top.lines))

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        """Print a kernel, unless an equal one is there already; returns the function's name.

        With ``slices`` the function takes two more arguments, ``slice_from`` and ``slice_to``: the work items to run.
        The function of a launch of work groups takes the memory that a block shares, in the order of
        ``WorkGroups.shared``, and then ``block_number`` and ``thread_number``.
        """
        name = self.kernel_name = self.unique(k.name)
        self.f, self.env, self.flat, self.line_of = Function(outlined=False), {}, {}, slices
        self.items, self.groups = [], work_groups(k)
        shared = self.groups.shared if self.groups else ()
        text = self.body(k.body)
        needed = self.f.needed
        given = [(b.name, b.name in needed) for b in (*k.params, *shared)] + [(v.name, v in needed) for v in k.sizes]
        unused = "".join(self.unused(name) for name, used in given if not used)
        integers = [v.name for v in k.sizes] + (["slice_from", "slice_to"] if slices else [])
        integers += ["block_number", "thread_number"] if self.groups else []
        params = [self.parameter(b.name, self.pointer_type(b)) for b in (*k.params, *(shared if self.pointers else ()))]
        params += [self.parameter(name, f"{self.int_type} ") for name in integers]
        text = f"({', '.join(params)}) {{\n{unused}{text}\n}}\n"
        if text in self.functions:
            self.taken.discard(name)
        else:
            self.functions[text] = PrintedFunction(
                name, text, kernel_comment(k), tuple(self.f.calls), helpers_in(self.f.needed)
            )
        return self.functions[text].name
