"""The objects of a device's memory in which the operands of a program lie.

A device that reads images may read an object as an image while a kernel runs only if the kernel writes nothing in it.
Therefore the activations can have two objects of equal size: every block of the arena lies in one of them, at its
offset, and blocks that a call reads and writes lie in different ones where that can be.  Blocks keep their offsets, so
that any choice is right; the choice decides only how many operands images can be read for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tenon.machine.kernel_ir.loops import Buffer
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.plan.program import Branch, Item, Place, Program, Region, Repeat, SizeCheck

CONSTANTS, PORTS, FIRST, SECOND = range(4)
"""The constant and the mutable region, and the two halves of the activations."""

Objects = tuple[int, ...]
"""The object of each operand of a call."""


class ImageOperands:
    """The operands that can be read from images: ``objects`` are those of each call of each program.

    By all operands of a kernel, ``readable`` are those that all its calls read from objects in which they write
    nothing, and ``weights`` those that lie in the constant region in all calls.  Others of ``readable`` do in none.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.objects: list[list[Objects]] = []
        self.weights = dict[tuple[Buffer, ...], frozenset[Buffer]]()
        self.readable = dict[tuple[Buffer, ...], frozenset[Buffer]]()
        for program in programs:
            second = _second(program)
            self.objects.append([tuple(_object(place, second) for place in call.args) for call in program.calls])
            for call, objects in zip(program.calls, self.objects[-1], strict=True):
                self.add(call.kernel.params, objects)

    def add(self, params: tuple[Buffer, ...], objects: Objects) -> None:
        """Take the operands of a call into account."""
        pairs = list(zip(params, objects, strict=True))
        written = {number for buffer, number in pairs if buffer.space != "const"}
        readable = {buffer for buffer, number in pairs if buffer.space == "const" and number not in written}
        weights = frozenset(buffer for buffer, number in pairs if number == CONSTANTS)
        known = self.weights.get(params, weights)
        self.readable[params] = self.readable.get(params, frozenset(params)) & readable - (known ^ weights)
        self.weights[params] = known & weights


def _object(place: Place, second: frozenset[int]) -> int:
    if place.region is Region.ACTIVATIONS:
        return SECOND if place.block in second else FIRST
    return CONSTANTS if place.region is Region.CONSTANT else PORTS


def _second(program: Program) -> frozenset[int]:
    """The blocks of the second object.  One after the other, in the order in which they are first written, goes where
    fewer bytes are that its call reads; those that the host reads are in the first object."""
    chosen = {place.block: FIRST for item in program.items for place in _decisive(item)}
    for call in program.calls:
        pairs = [pair for pair in zip(call.kernel.params, call.args, strict=True) if pair[1].block]
        for _, place in (pair for pair in pairs if pair[0].space != "const" and pair[1].block not in chosen):
            read = Counter({FIRST: 0, SECOND: 0})
            for buffer, other in pairs:
                if buffer.space == "const":
                    read[chosen.get(other.block, FIRST)] += buffer_bytes(buffer)
            chosen[place.block] = FIRST if read[FIRST] <= read[SECOND] else SECOND
    return frozenset(block for block, number in chosen.items() if number == SECOND)


def _decisive(item: Item) -> Iterator[Place]:
    """The places of the numbers that decide about loops, branches and the end of a run."""
    match item:
        case Repeat(count=number, body=body):
            yield from [number] if isinstance(number, Place) else []
            yield from (place for each in body for place in _decisive(each))
        case Branch(condition=condition, bodies=bodies):
            yield condition
            yield from (place for body in bodies for each in body for place in _decisive(each))
        case SizeCheck(place=place):
            yield place
