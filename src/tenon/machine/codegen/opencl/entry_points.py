"""The entry points of programs whose steps are launches on a device: create, run, destroy."""

from __future__ import annotations

from tenon.machine.codegen.backend import EntryPoint
from tenon.machine.plan.program import Region

_RUN = """\
/* Runs the network once by the three functions below, so that every call compiles its kernels and copies the
   weights.  Returns 0, or a status of OpenCL.  The activations are not used: they lie on the device. */"""
_CREATE = """\
/* Finds an OpenCL device (a GPU if there is one), compiles the kernels and copies the weights to it.  Returns what the
   functions below take, or a null pointer; `status` becomes 0 or a status of OpenCL. */"""
_QUEUE = """\
/* Runs the network once: copies the inputs to the device and the outputs back.  Returns 0, or a status of OpenCL.
   Runs of one device queue must not overlap. */"""
_DESTROY = "/* Releases what the device holds for the network. */"
_HANDLE = "void *device"


def entry_points(name: str) -> tuple[EntryPoint, ...]:
    """All entry points of the program of that name."""
    mutable = (Region.MUTABLE,)
    return (
        EntryPoint(name, about=_RUN),
        EntryPoint(f"{name}_create", (Region.CONSTANT,), ("int *status",), "void *", _CREATE),
        EntryPoint(f"{name}_run", mutable, (_HANDLE,), about=_QUEUE),
        EntryPoint(f"{name}_destroy", (), (_HANDLE,), "void", _DESTROY),
    )
