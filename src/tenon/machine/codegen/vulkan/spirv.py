"""GLSL to SPIR-V, by the reference compiler glslang (Debian's ``glslang-tools``, or the Vulkan SDK)."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import lru_cache

from tenon.atomic_write import scratch
from tenon.errors import ToolchainError
from tenon.machine.codegen.vulkan.matrices import MACRO as _MATRICES
from tenon.machine.codegen.vulkan.modules import modules, shared_bytes, uses_16_bits, uses_matrices, uses_subgroups
from tenon.machine.isa.subgroups import SHUFFLE_XOR

_NAMES = ("glslangValidator", "glslang")
_OPTIONS = ("-V", "-S", "comp")
_COLUMNS = 12
_WIDE = {"int64": r"\bu?int64_t\b", "float64": r"\bdouble\b"}
"""Types that the device may lack."""
_DECLARATION = """\
enum {{ DEVICE_INT64 = {int64}, DEVICE_FLOAT64 = {float64} }}; /* whether kernels use 64-bit integers and floats */
typedef struct {{
  const uint32_t *words; /* 0: there is none */
  unsigned size;         /* in bytes */
}} DeviceModule;
typedef struct {{
  DeviceModule usual, with_16_bits, with_matrices; /* the others are for devices that have these */
  DeviceModule with_subgroups;                     /* uses numbers of 16 bits where with_16_bits does */
  unsigned shared;                                 /* bytes of memory that a work group shares */
}} DeviceShader;"""
_SIXTEEN_BITS, _SUBGROUPS = "SIXTEEN_BITS", "SUBGROUPS"
_USES = r"(load_\w+_half|store_\w+_half|f16\w*_of|f32\w*_of_f16)"


def embedded(text: str, groups: Sequence[int]) -> str:
    """The kernels of a program as C: ``device_shaders``, a table of SPIR-V modules.

    Raises ToolchainError if the compiler is not installed, or with its report if it refuses the program.
    """
    usual = list(modules(spirv(text), groups))
    made = {"shader": dict(enumerate(usual)), "shader16": with_16_bits(text, groups)}
    made["shader_of_matrices"] = with_matrices(text, groups)
    made["shader_of_subgroups"] = with_subgroups(text, groups)
    uses = {name: int(bool(re.search(word, text))) for name, word in _WIDE.items()}
    rows = [
        f"  {{{', '.join(_module(f'{name}_{i}', own.get(i)) for name, own in made.items())}, {shared_bytes(words)}}},"
        for i, words in enumerate(usual)
    ]
    return "\n".join(
        [
            _DECLARATION.format_map(uses),
            *(_table(f"{name}_{i}", words) for name, own in made.items() for i, words in own.items()),
            "static const DeviceShader device_shaders[] = {",
            *rows,
            "  {{0, 0}, {0, 0}, {0, 0}, {0, 0}, 0},\n};",
        ]
    )


def with_16_bits(text: str, groups: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The modules of a program for devices that compute with numbers of 16 bits, where they differ from the usual ones,
    by the numbers of the kernels."""
    if not _has_16_bits(text):
        return {}
    made = modules(spirv(text, (_SIXTEEN_BITS,)), groups)
    return {i: words for i, words in enumerate(made) if uses_16_bits(words)}


def _has_16_bits(text: str) -> bool:
    return re.search(rf"^(?!#define).*\b{_USES}", text, re.MULTILINE) is not None


def with_subgroups(text: str, groups: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The modules of kernels whose threads exchange values, by the numbers of the kernels: for devices that do so
    without shared memory."""
    if f"#define {SHUFFLE_XOR}(" not in text:
        return {}
    macros = (_SUBGROUPS, _SIXTEEN_BITS) if _has_16_bits(text) else (_SUBGROUPS,)
    made = modules(spirv(text, macros), groups)
    return {i: words for i, words in enumerate(made) if uses_subgroups(words)}


def with_matrices(text: str, groups: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The modules of kernels that use cooperative matrices, by the numbers of the kernels."""
    calls = re.search(rf"#ifdef {_MATRICES}\n((?:  run_\d+\(\);\n)+)#else", text)
    if calls is None:
        return {}
    numbers = [int(n) for n in re.findall(r"\d+", calls[1])]
    made = list(modules(spirv(text, (_SIXTEEN_BITS, _MATRICES)), [groups[i] for i in numbers]))
    assert all(map(uses_matrices, made))
    return dict(zip(numbers, made, strict=True))


def _module(name: str, words: Sequence[int] | None) -> str:
    return "{0, 0}" if words is None else f"{{{name}, {4 * len(words)}}}"


def _table(name: str, words: Sequence[int]) -> str:
    lines = (", ".join(f"{word:#x}" for word in words[i : i + _COLUMNS]) for i in range(0, len(words), _COLUMNS))
    return "\n".join([f"static const uint32_t {name}[] = {{", *(f"  {line}," for line in lines), "};"])


@lru_cache(maxsize=16)
def spirv(text: str, macros: tuple[str, ...] = ()) -> tuple[int, ...]:
    """The words of a program's module, with macros defined.  One process for all kernels: the compiler takes 0.1 s to
    start."""
    with scratch() as folder:
        source, made = folder / "kernels.comp", folder / "kernels.spv"
        source.write_text(text)
        version = "vulkan1.1" if _SUBGROUPS in macros else "vulkan1.0"
        defined = ["--target-env", version, *(f"-D{macro}" for macro in macros)]
        command = [compiler(), *_OPTIONS, *defined, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            report = (done.stdout + done.stderr).replace(str(folder), "").strip()
            raise ToolchainError(f"glslang refuses the kernels: {report}")
        code = made.read_bytes()
    return struct.unpack(f"<{len(code) // 4}I", code)


def compiler() -> str:
    """The path of the compiler.  Raises ToolchainError if it is not installed."""
    path = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if path is None:
        raise ToolchainError(
            "the GLSL compiler is not installed: Debian's glslang-tools has it (apt install glslang-tools), "
            "as have the packages glslang of other systems and the Vulkan SDK"
        )
    return path
