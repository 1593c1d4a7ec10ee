"""The text of the entry points of a program.

``<name>`` runs a program.  What runs it in pieces, a thread pool or a profiler, uses a pair of functions:

    <name>_phase          one part of one phase, the kernel calls between two barriers
    <name>_next           the phase after another: after -1 the first one; -1 after the last one, or -1 - status

and for programs that are to be timed ``<name>_profile`` and ``<name>_profile_next``, where each kernel call is a phase.
Loops, branches and checks of sizes are in the second function alone, which one thread calls when all have finished a
phase.  Between its calls it keeps the numbers of finished iterations in the activations and nothing elsewhere: two runs
with regions of their own do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tenon.machine.codegen.backend import KernelLaunch, region_parameters
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.comments import call_comment
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import (
    SIZE_OUT_OF_RANGE,
    TOO_MANY_ITERATIONS,
    Branch,
    Call,
    Item,
    Place,
    Program,
    Region,
    Repeat,
    SizeCheck,
)

_REGIONS = region_parameters()
_ARGUMENTS = ", ".join(Region)
_SLICE = "#define TENON_SLICE(items) (intptr_t)(items) * part / parts, (intptr_t)(items) * (part + 1) / parts"
_COUNTER = "#define TENON_COUNTER(offset) (*(int32_t *)(activations + (offset)))"


@dataclass(frozen=True)
class _Printed:
    """A kernel call: its comment, and the call with counters of iterations in local variables (``local``) and in the
    activations (``kept``)."""

    step: KernelLaunch
    comment: str
    local: str
    kept: str


def macros(programs: Sequence[Program], *, profile: bool) -> Iterator[str]:
    """The macros that the entry points use."""
    if any(p.threads > 1 for p in programs):
        yield _SLICE
    if any(_has_loops(p) and (p.threads > 1 or profile) for p in programs):
        yield _COUNTER


def entry_text(program: Program, steps: Sequence[KernelLaunch], c: C99, *, profile: bool) -> Iterable[str]:
    """The lines of a program's entry points."""
    printed, name = list(_printed(program.items, iter(steps), c)), program.name
    if program.threads > 1:
        yield from _pieces(program, printed, _phases(steps), f"{name}_phase", f"{name}_next", "phase")
        yield from _by_phases(name)
    else:
        yield from _at_once(program, printed)
    if profile:
        yield ""
        yield from _pieces(program, printed, range(len(steps)), f"{name}_profile", f"{name}_profile_next", "call")


# ------------------------------------------------------------------------------------------ the whole program at once
def _at_once(program: Program, printed: Iterable[_Printed]) -> Iterator[str]:
    yield f"int {program.name}({_REGIONS}) {{"
    yield from _unused({*_operands(program), *_decisive(program)})
    yield from _run(program.items, iter(printed), ())
    yield from ("  return 0;", "}")


def _run(
    items: Iterable[Item], printed: Iterator[_Printed], counters: tuple[str, ...], margin: str = "  "
) -> Iterator[str]:
    """The statements of a tree inside of loops with these counters."""
    for item in items:
        match item:
            case Call():
                call = next(printed)
                yield from (f"{margin}{call.comment}", f"{margin}{call.local}")
            case Repeat():
                i = _local(len(counters))
                yield f"{margin}for (int32_t {i} = 0; {i} < {_count(item, counters)}; {i}++) {{"
                yield from _limited(item, i, TOO_MANY_ITERATIONS, margin)
                yield from _run(item.body, printed, (*counters, i), f"{margin}  ")
                yield f"{margin}}}"
            case Branch():
                for head, body in zip(_heads(item, counters), item.bodies, strict=True):
                    yield f"{margin}{head}"
                    yield from _run(body, printed, counters, f"{margin}  ")
                yield f"{margin}}}"
            case SizeCheck():
                yield from _checked(item, counters, SIZE_OUT_OF_RANGE, margin)


def _by_phases(name: str) -> list[str]:
    following = f"{name}_next({_ARGUMENTS}, "
    return [
        f"int {name}({_REGIONS}) {{",
        f"  int phase = {following}-1);",
        f"  for (; phase >= 0; phase = {following}phase)) {name}_phase({_ARGUMENTS}, phase, 0, 1, 0);",
        "  return -1 - phase;",
        "}",
    ]


# ------------------------------------------------------------------------------------------------- phases, one by one
def _phases(steps: Sequence[KernelLaunch]) -> list[int]:
    """The phase of every step."""
    numbers, phase = list[int](), 0
    for step in steps:
        phase += step.barrier
        numbers.append(phase)
    return numbers


def _pieces(
    program: Program, printed: Sequence[_Printed], phases: Sequence[int], piece: str, following: str, word: str
) -> Iterator[str]:
    """The functions that run one of the ``phases`` of the calls, and that choose the next one."""
    counted = [Region.ACTIVATIONS] if any(place.advances for c in program.calls for place in c.args) else []
    yield f"void {piece}({_REGIONS}, int {word}, int part, int parts, int thread) {{"
    yield from _unused({*_operands(program), *counted})
    yield from ("  (void)part, (void)parts, (void)thread;", f"  switch ({word}) {{")
    for phase, group in groupby(zip(phases, printed, strict=True), lambda pair: pair[0]):
        yield f"  case {phase}:"
        for _, call in group:
            yield from (f"    {call.comment}", f"    {_shared(call)}")
        yield "    break;"
    yield from ("  }", "}\n", f"int {following}({_REGIONS}, int {word}) {{")
    yield from _unused({*_decisive(program), *([Region.ACTIVATIONS] if _has_loops(program) else [])})
    yield from (f"  switch ({word}) {{", "  case -1:", *_choices(program.items, iter(phases), (), "    "))
    yield from ("    return -1;", "  default:", f"    return {word} + 1;", "  }", "}\n")


def _choices(items: Iterable[Item], phases: Iterator[int], counters: tuple[str, ...], margin: str) -> Iterator[str]:
    """Loops, branches and checks, with a return in place of every run of calls and, behind it, the label of its last
    phase, so that the function goes on where it returned."""
    for is_call, group in groupby(items, lambda item: isinstance(item, Call)):
        if is_call:
            own = [next(phases) for _ in group]
            yield from (f"{margin}return {own[0]};", f"{margin[2:]}case {own[-1]}:;")
            continue
        for item in group:
            yield from _choice(item, phases, counters, margin)


def _choice(item: Item, phases: Iterator[int], counters: tuple[str, ...], margin: str) -> Iterator[str]:
    match item:
        case Repeat():
            i = _kept(item)
            yield f"{margin}for ({i} = 0; {i} < {_count(item, counters)}; {i}++) {{"
            yield from _limited(item, i, -1 - TOO_MANY_ITERATIONS, margin)
            yield from _choices(item.body, phases, (*counters, i), f"{margin}  ")
            yield f"{margin}}}"
        case Branch():
            for head, body in zip(_heads(item, counters), item.bodies, strict=True):
                yield f"{margin}{head}"
                yield from _choices(body, phases, counters, f"{margin}  ")
            yield f"{margin}}}"
        case SizeCheck():
            yield from _checked(item, counters, -1 - SIZE_OUT_OF_RANGE, margin)


def _shared(call: _Printed) -> str:
    """A call as each thread runs it."""
    return call.kept if call.step.work_items else f"if (part == 0) {call.kept}"


# --------------------------------------------------------------------------------------------------- loops, branches
def _local(depth: int) -> str:
    return f"i{depth}" if depth else "i"


def _kept(loop: Repeat) -> str:
    return f"TENON_COUNTER({loop.counter.offset})"


def _count(loop: Repeat, counters: Sequence[str]) -> str:
    if isinstance(loop.count, int):
        return str(loop.count)
    return f"*(const int64_t *){_address(None, loop.count, counters)}"


def _limited(loop: Repeat, counter: str, result: int, margin: str) -> Iterator[str]:
    """The end of a run with a loop that would run too often."""
    if not isinstance(loop.count, int):
        yield f"{margin}  if ({counter} >= {loop.limit}) return {result};"


def _heads(branch: Branch, counters: Sequence[str]) -> Iterator[str]:
    """The beginnings of the bodies of a branch inside of loops with these counters."""
    condition = f"*(const uint8_t *){_address(None, branch.condition, counters)}"
    last = len(branch.bodies) - 1
    for number in range(last + 1):
        test = f"if ({condition} == {number}) " if number < last else ""
        yield f"{'} else ' if number else ''}{test}{{"


def _checked(check: SizeCheck, counters: Sequence[str], result: int, margin: str) -> Iterator[str]:
    """The end of a run with a size that is out of range."""
    size, range = f"*(const int64_t *){_address(None, check.place, counters)}", check.range
    tests = [f"{size} < {range.least}", f"{size} > {range.most}"]
    tests += [f"({size} - {range.least}) % {range.step}"] if range.step > 1 else []
    yield f"{margin}if ({' || '.join(tests)}) return {result};"


def _structure(items: Iterable[Item]) -> Iterator[Repeat | Branch | SizeCheck]:
    """Every loop, branch and check of a tree."""
    for item in items:
        match item:
            case Repeat():
                yield item
                yield from _structure(item.body)
            case Branch():
                yield item
                for body in item.bodies:
                    yield from _structure(body)
            case SizeCheck():
                yield item


def _has_loops(program: Program) -> bool:
    return any(isinstance(item, Repeat) for item in _structure(program.items))


# ------------------------------------------------------------------------------------------------------------- calls
def _printed(
    items: Iterable[Item], steps: Iterator[KernelLaunch], c: C99, loops: tuple[Repeat, ...] = ()
) -> Iterator[_Printed]:
    """The calls of a tree inside of ``loops``."""
    local, kept = [_local(depth) for depth in range(len(loops))], [_kept(loop) for loop in loops]
    for item in items:
        match item:
            case Call():
                step = next(steps)
                yield _Printed(step, call_comment(item), _call(c, step, local), _call(c, step, kept))
            case Repeat():
                yield from _printed(item.body, steps, c, (*loops, item))
            case Branch():
                for body in item.bodies:
                    yield from _printed(body, steps, c, loops)


def _call(c: C99, step: KernelLaunch, counters: Sequence[str]) -> str:
    """A kernel call, with the numbers of iterations of the loops around it."""
    items = step.work_items
    args = [
        f"({c.pointer_type(buffer)}){_address(items, place, counters)}"
        for buffer, place in zip(step.call.kernel.params, step.call.args, strict=True)
    ]
    args += [f"TENON_SLICE({items.length})"] if items else []
    return f"{step.function}({', '.join(args)});"


def _address(items: WorkItems | None, place: Place, counters: Sequence[str]) -> str:
    """Where an argument lies; the bytes of scratch memory that no other part uses at the same time."""
    offset = f" + {place.offset}" if place.offset else ""
    own = f" + (intptr_t){_own(items, place)} * {place.stride}" if place.stride and items else ""
    moved = "".join(f" + (intptr_t){counters[a.depth]} * {a.step}" for a in place.advances)
    return f"({place.region}{offset}{moved}{own})" if offset or moved or own else str(place.region)


def _own(items: WorkItems, place: Place) -> str:
    """The number of the memory that a part has for itself: that of its thread, or where there are fewer copies than
    threads that of its work item."""
    return "thread" if place.copies < items.length else f"({items.length} * part / parts)"


# ----------------------------------------------------------------------------------------------------------- regions
def _operands(program: Program) -> set[Region]:
    """The regions of the operands of kernels."""
    return {place.region for call in program.calls for place in call.args}


def _decisive(program: Program) -> set[Region]:
    """The regions of what decides about loops, branches and the end of a run."""
    places = (_decides(item) for item in _structure(program.items))
    return {place.region for place in places if isinstance(place, Place)}


def _decides(item: Repeat | Branch | SizeCheck) -> Place | int:
    match item:
        case Repeat():
            return item.count
        case Branch():
            return item.condition
    return item.place


def _unused(used: set[Region]) -> list[str]:
    return [f"  (void){region};" for region in Region if region not in used]
