"""The devices of GPU targets that this machine has."""

from __future__ import annotations

import ctypes
import shutil
from functools import lru_cache

import pytest


@lru_cache(maxsize=3)
def why_not(language: str) -> str:
    """Why nothing runs in a language here; empty if it does."""
    name = {"opencl": "libOpenCL.so.1", "cuda": "libcuda.so.1", "vulkan": "libvulkan.so.1"}[language]
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"{name} is not installed"
    count = ctypes.c_uint()
    if language == "cuda":
        return "" if driver.cuInit(0) == 0 else "there is no CUDA device"
    if language == "vulkan":
        return "" if _vulkan_devices(driver) else "there is no Vulkan device (Debian's mesa-vulkan-drivers has one)"
    status = driver.clGetPlatformIDs(0, None, ctypes.byref(count))
    return "" if status == 0 and count.value else "there is no OpenCL platform (Debian's pocl-opencl-icd is one)"


def capability() -> int:
    """The compute capability of the CUDA device, times ten."""
    driver, major, minor = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return 10 * major.value + minor.value


def _vulkan_devices(driver: ctypes.CDLL) -> int:
    """How many there are."""
    instance, count = ctypes.c_void_p(), ctypes.c_uint()
    made = (ctypes.c_uint64 * 8)(1)  # VkInstanceCreateInfo, whose type is 1
    if driver.vkCreateInstance(made, None, ctypes.byref(instance)):
        return 0
    driver.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    driver.vkDestroyInstance(instance, None)
    return count.value


def needs_compiler(language: str) -> None:
    """Skips the test where the language's compiler is not installed."""
    if language == "cuda":
        pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")
    if language == "vulkan" and not (shutil.which("glslangValidator") or shutil.which("glslang")):
        pytest.skip("the GLSL compiler is not installed (Debian's glslang-tools)")
