"""C99 with GCC/Clang vector extensions: any CPU, one lane being plain C.

Helpers are printed once per type that needs them: a native spelling first where there is one, then a portable
body that any compiler takes.  No intrinsics headers, no libm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from tenon.machine import isa
from tenon.machine.codegen.address import Address
from tenon.machine.codegen.c import conversions, half
from tenon.machine.codegen.c.alternatives import first_of
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.file_head import EXACT, HEAD, NEEDS_GNU, for_any_compiler
from tenon.machine.codegen.clike import Makers, computable
from tenon.machine.codegen.float_literals import float_literal
from tenon.machine.codegen.function import CodeLine
from tenon.machine.codegen.parentheses import bare
from tenon.machine.codegen.printer import COMPARE, INFIX
from tenon.machine.codegen.scalar_functions import BODIES, ZERO_SAFE
from tenon.machine.kernel_ir.loops import Buffer, Const, Expr, Instruction, Load, Op, Prefetch, Type
from tenon.network.graph.types import DType

# V: the vector, I: its signed integer twin, E: the element, N: lanes, B: bits of an element, S: suffix of builtins
_SELECT = "return ({V})((({I})a & m) | (({I})b & ~m));"
_FLOOR = (
    "const {V} t = __builtin_convertvector(__builtin_convertvector(a, {I}), {V});\n"
    "  const {I} up = ({I})(t > a);\n"
    "  const {V} f = t + __builtin_convertvector(up, {V});\n"
    "  const {I} big = ~({I})(({V})(({I})a & {magnitude}) < {whole});\n"
    "  return ({V})((({I})a & big) | (({I})f & ~big));"
)
PORTABLE = {
    "max": "const {I} m = ({I})(a > b); " + _SELECT,
    "min": "const {I} m = ({I})(a < b); " + _SELECT,
    "select": _SELECT,
    "abs": "return ({V})(({I})a & {magnitude});",
    "sqrt": "{V} r = a; for (int i = 0; i < {N}; i++) r[i] = __builtin_sqrt{S}(a[i]); return r;",
    "floor": _FLOOR,
    "ceil": "a = -a;\n  " + _FLOOR.replace("return ({V})", "return -({V})"),
    "trunc": (
        "const {V} t = __builtin_convertvector(__builtin_convertvector(a, {I}), {V});\n"
        "  const {I} big = ~({I})(({V})(({I})a & {magnitude}) < {whole});\n"
        "  return ({V})((({I})a & big) | (({I})t & ~big));"
    ),
    "round": (
        "const {I} sign = ({I})a & ~{magnitude};\n"
        "  const {V} p = ({V})(({I})a & {magnitude}), r = (p + {whole}) - {whole};\n"
        "  const {I} big = ({I})(p >= {whole});\n"
        "  return ({V})(sign | (({I})p & big) | (({I})r & ~big));"
    ),
    "reduce_add": "{tree} return v[0];",
    "reduce_max": "{tree} return v[0];",
    "reduce_min": "{tree} return v[0];",
    "mul_rounded": BODIES["mul_rounded"],
    "sqrdmulh": (
        "return __builtin_convertvector((__builtin_convertvector(a, {W}) * __builtin_convertvector(b, {W})"
        " + (1 << 30)) >> 31, {V});"
    ),
}
_INT_ABS = "const {U} m = ({U})(a < 0); return ({V})((({U})a ^ m) - m);"
_CLANG = {"max": "max", "min": "min", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
_ZEROS = {"0", "0u", "0LL", "0ULL", "0.0", "0.0f"}
_MAGNITUDE = {1: "0x7f", 2: "0x7fff", 4: "0x7fffffff", 8: "0x7fffffffffffffffLL"}


class C(C99):
    """One translation unit of GNU C."""

    builtin = "__builtin_"
    in_portable_form = False
    """Whether what is being printed has another form."""
    has_assembly = False
    """Whether anything has two forms: a compiler that takes one of them may need no helper of the other."""
    takes: ClassVar[Mapping[str, str]] = {
        **C99.takes,
        **dict.fromkeys(("reduce_add", "reduce_max", "reduce_min"), "{V} v"),
    }
    first_of = staticmethod(first_of)

    def type(self, t: Type) -> str:
        if t.lanes == 1:
            return super().type(t)
        dtype = {DType.Q8: DType.I32, DType.B2: DType.I32, DType.BOOL: DType.U8}.get(t.dtype, t.dtype)
        self.vectors[Type(dtype, t.lanes)] = name = f"{dtype}x{t.lanes}"
        return name

    def load(self, t: Type, address: Address) -> str:
        if t.lanes == 1:
            return super().load(t, address)
        return f"*(const {self.type(t)}_at *){address.pointer}"

    def stored(self, t: Type, address: Address, value: str) -> str:
        if t.lanes == 1:
            return super().stored(t, address, value)
        return f"*({self.type(t)}_at *){address.pointer} = {value};"

    def splat(self, text: str, t: Type) -> str:
        over = self.type(t)
        if text in _ZEROS:
            return f"({over}){{0}}"
        key = f"splat_{over}"
        helper = (
            f"{self.inline}{over} {key}({self.names[t.dtype]} a) {{\n"
            f"  return a - ({over}){{0}}; /* unlike a + 0, it keeps the sign of -0 */\n}}"
        )
        return f"{self.require(key, lambda: helper)}({bare(text)})"

    def not_finite(self, e: Const) -> str:
        return float_literal(float(e.value), self.suffix(e.type.dtype))

    def integer_infix(self, e: Op, a: str, b: str) -> str:
        return self.lanes_infix(e, a, b) if e.type.lanes > 1 else super().integer_infix(e, a, b)

    def lanes_infix(self, e: Op, a: str, b: str) -> str:
        """Signed lanes are computed as their unsigned twins, to wrap around; a scalar spreads by itself."""
        t = e.type
        wraps = t.dtype.is_signed and e.name in ("add", "sub", "mul", "shl")

        def operand(arg: Expr, text: str) -> str:
            spread = isinstance(arg, Op) and arg.name == "broadcast"
            of = Type(t.dtype, 1 if spread else t.lanes)
            if wraps:
                return f"({self.unsigned(of)}){text}"
            return f"({self.type(of)}){text}" if spread and _promoted(t) else text

        text = f"({operand(e.args[0], a)} {INFIX[e.name]} {operand(e.args[1], b)})"
        return f"({self.type(t)}){text}" if wraps else text

    def call(self, e: Op, args: list[str]) -> str:
        if e.name == "vector4":
            return f"({self.type(e.type)}){{{', '.join(map(bare, args))}}}"
        if e.name.startswith("lane"):
            return f"{args[0]}[{e.name[-1]}]"
        if e.name == "interleave4":
            return f"{self.interleaved(e.args[0].type, e.type)}({bare(args[0])})"
        if e.name in ("evens", "odds"):
            return f"{self.every_other(e)}({', '.join(map(bare, args))})"
        if e.name.startswith("lookup"):
            return f"{self.looked_up(e)}({', '.join(map(bare, args))})"
        if e.name == "bitcast" and e.type == Type(DType.I32) and (memory := self.word_in_memory(e.args[0])):
            return memory
        return (self.lanes_call(e, args) if e.type.lanes > 1 else "") or super().call(e, args)

    def lanes_call(self, e: Op, args: list[str]) -> str:
        """The text of an operation on vectors that needs no helper function; empty where it needs one."""
        t, source = self.type(e.type), e.args[0].type
        if e.name == "neg" and not e.type.dtype.is_float:
            return f"({t})(-({self.unsigned(e.type)}){args[0]})"
        if e.name in COMPARE:
            computable(source)
            return f"({t})({args[0]} {COMPARE[e.name]} {args[1]})"
        if e.name == "cast" and not {source.dtype, e.type.dtype} & {DType.F16, DType.BF16}:
            return self.converted(bare(args[0]), source, e.type)
        return f"(({t}){args[0]})" if e.name == "bitcast" else ""

    def converted(self, value: str, source: Type, target: Type) -> str:
        """A vector in another type."""
        if not (conversions.slow(source, target) or conversions.native(source, target)):
            return f"__builtin_convertvector({value}, {self.type(target)})"
        key = f"convert_{source}_{target}"
        self.has_assembly = True
        return f"{self.require(key, lambda: self.vector_conversion(key, source, target))}({value})"

    def vector_conversion(self, key: str, source: Type, target: Type) -> str:
        """The text of the function that converts such vectors."""
        a, b = self.type(source), self.type(target)
        plain = f"return __builtin_convertvector(a, {b});"
        middle, native = conversions.middle(source, target), conversions.native(source, target)
        rest = plain
        if conversions.slow(source, target):
            rest = f"return {self.converted(self.converted('a', source, middle), middle, target)};"
        bodies = [("defined(__clang__)", plain), *((test, body.format(A=a, B=b)) for test, body in native)]
        return f"TENON_INLINE {b} {key}({a} a) {{\n{self.first_of(bodies, rest)}\n}}"

    def word_in_memory(self, e: Expr) -> str:
        """A word of narrow elements that is loaded as such: compilers may load each to a lane of its own."""
        if not isinstance(e, Load) or e.buffer.space == "register" or e.type.lanes == 1:
            return ""
        word = "typedef int32_t word_at __attribute__((aligned(1), may_alias));"
        return f"*(const {self.require('word_at', lambda: word)} *){self.place(e.buffer, e.index).pointer}"

    def interleaved(self, source: Type, target: Type) -> str:
        a, b = self.type(source), self.type(target)
        order = ", ".join(str(i // 4 + i % 4 * target.lanes) for i in range(source.lanes))
        name = f"interleave4_{source}"
        body = f"  return ({b})__builtin_shufflevector(a, a, {order});"
        if source.lanes == 16:
            zipped = conversions.ZIPPED_TWICE.format(a=a, b=b)
            halves = conversions.HALVES_ZIPPED.format(a=a, b=b)
            body = (
                f"#if defined(__ARM_NEON) && !defined(__aarch64__)\n{zipped}\n"
                "#elif defined(__SSE2__) && !defined(__SSSE3__) && !defined(__clang__)\n"
                f"{halves}\n#else\n{body}\n#endif"
            )
        return self.require(name, lambda: f"TENON_INLINE {b} {name}({a} a) {{\n{body}\n}}")

    def every_other(self, e: Op) -> str:
        """The function that takes the lanes of even or odd number of two vectors."""
        t, name = self.type(e.type), f"{e.name}_{e.type}"
        order = ", ".join(str(2 * i + (e.name == "odds")) for i in range(e.type.lanes))
        body = f"  return __builtin_shufflevector(a, b, {order});"
        return self.require(name, lambda: f"TENON_INLINE {t} {name}({t} a, {t} b) {{\n{body}\n}}")

    def looked_up(self, e: Op) -> str:
        """The function that looks up bytes in a table."""
        x, table = e.type, e.args[1].type
        self.has_assembly = True
        key = f"{e.name}_{x}"
        words: Makers = {
            **self.words(e.name, x),
            "T": lambda: self.type(table),
            "M": lambda: table.lanes,
            "P": lambda: table.lanes // x.lanes,
        }
        return self.require(key, lambda: self.function(key, e.name, x, words))

    def result(self, name: str) -> str:
        return "{E}" if name.startswith("reduce") else super().result(name)

    def words(self, name: str, t: Type) -> Makers:
        """Besides: W is a vector of i64, ``tree`` halves a vector until one lane is left."""
        return {
            **super().words(name, t),
            "magnitude": lambda: _MAGNITUDE[t.dtype.bytes],
            "W": lambda: self.type(Type(DType.I64, t.lanes)),
            "tree": lambda: self.tree(name, t),
        }

    def helper_body(self, name: str, t: Type) -> str:
        if name in ZERO_SAFE:
            return self.division(name, t)
        return self.first_of(self.native(name, t), self.portable(name, t))

    def portable(self, name: str, t: Type) -> str:
        if t.lanes == 1:
            return super().portable(name, t)
        if name == "abs" and not t.dtype.is_float:
            return _INT_ABS
        return PORTABLE[name] if name in PORTABLE else super().portable(name, t)

    def native(self, name: str, t: Type) -> list[tuple[str, str]]:
        """The forms of a helper function that some processors or compilers have."""
        native, row = isa.forms(name, t.dtype, t.lanes), isa.portable(name)
        if row and row.calls:
            self.has_assembly = True
        if t.lanes > 1 and name in _CLANG and (t.dtype.is_float or name in ("max", "min")):
            native.insert(0, _by_clang(name, t))
        return native

    def conversion_body(self, bodies: half.Conversion, lanes: int) -> str:
        if lanes == 1:
            return self.first_of(bodies.native.get(1, ()), bodies.scalar)
        return self.first_of(bodies.native.get(lanes, ()) + bodies.native.get(0, ()), bodies.vector)

    def division(self, name: str, t: Type) -> str:
        """Lane by lane."""
        if t.lanes == 1:
            return super().division(name, t)
        one = self.helper(name, Type(t.dtype))
        return f"  {{V}} r = a; for (int i = 0; i < {t.lanes}; i++) r[i] = {one}(a[i], b[i]); return r;"

    def tree(self, name: str, t: Type) -> str:
        """Halve the vector until one lane holds the result."""
        steps, half = [], t.lanes // 2
        pair = "" if name == "reduce_add" else self.helper(name.removeprefix("reduce_"), t)
        whole, part = (f"({self.type(t)})", f"({self.unsigned(t)})") if t.dtype.is_signed else ("", "")
        while half:
            order = ", ".join(str((i + half) % t.lanes) for i in range(t.lanes))
            twin = f"__builtin_shufflevector(v, v, {order})"
            steps.append(f"v = {pair}(v, {twin});" if pair else f"v = {whole}({part}v + {part}{twin});")
            half //= 2
        return "\n  ".join(steps) + "\n "

    def on_instruction(self, s: Instruction) -> None:
        """The assembly of an instruction set, for compilers that take it, and the body for others."""
        text = None if self.in_portable_form else isa.assembly(s.name)
        if text is None or not text.fits(s.numbers):
            self.block(s.body)
            return
        self.has_assembly = True
        self.line(f"#if {text.condition}")
        if text.test:
            self.where_able(s, text)
            return
        self.in_assembly(s, text)
        self.line("#else")
        self.portable_block(s)
        self.line("#endif")

    def where_able(self, s: Instruction, text: isa.Assembly) -> None:
        """The assembly under a test at run time, else the body."""
        test = self.require(text.test, lambda: text.asks)
        self.line(f"if ({test}()) {{")
        self.in_assembly(s, text)
        self.line("} else")
        self.line("#endif")
        self.line("{")
        self.portable_block(s)
        self.line("}")

    def portable_block(self, s: Instruction) -> None:
        """The body, and no assembly in it."""
        self.in_portable_form = True
        lines = self.f.scopes[-1].lines
        first = len(lines)
        self.block(s.body)
        self.in_portable_form = False
        words = {word for line in lines[first:] for word in re.findall(r"\w+", line.text)}
        for buffer, at in s.operands:  # compilers warn of parameters without a use: weights that assembly fetches
            base = self.place(buffer, at).base if buffer.space != "register" else ""
            if base.isidentifier() and base not in words:
                lines.insert(first, CodeLine("  " * self.f.depth + f"(void){base};", frozenset(self.f.taken)))
                words.add(base)
            self.f.taken.clear()

    def in_assembly(self, s: Instruction, assembly: isa.Assembly) -> None:
        registers = [(buffer, self.register(buffer, at)) for buffer, at in s.operands if buffer.space == "register"]
        places = [self.place(buffer, at) for buffer, at in s.operands if buffer.space != "register"]
        weights, inputs, *others = [place.sum for place in places] or ["", ""]
        taken = {*self.f.taken, *(self.cell(buffer, name) for buffer, name in registers)}
        for text in assembly.text(weights, inputs, [*others, *(name for _, name in registers)], s.numbers):
            self.f.taken |= taken
            self.line(text)

    def on_prefetch(self, s: Prefetch) -> None:
        self.line(f"__builtin_prefetch({self.place(s.buffer, s.index).sum}, 0, 2);")

    def array(self, b: Buffer, size: int) -> str:
        return f"{self.type(b.type)} {b.name}[{size}] __attribute__((aligned(64)));"

    def head(self) -> str:
        """The text before the functions printed so far: macros, types, helpers."""
        helpers = self.needed_helpers()
        body = "\n".join((*self.functions, *helpers))
        floats = "float" in body or "double" in body
        needs = NEEDS_GNU if self.vectors else for_any_compiler(body)
        lines = [needs + EXACT * (floats or bool(self.vectors)) + HEAD % (", unused" * self.has_assembly)]
        for t in sorted(self.vectors, key=str):
            name, element = self.vectors[t], self.names[t.dtype]
            lines += [
                f"typedef {element} {name} __attribute__((vector_size({t.bytes})));",
                f"typedef {name} {name}_at __attribute__((aligned({t.dtype.bytes}), may_alias));",
            ]
        return "\n".join([*lines, "", *helpers, ""])


def _promoted(t: Type) -> bool:
    """Whether C computes with such scalars as int, which does not spread over narrower lanes."""
    return t.dtype.bytes < 4


def _by_clang(name: str, t: Type) -> tuple[str, str]:
    """The builtin that clang has for any width.

    Its maximum of floats asks for several instructions where x86 and WebAssembly have one for ``a > b ? a : b``; 64-bit
    ARM has one for the maximum that gives NaN for NaN.
    """
    builtin = f"__builtin_elementwise_{_CLANG[name]}"
    test = f"TENON_CLANG({builtin})"
    if t.dtype.is_float and name in ("max", "min"):
        builtin += "imum"
        test = f"defined(__aarch64__) && TENON_CLANG({builtin})"
    return test, f"return {builtin}({_call(name)});"


def _call(name: str) -> str:
    return "a, b" if name in ("max", "min") else "a"
