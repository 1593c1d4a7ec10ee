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
    to the next, lives until the loop ends.  Each body of a branch finds alive what was so before the branch, and behind
    it all results of all bodies are."""
    walk = _LifetimeWalk()
    walk.end(walk.items(program.items, [], ()))
    return sorted(walk.ended.values(), key=lambda each: (each.first, each.offset))


@dataclass(frozen=True)
class _Loop:
    """The numbers of the calls of a loop, and what it carries."""

    first: int
    last: int
    carried: tuple[Carried, ...]

    def carries(self, offset: int, size: int) -> bool:
        activations = (each for each in self.carried if each.place.region is Region.ACTIVATIONS)
        return any(c.place.offset < offset + size and offset < c.place.offset + c.bytes for c in activations)


class _LifetimeWalk:
    """A walk over the calls of a tree, by their numbers; ``ended`` are the lives that nothing extends any more."""

    def __init__(self) -> None:
        self.number = 0
        self.ended: dict[tuple[str, str, int, int, int], Lifetime] = {}

    def items(self, items: Iterable[Item], alive: list[Lifetime], loops: tuple[_Loop, ...]) -> list[Lifetime]:
        """The tensors that are alive behind items, before which ``alive`` are."""
        for item in items:
            match item:
                case Call():
                    alive = self.call(item, alive, loops)
                    self.number += 1
                case Repeat():
                    last = self.number + sum(1 for _ in walk(item.body)) - 1
                    alive = self.items(item.body, alive, (*loops, _Loop(self.number, last, item.carried)))
                case Branch():
                    alive = _longest([each for body in item.bodies for each in self.items(body, alive, loops)])
                case SizeCheck():
                    pass
        return alive

    def call(self, call: Call, alive: list[Lifetime], loops: tuple[_Loop, ...]) -> list[Lifetime]:
        for buffer, place in _in_activations(call):
            start, size = place.lowest, _bytes(buffer, place)
            alive = [_used(each, self.number, loops) if _overlap(each, start, size) else each for each in alive]
        for buffer, place in _in_activations(call):
            if buffer.space == "const":
                continue
            start, size = place.lowest, _bytes(buffer, place)
            met = [each for each in alive if _overlap(each, start, size)]
            if any(each.layer == call.layer and each.op == call.op and buffer.space != "scratch" for each in met):
                continue  # a further part of the same layer's result
            if met and any(loop.carries(start, size) for loop in loops):
                continue
            self.end(met)
            born = Lifetime(call.layer, call.op, start, size, self.number, self.number)
            alive = [*(each for each in alive if each not in met), born]
        return alive

    def end(self, lives: Iterable[Lifetime]) -> None:
        """A life that ends in one body of a branch may end later in another one."""
        for each in _longest([*self.ended.values(), *lives]):
            self.ended[_key(each)] = each


def _longest(lives: Iterable[Lifetime]) -> list[Lifetime]:
    """Each life once, until its last end."""
    longest = dict[tuple[str, str, int, int, int], Lifetime]()
    for each in lives:
        known = longest.setdefault(_key(each), each)
        longest[_key(each)] = each if each.last > known.last else known
    return list(longest.values())


def _key(each: Lifetime) -> tuple[str, str, int, int, int]:
    return each.layer, each.op, each.offset, each.bytes, each.first


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
