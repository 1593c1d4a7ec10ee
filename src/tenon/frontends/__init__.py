"""Model files to graphs.  A format is one module with ``recognise`` and ``load``, and one line in ``FORMATS``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tenon.errors import FormatError

if TYPE_CHECKING:
    from tenon.frontends.source import ModelFile, Progress
    from tenon.ir.bind import Shapes
    from tenon.ir.graph import Graph

FORMATS = {
    "ONNX": "tenon.frontends.onnx",
}
"""Formats by name, and the modules that read them; the first that recognises a file's content gets it."""


class Frontend(Protocol):
    """What a module in ``FORMATS`` offers; importing it costs next to nothing."""

    def recognise(self, file: ModelFile) -> bool:
        """Whether the content is of this format, damaged or not."""

    def load(
        self,
        file: ModelFile,
        shapes: Shapes,
        inputs: Sequence[str] | None,
        outputs: Sequence[str] | None,
    ) -> Graph:
        """The graph; only ModelError and InputError escape."""


def load(
    source: str | os.PathLike[str] | bytes,
    shapes: Shapes | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sha256: str | None = None,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Graph:
    """The graph of a model given as a path, an http(s) address or bytes.

    ``shapes`` binds inputs to shapes and named dimensions to extents; while some are unbound the graph is left
    untyped (see ``ir.bind``).  ``inputs`` and ``outputs`` cut the part between those tensors out of the model.

    Raises InputError for a source that is not there or a name that the model lacks, and ModelError, listing
    every problem at once, for a model that cannot be used.
    """
    from importlib import import_module

    from tenon.frontends.source import read

    file = read(source, sha256, cache, progress)
    for module in FORMATS.values():
        frontend = cast(Frontend, import_module(module))
        if frontend.recognise(file):
            return frontend.load(file, shapes or {}, inputs, outputs)
    known = ", ".join(FORMATS)
    raise FormatError(f"{file.name}: the format is not known; Tenon reads {known}")
