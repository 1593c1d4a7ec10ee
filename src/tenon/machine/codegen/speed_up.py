"""The time that threads are predicted to save, from the plan: its phases, work items, instructions and weights.

A phase takes as long as the thread that has the most work items of its calls, and threads meet at its end.  Weights
arrive at the rate of main memory, which serves more than one thread and not all.  The terms are those by which
algorithms are chosen (``algorithms.estimate``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tenon.machine.algorithms.estimate import BARRIER, overlapped, slowest, streamed
from tenon.machine.codegen.threads import Sharing, WorkDivision, barriers, firsts
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.plan.program import Branch, Call, Item, Program, Region, Repeat, walk
from tenon.machine.proofs.count import count


@dataclass(frozen=True)
class _Step:
    """A call: its instructions, the bytes of its weights, its work items (1: one thread runs it), and whether threads
    meet before it."""

    instructions: int
    weights: int
    items: int
    meets: bool

    def time(self, threads: int, stream: float) -> float:
        """In instructions; ``stream`` bytes of weights arrive in the time of one."""
        memory = self.weights / (stream * streamed(threads if self.items > 1 else 1))
        return overlapped(self.instructions * slowest(self.items, threads), memory)


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
    sharing = Sharing(program.threads)
    parts: list[WorkDivision] = [sharing.part(call) for call, _ in walk(program.items)]
    for part, meets in zip(parts, barriers(parts, firsts(program.items)), strict=True):
        pairs = zip(part.call.kernel.params, part.call.args, strict=True)
        weights = sum(buffer_bytes(b) for b, place in pairs if place.region is Region.CONSTANT)
        items = part.slices.length if part.slices else 1
        yield _Step(count(part.call.kernel).instructions, weights, items, meets)


def _time(items: Sequence[Item], steps: Iterator[_Step], threads: int, stream: float) -> float:
    """The time of the items of a tree, whose calls are the next ``steps``."""
    total = 0.0
    for item in items:
        match item:
            case Call():
                step = next(steps)
                total += step.time(threads, stream) + (BARRIER if step.meets and threads > 1 else 0.0)
            case Repeat():
                total += item.most * _time(item.body, steps, threads, stream)
            case Branch():
                total += max(_time(body, steps, threads, stream) for body in item.bodies)
    return total
