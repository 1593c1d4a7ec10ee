"""Activations that are fused into TFLite's operators, as nodes of their own."""

from __future__ import annotations

from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite import schema
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.network.graph.graph import Value

BOUNDED = [schema.ACTIVATIONS.index(name) for name in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")]
"""Activations that mean the same for steps as for real numbers."""


def activated(node: TfliteNode, y: Value, step: float = 1.0) -> Value:
    """``y``, which counts ``step``, with the operator's fused activation as a node of its own."""
    return activate(node.builder, y, node.integer("activation"), step)


def activate(builder: ChannelsLast, y: Value, code: int, step: float = 1.0) -> Value:
    """``y``, which counts ``step``, with the activation of this number in the schema."""
    name = schema.ACTIVATIONS[code] if 0 <= code < len(schema.ACTIVATIONS) else str(code)
    if name == "NONE":
        return y
    if name == "RELU":
        return builder.add("Relu", y)
    if name == "RELU6":
        return builder.clip(y, 0, 6 / step)
    if name == "RELU_N1_TO_1":
        return builder.clip(y, -1 / step, 1 / step)
    if name == "TANH":
        return builder.add("Tanh", y)
    raise RefusedError(f"the fused activation {name} is not supported")
