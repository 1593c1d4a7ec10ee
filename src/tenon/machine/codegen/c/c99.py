"""What GNU C and strict C99 share: the macros of their files, floats of 16 bits as integers, products of bytes and of
pairs in plain C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tenon.machine.codegen.c import dots, half, pairs, quotients
from tenon.machine.codegen.clike import CLike
from tenon.machine.codegen.scalar_functions import BODIES, TAKES
from tenon.machine.kernel_ir.loops import Barrier, Type
from tenon.network.graph.types import DType


class C99(CLike):
    """One translation unit of C99; dialects say what the macros are."""

    loop_word = "TENON_LOOP "
    inline = "TENON_INLINE "
    outlined = "TENON_OUTLINE void "
    bodies: ClassVar[Mapping[str, str]] = {
        **BODIES,
        "dot2": half.DOT2_SCALAR,
        "fma_f16": half.FMA_ONE,
        "sqrdmulh": "return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31);",
        **dots.SCALAR,
        **pairs.SCALAR,
        **quotients.SCALAR,
    }
    takes: ClassVar[Mapping[str, str]] = {
        **TAKES,
        "dot2": half.DOT2_TAKES,
        **half.FMA_TAKES,
        **dots.TAKES,
        "sqrdmulh": "{V} a, {V} b",
        **pairs.TAKES,
        **quotients.TAKES,
    }
    not_computed: ClassVar[frozenset[str]] = CLike.not_computed | half.FMA_TAKES.keys()

    def words(self, name: str, t: Type) -> dict[str, object]:
        """Besides: Q is a vector of four words, ``tie`` the function that rounds ties; others are functions that a
        product of floats of 16 bits calls."""
        words = super().words(name, t)
        if name == "dot16":
            words["Q"] = self.type(Type(DType.I32, 4))
        if name == "shift_even":
            words["tie"] = self.require("tie_even", lambda: pairs.TIE)
        return words | (self.called_by_fma(name, t) if name in half.FMA_TAKES else {})

    def called_by_fma(self, name: str, t: Type) -> dict[str, str]:
        """The functions that portable multiply-adds of f16 call."""
        narrow, wide = Type(DType.F16), Type(DType.F32)
        return {"widen": self.conversion(narrow, wide), "narrow": self.conversion(wide, narrow)}

    def result(self, name: str, t: Type) -> str:
        if name.startswith("nearest"):
            return self.type(self.signed(t))
        return super().result(name, t)

    def conversion(self, source: Type, target: Type) -> str:
        key = f"{target.dtype}_of_{source}"
        return self.require(key, lambda: self.conversion_text(key, source, target))

    def conversion_text(self, key: str, source: Type, target: Type) -> str:
        """The text of the function that turns a float of 16 bits into an f32, or back."""
        wide, narrow = (target, source) if target.dtype is DType.F32 else (source, target)
        words = {
            "F": self.type(wide),
            "U": self.type(Type(DType.U32, wide.lanes)),
            "H": self.type(Type(narrow.dtype, narrow.lanes)),
            "N": wide.lanes,
        }
        text = self.conversion_body(half.CONVERSIONS[source.dtype, target.dtype], wide.lanes)
        head = f"{self.inline}{self.type(target)} {key}({self.type(source)} a) {{{{\n"
        return f"{head}{text}\n}}}}".format(**words)

    def conversion_body(self, bodies: half.Conversion, lanes: int) -> str:
        """The lines of that function."""
        return "  " + bodies.scalar

    def on_barrier(self, s: Barrier) -> None:
        raise TypeError("a barrier has no meaning on a CPU")
