"""NEON, of 32 and 64 bits, with its dot product (Armv8.2-A), products of bytes of both signs (I8MM) and tables.

Without dot product, neighbouring products of bytes are added up in 16 bits, which one factor without -128 fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.isa.base import PRODUCT_ALONE, Form, Portable, Primitive
from tenon.machine.isa.byte_products import moved_bytes
from tenon.network.graph.dtype import DType

_NEON_WORDS = (
    "typedef signed char half __attribute__((vector_size(8)));\n"
    "  typedef short words __attribute__((vector_size(16)));\n"
    "  union {{ {V} v; half h[2]; }} x = {{ a }}, y = {{ b }};\n"
    "  const words low = __builtin_convertvector(x.h[0], words) * __builtin_convertvector(y.h[0], words);\n"
    "  const words high = __builtin_convertvector(x.h[1], words) * __builtin_convertvector(y.h[1], words);\n"
)
_NARROW = (
    # GCC widens bytes one by one.
    (
        "defined(__aarch64__) && !defined(__clang__)",
        "typedef short words __attribute__((vector_size(16)));\n  words low, high;\n"
        '  __asm__("smull %0.8h, %1.8b, %2.8b" : "=w"(low) : "w"(a), "w"(b));\n'
        '  __asm__("smull2 %0.8h, %1.16b, %2.16b" : "=w"(high) : "w"(a), "w"(b));\n'
        '  __asm__("addp %0.8h, %0.8h, %1.8h" : "+w"(low) : "w"(high));\n'
        '  __asm__("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(low));\n  return acc;',
    ),
    (
        "defined(__aarch64__)",
        _NEON_WORDS + "  words sums;\n"
        '  __asm__("addp %0.8h, %1.8h, %2.8h" : "=w"(sums) : "w"(low), "w"(high));\n'
        '  __asm__("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(sums));\n  return acc;',
    ),
    (
        "defined(__ARM_NEON)",
        _NEON_WORDS + "  words sums;\n"
        '  __asm__("vpadd.i16 %e0, %e1, %f1\\n\\tvpadd.i16 %f0, %e2, %f2" : "=&w"(sums) : "w"(low), "w"(high));\n'
        '  __asm__("vpadal.s16 %q0, %q1" : "+w"(acc) : "w"(sums));\n  return acc;',
    ),
)


def _dot4() -> Iterator[Form]:
    for name, feature, instruction in (
        ("dot4", "MATMUL_INT8", "usdot"),
        ("dot4_signed", "DOTPROD", "sdot"),
        ("dot4_narrow", "DOTPROD", "sdot"),
    ):
        dot = f'__asm__("{instruction} %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;'
        yield Form(name, 4, f"defined(__aarch64__) && defined(__ARM_FEATURE_{feature})", dot)
    for test, body in _NARROW:
        yield Form("dot4_narrow", 4, test, body)


def _table() -> Form:
    """Four selections from 64 bytes each, whose registers are neighbours: an index beyond a table keeps what was
    there."""
    first, tables = 16, [f"t{i}" for i in range(16)]
    pinned = "".join(
        f'register const {{V}} r{i} __asm__("v{first + i}") = {table};\n  ' for i, table in enumerate(tables)
    )
    steps = []
    for i in range(0, len(tables), 4):
        steps += ["sub %1.16b, %1.16b, %[step].16b"] if i else []
        lookup, last = "tbx" if i else "tbl", first + i + 3
        steps.append(f"{lookup} %0.16b, {{{{v{first + i}.16b-v{last}.16b}}}}, %1.16b")
    inputs = ", ".join(f'"w"(r{i})' for i in range(len(tables)))
    assembly = "\\n\\t".join(steps)
    body = (
        f"{pinned}{{V}} found, step = x - x + 64;\n"
        f'  __asm__("{assembly}" : "=&w"(found), "+w"(x) : [step] "w"(step), {inputs});\n  return found;'
    )
    return Form("lookup16", 0, "defined(__GNUC__) && defined(__aarch64__)", body)


def _by_lanes() -> Iterator[Form]:
    for lane in range(4):
        dot = f'__asm__("sdot %0.4s, %1.16b, %2.4b[{lane}]" : "+w"(acc) : "w"(a), "w"(b));\n  return acc;'
        yield Form(f"dot4_lane{lane}", 4, "defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)", dot)


_BY_LANE = (
    "union {{ {V} v; int8_t s[4 * {N}]; }} x = {{ a }}, y = {{ b }};\n"
    "  for (int i = 0; i < 4 * {N}; i++) acc[i / 4] += x.s[i] * y.s[%d + i %% 4];\n"
    "  return acc;"
)

# Sums of the products of four i8 by the same four, of a word of the last operand.
PRIMITIVES = {f"dot4_lane{lane}": Primitive(3, products=4) for lane in range(4)}
PORTABLE = {f"dot4_lane{lane}": Portable("{V} acc, {V} a, {V} b", _BY_LANE % (4 * lane)) for lane in range(4)}

_SQRDMULH = '__asm__("sqrdmulh %0.4s, %1.4s, %2.4s" : "=w"(a) : "w"(a), "w"(b));\n  return a;'
_VQRDMULH = '__asm__("vqrdmulh.s32 %q0, %q1, %q2" : "=w"(a) : "w"(a), "w"(b));\n  return a;'
_HAS_VQRDMULH = "defined(__ARM_NEON) || defined(__ARM_FEATURE_MVE)"
_NEAREST = '{I} r;\n  __asm__("fcvtns %0.4s, %1.4s" : "=w"(r) : "w"(a));\n  return r;'

FORMS = (
    *_dot4(),
    *_by_lanes(),
    *moved_bytes("defined(__ARM_NEON)"),
    _table(),
    Form("sqrdmulh", 4, "defined(__aarch64__)", _SQRDMULH, DType.I32),
    Form("sqrdmulh", 4, _HAS_VQRDMULH, _VQRDMULH, DType.I32),  # Helium has it, too
    Form("mul_rounded", 1, "defined(__GNUC__) && defined(__aarch64__)", PRODUCT_ALONE % "w"),
    Form("mul_rounded", 1, "defined(__GNUC__) && defined(__arm__) && defined(__ARM_FP)", PRODUCT_ALONE % "t"),
    Form("mul_rounded", 4, "defined(__aarch64__)", PRODUCT_ALONE % "w"),
    Form("nearest", 4, "defined(__aarch64__)", _NEAREST, DType.F32),
)
