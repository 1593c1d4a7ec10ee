"""The C backend: C99 with GCC's and Clang's vector extensions, for any CPU."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.gpu_options import USUAL, GpuOptions
from tenon.machine.codegen.backend import Backend, EntryPoint, Launch, require_supported
from tenon.machine.codegen.c import entry_points
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.unit import CUnit, print_unit
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import Program
from tenon.network.graph.types import DType


class CBackend:
    """Kernels are functions; a step is a call, of which each thread runs a slice of the work items."""

    launch: Launch = "call"
    spaces = frozenset({"global", "const", "scratch", "stack", "register"})
    operations = None
    calls_c = True
    lacks = frozenset[DType]()
    loops = frozenset({"serial", "unroll", "parallel"})

    def __init__(self, dialect: type[C99] = C) -> None:
        self.dialect = dialect

    def kernel(self, kernel: Kernel) -> str:
        """A kernel and its helper functions."""
        require_supported(self, kernel)
        unit = self.dialect()
        unit.kernel(kernel)
        return unit.text()

    def entry_points(self, name: str, *, profile: bool = False) -> tuple[EntryPoint, ...]:
        """The function that runs a program, and the one that runs single steps."""
        return (entry_points.run(name), *(entry_points.profile(name) if profile else ()))

    def program(
        self,
        programs: Sequence[Program],
        header: str,
        *,
        profile: bool = False,
        banner: str = "",
        gpu: GpuOptions = USUAL,
    ) -> CUnit:
        """One C file."""
        return print_unit(self, programs, header, profile=profile, banner=banner, dialect=self.dialect)


BACKEND: Backend = CBackend()
