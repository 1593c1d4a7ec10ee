"""A stand-in for the OpenCL library (``c/faulty_opencl.c``), whose only device computes nothing and can fail."""

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
