"""ARM application processors: AArch64 with NEON and SVE, ARMv7-A with NEON and VFPv4, ARMv6 with VFPv2."""

from dataclasses import replace

from tenon.machine.isa.bf16 import DOT2_ODD, MMLA_BF16
from tenon.machine.isa.byte_products import DOT4, DOT4_NARROW, DOT4_SIGNED
from tenon.machine.isa.byte_tables import LOOKUP16
from tenon.machine.isa.fp16 import FMA
from tenon.machine.isa.i8mm import MMLA, MMLA_SIGNED
from tenon.machine.isa.sme import OUTER_BF16, OUTER_F32, OUTER_I8, OUTER_U8
from tenon.machine.isa.sme2 import OUTER_MULTI
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Product, Target
from tenon.machine.targets.runner import qemu_user

_GNU = "aarch64-linux-gnu"

NEON = Target(
    "aarch64",
    Machine(
        lanes=4,
        registers=32,
        block=4,
        by_lane=True,
        prefetch=True,
        products=(replace(DOT4_NARROW, time=3.6),),
        table=LOOKUP16,
    ),
    "aarch64-linux-musl",
    "generic",
    about="AArch64 with NEON",
    tier=2,  # aarch64-dotprod, whose kernels of floats are the same, is tested by everything
    gcc=("-march=armv8-a",),
    host=Host("aarch64", triple=_GNU),
    runner=qemu_user("qemu-aarch64"),
    group=Group.BOARD,
)
_DOTPROD = Target(
    "aarch64-dotprod",
    Machine(lanes=4, registers=32, block=4, by_lane=True, prefetch=True, products=(DOT4_SIGNED,), table=LOOKUP16),
    "aarch64-linux-musl",
    "generic+v8_2a+dotprod",
    about="AArch64 with NEON and its dot product of bytes (Armv8.2-A)",
    gcc=("-march=armv8.2-a+dotprod",),
    host=Host("aarch64", frozenset({"asimddp"}), triple=_GNU),
    runner=qemu_user("qemu-aarch64"),
    group=Group.BOARD,
)
_FP16 = Target(
    "aarch64-fp16",
    Machine(lanes=4, registers=32, block=4, by_lane=True, prefetch=True, products=(DOT4_SIGNED, FMA), table=LOOKUP16),
    "aarch64-linux-musl",
    "generic+v8_2a+dotprod+fullfp16",
    about="AArch64 with NEON, its dot product and arithmetic in f16 (Armv8.2-A)",
    gcc=("-march=armv8.2-a+dotprod+fp16",),
    host=Host("aarch64", frozenset({"asimddp", "asimdhp"}), triple=_GNU),
    runner=qemu_user("qemu-aarch64"),
    group=Group.BOARD,
    tier=2,  # its kernels of f32 and of integers are those of aarch64-dotprod
)
_I8MM = Target(
    "aarch64-i8mm",
    Machine(
        lanes=4,
        registers=32,
        block=4,
        by_lane=True,
        prefetch=True,
        products=(DOT4, DOT4_SIGNED, MMLA, MMLA_SIGNED, FMA),
        table=LOOKUP16,
    ),
    "aarch64-linux-musl",
    "generic+v8_2a+dotprod+fullfp16+i8mm",
    about="AArch64 with NEON, its dot product, f16 and products of bytes of both signs (I8MM)",
    gcc=("-march=armv8.2-a+dotprod+fp16+i8mm",),
    host=Host("aarch64", frozenset({"asimddp", "asimdhp", "i8mm"}), triple=_GNU),
    runner=qemu_user("qemu-aarch64"),
    group=Group.BOARD,
    tier=2,
)
_BF16 = replace(
    _I8MM,
    name="aarch64-bf16",
    machine=replace(_I8MM.machine, products=(*_I8MM.machine.products, DOT2_ODD, MMLA_BF16)),
    cpu="generic+v8_2a+dotprod+fullfp16+i8mm+bf16",
    about="AArch64 with NEON, its dot product, f16, I8MM and products of bf16",
    gcc=("-march=armv8.2-a+dotprod+fp16+i8mm+bf16",),
    host=Host("aarch64", frozenset({"asimddp", "asimdhp", "i8mm", "bf16"}), triple=_GNU),
)
# The times of this target are not measured on a processor: it is compiled for where it is named only.
_SME = replace(
    _BF16,
    name="aarch64-sme",
    machine=replace(_BF16.machine, products=(*_BF16.machine.products, OUTER_F32, OUTER_BF16, OUTER_I8, OUTER_U8)),
    about="AArch64 with bf16, I8MM and SME, with vectors of 512 bits in its streaming mode",
    host=Host("aarch64", frozenset({"asimddp", "asimdhp", "i8mm", "bf16", "sme", "sme512"}), triple=_GNU, tuned=True),
    runner=qemu_user("qemu-aarch64", "-cpu", "max,sme512=on,sme-default-vector-length=64"),
)
_SME2 = replace(
    _SME,
    name="aarch64-sme2",
    machine=replace(_BF16.machine, products=(*_BF16.machine.products, *OUTER_MULTI)),
    about="AArch64 with bf16, I8MM and SME2, with vectors of 512 bits in its streaming mode",
    host=Host(
        "aarch64", frozenset({"asimddp", "asimdhp", "i8mm", "bf16", "sme", "sme2", "sme512"}), triple=_GNU, tuned=True
    ),
)
# cortex_a7 tuning splits multiply-adds; the generic model with vfp4 fuses them.
ARMV7 = Target(
    "armv7",
    Machine(lanes=4, registers=16, block=4, unroll=1, products=(replace(DOT4_NARROW, time=3.4),)),
    "arm-linux-musleabihf",
    "generic+v7a+neon+vfp4",
    about="ARMv7-A with NEON and VFPv4",
    runner=qemu_user("qemu-arm", "-cpu", "cortex-a7"),
    pointer=4,
    group=Group.BOARD,
)


def _tuned(row: Target, core: str, about: str) -> Target:
    """A row of which instructions are scheduled for a core of Arm's."""
    assert row.host
    return replace(
        row,
        name=core,
        cpu=core.replace("-", "_"),
        about=about,
        gcc=(f"-mcpu={core}",),
        host=replace(row.host, tuned=True),
        tier=2,
    )


def _sve(bits: int, cores: str) -> Target:
    """Vectors of a fixed length, which compilers map to SVE registers of exactly that length."""
    lanes = bits // 32
    machine = Machine(lanes=lanes, registers=32, block=lanes, prefetch=True, products=(DOT4_SIGNED,), table=LOOKUP16)
    return Target(
        f"aarch64-sve{bits}",
        replace(machine, by_lane=lanes == 4),  # of vectors of NEON
        "aarch64-linux-musl",
        "generic+v8_2a+dotprod+sve",
        (f"-msve-vector-bits={bits}",),
        about=f"AArch64 with the dot product of bytes and SVE registers of exactly {bits} bits ({cores})",
        gcc=("-march=armv8.2-a+dotprod+sve",),
        host=Host("aarch64", frozenset({"asimddp", "sve", f"sve{bits}"}), triple=_GNU, tuned=True),
        runner=qemu_user("qemu-aarch64", "-cpu", f"max,sve{bits}=on,sve-default-vector-length={bits // 8}"),
        group=Group.DESKTOP,
        tier=2,
    )


TARGETS = (
    NEON,
    _DOTPROD,
    _FP16,
    _I8MM,
    _BF16,
    _SME,
    _SME2,
    ARMV7,
    _tuned(NEON, "cortex-a53", "Arm Cortex-A53: AArch64 with NEON, scheduled for it"),
    _tuned(NEON, "cortex-a72", "Arm Cortex-A72: AArch64 with NEON, scheduled for it"),
    _tuned(_FP16, "cortex-a55", "Arm Cortex-A55: AArch64 with NEON, dot product and f16, scheduled for it"),
    _tuned(_FP16, "cortex-a76", "Arm Cortex-A76: AArch64 with NEON, dot product and f16, scheduled for it"),
    _sve(256, "Neoverse V1"),
    _sve(128, "Neoverse N2 and V2, Cortex-A510 and later"),
    Target(
        "armv6",
        Machine(lanes=1, registers=16),
        "arm-linux-musleabihf",
        "arm1176jzf_s",
        ("-fno-tree-vectorize",),
        about="ARMv6 with VFPv2",
        gcc=("-mcpu=arm1176jzf-s", "-mfpu=vfp", "-mfloat-abi=hard"),
        runner=qemu_user("qemu-arm", "-cpu", "arm1176"),
        pointer=4,
        below_baseline=True,
        group=Group.BOARD,
        tier=2,
    ),
)

PRODUCTS = (
    Product("linux-arm64", "aarch64", "Linux on AArch64", Group.DESKTOP),
    Product("linux-armv7", "armv7", "Linux on ARMv7-A", Group.BOARD),
    Product("raspberry-pi-zero", "armv6", "Raspberry Pi Zero and 1 (BCM2835)", Group.BOARD),
    Product("raspberry-pi-zero-2", "cortex-a53", "Raspberry Pi Zero 2 W (RP3A0), 64-bit system", Group.BOARD),
    Product("raspberry-pi-2", "armv7", "Raspberry Pi 2 (BCM2836), and later ones with a 32-bit system", Group.BOARD),
    Product("raspberry-pi-3", "cortex-a53", "Raspberry Pi 3 (BCM2837), 64-bit system", Group.BOARD),
    Product("raspberry-pi-4", "cortex-a72", "Raspberry Pi 4 (BCM2711), 64-bit system", Group.BOARD),
    Product("raspberry-pi-5", "cortex-a76", "Raspberry Pi 5 (BCM2712)", Group.BOARD),
    Product("jetson-nano", "aarch64", "NVIDIA Jetson Nano (Cortex-A57)", Group.BOARD),
    Product("rock-5b", "cortex-a76", "Radxa Rock 5B (RK3588)", Group.BOARD),
    Product("graviton3", "aarch64-bf16", "AWS Graviton3 (Neoverse V1)", Group.DESKTOP),
    Product("graviton4", "aarch64-bf16", "AWS Graviton4 (Neoverse V2)", Group.DESKTOP),
)
