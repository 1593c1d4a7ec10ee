"""C identifiers from arbitrary names of models and tensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tenon.errors import InputError

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
    abort abs alloca atof atoi bcmp bcopy bzero calloc clock dremainder drem exit ffs fopen fprintf fputc fputs fread
    free fscanf fwrite gamma imaxabs index isalnum isalpha isblank iscntrl isdigit isgraph islower isprint ispunct
    isspace isupper iswalnum iswalpha iswdigit isxdigit j0 j1 jn labs link llabs malloc memchr memcmp memcpy memmove
    memset open pipe pow10 printf putc putchar puts rand read realloc remove rename rindex scalb scanf select
    sigaction signal significand sincos sleep snprintf socket sprintf sscanf stat stpcpy strcat strchr strcmp strcpy
    strcspn strdup strerror strftime strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtod strtof
    strtok strtol strtold strtoll strtoul strtoull strxfrm sync system time times toascii tolower toupper towlower
    towupper vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf wait wcschr wcscmp wcslen wcsncmp wmemchr
    wmemcmp wmemcpy write y0 y1 yn
"""
_MATH = """
    acos acosh asin asinh atan atan2 atanh cabs cacos cacosh carg casin casinh catan catanh cbrt ccos ccosh ceil cexp
    cimag clog conj copysign cos cosh cpow cproj creal csin csinh csqrt ctan ctanh erf erfc exp exp10 exp2 expm1 fabs
    fdim floor fma fmax fmin fmod frexp hypot ilogb isnan ldexp lgamma llrint llround log log10 log1p log2 logb lrint
    lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round roundeven scalbln scalbn sin sinh
    sqrt tan tanh tgamma trunc
"""
"""Functions of doubles, which exist for f32 and long double, too, with an f or l behind the name."""

_TAKEN = frozenset((_KEYWORDS + _LIBRARY).split()) | {name + end for name in _MATH.split() for end in ("", "f", "l")}
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


def entry_name(prefix: str, given: str | None, model: str) -> str:
    """The name of a bundle and its entry point: ``given``, or by that of the model.  Raises InputError for one that C
    does not take."""
    name = prefix + (given or identifier(model))
    if prefix and identifier(name) != name:
        raise InputError(
            f"prefix={prefix} makes the name '{name}', which is reserved or too long: {identifier(name)} would "
            "do (--name, --prefix)"
        )
    if identifier(name) != name:
        raise InputError(f"name={name} is reserved in C: {identifier(name)} would do (--name)")
    return name
