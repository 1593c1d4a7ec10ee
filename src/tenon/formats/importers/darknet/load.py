"""Darknet networks: a .cfg, and a .weights beside it.

The graph's input is ``data`` [1, C, H, W] (RGB, 0..1) or [1, N].  A layer's result bears the name of its section and
its number, ``convolutional_0``.  A network that ends in detection heads has the heads' own results as outputs
(``yolo_121``), then ``boxes`` [1, N, 4] and ``scores`` [1, N, classes] of all heads one after the other (see
``heads``).  Without weights the graph can be inspected, not compiled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder
from tenon.formats.graph_builder.errors import unknown
from tenon.formats.importers.darknet.cfg import CfgSection, DarknetWeights, is_cfg, sections
from tenon.formats.importers.darknet.heads import HEADS, Detections
from tenon.formats.importers.darknet.layers import LAYERS, check
from tenon.formats.importers.darknet.node import DarknetLayer, DarknetNetwork
from tenon.formats.importers.darknet.recurrent import RECURRENT
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.preprocessing import Fit, Heads, Preprocessing
from tenon.network.graph.types import F32, tensor

_FUNCTIONS: dict[str, Callable[[DarknetLayer], Value | Detections]] = {**LAYERS, **RECURRENT, **HEADS}
_SILENT = frozenset({"cost", "dropout"})
"""Sections after which the result of the network is still the one before them."""


def recognise(file: ModelFile) -> bool:
    """A .cfg by its first section; a .weights by its version, and by a .cfg beside it."""
    return is_cfg(file.data) or (_is_weights(file) and _cfg_of(file) is not None)


def _is_weights(file: ModelFile) -> bool:
    if len(file.data) < 20 or (len(file.data) % 4):
        return False
    major, minor, revision = struct.unpack_from("<3i", file.data)
    return bool(major == 0 and 0 < minor < 10 and 0 <= revision < 100)


def _cfg_of(file: ModelFile) -> ModelFile | None:
    return file.find_partner("the .cfg", "{stem}.cfg", "*.cfg", fits=lambda other: is_cfg(other.data))


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a network given by either of its files.  See ``importers.load`` for errors."""
    weights: ModelFile | None = file
    cfg = file
    if is_cfg(file.data):
        weights = file.find_partner("the weights", "{stem}.weights", "{stem}_*.weights", fits=_is_weights)
    else:
        cfg = file.partner("the .cfg", "{stem}.cfg", "*.cfg", fits=lambda other: is_cfg(other.data))
    try:
        parameters = DarknetWeights(weights.data if weights else None)
        options, *layers = sections(cfg.data)
        builder = GraphBuilder(cfg, cfg.stem, shapes, inputs, outputs, len(weights.data) if weights else 1 << 20)
        return _build(builder, options, layers, parameters)
    except FormatError as error:
        raise type(error)(str(error) if cfg.name in str(error) else f"{cfg.name}: {error}") from error


def _build(
    builder: GraphBuilder, options: CfgSection, layers: Sequence[CfgSection], parameters: DarknetWeights
) -> Graph:
    if not parameters.given:
        builder.graph.incomplete = MISSING_WEIGHTS
    network = DarknetNetwork(builder, layers, parameters, _input(builder, options))
    builder.graph.preprocessing["data"] = _pixels(options, layers)
    if not layers:
        raise FormatError("it has no layers; the file is truncated")
    detections: dict[str, Detections] = {}
    for index, (name, section) in enumerate(zip(network.names, layers, strict=True)):
        with builder.layer(name, section.type, name):
            result = _made(network, index)
            if isinstance(result, Detections):
                detections[name], result = result, result.raw
            builder[name] = result
    if not builder.writer.problems:
        parameters.finish()
    return builder.finish(_outputs(network, detections))


def _input(builder: GraphBuilder, options: CfgSection) -> tuple[int, int]:
    """Make the input; the height and width of images."""
    c, h, w = (options.integer(key) for key in ("channels", "height", "width"))
    size = options.integer("inputs", c * h * w)
    if min(c, h, w) > 0:
        value = builder.input("data", tensor(F32, 1, c, h, w))
        h, w = value.type.dims[2:] if value.type.rank == 4 else (h, w)
        return h, w
    if size < 1:
        raise FormatError("[net] states neither height, width and channels nor inputs")
    builder.input("data", tensor(F32, 1, size))
    return 1, 1


def _pixels(options: CfgSection, layers: Sequence[CfgSection]) -> Preprocessing:
    """Detectors see the whole image, classifiers a centre crop; resized by nearest neighbours, as Darknet does."""
    detects = any(section.type in HEADS for section in layers)
    whole: Fit = "letterbox" if options.integer("letter_box") else "stretch"
    return Preprocessing(scale=(1 / 255,), fit=whole if detects else "crop", border=127, sampling="bilinear")


def _made(network: DarknetNetwork, index: int) -> Value | Detections:
    """The result of a layer.  Raises RefusedError."""
    layer = DarknetLayer(network, index)
    kind = layer.section.type
    if kind not in _FUNCTIONS:
        raise unknown(kind, _FUNCTIONS, "layer")
    check(layer.section)
    network.builder.type(layer.x)
    return _FUNCTIONS[kind](layer)


def _outputs(network: DarknetNetwork, detections: Mapping[str, Detections]) -> list[str]:
    """Names of the graph's outputs: the last result, or those of the heads and all detections together."""
    builder, kinds = network.builder, [section.type for section in network.sections]
    last = next((i for i in reversed(range(len(kinds))) if kinds[i] not in _SILENT), 0)
    rest = [network.names[last]] if network.names[last] not in detections else []
    if not detections:
        return [*rest, *network.states]
    with builder.layer("detections", "detections", "boxes", "scores"):
        for name in detections:
            _ = builder[name]
        for name in ("boxes", "scores"):
            parts = [getattr(head, name) for head in detections.values()]
            builder[name] = parts[0] if len(parts) == 1 else builder.add("Concat", *parts, axis=1)
    builder.graph.heads = Heads("boxes", ("boxes", "scores"), pixels=False)
    return [*rest, *detections, "boxes", "scores", *network.states]
