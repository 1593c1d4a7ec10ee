"""The part of the C library (musl) that programs for Linux call, from the sources that come with zig.

zig builds all of musl, some 1,100 files, the first time that it links a program for a target.  A tenth of them is what
``runtime/c/main.c`` needs; the rest of this C library is the same: the functions that zig implements itself
(``c.zig``), and its compiler_rt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler

_ARCHITECTURES = {
    **{name: name for name in ("aarch64", "arm", "mips", "powerpc", "powerpc64", "riscv32", "riscv64", "s390x")},
    "mipsel": "mips",
    "powerpc64le": "powerpc64",
}
"""musl's name for an architecture by zig's: those of which the programs were run."""

SOURCES = {
    "conf": """
        sysconf
    """,
    "env": """
        __environ __init_tls __libc_start_main
    """,
    "errno": """
        __errno_location strerror
    """,
    "exit": """
        _Exit exit
    """,
    "fenv": """
        fenv fenv-hf fenv-sf fesetround
    """,
    "internal": """
        defsysinfo floatscan libc procfdname shgetc syscall_ret vdso
    """,
    "linux": """
        sysinfo
    """,
    "locale": """
        __lctrans
    """,
    "math": """
        __fpclassify __fpclassifyl __signbit __signbitl fmal ilogb ilogbl ldexp nextafter nextafterl scalbn scalbnl
    """,
    "misc": """
        getauxval getrlimit realpath syscall
    """,
    "mman": """
        mmap mremap munmap
    """,
    "multibyte": """
        wcrtomb wctomb
    """,
    "sched": """
        affinity sched_cpucount sched_getcpu
    """,
    "signal": """
        block sigfillset sigprocmask
    """,
    "stat": """
        fchmod fstatat stat
    """,
    "stdio": """
        __fdopen __fmodeflags __lockfile __overflow __stdio_close __stdio_exit __stdio_read __stdio_seek
        __stdio_write __stdout_write __toread __towrite __uflow fclose ferror fflush fileno fopen fprintf
        fputc fread fwrite ofl ofl_add printf putchar remove rename snprintf sprintf stderr stdout vfprintf
        vsnprintf vsprintf
    """,
    "stdlib": """
        strtod
    """,
    "thread": """
        __aeabi_read_tp __lock __set_thread_area __syscall_cp __timedwait __unmapself __wait atomics clone
        default_attr lock_ptc pthread_attr_destroy pthread_attr_init pthread_attr_setstacksize pthread_create
        pthread_join pthread_rwlock_rdlock pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock
        pthread_rwlock_tryrdlock pthread_rwlock_trywrlock pthread_rwlock_unlock pthread_rwlock_wrlock
        pthread_setcancelstate pthread_sigmask pthread_testcancel vmlock
    """,
    "time": """
        clock_gettime
    """,
    "unistd": """
        getcwd lseek readlink
    """,
}
"""The files, by folder: those that zig links into a program with images and threads, on any architecture."""

_FLAGS = (
    "-std=c99",
    "-nostdinc",
    "-ffreestanding",
    "-frounding-math",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Os",
    "-fomit-frame-pointer",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-stack-protector",
    "-fno-sanitize=all",
    "-g0",
    "-w",
    "-D_XOPEN_SOURCE=700",
)


def available(compiler: Compiler, target: Target) -> bool:
    """Whether ``c_library`` has a library for a target."""
    parts = target.triple.split("-")
    return compiler.zig and parts[1] == "linux" and parts[2].startswith("musl") and parts[0] in _ARCHITECTURES


def c_library(compiler: Compiler, target: Target) -> dict[str, bytes]:
    """Objects to link in place of zig's C library, with ``LINK_FLAGS``.  Raises ToolchainError if a file does not
    compile."""
    machine = _machine(target)
    sources = [*map(str, files(compiler, target)), _start_file(compiler)]
    include = _include(compiler, _architecture(target), _architecture(target))
    zig = replace(compiler, command=(compiler.command[0], "build-obj"))
    own = (*machine, "-OReleaseSmall", "-fstrip", "-lc", str(_library(compiler) / "c.zig"), "-femit-bin=zig_libc.o")
    return {
        "libc.o": compiler.run({}, (*machine, *_FLAGS, *include, "-c", *sources), "libc.o"),
        "zig_libc.o": zig.run({}, own, "zig_libc.o", named_by=""),
    }


def start_object(compiler: Compiler, target: Target) -> bytes | None:
    """The object with ``_start``, which calls the ``__libc_start_main`` of any C library for Linux; None where there is
    none for the architecture."""
    name = target.triple.split("-")[0]
    architecture = {**_ARCHITECTURES, "x86_64": "x86_64", "x86": "i386"}.get(name)
    if not compiler.zig or architecture is None:
        return None
    include = _include(compiler, architecture, name if name.startswith("x86") else architecture)
    return compiler.run({}, (*_machine(target), *_FLAGS, *include, "-c", _start_file(compiler)), "start.o")


def _machine(target: Target) -> tuple[str, ...]:
    return ("-target", target.triple, *((f"-mcpu={target.cpu}",) if target.below_baseline else ()))


def _start_file(compiler: Compiler) -> str:
    return str(_library(compiler) / "libc" / "musl" / "crt" / "crt1.c")


def _include(compiler: Compiler, architecture: str, headers: str) -> list[str]:
    """Options for musl's headers; ``headers`` is zig's name of the architecture in those that it has generated."""
    folder = _library(compiler) / "libc"
    own = (f"arch/{architecture}", "arch/generic", "src/include", "src/internal", "include")
    folders = [
        *(folder / "musl" / name for name in own),
        *(folder / "include" / f"{name}-musl" for name in (f"{headers}-linux", "generic")),
    ]
    return [f"-I{path}" for path in folders]


LINK_FLAGS = ("-nostdlib", "-static", "-lcompiler_rt")
"""Flags that link a program with ``c_library``."""


def files(compiler: Compiler, target: Target) -> Iterator[Path]:
    """The files, those for the architecture in place of general ones; some are there for few architectures only."""
    source, architecture = _library(compiler) / "libc" / "musl" / "src", _architecture(target)
    for folder, names in SOURCES.items():
        for name in names.split():
            special = [source / folder / architecture / f"{name}{ending}" for ending in (".c", ".s", ".S")]
            yield from [path for path in (*special, source / folder / f"{name}.c") if path.is_file()][:1]


def _library(compiler: Compiler) -> Path:
    return Path(compiler.command[0]).parent / "lib"


def _architecture(target: Target) -> str:
    return _ARCHITECTURES[target.triple.split("-")[0]]
