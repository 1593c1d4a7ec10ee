"""Stand-ins for the libraries of drivers (``c/faulty_*.c``), whose only device computes nothing and can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
    return _with_defaults(folder, "faulty_vulkan.c", "libvulkan.so.1")


def faulty_cuda(folder: Path) -> Path:
    """The same for CUDA (``c/faulty_cuda.c``)."""
    return _with_defaults(folder, "faulty_cuda.c", "libcuda.so.1")


def _with_defaults(folder: Path, name: str, library: str) -> Path:
    """Compile a stand-in once for what it does, and once for all other functions."""
    source = ROOT / "tests" / "c" / name
    how = ["-fPIC", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable"]
    how.append(f"-I{ROOT / 'src' / 'tenon' / 'runtime' / 'c'}")
    subprocess.run(["gcc", "-c", "-DTEST_DEFAULTS", *how, "-o", folder / "defaults.o", source], check=True)
    subprocess.run(["gcc", "-shared", *how, "-o", folder / library, source, folder / "defaults.o"], check=True)
    return folder


_SERVE = """
import json, os, sys, warnings, tenon
warnings.simplefilter("ignore")
for line in sys.stdin:
    path, target, runs, gpu, texts = json.loads(line)
    for name in [name for name in os.environ if name.startswith("TEST_")]:
        del os.environ[name]
    os.environ.update(texts)
    said = []
    with tenon.open(path, target=target, gpu=gpu) as engine:
        for _ in range(runs):
            try:
                said.append(" ".join([engine.manifest.target.name, "ran", *engine.run()]))
            except tenon.errors.ResourceError as error:
                said.append(str(error))
    print(json.dumps(said), flush=True)
"""


class StandIn:
    """A process that runs bundles with a stand-in: starting one for each run would take most of the time of tests."""

    def __init__(self, folder: Path, prefix: str) -> None:
        """``prefix`` is that of the stand-in's variables: TEST_OPENCL, TEST_VULKAN or TEST_CUDA."""
        self._prefix, self._log = prefix, folder / "calls"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        command = [sys.executable, "-c", _SERVE]
        self._child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, bundle: Path, target: str, runs: int, gpu: Mapping[str, Any], **texts: str) -> list[str]:
        """The output of each run, and then the calls that the stand-in wrote down."""
        self._log.write_text("")
        named = {f"{self._prefix}_{name.upper()}": text for name, text in {**texts, "log": str(self._log)}.items()}
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps([str(bundle), target, runs, gpu, named]) + "\n")
        self._child.stdin.flush()
        said: list[str] = json.loads(self._child.stdout.readline())
        return [*said, *self._log.read_text().splitlines()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._child:
            assert self._child.stdin
            self._child.stdin.close()
