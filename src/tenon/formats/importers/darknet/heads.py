"""The detection heads of Darknet, decoded: the box and the class scores of every anchor at every cell.

Boxes are corners (left, top, right, bottom) over the image's width and height, scores are objectness times class
probability, as Darknet's detector thresholds them.  Cells come row by row, the anchors of a cell after each other.
Definitions: get_yolo_box, get_region_box, get_gaussian_yolo_box and get_detection_detections of Darknet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions import yolo_grid
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.darknet.node import DarknetLayer
from tenon.formats.importers.darknet.tree import softmax, tree, whole
from tenon.network.graph.graph import Array, Value


@dataclass(frozen=True)
class Detections:
    """The detections of a head: Darknet's own result, boxes [1, N, 4] and scores [1, N, classes]."""

    raw: Value
    boxes: Value
    scores: Value


@dataclass(frozen=True)
class _Grid:
    """A head of ``anchors`` boxes with ``entries`` numbers each at every cell of an image of height x width cells."""

    anchors: int
    entries: int
    height: int
    width: int

    @property
    def cells(self) -> int:
        return self.height * self.width

    def centres(self, layer: DarknetLayer, xy: Value) -> Value:
        """Positions within cells as positions in the image."""
        moved = layer.add("Add", xy, yolo_grid.positions(self.height, self.width))
        return layer.add("Mul", moved, 1 / yolo_grid.extents(self.height, self.width))

    def parts(self, layer: DarknetLayer, *sizes: int) -> Sequence[Value]:
        """The numbers of the boxes in parts [1, anchors, size, cells]."""
        return layer.split(layer.reshape(layer.x, 1, self.anchors, self.entries, self.cells), 2, sizes)

    def listed(self, layer: DarknetLayer, x: Value, numbers: int) -> Value:
        """[1, anchors, numbers, cells] as [1, cells * anchors, numbers]."""
        return layer.reshape(layer.add("Transpose", x, perm=(0, 3, 1, 2)), 1, self.cells * self.anchors, numbers)


def _grid(layer: DarknetLayer, anchors: int, entries: int) -> _Grid:
    channels, height, width = layer.planes()
    if anchors < 1 or channels != anchors * entries:
        wanted = f"{anchors} anchors of {entries} numbers"
        raise RefusedError(f"it reads {wanted} from {channels} channels; filters before it do not fit")
    return _Grid(anchors, entries, height, width)


def _anchors(layer: DarknetLayer, chosen: Sequence[int], unit: Sequence[float]) -> Array:
    """[1, anchors, 2, 1]: width and height of the chosen anchors in images; ``unit`` is what they are counted in."""
    numbers = np.array(layer.numbers("anchors"), np.float32)
    if numbers.size % 2 or any(not 0 <= i < numbers.size // 2 for i in chosen):
        raise RefusedError(f"it has {numbers.size} numbers for anchors and needs {2 * (max(chosen, default=0) + 1)}")
    return (numbers.reshape(-1, 2)[list(chosen)] / np.array(unit, np.float32)).reshape(1, -1, 2, 1)


def _offset(layer: DarknetLayer, xy: Value) -> Value:
    """Centres stretched beyond their cell by scale_x_y."""
    scale = layer.number("scale_x_y", 1.0)
    return xy if scale == 1 else layer.add("Sub", layer.add("Mul", xy, scale), 0.5 * (scale - 1))


def _mask(layer: DarknetLayer) -> list[int]:
    chosen = [int(i) for i in layer.numbers("mask")]
    return chosen or list(range(layer.integer("num", 1)))


def yolo(layer: DarknetLayer) -> Detections:
    """Anchors in pixels of the network's input; with new_coords the convolution before has made all of it 0..1."""
    chosen, classes = _mask(layer), layer.integer("classes", 20)
    grid = _grid(layer, len(chosen), classes + 5)
    xy, wh, rest = grid.parts(layer, 2, 2, classes + 1)
    anchors = _anchors(layer, chosen, layer.network.image_size[::-1])
    if layer.integer("new_coords"):
        size = layer.add("Mul", layer.square(wh), 4 * anchors)
    else:
        xy, rest = layer.add("Sigmoid", xy), layer.add("Sigmoid", rest)
        size = layer.add("Mul", layer.add("Exp", wh), anchors)
    xy = _offset(layer, xy)
    raw = layer.reshape(layer.add("Concat", xy, wh, rest, axis=2), *layer.dims)
    objectness, probabilities = layer.split(rest, 2, [1, classes])
    return _found(layer, grid, raw, grid.centres(layer, xy), size, objectness, probabilities)


def gaussian_yolo(layer: DarknetLayer) -> Detections:
    """YOLO with an uncertainty of each coordinate; scores are multiplied by one minus its mean."""
    chosen, classes = _mask(layer), layer.integer("classes", 20)
    grid = _grid(layer, len(chosen), classes + 9)
    x, dx, y, dy, w, dw, h, dh, rest = grid.parts(layer, *[1] * 8, classes + 1)
    xy = _offset(layer, layer.add("Sigmoid", layer.add("Concat", x, y, axis=2)))
    unsure = layer.add("Sigmoid", layer.add("Concat", dx, dy, dw, dh, axis=2))
    wh, rest = layer.add("Concat", w, h, axis=2), layer.add("Sigmoid", rest)
    (x, y), (dx, dy, dw, dh) = layer.split(xy, 2, [1, 1]), layer.split(unsure, 2, [1] * 4)
    raw = layer.reshape(layer.add("Concat", x, dx, y, dy, w, dw, h, dh, rest, axis=2), *layer.dims)
    size = layer.add("Mul", layer.add("Exp", wh), _anchors(layer, chosen, layer.network.image_size[::-1]))
    objectness, probabilities = layer.split(rest, 2, [1, classes])
    mean = layer.add("ReduceMean", unsure, layer.ints(2))
    objectness = layer.add("Mul", objectness, layer.add("Sub", 1.0, mean))
    return _found(layer, grid, raw, grid.centres(layer, xy), size, objectness, probabilities)


def _found(
    layer: DarknetLayer, grid: _Grid, raw: Value, center: Value, size: Value, objectness: Value, probabilities: Value
) -> Detections:
    boxes = grid.listed(layer, yolo_grid.corners(layer, center, layer.add("Mul", size, 0.5)), 4)
    scores = layer.add("Mul", probabilities, objectness)
    return Detections(raw, boxes, grid.listed(layer, scores, layer.builder.dims(scores)[2]))


def region(layer: DarknetLayer) -> Detections:
    """YOLO v2: anchors in cells."""
    section = layer.section
    count, classes = section.integer("num", 1), section.integer("classes", 20)
    if section.integer("coords", 4) != 4 or section.integer("background"):
        raise RefusedError("only coords=4 without background is supported")
    grid = _grid(layer, count, classes + 5)
    xy, wh, objectness, logits = grid.parts(layer, 2, 2, 1, classes)
    xy, objectness = layer.add("Sigmoid", xy), layer.add("Sigmoid", objectness)
    classified = tree(layer)
    probabilities = softmax(layer, logits, classified, 2) if classified else _probabilities(layer, logits)
    raw = layer.reshape(layer.add("Concat", xy, wh, objectness, probabilities, axis=2), *layer.dims)
    anchors = _anchors(layer, range(count), (grid.width, grid.height))
    size = layer.add("Mul", layer.add("Exp", wh), anchors)
    certain = whole(layer, probabilities, classified, 2) if classified else probabilities
    return _found(layer, grid, raw, grid.centres(layer, xy), size, objectness, certain)


def _probabilities(layer: DarknetLayer, logits: Value) -> Value:
    if layer.text("tree"):
        return logits
    if layer.integer("softmax"):
        return layer.add("Softmax", logits, axis=2)
    return layer.add("Sigmoid", logits)


def detection(layer: DarknetLayer) -> Detections:
    """YOLO v1: a vector of class probabilities of all cells, then objectness, then boxes."""
    section = layer.section
    side = section.integer("side", 7)
    count = section.integer("num", 1)
    classes = section.integer("classes", 1)
    grid, x = _Grid(count, 5, side, side), layer.flat()
    length = layer.builder.dims(x)[1]
    if min(side, count, classes) < 1 or length != grid.cells * (classes + count * 5):
        raise RefusedError(f"it reads {grid.cells} cells from {length} numbers, which do not fit")
    sizes = [grid.cells * classes, grid.cells * count, grid.cells * count * 4]
    probabilities, objectness, coordinates = layer.split(x, 1, sizes)
    probabilities = layer.reshape(probabilities, 1, grid.cells, 1, classes)
    if section.integer("softmax"):
        probabilities = layer.add("Softmax", probabilities, axis=3)
    raw = layer.add("Concat", layer.reshape(probabilities, 1, sizes[0]), objectness, coordinates, axis=1)
    xy, wh = layer.split(layer.reshape(coordinates, 1, grid.cells, count, 4), 3, [2, 2])
    cells = yolo_grid.positions(side, side).transpose(0, 3, 1, 2)
    center = layer.add("Mul", layer.add("Add", xy, cells), 1 / side)
    half = layer.add("Mul", layer.square(wh) if section.integer("sqrt") else wh, 0.5)
    boxes = layer.reshape(yolo_grid.corners(layer, center, half, 3), 1, grid.cells * count, 4)
    scores = layer.add("Mul", probabilities, layer.reshape(objectness, 1, grid.cells, count, 1))
    return Detections(raw, boxes, layer.reshape(scores, 1, grid.cells * count, classes))


HEADS: dict[str, Callable[[DarknetLayer], Detections]] = {
    "yolo": yolo,
    "Gaussian_yolo": gaussian_yolo,
    "region": region,
    "detection": detection,
}
