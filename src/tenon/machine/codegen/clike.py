"""The common part of C's family of languages: literals, casts, loops, integers that wrap around, slices of work
items.  Scalars only; a dialect with vectors adds them.

Operations without a sign of their own are calls of helper functions, printed once per type that needs them.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import ClassVar

from tenon.machine import isa
from tenon.machine.codegen.address import Address
from tenon.machine.codegen.float_literals import float_literal
from tenon.machine.codegen.parentheses import bare, factor
from tenon.machine.codegen.printer import COMPARE, INFIX, Printer
from tenon.machine.codegen.scalar_functions import BODIES, INTEGER_ABS, TAKES, WHOLE, ZERO_SAFE
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import OPS, AsyncCopy, Commit, Const, Expr, Loop, Op, Prefetch, Ref, Type, Wait
from tenon.network.graph.types import DType

_RANK = {"add": 0, "sub": 0, "mul": 1, "div": 1}
"""How tightly float operations bind: an operand on the left needs parentheses below that rank, on the right at it."""
_UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
_SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}


Makers = Mapping[str, Callable[[], object]]


class TemplateWords(dict[str, object]):
    """The words of a template, each made when it is first used."""

    def __init__(self, makers: Makers) -> None:
        self.makers = makers

    def __missing__(self, word: str) -> object:
        self[word] = self.makers[word]()
        return self[word]


class CLike(Printer):
    """One translation unit of a language like C.

    ``loop_word`` stands before every loop, ``inline`` before a helper function, ``builtin`` before the name of a
    function of floats.  ``bodies`` and ``takes`` are the helper functions of scalars (``scalar_functions``).
    """

    names: ClassVar[dict[DType, str]] = {
        DType.F32: "float",
        DType.F64: "double",
        DType.F16: "uint16_t",
        DType.BOOL: "uint8_t",
        DType.Q8: "int32_t",
        DType.I64: "int64_t",
        DType.I32: "int32_t",
        DType.I16: "int16_t",
        DType.I8: "int8_t",
        DType.U64: "uint64_t",
        DType.U32: "uint32_t",
        DType.U16: "uint16_t",
        DType.U8: "uint8_t",
        DType.BF16: "uint16_t",
        DType.B2: "int32_t",
        DType.F8E4M3: "uint8_t",
        DType.F8E4M3U: "uint8_t",
        DType.F8E5M2: "uint8_t",
        DType.F8E5M2U: "uint8_t",
        DType.F8E8M0: "uint8_t",
        DType.F4E2M1: "uint8_t",
        DType.I4: "uint8_t",
        DType.U4: "uint8_t",
        DType.I2: "uint8_t",
        DType.U2: "uint8_t",
    }
    int_type = "intptr_t"
    loop_word: ClassVar[str] = ""
    inline: ClassVar[str] = "static inline "
    builtin: ClassVar[str] = ""
    reserved: ClassVar[tuple[str, ...]] = ()
    """Words of the language, but not of C, that mean nothing in what is printed behind the helper functions."""
    typed_functions: ClassVar[bool] = True
    """Whether functions of floats have a name of their own for each type."""
    bodies: ClassVar[Mapping[str, str]] = BODIES
    takes: ClassVar[Mapping[str, str]] = TAKES
    integer_suffixes: ClassVar[Mapping[DType, str]] = {DType.I64: "LL", DType.U64: "ULL", DType.U32: "u"}
    not_computed: ClassVar[frozenset[str]] = frozenset({"cast", "bitcast", "broadcast", "select"})
    """Operations that take narrow floats as bits."""

    def __init__(self) -> None:
        super().__init__()
        self._print |= {AsyncCopy: self.on_copy, Commit: self.on_commit, Wait: self.on_wait}

    # ------------------------------------------------------------------------------------ memory
    def load(self, t: Type, address: Address) -> str:
        no_vector(t)
        return address.element

    def stored(self, t: Type, address: Address, value: str) -> str:
        no_vector(t)
        return f"{address.element} = {value};"

    def splat(self, text: str, t: Type) -> str:
        raise TypeError(f"{t}: this language has no vectors")

    def type(self, t: Type) -> str:
        no_vector(t)
        return super().type(t)

    def on_copy(self, s: AsyncCopy) -> None:
        """An asynchronous copy: where the language has none, a load and a store at once."""
        self.on_store(s)

    def on_commit(self, s: Commit) -> None:
        """The end of a group of copies: nothing where they are stores."""

    def on_wait(self, s: Wait) -> None:
        """A wait for copies: nothing where they are stores."""

    # ---------------------------------------------------------------------------------- literals
    def literal(self, e: Const) -> str:
        dtype = e.type.dtype
        if dtype is DType.F16:
            return str(int.from_bytes(struct.pack("<e", e.value), "little"))
        if dtype.carrier is not dtype:
            return str(dtype.bits(e.value))
        if not dtype.is_float:
            return self.integer(int(e.value), dtype)
        if not math.isfinite(e.value):
            return self.not_finite(e)
        return float_literal(float(e.value), self.suffix(dtype))

    def integer(self, value: int, dtype: DType) -> str:
        """A literal of that integer type; the least numbers have none of their own."""
        suffix = self.integer_suffixes.get(dtype, "")
        return f"({value + 1}{suffix} - 1)" if value in (-(2**31), -(2**63)) else f"{value}{suffix}"

    def not_finite(self, e: Const) -> str:
        """NaN or infinity, by its bits."""
        dtype = e.type.dtype
        wide = dtype.bytes == 8
        suffix = self.integer_suffixes[DType.U64 if wide else DType.U32]
        value = int.from_bytes(struct.pack("<d" if wide else "<f", e.value), "little")
        return f"{self.bits(Type(DType.U64 if wide else DType.U32), e.type)}({value:#x}{suffix})"

    @staticmethod
    def suffix(dtype: DType) -> str:
        """The suffix of the literals of a float type."""
        return "" if dtype is DType.F64 else "f"

    # ---------------------------------------------------------------------------------- operations
    def infix(self, e: Op, a: str, b: str) -> str:
        """Integers wrap around: what is too wide for the language's int is done without a sign, then cut."""
        t, sign = e.type, INFIX[e.name]
        computable(e.args[0].type)
        if t.dtype.is_float and e.name in _RANK:
            return f"({_loose(e, 0, a)} {sign} {_loose(e, 1, b)})"
        if t.dtype.is_float or (t.lanes == 1 and e.name in ("and", "or", "xor")):
            return f"({a} {sign} {b})"
        if e.name == "div":
            if safe(e.args[1]):
                return f"({a} / {b})"
            return f"{self.helper('div', t)}({bare(self.value(e.args[0]))}, {bare(self.value(e.args[1]))})"
        return self.integer_infix(e, a, b)

    def integer_infix(self, e: Op, a: str, b: str) -> str:
        """Sums, products and shifts of integers."""
        t, sign = e.type, INFIX[e.name]
        if e.name == "shr" or t.dtype in (DType.U32, DType.U64, DType.Q8):
            return f"({a} {sign} {b})"
        wide = self.wide(t)
        right = b if e.name == "shl" else f"({wide}){b}"
        return f"({self.names[t.dtype]})(({wide}){a} {sign} {right})"

    def wide(self, t: Type) -> str:
        """The type without a sign in which integers of a type are computed, so that they wrap around."""
        return self.names[DType.U64 if t.dtype.bytes == 8 else DType.U32]

    def adds_up(self, t: Type) -> bool:
        return not t.dtype.is_signed

    def call(self, e: Op, args: list[str]) -> str:
        t, source = self.type(e.type), e.args[0].type
        if e.name == "neg":
            return f"(-{args[0]})" if e.type.dtype.is_float else f"({t})(0 - ({self.wide(e.type)}){args[0]})"
        if e.name not in self.not_computed and OPS[e.name].computes:
            computable(source)
        if e.name in COMPARE:
            return f"(-({t})({args[0]} {COMPARE[e.name]} {args[1]}))"
        if e.name == "mod" and safe(e.args[1]):
            return f"({args[0]} % {args[1]})"
        if e.name == "cast":
            narrow = {source.dtype, e.type.dtype} & {DType.F16, DType.BF16}
            return f"{self.conversion(source, e.type)}({bare(args[0])})" if narrow else f"({t}){args[0]}"
        if e.name == "bitcast":
            return f"{self.bits(source, e.type)}({bare(args[0])})"
        over = e.args[1].type if e.name == "select" else source
        return f"{self.helper(e.name, over)}({', '.join(map(bare, args))})"

    def bits(self, source: Type, target: Type) -> str:
        """The function that gives the bits of a value as another type."""
        a, b = self.type(source), self.type(target)
        name = f"bits_{source}_{target}"
        helper = f"{self.inline}{b} {name}({a} a) {{\n  union {{ {a} a; {b} b; }} u;\n  u.a = a;\n  return u.b;\n}}"
        return self.require(name, lambda: helper)

    def conversion(self, source: Type, target: Type) -> str:
        """The function that turns a float of 16 bits into an f32, or back."""
        raise TypeError(f"{source} as {target}: this language has no such conversion")

    # ----------------------------------------------------------------------------- helper functions
    def helper(self, name: str, t: Type) -> str:
        """The helper function of an operation over a type."""
        key = f"{name}_{t.dtype}x{t.lanes}" if t.lanes > 1 else f"{name}_{t.dtype}"
        return self.require(key, lambda: self.operation(key, name, t))

    def operation(self, key: str, name: str, t: Type) -> str:
        """The text of an operation's helper function."""
        return self.function(key, name, t, self.words(name, t))

    def function(self, key: str, name: str, t: Type, words: Makers) -> str:
        """The same with ``words`` in its template."""
        row = isa.portable(name)
        if name not in self.takes and row is None:
            raise TypeError(f"{name} of {t}: this language has no such operation")
        takes, gives = (row.takes, row.gives) if row else (self.takes[name], self.result(name))
        template = f"{self.signature(key, takes, gives)} {{{{\n{self.helper_body(name, t)}\n}}}}"
        return template.format_map(TemplateWords(words))

    def signature(self, name: str, takes: str, gives: str) -> str:
        """The head of a helper function with the parameters ``takes`` that returns a ``gives``."""
        return f"{self.inline}{gives} {name}({takes})"

    def result(self, name: str) -> str:
        """The type of what the helper function of an operation of no instruction set returns."""
        return "{V}"

    def words(self, name: str, t: Type) -> Makers:
        """The substitutes of the words in braces of a helper function (``isa.base``), each made where it is used."""
        return {
            "V": lambda: self.type(t),
            "I": lambda: self.type(self.signed(t)),
            "U": lambda: self.unsigned(t),
            "E": lambda: self.names[t.dtype],
            "L": lambda: self.names[DType.I64],
            "N": lambda: t.lanes,
            "S": lambda: self.suffix(t.dtype) if self.typed_functions else "",
            "whole": lambda: WHOLE.get(t.dtype, "0"),
            "builtin": lambda: self.builtin,
        }

    @staticmethod
    def signed(t: Type) -> Type:
        """As many signed integers of the same width."""
        return Type(_SIGNED[t.dtype.bytes], t.lanes)

    def unsigned(self, t: Type) -> str:
        """The type of as many unsigned integers of the same width."""
        return self.type(Type(_UNSIGNED[t.dtype.bytes], t.lanes))

    def helper_body(self, name: str, t: Type) -> str:
        """The lines of a helper function."""
        return self.division(name, t) if name in ZERO_SAFE else "  " + self.portable(name, t)

    def portable(self, name: str, t: Type) -> str:
        """The body of a helper function in plain words of the language."""
        if name == "abs" and not t.dtype.is_float:
            return INTEGER_ABS.replace("{wide}", self.wide(t))
        row = isa.portable(name)
        if row is None:
            return self.bodies[name]
        return (row.scalar if t.lanes == 1 else row.vector) or self.by_meaning(name, t, row)

    def by_meaning(self, name: str, t: Type, row: isa.Portable) -> str:
        """The body as other operations of the loop IR."""
        meaning = OPS[name].meaning
        assert meaning is not None, f"{name} has neither a body nor a meaning"
        operands = [Ref(parameter.split()[-1], t) for parameter in row.takes.split(",")]
        value = bare(self.value(meaning(*operands)))
        return f"return {value.replace('{', '{{').replace('}', '}}')};"

    def division(self, name: str, t: Type) -> str:
        """Division of integers by what may be zero: the result is zero then, and nothing overflows."""
        minus = f"b == -1 ? ({{E}})(0 - ({self.wide(t)})a) : " if t.dtype.is_signed else ""
        rest = "b == -1 ? 0 : " if t.dtype.is_signed else ""
        return "  " + ZERO_SAFE[name].replace("{minus}", minus).replace("{minus_rest}", rest)

    # --------------------------------------------------------------------------------- statements
    def loop_head(self, loop: Loop) -> str:
        v, begin, end = loop.var.name, "", self.bound(loop.var)
        if len(loop.var.below) > 1:  # what GCC can annotate compares with a number or a variable
            begin, end = f", {v}_end = {bare(end)}", f"{v}_end"
        return f"{self.loop_word}for ({self.int_type} {v} = 0{begin}; {v} < {end}; {v}++) {{"

    def slice_head(self, loop: Loop, first: str, each: int) -> str:
        first_name, end_name = (f"{self.inline}{self.int_type} slice_{name}" for name in ("first", "end"))
        bounds = (
            f"{first_name}({self.int_type} from, {self.int_type} each) {{ return from > 0 ? from / each : 0; }}\n"
            f"{end_name}({self.int_type} to, {self.int_type} each, {self.int_type} count) {{\n"
            f"  const {self.int_type} end = (to + each - 1) / each;\n"
            "  return end < count ? end : count;\n}"
        )
        self.require("slice", lambda: bounds)
        v, start = loop.var.name, "" if first == "0" else f" - {factor(first)}"
        begin = f"slice_first(slice_from{start}, {each})"
        end = f"slice_end(slice_to{start}, {each}, {self.bound(loop.var)})"
        return f"{self.loop_word}for ({self.int_type} {v} = {begin}, {v}_end = {end}; {v} < {v}_end; {v}++) {{"

    def slice_test(self, first: Index, each: int) -> str:
        return f"slice_from < {self.index(first + each)} && slice_to > {self.index(first)}"

    def clamp(self, value: str, t: Type, below: str) -> str:
        helper = (
            f"{self.inline}{self.int_type} clamp_index({self.names[DType.I64]} v, {self.int_type} below) {{\n"
            f"  return v < 0 ? 0 : v < below ? ({self.int_type})v : below - 1;\n}}"
        )
        return f"{self.require('clamp_index', lambda: helper)}({bare(value)}, {below})"

    def on_prefetch(self, s: Prefetch) -> None:
        """There is none."""

    # ---------------------------------------------------------------------------------------- text
    def head(self) -> str:
        """The text before the functions printed so far: types, helpers, and other names for those kernels and values
        that are called by a word of the language."""
        body = self.printed_functions()
        words = [word for word in self.reserved if re.search(rf"\b{word}\b", body)]
        return "\n".join([*self.needed_helpers(), "".join(f"#define {word} {word}_\n" for word in words)])

    def printed_functions(self) -> str:
        """The functions printed so far, without types and helpers."""
        return "\n".join(f"{f.comment}{self.outlined}{f.name}{f.text}" for f in self.functions.values())

    def text(self) -> str:
        """Everything printed so far: types, helpers, functions."""
        return f"{self.head()}\n{self.printed_functions()}" if self.functions else self.head()


def no_vector(t: Type) -> None:
    """Raises TypeError for several elements at once, which a dialect that has them prints itself."""
    if t.lanes > 1:
        raise TypeError(f"{t}: this language has no vectors")


def computable(t: Type) -> None:
    """Raises TypeError for floats of 16 bits, which these languages have the bits of."""
    if t.dtype in (DType.F16, DType.BF16):
        raise TypeError(f"arithmetic of {t}, which are bits in C: cast them to f32")


def safe(divisor: Expr) -> bool:
    """Whether nothing can go wrong in a division by it."""
    while isinstance(divisor, Op) and divisor.name == "broadcast":
        divisor = divisor.args[0]
    return isinstance(divisor, Const) and divisor.value not in (0, -1)


def _loose(e: Op, i: int, text: str) -> str:
    """An operand of float arithmetic, without the parentheses that its operation's rank makes needless."""
    arg = e.args[i]
    while isinstance(arg, Op) and arg.name == "broadcast":
        arg = arg.args[0]
    if isinstance(arg, Op) and arg.name in _RANK and _RANK[arg.name] >= _RANK[e.name] + i:
        return bare(text)
    return text
