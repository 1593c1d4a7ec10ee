"""The outputs of a graph that list detections, recognised by the operators that compute them and by their shapes."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.preprocessing import Corners, Heads, planes
from tenon.network.ops.base import Operator
from tenon.network.ops.detection import DetectionOutput
from tenon.network.ops.post_process import DetectionPostProcess


def find_heads(graph: Graph) -> Heads | None:
    """How the graph's outputs list detections; None if they do not, or if it is ambiguous.

    The graph's shapes must be bound.
    """
    if graph.heads and {v.name for v in graph.outputs}.issuperset(graph.heads.outputs):
        return graph.heads
    return _of_operators(graph) or _of_shapes(graph) or _of_grids(graph)


def _of_operators(graph: Graph) -> Heads | None:
    """Outputs computed by a detection operator."""
    for value in graph.outputs:
        node = value.producer
        if node is not None and isinstance(node.op, DetectionOutput):
            return Heads("rows", (value.name,), pixels=False, background=node.op.background)
        whole = node is not None and value is node.outputs[0] and all(graph.is_output(v) for v in node.outputs)
        if node is not None and isinstance(node.op, DetectionPostProcess) and whole:
            return Heads("lists", tuple(v.name for v in node.outputs), "yxyx", pixels=False)
    return None


def _of_shapes(graph: Graph) -> Heads | None:
    """One output of boxes with one of scores of the same length, or with one of classes and one of scores."""
    floats = [v for v in graph.outputs if v.type.dtype.is_float and v.type.rank in (2, 3)]
    boxes = [v for v in floats if v.type.dims[-1] == 4 and v.type.dims[-2] > 1 and not _raw(v)]
    if len(boxes) != 1:
        return None
    (box,) = boxes
    count = box.type.dims[-2]
    scores = [v for v in floats if v is not box and v.type.dims[-2:-1] == (count,) and v.type.dims[:-2] in ((), (1,))]
    if len(scores) == 1:
        return Heads("boxes", (box.name, scores[0].name))
    lists = [v for v in graph.outputs if v is not box and v.type.rank > 0 and v.type.dims[-1] == count]
    classes = [v for v in lists if not v.type.dtype.is_float or _called(v, "label", "class")]
    sure = [v for v in lists if v.type.dtype.is_float and v not in classes]
    if len(classes) == 1 and len(sure) == 1:
        corners: Corners = "yxyx" if _called(box, "detection_boxes") else "xyxy"
        return Heads("lists", (box.name, classes[0].name, sure[0].name), corners)
    return None


def _of_grids(graph: Graph) -> Heads | None:
    """One output with a row for every cell of grids of strides 8, 16, 32 (and 64), as exporters of YOLO give."""
    images = [image for v in graph.inputs if (image := planes(v.type.dims))]
    if len(images) != 1 or len(graph.outputs) != 1 or graph.outputs[0].type.rank != 3 or _raw(graph.outputs[0]):
        return None
    (output,), (_, height, width, _) = graph.outputs, images[0]
    _, rows, columns = output.type.dims
    grids = [sum((height // s) * (width // s) for s in strides) for strides in ((8, 16, 32), (8, 16, 32, 64))]
    if columns > 5 and rows in [3 * cells for cells in grids]:
        return Heads("yolo", (output.name,), "cxcywh", pixels=True)
    if rows > 4 and columns in grids:
        return Heads("columns", (output.name,), "cxcywh", pixels=True)
    return None


def _called(value: Value, *words: str) -> bool:
    return any(word in value.name.lower() for word in words)


def _raw(value: Value) -> bool:
    """Whether a product of matrices reaches the output only through data movement, not decoded."""
    todo: Sequence[Value] = [value]
    while todo:
        producers = [(v.producer, v.producer.op) for v in todo if v.producer is not None]
        if any(isinstance(op, Operator) and op.bilinear for _, op in producers):
            return True
        moved = (node for node, op in producers if isinstance(op, Operator) and (op.moves or op.converts))
        todo = [v for node in moved for v in node.inputs if v is not None]
    return False
