"""The host functions that check the sizes of a network's inputs and queue its launches.

Loops and branches are those of the program.  What decides about them is read from the device between launches
(``runtime/c/device_numbers.c``), in a network for which that is needed: no run of it can be recorded before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby

from tenon.machine.codegen.threads import may_write
from tenon.machine.plan.program import Branch, Call, Item, Place, Program, Region, Repeat, SizeCheck, repeats, walk

_NUMBER, _CHOICE = 8, 1
"""Bytes of a size or the number of iterations of a loop, and of what chooses the body of a branch."""
_REGIONS = {
    Region.CONSTANT: "DEVICE_CONSTANT",
    Region.MUTABLE: "DEVICE_MUTABLE",
    Region.ACTIVATIONS: "DEVICE_ACTIVATIONS",
}


def depths(items: Iterable[Item], depth: int = 0) -> Iterator[int]:
    """For every call in order, how many loops are around it."""
    for item in items:
        match item:
            case Call():
                yield depth
            case Repeat(body=body):
                yield from depths(body, depth + 1)
            case Branch(bodies=bodies):
                for each in bodies:
                    yield from depths(each, depth)


def most_loops(programs: Iterable[Program]) -> int:
    """Loops around a step; 1 where there are none, as C has no empty arrays."""
    return max(1, *(max(depths(p.items), default=0) for p in programs))


def counted_calls(item: Item) -> Iterator[Call]:
    """The calls that run as often as a value says that is known only at run time."""
    match item:
        case Repeat(int(), body):
            for each in body:
                yield from counted_calls(each)
        case Repeat():
            yield from (call for call, _ in walk((item,)))
        case Branch(bodies=bodies):
            for each in (each for body in bodies for each in body):
                yield from counted_calls(each)


def host_checks(program: Program) -> list[SizeCheck]:
    """The checks of sizes that are inputs, which the host makes before it copies the inputs: those that come first."""
    inputs, first = {port.offset for port in program.inputs}, list[SizeCheck]()
    for item in program.items:
        if not isinstance(item, SizeCheck) or item.place.region is not Region.MUTABLE:
            break
        if item.place.offset in inputs:
            first.append(item)
    return first


def reads_numbers(program: Program) -> bool:
    """Whether the host reads numbers between the launches of a run."""

    def reads(item: Item) -> bool:
        match item:
            case Repeat(count=number, body=body):
                return isinstance(number, Place) or any(map(reads, body))
            case Branch():
                return True
            case SizeCheck():
                return item not in early
        return False

    early = host_checks(program)
    return any(map(reads, program.items))


def host_files(programs: Iterable[Program]) -> list[str]:
    """The files of ``runtime/c`` that the launches of programs call, besides those of all."""
    listed = list(programs)
    if not any(map(reads_numbers, listed)):
        return []
    return ["device_numbers.c", *(["device_loops.c"] if any(p.limited for p in listed) else [])]


def launch_function(program: Program) -> list[str]:
    """The lines of the function that queues all steps."""
    written = {id(loop): _writes(loop) for loop in repeats(program.items) if isinstance(loop.count, Place)}
    body = list(_queued(program.items, 0, count(), host_checks(program), "  "))
    return [
        f"static int {program.name}_launch(DeviceQueue *d) {{",
        "  int iterations[DEVICE_LOOPS] = {0}, status = 0;",
        *(["  int64_t counts[DEVICE_LOOPS];"] if not all(written.values()) else []),
        *(["  int64_t size;"] if len(program.checks) > len(host_checks(program)) else []),
        *body,
        *([] if program.calls else ["  status = device_launch_steps(d, 0, 0, iterations);"]),
        "  return status;",
        "}\n",
    ]


def _queued(
    items: Iterable[Item], depth: int, numbers: Iterator[int], early: Sequence[SizeCheck], margin: str
) -> Iterator[str]:
    """The statements that queue the launches of a tree, inside of as many loops as ``depth``."""
    for is_call, group in groupby(items, lambda item: isinstance(item, Call)):
        if is_call:
            steps = [next(numbers) for _ in group]
            yield f"{margin}if (status == 0) status = device_launch_steps(d, {steps[0]}, {steps[-1] + 1}, iterations);"
            continue
        for item in group:
            if item not in early:
                yield from _decision(item, depth, numbers, early, margin)


def _decision(item: Item, depth: int, numbers: Iterator[int], early: Sequence[SizeCheck], margin: str) -> Iterator[str]:
    match item:
        case Repeat():
            yield from _head(item, depth, margin)
            yield from _queued(item.body, depth + 1, numbers, early, f"{margin}  ")
            yield f"{margin}}}"
        case Branch():
            yield f"{margin}switch ({_read(item.condition, _CHOICE)}) {{"
            for number, body in enumerate(item.bodies):
                label = f"case {number}" if number < len(item.bodies) - 1 else "default"
                yield f"{margin}{label}:"
                yield from _queued(body, depth, numbers, early, f"{margin}  ")
                yield f"{margin}  break;"
            yield f"{margin}}}"
        case SizeCheck():
            yield f"{margin}size = {_read(item.place, _NUMBER)};"
            yield f"{margin}if (status == 0 && ({_tests(item)})) status = {_failure(item, ' (--max)')};"


def _head(loop: Repeat, depth: int, margin: str) -> Iterator[str]:
    """The beginning of a loop, whose number of iterations is read once if its body leaves it alone."""
    i = f"iterations[{depth}]"
    if isinstance(loop.count, int):
        yield f"{margin}for ({i} = 0; status == 0 && {i} < {loop.count}; {i}++) {{"
        return
    number = _read(loop.count, _NUMBER)
    if not _writes(loop):
        yield f"{margin}counts[{depth}] = {number};"
        number = f"counts[{depth}]"
    yield f"{margin}for ({i} = 0; device_repeats({number}, {i}, {loop.limit}, &status); {i}++) {{"


def _writes(loop: Repeat) -> bool:
    """Whether the body of a loop may write the number of its iterations."""
    assert isinstance(loop.count, Place)
    return any(may_write(call, loop.count, _NUMBER) for call, _ in walk(loop.body))


def _read(place: Place, size: int) -> str:
    """The number of ``size`` bytes at a place, in the current iteration."""
    moved = "".join(f" + (size_t)iterations[{a.depth}] * {a.step}" for a in place.advances)
    return f"device_number(d, {_REGIONS[place.region]}, {place.offset}{moved}, {size}, &status)"


def check_function(name: str, checks: Sequence[SizeCheck]) -> list[str]:
    """The function that checks the sizes of the inputs."""
    if not checks:
        return []
    return [
        f"static int {name}_checked(const uint8_t *tensors) {{",
        "  int64_t size;",
        *(line for check in checks for line in _size_check(check)),
        "  return 0;",
        "}\n",
    ]


def _size_check(check: SizeCheck) -> list[str]:
    return [
        f"  memcpy(&size, tensors + {check.place.offset}, sizeof size);",
        f"  if ({_tests(check)}) return {_failure(check)};",
    ]


def _tests(check: SizeCheck) -> str:
    least, most, step = check.range
    return " || ".join([f"size < {least}", f"size > {most}", *([f"(size - {least}) % {step}"] if step > 1 else [])])


def _failure(check: SizeCheck, remedy: str = "") -> str:
    told = f"\"size '%s' is %lld, not in {check.range}{remedy}\", {json.dumps(check.name)}, (long long)size"
    return f"device_failed(DEVICE_WRONG_SIZE, {told})"
