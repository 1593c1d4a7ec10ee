"""A target is one frozen row: all that the rest of Tenon knows of a machine.

A module of this package that has ``TARGETS`` describes some; nothing else has to be edited to add one.  The table in
docs/reference/targets.md, the choice of "host", the compiler's flags and the tests follow from the rows.  A module that
has ``PRODUCTS`` gives chips, boards and systems that users know by name the target of their processor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from tenon.machine import object_formats
from tenon.machine.kernels.machine import Machine

if TYPE_CHECKING:
    from tenon.machine.targets.runner import Runner


SOFTFP = "-mfloat-abi=softfp"
"""The flag that makes a compiler use the FPU of an Arm processor under the ABI of software floats."""


class Group(StrEnum):
    """The classes of machines in which targets are listed."""

    DESKTOP = "desktop and server"
    MOBILE = "mobile"
    BOARD = "single-board computer"
    MICROCONTROLLER = "microcontroller"
    BROWSER = "browser"
    OTHER = "other"


@dataclass(frozen=True)
class Host:
    """Requirements of a machine for Tenon to run the target's code in its own process.

    ``family`` is the name that ``host_cpu.processor`` has for it, ``system`` that of ``host_cpu.system``; ``features``
    are flags of /proc/cpuinfo, of RISC-V its extensions, and "sve256" for SVE registers of that length, "sme512" for
    those of SME's streaming mode.  Of the targets that fit and are not only ``tuned`` for some processors, "host" is
    the one that asks for the most.  ``triple`` replaces the target's for code that is loaded into Python, where they
    differ.
    """

    family: str
    features: frozenset[str] = frozenset()
    triple: str = ""
    system: str = "linux"
    tuned: bool = False


@dataclass(frozen=True)
class Target:
    """``triple`` and ``cpu`` are written as ``zig cc -target`` and ``-mcpu`` want them, ``gcc`` is what a gcc or clang
    for that machine wants instead (its -mcpu if empty); ``flags`` are for any of them.

    ``backend`` names the module of ``codegen`` that prints its code, which states how steps are launched and which
    memory spaces there are.  ``object`` names the format of object files, a module of ``object_formats``, or is "none"
    (nothing can be compiled: the null target).  ``byte_order`` is that of weights, inputs and outputs.
    ``host`` is None for a machine that does not run Python.  ``runner`` runs programs where this machine is another
    one; None: it cannot be run.  ``linker_script`` links a program for a machine without operating system.
    ``thread_pool`` and ``c_library`` tell what zig has for it: POSIX threads, and a C library to link executables with;
    ``below_baseline`` that its processor lacks instructions which zig's libraries for the triple use by default.
    ``not_emulated`` are the operator cases (by the beginnings of their labels) that its emulator cannot run.
    Whether the machine computes floats by calls (``Machine.float_unit``) follows from ``triple`` and ``cpu``.
    ``tier`` 1: every run of the tests runs everything on it; 2: a small part, and all with ``-m slow``.
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
    byte_order: Literal["little", "big"] = "little"
    freestanding: bool = False  # no operating system: its own start-up code, weights inside
    host: Host | None = None
    runner: Runner | None = None
    linker_script: str = ""
    thread_pool: bool = True
    c_library: bool = True
    below_baseline: bool = False
    not_emulated: tuple[str, ...] = ()
    group: Group = Group.OTHER
    tier: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        soft = _without_fpu(self.triple, self.cpu, self.flags)
        object.__setattr__(self, "machine", replace(self.machine, float_unit=not soft))

    @property
    def format(self) -> object_formats.ObjectFormat:
        """The format of object files."""
        return object_formats.find(self.object)

    @property
    def threaded(self) -> bool:
        """Whether programs for it can have several threads."""
        return self.thread_pool and not self.freestanding


def _without_fpu(triple: str, cpu: str, flags: tuple[str, ...]) -> bool:
    """Whether no instructions for floats are used: on 32-bit Arm with the ABI of software floats unless a flag says
    softfp, on RISC-V without extension F."""
    architecture, abi = triple.partition("-")[0], triple.rpartition("-")[2]
    if architecture.startswith("riscv"):
        core, *features = re.split(r"[+-]", cpu)
        return not core.startswith("baseline") and not {"f", "d"} & set(features)
    return abi in ("eabi", "gnueabi", "musleabi") and SOFTFP not in flags


@dataclass(frozen=True)
class Product:
    """A chip, board or system by the name that its users know: ``target`` is the name of its processor's target.

    ``float_abi`` is that of the board's development kit where it differs from the target's (``targets.float_abi``).
    """

    name: str
    target: str
    about: str
    group: Group
    float_abi: Literal["softfp"] | None = None
