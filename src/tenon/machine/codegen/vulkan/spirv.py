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
from tenon.machine.codegen.vulkan.modules import modules, shared_bytes, uses_16_bits

_NAMES = ("glslangValidator", "glslang")
_OPTIONS = ("-V", "--target-env", "vulkan1.0", "-S", "comp")
_COLUMNS = 12
_WIDE = {"int64": r"\bu?int64_t\b", "float64": r"\bdouble\b"}
"""Types that the device may lack."""
_DECLARATION = """\
enum {{ DEVICE_INT64 = {int64}, DEVICE_FLOAT64 = {float64} }}; /* whether kernels use 64-bit integers and floats */
typedef struct {{
  const uint32_t *words, *words16; /* words16: the module for devices with numbers of 16 bits, 0 if it is no other */
  unsigned size, size16, shared;   /* bytes of the modules, and of memory that a work group shares */
}} DeviceShader;"""
_MACRO, _USES = "SIXTEEN_BITS", r"(load_\w+_half|store_\w+_half|f16\w*_of|f32\w*_of_f16)"


def embedded(text: str, groups: Sequence[int]) -> str:
    """The kernels of a program as C: ``device_shaders``, a table of SPIR-V modules.

    Raises ToolchainError if the compiler is not installed, or with its report if it refuses the program.
    """
    made = list(modules(spirv(text), groups))
    made16 = with_16_bits(text, groups)
    uses = {name: int(bool(re.search(word, text))) for name, word in _WIDE.items()}
    rows = [
        f"  {{shader_{i}, {f'shader16_{i}' if i in made16 else '0'}, {4 * len(words)}, {4 * len(made16.get(i, ()))}, "
        f"{shared_bytes(words)}}},"
        for i, words in enumerate(made)
    ]
    return "\n".join(
        [
            _DECLARATION.format_map(uses),
            *(_table(f"shader_{i}", words) for i, words in enumerate(made)),
            *(_table(f"shader16_{i}", words) for i, words in made16.items()),
            "static const DeviceShader device_shaders[] = {",
            *rows,
            "  {0, 0, 0, 0, 0},\n};",
        ]
    )


def with_16_bits(text: str, groups: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The modules of a program for devices that compute with numbers of 16 bits, where they differ from the usual ones,
    by the numbers of the kernels."""
    if not re.search(rf"^(?!#define).*\b{_USES}", text, re.MULTILINE):
        return {}
    made = modules(spirv(text, _MACRO), groups)
    return {i: words for i, words in enumerate(made) if uses_16_bits(words)}


def _table(name: str, words: Sequence[int]) -> str:
    lines = (", ".join(f"{word:#x}" for word in words[i : i + _COLUMNS]) for i in range(0, len(words), _COLUMNS))
    return "\n".join([f"static const uint32_t {name}[] = {{", *(f"  {line}," for line in lines), "};"])


@lru_cache(maxsize=16)
def spirv(text: str, macro: str = "") -> tuple[int, ...]:
    """The words of a program's module, with a macro defined.  One process for all kernels: the compiler takes 0.1 s to
    start."""
    with scratch() as folder:
        source, made = folder / "kernels.comp", folder / "kernels.spv"
        source.write_text(text)
        defined = [f"-D{macro}"] if macro else []
        command = [compiler(), *_OPTIONS, *defined, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            report = (done.stdout + done.stderr).replace(str(folder), "").strip()
            raise ToolchainError(f"glslang refuses the kernels: {report}")
        code = made.read_bytes()
    return struct.unpack(f"<{len(code) // 4}I", code)


def compiler() -> str:
    """Its path.  Raises ToolchainError if it is not installed."""
    path = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if path is None:
        raise ToolchainError(
            "the GLSL compiler is not installed: Debian's glslang-tools has it (apt install glslang-tools), "
            "as have the packages glslang of other systems and the Vulkan SDK"
        )
    return path
