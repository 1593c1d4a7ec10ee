"""The OpenCL backend: kernels in OpenCL C, and a host program in C that queues a launch for each step."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.errors import InputError
from tenon.machine.codegen.backend import Backend, EntryPoint, Launch, TextUnit, require_supported
from tenon.machine.codegen.opencl import entry_points
from tenon.machine.codegen.opencl.dialect import OpenCLC
from tenon.machine.codegen.opencl.unit import print_unit
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import Program


class OpenCLBackend:
    """A step is a launch with one thread for each work item; one in-order queue runs them."""

    launch: Launch = "grid"
    spaces = frozenset({"global", "const", "scratch", "stack", "register"})
    loops = frozenset({"serial", "unroll", "parallel"})
    operations = OpenCLC.operations
    calls_c = False

    def kernel(self, kernel: Kernel) -> str:
        """A kernel as a function, and its helper functions."""
        require_supported(self, kernel)
        dialect = OpenCLC()
        dialect.kernel(kernel)
        return dialect.text()

    def entry_points(self, name: str, *, profile: bool = False) -> tuple[EntryPoint, ...]:
        """The functions that create a device queue, run a program on it and destroy it, and one that does all three."""
        return entry_points.entry_points(name)

    def program(self, programs: Sequence[Program], header: str, *, profile: bool = False, banner: str = "") -> TextUnit:
        """The host program, which contains the kernels as text, and a file with the kernels for readers.

        Raises UnsupportedError for kernels that OpenCL C cannot express, InputError for ``profile``, which there is
        not, and for a network that is too large.
        """
        if profile:
            raise InputError("kernels on OpenCL devices cannot be timed one by one yet: leave out --profile")
        return print_unit(self, programs, header, banner=banner)


BACKEND: Backend = OpenCLBackend()
