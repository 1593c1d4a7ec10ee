"""Memory spaces of a machine for the threads of a launch, and the sizes of a launch, as data.

Registers and the stack belong to each thread of every machine (``proofs.bounds.STACK``); the spaces here are those that
a machine has besides.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySpace:
    """``bytes`` is the most that one kernel may allocate.  All threads of a block load and store there, and see what
    others stored after the next barrier.  An access of several elements lies at a multiple of its bytes, up to
    ``alignment``."""

    name: str
    bytes: int
    alignment: int = 16


@dataclass(frozen=True)
class Launch:
    """``group`` is the most threads of a block.  ``units`` processors each run some of the blocks at a time, whose
    threads they issue ``width`` at once; ``resident`` is how many threads a unit holds.  ``cluster`` is the most blocks
    of a cluster, which read each other's memory; ``copies``: memory is copied to shared memory asynchronously;
    ``early``: a launch may begin before those that it depends on have ended, and wait for them itself."""

    group: int = 256
    units: int = 100
    width: int = 32
    resident: int = 1024
    cluster: int = 1
    copies: bool = False
    early: bool = False


SHARED = MemorySpace("shared", 48 << 10)
"""The memory of a block that kernels may use where nothing else is known."""
