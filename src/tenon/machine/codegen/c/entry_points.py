"""The entry points of programs whose steps are function calls, which threads share."""

from __future__ import annotations

import textwrap

from tenon.machine.codegen.backend import EntryPoint
from tenon.machine.codegen.reset import reset
from tenon.machine.plan.program import Program

_RUN = """\
/* Runs the network once: reads the inputs, writes the outputs.  Returns 0.  Keeps nothing between calls
   and may run in many threads, each with its own mutable and activations regions; the activations
   need no initial value. */"""
_FAILING_RUN = (
    "/* Runs the network once: reads the inputs, writes the outputs.  Returns 0, or {failures}: the outputs are then "
    "not valid.  Keeps nothing between calls and may run in many threads, each with its own mutable and activations "
    "regions; the activations need no initial value. */"
)
_TOO_MANY_ITERATIONS = "1 where a loop would run more often than it was compiled for"
_SIZE_OUT_OF_RANGE = "2 where a size is not in the range that it was compiled for"
_PHASE = """\
/* The same by several threads: one part, counted from 0, of `parts` parts of a phase.  A run is all parts of
   the first phase, at the same time or in any order, then all parts of the phase that comes next, and so on.
   `thread` is a number, from 0 to one less than the macro above, that no other part has at the same time:
   there is memory for so many threads, whatever the number of parts. */"""
_NEXT = """\
/* The phase that comes after another, to be asked for once, when all parts of that one have ended: after -1
   the first phase, and -1 when the run is complete, or -1 - status when it has failed. */"""
_PROFILE = "/* The same with each kernel call a phase of its own, from 0 on, to be timed one by one. */"
_NEXT_CALL = "/* The kernel call that comes after another, as above; one in a loop comes several times. */"

SUFFIXES = ("", "_phase", "_next", "_profile", "_profile_next", "_reset")
"""Suffixes of the names of entry points."""


def run(name: str, *, limited: bool = False, checked: bool = False) -> EntryPoint:
    """The function that runs a program once; ``limited``: its loops may have too many iterations;
    ``checked``: it checks sizes."""
    failures = [*([_TOO_MANY_ITERATIONS] if limited else []), *([_SIZE_OUT_OF_RANGE] if checked else [])]
    about = _FAILING_RUN.format(failures=", or ".join(failures)).replace("  ", "\xa0 ")
    wrapped = textwrap.fill(about, 108, subsequent_indent="   ").replace("\xa0", " ")
    return EntryPoint(name, about=wrapped if failures else _RUN)


def phases(program: Program) -> tuple[EntryPoint, EntryPoint]:
    """The function of which each thread runs a part, and the one that says which phase comes next."""
    macros = (("MAX_THREADS", program.threads),)
    return (
        EntryPoint(f"{program.name}_phase", parameters=_shared("phase"), returns="void", about=_PHASE, macros=macros),
        EntryPoint(f"{program.name}_next", parameters=("int phase",), about=_NEXT),
    )


def profile(name: str, calls: int | None = None) -> tuple[EntryPoint, EntryPoint]:
    """The function that runs a single step, and the one that says which comes next; ``calls`` is the number of steps
    where it is known."""
    macros = () if calls is None else (("CALLS", calls),)
    return (
        EntryPoint(f"{name}_profile", parameters=_shared("call"), returns="void", about=_PROFILE, macros=macros),
        EntryPoint(f"{name}_profile_next", parameters=("int call",), about=_NEXT_CALL),
    )


def entry_points(program: Program, *, profiled: bool) -> tuple[EntryPoint, ...]:
    """All entry points of a program."""
    threaded = phases(program) if program.threads > 1 else ()
    once = run(program.name, limited=program.limited, checked=bool(program.checks))
    timed = profile(program.name, len(program.calls)) if profiled else ()
    return (once, *threaded, *timed, *reset(program))


def _shared(number: str) -> tuple[str, ...]:
    return f"int {number}", "int part", "int parts", "int thread"
