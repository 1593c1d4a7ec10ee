"""ncnn networks: a .param, text or binary, and the .bin beside it.

Tensors bear the names of the blobs (``blob_7`` in binary files, which keep none), with a leading 1 for the batch.  An
input whose shape the file does not say must be bound: only its channels are guessed, from the first convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder, required_input
from tenon.formats.graph_builder.errors import unknown
from tenon.formats.importers.ncnn.file import LayerRecord, NcnnWeights, is_param, layers
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.bind import ANY_RANK, Shapes
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.types import F32, Dim, TensorType

_NAMES = ("{stem}.param", "{stem}.param.bin")


def _is_param(file: ModelFile) -> bool:
    return is_param(file.data)


def recognise(file: ModelFile) -> bool:
    """A .param by its magic number; a .bin only by the .param beside it."""
    return is_param(file.data) or (file.suffix == ".bin" and _param_of(file) is not None)


def _param_of(file: ModelFile) -> ModelFile | None:
    return file.find_partner("the .param", *_NAMES, fits=_is_param)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a network given by either of its files.  See ``importers.load`` for errors."""
    param: ModelFile | None = file
    weights: ModelFile | None = file
    if is_param(file.data):
        stem = file.stem.removesuffix(".param")
        weights = file.find_partner("the weights", f"{stem}.bin", fits=lambda other: not is_param(other.data))
    else:
        param = _param_of(file)
    assert param is not None
    builder = GraphBuilder(
        param, param.stem.removesuffix(".param"), shapes, inputs, outputs, len(weights.data) if weights else 1 << 20
    )
    if weights is None:
        builder.graph.incomplete = MISSING_WEIGHTS
    try:
        return _build(builder, layers(param.data), NcnnWeights(weights.data if weights else None))
    except FormatError as error:
        raise FormatError(str(error) if param.name in str(error) else f"{param.name}: {error}") from error


def _build(builder: GraphBuilder, records: Sequence[LayerRecord], weights: NcnnWeights) -> Graph:
    for layer in records:
        if layer.type == "Input":
            for top in layer.tops:
                _input(builder, layer, top, records)
        else:
            with builder.layer(layer.name, layer.type, *layer.tops):
                _make(builder, layer, weights)
    if not builder.writer.problems:
        weights.finish()
    read = {name for layer in records for name in layer.bottoms}
    return builder.finish([top for layer in records for top in layer.tops if top not in read])


def _make(builder: GraphBuilder, layer: LayerRecord, weights: NcnnWeights) -> None:
    from tenon.formats.importers.ncnn.layers import LAYERS

    context = NcnnLayer(builder, layer, weights)
    if layer.type not in LAYERS:
        raise unknown(layer.type, LAYERS, "layer")
    for value in context.inputs:
        builder.type(value)
    outputs = LAYERS[layer.type](context)
    for top, value in zip(layer.tops, [outputs] if isinstance(outputs, Value) else outputs, strict=False):
        builder[top] = value


def _input(builder: GraphBuilder, layer: LayerRecord, top: str, records: Sequence[LayerRecord]) -> None:
    """Raises ShapeError when the shape is neither in the file nor given."""
    stated = [layer.integer(id) for id in (2, 11, 1, 0)]
    dims: list[Dim] = [d for d in stated if d > 0]
    if not dims:
        channels = _channels(records, top)
        dims = [channels or f"{top}_c", f"{top}_h", f"{top}_w"]
    type = TensorType(F32, (1, *dims))
    given = builder.shapes.get(top)
    if not type.bound and isinstance(given, Sequence) and len(given) != len(type.shape):
        type = TensorType(F32, (ANY_RANK,))
    required_input(builder, top, type)


def _channels(records: Sequence[LayerRecord], top: str) -> int:
    """The channels that the first layer to read a blob expects, if it is a convolution; else 0."""
    first = next((layer for layer in records if top in layer.bottoms), None)
    if first is None or first.type != "Convolution":
        return 0
    terms = first.integer(0) * first.integer(1) * first.integer(11, first.integer(1))
    return first.integer(6) // terms if terms > 0 else 0
