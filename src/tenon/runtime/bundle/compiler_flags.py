"""Flags for the compiler of a bundle's C, and the checks in the C that they were given.

Without the target's instructions the code is right, but many times slower: vectors that the processor could have in a
register are taken apart.
"""

from __future__ import annotations

import re

from tenon.machine.targets import Target

OVERRIDE = "TENON_ANY_FLAGS"
"""The macro that turns the check off."""

_MACROS = {
    "x86_64_v3": ("__AVX2__", "__FMA__"),
    "x86_64_v4": ("__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"),
    "avxvnni": ("__AVXVNNI__",),
    "avx512vnni": ("__AVX512VNNI__",),
    "avx512vbmi": ("__AVX512VBMI__",),
    "avx512bf16": ("__AVX512BF16__",),
    "amx_tile": ("__AMX_TILE__",),
    "amx_bf16": ("__AMX_BF16__",),
    "amx_int8": ("__AMX_INT8__",),
    "amx_fp16": ("__AMX_FP16__",),
    "dotprod": ("__ARM_FEATURE_DOTPROD",),
    "cortex_a55": ("__ARM_FEATURE_DOTPROD", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"),
    "cortex_a76": ("__ARM_FEATURE_DOTPROD", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"),
    "fullfp16": ("__ARM_FEATURE_FP16_VECTOR_ARITHMETIC",),
    "sve": ("__ARM_FEATURE_SVE",),
    "i8mm": ("__ARM_FEATURE_MATMUL_INT8",),
    "bf16": ("__ARM_FEATURE_BF16_VECTOR_ARITHMETIC",),
    "neon": ("__ARM_NEON",),
    "v": ("__riscv_vector",),
    "zfh": ("__riscv_zfh",),
    "zvfh": ("__riscv_zvfh",),
    "simd128": ("__wasm_simd128__",),
    "relaxed_simd": ("__wasm_relaxed_simd__",),
    "mve": ("__ARM_FEATURE_MVE",),
    "cortex_m4": ("__ARM_FEATURE_DSP",),
    "cortex_m7": ("__ARM_FEATURE_DSP",),
    "cortex_m55": ("__ARM_FEATURE_DSP",),
    "cortex_m85": ("__ARM_FEATURE_DSP",),
    "dsp": ("__ARM_FEATURE_DSP",),
    "vfp4d16sp": ("__ARM_FP",),
    "fp_armv8d16": ("__ARM_FP",),
    "fp_armv8d16sp": ("__ARM_FP",),
}
"""The macros by which compilers say that they may use a processor's features, by zig's names of those."""

_OTHER_NAMES = {"__AMX_TILE__": "__AMXTILE__", "__AMX_BF16__": "__AMXBF16__", "__AMX_INT8__": "__AMXINT8__"}
"""The names that Clang until version 14 has for macros."""

_ABI = "-mfloat-abi="
_FPU = {"vfp4d16sp": "fpv4-sp-d16", "fp_armv8d16": "fpv5-d16", "fp_armv8d16sp": "fpv5-sp-d16"}
_BY_CPU = {
    "generic+v7a+neon+vfp4": ("-march=armv7-a", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
    "baseline_rv64": ("-march=rv64gc", "-mabi=lp64d"),
    "baseline_rv64+v": ("-march=rv64gcv", "-mabi=lp64d"),
    "baseline_rv64+v+zfh+zvfh": ("-march=rv64gcv_zfh_zvfh", "-mabi=lp64d"),
    "baseline_rv32": ("-march=rv32gc", "-mabi=ilp32d"),
    "generic_rv32+m+c": ("-march=rv32imc", "-mabi=ilp32"),
    "generic+simd128": ("-msimd128",),
    "generic+simd128+relaxed_simd": ("-msimd128", "-mrelaxed-simd"),
}


def flags(target: Target) -> tuple[str, ...]:
    """The flags of GCC and Clang that choose the target's instructions; empty where any compiler's defaults do."""
    own = tuple(flag for flag in target.flags if flag.startswith("-m"))
    abi = any(flag.startswith(_ABI) for flag in own)  # which replaces the processor's usual one
    return (*(flag for flag in _processor(target) if not (abi and flag.startswith(_ABI))), *own)


def _processor(target: Target) -> tuple[str, ...]:
    """The flags for its processor, without those of ``target.flags``."""
    if target.gcc:
        return target.gcc
    if target.cpu in _BY_CPU:
        return _BY_CPU[target.cpu]
    core, *features = _words(target.cpu)
    if not core.startswith("cortex_m"):
        return ()
    fpu = next((_FPU[word] for word in features if word in _FPU), "")
    if not fpu:
        return (f"-mcpu={core.replace('_', '-')}", "-mthumb", "-mfloat-abi=soft")
    own = () if "mve" in features else (f"-mfpu={fpu}",)
    return (f"-mcpu={core.replace('_', '-')}", "-mthumb", "-mfloat-abi=hard", *own)


def macros(target: Target) -> tuple[str, ...]:
    """The macros that a compiler of C defines which was given ``flags``, and by default may not."""
    return tuple(dict.fromkeys(macro for word in _words(target.cpu) for macro in _MACROS.get(word, ())))


def check(target: Target) -> str:
    """The lines of C that stop a compiler that was not given the flags; empty where it needs none.

    Code without vectors is stopped only on a machine of the target's family, so that it can be tried elsewhere.
    """
    return _instructions_check(target) + (_OPTIMISED if target.linker_script else "")


_OPTIMISED = f"""\
#if defined(__GNUC__) && !defined(__OPTIMIZE__) && !defined({OVERRIDE}) /* -O0: 15 times the instructions */
#if defined(__clang__)
#error "slow without optimisation: compile this file with -O2, or define {OVERRIDE}"
#else
#pragma GCC optimize("O2")
#endif
#endif
"""
"""The lines of C for microcontrollers that optimise all the same where a debug build does not."""


def _instructions_check(target: Target) -> str:
    wanted = () if target.backend == "c.strict" else macros(target)
    if not wanted:
        return ""
    missing = " || ".join(_missing(macro) for macro in wanted)
    family = "defined(__arm__) && " if target.machine.lanes == 1 and wanted[0].startswith("__ARM") else ""
    condition = f"({missing})" if len(wanted) > 1 else missing
    return (
        f"#if {family}{condition} && !defined({OVERRIDE})\n"
        f'#error "slow without the instructions of {target.name}: compile with {" ".join(flags(target))}, '
        f'or define {OVERRIDE}"\n'
        "#endif\n"
    )


def _missing(macro: str) -> str:
    other = _OTHER_NAMES.get(macro)
    return f"!(defined({macro}) || defined({other}))" if other else f"!defined({macro})"


def _words(cpu: str) -> list[str]:
    """A processor of zig's and the features added to it; those taken away are left out."""
    core, *rest = re.split(r"(?=[+-])", cpu)
    return [core, *(word[1:] for word in rest if word.startswith("+"))]
