"""``libtengine-lite``: the C API of Tengine over libtenon (``runtime/tengine``)."""

from __future__ import annotations

from pathlib import Path

from tenon.sdk.libtenon import RUNTIME, compile_source, file_names, hosted, link_shared, platform_source
from tenon.targets import Target
from tenon.toolchain.compiler import Compiler

SOURCES = ("graph.c", "library.c", "stubs.c", "tensor.c")
HEADERS = ("tengine/c_api.h", "tengine/defines.h", "tengine_c_api.h", "tengine_cpp_api.h")


def library_name(target: Target) -> str:
    """The file name of the shared library."""
    return {"elf": "libtengine-lite.so", "macho": "libtengine-lite.dylib", "coff": "tengine-lite.dll"}[target.object]


def tengine_library(compiler: Compiler, target: Target, libtenon: bytes) -> bytes:
    """The shared library, which needs the ``libtenon`` beside it: that library, or what is linked to use it."""
    row = hosted(target)
    header = {"graph.h": (RUNTIME / "tengine" / "graph.h").read_bytes()}
    objects = {
        f"{Path(name).stem}.o": compile_source(compiler, row, "tengine", name, ("-I.",), header) for name in SOURCES
    }
    objects["handle.o"] = compile_source(compiler, row, "libtenon", "handle.c")
    objects["platform.o"] = compile_source(compiler, row, "libtenon", platform_source(row))
    names = file_names(row)
    beside = names.link if row.object == "coff" else names.file
    return link_shared(compiler, row, objects, library_name(row), "*", {beside: libtenon})
