"""Systems other than Linux, on processors of other files: Android, iOS, macOS, Windows."""

from dataclasses import replace

from tenon.machine.targets.arm import ARMV7, NEON
from tenon.machine.targets.base import Group, Host, Product, Target
from tenon.machine.targets.wine import Wine
from tenon.machine.targets.x86 import AVX2, SSE2


def _android(cpu: Target, name: str, triple: str) -> Target:
    """Programs without C library run on Linux as well, by the processor's runner.  The C library is the NDK's."""
    about = f"Android, {cpu.about}"
    return replace(
        cpu,
        name=name,
        triple=triple,
        about=about,
        host=None,
        thread_pool=False,
        c_library=False,
        group=Group.MOBILE,
        tier=2,
    )


def _system(cpu: Target, name: str, triple: str, system: str, object: str) -> Target:
    """macOS and Windows."""
    assert cpu.host
    return replace(
        cpu,
        name=name,
        triple=triple,
        about=f"{system}, {cpu.about}",
        host=Host(
            cpu.host.family, system={"macOS": "darwin"}.get(system, system.lower()), tuned=bool(cpu.host.features)
        ),
        runner=None,
        object=object,
        thread_pool=system != "Windows",
        group=Group.DESKTOP,
        tier=2,
    )


TARGETS = (
    _android(NEON, "android-arm64", "aarch64-linux-android"),
    # Floats are passed in general registers and computed by the FPU, which zig's androideabi would not use.
    replace(_android(ARMV7, "android-armv7", "arm-linux-musleabihf"), flags=("-mfloat-abi=softfp",)),
    _android(SSE2, "android-x86_64", "x86_64-linux-android"),
    replace(
        _system(NEON, "ios", "aarch64-ios", "iOS", "macho"),
        cpu="apple_a12",
        about="iOS 12 and later, AArch64 with NEON (A12)",
        host=None,
        thread_pool=False,
        c_library=False,
        group=Group.MOBILE,
    ),
    replace(_system(NEON, "macos-arm64", "aarch64-macos", "macOS", "macho"), cpu="apple_m1"),
    _system(AVX2, "macos-x86_64", "x86_64-macos", "macOS", "macho"),
    replace(
        _system(AVX2, "windows-x86_64", "x86_64-windows-gnu", "Windows", "coff"),
        runner=Wine(processor=AVX2.host),
    ),
    _system(NEON, "windows-arm64", "aarch64-windows-gnu", "Windows", "coff"),
)

PRODUCTS = (
    Product("android", "android-arm64", "Android phones of 2014 and later", Group.MOBILE),
    Product("iphone", "ios", "iPhone XS and later", Group.MOBILE),
    Product("macos", "macos-arm64", "Macs with Apple's processors", Group.DESKTOP),
    Product("windows", "windows-x86_64", "Windows PCs of 2013 and later", Group.DESKTOP),
    Product("linux-armv6", "armv6", "Linux on ARMv6", Group.BOARD),
    Product("linux-mips", "mips", "Linux on big-endian MIPS32", Group.BOARD),
    Product("linux-mipsel", "mipsel", "Linux on little-endian MIPS32", Group.BOARD),
    Product("linux-ppc64le", "powerpc64le", "Linux on POWER8 and later", Group.DESKTOP),
    Product("linux-riscv64", "riscv64", "Linux on RISC-V RV64GC", Group.BOARD),
    Product("linux-s390x", "s390x", "Linux on IBM z14 and later", Group.DESKTOP),
)
