"""Parser for the text form printed by ``loop_text.show``."""

from __future__ import annotations

import json
import re

from tenon.errors import FormatError
from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import (
    OPS,
    Alloc,
    AsyncCopy,
    Barrier,
    Bind,
    Buffer,
    CallSource,
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
)
from tenon.machine.kernel_ir.text import derived_type
from tenon.network.graph.types import DType

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>-?(?:inf\b|nan\b|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+))
      | (?P<word>[A-Za-z_][\w.]*)
      | (?P<mark>//|>=|[\[\](){}:;,=<*+%-])
    )""",
    re.VERBOSE,
)
_TYPE = re.compile(r"([a-z]+\d*?)(?:x(\d+))?")


def parse(text: str) -> Kernel:
    """The kernel that a text describes.  Raises FormatError naming the line."""
    parser = _KernelParser(text)
    try:
        return parser.kernel()
    except (FormatError, ValueError, KeyError, IndexError) as error:
        raise FormatError(f"line {parser.line}: {error!r}") from error


class _KernelParser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise FormatError(f"cannot read {text[at : at + 20]!r}")
            self.tokens.append((match[0].strip(), text.count("\n", 0, match.end()) + 1))
            at = match.end()
        self.at = 0
        self.depth = 0
        self.vars: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}
        self.refs: dict[str, Ref] = {}

    # ---------------------------------------------------------------------------------------- tokens
    @property
    def line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)][1] if self.tokens else 1

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise FormatError(f"expected '{expected or 'more'}', found '{token or 'the end'}'")
        self.at += 1
        return token

    def has(self, token: str) -> bool:
        """Take the token if it comes next."""
        matches = self.peek() == token
        self.at += matches
        return matches

    # --------------------------------------------------------------------------------------- indices
    def index(self) -> Index:
        total = self.term()
        while self.has("+"):
            total = total + self.term()
        return total

    def term(self) -> Index:
        if re.fullmatch(r"-?\d+", self.peek()):
            number = int(self.take())
            return self.atom() * number if self.has("*") else Index((), number)
        return self.atom()

    def atom(self) -> Index:
        if not self.has("("):
            return Index(((self.vars[self.take()], 1),))
        of = self.index()
        rest = self.take() == "%"
        by = int(self.take())
        self.take(")")
        return Index(((Quotient(of, by, rest), 1),))

    def indices(self, close: str = "]") -> tuple[Index, ...]:
        indices = []
        while not self.has(close):
            indices.append(self.index())
            self.has(",")
        return tuple(indices)

    def facts(self) -> tuple[Index, ...]:
        facts = []
        while True:
            facts.append(self.index())
            self.take(">=")
            self.take("0")
            if not self.has(","):
                return tuple(facts)

    # ----------------------------------------------------------------------------------- declarations
    def type(self) -> Type:
        match = _TYPE.fullmatch(self.take())
        if match is None:
            raise FormatError("not a type")
        return Type(DType(match[1]), int(match[2] or 1))

    def buffer(self) -> Buffer:
        space, name = self.take(), self.take()
        self.take(":")
        type = self.type()
        self.take("[")
        self.buffers[name] = Buffer(name, type, self.indices(), space)
        return self.buffers[name]

    def var(self) -> Var:
        name = self.take()
        self.take("<")
        if self.has("min"):
            self.take("(")
            below = self.indices(")")
        else:
            below = (self.index(),)
        self.depth += 1
        self.vars[name] = Var(name, below, self.depth)
        return self.vars[name]

    # ------------------------------------------------------------------------------------ expressions
    def expr(self) -> Expr:
        token = self.peek()
        if re.match(r"-?(\d|inf\b|nan\b)", token):
            self.take()
            value = int(token) if re.fullmatch(r"-?\d+", token) else float(token)
            self.take(":")
            return Const(value, self.type())
        name = self.take()
        if name in ("True", "False"):
            self.take(":")
            return Const(name == "True", self.type())
        if name == "load":
            return self.load()
        if name == "when" and self.peek() == "(":
            return self.guarded()
        return self.operation(name) if self.peek() == "(" else self.refs[name]

    def access(self) -> tuple[Buffer, tuple[Index, ...]]:
        buffer = self.buffers[self.take()]
        self.take("[")
        return buffer, self.indices()

    def load(self) -> Expr:
        buffer, at = self.access()
        return Load(buffer, at, self.type() if self.has(":") else buffer.type)

    def guarded(self) -> Expr:
        self.take("(")
        facts = self.facts()
        self.take(";")
        value = self.expr()
        self.take(";")
        other = self.expr()
        self.take(")")
        return Guarded(facts, value, other)

    def operation(self, name: str) -> Expr:
        try:
            arity = OPS[name].arity
        except KeyError:
            raise FormatError(f"there is no operation '{name}'") from None
        self.take("(")
        args = []
        while not self.has(")"):
            args.append(self.expr())
            self.has(",")
        if len(args) != arity:
            raise FormatError(f"{name} takes {arity} arguments, not {len(args)}")
        type = self.type() if self.has(":") else derived_type(name, tuple(args))
        if type is None:
            raise FormatError(f"{name} needs a type")
        return Op(name, tuple(args), type)

    # ------------------------------------------------------------------------------------- statements
    def block(self) -> tuple[Stmt, ...]:
        self.take("{")
        body: list[Stmt] = []
        while not self.has("}"):
            body.append(self.statement())
        return tuple(body)

    def statement(self) -> Stmt:
        word = self.peek()
        if self.peek(1) == "[" and word in self.buffers:
            buffer, at = self.access()
            self.take("=")
            return Store(buffer, at, self.expr())
        self.take()
        match word:
            case "let":
                return self.let()
            case "alloc":
                return Alloc(self.buffer())
            case "prefetch":
                return Prefetch(*self.access())
            case "barrier":
                return Barrier(self.has("cluster"))
            case "copy":
                buffer, at = self.access()
                self.take("=")
                return AsyncCopy(buffer, at, self.expr())
            case "commit":
                return Commit()
            case "wait":
                return Wait(int(self.take()))
            case "for":
                kind = "serial" if self.peek(1) == "<" else self.take()
                var = self.var()
                return Loop(var, self.block(), kind)
            case "bind":
                var = self.var()
                self.take("=")
                value = self.expr()
                return Bind(var, value, self.block())
            case "if":
                facts = self.facts()
                return If(facts, self.block())
            case "outline":
                name = str(json.loads(self.take()))
                return Outline(name, self.block())
            case "instruction":
                return self.instruction()
            case "call":
                return self.call_source()
        raise FormatError(f"'{word}' does not begin a statement")

    def instruction(self) -> Instruction:
        name = str(json.loads(self.take()))
        self.take("(")
        operands: list[tuple[Buffer, tuple[Index, ...]]] = []
        while not self.has(";"):
            operands.append(self.access())
            self.has(",")
        numbers: list[int] = []
        while not self.has(")"):
            numbers.append(int(self.take()))
            self.has(",")
        return Instruction(name, tuple(operands), tuple(numbers), self.block())

    def call_source(self) -> CallSource:
        function = self.take()
        self.take("(")
        buffers: list[Buffer] = []
        numbers: list[Const] = []
        while not self.has(")"):
            if self.peek() in self.buffers:
                buffers.append(self.buffers[self.take()])
            elif isinstance(number := self.expr(), Const):
                numbers.append(number)
            else:
                raise FormatError(f"{function} takes buffers and numbers")
            self.has(",")
        return CallSource(function, str(json.loads(self.take())), tuple(buffers), tuple(numbers))

    def let(self) -> Let:
        name = self.take()
        self.take(":")
        type = self.type()
        self.take("=")
        value = self.expr()
        self.refs[name] = Ref(name, type)
        return Let(self.refs[name], value)

    def kernel(self) -> Kernel:
        self.take("kernel")
        name = self.take()
        self.take("(")
        params: list[Buffer] = []
        sizes: list[Var] = []
        while self.peek(1) == "<":
            sizes.append(self.var())
            self.has(",")
        if sizes:
            self.take(";")
        while self.peek() != ")":
            params.append(self.buffer())
            self.has(",")
        self.take(")")
        body = self.block()
        if self.peek():
            raise FormatError("text after the end of the kernel")
        return Kernel(name, tuple(params), tuple(sizes), body)
