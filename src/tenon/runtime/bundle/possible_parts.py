"""The parts of a bundle that a target has, known before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tenon.errors import InputError
from tenon.machine.targets import Target
from tenon.machine.targets.base import Group
from tenon.options import EMIT, PARTS, Emit
from tenon.runtime.bundle.names import library_name

ON_REQUEST: frozenset[Emit] = frozenset(EMIT) - (PARTS - {"ir"})
"""Parts that are only written if asked for."""

COMPILED: frozenset[Emit] = frozenset({"object", "library", "exe", "html", "npm", "archive", "cmake", "tar", "mace"})
"""Parts that hold machine code."""

_PROGRAMS: frozenset[Emit] = frozenset({"exe", "html", "npm", "micro", "serial"})
"""Parts with a program that calls the network."""

_FIXED: frozenset[Emit] = _PROGRAMS | {"image", "mace"}
"""Parts with a program whose inputs have the shapes that the network was compiled for."""

_PAGES: frozenset[Emit] = frozenset({"html", "npm"})

_OF_C: frozenset[Emit] = frozenset(
    {"single-c", "single-header", "arduino", "platformio", "espidf", "zephyr", "cmsis", "swift", "android", "micro"}
)
"""Packages of C code that is compiled elsewhere."""


def usual_parts(target: Target) -> tuple[Emit, ...]:
    """The parts of a bundle for which nothing is asked for: all that the target has but those of ``ON_REQUEST``.

    The weights as text, five times as large as they are, belong to them for machines without a file system only.
    """
    asked = ON_REQUEST - {"weights-text"} if _has_no_files(target) else ON_REQUEST
    return tuple(part for part in EMIT if part not in asked and not why_impossible(part, target))


def _has_no_files(target: Target) -> bool:
    return target.freestanding and not target.format.module


def check_parts(parts: Sequence[Emit], target: Target, *, zig: bool = True) -> None:
    """Raises InputError, which says all that is wrong, for parts that do not exist or that a target does not have.

    ``zig``: the compiler is the bundled zig, which lacks the C library of some targets.
    """
    if unknown := [part for part in parts if part not in EMIT]:
        raise InputError(f"cannot emit '{unknown[0]}': choose from {', '.join(EMIT)}")
    reasons = {part: why_impossible(part, target, zig=zig) for part in parts}
    if problems := [f"--emit {part}: {why}" for part, why in reasons.items() if why]:
        raise InputError("\n".join(problems))


def check_programs(parts: Sequence[Emit], devices: Sequence[str]) -> None:
    """Raises InputError for parts whose programs call no ``devices``, if these run parts of the network."""
    if devices and (programs := sorted(_PROGRAMS.intersection(parts))):
        raise InputError(
            f"--emit {programs[0]}: its program does not call {', '.join(devices)}, which runs parts of the network: "
            "libtenon and tenon.open do"
        )


def check_fixed_sizes(parts: Sequence[Emit], sizes: Sequence[str], of_text: AbstractSet[Emit] = frozenset()) -> None:
    """Raises InputError for parts whose programs take inputs of fixed shapes, if runs choose ``sizes``; the programs
    ``of_text`` take texts."""
    if sizes and (programs := sorted((_FIXED - of_text).intersection(parts))):
        raise InputError(
            f"--emit {programs[0]}: its program takes inputs of fixed shapes, and runs of this network choose "
            f"{', '.join(sizes)}: give numbers with --shape, or call it by its header, libtenon or Python"
        )


def why_impossible(part: Emit, target: Target, *, zig: bool = True) -> str:
    """Why a target does not have a part, and what to do instead; "" if it has it."""
    if part in _PAGES and not (target.format.module and target.freestanding):
        return (
            f"target {target.name} is not WebAssembly: pages and npm packages take --target wasm32, or webgpu,wasm32 "
            "for both forms"
        )
    if part in _OF_C and target.group is Group.BROWSER and not target.format.compiled:
        return f"target {target.name} is a JavaScript module: packages of C code take another --target, e.g. wasm32"
    if part in COMPILED and not target.format.compiled:
        return f"target {target.name} has no machine code: choose another with --target"
    if part == "exe":
        return _why_no_program(target, zig=zig)
    if part == "library" and library_name("", target) is None:
        return f"target {target.name} has no system that loads libraries: link the object into your firmware"
    return ""


def _why_no_program(target: Target, *, zig: bool) -> str:
    if target.freestanding:
        return (
            f"target {target.name} has no operating system to run an executable on: link the object into your "
            "firmware or page"
        )
    if zig and not target.c_library:
        return (
            f"zig has no C library for target {target.name}: link the object or the library into your application, or "
            "name the clang of its SDK with --compiler"
        )
    return ""
