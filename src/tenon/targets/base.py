"""A target is one frozen row: all that the rest of Tenon knows of a machine.

A module of this package that has ``TARGETS`` describes some; nothing else has to be edited to add one.  The table in
docs/targets.md, the choice of "host", the compiler's flags and the tests follow from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenon.kernels.machine import Machine

if TYPE_CHECKING:
    from tenon.targets.runner import Runner


@dataclass(frozen=True)
class Host:
    """What a machine must be for Tenon to run the target's code in its own process.

    ``family`` is the name that ``host_cpu.processor`` has for it; ``features`` are flags of /proc/cpuinfo.  Of the
    targets that fit, "host" is the one that asks for the most.  ``triple`` replaces the target's for code that is
    loaded into Python, where they differ.
    """

    family: str
    features: frozenset[str] = frozenset()
    triple: str = ""


@dataclass(frozen=True)
class Target:
    """``triple`` and ``cpu`` are written as ``zig cc -target`` and ``-mcpu`` want them, ``gcc`` is what a gcc or clang
    for that machine wants instead (its -mcpu if empty); ``flags`` are for any of them.

    ``backend`` names the module of ``codegen`` that prints its code, which states how steps are launched and which
    memory spaces there are.  ``object`` is "elf", "wasm" or "none" (nothing can be compiled: the null target).
    ``host`` is None for a machine that does not run Python.  ``runner`` runs programs where this machine is another
    one; None: it cannot be run.  ``linker_script`` links a program for a machine without operating system.
    ``not_emulated`` are the operator cases (by the beginnings of their labels) that its emulator cannot run.
    """

    name: str
    machine: Machine
    triple: str
    cpu: str
    flags: tuple[str, ...] = ()
    about: str = ""
    gcc: tuple[str, ...] = ()
    backend: str = "c"
    object: str = "elf"
    pointer: int = 8
    freestanding: bool = False  # no operating system: its own start-up code, weights inside
    host: Host | None = None
    runner: Runner | None = None
    linker_script: str = ""
    not_emulated: tuple[str, ...] = ()

    @property
    def threaded(self) -> bool:
        """Whether programs for it can have several threads."""
        return not self.freestanding
