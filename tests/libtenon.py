"""libtenon for tests: the SDK of this machine, compiled C clients, and the C API through ctypes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenon.machine.targets import find
from tenon.runtime.sdk import mace, save_sdk, tengine
from tenon.runtime.sdk.libtenon import POSIX, RUNTIME, SOURCES, SPEECH, TEXT, target_rows

CLIENTS = Path(__file__).parent / "c"
SHARED = tuple(RUNTIME / name for name in ("threads.c", *TEXT, *SPEECH))
"""The files of libtenon that other programs have as well."""
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wcast-qual", "-Wundef", "-Werror")


BUILDS = (
    pytest.param("", id="plain"),
    pytest.param("address,undefined", id="asan", marks=pytest.mark.slow),
    pytest.param("thread", id="tsan", marks=pytest.mark.slow),
    pytest.param("valgrind", id="valgrind", marks=pytest.mark.slow),
)
"""Parameters of fixtures that make an SDK: the sanitizers that its libraries and programs have, or valgrind, which runs
its programs."""
VALGRIND = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite")
LIBC_OF_CLIENT = (
    "__libc_start_main",
    "calloc",
    "exit",
    "fclose",
    "fopen",
    "fprintf",
    "fread",
    "free",
    "fwrite",
    "malloc",
    "memcmp",
    "bcmp",
    "memset",
    "stderr",
    "stdin",
    "stdout",
    "strcmp",
    "strncmp",
)
START_OF_AARCH64 = """\
__asm__(".globl _start\\n_start:\\n mov x29, #0\\n ldr x1, [sp]\\n add x2, sp, #8\\n adrp x0, main\\n"
        " add x0, x0, :lo12:main\\n mov x3, #0\\n mov x4, #0\\n mov x5, #0\\n mov x6, sp\\n bl __libc_start_main\\n");
"""


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
    """The standard output of a program; fails with what it wrote to standard error."""
    assert done.returncode == 0, (done.returncode, done.stderr.decode())
    return done.stdout


def client(name: str, sdk: Path, out: Path, compiler: Sequence[str] = ("gcc",)) -> Path:
    """A C client, linked with the shared libtenon of an SDK."""
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    flags = (*STRICT, *sanitizer_flags(sdk), *paths)
    succeeded(run(needed(compiler[0]), *compiler[1:], CLIENTS / f"{name}.c", *flags, "-o", out / name))
    return checked(out / name, sdk)


def sanitized_client(name: str, out: Path, sanitizers: str) -> Path:
    """A C client that is compiled with libtenon's sources under sanitizers."""
    (out / "target_rows.h").write_text(target_rows(find("x86-64")))
    folder = RUNTIME / "libtenon"
    sources = [folder / file for file in (*SOURCES, *POSIX)]
    includes = [f"-I{path}" for path in (out, folder, RUNTIME, RUNTIME / "include")]
    flags = ("-std=gnu99", "-g", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *includes)
    files = (CLIENTS / f"{name}.c", *sources, *SHARED)
    succeeded(run(needed("gcc"), *flags, *files, "-lpthread", "-ldl", "-o", out / name))
    return out / name


# --------------------------------------------------------------------------------------- SDKs compiled with sanitizers
def sdk_for_clients(folder: Path, sanitizers: str) -> Path:
    """The SDK of this machine in ``folder``/sdk; libraries and mace_run have the ``sanitizers``."""
    sdk = save_sdk(folder / "sdk")
    if not sanitizers:
        return sdk
    os.environ.pop("LD_PRELOAD", None)  # this process has what was preloaded; a shell ends under ThreadSanitizer
    (sdk / "sanitizers").write_text(sanitizers)
    if sanitizers == "valgrind":
        checked(sdk / "bin" / "mace_run", sdk)
        return sdk
    work = folder / "sanitized"
    work.mkdir()
    (work / "target_rows.h").write_text(target_rows(find("x86-64")))
    (work / "operator_rows.h").write_text(tengine.operator_rows())
    own, shared = RUNTIME / "libtenon", ("handle.c", "memory_pool.c", "platform_posix.c")
    rebuilt_library(sdk, work, "libtenon.so.1", [*(own / name for name in (*SOURCES, *POSIX)), *SHARED])
    names = [RUNTIME / "tengine" / name for name in tengine.SOURCES] + [own / name for name in shared]
    rebuilt_library(sdk, work, "libtengine-lite.so", names)
    names = [RUNTIME / "mace" / name for name in mace.SOURCES]
    rebuilt_library(sdk, work, "libmace.so", [*names, own / "platform_posix.c"])
    program = [RUNTIME / "mace" / name for name in mace.PROGRAM]
    libraries = (f"-L{sdk}/lib", "-lmace", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    compiled(sdk, work, program, *libraries, "-o", sdk / "bin" / "mace_run")
    return sdk


def rebuilt_library(sdk: Path, work: Path, name: str, sources: Sequence[Path]) -> None:
    others = () if name.startswith("libtenon") else (f"-L{sdk}/lib", "-ltenon")
    own = ("-shared", f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN", "-Wl,-z,nodelete")
    (sdk / "lib" / name).unlink()
    compiled(sdk, work, sources, *own, *others, "-lpthread", "-ldl", "-o", sdk / "lib" / name)


def compiled(sdk: Path, work: Path, sources: Sequence[Path], *more: str | Path) -> None:
    folders = (work, RUNTIME / "libtenon", RUNTIME, RUNTIME / "include", RUNTIME / "include" / "mace" / "public")
    flags = ("-std=gnu99", "-g", "-O1", "-fPIC", "-fvisibility=hidden", *sanitizer_flags(sdk))
    succeeded(run(needed("gcc"), *flags, *(f"-I{folder}" for folder in folders), *sources, *more))


def build_of(sdk: Path) -> str:
    """The entry of ``BUILDS`` that an SDK was made with."""
    mark = sdk / "sanitizers"
    return mark.read_text() if mark.exists() else ""


def sanitizer_flags(sdk: Path) -> tuple[str, ...]:
    """Further flags that programs for an SDK are compiled with."""
    build = build_of(sdk)
    return (f"-fsanitize={build}", "-fno-sanitize-recover=all") if build not in ("", "valgrind") else ()


def checked(program: Path, sdk: Path) -> Path:
    """A program for an SDK, behind a script that runs it under valgrind where the SDK asks for that."""
    if build_of(sdk) == "valgrind":
        if "avx512f" in Path("/proc/cpuinfo").read_text():
            pytest.skip("valgrind does not know AVX-512, which the compiler uses on this machine")
        program.rename(program.with_name(f"{program.name}.checked"))
        program.write_text(f'#!/bin/sh\nexec {needed("valgrind")} {" ".join(VALGRIND[1:])} "{program}.checked" "$@"\n')
        program.chmod(0o755)
    return program


def needs_plain_build(sdk: Path, why: str) -> None:
    """Skip a test on an SDK that is compiled with sanitizers, or whose programs valgrind runs."""
    if build_of(sdk):
        pytest.skip(f"not with sanitizers: {why}")


def needs_loadable_build(sdk: Path) -> None:
    """Skip a test that loads the libraries into Python, where the sanitizer is not loaded before (LD_PRELOAD)."""
    build = build_of(sdk)
    if build == "valgrind":
        pytest.skip("valgrind runs programs, not Python")
    if build and f"/lib{build[0]}san.so" not in Path("/proc/self/maps").read_text():
        pytest.skip("the sanitizer's library has to be loaded before Python: LD_PRELOAD=libasan.so or libtsan.so")
