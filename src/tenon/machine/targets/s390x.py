"""IBM Z: big-endian, with vectors of 128 bits."""

from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Target
from tenon.machine.targets.runner import qemu_user

TARGETS = (
    Target(
        "s390x",
        Machine(lanes=4, registers=32, block=4),
        "s390x-linux-musl",
        "z14",
        about="IBM Z, big-endian, with vectors of floats (z14)",
        gcc=("-march=z14",),
        byte_order="big",
        runner=qemu_user("qemu-s390x"),
        # It squares floats as doubles, by MDEBR: QEMU 7.2 takes the first operand of that for a double.
        not_emulated=("Asinh()",),
        group=Group.DESKTOP,
        tier=2,
    ),
)
