"""libtenon for tests: the SDK of this machine, compiled C clients, and the C API through ctypes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenon.sdk.libtenon import POSIX, RUNTIME, SOURCES, target_rows
from tenon.targets import find

CLIENTS = Path(__file__).parent / "c"
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wcast-qual", "-Wundef", "-Werror")


def needed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def run(
    *command: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(list(map(str, command)), input=stdin, capture_output=True, check=False, env=env)


def succeeded(done: subprocess.CompletedProcess[bytes]) -> bytes:
    """What a program wrote to standard output; fails with what it wrote to standard error."""
    assert done.returncode == 0, (done.returncode, done.stderr.decode())
    return done.stdout


def client(name: str, sdk: Path, out: Path, compiler: Sequence[str] = ("gcc",)) -> Path:
    """A C client, linked with the shared libtenon of an SDK."""
    flags = (*STRICT, f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib", "-o", out / name)
    succeeded(run(needed(compiler[0]), *compiler[1:], CLIENTS / f"{name}.c", *flags))
    return out / name


def sanitized_client(name: str, out: Path, sanitizers: str) -> Path:
    """A C client that is compiled with libtenon's sources under sanitizers."""
    (out / "target_rows.h").write_text(target_rows(find("x86-64")))
    folder = RUNTIME / "libtenon"
    sources = [folder / file for file in (*SOURCES, *POSIX)]
    includes = [f"-I{path}" for path in (out, folder, RUNTIME, RUNTIME / "include")]
    flags = ("-std=gnu99", "-g", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *includes)
    files = (CLIENTS / f"{name}.c", *sources, RUNTIME / "threads.c")
    succeeded(run(needed("gcc"), *flags, *files, "-lpthread", "-ldl", "-o", out / name))
    return out / name
