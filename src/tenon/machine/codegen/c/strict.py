"""Strict C99, for any compiler: no vector extensions, builtins, attributes or inline assembly.

Kernels must be for a machine of one lane without instructions of its own (``strict_machine``).  What GCC's dialect has
built in are functions of the standard library, which are declared where they are called: compilers for machines without
operating system may have no <math.h>.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.c import CBackend
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.file_head import EXACT
from tenon.machine.codegen.printer import Printer
from tenon.machine.kernel_ir.loops import Buffer, Const, Loop, Prefetch, Type
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import DType

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


class StrictC(C):
    """One translation unit of strict C99."""

    def __init__(self) -> None:
        super().__init__()
        self.taken |= {f"{name}{end}" for name in _MATH.split() for end in ("", "f", "l")}

    def type(self, t: Type) -> str:
        if t.lanes > 1:
            raise TypeError(f"{t} in strict C99, which has no vectors")
        return super().type(t)

    @staticmethod
    def first_of(native: Sequence[tuple[str, str]], portable: str) -> str:
        """Always the portable form."""
        return "  " + portable

    def literal(self, e: Const) -> str:
        dtype = e.type.dtype
        if not dtype.is_float or dtype.carrier is not dtype or math.isfinite(e.value):
            return super().literal(e)
        bits = Type(DType.U64 if dtype.bytes == 8 else DType.U32)
        value = np.array(e.value, dtype.numpy).view(f"u{dtype.bytes}")
        suffix = "ULL" if dtype.bytes == 8 else "u"
        return f"{self.bits(bits, e.type)}({int(value):#x}{suffix})"

    def operation(self, key: str, name: str, t: Type) -> str:
        return super().operation(key, name, t).replace("__builtin_", "")

    def on_loop(self, s: Loop) -> None:
        Printer.on_loop(self, s)

    def on_prefetch(self, s: Prefetch) -> None:
        """There is none."""

    def array(self, b: Buffer, size: int) -> str:
        return Printer.array(self, b, size)

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
        dot2=0.0,
        half=False,
        dot4=(),
        narrow_dot4=False,
        pairs=False,
        dot16=False,
        lookup=0,
    )


BACKEND: Backend = CBackend(StrictC)
