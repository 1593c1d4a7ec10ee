"""WGSL: words of memory that several threads change are atomic, numbers have at most 32 bits."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tenon.machine.codegen.address import Address
from tenon.machine.codegen.backend import KernelLaunch
from tenon.machine.codegen.function import CodeLine
from tenon.machine.codegen.gpu.words import ARRAYS, GROUP, NAMES, WordC
from tenon.machine.codegen.parentheses import bare
from tenon.machine.kernel_ir.loops import Alloc, Barrier, Buffer, Const, Kernel, Loop, Op, Type
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Region
from tenon.network.graph.types import DType

_I32, _U32 = DType.I32, DType.U32
_NAMES = {DType.F32: "f32", DType.I32: "i32", DType.U32: "u32"}
_WIDE = (DType.F64, DType.I64, DType.U64)
_VECTORS = {
    DType.F32: "vec4<f32>",
    DType.I32: "vec4<i32>",
    DType.U32: "vec4<u32>",
    **dict.fromkeys((DType.F16, DType.BF16), "vec2<u32>"),
}
_ROUNDING = 12582912.0
"""1.5 * 2**23, by whose sum and difference kernels round to an integer (``kernels.math``)."""
_WORDS = """
    active alias array as asm async atomic attribute auto await bool class common const diagnostic discard do enum
    export extern external f16 f32 fallthrough false filter final finally fixed from function get global half handle
    i32 impl implements import inline inout interface layout macro match meta mod module move mut mutable namespace new
    nil null of operator override package partition pass patch precise private protected ptr pub public readonly ref
    regardless require requires resource sampler self set shared sizeof smooth snorm static std struct super target
    template texture this trait true type typedef typeof u32 union unless unorm unsafe use using vec2 vec3 vec4 virtual
    volatile where with yield
"""
_FUNCTIONS = """
    abs acos acosh asin asinh atan atan2 atanh ceil clamp cos cosh cross degrees determinant distance dot exp exp2
    extractBits floor fma fract frexp insertBits inverseSqrt ldexp length log log2 max min mix modf normalize pow
    radians reflect round saturate select sign sin sinh smoothstep sqrt step tan tanh transpose trunc all any bitcast
"""
_BODIES = {
    **WordC.bodies,
    "round": "return round(a);",
    "mul_rounded": "return a * b;",
    "sqrdmulh": (
        "let al = bitcast<u32>(a) & 0xffffu;\n"
        "  let bl = bitcast<u32>(b) & 0xffffu;\n"
        "  let t = (a >> 16u) * i32(bl) + i32((al * bl) >> 16u);\n"
        "  let u = i32(al) * (b >> 16u) + (t & 0xffff);\n"
        "  var high = (a >> 16u) * (b >> 16u) + (t >> 16u) + (u >> 16u);\n"
        "  let low = bitcast<u32>(a) * bitcast<u32>(b) + 0x40000000u;\n"
        "  if (low < 0x40000000u) {{ high += 1; }}\n"
        "  return (high << 1u) | i32(low >> 31u);"
    ),
}
_ENTRY = """\
@compute @workgroup_size({size})
fn run_{number}(@builtin(workgroup_id) place: vec3<u32>, @builtin(num_workgroups) extent: vec3<u32>,
    @builtin(local_invocation_index) local: u32) {{
  let block = i32(place.y * extent.x + place.x);
{start}
  {function}({arguments});
}}
"""


class Wgsl(WordC):
    """One module.  ``atomic`` are the arrays in which the kernel being printed stores parts of words."""

    language = "webgpu"
    names: ClassVar[dict[DType, str]] = {d: _NAMES[of] for d, of in NAMES.items() if of not in _WIDE}
    int_type = "i32"
    outlined = "fn "
    reserved = tuple(_WORDS.split())
    function_names = frozenset(_FUNCTIONS.split())
    bodies: ClassVar[Mapping[str, str]] = _BODIES
    as_float = "bitcast<f32>"
    as_word = "bitcast<u32>"
    let = "let"

    def __init__(self) -> None:
        super().__init__()
        self.atomic = frozenset[str]()

    # -------------------------------------------------------------------------------------- memory
    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        parts = {b.name for b in k.params if b.space != "const" and b.type.dtype.bytes < 4}
        self.atomic = frozenset(ARRAYS[region] for name, region in self.regions.items() if name in parts)
        return super().kernel(k, slices)

    def located(self, address: Address) -> tuple[str, str]:
        words, number = super().located(address)
        return f"atomic_{words}" if words in self.atomic else words, number

    def word(self, words: str, number: str) -> str:
        return f"atomicLoad(&{words}[{number}])" if words.startswith("atomic_") else f"{words}[{number}]"

    def whole_stored(self, words: str, number: str, value: str) -> str:
        if words.startswith("atomic_"):
            return f"atomicStore(&{words}[{number}], {value});"
        return f"{words}[{number}] = {value};"

    def changed(self, words: str, number: str, change: str) -> str:
        return f"atomicXor(&{words}[{number}], {change});"

    def loaded_wide(self, dtype: DType, words: str, number: str) -> str:
        raise TypeError(f"{dtype}: WGSL has no numbers of 64 bits")

    def stored_wide(self, dtype: DType, words: str, number: str, value: str) -> str:
        raise TypeError(f"{dtype}: WGSL has no numbers of 64 bits")

    # ---------------------------------------------------------------------------------- operations
    def type(self, t: Type) -> str:
        return _VECTORS[t.dtype] if t.lanes == 4 and t.dtype in _VECTORS else super().type(t)

    def converted(self, text: str, source: DType, target: DType) -> str:
        """Negative constants are no words."""
        return (
            f"bitcast<u32>({bare(text)})"
            if (source, target) == (_I32, _U32)
            else super().converted(text, source, target)
        )

    def infix(self, e: Op, a: str, b: str) -> str:
        """Compilers may take (a + b) - b for a: what is rounded so is rounded again."""
        if e.name == "sub" and isinstance(e.args[1], Const) and e.args[1].value == _ROUNDING:
            return f"round({a} - {b})"
        return super().infix(e, a, b)

    def call(self, e: Op, args: list[str]) -> str:
        """Compilers may take floats for numbers: whether one is none is seen by its bits."""
        if e.name == "not_equal" and e.args[0].type.dtype is DType.F32 and args[0] == args[1]:
            return f"(-i32((bitcast<u32>({bare(args[0])}) & 0x7fffffffu) > 0x7f800000u))"
        return super().call(e, args)

    def not_finite(self, e: Const) -> str:
        """By a variable: constants may not be infinite, nor NaN."""
        bits = struct.unpack("<I", struct.pack("<f", e.value))[0]
        name = self.require(f"bits_{bits:x}", lambda: f"var<private> bits_{bits:x}: u32 = {bits:#x}u;")
        return f"bitcast<f32>({name})"

    # -------------------------------------------------------------------------------------- syntax
    def constant(self, type: str, name: str, value: str) -> str:
        return f"let {name} = {value};"

    def conditional(self, test: str, value: str, other: str) -> str:
        """Both are computed: accesses out of range are harmless, by the definition of the language."""
        return f"select({other}, {value}, {test})"

    def parameter(self, name: str, type: str) -> str:
        return f"{name}: {type.strip()}"

    def signature(self, name: str, takes: str, gives: str) -> str:
        pairs = (each.rsplit(" ", 1) for each in takes.split(", "))
        return f"fn {name}({', '.join(f'{given}: {type}' for type, given in pairs)}) -> {gives}"

    def on_alloc(self, s: Alloc) -> None:
        before = len(self.f.scopes[-1].lines)
        super().on_alloc(s)
        if s.buffer.space == "register":
            (line,) = self.f.scopes[-1].lines[before:]
            type = self.type(s.buffer.type)
            self.f.scopes[-1].lines[before:] = [
                CodeLine(line.text.replace(type, "var"), line.takes, line.gives, ((cell, f"{name}: {type}"),))
                for cell, name in line.cells
            ]

    def array(self, b: Buffer, size: int) -> str:
        return f"var {b.name}: array<{self.type(b.type)}, {size}>;"

    def shared_array(self, t: Type, name: str, size: int) -> str:
        return f"var<workgroup> {name}: array<{self.type(t)}, {size}>;"

    def loop_head(self, loop: Loop) -> str:
        v = loop.var.name
        return f"for (var {v} = 0; {v} < {self.bound(loop.var)}; {v}++) {{"

    def slice_head(self, loop: Loop, first: str, each: int) -> str:
        """A thread has one work item, which lies in at most one iteration: a test takes the place of the loop.

        SwiftShader does not finish compiling some kernels of five nested loops.
        """
        text = (
            "fn slice_first(first: i32, each: i32) -> i32 { return select(0, first / each, first > 0); }\n"
            "fn slice_end(end: i32, each: i32, count: i32) -> i32 { return min((end + each - 1) / each, count); }"
        )
        self.require("slice", lambda: text)
        v, start = loop.var.name, "" if first == "0" else f" - ({first})"
        begin, end = f"slice_first(slice_from{start}, {each})", f"slice_to{start}, {each}, {self.bound(loop.var)}"
        return f"if ({begin} < slice_end({end})) {{ let {v} = {begin};"

    def on_barrier(self, s: Barrier) -> None:
        self.line("workgroupBarrier();")

    # -------------------------------------------------------------------------------------- programs
    def operand(self, number: int) -> str:
        return f"operands[{number // 4}].{'xyzw'[number % 4]}"

    def entry(self, number: int, function: str, step: KernelLaunch) -> str:
        return _ENTRY.format(
            size=step.groups.size if step.groups else GROUP,
            number=number,
            start=_start(step),
            function=self.renamed(function),
            arguments=", ".join(self.arguments(step)),
        )

    def program(self, entries: Sequence[str]) -> str:
        arrays = (_arrays(i, region) for i, region in enumerate(ARRAYS))
        operands = f"@group(0) @binding({len(ARRAYS)}) var<uniform> operands: array<vec4<i32>, 8>;"
        return "\n".join([*arrays, operands, *self.shared, self.text(), *entries])

    def head(self) -> str:
        return "\n".join([*self.needed_helpers(), ""])

    def printed_functions(self) -> str:
        return self.renamed(super().printed_functions())

    def renamed(self, text: str) -> str:
        """Words of the language that are names of kernels and values; those that it prints itself stay."""
        words = "|".join(
            word for word in self.reserved if word not in ("array", "bool", "f32", "i32", "u32", "vec2", "vec4")
        )
        return re.sub(rf"(?<!/\* )\b({words})\b", r"\1_", text)


def _start(step: KernelLaunch) -> str:
    """The lines that find the number of a work item, or that of a thread in its block."""
    if (groups := step.groups) is not None:
        return f"  if (block >= {groups.count}) {{ return; }}\n  let thread = i32(local);"
    if step.work_items is None:
        return "  if (local > 0u) { return; }"
    return f"  let item = block * {GROUP} + i32(local);\n  if (item >= {step.work_items.length}) {{ return; }}"


def _arrays(binding: int, region: Region) -> str:
    access, name = "read" if region is Region.CONSTANT else "read_write", ARRAYS[region]
    head = f"@group(0) @binding({binding}) var<storage, {access}>"
    atomic = f"\n{head} atomic_{name}: array<atomic<u32>>;" if access != "read" else ""
    return f"{head} {name}: array<u32>;{atomic}"
