"""Arm Cortex-M microcontrollers, on the boards that QEMU models."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target


def _board(name: str) -> tuple[str, ...]:
    semihosting = "enable=on,target=native"
    return (
        "qemu-system-arm", "-M", name, "-nographic", "-monitor", "none", "-serial", "none",
        "-semihosting-config", semihosting, "-kernel",
    )  # fmt: skip


TARGETS = (
    # zig's Cortex-M models have no FPU unless a feature asks for it; the register file is 32 single floats.
    Target(
        "cortex-m7",
        Machine(lanes=1, registers=28),
        "thumb-freestanding-eabihf",
        "cortex_m7+fp_armv8d16",
        ("-fno-tree-vectorize",),
        runner=_board("mps2-an500"),
        pointer=4,
        freestanding=True,
    ),
)
