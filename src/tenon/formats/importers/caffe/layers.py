"""Caffe's layers in ONNX operators: ``LAYERS``, the table of layer types.

Each entry takes a ``CaffeLayer`` and gives the values of its tops.  Semantics are
those of BVLC Caffe's CPU code when testing, and of the fork that made a layer known.
"""

from __future__ import annotations

from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.importers.caffe import convolution, data_movement, detection, normalize, pointwise, recurrent
from tenon.formats.importers.caffe.node import CaffeLayer, Table
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value

LAYERS: Table = {
    **convolution.LAYERS,
    **normalize.LAYERS,
    **pointwise.LAYERS,
    **data_movement.LAYERS,
    **recurrent.LAYERS,
    **detection.LAYERS,
}


def import_layer(layer: CaffeLayer) -> None:
    """Name the values of a layer's tops in its net.  Raises RefusedError."""
    message = layer.message
    if message.type not in LAYERS:
        raise unknown(message.type, LAYERS, "layer")
    _check_names(message)
    field, function = LAYERS[message.type]
    layer.p = getattr(message, field) if field else message
    layer.inputs = [layer.builder[name] for name in message.bottom]
    result = function(layer)
    tops = [result] if isinstance(result, Value) else result
    if len(tops) < len(message.top):
        raise RefusedError(f"its top '{message.top[len(tops)]}' is not supported")
    for name, value in zip(message.top, tops, strict=False):
        layer.builder[name] = value


def _check_names(message: Message) -> None:
    """Refuse parameters that the schema lacks: they may change what the layer means.  Fillers only initialise
    training."""
    for row, value in message.items():
        if row.name.endswith("_param") and row.name != "transform_param":
            for name in value.unknown:
                if not name.endswith("filler"):
                    raise RefusedError(f"{row.name}: the parameter '{name}' is not known")
