"""A bundle with Glow's interface: its object, header and weight files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Unpack

import tenon
from tenon.atomic_write import write_all
from tenon.compat.glow.entries import Entry, info, source
from tenon.compat.glow.header import MemoryRegions, Placeholder, header
from tenon.compat.glow.names import array_type_text, legal_name
from tenon.errors import InputError, guarded
from tenon.machine.plan.program import ALIGNMENT
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph
from tenon.options import OptionKeywords
from tenon.pipeline import Model
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.names import identifier

_PER_LINE = 20


@dataclass(frozen=True, eq=False)
class GlowBundle:
    """One or several networks behind entry points of Glow's signature, with one region each of weights, of inputs and
    outputs, and of activations.

    ``name`` begins the names of files and macros.  ``objects`` are further objects by name, for the archive that
    ``<name>.o`` then is.  ``verbose`` lists the constants in the header.  ``assembly`` adds ``<name>.s``.
    """

    name: str
    entries: tuple[Entry, ...]
    api: Literal["static", "dynamic"] = "static"
    instrumented: bool = False
    verbose: bool = False
    objects: Mapping[str, bytes] | None = None
    assembly: bool = False

    @cached_property
    def regions(self) -> MemoryRegions:
        last = self.entries[-1]
        memories = [entry.bundle.program.memory for entry in self.entries]
        return MemoryRegions(
            last.constant + _aligned(memories[-1].constant),
            last.mutable + memories[-1].mutable,
            max(memory.activations for memory in memories),
            ALIGNMENT,
            max(memory.bound for memory in memories),
        )

    @cached_property
    def placeholders(self) -> list[Placeholder]:
        """Inputs and outputs of all entries.  Raises InputError if two have one legal name."""
        by_name: dict[str, Placeholder] = {}
        for entry in self.entries:
            program = entry.bundle.program
            for port in (*program.inputs, *program.outputs):
                name = legal_name(port.name)
                if name in by_name:
                    raise InputError(f"two inputs or outputs are called {name} in C: rename '{port.name}' in the model")
                by_name[name] = Placeholder(name, entry.mutable + port.offset, port)
        return list(by_name.values())

    @cached_property
    def header(self) -> str:
        return header(
            self.name,
            [entry.name for entry in self.entries],
            self.regions,
            self.placeholders,
            dynamic=self.api == "dynamic",
            instrumented=self.instrumented,
            constants=self._constants() if self.verbose else (),
        )

    @cached_property
    def weights(self) -> bytes:
        parts = [entry.bundle.weights for entry in self.entries]
        return b"".join(part + bytes(_aligned(len(part)) - len(part)) for part in parts)

    @cached_property
    def object(self) -> bytes:
        """An ELF or WebAssembly object; an archive if there are further objects.  Raises ToolchainError."""
        first = self.entries[0].bundle
        parts = {f"network{i}.o": entry.bundle.object for i, entry in enumerate(self.entries)}
        text = source(
            self.name,
            self.entries,
            self.regions,
            self.placeholders,
            dynamic=self.api == "dynamic",
            instrumented=self.instrumented,
        )
        if text:
            files = {"entries.c": text.encode(), f"{self.name}.h": self.header.encode()}
            parts["entries.o"] = first.compiler.compile(files, "entries.c", first.target)
        whole = parts["network0.o"]
        if len(parts) > 1:
            whole = first.compiler.link(parts, first.target, ("-r", "-nostdlib"), "out.o")
        return first.compiler.archive({f"{self.name}.o": whole, **self.objects}) if self.objects else whole

    def files(self) -> dict[str, bytes]:
        """``<name>.o``, ``.h``, ``.weights.bin`` and for the static API ``.weights.txt``."""
        files = {
            f"{self.name}.o": self.object,
            f"{self.name}.h": self.header.encode(),
            f"{self.name}.weights.bin": self.weights,
        }
        if self.api == "static":
            files[f"{self.name}.weights.txt"] = weights_text(self.weights)
        if self.assembly:
            files[f"{self.name}.s"] = "".join(map(_assembly, self.entries)).encode()
        return files

    def info(self) -> str:
        """The content of ``instrument-ir.info``."""
        return info(self.entries)

    @guarded
    def save(self, folder: str | Path) -> Path:
        """Write the files into a folder, which is created; other files in it stay.  Raises InputError."""
        write_all({Path(folder) / name: content for name, content in self.files().items()}, "-emit-bundle")
        return Path(folder)

    def _constants(self) -> list[tuple[str, str, int, int, int]]:
        """Packed weights have no names of their own: they are numbered."""
        rows = []
        for entry in self.entries:
            for number, constant in enumerate(sorted(entry.bundle.program.constants, key=lambda c: c.offset)):
                data = constant.data
                name = f"{entry.name}_constant{number}"
                rows.append((name, array_type_text(data), data.size, data.nbytes, entry.constant + constant.offset))
        return rows


def bundle_of(
    models: Mapping[str, Model | Graph],
    network: str,
    *,
    api: Literal["static", "dynamic"] = "static",
    shapes: Shapes | None = None,
    instrumented: bool = False,
    verbose: bool = False,
    objects: Mapping[str, bytes] | None = None,
    assembly: bool = False,
    **options: Unpack[OptionKeywords],
) -> GlowBundle:
    """Compile a model for each entry point of the bundle ``network``.

    ``options`` are those of ``tenon.compile``, but for its name and threads.

    Raises ModelError, and InputError for names that are not of C.
    """
    for word in (network, *models):
        if legal_name(word) != word:
            raise InputError(f"'{word}' is not a name in C: choose letters, digits and '_', such as {legal_name(word)}")
    chosen: OptionKeywords = {**options, "threads": 1, "profile": instrumented}
    entries: list[Entry] = []
    constant = mutable = 0
    for entry, model in models.items():
        bundle = _compiled(model, entry, shapes, chosen, own_name=instrumented or len(models) > 1)
        entries.append(Entry(entry, bundle, constant, mutable))
        constant += _aligned(bundle.program.memory.constant)
        mutable = _aligned(mutable + bundle.program.memory.mutable)
    return GlowBundle(network, tuple(entries), api, instrumented, verbose, objects, assembly)


def weights_text(weights: bytes) -> bytes:
    """The bytes as `` 0X00,``, 20 in a line."""
    words = [f" 0X{value:02X}," for value in range(256)]
    rows = range(0, len(weights), _PER_LINE)
    return ("\n".join("".join(words[v] for v in weights[i : i + _PER_LINE]) for i in rows) + "\n").encode()


def _compiled(
    model: Model | Graph, entry: str, shapes: Shapes | None, options: OptionKeywords, *, own_name: bool
) -> Bundle:
    """The network, called like its entry point unless that one is a function around it."""
    plain = identifier(entry)
    options["name"] = entry if plain == entry and not own_name else identifier(f"{plain}_network")
    return tenon.compile(model, shapes=shapes, **options)


def _assembly(entry: Entry) -> str:
    """The assembly of a network; by the compiler that makes its object."""
    bundle, name = entry.bundle, entry.bundle.name
    extra = ("-Wno-unused-function",) if len(bundle.unit.split()) > 1 else ()
    header = bundle.header.encode()
    return "".join(
        bundle.compiler.assembly({f"{name}.c": text.encode(), f"{name}.h": header}, f"{name}.c", bundle.target, extra)
        for text in bundle.unit.split()
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def object_files(names: Sequence[Path]) -> dict[str, bytes]:
    """Object files by their names, for ``GlowBundle.objects``.  Raises InputError."""
    try:
        return {path.name: path.read_bytes() for path in names}
    except OSError as error:
        raise InputError(f"-bundle-objects: cannot read {error.filename}: {error.strerror}") from None
