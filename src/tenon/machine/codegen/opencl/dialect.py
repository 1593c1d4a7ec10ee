"""OpenCL C 1.2: scalars, pointers with an address space, floats of 16 bits by its loads and stores of halves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from tenon.machine.codegen.clike import CLike
from tenon.machine.codegen.gpu.dialect import DeviceC
from tenon.machine.kernel_ir.loops import Barrier, Expr, Kernel, Load, Type
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Region
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


_IMAGES = """\
#ifdef TENON_IMAGES
#define IMAGE_OF_KERNEL , __read_only image1d_buffer_t constant_image
#define IMAGE_PARAMETERS IMAGE_OF_KERNEL, __global const float *constant_floats
#define IMAGE_ARGUMENTS , constant_image, (__global const float *){region}
#define TEXEL(at) read_imagef(constant_image, (int)((__global const float *)(at) - constant_floats) >> 2)
#else
#define IMAGE_OF_KERNEL
#define IMAGE_PARAMETERS
#define IMAGE_ARGUMENTS
#define TEXEL(at) *(__global const float4 *)(at)
#endif
"""


class OpenCLC(DeviceC):
    """One OpenCL program.

    Four neighbouring floats of the constant region are a texel: the host defines TENON_IMAGES where they are to be read
    from an image of that region.  ``with_images`` are the functions that do so.
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
        "constant_image",
        "constant_floats",
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
        self.with_images: set[str] = set()
        self.reads_texels = False  # whether the kernel being printed does

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        self.reads_texels = False
        name = super().kernel(k, slices)
        if self.reads_texels and name not in self.with_images:
            self.with_images.add(name)
            key, printed = next((key, each) for key, each in self.functions.items() if each.name == name)
            self.functions[key] = replace(printed, text=printed.text.replace(") {", " IMAGE_PARAMETERS) {", 1))
        return name

    def more_operands(self, function: str) -> tuple[str, str]:
        texels = function in self.with_images
        return " IMAGE_OF_KERNEL" if self.with_images else "", " IMAGE_ARGUMENTS" if texels else ""

    def value(self, e: Expr, whole: bool = True) -> str:
        """Outlined functions read no images, which they are not given."""
        is_texel = isinstance(e, Load) and e.buffer in self.constants and e.type == Type(DType.F32, 4)
        if not is_texel or not self.aligned or self.f.outlined:
            return super().value(e, whole)
        assert isinstance(e, Load)
        self.reads_texels = True
        return f"TEXEL({self.place(e.buffer, e.index).sum})"

    def bits(self, source: Type, target: Type) -> str:
        """A function of the language."""
        return f"as_{self.type(target)}"

    def on_barrier(self, s: Barrier) -> None:
        self.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")

    def head(self) -> str:
        """Besides: the extension for doubles, where there are any."""
        text = super().head()
        text = text + _IMAGES.format(region=Region.CONSTANT) if self.with_images else text
        uses_doubles = re.search(r"\bdouble\b", text + self.printed_functions())
        return f"#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n{text}" if uses_doubles else text
