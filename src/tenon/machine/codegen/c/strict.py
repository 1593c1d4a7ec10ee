"""Strict C99, for any compiler: no vector extensions, builtins, attributes or inline assembly.

Kernels must be for a machine of one lane without instructions of its own (``strict_machine``).  What GCC's dialect has
built in are functions of the standard library, which are declared where they are called: compilers for machines without
operating system may have no <math.h>.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.c import CBackend
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.file_head import EXACT
from tenon.machine.kernels.machine import Machine

_HEAD = """\
#define TENON_LOOP
#define TENON_OUTLINE static
#define TENON_INLINE static inline
"""
_MATH = """
    acos asin atan atan2 cos sin tan acosh asinh atanh cosh sinh tanh exp exp2 expm1 frexp ilogb ldexp log log10 log1p
    log2 logb modf scalbn scalbln cbrt fabs hypot pow sqrt erf erfc lgamma tgamma ceil floor nearbyint rint lrint llrint
    round lround llround trunc fmod remainder remquo copysign nan nextafter nexttoward fdim fmax fmin fma
"""
_CALLED = "fabs|sqrt|floor|ceil|trunc|copysign"


class StrictC(C99):
    """One translation unit of strict C99."""

    def __init__(self) -> None:
        super().__init__()
        self.taken |= {f"{name}{end}" for name in _MATH.split() for end in ("", "f", "l")}

    def head(self) -> str:
        helpers = self.needed_helpers()
        body = "\n".join((*self.functions, *helpers))
        exact = EXACT if re.search(r"\b(float|double)\b", body) else ""
        used = dict.fromkeys(re.findall(rf"\b({_CALLED})(f?)\(", body))
        declared = [_declaration(name, end) for name, end in sorted(used)]
        return "\n".join([f"{exact}{_HEAD}{''.join(declared)}", *helpers, ""])


def _declaration(name: str, end: str) -> str:
    type = "float" if end else "double"
    return f"{type} {name}{end}({', '.join([type] * (2 if name == 'copysign' else 1))});\n"


def strict_machine(machine: Machine) -> Machine:
    """``machine`` as strict C99 knows it: one lane, and no instructions that C has no operator for."""
    return replace(
        machine,
        lanes=1,
        block=4,
        registers=min(machine.registers, 16),
        folds_broadcast=False,
        prefetch=False,
        products=tuple(unit for unit in machine.products if unit.operation == "mul"),
        table=None,
    )


BACKEND: Backend = CBackend(StrictC)
