"""ARM application processors: AArch64 with NEON, ARMv7-A with NEON and VFPv4."""

from tenon.ir.types import DType
from tenon.kernels.machine import Machine
from tenon.targets.base import Host, Target
from tenon.targets.runner import qemu_user

TARGETS = (
    Target(
        "aarch64",
        Machine(lanes=4, registers=32, block=4, prefetch=True, dot4=(DType.I8,), narrow_dot4=True),
        "aarch64-linux-musl",
        "generic",
        about="AArch64 with NEON",
        gcc=("-march=armv8-a",),
        host=Host("aarch64", triple="aarch64-linux-gnu"),
        runner=qemu_user("qemu-aarch64"),
    ),
    Target(
        "aarch64-dotprod",
        Machine(lanes=4, registers=32, block=4, prefetch=True, dot4=(DType.I8,)),
        "aarch64-linux-musl",
        "generic+v8_2a+dotprod",
        about="AArch64 with NEON and its dot product of bytes (Armv8.2-A)",
        gcc=("-march=armv8.2-a+dotprod",),
        host=Host("aarch64", frozenset({"asimddp"}), triple="aarch64-linux-gnu"),
        runner=qemu_user("qemu-aarch64"),
    ),
    Target(
        "aarch64-i8mm",
        Machine(lanes=4, registers=32, block=4, prefetch=True, dot4=(DType.U8, DType.I8)),
        "aarch64-linux-musl",
        "generic+v8_2a+dotprod+i8mm",
        about="AArch64 with NEON, its dot product and products of bytes of both signs (I8MM)",
        gcc=("-march=armv8.2-a+dotprod+i8mm",),
        host=Host("aarch64", frozenset({"asimddp", "i8mm"}), triple="aarch64-linux-gnu"),
        runner=qemu_user("qemu-aarch64"),
    ),
    # cortex_a7 tuning splits multiply-adds; the generic model with vfp4 fuses them.
    Target(
        "armv7",
        Machine(lanes=4, registers=16, block=4, dot4=(DType.I8,), narrow_dot4=True),
        "arm-linux-musleabihf",
        "generic+v7a+neon+vfp4",
        about="ARMv7-A with NEON and VFPv4",
        runner=qemu_user("qemu-arm", "-cpu", "cortex-a7"),
        pointer=4,
    ),
)
