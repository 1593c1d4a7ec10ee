"""Programs as text: memory, ports, and the kernel calls with the places of their operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.machine.plan.program import Branch, Call, Item, Place, Port, Program, Region, Repeat, SizeCheck
from tenon.network.graph.graph import Graph


def show_program(program: Program) -> str:
    """The text of a program.  A line of ``calls`` has a kernel, its operands, and the layer that it is part of; loops
    and branches hold further lines."""
    memory = program.memory
    lines = [
        f"program {program.name}, for at most {program.threads} threads",
        f"{Region.CONSTANT}: {memory.constant} bytes",
        f"{Region.MUTABLE}: {memory.mutable} bytes",
        f"{Region.ACTIVATIONS}: {memory.activations} bytes, of at least {memory.bound}",
        *(_port("input", port) for port in program.inputs),
        *(_port("output", port) for port in program.outputs),
        "constants",
        *(f"  {Region.CONSTANT} + {c.offset}: {c.data.dtype}{list(c.data.shape)}" for c in program.constants),
        "calls",
        *_items(program.items, count(1), "  "),
    ]
    return "\n".join(lines) + "\n"


def _port(kind: str, port: Port) -> str:
    return f"{kind} {port.name}: {port.type} at {Region.MUTABLE} + {port.offset}"


def _items(items: Iterable[Item], numbers: Iterator[int], margin: str) -> Iterator[str]:
    for item in items:
        match item:
            case Call():
                yield f"{margin}{next(numbers)} {_call(item)}"
            case Repeat():
                yield f"{margin}{repeat_head(item)} {{"
                yield from _items(item.body, numbers, f"{margin}  ")
                yield f"{margin}}}"
            case Branch():
                for number, body in enumerate(item.bodies):
                    yield f"{margin}{branch_head(item, number)} {{"
                    yield from _items(body, numbers, f"{margin}  ")
                    yield f"{margin}}}"
            case SizeCheck():
                yield f"{margin}{check_text(item)}"


def repeat_head(loop: Repeat) -> str:
    """How often a loop runs, and where its iterations are counted."""
    times = f"{loop.count}" if isinstance(loop.count, int) else f"as the i64 at {show_place(loop.count)} says"
    return f"repeat {times}, counted at {show_place(loop.counter)}"


def branch_head(branch: Branch, number: int) -> str:
    """When a body of a branch runs."""
    return f"branch {number} of {len(branch.bodies)} by the byte at {show_place(branch.condition)}"


def check_text(check: SizeCheck) -> str:
    """The number that is checked, and its range."""
    return f"check that {check.name or 'the size'}, the i64 at {show_place(check.place)}, is in {check.range}"


def _call(call: Call) -> str:
    operands = zip(call.kernel.params, call.args, strict=True)
    listed = ", ".join(f"{buffer.name} = {show_place(place)}" for buffer, place in operands)
    macs = f", {call.macs} MACs" if call.macs else ""
    return f"{call.kernel.name}({listed}) of {call.layer}: {call.op}{macs}"


def show_place(place: Place) -> str:
    """An offset in a region, how it moves in loops, and the distance of its copies where threads have their own."""
    copies = f" ({place.copies} copies, {place.stride} bytes apart)" if place.stride else ""
    moved = "".join(f" + {a.step} in each iteration of loop {a.depth}" for a in place.advances)
    return f"{place.region} + {place.offset}{moved}{copies}"


def show_algorithms(graph: Graph, setting: Setting) -> str:
    """The algorithm of each layer that could be computed by several, and the others, best first by estimate."""
    return "\n".join(["algorithms", *_algorithms(graph, setting), ""])


def _algorithms(graph: Graph, setting: Setting) -> Iterator[str]:
    for node in graph:
        where = site(node, setting)
        keys = [algorithm.key for algorithm in operator(node).candidates(where)]
        chosen = where.algorithm.key if where.algorithm is not None else keys[0] if keys else ""
        if chosen:
            measured = " (measured)" if key(node) in setting.measured else ""
            yield f"  {node.origin}: {chosen}{measured}"
            yield from (f"    before {other}" for other in keys if other != chosen)
