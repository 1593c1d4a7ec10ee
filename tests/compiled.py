"""The kernels of every operator case, printed as C, compiled into one library and called like the interpreter."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lowered import Ask, NotLoweredError, make_site
from tenon.codegen.bounds import prove
from tenon.codegen.c import C
from tenon.ir.graph import Array
from tenon.ir.loops import Kernel
from tenon.kernels.machine import Machine
from tenon.ops.base import Case, Step

STRICT = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-fPIC", "-shared")


def steps(case: Case, machine: Machine, ask: Ask) -> list[Step]:
    """What a case lowers to; nothing where it declines."""
    try:
        site = make_site(case.op, case.arrays(), machine, case.constant, ask)
    except NotLoweredError:
        return []
    return case.op.lower(replace(site, placed=frozenset()))


class Library:
    """Kernels by their printed text.  ``add`` all of them, ``build``, then call the library as ``execute``."""

    def __init__(self) -> None:
        self.unit = C()
        self.callers: dict[str, int] = {}
        self.proved = 0
        self._library: ctypes.CDLL | None = None

    def add(self, kernel: Kernel) -> None:
        self.proved += prove(kernel)
        self.callers[self.unit.kernel(kernel)] = len(kernel.params)

    def source(self) -> str:
        calls = []
        for name, count in self.callers.items():
            arguments = ", ".join(f"p[{i}]" for i in range(count))
            calls.append(f"void call_{name}(void **p);\nvoid call_{name}(void **p) {{ {name}({arguments}); }}\n")
        return "\n".join(["#include <stdint.h>\n#include <math.h>", self.unit.text(), *calls])

    def build(self, folder: Path, command: Sequence[str]) -> None:
        """Compile with ``command`` and load.  Raises CalledProcessError with the compiler's words in its output."""
        (folder / "kernels.c").write_text(self.source())
        library = folder / "kernels.so"
        subprocess.run([*command, *STRICT, str(folder / "kernels.c"), "-o", str(library), "-lm"], check=True)
        self._library = ctypes.CDLL(str(library))

    def __call__(self, kernel: Kernel, views: list[Array]) -> None:
        assert self._library is not None
        call = self._library["call_" + self.unit.kernel(kernel)]
        call((ctypes.c_void_p * len(views))(*(v.ctypes.data for v in views)))
