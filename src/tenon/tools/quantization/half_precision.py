"""Layers in fp16 of a graph whose other layers are quantised: products that read, multiply and return f16.

In a file they are operators of f16 between two Casts.  Where they are computed in f32 (``compute_in_single``), their
operands and results are still rounded to f16; ``precision="fp16"`` stores their weights in f16, and targets with
arithmetic in f16 compute them in it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.graph.types import F32, DType
from tenon.network.ops.traits import is_product
from tenon.network.passes.base import make
from tenon.tools.quantization.placement import has_constant_weights


def layer_name(node: Node) -> str:
    """The name by which options and reports refer to the layer of a node."""
    return str(node.origin.layer) or node.output.name


def in_fp16(graph: Graph, layers: Collection[str]) -> None:
    """Let the products of ``layers`` compute in f16; ``graph`` is changed, its values keep their types."""
    narrow: dict[Value, Value] = {}
    for node in list(graph) if layers else ():
        named = layer_name(node) in layers or node.output.name in layers
        if named and is_product(node) and has_constant_weights(node) and node.output.type.dtype is F32:
            _convert(graph, node, narrow)


def _convert(graph: Graph, node: Node, narrow: dict[Value, Value]) -> None:
    """The node becomes the Cast of its result, so that what refers to the result stays valid."""
    inputs = [None if v is None else _narrowed(graph, node, v, narrow) for v in node.inputs]
    product = graph.add(node.op, inputs, [f"{node.output.name}_fp16"], node.origin, before=node)
    node.op = make("Cast", to=F32.value)
    node.origin = Origin(layer=f"{node.output.name}_f32", type="Cast")
    graph.rewire(node, [product.output])


def _narrowed(graph: Graph, node: Node, value: Value, narrow: dict[Value, Value]) -> Value:
    if value not in narrow:
        if value.data is not None:
            with np.errstate(over="ignore"):
                narrow[value] = graph.constant(f"{value.name}_fp16", value.array.astype(DType.F16.numpy))
        else:
            cast = make("Cast", to=DType.F16.value)
            narrow[value] = graph.add(cast, [value], [f"{value.name}_fp16"], before=node).output
    return narrow[value]
