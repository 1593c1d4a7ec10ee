"""Conversions between vectors of bytes, of 16 and 32 bits and of f32, for GCC, which converts element by element where
widths differ by a factor of four, or where floats are at one end of other widths.

They go through i32; what x86 has an instruction for takes that, everything else halves or doubles the width in steps.
"""

from __future__ import annotations

from tenon.ir.loops import Type
from tenon.ir.types import DType

_BYTES = (DType.I8, DType.U8, DType.BOOL)
_WORDS = (DType.I16, DType.U16)
_WIDE = (DType.I32, DType.U32, DType.Q8)
_TYPES = {"v16qi": ("char", 16), "v8hi": ("short", 16), "v4si": ("int", 16), "v2di": ("long long", 16),
          "v16si": ("int", 64)}  # fmt: skip
"""GCC's names for the operands of its builtins: element and bytes."""
Native = tuple[tuple[str, str], ...]
"""(preprocessor condition, body) pairs: the first that holds is compiled.  A and B are the types."""


def _with_types(*lines: str) -> str:
    """A body with the types that it names."""
    body = "\n  ".join(lines)
    used = (f"typedef {kind} {name} __attribute__((vector_size({size})));\n  "
            for name, (kind, size) in _TYPES.items() if name in body)  # fmt: skip
    return "".join(used) + body


def _packed(low: str, high: str) -> tuple[str, str, str]:
    """Bytes of 32-bit numbers from 0 to 255."""
    return (
        f"const v8hi halves = __builtin_ia32_packssdw128({low}, {high});",
        "union {{ v16qi v; {B} low; }} y = {{ __builtin_ia32_packuswb128(halves, halves) }};",
        "return y.low;",
    )


_NARROWED: dict[int, Native] = {
    16: (
        (
            "defined(__AVX512F__)",
            _with_types("return ({B})__builtin_ia32_pmovdb512_mask((v16si)a, (v16qi){{0}}, -1);"),
        ),
    ),
    8: (
        (
            "defined(__AVX2__)",
            _with_types("union {{ {A} v; v4si h[2]; }} x = {{ a & 255 }};", *_packed("x.h[0]", "x.h[1]")),
        ),
    ),
    4: (("defined(__SSE2__)", _with_types("const v4si x = (v4si)(a & 255);", *_packed("x", "x"))),),
}


def _widened(*, signed: bool) -> dict[int, Native]:
    """From bytes to 32 bits."""
    letter, other, shift = ("s", "x", " >> 24") if signed else ("z", "(v16qi){{0}}", "")
    whole = f"__builtin_ia32_pmov{letter}xbd512_mask((v16qi)a, (v16si){{{{0}}}}, -1)"
    half = f"__builtin_ia32_pmov{letter}xbd256((v16qi)(v2di){{{{ x.w, 0 }}}})"
    return {
        16: (("defined(__AVX512F__)", _with_types(f"return ({{B}}){whole};")),),
        8: (
            (
                "defined(__AVX2__)",
                _with_types("union {{ {A} v; long long w; }} x = {{ a }};", f"return ({{B}}){half};"),
            ),
        ),
        4: (
            (
                "defined(__SSE2__)",
                _with_types(
                    "union {{ {A} v; int w; }} z = {{ a }};",
                    "const v16qi x = (v16qi)(v4si){{ z.w, 0, 0, 0 }};",
                    f"const v8hi y = (v8hi)__builtin_ia32_punpcklbw128(x, {other});",
                    f"return ({{B}})((v4si)__builtin_ia32_punpcklwd128(y, {'y' if signed else '(v8hi){{0}}'}){shift});",
                ),
            ),
        ),
    }


def slow(source: Type, target: Type) -> bool:
    """Whether GCC converts such vectors element by element."""
    a, b = source.dtype, target.dtype
    if a in _BYTES:
        return b in _WIDE or b is DType.F32
    if a in _WORDS:
        return b is DType.F32
    return (a in _WIDE and b in _BYTES) or (a is DType.F32 and b in (*_BYTES, *_WORDS))


def middle(source: Type, target: Type) -> Type:
    """What a slow conversion goes through: i32, or 16 bits on the way between bytes and that."""
    if DType.F32 in (source.dtype, target.dtype):
        return Type(DType.I32, source.lanes)
    narrow = source.dtype if source.dtype in _BYTES else target.dtype
    return Type(DType.I16 if narrow is DType.I8 else DType.U16, source.lanes)


def native(source: Type, target: Type) -> Native:
    """How x86 converts between bytes and 32 bits."""
    if DType.F32 in (source.dtype, target.dtype):
        return ()
    if target.dtype in _BYTES:
        return _NARROWED.get(source.lanes, ())
    return _widened(signed=source.dtype is DType.I8).get(source.lanes, ())
