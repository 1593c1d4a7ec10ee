"""The time that threads are predicted to save, from the plan: its phases, work items, instructions, and bytes.

Threads meet where one reads what another wrote.  Until then each runs its slices of all calls, and the phase takes as
long as the thread that has the most work.  Weights arrive at the rate of main memory, which serves more than one thread
and not all; activations that another processor has written last arrive from its cache.  The terms are those by which
algorithms are chosen (``algorithms.estimate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tenon.machine.algorithms.estimate import barrier, overlapped, streamed
from tenon.machine.codegen.threads import Sharing, WorkDivision, barriers, firsts
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import BLOCKS, Bind, Buffer, Instruction, Kernel, Let, Loop, Stmt, Store
from tenon.machine.kernel_ir.walk import loads_of
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.kernels.parallel import EXCHANGED
from tenon.machine.plan.program import Branch, Call, Item, Place, Program, Region, Repeat, walk
from tenon.machine.proofs.count import count

_Division = tuple[tuple[int, bool], ...]
"""The iterations of each parallel loop, outermost first, and whether they touch different parts of an operand."""
_SHARE = 1 / 16
"""A slice by which divisions are compared."""


@dataclass(frozen=True)
class _Step:
    """A call: its instructions, the bytes of its weights, its work items (1: one thread runs it), and whether threads
    meet before it.  ``moved`` has the bytes of activations that other processors may have, and the loops that divide
    them."""

    instructions: int
    weights: int
    items: int
    meets: bool
    moved: tuple[tuple[int, _Division], ...] = ()

    def time(self, share: float, threads: int, stream: float) -> float:
        """A thread's time for a share of the call, in instructions; ``stream`` bytes of weights arrive in the time of
        one."""
        if not share:
            return 0.0
        memory = self.weights / (stream * streamed(threads if self.items > 1 else 1))
        foreign = sum(nbytes * _part(loops, share) for nbytes, loops in self.moved) * (1 - 1 / threads)
        return overlapped(self.instructions * share, memory + foreign / EXCHANGED)

    def share(self, part: int, threads: int) -> float:
        """One thread's share of the call."""
        if self.items == 1:
            return float(part == 0)
        first, last = (self.items * each // threads for each in (part, part + 1))
        return (last - first) / self.items


def predicted(program: Program, stream: float) -> Mapping[int, float]:
    """How many times as fast the program is with 1, 2, 4, ... threads, up to those it was planned for, as with one.

    ``stream`` bytes of weights arrive in the time of one instruction (``Machine.stream``).  Loops run as often as they
    can, and of branches the one that takes longest.
    """
    most = program.threads
    numbers = [n for n in (2**i for i in range(most.bit_length())) if n <= most]
    steps = list(_steps(program))
    times = {n: _time(program.items, iter(steps), n, stream) for n in dict.fromkeys([*numbers, most])}
    return {n: times[1] / time for n, time in times.items()}


def _steps(program: Program) -> Iterator[_Step]:
    sharing, scattered = Sharing(program.threads), frozenset[Place]()  # places that several threads have written
    parts: list[WorkDivision] = [sharing.part(call) for call, _ in walk(program.items)]
    for part, meets in zip(parts, barriers(parts, firsts(program.items)), strict=True):
        pairs = list(zip(part.call.kernel.params, part.call.args, strict=True))
        weights = sum(buffer_bytes(b) for b, place in pairs if place.region is Region.CONSTANT)
        items = part.slices.length if part.slices else 1
        known = [(b, place) for b, place in pairs if place.region is not Region.CONSTANT]
        divided = _divisions(part.call.kernel)
        total = count(part.call.kernel)
        moved = [
            (min(buffer_bytes(b), total.loaded if b.space == "const" else total.stored), divided.get(b, ()))
            for b, place in known
            if b.space != "scratch" and (items > 1 or place in scattered)
        ]
        results = {place for b, place in known if b.space != "const"}
        scattered = scattered | results if items > 1 else scattered - results
        yield _Step(total.instructions, weights, items, meets, tuple(moved))


def _divisions(kernel: Kernel) -> dict[Buffer, _Division]:
    """The parallel loops around each parameter's accesses: of several nests those with most items, and of several
    accesses those that divide it least."""
    divided: dict[Buffer, _Division] = {}

    def visit(body: tuple[Stmt, ...], around: tuple[Loop, ...]) -> None:
        for s in body:
            for buffer, at in _places(s):
                used = frozenset().union(*(atom.vars for i in at for atom, _ in i.terms))
                loops = tuple((loop.var.most() + 1, loop.var in used) for loop in around)
                known = divided.setdefault(buffer, loops)
                divided[buffer] = max(known, loops, key=_extent)
            if isinstance(s, Loop) and s.kind == "parallel":
                visit(s.body, (*around, s))
            elif isinstance(s, BLOCKS) and not isinstance(s, Instruction):
                visit(s.body, around)

    visit(kernel.body, ())
    return divided


def _extent(loops: _Division) -> tuple[int, float]:
    """The items of a nest, and how much of an operand a slice of these touches."""
    return prod(extent for extent, _ in loops), _part(loops, _SHARE)


def _places(s: Stmt) -> Iterator[tuple[Buffer, tuple[Index, ...]]]:
    """The elements that a statement itself reads and writes; of an instruction, the first of each operand."""
    if isinstance(s, Let | Store | Bind):
        yield from ((load.buffer, load.index) for load, _ in loads_of(s.value, ()))
    if isinstance(s, Store):
        yield s.buffer, s.index
    elif isinstance(s, Instruction):
        yield from s.operands


def _part(loops: _Division, share: float) -> float:
    """How much of an operand a slice of neighbouring work items touches."""
    part = 1.0
    for extent, divides in loops:
        if share * extent >= 1:
            return part * share if divides else part
        part, share = (part / extent if divides else part), share * extent
    return part


def _time(items: Sequence[Item], steps: Iterator[_Step], threads: int, stream: float) -> float:
    """The time of the items of a tree, whose calls are the next ``steps``."""
    total, spent = 0.0, [0.0] * threads
    for item in items:
        match item:
            case Call():
                step = next(steps)
                if step.meets and threads > 1:
                    total, spent = total + max(spent) + barrier(threads), [0.0] * threads
                spent = [s + step.time(step.share(i, threads), threads, stream) for i, s in enumerate(spent)]
            case Repeat():
                total += item.most * _time(item.body, steps, threads, stream)
            case Branch():
                total += max(_time(body, steps, threads, stream) for body in item.bodies)
    return total + max(spent)
