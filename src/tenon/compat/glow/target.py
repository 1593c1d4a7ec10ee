"""Tenon's target for the processor that LLVM's options name."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.errors import InputError
from tenon.machine.targets import targets

_X86 = {"x86-64", "x86_64", "amd64", "x86"}
_ARM = ("arm", "thumb")
_AARCH64 = {"aarch64", "arm64"}
_ALIASES = {"ppc": "powerpc", "ppc64": "powerpc64", "ppc64le": "powerpc64le", "systemz": "s390x"}
_AVX2 = {"haswell", "broadwell", "skylake", "znver1", "znver2", "znver3", "core-avx2", "x86-64-v3", "alderlake"}
_AVX512 = {"skylake-avx512", "skx", "x86-64-v4"}
_VNNI = {"cascadelake", "cooperlake"}
_VBMI = {"icelake-client", "icelake-server", "tigerlake", "rocketlake"}
_BF16 = {"sapphirerapids", "znver4", "znver5"}
_DOTPROD = {"cortex-a55", "cortex-a75", "cortex-a76", "cortex-a77", "cortex-a78", "neoverse-n1", "apple-m1"}
_I8MM = {"cortex-a510", "cortex-a710", "cortex-x2", "neoverse-n2", "neoverse-v1", "neoverse-v2", "apple-m2"}


def target_name(target: str, cpu: str, features: Sequence[str] = (), float_abi: str = "default") -> str:
    """The target for ``-target``, ``-mcpu``, ``-mattr`` and ``-float-abi``; "host" if there are neither of the first.

    ``target`` is an architecture or a triple.  Raises InputError if there is none that fits.
    """
    if not target and not cpu:
        return "host"
    arch, cpu = target.split("-")[0] if target not in _X86 else "x86-64", cpu.lower()
    name = _named(arch.lower(), cpu, {f.removeprefix("+") for text in features for f in text.split(",")})
    rows = targets()
    if name in rows and float_abi == "soft" and "hf" in rows[name].triple.rpartition("-")[2]:
        name = f"{name}-nofp"
    if name not in rows:
        abi = f" -float-abi={float_abi}" if float_abi != "default" else ""
        asked = f"-target={target} -mcpu={cpu}{abi}"
        raise InputError(f"no target for {asked}: 'tenon targets' lists those that there are")
    hard = "hf" in rows[name].triple.rpartition("-")[2]
    if float_abi == "hard" and rows[name].freestanding and rows[name].pointer == 4 and not hard:
        raise InputError(f"-float-abi=hard: {name} has no registers for floats: leave it out, or choose another -mcpu")
    return name


def _named(arch: str, cpu: str, features: set[str]) -> str:
    if not arch:
        arch = "arm" if cpu.startswith("cortex-") else "x86-64"
    if arch in _X86 or arch.startswith("x86"):
        return _x86(cpu, features)
    if cpu.startswith("cortex-m"):
        return cpu.replace("+", "plus")
    if arch in _AARCH64:
        if cpu in _I8MM or "i8mm" in features:
            return "aarch64-i8mm"
        if "fullfp16" in features:
            return "aarch64-fp16"
        return "aarch64-dotprod" if cpu in _DOTPROD or "dotprod" in features else "aarch64"
    if arch.startswith(_ARM):
        return "armv7"
    if arch == "riscv64":
        if "zvfh" in features:
            return "riscv64-v-fp16"
        return "riscv64-v" if "v" in features else "riscv64"
    return _ALIASES.get(arch, arch)


def _x86(cpu: str, features: set[str]) -> str:
    if cpu == "native":
        return "host"
    for name, cpus, feature in (
        ("x86-64-avx512-bf16", _BF16, "avx512bf16"),
        ("x86-64-avx512-vbmi", _VBMI, "avx512vbmi"),
        ("x86-64-avx512-vnni", _VNNI, "avx512vnni"),
        ("x86-64-avx512", _AVX512, "avx512f"),
        ("x86-64-avx2", _AVX2, "avx2"),
    ):
        if cpu in cpus or feature in features:
            return name
    return "x86-64"
