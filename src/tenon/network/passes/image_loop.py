"""Images of a batch one after the other: layers that treat each image alone become the body of a loop over them.

What lies between these layers then fits the caches, and takes the memory of one image.  Products of one position by
large weights stay outside: a batch reads their weights once.
"""

from __future__ import annotations

import math

import numpy as np

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.move import Concat
from tenon.network.ops.scan import Scan
from tenon.network.ops.shape import Reshape
from tenon.network.ops.softmax import Softmax
from tenon.network.ops.traits import is_product, is_quantised
from tenon.network.passes.base import attribute, drop_dead, make

CACHED = 1 << 20
"""Bytes of a result for all images, from which caches near a core do not hold it."""

FEW_POSITIONS, LARGE = 16, 1 << 18
"""Positions of an image, and bytes of weights: with fewer and more, a product is that of the whole batch."""

_LEAST = 3
"""Nodes that are worth a loop."""

_ALONE = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "BatchNormalization",
        "InstanceNormalization",
        "LRN",
        "Concat",
        "Split",
        "Slice",
        "Pad",
        "Resize",
        "Flatten",
        "Reshape",
        "Transpose",
        "ReduceMean",
        "DepthToSpace",
        "SpaceToDepth",
        "Gemm",
        "MatMul",
    }
)
"""Operators that compute an image of a batch from that image alone, if their result for one image is that for all but
for the extent of the first axis."""


def with_image_loop(graph: Graph) -> Graph:
    """The graph with a loop over the images of its inputs, or ``graph`` itself where that saves nothing."""
    batch = _batch(graph)
    if batch < 2 or is_quantised(graph):
        return graph
    changed = graph.copy()
    return changed if _ImageLoop(changed, batch).run() else graph


def _batch(graph: Graph) -> int:
    """The first extent of all inputs and outputs; 0 where they differ or are not alone in deciding the others."""
    special = graph.states or graph.sizes or graph.extents or any(node.bodies for node in graph)
    ports = [*graph.inputs, *graph.outputs]
    if special or not all(v.type.rank for v in ports) or any(v.data is not None for v in graph.outputs):
        return 0
    extents = {v.type.dims[0] for v in ports}
    return extents.pop() if len(extents) == 1 else 0


class _ImageLoop:
    """Copies the nodes that can be in the loop to its body, and lets the loop take their place."""

    def __init__(self, graph: Graph, batch: int) -> None:
        self.graph, self.batch = graph, batch
        self.body = Graph(f"{graph.name}_image", graph.source)
        self.one: dict[Value, Value] = {}  # values of the graph, and what they are in the body, for one image
        self.sliced: list[Value] = []

    def run(self) -> bool:
        for value in self.graph.inputs:
            self.slice(value)
        nodes = [node for node in self.graph if self.copied(node)]
        largest = max((v.type.nbytes for node in nodes for v in node.outputs), default=0)
        if len(nodes) < _LEAST or largest < CACHED:
            return False
        inside = set(nodes)
        results = [
            v for node in nodes for v in node.outputs if self.graph.is_output(v) or not inside.issuperset(v.uses)
        ]
        for value in results:
            self.body.outputs.append(self.without_axis(value))
        scan = Scan(count=self.batch, states=0, slices=len(self.sliced))
        names = [v.name for v in results]
        loop = self.graph.add(scan, self.sliced, names, nodes[0].origin, before=nodes[0], bodies=[self.body])
        for old, new in zip(results, loop.outputs, strict=True):
            self.graph.replace(old, new)
        for node in reversed(nodes):
            drop_dead(self.graph, node)
        return True

    def slice(self, value: Value) -> None:
        """An input of the loop, of which the body has an image."""
        type = value.type
        given = self.body.add_input(value.name, TensorType(type.dtype, type.dims[1:]))
        axes = self.body.constant(f"{value.name}_axes", np.array([0], np.int64))
        self.one[value] = self.body.add(make("Unsqueeze"), [given, axes], [f"{value.name}_image"]).output
        self.sliced.append(value)

    def without_axis(self, value: Value) -> Value:
        axes = self.body.constant(f"{value.name}_axes", np.array([0], np.int64))
        return self.body.add(make("Squeeze"), [self.one[value], axes], [f"{value.name}_result"]).output

    def copied(self, node: Node) -> bool:
        """Whether the node is in the body now."""
        known = [v for v in node.inputs if v is not None and v.data is None]
        if not known or any(v not in self.one for v in known) or not self.alone(node):
            return False
        inputs = [None if v is None else self.one[v] if v.data is None else self.constant(node, v) for v in node.inputs]
        if any(v is not None and v.data is not None and self.varies(node, v) for v in node.inputs):
            return False
        copy = self.body.add(node.op, inputs, [v.name for v in node.outputs], node.origin)
        if not all(self.is_one(a, b) for a, b in zip(copy.outputs, node.outputs, strict=True)):
            self.body.remove(copy)
            return False
        self.one.update(zip(node.outputs, copy.outputs, strict=True))
        return True

    def is_one(self, one: Value, every: Value) -> bool:
        same = one.type.dtype is every.type.dtype and one.type.dims[1:] == every.type.dims[1:]
        return same and one.type.dims[:1] == (1,) and every.type.dims[:1] == (self.batch,)

    def alone(self, node: Node) -> bool:
        """Whether each image of the results is that of the same image of the operands."""
        op = node.op
        if isinstance(op, Softmax):
            return int(attribute(node, "axis")) % node.input(0).type.rank != 0
        if not isinstance(op, Pointwise) and op.name not in _ALONE:
            return False
        if isinstance(op, MatMul) and (node.input(1).data is None or node.input(1).type.rank != 2):
            return False
        if isinstance(op, Gemm) and (node.input(1).data is None or attribute(node, "transA")):
            return False
        return not (is_product(node) and self.large(node))

    def large(self, node: Node) -> bool:
        weights, result = node.input(1), node.output.type
        channels = result.dims[1] if result.rank > 2 else result.dims[-1]
        positions = math.prod(result.dims[1:]) // max(1, channels)
        return weights.type.nbytes > LARGE and positions < FEW_POSITIONS

    def varies(self, node: Node, value: Value) -> bool:
        """Whether a constant operand has an image for each of the batch."""
        computed = isinstance(node.op, (Pointwise, Concat))
        return computed and value.type.rank == node.output.type.rank and value.type.dims[:1] == (self.batch,)

    def constant(self, node: Node, value: Value) -> Value:
        """The constant in the body; the shape of a Reshape is that of one image."""
        data = value.array
        if isinstance(node.op, Reshape) and value is node.inputs[1] and data.size and data[0] == self.batch:
            data = np.array([1, *data[1:]], data.dtype)
        return self.body.constant(value.name, data)
