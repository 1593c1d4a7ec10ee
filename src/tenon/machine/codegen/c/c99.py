"""The base of GNU C and strict C99: the macros of their files, floats of 16 bits as integers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from tenon.machine import isa
from tenon.machine.codegen.c import half
from tenon.machine.codegen.clike import CLike, Makers
from tenon.machine.kernel_ir.loops import Barrier, Type
from tenon.network.graph.types import DType


class C99(CLike):
    """One translation unit of C99; dialects say what the macros are."""

    loop_word = "TENON_LOOP "
    inline = "TENON_INLINE "
    outlined = "TENON_OUTLINE void "

    def words(self, name: str, t: Type) -> Makers:
        """Besides: ``one`` and ``each`` are the same operation of elements and of vectors, ``widen`` and ``narrow``
        conversions of f16; others name helper functions of the operation's row."""
        row = isa.portable(name)
        return {
            **super().words(name, t),
            "Q": lambda: self.type(Type(DType.I32, 4)),
            "one": lambda: self.helper(name, Type(t.dtype)),
            "each": lambda: self.helper(re.sub("_(scalar|lane[0-7])$", "", name), t),
            "widen": lambda: self.conversion(Type(DType.F16), Type(DType.F32)),
            "narrow": lambda: self.conversion(Type(DType.F32), Type(DType.F16)),
            **{word: partial(self.require, key, partial(str, text)) for word, (key, text) in _helpers(row)},
        }

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


def _helpers(row: isa.Portable | None) -> Iterable[tuple[str, tuple[str, str]]]:
    return row.helpers.items() if row else ()
