"""Shared libraries of the SDK and programs over them: how they are linked for each object format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from types import MappingProxyType

from tenon.errors import InternalError, ToolchainError
from tenon.machine.object_formats import ObjectFormat, SharedLibrary
from tenon.machine.object_formats.coff import Coff
from tenon.machine.object_formats.elf import Elf
from tenon.machine.object_formats.macho import MachO
from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler
from tenon.machine.toolchain.musl import start_object
from tenon.machine.toolchain.stub_library import stub_library

_RUNTIME = Path(__file__).parents[1] / "c"


@dataclass(frozen=True)
class _LinkInputs:
    """The input of the linker: ``objects``, and the shared ``libraries`` that they need, by file name."""

    compiler: Compiler
    target: Target
    objects: Mapping[str, bytes]
    libraries: Mapping[str, bytes]

    @property
    def files(self) -> dict[str, bytes]:
        return {**self.objects, **self.libraries}


def link_shared(
    compiler: Compiler,
    target: Target,
    objects: Mapping[str, bytes],
    soname: str,
    exports: str,
    libraries: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """A shared library that exports what ``exports`` matches; ``libraries`` are others that it needs, by file name."""
    return _shared(target.format, _LinkInputs(compiler, target, objects, libraries), soname, exports)


@singledispatch
def _shared(format: ObjectFormat, parts: _LinkInputs, soname: str, exports: str) -> bytes:
    """The shared library for an object format."""
    raise InternalError(f"{type(format).__name__} has no shared libraries")


@_shared.register
def _(format: Coff, parts: _LinkInputs, soname: str, exports: str) -> bytes:
    flags = ("-shared", "-g0", "-s", "-Wl,--gc-sections", *parts.libraries)
    return parts.compiler.link(parts.files, parts.target, flags, soname)


@_shared.register
def _(format: MachO, parts: _LinkInputs, soname: str, exports: str) -> bytes:
    names = (f"-Wl,-install_name,@rpath/{soname}", "-Wl,-rpath,@loader_path", "-Wl,-dead_strip")
    return parts.compiler.link(parts.files, parts.target, ("-shared", "-g0", *names, *parts.libraries))


@_shared.register
def _(format: Elf, parts: _LinkInputs, soname: str, exports: str) -> bytes:
    compiler, target = parts.compiler, parts.target
    stubs = system_stubs(next(iter(parts.objects.values())))
    names = (f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN", "-Wl,--version-script=exports.map")
    hashes = "sysv" if target.triple.startswith("mips") else "gnu"  # whose order of symbols the ABI of MIPS excludes
    kept = ("-Wl,-z,defs", "-Wl,-z,nodelete", f"-Wl,--hash-style={hashes}", "-Wl,--as-needed")
    kind = ("-shared", "-g0", "-s", "-Wl,--gc-sections", "-nostdlib", "-fPIC")
    flags = (*kind, *names, *kept, *stubs, *parts.libraries)
    script = f"{{ global: {exports};{'' if exports == '*' else ' local: *;'} }};\n".encode()
    files = {**parts.objects, **stubs, **parts.libraries, "exports.map": script}
    try:
        return compiler.link(files, target, flags)
    except ToolchainError as error:
        if "undefined symbol: __" not in str(error):
            raise
    return compiler.link(files, target, (*flags, "-lcompiler_rt"))  # arithmetic that small processors lack


def import_library(compiler: Compiler, target: Target, objects: Mapping[str, bytes], names: SharedLibrary) -> bytes:
    """The import library that programs for Windows link to use a shared library of these objects."""
    names_of = ("-shared", "-g0", "-s", f"-Wl,--out-implib,{names.link}", "-o", names.file)
    own = [name for name in objects if name.endswith(".o")]
    return compiler.run(objects, (*compiler.target_flags(target), *own, *names_of), names.link, named_by="")


def system_stubs(like: bytes) -> dict[str, bytes]:
    """Stubs of the system's libraries, with the functions in ``system_functions.txt``, for the machine of the object
    ``like``."""
    stubs: dict[str, bytes] = {}
    for block in (_RUNTIME / "libtenon" / "system_functions.txt").read_text().split("\n\n")[1:]:
        library, names = block.split(":", 1)
        stubs[f"stub{len(stubs)}.so"] = stub_library(like, library, tuple(names.split()))
    return stubs


def link_program(
    compiler: Compiler, target: Target, objects: Mapping[str, bytes], libraries: Mapping[str, bytes]
) -> bytes:
    """A program that finds the shared ``libraries``, by file name, in the folder lib beside its own."""
    return _program(target.format, _LinkInputs(compiler, target, objects, libraries))


@singledispatch
def _program(format: ObjectFormat, parts: _LinkInputs) -> bytes:
    """The program for an object format."""
    return parts.compiler.link(parts.files, parts.target, ("-g0", "-s", *parts.libraries))


@_program.register
def _(format: MachO, parts: _LinkInputs) -> bytes:
    flags = ("-g0", "-s", "-Wl,-rpath,@loader_path/../lib", *parts.libraries)
    return parts.compiler.link(parts.files, parts.target, flags)


@_program.register
def _(format: Elf, parts: _LinkInputs) -> bytes:
    compiler, target = parts.compiler, parts.target
    flags = ("-g0", "-s")
    options = ("-Wl,-rpath,$ORIGIN/../lib", "-Wl,--allow-shlib-undefined", "-Wl,--gc-sections", *parts.libraries)
    if target.triple.startswith("powerpc64le"):  # the libraries run with glibc and musl, a program with one of them
        target = replace(target, triple="powerpc64le-linux-gnu")
        file = "start_powerpc64le.S"
        files = {file: (_RUNTIME / file).read_bytes()}
        start: bytes | None = compiler.run(files, (*compiler.target_flags(target), "-c", file), "start.o")
    else:
        start = start_object(compiler, target)
    if start is None:
        return compiler.link(parts.files, target, (*flags, *options))
    stubs = system_stubs(start)
    files = {"start.o": start, **parts.objects, **stubs, **parts.libraries}
    return compiler.link(files, target, (*flags, "-nostdlib", *options, *stubs, "-lcompiler_rt"))
