"""A bundle on disk as parts of a program for another machine, for ``engine.device``."""

from __future__ import annotations

import os
from functools import cached_property

from tenon.errors import InputError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.targets import Target, find
from tenon.machine.targets.float_abi import with_float_abi
from tenon.machine.toolchain import compiler as toolchain
from tenon.machine.toolchain.compiler import Compiler
from tenon.options import Options
from tenon.runtime.bundle.libraries import linkable_library
from tenon.runtime.bundle.manifest import Manifest
from tenon.runtime.bundle.names import library_name
from tenon.runtime.engine.files import Opening, bundle_files, part

_LINE = "\n"


class SavedBundle:
    """The bundle in a folder or ``.tenon`` file, of which ``target`` is taken where it has several.

    Its code is the bundle's object, or its library where it was saved without object.  Raises BundleError for a file
    that is missing, damaged or encrypted with another key, InputError where the bundle has no code.
    """

    def __init__(self, path: str | os.PathLike[str], options: Options, target: str = "") -> None:
        self._files = bundle_files(os.fspath(path), Opening(target=target))
        self._options = options
        self.interface: Manifest = self._files.manifest()

    @property
    def name(self) -> str:
        return self.interface.name

    @cached_property
    def target(self) -> Target:
        made_for = self.interface.target
        row = find(made_for.name)
        softfp = row.triple == f"{made_for.triple}hf"  # the row is for the hard ABI
        return with_float_abi(row, "softfp") if softfp else row

    @cached_property
    def compiler(self) -> Compiler:
        return toolchain.find(self._options)

    @cached_property
    def object(self) -> bytes:
        if (name := f"{self.name}.o") in self.interface.files:
            return part(self.interface, self._files, name)
        return linkable_library(self.compiler, self.target, self.library)

    @cached_property
    def library(self) -> bytes:
        name = library_name(self.name, self.target) or ""
        if name not in self.interface.files:
            raise InputError(f"{self._files.label('')} was saved without code: save it with its object or library")
        return part(self.interface, self._files, name)

    @cached_property
    def weights(self) -> bytes:
        return part(self.interface, self._files, f"{self.name}.weights.bin")

    @cached_property
    def header(self) -> str:
        """The part of the bundle's header that ``runtime/network.c`` uses; the header itself need not be saved."""
        prefix, memory = self.name.upper(), self.interface.memory
        entry_points = find_backend(self.target.backend).entry_points(self.name, profile=True)
        return (
            "#include <stdint.h>\n#define TENON_MEM_ALIGN(size) __attribute__((aligned(size)))\n"
            f"#define {prefix}_MUTABLE_MEM_SIZE {memory.mutable}\n"
            f"#define {prefix}_ACTIVATIONS_MEM_SIZE {memory.activations}\n"
            f"#define {prefix}_INPUTS(X)\n#define {prefix}_OUTPUTS(X)\n"
            f"{''.join(f'{entry.prototype};{_LINE}' for entry in entry_points)}"
        )
