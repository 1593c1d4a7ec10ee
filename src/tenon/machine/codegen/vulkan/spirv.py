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
from tenon.machine.codegen.vulkan.modules import modules, shared_bytes

_NAMES = ("glslangValidator", "glslang")
_OPTIONS = ("-V", "--target-env", "vulkan1.0", "-S", "comp")
_COLUMNS = 12
_WIDE = {"int64": r"\bu?int64_t\b", "float64": r"\bdouble\b"}
"""Types that the device may lack."""
_DECLARATION = """\
enum {{ DEVICE_INT64 = {int64}, DEVICE_FLOAT64 = {float64} }}; /* whether kernels use 64-bit integers and floats */
typedef struct {{
  const uint32_t *words;
  unsigned size, shared; /* bytes of the module, and of memory that a work group shares */
}} DeviceShader;"""


def embedded(text: str, groups: Sequence[int]) -> str:
    """The kernels of a program as C: ``device_shaders``, a table of SPIR-V modules.

    Raises ToolchainError if the compiler is not installed, or with its report if it refuses the program.
    """
    made = list(modules(spirv(text), groups))
    uses = {name: int(bool(re.search(word, text))) for name, word in _WIDE.items()}
    rows = "\n".join(f"  {{shader_{i}, {4 * len(words)}, {shared_bytes(words)}}}," for i, words in enumerate(made))
    return "\n".join(
        [
            _DECLARATION.format_map(uses),
            *(_table(i, words) for i, words in enumerate(made)),
            f"static const DeviceShader device_shaders[] = {{\n{rows}\n  {{0, 0, 0}},\n}};",
        ]
    )


def _table(number: int, words: Sequence[int]) -> str:
    lines = (", ".join(f"{word:#x}" for word in words[i : i + _COLUMNS]) for i in range(0, len(words), _COLUMNS))
    return "\n".join([f"static const uint32_t shader_{number}[] = {{", *(f"  {line}," for line in lines), "};"])


@lru_cache(maxsize=16)
def spirv(text: str) -> tuple[int, ...]:
    """The words of a program's module.  One process for all kernels: the compiler takes 0.1 s to start."""
    with scratch() as folder:
        source, made = folder / "kernels.comp", folder / "kernels.spv"
        source.write_text(text)
        command = [compiler(), *_OPTIONS, "-o", str(made), str(source)]
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
