"""ARM application processors: AArch64 with NEON, ARMv7-A with NEON and VFPv4."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Host, Target
from tenon.targets.runner import qemu_user

TARGETS = (
    Target(
        "aarch64",
        Machine(lanes=4, registers=32, block=4, prefetch=True),
        "aarch64-linux-musl",
        "generic",
        about="AArch64 with NEON",
        gcc=("-march=armv8-a",),
        host=Host("aarch64", triple="aarch64-linux-gnu"),
        runner=qemu_user("qemu-aarch64"),
    ),
    # cortex_a7 tuning splits multiply-adds; the generic model with vfp4 fuses them.
    Target(
        "armv7",
        Machine(lanes=4, registers=16, block=4),
        "arm-linux-musleabihf",
        "generic+v7a+neon+vfp4",
        about="ARMv7-A with NEON and VFPv4",
        runner=qemu_user("qemu-arm", "-cpu", "cortex-a7"),
        pointer=4,
    ),
)
