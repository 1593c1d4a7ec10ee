"""CUDA C: scalars, floats of 16 bits by the conversions of PTX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenon.machine.codegen.address import Address
from tenon.machine.codegen.gpu.dialect import DeviceC
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import AsyncCopy, Barrier, Buffer, Commit, Guarded, Load, Type, Wait, constant_of
from tenon.network.graph.types import DType

_TYPES = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
"""
_FUNCTIONS = """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 exp10 expm1 fabs fdim floor
    fma fmax fmin fmod frexp hypot ilogb ldexp lgamma log log2 log10 log1p logb max min modf nan nearbyint norm pow
    remainder remquo rhypot rint round rsqrt scalbn sin sincos sinh sqrt tan tanh tgamma trunc clock printf malloc free
    memcpy memset isnan isinf isfinite signbit
"""
_WORDS = """
    alignas alignof and asm bool catch char8_t class compl concept consteval constexpr decltype delete explicit export
    false friend mutable namespace new noexcept not nullptr operator or private protected public requires template this
    throw true try typeid typename using virtual xor
"""
_CONVERSIONS = {
    (DType.F16, DType.F32): (
        "float",
        "uint16_t",
        'float r;\n  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a));\n  return r;',
    ),
    (DType.F32, DType.F16): (
        "uint16_t",
        "float",
        'uint16_t r;\n  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(a));\n  return r;',
    ),
    (DType.BF16, DType.F32): ("float", "uint16_t", "return __uint_as_float((uint32_t)a << 16);"),
    (DType.F32, DType.BF16): (
        "uint16_t",
        "float",
        "const uint32_t u = __float_as_uint(a), high = u >> 16;\n"
        "  return (uint16_t)(a != a ? high | 0x40 : (u + (high & 1) + 0x7fff) >> 16);",
    ),
}


_COPY = """\
static __device__ __forceinline__ void copy_{bytes}(void *to, const void *from, int count) {{
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {bytes}, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
               "l"(__cvta_generic_to_global(from)), "r"(count));
}}"""
"""Copies so many of the bytes, and zeros for the others; 16 are not kept in the first cache."""

_PART_OF = """\
template <typename T> static __device__ __forceinline__ T *part_of(T *own, int block) {
  T *other;
  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(block));
  return other;
}"""
"""The same place in the shared memory of another block of the cluster."""

_MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"

_VECTORS = {DType.F32: "float", DType.I32: "int", DType.F16: "ushort", DType.BF16: "ushort"}


class CudaC(DeviceC):
    """One CUDA program."""

    language = "cuda"
    inline: ClassVar[str] = "static __device__ __forceinline__ "
    outlined = "static __device__ __forceinline__ void "  # so that shared memory is known as such inside
    reserved = tuple(_WORDS.split())
    function_names = frozenset(name for word in _FUNCTIONS.split() for name in (word, f"{word}f"))
    conversions = _CONVERSIONS
    operations = DeviceC.operations | {"nearest_quotient_add"}

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[int, tuple[tuple[Index, ...], tuple[Index, ...]]] = {}  # indices, and those in a block's part

    def portable(self, name: str, t: Type) -> str:
        """A product that is rounded alone is a function of the language."""
        if name == "mul_rounded" and t.dtype.is_float:
            return f"return __{'d' if t.dtype is DType.F64 else 'f'}mul_rn(a, b);"
        return super().portable(name, t)

    def vector(self, t: Type, elements: Sequence[str]) -> str:
        return f"make_{self.type(t)}({', '.join(elements)})"

    def type(self, t: Type) -> str:
        """Vectors are named after the language's own words."""
        return f"{_VECTORS[t.dtype]}{t.lanes}" if t.lanes == 4 else super().type(t)

    def on_barrier(self, s: Barrier) -> None:
        self.line(f"{self.inline_assembly('barrier_of_cluster', _MEET)}();" if s.cluster else "__syncthreads();")

    def inline_assembly(self, name: str, text: str) -> str:
        """The function that is a line of PTX, which loads and stores are not moved over."""
        return self.require(name, lambda: f'{self.inline}void {name}() {{\n  asm volatile("{text}" ::: "memory");\n}}')

    def on_copy(self, s: AsyncCopy) -> None:
        """An instruction, which needs aligned addresses."""
        if not self.aligned:
            super().on_copy(s)
            return
        source, test = (s.value.value, self.test(s.value.facts)) if isinstance(s.value, Guarded) else (s.value, "1")
        assert isinstance(source, Load)
        size = s.value.type.bytes
        text = _COPY.format(bytes=size, cache="cg" if size == 16 else "ca")
        name = self.require(f"copy_{size}", lambda: text)
        to, at = self.place(s.buffer, s.index), self.place(source.buffer, source.index)
        fill = constant_of(s.value.other) if isinstance(s.value, Guarded) else None
        if isinstance(s.value, Guarded) and fill is not None and fill.value != 0 and test != "1":
            # The instruction fills with zeros only; a store is seen behind the same barrier as what it copies.
            copied = f"{name}({to.sum}, {at.sum}, {size});"
            stored = self.stored(s.value.type, to, self.value(s.value.other))
            self.line(f"if ({test}) {copied} else {stored}")
            return
        count = {"0": "0", "1": str(size)}.get(test, f"{test} ? {size} : 0")
        self.line(f"{name}({to.sum}, {at.sum}, {count});")

    def on_commit(self, s: Commit) -> None:
        self.line(f"{self.inline_assembly('commit_copies', 'cp.async.commit_group;')}();")

    def on_wait(self, s: Wait) -> None:
        name = f"wait_for_all_copies_but_{s.groups}"
        self.line(f"{self.inline_assembly(name, f'cp.async.wait_group {s.groups};')}();")

    def place(self, buffer: Buffer, idx: tuple[Index, ...]) -> Address:
        """Memory of a cluster is a part in each of its blocks."""
        if buffer.space != "cluster":
            return super().place(buffer, idx)
        inner = self.parts.setdefault(id(idx), (idx, (Index(), *idx[1:])))[1]
        own = super().place(buffer, inner)
        assert self.groups is not None
        if idx[0] == Index(((self.groups.cluster, 1),)):  # type: ignore[arg-type]
            return own
        name = self.require("part_of", lambda: _PART_OF)
        return Address(f"{name}({own.sum}, {self.index(idx[0])})", 0)

    def head(self) -> str:
        """Besides: the integer types, for which the language has no header of its own."""
        return f"{_TYPES}{super().head()}"
