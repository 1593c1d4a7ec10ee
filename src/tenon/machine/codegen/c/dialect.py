"""C99 with GCC/Clang vector extensions: any CPU, one lane being plain C.

Helpers are printed once per type that needs them: a native spelling first where there is one, then a portable
body that any compiler takes.  No intrinsics headers, no libm.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from tenon.machine.codegen.c import byte_lookups, conversions, dots, half, pairs, tiles
from tenon.machine.codegen.c.alternatives import first_of
from tenon.machine.codegen.c.assembly_tile import Tile
from tenon.machine.codegen.c.file_head import EXACT, HEAD, NEEDS_GNU, for_any_compiler
from tenon.machine.codegen.c.literals import float_literal
from tenon.machine.codegen.printer import COMPARE, INFIX, Printer, bare, factor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Barrier, Buffer, Const, Expr, Load, Loop, Op, Prefetch, Type
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
    "sqrt": "{V} r; for (int i = 0; i < {N}; i++) r[i] = __builtin_sqrt{S}(a[i]); return r;",
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
    "dot2": half.DOT2_VECTOR,
    **half.FMA_VECTOR,
    **dots.VECTOR,
    **dots.BLOCKS,
    **{name: f"return __builtin_shufflevector(a, b, {order});" for name, order in dots.SHUFFLES.items()},
}
PORTABLE |= pairs.VECTOR
PORTABLE["sqrdmulh"] = (
    "return __builtin_convertvector((__builtin_convertvector(a, {W}) * __builtin_convertvector(b, {W})"
    " + (1 << 30)) >> 31, {V});"
)
_WALL = '{V} r = a * b;\n  __asm__("" : "+%s"(r));\n  return r;'
ROUNDED = {
    1: [
        ("defined(__GNUC__) && defined(__x86_64__)", _WALL % "x"),
        ("defined(__GNUC__) && defined(__aarch64__)", _WALL % "w"),
        ("defined(__GNUC__) && defined(__arm__) && defined(__ARM_FP)", _WALL % "t"),
    ],
    4: [("defined(__SSE2__)", _WALL % "x"), ("defined(__aarch64__)", _WALL % "w")],
    8: [("defined(__AVX__)", _WALL % "x")],
    16: [("defined(__AVX512F__)", _WALL % "v")],
}
"""A product of floats behind a wall that no addition is fused across."""
_ZERO_SAFE = {
    "div": "return b == 0 ? 0 : {minus}({E})(a / b);",
    "mod": "return b == 0 ? 0 : {minus_rest}({E})(a % b);",
}
"""Division of integers by what may be zero: the result is zero then, and nothing overflows."""
_INT_ABS = "const {U} m = ({U})(a < 0); return ({V})((({U})a ^ m) - m);"
SCALAR = {
    "max": "return a > b ? a : b;",
    "min": "return a < b ? a : b;",
    "select": "return m ? a : b;",
    "abs": "return __builtin_fabs{S}(a);",
    "sqrt": "return __builtin_sqrt{S}(a);",
    "floor": "return __builtin_floor{S}(a);",
    "ceil": "return __builtin_ceil{S}(a);",
    "trunc": "return __builtin_trunc{S}(a);",
    "round": (
        "const {E} p = a < 0 ? -a : a;\n"
        "  const {E} r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
        "  return __builtin_copysign{S}(r, a);"
    ),
    "dot2": half.DOT2_SCALAR,
    "fma_f16": half.FMA_ONE,
    "sqrdmulh": "return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31);",
    "scalar": "return a;",
    **dots.SCALAR,
    **pairs.SCALAR,
}
TAKES = {
    "div": "{V} a, {V} b", "mod": "{V} a, {V} b", "dot2": half.DOT2_TAKES, **half.FMA_TAKES,
    "max": "{V} a, {V} b", "min": "{V} a, {V} b", "select": "{I} m, {V} a, {V} b",
    **dots.TAKES,
    "abs": "{V} a", "sqrt": "{V} a", "floor": "{V} a", "ceil": "{V} a", "trunc": "{V} a", "round": "{V} a",
    "reduce_add": "{V} v", "reduce_max": "{V} v", "reduce_min": "{V} v",
    "sqrdmulh": "{V} a, {V} b", "mul_rounded": "{V} a, {V} b", "scalar": "{V} a",
    **pairs.TAKES,
}  # fmt: skip

_CLANG = {"max": "max", "min": "min", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
NATIVE: dict[tuple[str, DType, int], list[tuple[str, str]]] = {}
"""(operation, dtype, lanes) -> [(preprocessor condition, body)], in addition to clang's builtins for every width."""
NATIVE["sqrdmulh", DType.I32, 4] = [
    ("defined(__aarch64__)", '__asm__("sqrdmulh %0.4s, %1.4s, %2.4s" : "=w"(a) : "w"(a), "w"(b));\n  return a;'),
    (
        "defined(__ARM_NEON) || defined(__ARM_FEATURE_MVE)",
        '__asm__("vqrdmulh.s32 %q0, %q1, %q2" : "=w"(a) : "w"(a), "w"(b));\n  return a;',
    ),
]
for _m in ("max", "min"):
    NATIVE[_m, DType.F32, 16] = [
        ("defined(__AVX512F__) && defined(__clang__)", f"return ({{V}})__builtin_ia32_{_m}ps512(a, b, 4);"),
        ("defined(__AVX512F__)", f"return ({{V}})__builtin_ia32_{_m}ps512_mask(a, b, a, -1, 4);"),
    ]
    NATIVE[_m, DType.F32, 8] = [("defined(__AVX__)", f"return ({{V}})__builtin_ia32_{_m}ps256(a, b);")]
    NATIVE[_m, DType.F32, 4] = [("defined(__SSE__)", f"return ({{V}})__builtin_ia32_{_m}ps(a, b);")]
_SELECT_EACH = "{V} r; for (int i = 0; i < {N}; i++) r[i] = m[i] ? a[i] : b[i]; return r;"
NATIVE["select", DType.F64, 4] = [("defined(__ARM_FEATURE_MVE)", _SELECT_EACH)]  # Clang has no instructions for one
NATIVE["sqrt", DType.F32, 16] = [
    ("defined(__AVX512F__) && defined(__clang__)", "return ({V})__builtin_ia32_sqrtps512(a, 4);"),
    ("defined(__AVX512F__)", "return ({V})__builtin_ia32_sqrtps512_mask(a, a, -1, 4);"),
]
NATIVE["sqrt", DType.F32, 8] = [("defined(__AVX__)", "return ({V})__builtin_ia32_sqrtps256(a);")]
NATIVE["sqrt", DType.F32, 4] = [("defined(__SSE__)", "return ({V})__builtin_ia32_sqrtps(a);")]
NATIVE["scalar", DType.I32, 1] = [("defined(__GNUC__)", '__asm__("" : "+r"(a));\n  return a;')]
_RANK = {"add": 0, "sub": 0, "mul": 1, "div": 1}
"""How tightly float operations bind: an operand on the left needs parentheses below that rank, on the right at it."""
_ZEROS = {"0", "0u", "0LL", "0ULL", "0.0", "0.0f"}
_UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
_UNSIGNED_HELPERS = {"dot2", *dots.VECTOR, *pairs.TAKES}
_TWIN = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}
_WHOLE = {DType.F32: "8388608.0f", DType.F64: "4503599627370496.0"}  # from here on every float is an integer
_MAGNITUDE = {1: "0x7f", 2: "0x7fff", 4: "0x7fffffff", 8: "0x7fffffffffffffffLL"}


class C(Printer):
    """One translation unit of C."""

    names: ClassVar[dict[DType, str]] = {
        DType.F32: "float", DType.F64: "double", DType.F16: "uint16_t", DType.BOOL: "uint8_t", DType.Q8: "int32_t",
        DType.I64: "int64_t", DType.I32: "int32_t", DType.I16: "int16_t", DType.I8: "int8_t",
        DType.U64: "uint64_t", DType.U32: "uint32_t", DType.U16: "uint16_t", DType.U8: "uint8_t",
        DType.BF16: "uint16_t", DType.B2: "int32_t",
        DType.F8E4M3: "uint8_t", DType.F8E4M3U: "uint8_t", DType.F8E5M2: "uint8_t",
        DType.F8E5M2U: "uint8_t", DType.F8E8M0: "uint8_t", DType.F4E2M1: "uint8_t",
        DType.I4: "uint8_t", DType.U4: "uint8_t", DType.I2: "uint8_t", DType.U2: "uint8_t",
    }  # fmt: skip
    int_type = "intptr_t"
    in_portable_form = False
    """Whether what is being printed has another form."""
    has_assembly = False
    """Whether anything has two forms: a compiler that takes one of them may need no helper of the other."""
    outlined = "TENON_OUTLINE void "
    first_of = staticmethod(first_of)

    def type(self, t: Type) -> str:
        if t.dtype in (DType.Q8, DType.B2):
            t = Type(DType.I32, t.lanes)
        if t.dtype is DType.BOOL:
            t = Type(DType.U8, t.lanes)
        return super().type(t)

    def load(self, t: Type, pointer: str, at: int) -> str:
        if t.lanes == 1:
            return f"{pointer}[{at}]"
        return f"*(const {self.type(t)}_at *){_address(pointer, at)}"

    def stored(self, t: Type, pointer: str, at: int, value: str) -> str:
        if t.lanes == 1:
            return f"{pointer}[{at}] = {value};"
        return f"*({self.type(t)}_at *){_address(pointer, at)} = {value};"

    def splat(self, text: str, t: Type) -> str:
        over = self.type(t)
        if text in _ZEROS:
            return f"({over}){{0}}"
        key = f"splat_{over}"
        helper = (
            f"TENON_INLINE {over} {key}({self.names[t.dtype]} a) {{\n"
            f"  return a - ({over}){{0}}; /* unlike a + 0, it keeps the sign of -0 */\n}}"
        )
        return f"{self.require(key, lambda: helper)}({bare(text)})"

    def literal(self, e: Const) -> str:
        if e.type.dtype is DType.F16:
            return str(int.from_bytes(struct.pack("<e", e.value), "little"))
        if e.type.dtype.carrier is not e.type.dtype:
            return str(e.type.dtype.bits(e.value))
        if not e.type.dtype.is_float:
            suffix = {DType.I64: "LL", DType.U64: "ULL", DType.U32: "u"}.get(e.type.dtype, "")
            whole = int(e.value)
            return f"({whole + 1}{suffix} - 1)" if whole in (-(2**31), -(2**63)) else f"{whole}{suffix}"
        return float_literal(float(e.value), "" if e.type.dtype is DType.F64 else "f")

    def infix(self, e: Op, a: str, b: str) -> str:
        """Integers wrap around: what is too wide for C's int arithmetic is done without a sign, then cut."""
        t, sign = e.type, INFIX[e.name]
        _computable(e.args[0].type)
        if t.dtype.is_float and e.name in _RANK:
            return f"({_loose(e, 0, a)} {sign} {_loose(e, 1, b)})"
        if t.dtype.is_float or (t.lanes == 1 and e.name in ("and", "or", "xor")):
            return f"({a} {sign} {b})"
        if e.name == "div":
            if _safe(e.args[1]):
                return f"({a} / {b})"
            return f"{self.helper('div', t)}({bare(self.value(e.args[0]))}, {bare(self.value(e.args[1]))})"
        if t.lanes > 1:
            return self.lanes_infix(e, a, b)
        own = self.names[t.dtype]
        if e.name == "shr" or t.dtype in (DType.U32, DType.U64, DType.Q8):
            return f"({a} {sign} {b})"
        wide = "uint64_t" if t.dtype is DType.I64 else "uint32_t"
        right = b if e.name == "shl" else f"({wide}){b}"
        return f"({own})(({wide}){a} {sign} {right})"

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

    def unsigned(self, t: Type) -> str:
        """The type of as many unsigned integers of the same width."""
        return self.type(Type(_UNSIGNED[t.dtype.bytes], t.lanes))

    def adds_up(self, t: Type) -> bool:
        return not t.dtype.is_signed

    def call(self, e: Op, args: list[str]) -> str:
        t, source = self.type(e.type), e.args[0].type
        if e.name == "neg":
            if e.type.dtype.is_float:
                return f"(-{args[0]})"
            if e.type.lanes > 1:
                return f"({t})(-({self.unsigned(e.type)}){args[0]})"
            wide = "uint64_t" if e.type.dtype.bytes == 8 else "uint32_t"
            return f"({t})(0 - ({wide}){args[0]})"
        if e.name not in ("cast", "bitcast", "broadcast", "select", *half.FMA_TAKES):
            _computable(source)
        if e.name in COMPARE:
            test = f"({args[0]} {COMPARE[e.name]} {args[1]})"
            return f"({t}){test}" if e.type.lanes > 1 else f"(-({t}){test})"
        if e.name == "mod" and _safe(e.args[1]):
            return f"({args[0]} % {args[1]})"
        if e.name == "cast" and {source.dtype, e.type.dtype} & {DType.F16, DType.BF16}:
            return f"{self.conversion(source, e.type)}({bare(args[0])})"
        if e.name == "cast" and e.type.lanes > 1:
            return self.converted(bare(args[0]), source, e.type)
        if e.name == "cast":
            return f"({t}){args[0]}"
        if e.name == "bitcast" and e.type == Type(DType.I32) and (memory := self.word_in_memory(e.args[0])):
            return memory
        if e.name == "bitcast":
            return f"(({t}){args[0]})" if e.type.lanes > 1 else f"{self.bits(source, e.type)}({bare(args[0])})"
        if e.name == "vector4":
            return f"({t}){{{', '.join(map(bare, args))}}}"
        if e.name == "interleave4":
            return f"{self.interleaved(source, e.type)}({bare(args[0])})"
        if e.name in byte_lookups.TABLES:
            return f"{self.looked_up(e)}({', '.join(map(bare, args))})"
        over = e.args[1].type if e.name == "select" else source
        return f"{self.helper(e.name, over)}({', '.join(map(bare, args))})"

    def converted(self, value: str, source: Type, target: Type) -> str:
        """A vector in another type."""
        if not conversions.slow(source, target):
            return f"__builtin_convertvector({value}, {self.type(target)})"
        key = f"convert_{source}_{target}"
        self.has_assembly = True
        return f"{self.require(key, lambda: self.vector_conversion(key, source, target))}({value})"

    def vector_conversion(self, key: str, source: Type, target: Type) -> str:
        """The text of the function that converts such vectors."""
        a, b = self.type(source), self.type(target)
        plain = f"return __builtin_convertvector(a, {b});"
        middle, native = conversions.middle(source, target), conversions.native(source, target)
        rest = self.converted(self.converted("a", source, middle), middle, target)
        bodies = [("defined(__clang__)", plain), *((test, body.format(A=a, B=b)) for test, body in native)]
        return f"TENON_INLINE {b} {key}({a} a) {{\n{self.first_of(bodies, f'return {rest};')}\n}}"

    def word_in_memory(self, e: Expr) -> str:
        """A word of narrow elements that is loaded as such: compilers may load each to a lane of its own."""
        if not isinstance(e, Load) or e.buffer.space == "register" or e.type.lanes == 1:
            return ""
        word = "typedef int32_t word_at __attribute__((aligned(1), may_alias));"
        pointer, at = self.place(e.buffer, e.index)
        return f"*(const {self.require('word_at', lambda: word)} *){_address(pointer, at)}"

    def bits(self, source: Type, target: Type) -> str:
        a, b = self.type(source), self.type(target)
        name = f"bits_{source}_{target}"
        helper = f"TENON_INLINE {b} {name}({a} a) {{\n  union {{ {a} a; {b} b; }} u;\n  u.a = a;\n  return u.b;\n}}"
        return self.require(name, lambda: helper)

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

    def looked_up(self, e: Op) -> str:
        x, table = e.type, e.args[1].type
        key = f"{e.name}_{x}"
        self.has_assembly = True
        return self.require(
            key, lambda: byte_lookups.helper(e.name, key, self.type(x), self.type(table), x.lanes, table.lanes)
        )

    def helper(self, name: str, t: Type) -> str:
        """The helper function of an operation over a type."""
        key = f"{name}_{t.dtype}x{t.lanes}" if t.lanes > 1 else f"{name}_{t.dtype}"
        return self.require(key, lambda: self.operation(key, name, t))

    def operation(self, key: str, name: str, t: Type) -> str:
        """The text of an operation's helper function."""
        twin = Type(_TWIN[t.dtype.bytes], t.lanes)
        over = self.type(t)
        words = {
            "V": over,
            "I": self.type(twin),
            "U": self.unsigned(t) if name in _UNSIGNED_HELPERS or (name == "abs" and t.dtype.is_signed) else "",
            "E": self.names[t.dtype],
            "N": t.lanes,
            "S": "" if t.dtype is DType.F64 else "f",
            "whole": _WHOLE.get(t.dtype, "0"),
            "magnitude": _MAGNITUDE[t.dtype.bytes],
            "W": self.type(Type(DType.I64, t.lanes)) if name in ("sqrdmulh", "mulh_add") else "",
            "Q": self.type(Type(DType.I32, 4)) if name == "dot16" else "",
            "tree": self.tree(name, t) if name.startswith("reduce") else "",
            "tie": self.require("tie_even", lambda: pairs.TIE) if name == "shift_even" else "",
            **(self.called_by_fma(name, t) if name in half.FMA_TAKES else {}),
        }
        result = (
            self.names[t.dtype] if name.startswith("reduce") else words["I"] if name.startswith("nearest") else over
        )
        text = self.helper_body(name, t)
        head = f"TENON_INLINE {result} {key}({TAKES[name]}) {{{{\n"
        return f"{head}{text}\n}}}}".format(**words)

    def called_by_fma(self, name: str, t: Type) -> dict[str, str]:
        """The functions that portable multiply-adds of f16 call."""
        self.has_assembly = True
        if name == "fma_f16_scalar":
            return {"each": self.helper("fma_f16", t)}
        if t.lanes > 1:
            return {"one": self.helper("fma_f16", Type(t.dtype))}
        narrow, wide = Type(DType.F16), Type(DType.F32)
        return {"widen": self.conversion(narrow, wide), "narrow": self.conversion(wide, narrow)}

    def helper_body(self, name: str, t: Type) -> str:
        if name in _ZERO_SAFE:
            return self.division(name, t)
        if name == "mul_rounded":
            return self.first_of(ROUNDED.get(t.lanes, []), "volatile {V} r = a * b;\n  return r;")
        if t.lanes == 1 and name == "fma_f16":
            return self.first_of(half.fma_native(name, 1), SCALAR[name])
        if (name, t.dtype, t.lanes) in NATIVE and t.lanes == 1:
            return self.first_of(NATIVE[name, t.dtype, 1], SCALAR[name])
        if t.lanes == 1 and name in pairs.NATIVE:
            return self.first_of(pairs.NATIVE[name], SCALAR[name])
        if t.lanes == 1 and name in dots.SCALAR:
            return self.first_of(dots.native_scalar(name), SCALAR[name])
        if t.lanes == 1:
            integer = name == "abs" and not t.dtype.is_float
            wide = "uint64_t" if t.dtype.bytes == 8 else "uint32_t"
            return f"  return a < 0 ? ({{E}})(0 - ({wide})a) : a;" if integer else "  " + SCALAR[name]
        portable = _INT_ABS if name == "abs" and not t.dtype.is_float else PORTABLE[name]
        native = [*NATIVE.get((name, t.dtype, t.lanes), []), *pairs.LANE_BY_LANE.get(name, [])]
        native += pairs.FOUR_LANES.get(name, []) if t.lanes == 4 else []
        if name in _CLANG and (t.dtype.is_float or name in ("max", "min")):
            native.insert(0, _by_clang(name, t))
        if name == "dot2":
            native += half.dot2_native(t.lanes)
        if name in half.FMA_TAKES:
            native += half.fma_native(name, t.lanes)
        if name in dots.VECTOR or name in dots.BLOCKS:
            native += dots.native(name, t.lanes)
        return self.first_of(native, portable)

    def conversion(self, source: Type, target: Type) -> str:
        """The function that turns a float of 16 bits into an f32, or back."""
        key = f"{target.dtype}_of_{source}"
        return self.require(key, lambda: self.conversion_text(key, source, target))

    def conversion_text(self, key: str, source: Type, target: Type) -> str:
        """The text of that function."""
        bodies = half.CONVERSIONS[source.dtype, target.dtype]
        wide, narrow = (target, source) if target.dtype is DType.F32 else (source, target)
        words = {
            "F": self.type(wide),
            "U": self.type(Type(DType.U32, wide.lanes)),
            "H": self.type(Type(narrow.dtype, narrow.lanes)),
            "N": wide.lanes,
        }
        native = bodies.native.get(wide.lanes, ()) + bodies.native.get(0, ()) if wide.lanes > 1 else ()
        text = self.first_of(native, bodies.vector if wide.lanes > 1 else bodies.scalar)
        head = f"TENON_INLINE {self.type(target)} {key}({self.type(source)} a) {{{{\n"
        return f"{head}{text}\n}}}}".format(**words)

    def division(self, name: str, t: Type) -> str:
        """``_ZERO_SAFE``, lane by lane."""
        one = self.helper(name, Type(t.dtype)) if t.lanes > 1 else ""
        if one:
            return f"  {{V}} r; for (int i = 0; i < {t.lanes}; i++) r[i] = {one}(a[i], b[i]); return r;"
        wide = "uint64_t" if t.dtype.bytes == 8 else "uint32_t"
        signed = t.dtype.is_signed
        minus = f"b == -1 ? ({{E}})(0 - ({wide})a) : " if signed else ""
        rest = "b == -1 ? 0 : " if signed else ""
        return "  " + _ZERO_SAFE[name].replace("{minus}", minus).replace("{minus_rest}", rest)

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

    def on_loop(self, s: Loop) -> None:
        """As for other loops; a tile of pairs has a second form in assembly."""
        tile = None if self.in_portable_form else tiles.matched(s)
        if tile is None:
            super().on_loop(s)
            return
        self.has_assembly = True
        self.line(f"#if {tile.condition}")
        self.in_assembly(tile)
        self.line("#else")
        self.in_portable_form = True
        super().on_loop(s)
        self.in_portable_form = False
        self.line("#endif")

    def in_assembly(self, tile: Tile) -> None:
        self.env |= dict.fromkeys(tile.nest.vars, 0)
        names = [self.register(load.buffer, load.index) for load in tile.sums]
        places = [self.place(load.buffer, load.index) for load in (tile.weights, tile.inputs)]
        weights, inputs = (f"{name}{_offset(at)}" for name, at in places)
        for var in tile.nest.vars:
            del self.env[var]
        cells = (self.cell(load.buffer, name) for load, name in zip(tile.sums, names, strict=True))
        taken = {*self.f.taken, *cells}
        for text in tile.text(weights, inputs, names):
            self.f.taken |= taken
            self.line(text)

    def loop_head(self, loop: Loop) -> str:
        v = loop.var.name
        return f"TENON_LOOP for ({self.int_type} {v} = 0; {v} < {self.bound(loop.var)}; {v}++) {{"

    def slice_head(self, loop: Loop, first: str, each: int) -> str:
        first_name, end_name = (f"TENON_INLINE {self.int_type} slice_{name}" for name in ("first", "end"))
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
        return f"TENON_LOOP for ({self.int_type} {v} = {begin}, {v}_end = {end}; {v} < {v}_end; {v}++) {{"

    def slice_test(self, first: Index, each: int) -> str:
        return f"slice_from < {self.index(first + each)} && slice_to > {self.index(first)}"

    def clamp(self, value: str, below: str) -> str:
        helper = (
            f"TENON_INLINE {self.int_type} clamp_index(int64_t v, {self.int_type} below) {{\n"
            f"  return v < 0 ? 0 : v < below ? ({self.int_type})v : below - 1;\n}}"
        )
        return f"{self.require('clamp_index', lambda: helper)}({bare(value)}, {below})"

    def on_prefetch(self, s: Prefetch) -> None:
        pointer, at = self.place(s.buffer, s.index)
        self.line(f"__builtin_prefetch({pointer}{_offset(at)}, 0, 2);")

    def on_barrier(self, s: Barrier) -> None:
        raise TypeError("a barrier has no meaning on a CPU")

    def array(self, b: Buffer, size: int) -> str:
        return f"{self.type(b.type)} {b.name}[{size}] __attribute__((aligned(64)));"

    def head(self) -> str:
        """What stands before the functions printed so far: macros, types, helpers."""
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

    def text(self) -> str:
        """Everything printed so far: types, helpers, functions."""
        functions = [f"{f.comment}{self.outlined}{f.name}{f.text}" for f in self.functions.values()]
        return "\n".join([self.head(), *functions])


def _computable(t: Type) -> None:
    if t.dtype in (DType.F16, DType.BF16):
        raise TypeError(f"arithmetic of {t}, which are bits in C: cast them to f32")


def _promoted(t: Type) -> bool:
    """Whether C computes with such scalars as int, which does not spread over narrower lanes."""
    return t.dtype.bytes < 4


def _by_clang(name: str, t: Type) -> tuple[str, str]:
    """What clang has for any width.  Its maximum of floats asks for several instructions where x86 and WebAssembly have
    one for ``a > b ? a : b``; 64-bit ARM has one for the maximum that gives NaN for NaN."""
    builtin = f"__builtin_elementwise_{_CLANG[name]}"
    test = f"TENON_CLANG({builtin})"
    if t.dtype.is_float and name in ("max", "min"):
        builtin += "imum"
        test = f"defined(__aarch64__) && TENON_CLANG({builtin})"
    return test, f"return {builtin}({_call(name)});"


def _safe(divisor: Expr) -> bool:
    """Whether nothing can go wrong in a division by it."""
    while isinstance(divisor, Op) and divisor.name == "broadcast":
        divisor = divisor.args[0]
    return isinstance(divisor, Const) and divisor.value not in (0, -1)


def _call(name: str) -> str:
    return "a, b" if name in ("max", "min") else "a"


def _address(pointer: str, at: int) -> str:
    return f"({pointer}{_offset(at)})" if at else pointer


def _loose(e: Op, i: int, text: str) -> str:
    """An operand of float arithmetic, without the parentheses that its operation's rank makes needless."""
    arg = e.args[i]
    while isinstance(arg, Op) and arg.name == "broadcast":
        arg = arg.args[0]
    if isinstance(arg, Op) and arg.name in _RANK and _RANK[arg.name] >= _RANK[e.name] + i:
        return bare(text)
    return text


def _offset(at: int) -> str:
    return f" + {at}" if at > 0 else f" - {-at}" if at < 0 else ""
