"""The devices of GPU targets that this machine has."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import pytest


@lru_cache(maxsize=2)
def why_not(language: str) -> str:
    """Why nothing runs in a language here; empty if it does."""
    name = {"opencl": "libOpenCL.so.1", "cuda": "libcuda.so.1"}[language]
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"{name} is not installed"
    count = ctypes.c_uint()
    if language == "cuda":
        return "" if driver.cuInit(0) == 0 else "there is no CUDA device"
    status = driver.clGetPlatformIDs(0, None, ctypes.byref(count))
    return "" if status == 0 and count.value else "there is no OpenCL platform (Debian's pocl-opencl-icd is one)"


def needs_compiler(language: str) -> None:
    """Skips the test where the language's compiler is not installed."""
    if language == "cuda":
        pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")
