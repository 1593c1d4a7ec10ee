"""GLSL for Vulkan: buffers of words, 64-bit numbers where the device has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tenon.machine.codegen.backend import KernelLaunch
from tenon.machine.codegen.gpu.words import ARRAYS, GROUP, NAMES, OPERANDS, WordC
from tenon.machine.codegen.parentheses import bare
from tenon.machine.kernel_ir.loops import Barrier, Type
from tenon.machine.plan.program import Region
from tenon.network.graph.types import DType

_NAMES = {
    DType.F32: "float",
    DType.I32: "int",
    DType.U32: "uint",
    DType.F64: "double",
    DType.I64: "int64_t",
    DType.U64: "uint64_t",
}
_WORDS = """
    active asm atomic_uint attribute bool buffer cast centroid class coherent common
    discard enum extern external filter fixed flat goto half highp
    image1D image2D image3D in inline inout input interface invariant layout long lowp
    mediump namespace noinline noperspective out output partition patch precise precision public readonly resource
    restrict sample sampler sampler1D sampler2D sampler3D shared short sizeof smooth subroutine superp template this
    texture typedef uniform union unsigned using varying volatile writeonly
"""
_FUNCTIONS = """
    radians degrees sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh pow exp log exp2 log2 sqrt inversesqrt
    abs sign floor trunc round roundEven ceil fract mod modf min max clamp mix step smoothstep isnan isinf fma frexp
    ldexp length distance dot cross normalize faceforward reflect refract outerProduct transpose determinant inverse
    lessThan greaterThan equal notEqual any all not uaddCarry usubBorrow umulExtended imulExtended bitfieldExtract
    bitfieldInsert bitfieldReverse bitCount findLSB findMSB atomicAdd atomicMin atomicMax atomicAnd atomicOr atomicXor
    atomicExchange barrier main
"""
_SIXTY_FOUR = {
    DType.I64: ("int64_t(packUint2x32({0}))", "unpackUint2x32(uint64_t({0}))"),
    DType.U64: ("packUint2x32({0})", "unpackUint2x32({0})"),
    DType.F64: ("packDouble2x32({0})", "unpackDouble2x32({0})"),
}
"""Two words as a number, and back."""
_WIDENED = {
    DType.I32: ("uint64_t", "int a", "return packUint2x32(uvec2(uint(a), uint(a >> 31)));"),
    DType.U32: ("uint64_t", "uint a", "return packUint2x32(uvec2(a, 0u));"),
}
_VECTORS = {DType.F32: "vec4", DType.I32: "ivec4", **dict.fromkeys((DType.U32, DType.F16, DType.BF16), "uvec4")}
_BITS = {
    (DType.I64, DType.F64): "int64BitsToDouble",
    (DType.F64, DType.I64): "doubleBitsToInt64",
    (DType.U64, DType.F64): "uint64BitsToDouble",
    (DType.F64, DType.U64): "doubleBitsToUint64",
}
_BODIES = {
    **WordC.bodies,
    "round": "return roundEven(a);",
    "mul_rounded": "precise {V} r = a * b;\n  return r;",
    "sqrdmulh": (
        "int high, low;\n"
        "  imulExtended(a, b, high, low);\n"
        "  uint rounded = uint(low) + 0x40000000u;\n"
        "  if (rounded < 0x40000000u) {{ high += 1; }}\n"
        "  return (high << 1) | int(rounded >> 31);"
    ),
}
_HALF = (
    "{float}",
    "{word} a",
    "{let} rest = a & 0x3ffu;\n"
    "  if ((a & 0x7c00u) != 0u) {{ return unpackHalf2x16(a).x; }}\n"
    "  return {as_float}({as_word}({float}(rest) * 5.9604644775390625e-8f) | ((a & 0x8000u) << 16u));",
)
"""A half float: the built-in function may take numbers below the normal ones as zero, and its opposite rounds as the
device likes."""
_PROGRAM = """\
/* Each function run_N is a program of its own; main calls all of them, so that they are compiled together. */
#version 450
#extension GL_ARB_gpu_shader_int64 : {wide}
layout(local_size_x = 64) in;
{buffers}
layout(push_constant) uniform Operands {{ int first[{operands}]; }};
{text}
void main() {{
{calls}
}}
"""
_GROUP = "int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)"
_ENTRY = """\
void run_{number}() {{
{start}
  {function}({arguments});
}}
"""


class Glsl(WordC):
    """One compute shader."""

    language = "vulkan"
    names: ClassVar[dict[DType, str]] = {dtype: _NAMES[of] for dtype, of in NAMES.items()}
    outlined = "void "
    reserved = tuple(_WORDS.split())
    function_names = frozenset(_FUNCTIONS.split())
    bodies: ClassVar[Mapping[str, str]] = _BODIES
    conversions: ClassVar = {**WordC.conversions, (DType.F16, DType.F32): _HALF}
    integer_suffixes: ClassVar[Mapping[DType, str]] = {**WordC.integer_suffixes, DType.I64: "L", DType.U64: "UL"}
    as_float = "uintBitsToFloat"
    as_word = "floatBitsToUint"
    let = "const uint"

    def type(self, t: Type) -> str:
        return _VECTORS[t.dtype] if t.lanes == 4 and t.dtype in _VECTORS else super().type(t)

    def vector(self, t: Type, elements: Sequence[str]) -> str:
        return f"{self.type(t)}({', '.join(elements)})"

    def converted(self, text: str, source: DType, target: DType) -> str:
        """Mesa 22 compares integers that were widened to 64 bits wrongly with constants: they are put together."""
        if source in (DType.I32, DType.U32) and target in (DType.I64, DType.U64):
            name = f"wide_{source}"
            whole = self.require(name, lambda: self.helper_text(name, _WIDENED[source]))
            return super().converted(f"{whole}({bare(text)})", DType.U64, target)
        return super().converted(text, source, target)

    def loaded_wide(self, dtype: DType, words: str, number: str) -> str:
        pair = f"uvec2({words}[2 * ({number})], {words}[2 * ({number}) + 1])"
        return _SIXTY_FOUR[dtype][0].format(pair)

    def stored_wide(self, dtype: DType, words: str, number: str, value: str) -> str:
        pair = _SIXTY_FOUR[dtype][1].format(value)
        at = f"{words}[2 * ({number})"
        return f"{{ const uvec2 pair = {pair}; {at}] = pair.x; {at} + 1] = pair.y; }}"

    def changed(self, words: str, number: str, change: str) -> str:
        return f"atomicXor({words}[{number}], {change});"

    def same_bits(self, text: str, source: DType, target: DType) -> str:
        if function := _BITS.get((source, target)):
            return f"{function}({text})"
        return super().same_bits(text, source, target)

    def bits(self, source: Type, target: Type) -> str:
        return _BITS.get((source.dtype, target.dtype)) or super().bits(source, target)

    @staticmethod
    def suffix(dtype: DType) -> str:
        return "lf" if dtype is DType.F64 else "f"

    def on_barrier(self, s: Barrier) -> None:
        self.line("barrier();")

    def shared_array(self, t: Type, name: str, size: int) -> str:
        return f"shared {self.type(t)} {name}[{size}];"

    def operand(self, number: int) -> str:
        return f"first[{number}]"

    def entry(self, number: int, function: str, step: KernelLaunch) -> str:
        return _ENTRY.format(
            number=number, start=_start(step), function=function, arguments=", ".join(self.arguments(step))
        )

    def program(self, entries: Sequence[str]) -> str:
        text = "\n".join([*self.shared, self.text(), *entries])
        return _PROGRAM.format(
            wide="require" if "int64_t" in text else "disable",
            buffers="\n".join(_buffer(i, region) for i, region in enumerate(ARRAYS)),
            operands=OPERANDS,
            text=text,
            calls="\n".join(f"  run_{i}();" for i in range(len(entries))),
        )


def _start(step: KernelLaunch) -> str:
    """The lines that find the number of a work item, or those of a block and of its thread."""
    if (groups := step.groups) is not None:
        return f"  int block = {_GROUP}, thread = int(gl_LocalInvocationID.x);\n  if (block >= {groups.count}) return;"
    if step.work_items is None:
        return "  if (gl_LocalInvocationID.x > 0u) return;"
    item = f"  int item = {_GROUP} * {GROUP} + int(gl_LocalInvocationID.x);"
    return f"{item}\n  if (item >= {step.work_items.length}) return;"


def _buffer(binding: int, region: Region) -> str:
    access = "readonly " if region is Region.CONSTANT else ""
    return f"layout(std430, binding = {binding}) {access}buffer {region.name.title()} {{ uint {ARRAYS[region]}[]; }};"
