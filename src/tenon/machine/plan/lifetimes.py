"""When which bytes of the activations hold what: read off the kernel calls of a program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tenon.machine.kernel_ir.loops import Buffer
from tenon.machine.plan.program import Branch, Call, Carried, Item, Place, Program, Region, Repeat, SizeCheck, walk


@dataclass(frozen=True)
class Lifetime:
    """Bytes of the activations that a layer writes: from call number ``first``, which is the first to write them, to
    ``last``, the last one to read or write them."""

    layer: str
    op: str
    offset: int
    bytes: int
    first: int
    last: int


def lifetimes(program: Program) -> list[Lifetime]:
    """All of them, in the order of their first calls.  Scratch memory lives in one call; a result in place of its
    operand begins a life of its own.  What is alive before a loop and used in it, or carried from one of its iterations
    to the next, lives until the loop ends."""
    ended, alive = list[Lifetime](), list[Lifetime]()
    for number, (call, loops) in enumerate(_with_loops(program.items, 0, ())):
        for buffer, place in _in_activations(call):
            start, size = place.lowest, _bytes(buffer, place)
            alive = [_used(each, number, loops) if _overlap(each, start, size) else each for each in alive]
        for buffer, place in _in_activations(call):
            if buffer.space == "const":
                continue
            start, size = place.lowest, _bytes(buffer, place)
            met = [each for each in alive if _overlap(each, start, size)]
            if any(each.layer == call.layer and each.op == call.op and buffer.space != "scratch" for each in met):
                continue  # a further part of the same layer's result
            if met and any(loop.carries(start, size) for loop in loops):
                continue
            ended += met
            alive = [each for each in alive if each not in met]
            alive.append(Lifetime(call.layer, call.op, start, size, number, number))
    return sorted([*ended, *alive], key=lambda each: (each.first, each.offset))


@dataclass(frozen=True)
class _Loop:
    """The numbers of the calls of a loop, and what it carries."""

    first: int
    last: int
    carried: tuple[Carried, ...]

    def carries(self, offset: int, size: int) -> bool:
        activations = (each for each in self.carried if each.place.region is Region.ACTIVATIONS)
        return any(c.place.offset < offset + size and offset < c.place.offset + c.bytes for c in activations)


def _with_loops(
    items: Iterable[Item], number: int, loops: tuple[_Loop, ...]
) -> Iterator[tuple[Call, tuple[_Loop, ...]]]:
    """Every call, the first of which has this number, with the loops around it."""
    for item in items:
        match item:
            case Call():
                yield item, loops
                number += 1
            case Repeat():
                count = sum(1 for _ in walk(item.body))
                yield from _with_loops(item.body, number, (*loops, _Loop(number, number + count - 1, item.carried)))
                number += count
            case Branch():
                for body in item.bodies:
                    yield from _with_loops(body, number, loops)
                    number += sum(1 for _ in walk(body))
            case SizeCheck():
                pass


def _used(each: Lifetime, number: int, loops: Iterable[_Loop]) -> Lifetime:
    """A life in which call ``number`` reads or writes."""
    whole = [loop.last for loop in loops if each.first < loop.first or loop.carries(each.offset, each.bytes)]
    return replace(each, last=max(number, each.last, *whole))


def _in_activations(call: Call) -> Iterator[tuple[Buffer, Place]]:
    pairs = zip(call.kernel.params, call.args, strict=True)
    return ((buffer, place) for buffer, place in pairs if place.region is Region.ACTIVATIONS)


def _bytes(buffer: Buffer, place: Place) -> int:
    """The bytes of a buffer in all iterations, including the copies of other threads."""
    elements = math.prod(extent.const for extent in buffer.shape)
    return elements * buffer.type.dtype.bytes * buffer.type.lanes + place.highest - place.lowest


def _overlap(each: Lifetime, offset: int, size: int) -> bool:
    return each.offset < offset + size and offset < each.offset + each.bytes
