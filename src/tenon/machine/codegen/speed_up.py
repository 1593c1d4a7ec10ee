"""The time that threads are predicted to save, from the plan: its phases, work items, instructions, and bytes.

Threads meet where one reads what another wrote.  Until then each runs its slices of all calls, and the phase takes as
long as the thread that has the most work.  Weights arrive at the rate of main memory, which serves more than one thread
and not all; activations that another processor has written last arrive from its cache.  The terms are those by which
algorithms are chosen (``algorithms.estimate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tenon.machine.algorithms.estimate import EXCHANGED, barrier, overlapped, streamed
from tenon.machine.codegen.threads import Sharing, WorkDivision, barriers, firsts
from tenon.machine.kernel_ir.loops import Buffer, Instruction, Kernel, Loop
from tenon.machine.kernel_ir.walk import loads, statements
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.plan.program import Branch, Call, Item, Place, Program, Region, Repeat, walk
from tenon.machine.proofs.count import count


@dataclass(frozen=True)
class _Step:
    """A call: its instructions, the bytes of its weights, its work items (1: one thread runs it), and whether threads
    meet before it.  Of its activations, every thread reads those ``whole``, and its part of those ``divided``."""

    instructions: int
    weights: int
    items: int
    meets: bool
    whole: int = 0
    divided: int = 0

    def time(self, share: float, threads: int, stream: float) -> float:
        """A thread's time for a share of the call, in instructions; ``stream`` bytes of weights arrive in the time of
        one."""
        if not share:
            return 0.0
        memory = self.weights / (stream * streamed(threads if self.items > 1 else 1))
        foreign = (self.whole + self.divided * share) * (1 - 1 / threads) / EXCHANGED
        return overlapped(self.instructions * share, memory + foreign)

    def share(self, part: int, threads: int) -> float:
        """What one of the threads does of the call."""
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
        everywhere = _read_everywhere(part.call.kernel)
        known = [(b, place) for b, place in pairs if place.region is not Region.CONSTANT]
        moved = [b for b, place in known if items > 1 or place in scattered]
        whole = sum(buffer_bytes(b) for b in moved if b in everywhere)
        divided = sum(buffer_bytes(b) for b in moved) - whole
        results = {place for b, place in known if b.space != "const"}
        scattered = scattered | results if items > 1 else scattered - results
        yield _Step(count(part.call.kernel).instructions, weights, items, meets, whole, divided)


def _read_everywhere(kernel: Kernel) -> frozenset[Buffer]:
    """The operands of which every work item reads the same elements: no index has the number of one."""
    numbers = {s.var for s in statements(kernel.body) if isinstance(s, Loop) and s.kind == "parallel"}
    constant = {b for b in kernel.params if b.space == "const"}
    places = [(load.buffer, load.index) for load, _ in loads(kernel.body)]
    places += [each for s in statements(kernel.body) if isinstance(s, Instruction) for each in s.operands]
    by_item = {b for b, at in places if any(atom.vars & numbers for i in at for atom, _ in i.terms)}
    return frozenset(constant - by_item)


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
