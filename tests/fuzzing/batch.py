"""Many small graphs in one library: planned, printed, compiled once, and called through their entry points."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuzzing.generate import Sample
from tenon.machine.codegen.c import BACKEND
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.plan.program import ALIGNMENT, Program
from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import BASE_FLAGS, Compiler
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType
from tenon.network.ops.base import Limits
from tenon.network.passes import optimize
from tenon.network.passes.precision import precision

FLAGS = (*(f for f in BASE_FLAGS if f != "-O3"), "-fPIC", "-shared")
"""Faster to compile than the flags of bundles; the code and the warnings, which are errors, are the same."""

BATCH = 50
"""Graphs per library: more take longer per graph, because compile time grows faster than code size."""

GUARD = 256
"""Bytes of the guard regions before and after each memory region."""


@dataclass(frozen=True)
class Plan:
    """A graph compiled at one optimisation level."""

    sample: Sample
    level: int
    program: Program
    rounded: Graph | None
    """The graph with constants in the precision of the program, if it differs from the sample's."""


def planned(sample: Sample, level: int, target: Target, threads: int = 1, name: str = "fp32") -> Plan:
    """The program of a graph at a precision.  Winograd's and Strassen's algorithms spread a NaN over a tile, so they
    are disabled for graphs that may have one."""
    narrow = precision(name, arithmetic=target.machine.multiplies(DType.BF16, 2) is not None)
    graph = optimize(sample.graph.copy(), verify=True, level=level, narrow=narrow)
    rounded = optimize(sample.graph.copy(), level=level, narrow=narrow, fuse=False) if narrow else None
    limits = Limits(0, 0) if sample.wild else Limits()
    program = plan(graph, Setting(target.machine, limits, threads=threads), f"g{sample.seed}_o{level}")
    return Plan(sample, level, program, rounded)


class Library:
    """The machine code of some plans."""

    def __init__(self, plans: Sequence[Plan], compiler: Compiler, target: Target, folder: Path) -> None:
        """Raises CalledProcessError with the compiler's messages if it fails."""
        programs = [p.program for p in plans]
        text = BACKEND.program(programs, "stdint.h").files[0].text
        (folder / "batch.c").write_text(text)
        command = [
            *compiler.command,
            *FLAGS,
            *compiler.machine_flags(target),
            *target.flags,
            "batch.c",
            "-o",
            "batch.so",
        ]
        subprocess.run([*command, "-lm"], cwd=folder, check=True, capture_output=True)
        self.library = ctypes.CDLL(str(folder / "batch.so"))  # the folder is new: no library was loaded from it

    def run(self, plan: Plan, poison: int) -> dict[str, Array]:
        """The outputs by name.  Memory is filled with ``poison`` before the run.

        Raises AssertionError if memory outside of the regions is touched.
        """
        program, memory = plan.program, plan.program.memory
        sizes = (memory.constant, memory.mutable, memory.activations)
        regions = [_region(size, poison) for size in sizes]
        regions[0][GUARD : GUARD + memory.constant] = np.frombuffer(program.weights(), np.uint8)
        mutable = regions[1][GUARD:]
        for port in program.inputs:
            data = np.ascontiguousarray(plan.sample.feeds[port.name]).reshape(-1)
            mutable[port.offset : port.offset + port.type.nbytes] = data.view(np.uint8)
        self._call(plan, [ctypes.c_void_p(r.ctypes.data + GUARD) for r in regions])
        for region, size in zip(regions, sizes, strict=True):
            _check(region, size, poison)
        results = {}
        for port, value in zip(program.outputs, plan.sample.graph.outputs, strict=True):
            raw = mutable[port.offset : port.offset + port.type.nbytes].copy()
            results[value.name] = raw.view(port.type.dtype.numpy).reshape(port.type.dims)
        return results

    def _call(self, plan: Plan, regions: Sequence[ctypes.c_void_p]) -> None:
        """One thread, or for a multithreaded program all parts of every phase, in reverse order."""
        program = plan.program
        if program.threads == 1:
            self.library[program.name](*regions)
            return
        phase, following = (self.library[f"{program.name}_{end}"] for end in ("phase", "next"))
        number = -1
        while (number := following(*regions, number)) >= 0:
            for part in reversed(range(program.threads)):
                phase(*regions, number, part, program.threads)


def _region(size: int, poison: int) -> Array:
    whole = np.full(size + 2 * GUARD + ALIGNMENT, poison, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size + 2 * GUARD]


def _check(region: Array, size: int, poison: int) -> None:
    outside = np.concatenate([region[:GUARD], region[GUARD + size :]])
    assert (outside == poison).all(), "memory outside of the regions was written"
