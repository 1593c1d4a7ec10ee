"""Parts that the inner loops written in assembly have in common."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

LOCAL = "tile_"
"""The beginning of the names of C variables, which no kernel's own have: pointers of kernels are called w, too."""


@dataclass(frozen=True)
class Frame:
    """Registers of a piece of assembly, by the names of its operands: ``w`` and ``p`` point to weights and inputs,
    ``end`` behind the last of ``elements`` inputs; a0, a1 ... are the variables ``sums``; ``written`` have no value
    before.  Constraints of sums and of the others are ``sum_register`` and ``register``."""

    weights: str
    inputs: str
    elements: int
    sums: Sequence[str] = ()
    written: Sequence[str] = ()
    end: str = "e"
    weight_type: str = "const int32_t"
    input_type: str = "const int32_t"
    sum_register: str = "r"
    register: str = "r"
    clobbered: Sequence[str] = ()

    def text(self, lines: Sequence[str]) -> list[str]:
        """Lines of C around those of the assembly."""
        sums = [f'[a{i}] "+{self.sum_register}"({name})' for i, name in enumerate(self.sums)]
        pointers = [f'[{name}] "+{self.register}"({LOCAL}{name})' for name in ("w", "p", self.end)]
        written = [f'[{name}] "=&{self.register}"({LOCAL}{name})' for name in self.written]
        operands = ",\n      ".join(", ".join(group) for group in (sums, pointers, written) if group)
        clobbered = "".join(f', "{name}"' for name in self.clobbered)
        return [
            "{",
            f"  {self.weight_type} *{LOCAL}w = {self.weights};",
            f"  {self.input_type} *{LOCAL}p = {self.inputs}, *{LOCAL}{self.end} = {LOCAL}p + {self.elements};",
            f"  int32_t {', '.join(LOCAL + name for name in self.written)};",
            "  __asm__ volatile(",
            *(f'    "{line}\\n"' for line in lines),
            *f"    : {operands}".split("\n"),
            f'    : : "cc", "memory"{clobbered});',
            "}",
        ]


_WORDS = (
    "apart",
    "at",
    "da",
    "dp",
    "line",
    "pitch",
    "plane",
    "side",
    "step",
    "sums",
    "turn",
    "wa",
    "words",
    "wp",
    "yp",
)
OPERANDS = frozenset((*string.ascii_lowercase, *_WORDS))
"""Names of operands of assembly, some of them with a number behind: functions have others, as those of large programs
are renamed by macros."""
