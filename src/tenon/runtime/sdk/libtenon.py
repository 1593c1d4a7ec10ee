"""Compile and link libtenon (``runtime/c/libtenon``) for a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tenon.errors import ToolchainError
from tenon.machine.object_formats.elf import Elf
from tenon.machine.targets import Target, targets
from tenon.machine.toolchain.compiler import Compiler
from tenon.runtime.sdk.linking import import_library, link_shared

ABI = 1
"""TENON_ABI_VERSION of tenon.h."""

RUNTIME = Path(__file__).parents[1] / "c"
_ALL = sorted(path.name for path in (RUNTIME / "libtenon").iterdir())
POSIX = tuple(name for name in _ALL if name.endswith("_posix.c"))
_WINDOWS = tuple(name for name in _ALL if name.endswith("_windows.c"))
SOURCES = tuple(name for name in _ALL if name.endswith(".c") and name not in (*POSIX, *_WINDOWS))
"""The files of libtenon for every system, besides those for one."""
TEXT = tuple(
    f"text_{name}.c"
    for name in (
        *("automaton", "chat", "encode", "form", "generate", "grammar", "output", "pattern", "sampling", "schema"),
        *("tables", "words"),
    )
)
"""The files of ``runtime/c/`` with which generators read and write texts."""
SPEECH = ("speech.c", "speech_tokens.c")
"""The files of ``runtime/c/`` with which recognizers write down speech."""
_TEXT_HEADERS = ("text.h", "speech.h", *(path.name for path in sorted(RUNTIME.glob("text_*.h"))))
_HEADERS = tuple(name for name in _ALL if name.endswith(".h"))
TENGINE_HEADERS = ("c_api.h", "defines.h")
_FAST = {"aes_gcm.c": (), "digest.c": ("-O2",), "threads.c": ("-O2",)}
"""Files not compiled for the least size. With -O2, AES takes 4 kB more on AArch64, and decrypts 1.2 times as fast."""
_FLAGS = ("-Os", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")


@dataclass(frozen=True)
class Libraries:
    """The shared and the static form of a library; of Windows also what programs link to use the shared one."""

    shared: bytes
    static: bytes
    imports: bytes = b""


def libtenon(compiler: Compiler, target: Target) -> Libraries:
    """Raises ToolchainError for a target without an operating system, or whose C library's headers zig lacks."""
    row = hosted(target)
    names = row.format.shared_library("tenon", ABI)
    objects = {
        f"{Path(name).stem}.o": compile_source(compiler, row, "libtenon", name) for name in (*SOURCES, *_platform(row))
    }
    for name in (*TEXT, *SPEECH):
        objects[f"{Path(name).stem}.o"] = compile_source(compiler, row, ".", name, ("-ffp-contract=off",))
    if row.thread_pool:
        objects["threads.o"] = compile_source(compiler, row, ".", "threads.c")
    shared = link_shared(compiler, row, objects, names.soname, "tenon_*")
    imports = import_library(compiler, row, objects, names) if names.import_library else b""
    return Libraries(shared, compiler.archive(objects), imports)


def hosted(target: Target) -> Target:
    """The row with which libraries for its machine are compiled.

    With the headers of glibc, whose structures are at least as large as musl's, so that a library runs with both; with
    those of musl for PowerPC and riscv32. zig has none of glibc for powerpc and powerpc64; those for powerpc64le and
    riscv32 rename functions (by the format of long double, by the size of offsets) to names that musl lacks.
    Raises ToolchainError for a target that has no operating system.
    """
    if target.freestanding or not target.format.hosted or not target.c_library:
        raise ToolchainError(
            f"target {target.name} has no operating system that libtenon could use: link the bundle's object instead"
            if target.freestanding or not target.format.hosted
            else f"zig has no C library for target {target.name}: name the clang of its SDK with --compiler"
        )
    family = target.host.family if target.host else ""
    base = [row for row in targets().values() if row.triple == target.triple and row.host and row.host.family == family]
    plain = min(
        base, key=lambda row: (row.host.tuned, len(row.host.features)) if row.host else (True, 0), default=target
    )
    triple = plain.triple if plain.triple.startswith(("powerpc", "riscv32")) else plain.triple.replace("-musl", "-gnu")
    return replace(plain, triple=triple, flags=())


def compile_source(
    compiler: Compiler,
    target: Target,
    folder: str,
    name: str,
    flags: Sequence[str] = (),
    more: Mapping[str, bytes] = {},
) -> bytes:
    """The object of a C file of ``runtime/c/``."""
    files = {header: (RUNTIME / "libtenon" / header).read_bytes() for header in _HEADERS}
    files |= {
        header: (RUNTIME / header).read_bytes()
        for header in ("threads.h", *_TEXT_HEADERS, "include/tenon.h", "include/tenon_device.h")
    }
    files = {Path(file).name: content for file, content in files.items()}
    files |= {f"tengine/{name}": (RUNTIME / "include" / "tengine" / name).read_bytes() for name in TENGINE_HEADERS}
    files |= {"target_rows.h": target_rows(target).encode(), name: (RUNTIME / folder / name).read_bytes(), **more}
    own = () if target.thread_pool else ("-DTENON_NO_THREAD_POOL",)
    small = ("-Xclang", "-Oz") if compiler.zig else ()  # zig makes -Os of a plain -Oz
    speed = _FAST.get(name, small)
    if name == "digest.c" and compiler.zig and isinstance(target.format, Elf) and not target.triple.startswith("x86"):
        speed += ("-fno-unroll-loops", "-fno-vectorize")  # 64-bit products have no vectors there; 0.8 kB less
    shared = ("-DTENON_BUILD_SHARED",) if target.format.windows else target.format.direct_calls
    return compiler.compile(files, name, target, (*_FLAGS, *speed, *own, *shared, *flags))


def target_rows(target: Target) -> str:
    """The targets whose code this target's machines may execute, and the features that each asks for, with a "?" before
    those of targets that are only chosen by name."""

    def machine(triple: str) -> list[str]:
        return triple.replace("-musl", "-gnu").split("-")

    rows = [row for row in targets().values() if machine(row.triple) == machine(target.triple) and not row.freestanding]
    features = {
        row.name: "?" * row.host.tuned + " ".join(sorted(row.host.features)) if row.host else "" for row in rows
    }
    return "".join(f'TARGET_ROW("{name}", "{text}")\n' for name, text in features.items())


def platform_source(target: Target) -> str:
    """The C file with what libtenon needs of an operating system."""
    return "platform_windows.c" if target.format.windows else "platform_posix.c"


def _platform(target: Target) -> tuple[str, ...]:
    return _WINDOWS if target.format.windows else POSIX
