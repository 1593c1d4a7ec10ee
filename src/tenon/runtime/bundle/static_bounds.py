"""Bounds that hold for every run of a network on a microcontroller: bytes of stack, and instructions.

Both come from the assembly that the compiler prints for the network's code, without running it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenon.machine.targets import Target
from tenon.machine.toolchain.assembly import frames, stack_bound
from tenon.machine.toolchain.compiler import Compiler
from tenon.machine.toolchain.control_flow import UnboundedError, functions
from tenon.machine.toolchain.instruction_bound import InstructionBound, InstructionBounds
from tenon.machine.toolchain.library_instructions import library_instructions
from tenon.runtime.bundle.link import runtime


@dataclass(frozen=True)
class Instructions:
    """The most that a call of an entry point executes, and of them those of each kernel call, in order, where that is
    known."""

    total: int
    calls: tuple[int, ...] | None


@dataclass(frozen=True)
class StaticBounds:
    """``stack``: the most bytes that a call of any entry point takes, below the frame of its caller.  ``instructions``
    by entry point, where they are bounded; ``reason`` why they are not."""

    stack: int
    instructions: Mapping[str, Instructions]
    reason: str = ""


def static_bounds(
    compiler: Compiler,
    target: Target,
    texts: Sequence[str],
    header: str,
    entries: Mapping[str, Sequence[str]],
    iterations: Mapping[str, Sequence[int]],
) -> StaticBounds:
    """The bounds of a network for a target without operating system.  ``texts`` are its translation units, ``entries``
    its entry points, with the functions that each calls for its kernels; the first one names the network.
    ``iterations`` are those of loops of kernels at most, where data decides how often they run
    (``InstructionBounds``)."""
    name = next(iter(entries))
    extra = ("-Wno-unused-function",) if len(texts) > 1 else ()
    printed = [compiler.assembly({"memory.c": runtime("memory.c")}, "memory.c", target, ("-fno-builtin",))]
    for text in texts:
        files = {f"{name}.c": text.encode(), f"{name}.h": header.encode()}
        printed.append(compiler.assembly(files, f"{name}.c", target, extra))
    known = {function: frame for text in printed for function, frame in frames(text).items()}
    stack = max(stack_bound(known, entry) for entry in entries)
    if not target.triple.startswith("thumb"):
        return StaticBounds(stack, {}, "instructions are counted for Arm's Cortex-M")
    try:
        code = {symbol: function for text in printed for symbol, function in functions(text).items()}
        program = InstructionBounds(code, library_instructions(target), iterations)
        bounds = {entry: _instructions(program.bound(entry), name, kernels) for entry, kernels in entries.items()}
        return StaticBounds(stack, bounds)
    except UnboundedError as error:
        return StaticBounds(stack, {}, str(error))


def _instructions(bound: InstructionBound, name: str, kernels: Sequence[str]) -> Instructions:
    """Kernels of several translation units begin with the network's ``name``."""
    calls = [(called.removeprefix(f"{name}_"), instructions) for called, instructions in bound.calls]
    whole = bool(kernels) and [called for called, _ in calls] == [kernel.removeprefix(f"{name}_") for kernel in kernels]
    return Instructions(bound.instructions, tuple(n for _, n in calls) if whole else None)
