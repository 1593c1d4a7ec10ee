"""When which bytes of the activations hold what: read off the kernel calls of a program."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tenon.machine.kernel_ir.loops import Buffer
from tenon.machine.plan.program import Place, Program, Region


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
    operand begins a life of its own."""
    ended, alive = list[Lifetime](), list[Lifetime]()
    for number, call in enumerate(program.calls):
        for buffer, place in zip(call.kernel.params, call.args, strict=True):
            if place.region is not Region.ACTIVATIONS:
                continue
            size = _bytes(buffer, place)
            alive = [replace(each, last=number) if _overlap(each, place.offset, size) else each for each in alive]
        for buffer, place in zip(call.kernel.params, call.args, strict=True):
            if place.region is not Region.ACTIVATIONS or buffer.space == "const":
                continue
            size = _bytes(buffer, place)
            met = [each for each in alive if _overlap(each, place.offset, size)]
            if any(each.layer == call.layer and each.op == call.op and buffer.space != "scratch" for each in met):
                continue  # a further part of the same layer's result
            ended += met
            alive = [each for each in alive if each not in met]
            alive.append(Lifetime(call.layer, call.op, place.offset, size, number, number))
    return sorted([*ended, *alive], key=lambda each: (each.first, each.offset))


def _bytes(buffer: Buffer, place: Place) -> int:
    """Of a buffer, with the copies that other threads have of it."""
    elements = math.prod(extent.const for extent in buffer.shape)
    return elements * buffer.type.dtype.bytes * buffer.type.lanes + place.highest - place.lowest


def _overlap(each: Lifetime, offset: int, size: int) -> bool:
    return each.offset < offset + size and offset < each.offset + each.bytes
