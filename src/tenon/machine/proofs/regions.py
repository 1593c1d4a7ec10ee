"""Whether the calls, loops and branches of a program stay within its regions, however often loops run.

``bounds`` proves that a kernel stays within its operands; here it is shown that these lie within the regions, in every
iteration of the loops around the call.  A loop whose number of iterations is decided at run time makes as many as its
limit at most, which the entry point checks: no operand may move further than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tenon.errors import InternalError
from tenon.machine.kernel_ir.loops import Buffer
from tenon.machine.plan.program import (
    LARGEST_COUNT,
    Branch,
    Call,
    Item,
    Place,
    Program,
    Region,
    Repeat,
    SizeCheck,
    walk,
)

_COUNT, _COUNTER, _CONDITION = 8, 4, 1
"""Bytes of a size and of the number of iterations of a loop, of those that are finished, and of the condition of a
branch."""


class RegionError(InternalError):
    """A program that may access memory outside of its regions, or overwrite what decides about its loops."""


def prove_regions(program: Program) -> None:
    """Raise RegionError unless all accesses of a program lie within its regions."""
    memory = program.memory
    sizes = {
        Region.CONSTANT: memory.constant,
        Region.MUTABLE: memory.mutable,
        Region.ACTIVATIONS: memory.activations,
    }
    _RegionProof(program.name, sizes).visit(program.items, ())


class _RegionProof:
    def __init__(self, name: str, sizes: dict[Region, int]) -> None:
        self.name, self.sizes = name, sizes

    def visit(self, items: Iterable[Item], loops: tuple[Repeat, ...]) -> None:
        for item in items:
            match item:
                case Call():
                    for buffer, place in zip(item.kernel.params, item.args, strict=True):
                        self.prove_place(f"{buffer.name} of '{item.layer}'", place, _bytes(buffer), loops)
                case Repeat():
                    self.loop(item, loops)
                    self.visit(item.body, (*loops, item))
                case Branch():
                    self.prove_place("the condition of a branch", item.condition, _CONDITION, loops)
                    for body in item.bodies:
                        self.visit(body, loops)
                case SizeCheck():
                    self.prove_place(f"the size '{item.name}'", item.place, _COUNT, loops)

    def loop(self, loop: Repeat, loops: tuple[Repeat, ...]) -> None:
        if not 0 <= loop.most <= LARGEST_COUNT:
            raise RegionError(f"{self.name}: a loop makes {loop.most} iterations, which are counted in 32 bits")
        if isinstance(loop.count, Place):
            self.prove_place("the count of a loop", loop.count, _COUNT, loops)
        self.prove_place("the counter of a loop", loop.counter, _COUNTER, loops)
        for call, _ in walk(loop.body):
            for buffer, place in zip(call.kernel.params, call.args, strict=True):
                if buffer.space != "const" and _overlap(place, _bytes(buffer), loop.counter):
                    raise RegionError(
                        f"{self.name}: {buffer.name} of '{call.layer}' overwrites the counter of a loop around it"
                    )

    def prove_place(self, what: str, place: Place, size: int, loops: tuple[Repeat, ...]) -> None:
        for advance in place.advances:
            if advance.depth >= len(loops):
                raise RegionError(f"{self.name}: {what} moves with loop {advance.depth}, of which it is no part")
            if advance.step and advance.count < (most := loops[advance.depth].most):
                raise RegionError(
                    f"{self.name}: {what} moves {advance.count} times at most, and its loop makes {most} iterations"
                )
        if size and (place.lowest < 0 or place.highest + size > self.sizes[place.region]):
            end = place.highest + size
            size = self.sizes[place.region]
            raise RegionError(
                f"{self.name}: {what} lies from {place.lowest} to {end} of {size} bytes of {place.region}"
            )


def _bytes(buffer: Buffer) -> int:
    return math.prod(extent.const for extent in buffer.shape) * buffer.type.bytes


def _overlap(place: Place, size: int, counter: Place) -> bool:
    below = place.lowest < counter.offset + _COUNTER
    return place.region is counter.region and below and counter.offset < place.highest + size
