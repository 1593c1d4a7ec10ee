"""Arm Cortex-M33, on the board of Arm's that QEMU models (MPS2, FPGA image AN505)."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target
from tenon.targets.board import Board, Memory

_AN505 = Board(
    "mps2-an505",
    code=Memory(0x10000000, 4 << 20),  # secure, where the processor begins
    stack=Memory(0x38000000, 2 << 20),
    ram=Memory(0x80000000, 16 << 20),
)

TARGETS = (
    Target(
        "cortex-m33",
        Machine(lanes=1, registers=28),
        "thumb-freestanding-eabihf",
        "cortex_m33+fp_armv8d16sp",
        ("-fno-tree-vectorize",),
        about="Arm Cortex-M33 with FPU (single precision)",
        pointer=4,
        freestanding=True,
        runner=_AN505.runner,
        linker_script=_AN505.linker_script,
    ),
)
