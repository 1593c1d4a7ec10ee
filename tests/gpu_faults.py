"""Stand-ins for the libraries of drivers (``c/faulty_*.c``), whose only device computes nothing and can fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from real import ROOT


def faulty_opencl(folder: Path) -> Path:
    """Compile the stand-in: the folder for the search path of libraries."""
    source, library = ROOT / "tests" / "c" / "faulty_opencl.c", folder / "libOpenCL.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return folder


def with_fault(library: Path, fault: str, **texts: str) -> dict[str, str]:
    """The environment of a program that finds it, with a ``fault`` ("": none) and ``texts`` by the ends of their names
    in ``c/faulty_opencl.c``."""
    named = {f"TEST_OPENCL_{name.upper()}": text for name, text in texts.items()}
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "TEST_OPENCL_FAULT": fault, **named}


def faulty_vulkan(folder: Path) -> Path:
    """The same for Vulkan (``c/faulty_vulkan.c``)."""
    source, library = ROOT / "tests" / "c" / "faulty_vulkan.c", folder / "libvulkan.so.1"
    how = ["-fPIC", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable"]
    how.append(f"-I{ROOT / 'src' / 'tenon' / 'runtime' / 'c'}")
    subprocess.run(["gcc", "-c", "-DTEST_DEFAULTS", *how, "-o", folder / "defaults.o", source], check=True)
    subprocess.run(["gcc", "-shared", *how, "-o", library, source, folder / "defaults.o"], check=True)
    return folder


def with_vulkan_fault(library: Path, fault: str, **texts: str) -> dict[str, str]:
    """The environment of a program that finds the stand-in for Vulkan, as ``with_fault``."""
    named = {f"TEST_VULKAN_{name.upper()}": text for name, text in texts.items()}
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "TEST_VULKAN_FAULT": fault, **named}
