"""GGUF files as graphs: decoders of the architectures in ``config``, and towers of images (``images``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from glob import escape

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats.decompositions.decoder.graph import EMBEDDING_PORTS, decoder_graph, embedding_graph, room_of
from tenon.formats.decompositions.transformers.image_tower import FEATURES
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.gguf.config import decoder_config, pooling_of
from tenon.formats.importers.gguf.encoders import ENCODERS, build_encoder
from tenon.formats.importers.gguf.images import ARCHITECTURE as IMAGES
from tenon.formats.importers.gguf.images import ImageFile
from tenon.formats.importers.gguf.metadata import Metadata
from tenon.formats.importers.gguf.text import encoder_text, text_model
from tenon.formats.importers.gguf.weights import GgufWeights
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.gguf import MAGIC, Gguf, parse
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph
from tenon.network.graph.text_shapes import CONTEXT

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def recognise(file: ModelFile) -> bool:
    return file.data[:4] == MAGIC


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors.  Of a model in several files, any of them may be given."""
    parts = _parts(file)
    weights = GgufWeights(parts)
    builder = GraphBuilder(file, file.stem, shapes, inputs, outputs, sum(len(part.data) for part in parts))
    if parts[0].pairs.get("general.architecture") == IMAGES:
        return _image_file(file, parts).build(builder)
    images = None if file.weights is None else _image_file(file.weights, [_parsed(file.weights)])
    if images is not None and builder.cut_outputs == [FEATURES]:
        return images.build(builder)
    with _named_errors(file, parts):
        metadata = Metadata.of(parts[0].pairs)
        if metadata.architecture in ENCODERS:
            graph = build_encoder(builder, metadata, weights)
            graph.text = encoder_text(metadata)
            return graph
        room = room_of(builder.shapes, metadata.size("context_length", CONTEXT))
        config = decoder_config(metadata, weights.factors, room)
        pooling = pooling_of(metadata)
    if images is not None and images.tower.width != config.hidden:
        raise FormatError(
            f"{file.name}: its embeddings have {config.hidden} elements, and the rows of images in "
            f"{file.weights.name if file.weights else ''} {images.tower.width}: give the file of this model (--mmproj)"
        )
    image = None if images is None else images.text
    text = text_model(metadata, config.context, image)
    if pooling is None:
        graph = decoder_graph(builder, config, weights, image)
    else:
        graph = embedding_graph(builder, config, weights, pooling)
        text = replace(text, kind="encoder", ports=EMBEDDING_PORTS)
    graph.text = text
    return graph


@contextmanager
def _named_errors(file: ModelFile, parts: Sequence[Gguf]) -> Iterator[None]:
    """Errors with the name of the file."""
    try:
        yield
    except RefusedError as refusal:
        where = str(parts[0].pairs.get("general.architecture", ""))
        raise UnsupportedError(file.name, [Problem(where, refusal.what, refusal.remedy)]) from None
    except FormatError as error:
        raise FormatError(f"{file.name}: {error}") from error


def _image_file(file: ModelFile, parts: Sequence[Gguf]) -> ImageFile:
    """The tower of images in a file."""
    if parts[0].pairs.get("general.architecture") != IMAGES:
        raise FormatError(f"{file.name}: it has no tower of images: give the model's mmproj file (--mmproj)")
    with _named_errors(file, parts):
        return ImageFile.read(Metadata.of(parts[0].pairs), GgufWeights(parts), file.name)


def _parsed(file: ModelFile) -> Gguf:
    try:
        return parse(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: the file is damaged: {error}") from error


def _parts(file: ModelFile) -> list[Gguf]:
    """All files of a model, the one with its keys first."""
    name = _PART.fullmatch(file.name)
    if name is None:
        return [_parsed(file)]
    others = {other.name: other for other in file.matching(f"{escape(name[1])}-?????-of-{name[3]}.gguf")}
    others[file.name] = file
    wanted = [f"{name[1]}-{number:05}-of-{name[3]}.gguf" for number in range(1, int(name[3]) + 1)]
    missing = [each for each in wanted if each not in others]
    if missing:
        raise FormatError(f"{file.name}: the model is in {len(wanted)} files, and {missing[0]} is not beside it")
    return [_parsed(others[each]) for each in wanted]
