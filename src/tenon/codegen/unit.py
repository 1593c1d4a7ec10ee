"""A whole program as one C file: its kernels, and the entry point that calls them."""

from __future__ import annotations

from tenon.codegen.c import C
from tenon.codegen.threads import Part, Sharing, meetings
from tenon.ir.loops import Kernel
from tenon.plan.program import Program, Region

REGIONS = ", ".join(f"uint8_t *{region}" for region in Region)
TEAM = "int thread, int threads, void (*barrier)(void *), void *context"
"""The parameters of the entry points: what every one takes, and what more for one of several threads."""

_SLICE = "#define TENON_SLICE(items) (intptr_t)(items) * thread / threads, (intptr_t)(items) * (thread + 1) / threads"


def source(program: Program, header: str, *, profile: bool = False) -> str:
    """The text of ``<name>.c``; ``profile`` adds the entry point ``<name>_profile``.

    A program for several threads has ``<name>_threads`` besides.
    Every kernel is proved first; raises OutOfRangeError if a proof fails.
    """
    unit, name, sharing = C(), program.name, Sharing(program.threads)
    unit.taken |= {name, f"{name}_profile", f"{name}_threads"}
    parts = [sharing.part(call) for call in program.calls]
    names: dict[tuple[Kernel, bool], str] = {}
    for part in parts:
        key = part.call.kernel, part.slices is not None
        names[key] = names.get(key) or unit.kernel(part.call.kernel, part.slices)
    calls = [_call(unit, names[part.call.kernel, part.slices is not None], part) for part in parts]
    used = {place.region for call in program.calls for place in call.args}
    unused = [f"  (void){region};" for region in Region if region not in used]
    many = program.threads > 1
    return "\n".join(
        [
            f'#include "{header}"\n',
            unit.text(),
            *(_threaded(program, parts, calls, unused) if many else _single(name, calls, unused)),
            *(_profiled(program, parts, calls, unused) if profile else ()),
            "",
        ]
    )


def _single(name: str, calls: list[str], unused: list[str]) -> list[str]:
    return [f"int {name}({REGIONS}) {{", *unused, *calls, "  return 0;", "}"]


def _threaded(program: Program, parts: list[Part], calls: list[str], unused: list[str]) -> list[str]:
    """The entry point of one thread among several, and the usual one, which is that of a thread alone."""
    name, meet = program.name, "  if (threads > 1) barrier(context);"
    body = []
    for part, call, must in zip(parts, calls, meetings(parts, program.threads), strict=True):
        body += [meet] if must else []
        body.append(call if part.slices else f"  if (thread == 0) {call.strip()}")
    arguments = ", ".join(Region)
    return [
        _SLICE,
        f"int {name}_threads({REGIONS},\n  {TEAM}) {{",
        *unused,
        *body,
        meet,
        "  return 0;",
        "}\n",
        f"int {name}({REGIONS}) {{ return {name}_threads({arguments}, 0, 1, 0, 0); }}",
    ]


def _profiled(program: Program, parts: list[Part], calls: list[str], unused: list[str]) -> list[str]:
    """The entry point that meets before the first call and after each: whoever brings the barrier can time them."""
    body = []
    for part, call in zip(parts, calls, strict=True):
        alone = program.threads > 1 and part.slices is None
        body += [f"  if (thread == 0) {call.strip()}" if alone else call, "  barrier(context);"]
    head = f"\nint {program.name}_profile({REGIONS},\n  {TEAM}) {{"
    return [head, *unused, "  (void)thread, (void)threads;", "  barrier(context);", *body, "  return 0;", "}"]


def _call(unit: C, name: str, part: Part) -> str:
    call = part.call
    args = [
        f"({unit.pointer_type(buffer)})({place.region} + {place.offset}"
        + (f" + (intptr_t)thread * {place.stride})" if place.stride and part.slices else ")")
        for buffer, place in zip(call.kernel.params, call.args, strict=True)
    ]
    args += [f"TENON_SLICE({part.slices.length})"] if part.slices else []
    return f"  {name}({', '.join(args)});"
