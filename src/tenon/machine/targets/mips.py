"""MIPS, 32 bits, of both byte orders."""

from dataclasses import replace

from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Target
from tenon.machine.targets.runner import qemu_user

_LITTLE = Target(
    "mipsel",
    Machine(lanes=1, registers=32),
    "mipsel-linux-musleabihf",
    "mips32r2",
    ("-fno-tree-vectorize",),
    about="MIPS32 release 2, little-endian",
    gcc=("-march=mips32r2",),
    runner=qemu_user("qemu-mipsel"),
    pointer=4,
    group=Group.BOARD,
    tier=2,
)

TARGETS = (
    _LITTLE,
    replace(
        _LITTLE,
        name="mips",
        triple="mips-linux-musleabihf",
        about="MIPS32 release 2, big-endian",
        byte_order="big",
        runner=qemu_user("qemu-mips"),
    ),
)
