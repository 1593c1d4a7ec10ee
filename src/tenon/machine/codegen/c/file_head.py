"""The top of a generated C file: the compilers that it needs, and macros for those that there are."""

from __future__ import annotations

NEEDS_GNU = """\
#if !defined(__GNUC__)
#error "this file needs GCC or Clang: it uses their vector extensions of C"
#endif
"""
EXACT = """\
#if defined(__FAST_MATH__)
#error "compile this file without -ffast-math (and -Ofast): its results rely on IEEE 754 arithmetic"
#endif
"""
STRICT = """\
#if !defined(__GNUC__) /* any compiler of C99 */
{builtins}#ifndef __attribute__
#define __attribute__(attributes)
#endif
#endif
"""
_LIBRARY = {
    "__builtin_inf": "() ((double)INFINITY)",
    "__builtin_inff": "() ((float)INFINITY)",
    "__builtin_nan": "(tag) ((double)NAN)",
    "__builtin_nanf": "(tag) ((float)NAN)",
    "__builtin_prefetch": "(address, write, locality) ((void)(address))",
    **{
        f"__builtin_{name}{suffix}": f" {name}{suffix}"
        for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "copysign")
        for suffix in ("", "f")
    },
}
"""Functions that GCC and Clang have built in, by the standard library."""
HEAD = """\
#if defined(__clang__)
#define TENON_LOOP _Pragma("clang loop unroll(disable) vectorize(disable)")
#elif defined(__GNUC__)
#define TENON_LOOP _Pragma("GCC unroll 1")
#else
#define TENON_LOOP
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi" /* no function that takes or returns a vector is called: all are inlined */
#endif
#define TENON_OUTLINE static __attribute__((noinline))
#if defined(__clang__) && defined(__has_builtin)
#define TENON_CLANG(builtin) __has_builtin(builtin)
#else
#define TENON_CLANG(builtin) 0
#endif
#define TENON_INLINE static inline __attribute__((always_inline%s))
"""


def for_any_compiler(body: str) -> str:
    """Definitions that compilers without GCC's extensions need for text without vectors: only those that it uses."""
    builtins = "".join(f"#define {name}{other}\n" for name, other in _LIBRARY.items() if f"{name}(" in body)
    return STRICT.replace("{builtins}", f"#include <math.h>\n{builtins}" if builtins else "")
