"""Functions of libraries that a network's object calls: what firmware has to link with it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tenon.machine.toolchain.imports import imported
from tenon.runtime.bundle.manifest import LibraryCalls

_MEMORY = frozenset({"memcpy", "memmove", "memset", "memcmp"})
_CALLED = re.compile(r"\b__builtin_((?:sqrt|floor|ceil|trunc|rint|nearbyint|round|fmin|fmax|fma)f?)\b")
"""The functions of <math.h> in generated code that a compiler may not have an instruction for."""


def library_calls(content: bytes) -> LibraryCalls:
    """The functions that an ELF object calls.  Raises ToolchainError for another or a damaged file."""
    names = imported(content)
    return LibraryCalls(
        libm=tuple(name for name in names if name not in _MEMORY and not name.startswith("__")),
        libc=tuple(name for name in names if name in _MEMORY),
        compiler=tuple(name for name in names if name.startswith("__")),
    )


def possible_calls(texts: Sequence[str]) -> tuple[str, ...]:
    """The functions of libm that any compiler may call for these C texts, sorted."""
    return tuple(sorted({name for text in texts for name in _CALLED.findall(text)}))


def library_comment(prefix: str, calls: LibraryCalls, possible: Sequence[str]) -> str:
    """The lines of a header that list the functions: a comment and ``<NAME>_LIBM_FUNCTIONS(X)``."""
    others = [name for name in possible if name not in calls.libm]
    listed = " ".join(f"X({name})" for name in calls.libm)
    return "\n".join(
        [
            f"/* Functions that this bundle's object calls.  Of libm: {_names(calls.libm)}; of the C library:",
            f"   {_names(calls.libc)}; of the compiler's own: {_names(calls.compiler)}.",
            f"   Other compilers may call memcpy and memset as well, and of libm: {_names(others)}.",
            "   Those of libm as a list: X(function) */",
            f"#define {prefix}_LIBM_FUNCTIONS(X) {listed}".rstrip(),
            "",
        ]
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
