"""Compile and link libtenon (``runtime/c/libtenon``) for a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from tenon.errors import ToolchainError
from tenon.machine.targets import Target, targets
from tenon.machine.toolchain.compiler import Compiler
from tenon.machine.toolchain.musl import start_object
from tenon.machine.toolchain.stub_library import stub_library

ABI = 1
"""TENON_ABI_VERSION of tenon.h."""

RUNTIME = Path(__file__).parents[1] / "c"
_ALL = sorted(path.name for path in (RUNTIME / "libtenon").iterdir())
POSIX = tuple(name for name in _ALL if name.endswith("_posix.c"))
_WINDOWS = tuple(name for name in _ALL if name.endswith("_windows.c"))
SOURCES = tuple(name for name in _ALL if name.endswith(".c") and name not in (*POSIX, *_WINDOWS))
"""The files of libtenon for every system, besides those for one."""
_HEADERS = tuple(name for name in _ALL if name.endswith(".h"))
TENGINE_HEADERS = ("c_api.h", "defines.h")
_FAST = {"aes_gcm.c": (), "digest.c": ("-O2",), "threads.c": ("-O2",)}
"""What is not compiled for the least size. With -O2, AES takes 4 kB more on AArch64, and decrypts 1.2 times as fast."""
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
    names = file_names(row)
    objects = {
        f"{Path(name).stem}.o": compile_source(compiler, row, "libtenon", name) for name in (*SOURCES, *_platform(row))
    }
    if row.thread_pool:
        objects["threads.o"] = compile_source(compiler, row, ".", "threads.c")
    shared = link_shared(compiler, row, objects, names.soname, "tenon_*")
    imports = import_library(compiler, row, objects, names) if row.object == "coff" else b""
    return Libraries(shared, compiler.archive(objects), imports)


@dataclass(frozen=True)
class FileNames:
    """Of the shared library: the file, the name that programs load it by, and that by which they are linked."""

    file: str
    soname: str
    link: str


def file_names(target: Target, name: str = "tenon", abi: int = ABI) -> FileNames:
    if target.object == "coff":
        return FileNames(f"{name}.dll", f"{name}.dll", f"lib{name}.dll.a")
    if target.object == "macho":
        return FileNames(f"lib{name}.{abi}.dylib", f"lib{name}.{abi}.dylib", f"lib{name}.dylib")
    return FileNames(f"lib{name}.so.{abi}", f"lib{name}.so.{abi}", f"lib{name}.so")


def hosted(target: Target) -> Target:
    """The row with which libraries for its machine are compiled.

    With the headers of glibc, whose structures are at least as large as musl's, so that a library runs with both; with
    those of musl for PowerPC and riscv32. zig has none of glibc for powerpc and powerpc64; those for powerpc64le and
    riscv32 rename functions (by the format of long double, by the size of offsets) to names that musl lacks.
    Raises ToolchainError for a target that has no operating system.
    """
    if target.freestanding or target.object in ("wasm", "none") or not target.c_library:
        raise ToolchainError(
            f"target {target.name} has no operating system that libtenon could use: link the bundle's object instead"
            if target.freestanding or target.object in ("wasm", "none")
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
        header: (RUNTIME / header).read_bytes() for header in ("threads.h", "include/tenon.h", "include/tenon_device.h")
    }
    files = {Path(file).name: content for file, content in files.items()}
    files |= {f"tengine/{name}": (RUNTIME / "include" / "tengine" / name).read_bytes() for name in TENGINE_HEADERS}
    files |= {"target_rows.h": target_rows(target).encode(), name: (RUNTIME / folder / name).read_bytes(), **more}
    own = () if target.thread_pool else ("-DTENON_NO_THREAD_POOL",)
    small = ("-Xclang", "-Oz") if compiler.zig else ()  # zig makes -Os of a plain -Oz
    speed = _FAST.get(name, small)
    if name == "digest.c" and compiler.zig and target.object == "elf" and not target.triple.startswith("x86"):
        speed += ("-fno-unroll-loops", "-fno-vectorize")  # 64-bit products have no vectors there; 0.8 kB less
    shared = ("-DTENON_BUILD_SHARED",) if target.object == "coff" else ()
    if target.object == "elf":
        shared = ("-fno-semantic-interposition",)  # a library calls its own public functions directly
    return compiler.compile(files, name, target, (*_FLAGS, *speed, *own, *shared, *flags))


def target_rows(target: Target) -> str:
    """The targets whose code this target's machines may execute, and the features that each asks for."""

    def machine(triple: str) -> list[str]:
        return triple.replace("-musl", "-gnu").split("-")

    rows = [row for row in targets().values() if machine(row.triple) == machine(target.triple) and not row.freestanding]
    features = {row.name: " ".join(sorted(row.host.features)) if row.host else "" for row in rows}
    return "".join(f'TARGET_ROW("{name}", "{text}")\n' for name, text in features.items())


def link_shared(
    compiler: Compiler,
    target: Target,
    objects: Mapping[str, bytes],
    soname: str,
    exports: str,
    libraries: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """A shared library that exports what ``exports`` matches; ``libraries`` are others that it needs, by file name."""
    flags: tuple[str, ...] = ("-shared", "-g0", "-s", "-Wl,--gc-sections")
    if target.object == "coff":
        return compiler.link({**objects, **libraries}, target, (*flags, *libraries), soname)
    if target.object == "macho":
        names = (f"-Wl,-install_name,@rpath/{soname}", "-Wl,-rpath,@loader_path", "-Wl,-dead_strip")
        return compiler.link({**objects, **libraries}, target, ("-shared", "-g0", *names, *libraries))
    stubs = system_stubs(next(iter(objects.values())))
    names = (f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN", "-Wl,--version-script=exports.map")
    hashes = "sysv" if target.triple.startswith("mips") else "gnu"  # whose order of symbols the ABI of MIPS excludes
    kept = ("-Wl,-z,defs", "-Wl,-z,nodelete", f"-Wl,--hash-style={hashes}", "-Wl,--as-needed")
    flags = (*flags, "-nostdlib", "-fPIC", *names, *kept, *stubs, *libraries)
    files = {
        **objects,
        **stubs,
        **libraries,
        "exports.map": f"{{ global: {exports};{'' if exports == '*' else ' local: *;'} }};\n".encode(),
    }
    try:
        return compiler.link(files, target, flags)
    except ToolchainError as error:
        if "undefined symbol: __" not in str(error):
            raise
    return compiler.link(files, target, (*flags, "-lcompiler_rt"))  # arithmetic that small processors lack


def import_library(compiler: Compiler, target: Target, objects: Mapping[str, bytes], names: FileNames) -> bytes:
    """What programs for Windows link to use a shared library of these objects."""
    names_of = ("-shared", "-g0", "-s", f"-Wl,--out-implib,{names.link}", "-o", names.file)
    own = [name for name in objects if name.endswith(".o")]
    return compiler.run(objects, (*compiler.target_flags(target), *own, *names_of), names.link, named_by="")


def platform_source(target: Target) -> str:
    """The C file with what libtenon needs of an operating system."""
    return "platform_windows.c" if target.object == "coff" else "platform_posix.c"


def _platform(target: Target) -> tuple[str, ...]:
    return _WINDOWS if target.object == "coff" else POSIX


def system_stubs(like: bytes) -> dict[str, bytes]:
    """Stubs of the system's libraries, with the functions in ``system_functions.txt``, for the machine of the object
    ``like``."""
    stubs: dict[str, bytes] = {}
    for block in (RUNTIME / "libtenon" / "system_functions.txt").read_text().split("\n\n")[1:]:
        library, names = block.split(":", 1)
        stubs[f"stub{len(stubs)}.so"] = stub_library(like, library, tuple(names.split()))
    return stubs


def link_program(
    compiler: Compiler, target: Target, objects: Mapping[str, bytes], libraries: Mapping[str, bytes]
) -> bytes:
    """A program that finds the shared ``libraries``, by file name, in the folder lib beside its own."""
    flags: tuple[str, ...] = ("-g0", "-s")
    if target.object != "elf":
        flags += ("-Wl,-rpath,@loader_path/../lib",) if target.object == "macho" else ()
        return compiler.link({**objects, **libraries}, target, (*flags, *libraries))
    found = ("-Wl,-rpath,$ORIGIN/../lib", "-Wl,--allow-shlib-undefined", "-Wl,--gc-sections", *libraries)
    if target.triple.startswith("powerpc64le"):  # the libraries run with glibc and musl, a program with one of them
        target = replace(target, triple="powerpc64le-linux-gnu")
        file = "start_powerpc64le.S"
        files = {file: (RUNTIME / file).read_bytes()}
        start: bytes | None = compiler.run(files, (*compiler.target_flags(target), "-c", file), "start.o")
    else:
        start = start_object(compiler, target)
    if start is None:
        return compiler.link({**objects, **libraries}, target, (*flags, *found))
    stubs = system_stubs(start)
    files = {"start.o": start, **objects, **stubs, **libraries}
    return compiler.link(files, target, (*flags, "-nostdlib", *found, *stubs, "-lcompiler_rt"))
