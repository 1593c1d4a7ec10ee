"""The entry points of programs whose steps are function calls, which threads share."""

from __future__ import annotations

from tenon.machine.codegen.backend import EntryPoint
from tenon.machine.codegen.threads import phases
from tenon.machine.plan.program import Program

_RUN = """\
/* Runs the network once: reads the inputs, writes the outputs.  Returns 0.  Keeps nothing between calls
   and may run in many threads, each with its own mutable and activations regions; the activations
   need no initial value. */"""
_PHASE = """\
/* The same by several threads: one part, counted from 0, of `parts` (at most the first number above) parts
   of a phase.  A run is all parts of phase 0, at the same time or in any order, then all parts of phase 1,
   and so on; `parts` stays the same.  The outputs are complete when the last phase is. */"""
_PROFILE = "/* The same with each kernel call a phase of its own, from 0 on, to be timed one by one. */"


def run(name: str) -> EntryPoint:
    """The function that runs a program once."""
    return EntryPoint(name, about=_RUN)


def phase(program: Program) -> EntryPoint:
    """The function of which each thread runs a part."""
    macros = ("MAX_THREADS", program.threads), ("PHASES", phases(program))
    return EntryPoint(f"{program.name}_phase", parameters=_shared("phase"), returns="void", about=_PHASE, macros=macros)


def profile(name: str, calls: int | None = None) -> EntryPoint:
    """The function that runs a single step; ``calls`` is the number of steps where it is known."""
    macros = () if calls is None else (("CALLS", calls),)
    return EntryPoint(f"{name}_profile", parameters=_shared("call"), returns="void", about=_PROFILE, macros=macros)


def entry_points(program: Program, *, profiled: bool) -> tuple[EntryPoint, ...]:
    """All entry points of a program."""
    threaded = (phase(program),) if program.threads > 1 else ()
    return (run(program.name), *threaded, *((profile(program.name, len(program.calls)),) if profiled else ()))


def _shared(number: str) -> tuple[str, ...]:
    return f"int {number}", "int part", "int parts"
