"""The device of this machine that a target's bundles would run on, without using it in this process."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

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
    "import ctypes, sys; ask = ctypes.CDLL(sys.argv[1])[sys.argv[2]]; ask.restype = ctypes.c_char_p; "
    "sys.stdout.buffer.write(ask())"
)
_SECONDS = 60


@lru_cache(maxsize=8)
def device_here(target: Target) -> DeviceProperties | None:
    """The device, which a process of its own asks for: a driver that is loaded cannot be used by forked processes, and
    may fail.  None for a target of processors, and where there is no device."""
    if find_backend(target.backend).launch != "grid" or not runs_here(target.name):
        return None
    nothing = Program("device_here", (), (), (), (), Memory(0, 0, 0, 0))
    try:
        library = Bundle.of(nothing, resolved(Options.from_environment(threads=1), target)).library
        with scratch() as folder:
            (folder / "library.so").write_bytes(library)
            command = [sys.executable, "-c", _ASK, str(folder / "library.so"), f"{nothing.name}_device"]
            asked = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (TenonError, OSError, subprocess.TimeoutExpired):
        return None
    return DeviceProperties.read(asked.stdout) if asked.returncode == 0 else None
