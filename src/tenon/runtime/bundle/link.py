"""Link libraries and executables from a network's object and the C files of ``runtime/c/``."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tenon.errors import ToolchainError
from tenon.machine.targets import Target
from tenon.machine.targets.base import ObjectFormat
from tenon.machine.toolchain import musl
from tenon.machine.toolchain.compiler import Compiler
from tenon.machine.toolchain.library_object import object_of_library
from tenon.machine.toolchain.stub_library import stub_library
from tenon.runtime.bundle.layout import layout_source
from tenon.runtime.bundle.manifest import shared_library

_RUNTIME = Path(__file__).parents[1] / "c"

_POOL = """
TenonThreadPool *{0}_thread_pool_start(TenonPhase *run, TenonNext *next, int threads) {{
  return tenon_thread_pool_start(run, next, threads);
}}
void {0}_thread_pool_run(TenonThreadPool *pool, const uint8_t *weights, uint8_t *tensors, uint8_t *activations) {{
  tenon_thread_pool_run(pool, weights, tensors, activations);
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
    *_MEMORY, "malloc", "free", "posix_memalign", "syscall", "sigfillset",
    "sched_yield", "sched_getcpu", "sched_getaffinity", "sched_setaffinity", "__sched_cpucount", "__sched_cpualloc",
    "__sched_cpufree", "__errno_location", "__errno",
)  # fmt: skip
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

_WASM_STACK = 1 << 20  # bytes; kernels keep tiles on the stack


HEADERS = tuple(sorted(path.name for path in _RUNTIME.glob("*.h")))
"""Hand-written C files that main programs and tables include."""

READERS = (
    "bmp.c", "exif.c", "image.c", "image_file.c", "image_format.c", "inflate.c", "jpeg.c", "jpeg_samples.c", "netpbm.c",
    "png.c",
)  # fmt: skip
"""Reading image files."""
IMAGES = (*READERS, "detect.c", "elements.c", "preprocess.c")
"""Images as inputs, and detections in outputs."""


def runtime(name: str) -> bytes:
    """A hand-written C file."""
    return (_RUNTIME / name).read_bytes()


def object_of(compiler: Compiler, target: Target, name: str, texts: Sequence[str], header: str) -> bytes:
    """Compile a network's translation units in parallel and link them to one object."""
    extra = ("-Wno-unused-function",) if len(texts) > 1 else ()  # each unit contains all helper functions

    def compiled(text: str) -> bytes:
        files = {f"{name}.c": text.encode(), f"{name}.h": header.encode()}
        return compiler.compile(files, f"{name}.c", target, extra)

    objects = _in_parallel(compiler, compiled, texts)
    if len(objects) == 1:
        return objects[0]
    parts = {f"piece{i}.o": content for i, content in enumerate(objects)}
    return compiler.link(parts, target, ("-r", "-nostdlib"), "out.o")


def _in_parallel(compiler: Compiler, compiled: Callable[[str], bytes], items: Sequence[str]) -> list[bytes]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return list(pool.map(compiled, items))
        except BaseException:
            compiler.stop()
            raise


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
    link several: the thread pool's functions are called ``<entry>_thread_pool_run`` and so on.  ``calls`` are the
    functions of other shared libraries that the network calls, by the names of these.
    """
    if target.object == "wasm":
        flags = ("-Wl,--no-entry", *(f"-Wl,--export={name}" for name in entries), "-Wl,--export=__heap_base",
                 f"-Wl,-z,stack-size={_WASM_STACK}", "-Wl,--strip-all")  # fmt: skip
        return link_freestanding(compiler, target, {"network.o": network}, flags)
    name, sources = entries[0], ["layout.c"]
    files = {"network.o": network, "layout.c": layout_source(name, layout).encode()}
    if threaded:
        files["threads.o"] = _thread_pool(compiler, target)
        files["threads.h"] = runtime("threads.h")
        files["pool.c"] = "".join(['#include "threads.h"\n', *map(_POOL.format, entries)]).encode()
        sources.append("pool.c")
    if target.object == "elf":
        return _elf_library(compiler, target, files, name, ("-shared", "-g0", "-O1", *sources), calls)
    return _library_of_another_system(compiler, target, files, name, ("-shared", "-g0", "-O1", *sources))


def linkable_library(compiler: Compiler, target: Target, library: bytes) -> bytes:
    """The object of a shared library's code, for a program without C library: threads cannot be started there."""
    return object_of_library(compiler, target, library, needed={*_MEMORY, *_LIBM})


def _elf_library(
    compiler: Compiler,
    target: Target,
    files: Mapping[str, bytes],
    name: str,
    flags: tuple[str, ...],
    calls: Mapping[str, tuple[str, ...]],
) -> bytes:
    stubs = {
        f"stub{i}.so": stub_library(files["network.o"], soname, functions)
        for i, (soname, functions) in enumerate({**_system_libraries(target), **calls}.items())
    }
    exports = f"{{ global: {name}; {name}_*; local: *; }};\n".encode()
    names = (f"-Wl,-soname,{shared_library(name)}", "-Wl,--version-script=exports.map")
    flags = (*flags, "-nostdlib", "-fPIC", *names, "-Wl,--as-needed", *stubs)
    files = {**files, **stubs, "exports.map": exports}
    made = compiler.link(files, target, flags)
    if not _ARITHMETIC.search(made):
        return made
    return compiler.link(files, target, (*flags, "-lcompiler_rt" if compiler.zig else "-lgcc", "-s"))


def _library_of_another_system(
    compiler: Compiler, target: Target, files: Mapping[str, bytes], name: str, flags: tuple[str, ...]
) -> bytes:
    """A library for Windows, macOS or iOS."""
    if target.object == "coff":  # Windows resolves every symbol when linking, and calls an entry point
        names = ("DllMainCRTStartup", "_DllMainCRTStartup")  # the second by zig 0.15
        entry = "".join(f"int {name}(void);\nint {name}(void) {{ return 1; }}\n" for name in names).encode()
        return link_freestanding(compiler, target, {**files, "entry.c": entry}, (*flags, "entry.c"))
    named = (*flags, "-nostdlib", "-fPIC", f"-Wl,-install_name,@rpath/lib{name}.dylib")
    if "-ios" in target.triple and compiler.zig:
        return _ios_library(compiler, target, files, named)
    return compiler.link(files, target, (*named, "-Wl,-undefined,dynamic_lookup"))


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
"""What compilers for Apple's systems call to set memory to 0."""

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


def _thread_pool(compiler: Compiler, target: Target) -> bytes:
    texts = {name: runtime(name) for name in ("threads.c", "threads.h")}
    return compiler.compile(texts, "threads.c", target)


def executable(
    compiler: Compiler,
    target: Target,
    name: str,
    network: bytes,
    header: str,
    weights: bytes,
    tables: Mapping[str, str],
    *,
    threaded: bool = False,
    takes_images: bool = True,
) -> bytes:
    """A standalone program, including the weights, that runs the network on files.  Needs an operating system.

    ``tables`` are C files by name (``bundle.preprocessing``): preprocessing of each input, format of detections.
    Without ``takes_images`` the program has no decoders of image files.
    """
    if target.freestanding or target.object == "none":
        raise ToolchainError(
            f"target {target.name} has no operating system to run an executable on: leave out --emit exe and link "
            f"{name}.o into your firmware or page"
        )
    if compiler.zig and not target.c_library:
        raise ToolchainError(
            f"zig has no C library for target {target.name}: leave out --emit exe and link {name}.o or the library "
            "into your application, or name the clang of its SDK with --compiler"
        )
    parts = name, network, header, weights
    objects = program_objects(compiler, target, "main.c", *parts, threaded=threaded)
    objects |= table_objects(compiler, target, tables)
    images = (*IMAGES, "program_images.c") if takes_images else ("elements.c", "image_format.c", "no_images.c")
    system = ("windows.c",) if target.object == "coff" else ()
    objects |= runtime_objects(compiler, target, (*images, "labels.c", "messages.c", *system))
    maths = () if target.object == "coff" else ("-lm",)
    used = "-Wl,-dead_strip" if target.object == "macho" else "-Wl,--gc-sections"
    made = _with_part_of_c_library(compiler, target, objects) or compiler.link(
        objects, target, (*maths, "-s", used, *(("-pthread",) if threaded else ()))
    )
    compiler.keep_c_library(target)
    return made


def _with_part_of_c_library(compiler: Compiler, target: Target, objects: Mapping[str, bytes]) -> bytes | None:
    """The program linked with the functions that it calls; None where zig has to build the whole C library, which
    takes three times as long."""
    if not musl.available(compiler, target):
        return None
    try:
        whole = {**objects, **musl.c_library(compiler, target)}
        return compiler.link(whole, target, ("-s", "-Wl,--gc-sections", *musl.LINK_FLAGS))
    except ToolchainError:
        return None


def table_objects(compiler: Compiler, target: Target, tables: Mapping[str, str]) -> dict[str, bytes]:
    """The objects of C files with tables, by name without ending."""
    headers = {name: runtime(name) for name in HEADERS}
    return {
        f"{name}.o": compiler.compile({**headers, f"{name}.c": text.encode()}, f"{name}.c", target)
        for name, text in tables.items()
    }


def runtime_objects(compiler: Compiler, target: Target, sources: Sequence[str]) -> dict[str, bytes]:
    """The objects of hand-written C files, by name, whose floating-point results are the same on all targets."""
    headers = {name: runtime(name) for name in HEADERS}

    def compiled(source: str) -> bytes:
        return compiler.compile({**headers, source: runtime(source)}, source, target, ("-ffp-contract=off",))

    objects = _in_parallel(compiler, compiled, sources)
    return {f"{Path(source).stem}.o": content for source, content in zip(sources, objects, strict=True)}


def program_objects(
    compiler: Compiler,
    target: Target,
    main: str,
    name: str,
    network: bytes,
    header: str,
    weights: bytes,
    *,
    threaded: bool = False,
    flags: tuple[str, ...] = (),
) -> dict[str, bytes]:
    """The objects of a program: ``main`` from ``runtime/c/``, compiled with ``flags``, the network, its weights, and
    with ``threaded`` the thread pool."""
    texts = {file: runtime(file) for file in (main, "network.c", *HEADERS)}
    files = {**texts, f"{name}.h": header.encode()}
    flags = (*flags, *(("-DTENON_THREAD_POOL",) if threaded else ()))
    names = (f'-DTENON_HEADER="{name}.h"', f"-DTENON_ENTRY={name}", f"-DTENON_PREFIX={name.upper()}_")
    return {
        "main.o": compiler.compile(texts, main, target, (*flags, "-ffp-contract=off")),
        "bundle.o": compiler.compile(files, "network.c", target, (*names, *flags)),
        "network.o": network,
        "weights.o": weights_object(compiler, target, weights),
        **({"threads.o": _thread_pool(compiler, target)} if threaded else {}),
    }


def web_module(
    compiler: Compiler,
    target: Target,
    name: str,
    network: bytes,
    header: str,
    weights: bytes,
    tables: Mapping[str, str],
) -> bytes:
    """A WebAssembly module with the weights inside that takes images and arrays (``runtime/c/web.c``); ``tables`` as
    for ``executable``."""
    if target.object != "wasm":
        raise ToolchainError(f"target {target.name} is not WebAssembly: pages and npm packages take --target wasm32")
    # Headers of a C library, none of whose functions are linked: web_library.c defines those that are called.
    hosted = replace(target, triple=target.triple.replace("freestanding", "wasi"))
    objects = program_objects(compiler, hosted, "web.c", name, network, header, weights)
    objects |= table_objects(compiler, hosted, tables)
    objects |= runtime_objects(compiler, hosted, (*IMAGES, "web_library.c"))
    flags = ("-Wl,--no-entry", f"-Wl,-z,stack-size={_WASM_STACK}", "-Wl,--strip-all")
    return link_freestanding(compiler, target, objects, flags)


_WEIGHTS_SECTION: dict[ObjectFormat, tuple[str, str]] = {
    "elf": ('.section .rodata.{symbol},"a"', ""),
    "wasm": ('.section .rodata.{symbol},"",@', ""),
    "coff": ('.section .rdata,"dr"', ""),
    "macho": (".section __TEXT,__const", "_"),
}
"""Where constants lie, and what C's names begin with in assembly, by object format."""


def weights_object(compiler: Compiler, target: Target, weights: bytes, symbol: str = "tenon_weights") -> bytes:
    """An object whose read-only ``symbol`` is the constant region.

    The digest in the source is for compilation caches, which do not see the file included by the assembler.
    """
    section, begin = _WEIGHTS_SECTION[target.object]
    size = f".size {symbol}, {len(weights) + 1}" if target.object == "wasm" else ""
    lines = [
        section.format(symbol=symbol),
        ".p2align 6",
        f".globl {begin}{symbol}",
        f"{begin}{symbol}:",
        '.incbin "weights.bin"',
        ".byte 0",
        *([size] if size else []),
        ".text",
    ]
    text = "".join(json.dumps(f"{line}\n") for line in lines)
    source = f"/* {hashlib.sha256(weights).hexdigest()} */\n__asm__({text});\n"
    return compiler.compile({"weights.c": source.encode(), "weights.bin": weights}, "weights.c", target)


def link_freestanding(
    compiler: Compiler, target: Target, objects: Mapping[str, bytes], flags: tuple[str, ...]
) -> bytes:
    """Link without a C library; ``runtime/c/memory.c`` defines memcpy and similar functions.

    zig's compiler_rt implements arithmetic that small processors lack.  Building it takes seconds per target, so it is
    linked only if linking without it fails.  For a board it is built for the board's processor: the generic build uses
    registers that small floating-point units lack.
    """
    memory = compiler.compile({"memory.c": runtime("memory.c")}, "memory.c", target, ("-fno-builtin",))
    whole = {**objects, "memory.o": memory}
    flags = ("-nostdlib", "-Wl,--gc-sections", *flags)
    try:
        return compiler.link(whole, target, flags)
    except ToolchainError as error:
        if "undefined symbol" not in str(error):
            raise
    exact = (f"-mcpu={target.cpu}",) if target.linker_script or target.below_baseline else ()
    return compiler.link(whole, target, (*flags, *exact, "-lcompiler_rt"))
