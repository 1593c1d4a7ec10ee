"""A whole program as one C file: its kernels, and the entry point that calls them."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.codegen.c import C
from tenon.codegen.comments import call_comment
from tenon.codegen.threads import Part, Sharing, meetings
from tenon.ir.loops import Kernel
from tenon.ir.work_items import Line
from tenon.plan.program import Place, Program, Region

REGIONS = ", ".join(f"uint8_t *{region}" for region in Region)
"""What every entry point takes."""

_SLICE = "#define TENON_SLICE(items) (intptr_t)(items) * part / parts, (intptr_t)(items) * (part + 1) / parts"


def source(
    program: Program, header: str, *, profile: bool = False, more: Sequence[Program] = (), banner: str = ""
) -> str:
    """The text of ``<name>.c``; ``profile`` adds the entry point ``<name>_profile``; ``banner`` is a comment on top.

    A program for several threads has ``<name>_phase`` besides.  ``more`` are programs with entry points of their own
    in the same file: kernels that are alike are there once.
    Every kernel is proved first; raises OutOfRangeError if a proof fails.
    """
    programs = (program, *more)
    unit = C()
    unit.taken |= {f"{p.name}{end}" for p in programs for end in ("", "_profile", "_phase")}
    names: dict[tuple[Kernel, bool], str] = {}
    entries = [_SLICE] if any(p.threads > 1 for p in programs) else []
    for p in programs:
        entries += _entries(p, unit, names, profile=profile)
    return banner + "\n".join([f'#include "{header}"\n', unit.text(), *entries, ""])


def _entries(program: Program, unit: C, names: dict[tuple[Kernel, bool], str], *, profile: bool) -> list[str]:
    """The lines of a program's entry points; its kernels go to ``unit``, under the ``names`` that they have there."""
    sharing = Sharing(program.threads)
    parts = [sharing.part(call) for call in program.calls]
    for part in parts:
        key = part.call.kernel, part.slices is not None
        names[key] = names.get(key) or unit.kernel(part.call.kernel, part.slices)
    calls = [_call(unit, names[part.call.kernel, part.slices is not None], part) for part in parts]
    notes = [call_comment(call) for call in program.calls]
    used = {place.region for call in program.calls for place in call.args}
    unused = [f"  (void){region};" for region in Region if region not in used]
    many = program.threads > 1
    return [
        *(_threaded(program, parts, calls, notes, unused) if many else _single(program.name, calls, notes, unused)),
        *(_profiled(program, parts, calls, notes, unused) if profile else ()),
    ]


def _single(name: str, calls: list[str], notes: list[str], unused: list[str]) -> list[str]:
    body = [line for note, call in zip(notes, calls, strict=True) for line in (f"  {note}", call)]
    return [f"int {name}({REGIONS}) {{", *unused, *body, "  return 0;", "}"]


def _threaded(program: Program, parts: list[Part], calls: list[str], notes: list[str], unused: list[str]) -> list[str]:
    """The network cut into phases, each of which threads can share, and the usual entry point."""
    name, number, body = program.name, 0, ["  case 0:"]
    for part, call, note, meet in zip(parts, calls, notes, meetings(parts), strict=True):
        if meet:
            number += 1
            body += ["    break;", f"  case {number}:"]
        body += [f"    {note}", _shared(part, call)]
    body.append("    break;")
    arguments = ", ".join(Region)
    return [
        f"void {name}_phase({REGIONS}, int phase, int part, int parts) {{",
        *unused,
        "  (void)part, (void)parts;",
        "  switch (phase) {",
        *body,
        "  }",
        "}\n",
        f"int {name}({REGIONS}) {{",
        f"  for (int phase = 0; phase <= {number}; phase++) {name}_phase({arguments}, phase, 0, 1);",
        "  return 0;",
        "}",
    ]


def _shared(part: Part, call: str) -> str:
    """A call as each thread runs it."""
    return f"  {call}" if part.slices else f"    if (part == 0) {call.strip()}"


def _profiled(program: Program, parts: list[Part], calls: list[str], notes: list[str], unused: list[str]) -> list[str]:
    """The network with every call a phase of its own, so that whoever opens phases can time them."""
    body = []
    for i, (part, call, note) in enumerate(zip(parts, calls, notes, strict=True)):
        body += [f"  case {i}:", f"    {note}", _shared(part, call), "    break;"]
    head = f"\nvoid {program.name}_profile({REGIONS}, int call, int part, int parts) {{"
    return [head, *unused, "  (void)part, (void)parts;", "  switch (call) {", *body, "  }", "}"]


def _address(part: Part, place: Place) -> str:
    """Where an argument lies; the bytes of scratch memory of the thread that runs the part."""
    offset = f" + {place.offset}" if place.offset else ""
    own = f" + (intptr_t){_own(part.slices, place)} * {place.stride}" if place.stride and part.slices else ""
    return f"({place.region}{offset}{own})" if offset or own else str(place.region)


def _own(slices: Line, place: Place) -> str:
    """The number of a thread's own memory: where there are fewer copies than threads, the first of its work items."""
    few = f"(parts > {slices.length} ? part * {slices.length} / parts : part)"
    return "part" if place.copies < slices.length else few


def _call(unit: C, name: str, part: Part) -> str:
    call = part.call
    args = [
        f"({unit.pointer_type(buffer)}){_address(part, place)}"
        for buffer, place in zip(call.kernel.params, call.args, strict=True)
    ]
    args += [f"TENON_SLICE({part.slices.length})"] if part.slices else []
    return f"  {name}({', '.join(args)});"
