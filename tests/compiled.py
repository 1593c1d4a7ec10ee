"""The kernels of operator cases, printed as C, compiled into a library and called with the interpreter's interface."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lowered import Ask, make_site
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.dialect import C
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.work_items import WorkItems, linearise
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Case, Step

STRICT = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


def lowered_steps(case: Case, machine: Machine, ask: Ask) -> list[Step]:
    """The lowered steps of a case.  Raises NotLoweredError if the operator declines it."""
    site = make_site(case.op, case.arrays(), machine, case.constant, ask)
    return case.op.lower(replace(site, placed=frozenset()))


class Library:
    """Kernels by their printed text. Usage: ``add`` all of them, ``build``, then pass the library as ``execute``."""

    def __init__(self, slices: int = 1, dialect: type[C99] = C) -> None:
        """Kernels with parallel loops run in ``slices`` slices, the last one first."""
        self.slices = slices
        self.unit = dialect()
        self.callers: dict[str, tuple[int, int]] = {}  # parameters and work items
        self.proved = 0
        self._library: ctypes.CDLL | None = None

    def add(self, kernel: Kernel) -> None:
        self.proved += prove(kernel)
        items = self.work_items(kernel)
        self.callers[self.unit.kernel(kernel, items)] = len(kernel.params), items.length if items else 0

    def work_items(self, kernel: Kernel) -> WorkItems | None:
        return linearise(kernel) if self.slices > 1 else None

    def source(self) -> str:
        calls = []
        for name, (count, items) in self.callers.items():
            slices = [(items * s // self.slices, items * (s + 1) // self.slices) for s in reversed(range(self.slices))]
            extra = [f", {a}, {b}" for a, b in slices] if items else [""]
            arguments = ", ".join(f"p[{i}]" for i in range(count))
            body = " ".join(f"{name}({arguments}{more});" for more in extra)
            calls.append(f"void call_{name}(void **p);\nvoid call_{name}(void **p) {{ {body} }}\n")
        return "\n".join(["#include <stdint.h>\n#include <math.h>", self.unit.text(), *calls])

    def build(self, folder: Path, command: Sequence[str]) -> None:
        """Compile with ``command`` and load. Raises CalledProcessError with the compiler's messages in its output."""
        (folder / "kernels.c").write_text(self.source())
        library = folder / "kernels.so"
        subprocess.run([*command, *STRICT, str(folder / "kernels.c"), "-o", str(library), "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))

    def __call__(self, kernel: Kernel, views: list[Array]) -> None:
        assert self._library is not None
        call = self._library["call_" + self.unit.kernel(kernel, self.work_items(kernel))]
        call((ctypes.c_void_p * len(views))(*(v.ctypes.data for v in views)))


def build_libraries(
    cases: Sequence[Case],
    machine: Machine,
    ask: Ask,
    folder: Path,
    command: Sequence[str],
    size: int = 50,
    dialect: type[C99] = C,
) -> list[tuple[Library, list[Case]]]:
    """The cases, ``size`` to a library, since compile times grow faster than linearly with the size of a file."""
    lowered = [(case, lowered_steps(case, machine, ask)) for case in cases]
    groups = [lowered[i : i + size] for i in range(0, len(lowered), size)]

    def build(i: int) -> tuple[Library, list[Case]]:
        library, place = Library(dialect=dialect), folder / str(i)
        place.mkdir()
        for _, case_steps in groups[i]:
            for step in case_steps:
                library.add(step.kernel)
        library.build(place, command)
        return library, [case for case, _ in groups[i]]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(build, range(len(groups))))


def assembled(kernel: Kernel, command: Sequence[str], folder: Path) -> str:
    """The assembly of a kernel."""
    unit = C()
    unit.kernel(kernel)
    # nothing calls the kernel, and what is static and never called is dropped
    text = unit.text().replace("TENON_OUTLINE static", "TENON_OUTLINE")
    (folder / "k.c").write_text(f"#include <stddef.h>\n#include <stdint.h>\n{text}")
    subprocess.run([*command, "-O2", "-S", "k.c", "-o", "k.s"], cwd=folder, check=True, capture_output=True)
    return (folder / "k.s").read_text()
