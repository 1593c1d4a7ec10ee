"""Shared libraries and WebAssembly modules of networks: how they are linked for each object format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from types import MappingProxyType

from tenon.errors import InternalError, ToolchainError
from tenon.machine.object_formats import ObjectFormat
from tenon.machine.object_formats.coff import Coff
from tenon.machine.object_formats.elf import Elf
from tenon.machine.object_formats.macho import MachO
from tenon.machine.object_formats.wasm import Wasm
from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler
from tenon.machine.toolchain.library_object import object_of_library
from tenon.machine.toolchain.stub_library import stub_library
from tenon.runtime.bundle.layout import layout_source
from tenon.runtime.bundle.link import WASM_STACK, link_freestanding, runtime, thread_pool

_POOL = """
TenonThreadPool *{0}_thread_pool_start(TenonPhase *run, TenonNext *next, int threads) {{
  return tenon_thread_pool_start(run, next, threads);
}}
int {0}_thread_pool_run_once(
  TenonThreadPool *pool, const uint8_t *weights, uint8_t *tensors, uint8_t *activations
) {{
  return tenon_thread_pool_run(pool, weights, tensors, activations);
}}
void {0}_thread_pool_watch(TenonThreadPool *pool, TenonWatch *watch, void *context) {{
  tenon_thread_pool_watch(pool, watch, context);
}}
void {0}_thread_pool_stop(TenonThreadPool *pool) {{ tenon_thread_pool_stop(pool); }}
"""
"""The functions of ``runtime/c/threads.h`` under names that begin with an entry point's."""

_MEMORY = ("memcpy", "memmove", "memset", "memcmp")
"""Functions of ``runtime/c/memory.c``."""

_LIBC = (
    *_MEMORY,
    "malloc",
    "free",
    "posix_memalign",
    "syscall",
    "sigfillset",
    "sched_yield",
    "sched_getcpu",
    "sched_getaffinity",
    "sched_setaffinity",
    "__sched_cpucount",
    "__sched_cpualloc",
    "__sched_cpufree",
    "__errno_location",
    "__errno",
)
_PTHREAD = tuple(
    f"pthread_{name}"
    for name in ("attr_init", "attr_destroy", "attr_setstacksize", "create", "join", "sigmask", "setaffinity_np")
)
_LIBM = tuple(
    f"{name}{end}"
    for name in ("sqrt", "floor", "ceil", "trunc", "fma", "fmod", "rint", "round", "nearbyint", "fmin", "fmax")
    for end in ("", "f")
)

_ARITHMETIC = re.compile(
    rb"\0__(aeabi_(u?[il]|[dfh])|u?(div|mod)[dst]i|(add|sub|mul|div|fix|float|trunc|extend)\w*[dsth]f)"
)
"""The beginnings of names of functions that compilers call for arithmetic that a processor lacks.  Shared libraries of
C do not offer them."""


@dataclass(frozen=True)
class _LibraryParts:
    """The parts that a library is linked from; the fields are the arguments of ``library``."""

    compiler: Compiler
    target: Target
    entries: Sequence[str]
    network: bytes
    layout: str
    threaded: bool
    calls: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.entries[0]


def library(
    compiler: Compiler,
    target: Target,
    entries: Sequence[str],
    network: bytes,
    layout: str,
    *,
    threaded: bool = False,
    calls: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> bytes:
    """A shared library, or a WebAssembly module that exports the entry points, its memory and __heap_base.

    Neither contains weights.  The module needs nothing; the shared library needs the system's C library if its code
    calls it.  The shared library also contains the text of ``layout`` and, if ``threaded``, the thread pool of
    ``runtime/c/threads.h``.  All that it exports begins with the name of the first entry point, so that a program can
    link several: the thread pool's functions are called ``<entry>_thread_pool_start`` and so on.  ``calls`` are the
    functions of other shared libraries that the network calls, by the names of these.
    """
    return _linked(target.format, _LibraryParts(compiler, target, entries, network, layout, threaded, calls))


@singledispatch
def _linked(format: ObjectFormat, parts: _LibraryParts) -> bytes:
    """The library for an object format."""
    raise InternalError(f"{type(format).__name__} has no libraries")


@_linked.register
def _(format: Wasm, parts: _LibraryParts) -> bytes:
    exports = (*(f"-Wl,--export={name}" for name in parts.entries), "-Wl,--export=__heap_base")
    flags = ("-Wl,--no-entry", *exports, f"-Wl,-z,stack-size={WASM_STACK}", "-Wl,--strip-all")
    return link_freestanding(parts.compiler, parts.target, {"network.o": parts.network}, flags)


@_linked.register
def _(format: Elf, parts: _LibraryParts) -> bytes:
    name, (files, flags) = parts.name, _files(parts)
    stubs = {
        f"stub{i}.so": stub_library(parts.network, soname, functions)
        for i, (soname, functions) in enumerate({**_system_libraries(parts.target), **parts.calls}.items())
    }
    exports = f"{{ global: {name}; {name}_*; local: *; }};\n".encode()
    names = (f"-Wl,-soname,{format.library_name(name)}", "-Wl,--version-script=exports.map")
    flags = (*flags, "-nostdlib", "-fPIC", *names, "-Wl,--as-needed", *stubs)
    files = {**files, **stubs, "exports.map": exports}
    made = parts.compiler.link(files, parts.target, flags)
    if not _ARITHMETIC.search(made):
        return made
    arithmetic = "-lcompiler_rt" if parts.compiler.zig else "-lgcc"
    return parts.compiler.link(files, parts.target, (*flags, arithmetic, "-s"))


@_linked.register
def _(format: Coff, parts: _LibraryParts) -> bytes:
    """Windows resolves every symbol when linking, and calls an entry point."""
    files, flags = _files(parts)
    names = ("DllMainCRTStartup", "_DllMainCRTStartup")  # the second by zig 0.15
    entry = "".join(f"int {name}(void);\nint {name}(void) {{ return 1; }}\n" for name in names).encode()
    return link_freestanding(parts.compiler, parts.target, {**files, "entry.c": entry}, (*flags, "entry.c"))


@_linked.register
def _(format: MachO, parts: _LibraryParts) -> bytes:
    files, flags = _files(parts)
    named = (*flags, "-nostdlib", "-fPIC", f"-Wl,-install_name,@rpath/{format.library_name(parts.name)}")
    if "-ios" in parts.target.triple and parts.compiler.zig:
        return _ios_library(parts.compiler, parts.target, files, named)
    return parts.compiler.link(files, parts.target, (*named, "-Wl,-undefined,dynamic_lookup"))


def _files(parts: _LibraryParts) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of a shared library, and the flags that link them."""
    files = {"network.o": parts.network, "layout.c": layout_source(parts.name, parts.layout).encode()}
    sources = ["layout.c"]
    if parts.threaded:
        files["threads.o"] = thread_pool(parts.compiler, parts.target)
        files["threads.h"] = runtime("threads.h")
        files["pool.c"] = "".join(['#include "threads.h"\n', *map(_POOL.format, parts.entries)]).encode()
        sources.append("pool.c")
    return files, ("-shared", "-g0", "-O1", *sources)


def _ios_library(compiler: Compiler, target: Target, files: Mapping[str, bytes], flags: tuple[str, ...]) -> bytes:
    """A library for iOS that calls no other one: zig has no system library for it (until 0.16 it asks for one), and the
    linker of zig 0.17 crashes on symbols that are found when the library is loaded."""
    hidden = ("-fno-builtin", "-fvisibility=hidden")
    own = {"memory.c": runtime("memory.c"), "zeros.c": _ZEROS}
    memory, zeros = (compiler.compile(own, name, target, hidden) for name in own)
    files = {**files, "system/libSystem.tbd": _IOS_SYSTEM, "zeros.o": zeros}
    flags = (*flags, "-Lsystem", "-Wl,-dead_strip")
    try:
        return compiler.link({**files, "memory.o": memory}, target, flags)
    except ToolchainError as error:
        if "undefined symbol" not in str(error):
            raise
    return compiler.link(files, target, (*flags, "-lcompiler_rt"))  # which has the functions of memory.c too


_ZEROS = b"""#include <stddef.h>
void *memset(void *to, int value, size_t count);
void bzero(void *to, size_t count);
void bzero(void *to, size_t count) { memset(to, 0, count); }
"""
"""The functions that compilers for Apple's systems call to set memory to 0."""

_IOS_SYSTEM = b"""--- !tapi-tbd
tbd-version: 4
targets: [ arm64-ios ]
install-name: '/usr/lib/libSystem.B.dylib'
exports:
  - targets: [ arm64-ios ]
    symbols: [ dyld_stub_binder ]
...
"""
"""The system library of iOS, as text, without the functions in it."""


def _system_libraries(target: Target) -> dict[str, tuple[str, ...]]:
    """The functions that libraries can call, by the names under which the target's loader knows their libraries.

    musl's takes the names of glibc's for its own.
    """
    if "android" in f"{target.name} {target.triple}":
        return {"libc.so": (*_LIBC, *_PTHREAD), "libm.so": _LIBM}
    return {"libc.so.6": _LIBC, "libpthread.so.0": _PTHREAD, "libm.so.6": _LIBM}


def linkable_library(compiler: Compiler, target: Target, library: bytes) -> bytes:
    """The object of a shared library's code, for a program without C library: threads cannot be started there."""
    return object_of_library(compiler, target, library, needed={*_MEMORY, *_LIBM})
