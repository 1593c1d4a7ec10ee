"""C identifiers from arbitrary names of models and tensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenon.machine.targets import Target

_KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
    alignas alignof and and_eq asm bitand bitor bool catch class compl concept consteval constexpr constinit
    const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export false friend mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires
    static_assert static_cast template this thread_local throw true try typeid typename using virtual wchar_t xor
    xor_eq main linux unix
"""
_LIBRARY = """
    abort abs acos acosh alloca asin asinh atan atan2 atanh atof atoi bcmp bcopy bzero calloc cbrt ceil clog clock
    copysign cos cosh dremainder drem erf erfc exit exp exp10 exp2 expm1 fabs fdim ffs floor fma fmax fmin fmod
    free frexp gamma hypot ilogb index isalnum isalpha isblank iscntrl isdigit isgraph islower isnan isprint
    ispunct isspace isupper isxdigit j0 j1 jn labs ldexp lgamma link llrint llround log log10 log1p log2 logb
    lrint lround malloc memchr memcmp memcpy memmove memset modf nan nearbyint nextafter open pipe pow printf putc
    putchar puts pow10 rand read realloc remainder remove remquo rename rindex rint round scalb scanf select
    sigaction signal significand sin sincos sinh sleep snprintf socket sprintf sqrt sscanf stat stpcpy strcat
    strchr strcmp strcpy strcspn strdup strlen strncat strncmp strncpy strpbrk strrchr strspn strstr sync system
    tan tanh tgamma time times toascii tolower toupper trunc wait write y0 y1 yn
"""
_TAKEN = frozenset((_KEYWORDS + _LIBRARY).split())
_SYSTEM = re.compile(r"tenon\w*|u?int\w*|size|ptrdiff|wchar|wint|sig|\w+_t", re.IGNORECASE)
"""Names reserved for types and macros of system headers and of Tenon."""

LONGEST = 64


def identifier(text: str) -> str:
    """An identifier of C and C++ similar to ``text`` that is no keyword or library function.

    Idempotent: ``identifier(identifier(x)) == identifier(x)``.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "_", text)[:LONGEST].strip("_") or "model"
    if name[0].isdigit():
        name = ("model_" + name)[:LONGEST].rstrip("_")
    if name in _TAKEN or (_SYSTEM.fullmatch(name) and not name.endswith("_model")):
        name += "_model"
    return name


def unique(text: str, taken: set[str]) -> str:
    """``text`` as a suffix of an identifier, made distinct from those in ``taken``, to which it is added."""
    stem = re.sub(r"[^A-Za-z0-9]+", "_", text)[:LONGEST].strip("_") or "tensor"
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def library_name(name: str, target: Target) -> str | None:
    """The file name of the library that Python or a browser loads; None if the target has none."""
    if target.freestanding and not target.format.module:
        return None
    return target.format.library_name(name)


def executable_name(name: str, target: Target) -> str:
    """The file name of the executable."""
    return target.format.executable_name(name)
