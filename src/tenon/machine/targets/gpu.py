"""GPUs and other devices of x86-64 machines (docs/reference/gpu.md)."""

from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Target


def _device(backend: str, about: str) -> Target:
    return Target(
        backend,
        Machine(lanes=1, registers=16, block=4, threads=4096, own_memory=False),
        "x86_64-linux-gnu",
        "x86_64",
        about=about,
        gcc=("-march=x86-64",),
        backend=backend,
        host=Host("x86-64", tuned=True),  # chosen by name only
        thread_pool=False,
        group=Group.DESKTOP,
        tier=2,
    )


TARGETS = (
    _device("opencl", "OpenCL 1.2 device of an x86-64 machine"),
    _device("cuda", "CUDA device (NVIDIA GPU, Turing or newer) of an x86-64 machine"),
)
