"""Arm Cortex-M7, on the board of Arm's that QEMU models (MPS2, FPGA image AN500)."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target
from tenon.targets.board import Board, Memory

_AN500 = Board(
    "mps2-an500",
    code=Memory(0x00000000, 4 << 20),
    stack=Memory(0x20000000, 4 << 20),  # the fast memory
    ram=Memory(0x60000000, 16 << 20),
)

TARGETS = (
    # zig's Cortex-M models have no FPU unless a feature asks for it; the register file is 32 single floats.
    Target(
        "cortex-m7",
        Machine(lanes=1, registers=28),
        "thumb-freestanding-eabihf",
        "cortex_m7+fp_armv8d16",
        ("-fno-tree-vectorize",),
        about="Arm Cortex-M7 with FPU",
        pointer=4,
        freestanding=True,
        runner=_AN500.runner,
        linker_script=_AN500.linker_script,
    ),
)
