"""PowerPC: 64 bits little-endian with VSX, 64 and 32 bits big-endian."""

from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Target
from tenon.machine.targets.runner import qemu_user

TARGETS = (
    Target(
        "powerpc64le",
        Machine(lanes=4, registers=32, block=4),
        "powerpc64le-linux-musl",
        "pwr8",
        ("-Wno-deprecated-altivec-src-compat",),  # of AltiVec's own types, which are not used
        about="PowerPC 64 bits, little-endian, with VSX (POWER8)",
        gcc=("-mcpu=power8",),
        host=Host("ppc64le", triple="powerpc64le-linux-gnu"),
        runner=qemu_user("qemu-ppc64le"),
        group=Group.DESKTOP,
        tier=2,
    ),
    Target(
        "powerpc64",
        Machine(lanes=1, registers=32),
        "powerpc64-linux-musl",
        "ppc64",
        ("-fno-tree-vectorize",),
        about="PowerPC 64 bits, big-endian",
        gcc=("-mcpu=powerpc64",),
        byte_order="big",
        runner=qemu_user("qemu-ppc64"),
        group=Group.DESKTOP,
        tier=2,
    ),
    Target(
        "powerpc",
        Machine(lanes=1, registers=32),
        "powerpc-linux-musleabihf",
        "ppc",
        ("-fno-tree-vectorize",),
        about="PowerPC 32 bits, big-endian",
        gcc=("-mcpu=powerpc",),
        pointer=4,
        byte_order="big",
        runner=qemu_user("qemu-ppc"),
        group=Group.BOARD,
        tier=2,
    ),
)
