"""The properties of an object format that compiling, linking and packaging depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import ClassVar

from tenon.errors import InternalError


@dataclass(frozen=True)
class SharedLibrary:
    """Names of a shared library: the file, the name that programs load it by, and that by which they are linked."""

    file: str
    soname: str
    link: str

    @property
    def import_library(self) -> bool:
        """Whether programs are linked with a file of its own, and not with the library or a symbolic link to it."""
        return self.link.endswith(".a")


class ObjectFormat:
    """An object format; the class variables and methods are its traits: other packages test them, never names.

    ``bundle.libraries`` and ``sdk.linking`` register how libraries and programs are linked for its class.
    """

    compiled: ClassVar[bool] = True
    """There is machine code."""
    module: ClassVar[bool] = False
    """A program is a module, which a runtime in another program loads and calls; there is no operating system."""
    joins_objects: ClassVar[bool] = False
    """Linkers make one object of several (``-r``)."""
    names_sections: ClassVar[bool] = False
    """Sections have names of one's own, by which a linker script places them."""
    portable_library: ClassVar[bool] = False
    """A program that runs on systems with different C libraries can be made for it, as for Linux."""
    windows: ClassVar[bool] = False
    """The operating system is Windows, and not one with the interfaces of POSIX."""
    compile_flags: ClassVar[tuple[str, ...]] = ("-fPIC",)
    """Compiler flags for code of programs and libraries under an operating system."""
    direct_calls: ClassVar[tuple[str, ...]] = ()
    """Compiler flags with which a shared library calls its own public functions directly."""
    link_flags: ClassVar[tuple[str, ...]] = ()
    """Linker flags for any output."""
    remove_unused: ClassVar[str] = "-Wl,--gc-sections"
    """The linker flag that leaves out functions and data which nothing uses."""
    math_library: ClassVar[tuple[str, ...]] = ("-lm",)
    """Linker flags for the functions of <math.h>."""
    system_libraries: ClassVar[tuple[str, ...]] = ()
    """System libraries that a program linked with the static libtenon needs."""
    symbol_prefix: ClassVar[str] = ""
    """The beginning of the names of C's symbols in assembly."""
    constant_section: ClassVar[str] = ""
    """The assembler directive that begins a section of constants, with ``{symbol}`` for the name of its symbol."""
    needs_symbol_size: ClassVar[bool] = False
    """Assembly must state the sizes of symbols with data."""

    @property
    def hosted(self) -> bool:
        """Programs of this format run under an operating system."""
        return self.compiled and not self.module

    def library_name(self, name: str) -> str | None:
        """The file name of the library of a bundle; None if the format has none."""
        return None

    def executable_name(self, name: str) -> str:
        """The file name of a program."""
        return name

    def shared_library(self, name: str, abi: int) -> SharedLibrary:
        """The names of a shared library, whose binary interface has the version ``abi``.

        Raises InternalError if the format has none.
        """
        raise InternalError(f"{type(self).__name__} has no shared libraries")


@cache
def find(name: str) -> ObjectFormat:
    """The object format of that name.  Raises InternalError if there is none."""
    try:
        format: ObjectFormat = import_module(f"tenon.machine.object_formats.{name}").FORMAT
    except (ModuleNotFoundError, AttributeError):
        raise InternalError(
            f"no object format '{name}': a module tenon.machine.object_formats.{name} with FORMAT"
        ) from None
    return format
