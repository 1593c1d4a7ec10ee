"""A program that writes down speech: an encoder and a decoder in a folder, with C entry points over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tenon.atomic_write import Content
from tenon.errors import InputError, guarded
from tenon.options import Emit
from tenon.runtime.bundle import link
from tenon.runtime.bundle.c_tables import c_tables, tables_file
from tenon.runtime.bundle.folder import refuse_others, write_folder
from tenon.runtime.bundle.manifest import Manifest
from tenon.runtime.bundle.names import executable_name
from tenon.runtime.bundle.possible_parts import check_parts
from tenon.runtime.bundle.speech_entry import DECODER, ENCODER, SOURCES, speech_header, speech_source
from tenon.runtime.bundle.writer import Bundle

PROGRAM_PARTS: frozenset[Emit] = frozenset({"exe", "text"})
"""Parts that are made of both networks."""


@dataclass(frozen=True, eq=False)
class SpeechProgram:
    """The two networks of a model for speech to text, compiled for the same target with the names ``NAME_encoder`` and
    ``NAME_decoder``.

    Raises InputError for other bundles, UnsupportedError for a tokenizer that the functions in C lack.
    """

    encoder: Bundle
    decoder: Bundle

    def __post_init__(self) -> None:
        names = self.encoder.name.removesuffix(ENCODER), self.decoder.name.removesuffix(DECODER)
        if names[0] != names[1] or len(names[0]) in (len(self.encoder.name), len(self.decoder.name)):
            raise InputError(
                f"'{self.encoder.name}' and '{self.decoder.name}': the networks of a program for speech are called "
                f"NAME{ENCODER} and NAME{DECODER}"
            )
        if self.encoder.target.name != self.decoder.target.name:
            raise InputError(f"'{self.encoder.name}' and '{self.decoder.name}' are compiled for different targets")
        speech_header(self.name, *self._interfaces)

    @property
    def name(self) -> str:
        """The name of the program, and the beginning of those of its functions."""
        return self.encoder.name.removesuffix(ENCODER)

    @property
    def _interfaces(self) -> tuple[Manifest, Manifest]:
        return self.encoder.interface, self.decoder.interface

    @cached_property
    def tables(self) -> bytes:
        """The tokenizer and the tokens of speech, as tables."""
        if self.decoder.text is None or self.decoder.text.tokenizer is None:
            raise InputError(f"'{self.decoder.name}' has no tokenizer: put its tokenizer.json beside the model")
        return c_tables(self.decoder.text, self.decoder.target.byte_order).content

    @cached_property
    def header(self) -> str:
        """The text of ``NAME_speech.h``."""
        return speech_header(self.name, *self._interfaces)

    @cached_property
    def source(self) -> str:
        """The text of ``NAME_speech.c``."""
        return speech_source(self.name, *self._interfaces, {file: link.runtime(file).decode() for file in SOURCES})

    @cached_property
    def executable(self) -> bytes:
        """The program that prints what is said in a sound."""
        compiler, target = self.encoder.compiler, self.encoder.target
        check_parts(("exe",), target, zig=compiler.zig)
        bundles = {"encoder": self.encoder, "decoder": self.decoder}
        headers = {f"{each.name}.h": each.header.encode() for each in bundles.values()}
        return link.speech_executable(
            compiler,
            target,
            self.name,
            {part: (each.object, each.weights) for part, each in bundles.items()},
            {**headers, f"{self.name}_speech.h": self.header.encode()},
            self.source,
            self.tables,
            threaded=min(each.program.threads for each in bundles.values()) > 1,
        )

    @guarded
    def save(
        self, folder: str | Path, emit: Sequence[Emit] = ("exe",), progress: Callable[[str], None] = lambda stage: None
    ) -> Path:
        """Write the folders ``encoder`` and ``decoder`` with the bundles, and beside them ``emit``: "exe", a program;
        "text", the C entry points; other parts are those of the bundles.  Returns the folder.

        An older program in the folder is replaced; on any error or interrupt the folder stays as it was.  Raises
        InputError if the folder holds something else or cannot be written, ToolchainError if compilation fails.
        """
        files, executable = dict[str, Content](), set[str]()
        program, other = PROGRAM_PARTS.intersection(emit), [part for part in emit if part not in PROGRAM_PARTS]
        for part, bundle in (("encoder", self.encoder), ("decoder", self.decoder)):
            own, code = bundle.files(bundle.parts_with(other))
            files |= {f"{part}/{name}": content for name, content in own.items()}
            executable |= {f"{part}/{name}" for name in code}
        if "text" in program:
            files |= {f"{self.name}_speech.h": self.header.encode(), f"{self.name}_speech.c": self.source.encode()}
            files[tables_file(self.name)] = self.tables
        if "exe" in program:
            self.encoder.note_c_library(progress)
            name = executable_name(self.name, self.encoder.target)
            files[name] = self.executable
            executable.add(name)
        return write_folder(Path(folder), files, frozenset(executable), self.refuse_foreign)

    def refuse_foreign(self, folder: Path) -> None:
        """Raises InputError for a folder that holds anything else than such a program of the same name."""
        name = self.name
        own = {f"{name}_speech.h", f"{name}_speech.c", tables_file(name), executable_name(name, self.encoder.target)}
        refuse_others(folder, own, frozenset({"encoder", "decoder"}))
