"""``libmace``: MACE's C++ API over libtenon (``runtime/c/mace``, and the classes in ``runtime/c/include/mace``), and
the command ``mace_run``."""

from __future__ import annotations

from pathlib import Path

from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler
from tenon.runtime.sdk.libtenon import ABI, RUNTIME, compile_source, hosted, platform_source
from tenon.runtime.sdk.linking import link_program, link_shared

_ALL = sorted(path.name for path in (RUNTIME / "mace").iterdir())
PROGRAM = tuple(name for name in _ALL if name.startswith("mace_run") and name.endswith(".c"))
SOURCES = tuple(name for name in _ALL if name.endswith(".c") and name not in PROGRAM)
_INCLUDE = RUNTIME / "include"
HEADERS = tuple(sorted(str(path.relative_to(_INCLUDE)) for path in (_INCLUDE / "mace").rglob("*.h")))


def library_name(target: Target) -> str:
    """The file name of the shared library."""
    return target.format.library_name("mace") or ""


def mace_library(compiler: Compiler, target: Target, libtenon: bytes) -> bytes:
    """The shared library, which needs the ``libtenon`` beside it: that library, or what is linked to use it."""
    row = hosted(target)
    objects = {f"{Path(name).stem}.o": _compiled(compiler, row, name) for name in SOURCES}
    objects["platform.o"] = compile_source(compiler, row, "libtenon", platform_source(row))
    names = row.format.shared_library("tenon", ABI)
    beside = names.link if names.import_library else names.file
    return link_shared(compiler, row, objects, library_name(row), "mace_core_*", {beside: libtenon})


def mace_run(compiler: Compiler, target: Target, library: bytes) -> bytes:
    """The command, which needs libtenon and the ``library`` of ``mace_library`` in the folder lib beside its own.

    Not for Windows: what is linked to use a DLL is made only for libtenon.
    """
    row = hosted(target)
    objects = {f"{Path(name).stem}.o": _compiled(compiler, row, name) for name in PROGRAM}
    return link_program(compiler, row, objects, {library_name(row): library})


def _compiled(compiler: Compiler, row: Target, name: str) -> bytes:
    folder = RUNTIME / "mace"
    headers = {header: (folder / header).read_bytes() for header in _ALL if header.endswith(".h")}
    headers["mace_core.h"] = (_INCLUDE / "mace" / "public" / "mace_core.h").read_bytes()
    return compile_source(compiler, row, "mace", name, ("-I.",), headers)
