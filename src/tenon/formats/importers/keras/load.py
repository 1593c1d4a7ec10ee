"""Keras models: .h5 of Keras 1 and 2, .keras of Keras 3, without Keras.

The description is JSON and the weights are HDF5; nothing in them is ever run, so Lambda layers are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenon.errors import FormatError, InputError, ModelError
from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.keras.importer import (
    KerasImporter,
)
from tenon.formats.importers.keras.weights import KerasWeights, of_archive, of_h5
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.archive import SIGNATURE as ARCHIVE
from tenon.formats.wire.archive import Archive, parsed
from tenon.formats.wire.hdf5 import SIGNATURE, Hdf5File
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph
from tenon.network.graph.writer import reason

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


def recognise(file: ModelFile) -> bool:
    """An HDF5 file, or an archive with a config.json."""
    if file.data.startswith(SIGNATURE) or file.suffix in (".h5", ".hdf5", ".keras"):
        return True
    return file.data.startswith(ARCHIVE) and _CONFIG.encode() in file.data[:4096]


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a Keras model.  See ``importers.load`` for errors."""
    from tenon.formats.importers.keras.layers import LAYERS

    try:
        config, weights, version = read(file)
        builder = ChannelsLast(file, "", shapes, inputs, outputs)
        return KerasImporter(builder, version, LAYERS).run(config, weights)
    except (ModelError, InputError):
        raise
    except RefusedError as error:
        raise FormatError(f"{file.name}: {error.what}") from error
    except (AttributeError, KeyError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{file.name}: the model's description is damaged: {reason(error)}") from error


# -------------------------------------------------------------------------------------------------------- files
def read(file: ModelFile) -> tuple[dict[str, Any], KerasWeights, int]:
    """The description, the weights, and Keras's major version.  Raises FormatError."""
    try:
        return _archive(file) if file.data.startswith(ARCHIVE) else _h5(file)
    except FormatError as error:
        raise FormatError(f"{file.name}: not a readable Keras model: {error}") from error


def _h5(file: ModelFile) -> tuple[dict[str, Any], KerasWeights, int]:
    root = Hdf5File(file.data).root
    config = root.attributes.get("model_config")
    if not isinstance(config, str):
        raise FormatError("it has weights at most, and no model_config; save the whole model with model.save()")
    weights = root.find("model_weights")
    if weights is None:
        raise FormatError("it has no weights; save the whole model with model.save()")
    version = str(root.attributes.get("keras_version", "2"))
    return _json(config), of_h5(weights), 3 if version.startswith("3") else 2


def _archive(file: ModelFile) -> tuple[dict[str, Any], KerasWeights, int]:
    archive = Archive(file.data)
    config, data = archive.read(_CONFIG), archive.read(_WEIGHTS)
    return _json(config.decode("utf-8", "replace")), of_archive(Hdf5File(data).root), 3


def _json(text: str) -> dict[str, Any]:
    description = parsed(text)
    if not isinstance(description, dict) or not isinstance(description.get("class_name"), str):
        raise FormatError("its description is not of a model")
    return description
