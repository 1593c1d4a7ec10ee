"""GLSL for Vulkan: buffers of words, 64-bit numbers where the device has them.

A program with 16-bit numbers is compiled twice, the second time with SIXTEEN_BITS for devices that load, store and
convert them (``spirv``).  One whose threads exchange values is compiled with SUBGROUPS for devices that do this without
shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tenon.machine.codegen.address import Address
from tenon.machine.codegen.backend import KernelLaunch
from tenon.machine.codegen.gpu.words import ARRAYS, NAMES, OPERANDS, WordC, paired
from tenon.machine.codegen.parentheses import bare
from tenon.machine.codegen.vulkan.shared_arrays import four_of, shared_in_fours
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    Alloc,
    Barrier,
    Buffer,
    Instruction,
    Kernel,
    Store,
    Type,
)
from tenon.machine.kernel_ir.walk import statements
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.kernel_ir.work_items import WorkItems
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
_VECTORS = {
    DType.F32: "vec4",
    DType.I32: "ivec4",
    DType.U32: "uvec4",
    **dict.fromkeys((DType.F16, DType.BF16), "uvec2"),
}
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
_F16, _F32 = DType.F16, DType.F32
_HALVES = {
    (_F16, _F32): (
        "{float}",
        "{word} a",
        "#ifdef SIXTEEN_BITS\n"
        "  if (denorms16 || (a & 0x7c00u) != 0u) {{ return float(unpackFloat2x16(a).x); }}\n"
        "#endif\n"
        "  if ((a & 0x7c00u) != 0u) {{ return unpackHalf2x16(a).x; }}\n"
        "  return {as_float}({as_word}({float}(a & 0x3ffu) * 5.9604644775390625e-8f) | ((a & 0x8000u) << 16u));",
    ),
    (_F32, _F16): (
        *WordC.conversions[_F32, _F16][:2],
        "#ifdef SIXTEEN_BITS\n"
        "  if (rounds16 && (denorms16 || abs(a) >= 6.103515625e-5f)) {{\n"
        "    return packFloat2x16(f16vec2(a, 0.0f));\n"
        "  }}\n"
        f"#endif\n  {WordC.conversions[_F32, _F16][2]}",
    ),
}
"""A half float: the built-in functions of all devices may take numbers below the normal ones as zero, and round as the
device likes.  The host says by constants what conversions of the device do."""
_AT_ONCE = {
    (_F16, _F32): ("denorms16", "vec4(vec2(unpackFloat2x16(a.x)), vec2(unpackFloat2x16(a.y)))"),
    (_F32, _F16): (
        "denorms16 && rounds16",
        "uvec2(packFloat2x16(f16vec2(a.xy)), packFloat2x16(f16vec2(a.zw)))",
    ),
}
"""When four are converted at once, and how."""
_PROGRAM = """\
/* Each function run_N is a program of its own; main calls all of them, so that they are compiled together. */
#version 450
#extension GL_ARB_gpu_shader_int64 : {wide}
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#ifdef SIXTEEN_BITS
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
layout(constant_id = 0) const bool denorms16 = false; /* floats of 16 bits below the normal ones are converted */
layout(constant_id = 1) const bool rounds16 = false;  /* floats are rounded to the nearest of 16 bits */
#endif
#ifdef SUBGROUPS
layout(constant_id = 2) const uint subgroup_size = 32; /* threads that exchange values without shared memory */
#define THREAD (gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID)
#else
#define THREAD gl_LocalInvocationID.x
#endif
{extensions}layout(local_size_x = 64, local_size_x_id = 3) in; /* of work items: the host says how many */
{buffers}
layout(push_constant) uniform Operands {{ int first[{operands}]; }};
{text}
void main() {{
{calls}
}}
"""
_BUFFER = """\
{head} {{ uint {words}[]; }};
{head}Pairs {{ uvec2 {pairs}[]; }};
{head}Quads {{ uvec4 {quads}[]; }};
#ifdef SIXTEEN_BITS
{head}Halves {{ uint16_t {halves}[]; }};
#define load_{half}(n) uint({halves}[n])
#define store_{half}(n, value) {halves}[n] = uint16_t(value)
#else
#define load_{half}(n) part16({words}[(n) >> 1], n)
#define store_{half}(n, value) atomicXor({words}[(n) >> 1], change16({words}[(n) >> 1], n, value))
#endif"""
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
    conversions: ClassVar = {**WordC.conversions, **_HALVES}
    integer_suffixes: ClassVar[Mapping[DType, str]] = {**WordC.integer_suffixes, DType.I64: "L", DType.U64: "UL"}
    as_float = "uintBitsToFloat"
    as_word = "floatBitsToUint"
    let = "const uint"

    def __init__(self) -> None:
        super().__init__()
        self.packed: set[str] = set()
        """Arrays that the threads of a work group share, of four floats of 16 bits an element."""
        self.single = frozenset[Buffer]()
        """Buffers in which the kernel being printed stores single elements."""
        self.in_fours = frozenset[Buffer]()
        """Shared buffers of the kernel being printed of which every element's place among four is known."""

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        stores = (s for s in statements(k.body) if isinstance(s, Store))
        self.single = frozenset(s.buffer for s in stores if s.value.type.lanes == 1)
        self.in_fours = shared_in_fours(k)
        return super().kernel(k, slices)

    def on_alloc(self, s: Alloc) -> None:
        super().on_alloc(s)
        b = s.buffer
        if b.space == "shared" and b.type.dtype.bytes == 2 and b not in self.single:
            name = self.f.arrays[b]
            self.packed.add(name)
            self.shared[-1] = f"shared uvec2 {name}[{buffer_bytes(b) // 8}];"
        elif b in self.in_fours:
            name = self.f.arrays[b]
            self.shared[-1] = f"shared {self.type(Type(b.type.dtype, 4))} {name}[{-(-buffer_bytes(b) // 16)}];"

    def place(self, buffer: Buffer, idx: tuple[Index, ...]) -> Address:
        address = super().place(buffer, idx)
        if buffer not in self.in_fours:
            return address
        flat = buffer.flat(idx)
        rest = self.now(Index(tuple((atom, k) for atom, k in flat.terms if k % 4), flat.const))
        assert not rest.terms
        return replace(address, lane=rest.const % 4)

    def load(self, t: Type, address: Address) -> str:
        if address.lane is not None:
            return four_of(address) if t.lanes == 4 else f"{four_of(address)}.{'xyzw'[address.lane]}"
        if address.array not in self.packed:
            return super().load(t, address)
        number = place_of(address)
        four = f"{address.array}[({number}) >> 2]"
        return four if paired(t) else f"{self.required('part16')}({four}[(({number}) >> 1) & 1], {number})"

    def stored(self, t: Type, address: Address, value: str) -> str:
        if address.lane is not None:
            return f"{self.load(t, address)} = {value};"
        if address.array not in self.packed:
            return super().stored(t, address, value)
        return f"{address.array}[({place_of(address)}) >> 2] = {value};"

    def type(self, t: Type) -> str:
        return _VECTORS[t.dtype] if t.lanes == 4 and t.dtype in _VECTORS else super().type(t)

    def loaded_part(self, dtype: DType, words: str, number: str) -> str:
        if dtype.bytes == 1:
            return super().loaded_part(dtype, words, number)
        self.required("part16")
        return f"load_{_view(words, 'half')}({number})"

    def stored_part(self, dtype: DType, words: str, number: str, value: str) -> str:
        if dtype.bytes == 1:
            return super().stored_part(dtype, words, number, value)
        self.required("change16")
        return f"store_{_view(words, 'half')}({number}, {bare(value)});"

    def loaded_vector(self, t: Type, address: Address) -> str:
        """At once, where it is known to be aligned."""
        if not (self.aligned and address.array in self.regions):
            return super().loaded_vector(t, address)
        words, number = self.located(address)
        vector = f"{_view(words, 'pairs' if paired(t) else 'quads')}[({number}) >> 2]"
        return self.of_word(vector, t.dtype) if t.dtype is DType.F32 else f"{self.type(t)}({vector})"

    def stored_vector(self, t: Type, address: Address, value: str) -> str:
        if not (self.aligned and address.array in self.regions):
            return super().stored_vector(t, address, value)
        words, number = self.located(address)
        bits = self.to_word(value, t.dtype) if t.dtype is DType.F32 else value if paired(t) else f"uvec4({bare(value)})"
        return f"{_view(words, 'pairs' if paired(t) else 'quads')}[({number}) >> 2] = {bits};"

    def quick_vector_conversion(self, source: DType, target: DType) -> str:
        if (source, target) not in _AT_ONCE:
            return ""
        when, value = _AT_ONCE[source, target]
        return f"#ifdef SIXTEEN_BITS\n  if ({when}) {{ return {value}; }}\n#endif\n"

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

    def instruction_text(self, s: Instruction) -> str:
        """Subgroups exchange numbers of 32 bits."""
        narrow = all(buffer.type.dtype.bytes < 8 for buffer, _ in s.operands)
        return super().instruction_text(s) if narrow else ""

    def memory_operand(self, buffer: Buffer, at: tuple[Index, ...]) -> str:
        """The element: there are no pointers."""
        return self.load(buffer.type, self.place(buffer, at))

    def shared_array(self, t: Type, name: str, size: int) -> str:
        return f"shared {self.type(t)} {name}[{size}];"

    def operand(self, number: int) -> str:
        return f"first[{number}]"

    def entry(self, number: int, function: str, step: KernelLaunch) -> str:
        return _ENTRY.format(
            number=number, start=_start(step), function=function, arguments=", ".join(self.arguments(step))
        )

    def listing(self, entries: Iterable[str]) -> str:
        """Everything that was printed, and entries."""
        return "\n".join([*self.shared, self.text(), *entries])

    def program(self, entries: Sequence[str]) -> str:
        return program(self.listing(entries), "\n".join(f"  run_{i}();" for i in range(len(entries))))


def program(text: str, calls: str, extensions: str = "") -> str:
    """A program of functions, of which ``main`` makes calls."""
    return _PROGRAM.format(
        wide="require" if "int64_t" in text else "disable",
        extensions=extensions,
        buffers="\n".join(_buffer(i, region) for i, region in enumerate(ARRAYS)),
        operands=OPERANDS,
        text=text,
        calls=calls,
    )


def place_of(address: Address) -> str:
    """The number of an element in an array that threads share."""
    return address.sum if address.base else str(address.at)


def _start(step: KernelLaunch) -> str:
    """The lines that find the number of a work item, or those of a block and of its thread."""
    if (groups := step.groups) is not None:
        return f"  int block = {_GROUP}, thread = int(THREAD);\n  if (block >= {groups.count}) return;"
    if step.work_items is None:
        return "  if (gl_LocalInvocationID.x > 0u) return;"
    item = f"  int item = {_GROUP} * int(gl_WorkGroupSize.x) + int(gl_LocalInvocationID.x);"
    return f"{item}\n  if (item >= {step.work_items.length}) return;"


def _view(words: str, kind: str) -> str:
    """The name of a view of an array of words."""
    return f"{words.removesuffix('_words')}_{kind}"


def _buffer(binding: int, region: Region) -> str:
    """The array of words of a region, and views of the same memory as pairs, as four words and in 16 bits."""
    array, access = ARRAYS[region], "readonly " if region is Region.CONSTANT else ""
    views = {kind: _view(array, kind) for kind in ("half", "halves", "pairs", "quads")}
    head = f"layout(std430, binding = {binding}) {access}buffer {region.name.title()}"
    return _BUFFER.format(words=array, head=head, **views)
