"""A target is one frozen row: what generators, the toolchain and the runner need to know of a machine."""

from __future__ import annotations

from dataclasses import dataclass

from tenon.kernels.machine import Machine


@dataclass(frozen=True)
class Target:
    """``triple`` and ``cpu`` are spelled as ``zig cc -target`` and ``-mcpu`` want them.

    ``flags`` are for any GCC-like compiler.  ``runner`` is the command that runs an executable made for the
    target, empty when the host runs it itself; ``"wasmtime"`` is run from Python.  ``object`` is "elf", "wasm"
    or "none" (nothing can be compiled: the null target).
    """

    name: str
    machine: Machine
    triple: str
    cpu: str
    flags: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    object: str = "elf"
    backend: str = "c"
    pointer: int = 8
    freestanding: bool = False  # no operating system: its own start-up code, weights inside

    @property
    def threaded(self) -> bool:
        """Whether programs for it can have several threads."""
        return not self.freestanding
