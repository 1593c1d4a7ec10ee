"""OpenCL C 1.2: scalars, pointers with an address space, floats of 16 bits by its loads and stores of halves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tenon.machine.codegen.clike import CLike
from tenon.machine.codegen.gpu.dialect import DeviceC, MoreArguments
from tenon.machine.codegen.gpu.memory_objects import Objects
from tenon.machine.codegen.opencl.images import (
    FLOATS,
    FOUR,
    HALVES,
    INTS,
    WORDS,
    Texels,
    arguments,
    macros,
    parameters,
)
from tenon.machine.kernel_ir.loops import Barrier, Buffer, Expr, Kernel, Load, Op, Type
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.network.graph.types import DType

_NAMES = {
    "int8_t": "char",
    "uint8_t": "uchar",
    "int16_t": "short",
    "uint16_t": "ushort",
    "int32_t": "int",
    "uint32_t": "uint",
    "int64_t": "long",
    "uint64_t": "ulong",
}
_FUNCTIONS = """
    abs abs_diff add_sat hadd rhadd clamp clz mad_hi mad_sat max min mul_hi rotate sub_sat upsample mad24 mul24 degrees
    mix radians step smoothstep sign cross dot distance length normalize select bitselect isequal isnotequal isgreater
    isless isfinite isinf isnan isnormal any all acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2
    exp10 expm1 fabs fdim floor fma fmax fmin fmod fract frexp hypot ilogb ldexp lgamma log log2 log10 log1p logb mad
    modf nan nextafter pow pown powr remainder remquo rint rootn round rsqrt sin sincos sinh sqrt tan tanh tgamma trunc
    barrier prefetch printf shuffle
"""
_CONVERSIONS = {
    (DType.F16, DType.F32): ("float", "ushort", "return vload_half(0, (const half *)&a);"),
    (DType.F32, DType.F16): ("ushort", "float", "ushort r;\n  vstore_half_rte(a, 0, (half *)&r);\n  return r;"),
    (DType.BF16, DType.F32): ("float", "ushort", "return as_float((uint)a << 16);"),
    (DType.F32, DType.BF16): (
        "ushort",
        "float",
        "const uint u = as_uint(a), high = u >> 16;\n"
        "  return (ushort)(a != a ? high | 0x40 : (u + (high & 1) + 0x7fff) >> 16);",
    ),
}


class OpenCLC(DeviceC):
    """One OpenCL program.

    Four neighbouring floats of an operand that is not written meanwhile are read from an image where the host says so
    (``opencl.images``).  ``texels`` has the operands that a function reads so, by its name.
    """

    language = "opencl"
    names: ClassVar[dict[DType, str]] = {dtype: _NAMES.get(name, name) for dtype, name in CLike.names.items()}
    outlined = "static void "
    spaces: ClassVar[dict[str, str]] = {
        "global": "__global ",
        "const": "__global ",
        "scratch": "__global ",
        "shared": "__local ",
    }
    typed_functions = False
    reserved = (
        "other_activations",
        "constant",
        "generic",
        "global",
        "half",
        "kernel",
        "local",
        "pipe",
        "private",
        "event_t",
        "sampler_t",
    )
    bodies: ClassVar[Mapping[str, str]] = {
        **CLike.bodies,
        "mul_rounded": "#pragma OPENCL FP_CONTRACT OFF\n  return a * b;",
    }
    integer_suffixes: ClassVar[Mapping[DType, str]] = {DType.I64: "L", DType.U64: "UL", DType.U32: "u"}
    function_names = frozenset(_FUNCTIONS.split())
    conversions = _CONVERSIONS

    def __init__(self) -> None:
        super().__init__()
        self.texels: dict[str, frozenset[Texels]] = {}
        self.params: tuple[Buffer, ...] = ()
        self.read: set[Texels] = set()  # of the kernel being printed

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        self.read, self.params = set(), k.params
        name = super().kernel(k, slices)
        if self.read and name not in self.texels:
            self.texels[name] = frozenset(self.read)
            key, printed = next((key, each) for key, each in self.functions.items() if each.name == name)
            self.functions[key] = replace(printed, text=printed.text.replace(") {", f"{parameters(self.read)}) {{", 1))
        return name

    def more_arguments(self, function: str, objects: Objects) -> MoreArguments:
        second = any(not each.weights for texels in self.texels.values() for each in texels)
        return arguments(self.texels.get(function, ()), objects, second)

    def value(self, e: Expr, whole: bool = True) -> str:
        """Outlined functions read no images, which they are not given."""
        if self.aligned and not self.f.outlined and (kind := _texel(e)) is not None:
            load = e.args[0] if isinstance(e, Op) else e
            assert isinstance(load, Load)
            if load.buffer in self.as_images:
                b = load.buffer
                if kind == HALVES:
                    self.vector_conversion(load.type, e.type)
                texels = Texels(self.params.index(b), b.name, b in self.weights, kind)
                self.read.add(texels)
                return texels.read(self.place(b, load.index).sum)
        return super().value(e, whole)

    def bits(self, source: Type, target: Type) -> str:
        """A function of the language."""
        return f"as_{self.type(target)}"

    def on_barrier(self, s: Barrier) -> None:
        self.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")

    def head(self) -> str:
        """Besides: the extension for doubles, where there are any."""
        text = super().head()
        used = frozenset[Texels]().union(*self.texels.values())
        text = f"{text}{macros(used)}" if used else text
        uses_doubles = re.search(r"\bdouble\b", text + self.printed_functions())
        return f"#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n{text}" if uses_doubles else text


def _texel(e: Expr) -> int | None:
    """The kind of texel that a value can be read as; None for others."""
    if isinstance(e, Op) and e.name == "cast" and e.type == FOUR:
        return HALVES if isinstance(e.args[0], Load) and e.args[0].type == Type(DType.F16, 4) else None
    if not isinstance(e, Load) or e.type.lanes != 4:
        return None
    return {DType.F32: FLOATS, DType.I32: INTS, DType.F16: WORDS, DType.BF16: WORDS}.get(e.type.dtype)
