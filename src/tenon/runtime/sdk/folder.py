"""A folder with libtenon for a target: include/, lib/, and the files that pkg-config and CMake look for."""

from __future__ import annotations

from pathlib import Path

from tenon import __version__
from tenon.atomic_write import created_folder, fresh_folder, remove_folder
from tenon.errors import InputError
from tenon.machine.targets import Target, find
from tenon.machine.toolchain.compiler import find as find_compiler
from tenon.options import Options
from tenon.runtime.bundle.packages.cmake import VERSION_FILE
from tenon.runtime.sdk import mace, tengine
from tenon.runtime.sdk.libtenon import ABI, RUNTIME, libtenon

_MARK = "share/tenon/sdk.txt"
"""The file by which an older SDK is known, that a new one may replace."""

_PKG_CONFIG = """\
prefix=${pcfiledir}/../..
includedir=${prefix}/include
libdir=${prefix}/lib

Name: tenon
Description: Runs compiled neural networks
Version: @VERSION@
Cflags: -I${includedir}
Libs: -L${libdir} -ltenon
Libs.private: @PRIVATE@
"""

_CMAKE = """\
# find_package(tenon) gives the targets tenon::tenon (shared) and tenon::static.
if(NOT TARGET tenon::tenon)
  get_filename_component(_tenon_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(tenon::tenon SHARED IMPORTED)
  set_target_properties(tenon::tenon PROPERTIES
    IMPORTED_LOCATION "${_tenon_prefix}/lib/@SHARED@"@IMPORT@
    INTERFACE_INCLUDE_DIRECTORIES "${_tenon_prefix}/include")
  add_library(tenon::static STATIC IMPORTED)
  set_target_properties(tenon::static PROPERTIES
    IMPORTED_LOCATION "${_tenon_prefix}/lib/libtenon.a"
    INTERFACE_COMPILE_DEFINITIONS TENON_STATIC
    INTERFACE_LINK_LIBRARIES "@LIBRARIES@"
    INTERFACE_INCLUDE_DIRECTORIES "${_tenon_prefix}/include")
  unset(_tenon_prefix)
endif()
"""


def save_sdk(folder: str | Path, target: str = "host", options: Options | None = None) -> Path:
    """Build libtenon for a target's machines and write it with its headers; an SDK that is there is replaced.

    Raises InputError if the folder holds something else or cannot be written, ToolchainError if libtenon
    cannot be built.
    """
    out = Path(folder).resolve()
    _refuse_foreign(out)
    row = find(target)
    files, links = _files(row, options or Options.from_environment())
    try:
        with created_folder(out.parent), fresh_folder(out.parent, ".tenon-") as fresh:
            for name, content in files.items():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).write_bytes(content)
                (fresh / name).chmod(0o755 if name.startswith("bin/") else 0o644)
            for name, to in links.items():
                (fresh / name).symlink_to(to)
            remove_folder(out)
            fresh.rename(out)
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror or error}: choose another folder, or make room"
        ) from error
    return out


def _files(row: Target, options: Options) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files by path, and symbolic links with what they point to."""
    compiler = find_compiler(options)
    library, names = libtenon(compiler, row), row.format.shared_library("tenon", ABI)
    headers = {
        f"include/{name}": (RUNTIME / "include" / name).read_bytes()
        for name in ("tenon.h", "tenon.hpp", "tenon_device.h", *tengine.HEADERS, *mace.HEADERS)
    }
    texts = {
        "lib/pkgconfig/tenon.pc": _PKG_CONFIG,
        "lib/cmake/tenon/tenonConfig.cmake": _CMAKE,
        "lib/cmake/tenon/tenonConfigVersion.cmake": VERSION_FILE,
        _MARK: f"libtenon {__version__} (ABI {ABI}) for {row.name}\n",
    }
    files = {**headers, f"lib/{names.file}": library.shared, "lib/libtenon.a": library.static}
    files |= {name: _filled(text, row).encode() for name, text in texts.items()}
    linked = library.imports or library.shared
    files[f"lib/{tengine.library_name(row)}"] = of_tengine = tengine.tengine_library(compiler, row, linked)
    files[f"lib/{mace.library_name(row)}"] = of_mace = mace.mace_library(compiler, row, linked)
    if not names.import_library:  # made only for libtenon, and not for what the programs use besides
        files["bin/mace_run"] = mace.mace_run(compiler, row, of_mace)
        files["bin/tm_benchmark"] = tengine.tm_benchmark(compiler, row, of_tengine)
    if library.imports:
        files[f"lib/{names.link}"] = library.imports
    return files, {} if names.import_library else {f"lib/{names.link}": names.file}


def _filled(text: str, row: Target) -> str:
    names, libraries = row.format.shared_library("tenon", ABI), row.format.system_libraries
    imports = f'\n    IMPORTED_IMPLIB "${{_tenon_prefix}}/lib/{names.link}"' if names.import_library else ""
    values = {
        "VERSION": __version__,
        "SHARED": names.file,
        "IMPORT": imports,
        "LIBRARIES": ";".join(libraries),
        "PRIVATE": " ".join(f"-l{name}" for name in libraries),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _refuse_foreign(folder: Path) -> None:
    if folder.is_dir() and ((folder / _MARK).is_file() or not any(folder.iterdir())):
        return
    if folder.exists():
        raise InputError(f"{folder} exists and is no SDK of Tenon: name another folder")
