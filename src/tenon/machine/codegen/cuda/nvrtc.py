"""CUDA C to PTX, by NVIDIA's compiler library NVRTC (the package ``nvidia-cuda-nvrtc`` or a CUDA toolkit)."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from tenon.errors import ToolchainError

VERSIONS = {75: "6.5", 80: "7.0", 90: "7.8"}
"""The compute capabilities that kernels are made for, times ten, from the oldest that current compilers know (Turing);
drivers compile PTX for newer GPUs.  With each, the version of PTX that is stated, so that drivers older than the
compiler take it: nothing newer is left in it."""

_NEEDED = {
    "cp.async": 80,
    "mma.sync.aligned.m16n8k16": 80,
    "mma.sync.aligned.m16n8k32": 80,
    "__cluster_dims__": 90,
    "wgmma.": 90,
    "griddepcontrol.": 90,
}
"""The least that words of kernels need."""

_OF_ONE = "wgmma."
"""A word of kernels for GPUs of one compute capability, which is not part of newer ones."""
_VERSIONS_OF_ONE = {"k32.s32.u8": "8.4", _OF_ONE: "8.0"}
"""Versions of PTX by the instructions that need them, the newest first: products of u8 and i8 came later."""

_HINT = r'^\s*\.pragma "used_bytes_mask[^"]*";\n'
"""A hint to the driver's compiler that only newer versions know."""

_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


@cache
def ptx(text: str) -> str:
    """The PTX of a CUDA C program.

    Raises ToolchainError if the compiler is not installed, or with its report if it refuses the program.
    """
    library = _library()
    program = ctypes.c_void_p()
    source = text.encode()
    _check(library, library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None))
    try:
        capability, of_one = architecture(text), _OF_ONE in text
        options = [f"--gpu-architecture=compute_{capability}{'a' * of_one}", "--std=c++17", "--restrict"]
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            report = _text(library, program, "ProgramLog").strip()
            raise ToolchainError(f"NVRTC refuses the kernels: {report}")
        return older(_text(library, program, "PTX"), version(text))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def architecture(text: str) -> int:
    """The least compute capability, times ten, of GPUs that have what kernels use."""
    return max([min(VERSIONS), *(least for word, least in _NEEDED.items() if word in text)])


def version(text: str) -> str:
    """The oldest version of PTX that has what kernels use."""
    of_one = (version for word, version in _VERSIONS_OF_ONE.items() if word in text)
    return next(of_one, VERSIONS[architecture(text)])


def older(ptx: str, version: str) -> str:
    """The same PTX for older drivers, which know that version of it."""
    without = re.sub(_HINT, "", ptx, flags=re.MULTILINE)
    return re.sub(r"^\.version .*$", f".version {version}", without, flags=re.MULTILINE)


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    _check(library, library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, library[f"nvrtcGet{what}"](program, buffer))
    return buffer.value.decode()


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise ToolchainError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")


@cache
def _library() -> ctypes.CDLL:
    path = _packaged() or ctypes.util.find_library("nvrtc")
    if path is None:
        raise ToolchainError("the CUDA compiler is not installed: pip install nvidia-cuda-nvrtc (or a CUDA toolkit)")
    return ctypes.CDLL(path)


def _packaged() -> str | None:
    """The library of an installed package."""
    for package in _PACKAGES:
        try:
            listed = files(package) or []
        except PackageNotFoundError:
            continue
        for file in listed:
            if re.fullmatch(r"libnvrtc\.so\.\d+|nvrtc64_\d+_0\.dll", file.name):
                return str(Path(str(file.locate())))
    return None
