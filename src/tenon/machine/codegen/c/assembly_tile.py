"""What the inner loops that are written in assembly have in common: how they are found, and what they print."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Load, Loop, Stmt

LOCAL = "tile_"
"""What the names of C variables begin with, which no kernel's own do: pointers of kernels are called w, too."""


@dataclass(frozen=True)
class Nest:
    """``outer`` iterations over ``inner`` steps of ``body``; ``steps`` counts them from the values of ``vars``."""

    outer: int
    inner: int
    vars: tuple[Var, ...]
    steps: Index
    body: tuple[Stmt, ...]

    def walks_on(self, load: Load, first: Load, stride: int, behind: int) -> bool:
        """Whether ``load`` is ``behind`` elements after ``first`` in the first step and moves by ``stride`` in each."""
        if load.buffer is not first.buffer:
            return False
        base = load.buffer.flat(tuple(i.subst(dict.fromkeys(self.vars, 0)) for i in first.index))
        return load.buffer.flat(load.index) == base + self.steps * stride + behind


def nest(loop: Loop) -> Nest | None:
    """An unrolled loop of constant length, alone or all that a serial one of constant length has."""
    outer, step = iterations(loop), loop
    if loop.kind == "serial" and len(loop.body) == 1 and isinstance(loop.body[0], Loop):
        step = loop.body[0]
    inner = iterations(step)
    if not outer or step.kind != "unroll" or not inner:
        return None
    if step is loop:
        return Nest(1, inner, (step.var,), Index(((step.var, 1),)), step.body)
    steps = Index(((step.var, 1),)) + Index(((loop.var, inner),))
    return Nest(outer, inner, (loop.var, step.var), steps, step.body)


def iterations(loop: Loop) -> int:
    """The constant number of iterations, or 0."""
    (below, *more) = loop.var.below
    return 0 if more or below.terms else below.const


@dataclass(frozen=True)
class Tile(ABC):
    """Sums of products over ``nest``, which begins at ``weights`` and ``inputs``; ``sums`` are indices of registers."""

    nest: Nest
    weights: Load
    inputs: Load
    sums: tuple[Load, ...]
    condition: ClassVar[str]
    """Of the preprocessor: where a compiler takes the assembly."""

    @abstractmethod
    def text(self, weights: str, inputs: str, sums: Sequence[str]) -> list[str]:
        """Lines of C.  ``weights`` and ``inputs`` are pointers to the first elements, ``sums`` names of variables."""


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
