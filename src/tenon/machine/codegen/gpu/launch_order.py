"""The order of launches where they are nodes of a graph of the driver's: each waits for those that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tenon.machine.codegen.threads import depends
from tenon.machine.plan.program import Call, Program


def order_tables(program: Program) -> list[str]:
    """C tables of the launches that each one waits for, and at last of those that nothing waits for: all numbers in one
    list, and where those of each end.  None where every launch waits for the one before anyway."""
    before = waited_for(program)
    if not before:
        return []
    waited, ends = list[int](), list[int]()
    for numbers in before:
        waited += numbers
        ends.append(len(waited))
    return [_table(f"{program.name}_waited", waited), _table(f"{program.name}_ends", ends)]


def waited_for(program: Program) -> list[list[int]]:
    """For each launch those that it waits for itself, and at last those that nothing waits for; nothing at all where
    every launch waits for the one before, or where launches are repeated or chosen."""
    calls = program.calls
    if any(not isinstance(item, Call) for item in program.items):
        return []
    before, earlier = list[list[int]](), list[int]()
    for number in range(len(calls)):
        own, seen = _nearest(calls, number, earlier)
        before.append(own)
        earlier.append(seen)
    if all(own == [number - 1] for number, own in enumerate(before) if number):
        return []
    return [*before, sorted(set(range(len(calls))) - {number for own in before for number in own})]


def _nearest(calls: Sequence[Call], number: int, earlier: Sequence[int]) -> tuple[list[int], int]:
    """The last calls on which one depends, without those on which these depend; and as bits all that it waits for, of
    which ``earlier`` has those of each call before."""
    own, seen = list[int](), 0
    for other in reversed(range(number)):
        if seen == (1 << number) - 1:
            break
        if not seen >> other & 1 and depends(calls[number], calls[other]):
            own.append(other)
            seen |= earlier[other] | 1 << other
    return own[::-1], seen


def _table(name: str, numbers: Iterable[int]) -> str:
    return "\n".join([f"static const size_t {name}[] = {{", *_lines(map(str, numbers)), "};"])


def _lines(words: Iterable[str]) -> Iterator[str]:
    line = " "
    for word in words:
        if len(line) + len(word) > 110:
            yield line
            line = " "
        line += f" {word},"
    yield line
