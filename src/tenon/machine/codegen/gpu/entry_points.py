"""The entry points of programs whose steps are launches on a device: create, run, destroy, and what went wrong."""

from __future__ import annotations

from tenon.machine.codegen.backend import EntryPoint
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.plan.program import Region

_RUN = """\
/* Runs the network once by the functions below, so that every call loads its kernels and copies the weights.
   Returns 0, or what they return.  The activations are not used: they lie on the device. */"""
_CREATE = """\
/* Finds a device for {title} (a GPU if there is one), loads the kernels and copies the weights to it.  Returns what the
   functions below take, or a null pointer; `status` becomes 0 or the driver's status. */"""
_OPTIONS = """\
/* The same with options: lines "word: text", or a null pointer.  cache: a folder for compiled kernels; binary: a file
   of such a folder, only to be read; reuse: same-gpu, also kernels of another driver; performance, priority: low,
   normal or high; queue_window: launches after which to wait; kernel_time: milliseconds of a launch, above which it is
   cut. */"""
_QUEUE = """\
/* Runs the network once: copies the inputs to the device and the outputs back.  Returns 0, or the driver's status, or
   -1007 where a size is not in its range and -1008 where a loop would run more often than it was compiled for: the
   outputs are then not written.  Runs of one device queue must not overlap. */"""
_TIMED = """\
/* Runs the network once as {name}_run does, and gives nanoseconds by the device's clock: of the copies of the inputs,
   of those of the outputs, and then of each step (all of its launches).  Returns 0, or the driver's status. */"""
_FACTS = """\
/* The device that {name}_create would choose, in lines "word: text": name, driver, version (of the interface), units
   and memory in bytes; empty if there is none, and then the message below says why. */"""
_DESTROY = "/* Releases what the device holds for the network. */"
_MESSAGE = "/* The last error, in words: one line, and the compiler's report where it refused the kernels. */"
_QUEUE_RUN = """\
/* Queues a run on a CUstream of the caller's: behind what it has, behind earlier runs, without waiting but for numbers
   that choose branches or end loops.  `inputs` has the address on the GPU of each input, in the order of this header,
   or 0 for one that lies there already. */"""
_WAIT = "/* Lets a CUstream wait for the last run that was queued. */"
_TENSORS = "/* The address on the GPU of the mutable region, with inputs and outputs at the offsets of this header. */"
_HANDLE = "void *device"


def entry_points(language: DeviceLanguage, name: str) -> tuple[EntryPoint, ...]:
    """All entry points of the program of that name."""
    mutable = (Region.MUTABLE,)
    create = _CREATE.format(title=language.title)
    streams = (
        EntryPoint(f"{name}_queue_run", (), ("const uint64_t *inputs", "void *stream", _HANDLE), about=_QUEUE_RUN),
        EntryPoint(f"{name}_wait", (), ("void *stream", _HANDLE), about=_WAIT),
        EntryPoint(f"{name}_tensors", (), (_HANDLE,), "uint64_t ", _TENSORS),
    )
    return (
        EntryPoint(name, about=_RUN),
        EntryPoint(f"{name}_create", (Region.CONSTANT,), ("int *status",), "void *", create),
        EntryPoint(
            f"{name}_create_with_options",
            (Region.CONSTANT,),
            ("const char *options", "int *status"),
            "void *",
            _OPTIONS,
        ),
        EntryPoint(f"{name}_run", mutable, (_HANDLE,), about=_QUEUE),
        EntryPoint(f"{name}_timed_run", mutable, (_HANDLE, "uint64_t *nanoseconds"), about=_TIMED.format(name=name)),
        EntryPoint(f"{name}_device", (), ("void",), "const char *", _FACTS.format(name=name)),
        EntryPoint(f"{name}_destroy", (), (_HANDLE,), "void", _DESTROY),
        EntryPoint(f"{name}_message", (), ("void",), "const char *", _MESSAGE),
        *(streams if language.streams else ()),
    )
