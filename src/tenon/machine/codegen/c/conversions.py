"""Conversions of vectors for GCC, which goes element by element where widths differ by a factor of four, as between
bytes and i32, or where floats are at one end of other widths; and transpositions of bytes.  16 bits it widens to 32 in
halves, which x86 does at once.

They go through i32; what x86 has an instruction for takes that, everything else halves or doubles the width in steps.
"""

from __future__ import annotations

from tenon.machine.kernel_ir.loops import Type
from tenon.network.graph.types import DType

_BYTES = (DType.I8, DType.U8, DType.BOOL)
_WORDS = (DType.I16, DType.U16)
_FLOATS = (DType.F32, DType.F64)
_WIDE = (DType.I32, DType.U32, DType.Q8)
_TYPES = {
    "v16qi": ("char", 16),
    "v8hi": ("short", 16),
    "v16hi": ("short", 32),
    "v4si": ("int", 16),
    "v2di": ("long long", 16),
    "v16si": ("int", 64),
}
"""GCC's names for the operands of its builtins: element and bytes."""
Native = tuple[tuple[str, str], ...]
"""(preprocessor condition, body) pairs: the first that holds is compiled.  A and B are the types."""

ZIPPED_TWICE = """\
  typedef signed char eight __attribute__((vector_size(8)));
  union {{ {a} v; eight h[2]; {b} w; }} x = {{ a }}, y;
  y.h[0] = __builtin_shufflevector(x.h[0], x.h[1], 0, 8, 1, 9, 2, 10, 3, 11);
  y.h[1] = __builtin_shufflevector(x.h[0], x.h[1], 4, 12, 5, 13, 6, 14, 7, 15);
  x.h[0] = __builtin_shufflevector(y.h[0], y.h[1], 0, 8, 1, 9, 2, 10, 3, 11);
  x.h[1] = __builtin_shufflevector(y.h[0], y.h[1], 4, 12, 5, 13, 6, 14, 7, 15);
  return x.w;"""
"""Four by four bytes transposed by instructions that ARMv7 has: of one permutation clang makes moves byte by byte."""
HALVES_ZIPPED = """\
  typedef char v16qi __attribute__((vector_size(16)));
  typedef long long v2di __attribute__((vector_size(16)));
  v16qi x = (v16qi)a;
  x = __builtin_ia32_punpcklbw128(x, (v16qi)__builtin_ia32_psrldqi128((v2di)x, 64));
  return ({b})__builtin_ia32_punpcklbw128(x, (v16qi)__builtin_ia32_psrldqi128((v2di)x, 64));"""
"""The same by SSE2: of one permutation GCC makes moves byte by byte."""


def _with_types(*lines: str) -> str:
    """A body with the types that it names."""
    body = "\n  ".join(lines)
    used = (
        f"typedef {kind} {name} __attribute__((vector_size({size})));\n  "
        for name, (kind, size) in _TYPES.items()
        if name in body
    )
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


def _words_widened(*, signed: bool) -> dict[int, Native]:
    """From 16 bits to 32."""
    name = f"__builtin_ia32_pmov{'s' if signed else 'z'}xwd"
    whole = f"return ({{B}}){name}512_mask((v16hi)a, (v16si){{{{0}}}}, -1);"
    return {
        16: (("defined(__AVX512F__)", _with_types(whole)),),
        8: (("defined(__AVX2__)", _with_types(f"return ({{B}}){name}256((v8hi)a);")),),
    }


def slow(source: Type, target: Type) -> bool:
    """Whether GCC converts such vectors element by element."""
    a, b = source.dtype, target.dtype
    if a in _BYTES:
        return b in _WIDE or b in _FLOATS
    if a in _WORDS:
        return b in _FLOATS
    return (a in _WIDE and b in _BYTES) or (a in _FLOATS and b in (*_BYTES, *_WORDS))


def middle(source: Type, target: Type) -> Type:
    """The intermediate type of a slow conversion: i32, or 16 bits on the way between bytes and that."""
    if source.dtype in _FLOATS or target.dtype in _FLOATS:
        return Type(DType.I32, source.lanes)
    narrow = source.dtype if source.dtype in _BYTES else target.dtype
    return Type(DType.I16 if narrow is DType.I8 else DType.U16, source.lanes)


def native(source: Type, target: Type) -> Native:
    """How x86 converts between bytes and 32 bits, and widens 16 bits to those."""
    if source.dtype in _WORDS and target.dtype in (DType.I32, DType.U32):
        return _words_widened(signed=source.dtype is DType.I16).get(source.lanes, ())
    if not slow(source, target):
        return ()
    if source.dtype in _FLOATS or target.dtype in _FLOATS:
        return ()
    if target.dtype in _BYTES:
        return _NARROWED.get(source.lanes, ())
    return _widened(signed=source.dtype is DType.I8).get(source.lanes, ())
