"""A whole program as one C file: its kernels, and the entry points that call them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tenon.machine.codegen.backend import Backend, EntryPoint, KernelLaunch, SourceFile, steps_of
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.entry_points import SUFFIXES, entry_points
from tenon.machine.codegen.c.entry_text import entry_text, macros
from tenon.machine.codegen.c.split_units import split
from tenon.machine.codegen.function import PrintedFunction
from tenon.machine.codegen.reset import reset_text
from tenon.machine.isa.frame import OPERANDS
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Program


@dataclass(frozen=True)
class CUnit:
    """A C file: ``head`` (banner, include, macros, types, helpers), functions, entry points.  ``name`` begins the names
    of functions that become visible to the linker when it is split, ``section`` is the attribute of all functions."""

    name: str
    head: str
    functions: tuple[PrintedFunction, ...]
    entries: str
    steps: tuple[tuple[KernelLaunch, ...], ...] = ()
    entry_points: tuple[tuple[EntryPoint, ...], ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    section: str = ""

    def placed(self, section: str) -> CUnit:
        """The same code with every function in a section of that name."""
        attribute = f'__attribute__((section("{section}")))'
        head = re.sub(r"^(#define TENON_OUTLINE static\b)", rf"\1 {attribute}", self.head, flags=re.MULTILINE)
        declared = [f"{attribute} {entry.prototype};\n" for own in self.entry_points for entry in own]
        return replace(self, head=head, entries="".join(declared) + self.entries, section=f"{attribute} ")

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The whole file."""
        return (SourceFile(f"{self.name}.c", "c", self.text(), "c"),)

    def text(self) -> str:
        """The whole file."""
        return "\n".join(
            [self.head, *(f"{f.comment}{C99.outlined}{f.name}{f.text}" for f in self.functions), self.entries]
        )

    def split(self) -> list[str]:
        """Parts of about one size, the entry points first; the whole text where that is small."""
        called = {step.function for program in self.steps for step in program}
        return split(self.text(), self.name, self.head, self.functions, self.entries, called, self.section)

    def without_names(self) -> CUnit:
        """The same code with functions named by numbers and without comments on them."""
        names = {f.name: f"f{i}" for i, f in enumerate(self.functions, 1)}
        word = (
            re.compile(rf"\b(?:{'|'.join(sorted(names, key=len, reverse=True))})\b") if names else re.compile(r"(?!)")
        )

        def renamed(text: str) -> str:
            return word.sub(lambda match: names[match[0]], text)

        functions = tuple(
            replace(f, name=names[f.name], text=renamed(f.text), comment="", calls=tuple(map(renamed, f.calls)))
            for f in self.functions
        )
        steps = tuple(tuple(replace(s, function=renamed(s.function)) for s in program) for program in self.steps)
        entries = re.sub(r"^ */\*.*?\*/\n", "", renamed(self.entries), flags=re.MULTILINE | re.DOTALL)
        return replace(self, functions=functions, entries=entries, steps=steps)


def print_unit(
    backend: Backend,
    programs: Sequence[Program],
    header: str,
    *,
    profile: bool = False,
    banner: str = "",
    dialect: type[C99] = C,
) -> CUnit:
    """The programs as one unit, printed in ``dialect``; ``profile`` adds the entry points ``<name>_profile``.

    A program for several threads has ``<name>_phase`` and ``<name>_next`` besides (see ``entry_text``).
    """
    c = dialect()
    c.taken |= {f"{p.name}{end}" for p in programs for end in SUFFIXES} | OPERANDS
    names: dict[tuple[Kernel, bool], str] = {}

    def printed(kernel: Kernel, slices: WorkItems | None) -> str:
        key = kernel, slices is not None
        names[key] = names.get(key) or c.kernel(kernel, slices)
        return names[key]

    steps = tuple(steps_of(p, backend, printed) for p in programs)
    entries = list(macros(programs, profile=profile))
    for program, own in zip(programs, steps, strict=True):
        entries += [*entry_text(program, own, c, profile=profile), *reset_text(program)]
    head = f'{banner}#include "{header}"\n\n{c.head()}'
    declared = tuple(entry_points(program, profiled=profile) for program in programs)
    return CUnit(programs[0].name, head, tuple(c.functions.values()), "\n".join([*entries, ""]), steps, declared)
