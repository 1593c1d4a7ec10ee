"""The device of this machine that a target's bundles would run on, without using it in this process."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from tenon.atomic_write import scratch
from tenon.compilation import resolved
from tenon.errors import TenonError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.plan.program import Memory, Program
from tenon.machine.targets import Target
from tenon.machine.targets.host_cpu import runs_here
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.device_queue import DeviceProperties

_ASK = (
    "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); facts, why = library[sys.argv[2]], library[sys.argv[3]]; "
    "facts.restype = why.restype = ctypes.c_char_p; sys.stdout.buffer.write(facts()); sys.stderr.buffer.write(why())"
)
_SECONDS = 60


def device_here(target: Target) -> DeviceProperties | None:
    """The device; None for a target of processors, and where there is no device."""
    return _asked(target)[0]


def why_no_device(target: Target) -> str:
    """Why a target's bundles find no device on this machine, as the driver's interface says it ("there is no CUDA
    driver: ..."); "" where there is one, and for a target of processors or of other machines."""
    return _asked(target)[1]


@cache
def _asked(target: Target) -> tuple[DeviceProperties | None, str]:
    """The device and why there is none, by a process of its own: a driver that is loaded cannot be used by forked
    processes, and may fail."""
    if find_backend(target.backend).launch != "grid" or not runs_here(target.name):
        return None, ""
    name = "device_here"
    nothing = Program(name, (), (), (), (), Memory(0, 0, 0, 0))
    try:
        library = Bundle.of(nothing, resolved(Options.from_environment(threads=1), target)).library
        with scratch() as folder:
            (folder / "library.so").write_bytes(library)
            command = [sys.executable, "-c", _ASK, str(folder / "library.so"), f"{name}_device", f"{name}_message"]
            asked = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (TenonError, OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if asked.returncode != 0:
        return None, f"the driver of {target.name} ended with status {asked.returncode}"
    properties = DeviceProperties.read(asked.stdout)
    return properties, "" if properties else asked.stderr.decode(errors="replace").strip()
