"""Helper functions of scalars in the words that the languages of C's family share (``clike.CLike.words``)."""

from __future__ import annotations

from tenon.network.graph.types import DType

BODIES = {
    "max": "return a > b ? a : b;",
    "min": "return a < b ? a : b;",
    "select": "return m ? a : b;",
    "abs": "return {builtin}fabs{S}(a);",
    "sqrt": "return {builtin}sqrt{S}(a);",
    "floor": "return {builtin}floor{S}(a);",
    "ceil": "return {builtin}ceil{S}(a);",
    "trunc": "return {builtin}trunc{S}(a);",
    "round": (
        "const {E} p = a < 0 ? -a : a;\n"
        "  const {E} r = p >= {whole} ? p : (p + {whole}) - {whole};\n"
        "  return {builtin}copysign{S}(r, a);"
    ),
    "mul_rounded": "volatile {V} r = a * b;\n  return r;",
    "sqrdmulh": "return ({V})((({L})a * b + (1 << 30)) >> 31);",
}
TAKES = {
    "div": "{V} a, {V} b",
    "mod": "{V} a, {V} b",
    "max": "{V} a, {V} b",
    "min": "{V} a, {V} b",
    "select": "{I} m, {V} a, {V} b",
    **dict.fromkeys(("abs", "sqrt", "floor", "ceil", "trunc", "round"), "{V} a"),
    "mul_rounded": "{V} a, {V} b",
    "sqrdmulh": "{V} a, {V} b",
}
"""Parameters of the functions."""
ZERO_SAFE = {
    "div": "return b == 0 ? 0 : {minus}({E})(a / b);",
    "mod": "return b == 0 ? 0 : {minus_rest}({E})(a % b);",
}
"""Division of integers by what may be zero: the result is zero then, and nothing overflows."""
INTEGER_ABS = "return a < 0 ? ({E})(0 - ({wide})a) : a;"
WHOLE = {DType.F32: "8388608.0f", DType.F64: "4503599627370496.0"}
"""From here on every float is an integer."""
