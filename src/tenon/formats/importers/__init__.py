"""Model files to graphs.  A format is a package with ``load.recognise`` and ``load.load``, and a row in ``FORMATS``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tenon.errors import FormatError, InputError, ModelError, TenonError, prefixed
from tenon.formats.importers.unsupported_formats import HEAD, foreign
from tenon.formats.wire.file_kinds import no_model, told_kind
from tenon.formats.wire.stored_files import stored_as
from tenon.input_file import matching_names
from tenon.network.graph.size_range import read_shapes
from tenon.network.graph.value_bounds import checked_limits

if TYPE_CHECKING:
    from tenon.formats.model_files.download import Progress
    from tenon.formats.model_files.model_file import ModelFile
    from tenon.formats.wire.encryption import Key
    from tenon.formats.wire.stored_files import Transform
    from tenon.network.graph.bind import GivenShapes, Shapes
    from tenon.network.graph.fixed import Values
    from tenon.network.graph.graph import Graph


MAX_ENTRIES = 1000
"""Names in a folder that are read for an error message."""


@dataclass(frozen=True)
class Format:
    """A module that reads a format, and what its main file is usually called.

    ``main`` are globs for models given as folders; the first that finds any files decides.  ``large``: files may be
    large and are known by their first bytes, so that those of a usual name are not looked at by other formats.
    ``whole``: a model is one file, or names its other files itself, so that no second one can be given.
    """

    module: str
    main: tuple[str, ...]
    large: bool = False
    whole: bool = False

    def first_for(self, name: str) -> bool:
        """Whether a file of this name is looked at by this format before others."""
        return self.large and any(fnmatchcase(name.lower(), pattern) for pattern in self.main)

    def importer(self) -> Importer:
        from importlib import import_module

        return cast(Importer, import_module(self.module))


FORMATS = {
    "ONNX": Format("tenon.formats.importers.onnx.load", ("*.onnx", "*.ort"), whole=True),
    "Caffe": Format("tenon.formats.importers.caffe.load", ("*.prototxt", "*.caffemodel")),
    "Darknet": Format("tenon.formats.importers.darknet.load", ("*.cfg",)),
    "ncnn": Format("tenon.formats.importers.ncnn.load", ("*.param", "*.param.bin")),
    "Tengine": Format("tenon.formats.importers.tengine.load", ("*.tmfile",), whole=True),
    "Caffe2": Format("tenon.formats.importers.caffe2.load", ("predict_net.pb",)),
    "Paddle": Format("tenon.formats.importers.paddle.load", ("__model__", "*.pdmodel", "*.json")),
    "MXNet": Format("tenon.formats.importers.mxnet.load", ("*-symbol.json",)),
    "MegEngine": Format("tenon.formats.importers.megengine.load", ("*.mge",), whole=True),
    "OneFlow": Format("tenon.formats.importers.oneflow.load", ("model.mlir",), whole=True),
    "MACE": Format("tenon.formats.importers.mace.load", ("*.pb",)),
    "TFLite": Format("tenon.formats.importers.tflite.load", ("*.tflite",), whole=True),
    "TensorFlow": Format("tenon.formats.importers.tensorflow.load", ("saved_model.pb", "*.pb"), whole=True),
    "PyTorch": Format("tenon.formats.importers.pytorch.load", ("*.pt2",), whole=True),
    "Safetensors": Format(
        "tenon.formats.importers.safetensors.load",
        ("model.safetensors", "model.safetensors.index.json", "*.safetensors"),
        large=True,
    ),
    "GGUF": Format("tenon.formats.importers.gguf.load", ("*.gguf",), large=True),
    "ggml": Format("tenon.formats.importers.ggml.load", ("ggml-*.bin",), large=True, whole=True),
    "Keras": Format("tenon.formats.importers.keras.load", ("*.keras", "*.h5", "*.hdf5"), whole=True),
}
"""Formats by name; the first that recognises a file's content gets it, those of large files before others.
"""


class Importer(Protocol):
    """The interface of a module in ``FORMATS``; the functions that import layers are loaded with a file.

    A format of two files recognises both of them, and ``load`` finds the other one with ``file.partner``.
    """

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


Source = str | os.PathLike[str] | bytes


@dataclass(frozen=True)
class Imported:
    """A model that was read: its graph, its file (of several, the main one), and the name of its format."""

    graph: Graph
    file: ModelFile
    format: str


def load(
    source: Source,
    shapes: GivenShapes | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sha256: str | None = None,
    *,
    weights: Source | None = None,
    values: Values | None = None,
    limits: Mapping[str, int] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    key: Key | None = None,
    transform: Transform | None = None,
) -> Graph:
    """The graph of a model given as a path, an http(s) address or bytes; arguments and errors are those of ``read``."""
    return read(
        source,
        shapes,
        inputs,
        outputs,
        sha256,
        weights=weights,
        values=values,
        limits=limits,
        cache=cache,
        progress=progress,
        key=key,
        transform=transform,
    ).graph


def read(
    source: Source,
    shapes: GivenShapes | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sha256: str | None = None,
    *,
    weights: Source | None = None,
    values: Values | None = None,
    limits: Mapping[str, int] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
    key: Key | None = None,
    transform: Transform | None = None,
) -> Imported:
    """A model given as a path, an http(s) address or bytes: its graph, file and format.

    Of a format of two files either may be given, or their folder; ``weights`` names the second file (or folder) where
    it does not lie beside the first under its usual name.  ``shapes`` binds inputs to shapes and named dimensions to
    extents; while some are unbound the graph is left untyped (see ``graph.bind``).  ``values`` fixes inputs to numbers
    or arrays, which become constants (see ``graph.fixed``), and ``limits`` says how large values of the model can be in
    any run, by name.  ``inputs`` and ``outputs`` cut the part between those
    tensors out of the model.  ``key`` decrypts encrypted files, and ``transform`` makes the content of every file of
    what is stored (see ``wire.stored_files``).

    Raises InputError for a source that does not exist or a name that the model lacks, and ModelError, listing
    all problems together, for a model that cannot be used.
    """
    import numpy as np

    from tenon.network.graph.fixed import arrays, check_names

    with stored_as(key, transform), np.errstate(all="ignore"):  # infinities in a file's numbers are the file's own
        file, importer = find(source, sha256, weights=weights, cache=cache, progress=progress)
        file = replace(file, values=arrays(values), limits=checked_limits(limits))
        graph = _loaded(importer, file, read_shapes(shapes), inputs, outputs)
    graph.name = _called(source, file) or graph.name
    check_names(file.values, [*graph.fixed, *(v.name for v in graph.inputs)], file.name)
    return Imported(graph, file, format_name(importer))


def _loaded(
    importer: Importer, file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> Graph:
    """The graph of a file.  Where a file can be used with its own shapes, an error begins with the given ones."""
    try:
        return importer.load(file, shapes, inputs, outputs)
    except ModelError as error:
        own = _own_inputs(importer, file, inputs, outputs) if shapes else ""
        if not own:
            raise
        given = ", ".join(f"{name}={_text(shape)}" for name, shape in shapes.items())
        fault = f"the shape {given} does not fit the model, whose own is {own}; leave out --shape, or correct it"
        raise prefixed(error, f"{file.name}: {fault}") from error


def _own_inputs(
    importer: Importer, file: ModelFile, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> str:
    """The inputs that a file states, with their types; "" if it cannot be used with these."""
    try:
        values = importer.load(file, {}, inputs, outputs).inputs
    except TenonError:
        return ""
    bound = all(value.typed and value.type.bound for value in values)
    return ", ".join(f"{value.name} {value.type}" for value in values) if bound else ""


def _text(shape: object) -> str:
    return ",".join(map(str, shape)) if isinstance(shape, list | tuple) else str(shape)


def format_name(importer: Importer) -> str:
    """The name in ``FORMATS`` of the format that an importer reads."""
    return next(name for name, format in FORMATS.items() if format.importer() is importer)


_PRESCRIBED = frozenset(name for format in FORMATS.values() for name in format.main if "*" not in name)
"""Names that a format gives to every model's file."""


def _called(source: Source, file: ModelFile) -> str:
    """The name of a model: that of its file without the ending, or of the folder where all models' files are called
    alike; empty for bytes, which have no name."""
    if isinstance(source, bytes):
        return ""
    stem = file.stem.removesuffix("-symbol").removesuffix(".param")
    folder = file.folder.resolve().name if file.folder is not None else ""
    return (folder or stem) if file.name in _PRESCRIBED or stem == "deploy" else stem


def find(
    source: Source,
    sha256: str | None = None,
    *,
    weights: Source | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[ModelFile, Importer]:
    """The file of a model (of a folder, its main file) and the importer that reads it.  Raises as ``load`` does, and
    InputError for ``weights`` beside a format whose models are one file."""
    from tenon.formats.model_files.model_file import read

    file = read(source, sha256, cache, progress)
    if weights is not None:
        file = replace(file, weights=read(weights, None, cache, progress))
    file, importer = _recognised_file(file)
    if weights is not None and FORMATS[name := format_name(importer)].whole:
        raise InputError(f"{file.name}: {name} models have no second file: leave out --weights (weights=...)")
    return file, importer


def _recognised_file(file: ModelFile) -> tuple[ModelFile, Importer]:
    """The file of a model, of a folder its main file, and the importer that reads it."""
    if file.is_folder:
        return _main(file)
    if kind := no_model(file.data[:HEAD]):
        raise FormatError(f"{file.name}: not a model: it is {kind.what}: {kind.remedy or 'give the file of a model'}")
    doubts: list[TenonError] = []
    for format in sorted(FORMATS.values(), key=lambda format: not format.first_for(file.name)):
        importer = format.importer()
        if _recognised(importer, file, doubts):
            return file, importer
    if doubts:
        raise doubts[0]
    if what := foreign(file.name, file.data[:HEAD]):
        raise FormatError(f"{file.name}: {what}")
    told = f": {text}" if (text := told_kind(file.data[:HEAD])) else ""
    raise FormatError(f"{file.name}: the format is not known{told}; Tenon reads {', '.join(FORMATS)}")


def _recognised(importer: Importer, file: ModelFile, doubts: list[TenonError]) -> bool:
    """Whether an importer knows the file; an error of looking for its partner is added to ``doubts``."""
    try:
        return importer.recognise(file)
    except (FormatError, InputError) as error:
        doubts.append(error)
        return False


def _main(folder: ModelFile) -> tuple[ModelFile, Importer]:
    """The one model in a folder."""
    models: dict[str, tuple[ModelFile, Importer]] = {}
    doubts: list[TenonError] = []
    for format in FORMATS.values():
        importer = format.importer()
        for pattern in format.main:
            files = [replace(f, weights=folder.weights) for f in folder.matching(pattern) if f.name not in models]
            files = [f for f in files if _recognised(importer, f, doubts)]
            models.update({f.name: (f, importer) for f in files})
            if files:
                break
    if not models and doubts:
        raise doubts[0]
    if not models:
        if folder.folder and not os.access(folder.folder, os.R_OK | os.X_OK):
            raise InputError(f"{folder.name}: the folder cannot be read: give yourself permission to read it")
        _refuse_foreign(folder)
        looked = ", ".join(dict.fromkeys(p for format in FORMATS.values() for p in format.main))
        raise InputError(f"{folder.name}: no model is in this folder; looked for {looked}")
    if len(models) > 1:
        raise InputError(f"{folder.name}: several models are in this folder; give one of {', '.join(sorted(models))}")
    return next(iter(models.values()))


def _refuse_foreign(folder: ModelFile) -> None:
    """Raise FormatError if the folder, or a file in it, is of a format that is recognised and not read."""
    if what := foreign(folder.name, b""):
        raise FormatError(f"{folder.name}: {what}")
    names = matching_names(folder.folder)[:MAX_ENTRIES] if folder.folder else []
    for path in map(Path, names):
        if path.suffix.lower() in (".json", ".bin") or path.name.startswith("."):
            continue  # such files are found beside models of any format
        if what := foreign(path.name, b""):
            raise FormatError(f"{folder.name}: no model is in this folder; of '{path.name}' in it, {what}")
