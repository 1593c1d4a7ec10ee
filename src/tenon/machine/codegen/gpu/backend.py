"""The backend of a device language: kernels in the language, and a host program in C that launches each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon.gpu_options import USUAL, GpuOptions
from tenon.machine.codegen.backend import EntryPoint, Launch, TextUnit, require_supported
from tenon.machine.codegen.gpu import entry_points
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.gpu.unit import print_unit
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import Program
from tenon.network.graph.types import DType

SPACES = frozenset({"global", "const", "scratch", "shared", "stack", "register"})
LOOPS = frozenset({"serial", "unroll", "parallel", "block", "thread"})
"""The memory spaces and kinds of loops that all devices have."""


@dataclass(frozen=True)
class DeviceBackend:
    """A step is a launch with one thread for each work item, or of the kernel's work groups; one in-order queue runs
    them."""

    language: DeviceLanguage
    launch: Launch = "grid"
    spaces: frozenset[str] = SPACES
    loops: frozenset[str] = LOOPS
    calls_c: bool = False
    lacks: frozenset[DType] = frozenset()

    @property
    def operations(self) -> frozenset[str]:
        return self.language.dialect.operations

    def kernel(self, kernel: Kernel) -> str:
        """A kernel as a function, and its helper functions."""
        require_supported(self, kernel)
        dialect = self.language.dialect()
        dialect.kernel(kernel)
        return dialect.text()

    def entry_points(self, name: str, *, profile: bool = False) -> tuple[EntryPoint, ...]:
        """The functions that create a device queue, run a program on it and destroy it, and one that does all three."""
        return entry_points.entry_points(self.language, name)

    def program(
        self,
        programs: Sequence[Program],
        header: str,
        *,
        profile: bool = False,
        banner: str = "",
        gpu: GpuOptions = USUAL,
    ) -> TextUnit:
        """The host program, which contains the kernels as text, and a file with the kernels for readers.

        All programs can be timed, with ``profile`` or without.  Raises UnsupportedError for kernels that the language
        cannot express, InputError for a network that is too large.
        """
        return print_unit(self.language, self, programs, header, banner=banner, options=gpu.lines())
