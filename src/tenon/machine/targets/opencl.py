"""OpenCL devices of x86-64 machines: a first step, see docs/reference/opencl.md."""

from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Target

TARGETS = (
    Target(
        "opencl",
        Machine(lanes=1, registers=32, block=4),
        "x86_64-linux-gnu",
        "x86_64",
        about="OpenCL 1.2 device of an x86-64 machine (first step: pointwise operators, reductions, matrix products)",
        gcc=("-march=x86-64",),
        backend="opencl",
        host=Host("x86-64", tuned=True),  # chosen by name only
        thread_pool=False,
        c_library=False,
        group=Group.DESKTOP,
        tier=2,
    ),
)
