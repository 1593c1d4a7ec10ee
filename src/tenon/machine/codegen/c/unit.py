"""A whole program as one C file: its kernels, and the entry points that call them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tenon.machine.codegen.backend import Backend, EntryPoint, SourceFile, Step, region_parameters, steps_of
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.entry_points import entry_points
from tenon.machine.codegen.c.split_units import split
from tenon.machine.codegen.comments import call_comment
from tenon.machine.codegen.function import PrintedFunction
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Place, Program, Region

_REGIONS = region_parameters()
_SLICE = "#define TENON_SLICE(items) (intptr_t)(items) * part / parts, (intptr_t)(items) * (part + 1) / parts"


@dataclass(frozen=True)
class CUnit:
    """A C file: ``head`` (banner, include, macros, types, helpers), functions, entry points.  ``name`` begins the names
    of functions that become visible to the linker when it is split."""

    name: str
    head: str
    functions: tuple[PrintedFunction, ...]
    entries: str
    steps: tuple[tuple[Step, ...], ...] = ()
    entry_points: tuple[tuple[EntryPoint, ...], ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
        return split(self.text(), self.name, self.head, self.functions, self.entries, called)

    def without_names(self) -> CUnit:
        """The same code with functions named by numbers and without comments on them."""
        names = {f.name: f"f{i}" for i, f in enumerate(self.functions, 1)}
        word = (
            re.compile(rf"\b(?:{'|'.join(sorted(names, key=len, reverse=True))})\b") if names else re.compile(r"(?!)")
        )

        def renamed(text: str) -> str:
            return word.sub(lambda found: names[found[0]], text)

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

    A program for several threads has ``<name>_phase`` besides.
    """
    c = dialect()
    c.taken |= {f"{p.name}{end}" for p in programs for end in ("", "_profile", "_phase")}
    names: dict[tuple[Kernel, bool], str] = {}

    def printed(kernel: Kernel, slices: WorkItems | None) -> str:
        key = kernel, slices is not None
        names[key] = names.get(key) or c.kernel(kernel, slices)
        return names[key]

    steps = tuple(steps_of(p, backend, printed) for p in programs)
    entries = [_SLICE] if any(p.threads > 1 for p in programs) else []
    for program, own in zip(programs, steps, strict=True):
        entries += _entries(program, own, c, profile=profile)
    head = f'{banner}#include "{header}"\n\n{c.head()}'
    declared = tuple(entry_points(program, profiled=profile) for program in programs)
    return CUnit(programs[0].name, head, tuple(c.functions.values()), "\n".join([*entries, ""]), steps, declared)


def _entries(program: Program, steps: Sequence[Step], c: C99, *, profile: bool) -> Iterable[str]:
    """The lines of a program's entry points."""
    printed = [(step, call_comment(step.call), _call(c, step)) for step in steps]
    used = {place.region for call in program.calls for place in call.args}
    unused = [f"  (void){region};" for region in Region if region not in used]
    yield from (_threaded if program.threads > 1 else _single)(program.name, printed, unused)
    if profile:
        yield from _profiled(program.name, printed, unused)


_Printed = Sequence[tuple[Step, str, str]]
"""Steps, each with its comment and its call."""


def _single(name: str, steps: _Printed, unused: list[str]) -> list[str]:
    body = [line for _, comment, call in steps for line in (f"  {comment}", call)]
    return [f"int {name}({_REGIONS}) {{", *unused, *body, "  return 0;", "}"]


def _threaded(name: str, steps: _Printed, unused: list[str]) -> list[str]:
    """The network cut into phases, each of which threads can share, and the usual entry point."""
    number, body = 0, ["  case 0:"]
    for step, comment, call in steps:
        if step.barrier:
            number += 1
            body += ["    break;", f"  case {number}:"]
        body += [f"    {comment}", _shared(step, call)]
    body.append("    break;")
    arguments = ", ".join(Region)
    return [
        f"void {name}_phase({_REGIONS}, int phase, int part, int parts) {{",
        *unused,
        "  (void)part, (void)parts;",
        "  switch (phase) {",
        *body,
        "  }",
        "}\n",
        f"int {name}({_REGIONS}) {{",
        f"  for (int phase = 0; phase <= {number}; phase++) {name}_phase({arguments}, phase, 0, 1);",
        "  return 0;",
        "}",
    ]


def _shared(step: Step, call: str) -> str:
    """A call as each thread runs it."""
    return f"  {call}" if step.work_items else f"    if (part == 0) {call.strip()}"


def _profiled(name: str, steps: _Printed, unused: list[str]) -> list[str]:
    """The network with every step a phase of its own, so that the caller can time each."""
    body = []
    for i, (step, comment, call) in enumerate(steps):
        body += [f"  case {i}:", f"    {comment}", _shared(step, call), "    break;"]
    head = f"\nvoid {name}_profile({_REGIONS}, int call, int part, int parts) {{"
    return [head, *unused, "  (void)part, (void)parts;", "  switch (call) {", *body, "  }", "}"]


def _call(c: C99, step: Step) -> str:
    items = step.work_items
    args = [
        f"({c.pointer_type(buffer)}){_address(items, place)}"
        for buffer, place in zip(step.call.kernel.params, step.call.args, strict=True)
    ]
    args += [f"TENON_SLICE({items.length})"] if items else []
    return f"  {step.function}({', '.join(args)});"


def _address(items: WorkItems | None, place: Place) -> str:
    """Where an argument lies; the bytes of scratch memory of the thread that runs the part."""
    offset = f" + {place.offset}" if place.offset else ""
    own = f" + (intptr_t){_own(items, place)} * {place.stride}" if place.stride and items else ""
    return f"({place.region}{offset}{own})" if offset or own else str(place.region)


def _own(items: WorkItems, place: Place) -> str:
    """The number of a thread's own memory: where there are fewer copies than threads, the first of its work items."""
    few = f"(parts > {items.length} ? part * {items.length} / parts : part)"
    return "part" if place.copies < items.length else few
