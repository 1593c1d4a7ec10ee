"""CropAndResize of TensorFlow and ONNX Runtime: boxes cut out of images and sampled at a grid of points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.network.graph.graph import Value

_ROUNDING = 1e-5
"""How far outside, in extents of the image, a sample on its edge may come to lie by rounding."""
LARGEST = 1 << 12
"""Rows and columns of a result."""


@dataclass(frozen=True)
class Crops:
    """Crops of images ``x`` [N, C, H, W]: ``boxes`` (y0, x0, y1, x1) relative to the image, from corner pixel to corner
    pixel, of the images ``numbers`` (i64), sampled at ``rows`` by ``columns`` points; ``outside`` is what lies beyond
    the image."""

    node: NodeContext
    x: Value
    boxes: Value
    numbers: Value
    rows: int
    columns: int
    outside: float

    def cropped(self, method: str) -> Value:
        """[boxes, C, rows, columns], by a ``method`` of TensorFlow: bilinear or nearest.  Raises RefusedError."""
        if method not in ("bilinear", "nearest"):
            raise RefusedError(f"the method {method} is unknown")
        if not (0 < self.rows < LARGEST and 0 < self.columns < LARGEST):
            raise RefusedError(f"images of {self.rows}x{self.columns} are impossible")
        return self._bilinear() if method == "bilinear" else self._nearest()

    @property
    def _extents(self) -> tuple[int, int]:
        return self.node.builder.dims(self.x)[2], self.node.builder.dims(self.x)[3]

    def _grid(self) -> tuple[Value, Value]:
        """The first sample and the distance between two, [boxes, 2] in rows and columns of pixels."""
        node, (height, width) = self.node, self._extents
        low, high = node.split(self.boxes, 1, [2, 2])
        count = np.array([self.rows, self.columns], np.float32)
        last = node.constant(np.array([height - 1, width - 1], np.float32), "last")
        size = node.add("Mul", node.add("Sub", high, low), last)
        step = node.add("Div", size, node.constant(np.maximum(count - 1, 1), "gaps"))
        middle = node.add("Mul", node.add("Mul", node.add("Add", low, high), 0.5), last)
        return node.add("Where", node.constant(count > 1, "several"), node.add("Mul", low, last), middle), step

    def _bilinear(self) -> Value:
        """Bins of one sample with their centres at the samples."""
        node = self.node
        first, step = self._grid()
        count = node.constant(np.array([self.rows, self.columns], np.float32), "count")
        begin = node.add("Add", node.add("Sub", first, node.add("Mul", step, 0.5)), 0.5)
        end = node.add("Add", begin, node.add("Mul", step, count))
        corners = node.add("Gather", node.add("Concat", begin, end, axis=1), node.ints(1, 0, 3, 2), axis=1)
        sizes = {"output_height": self.rows, "output_width": self.columns}
        result = node.add("RoiAlign", self.x, corners, self.numbers, **sizes, sampling_ratio=1)
        within = [self._inside(at, n) for at, n in zip(self._samples(first, step), self._extents, strict=True)]
        return node.add("Where", node.add("And", *within), result, self.outside)

    def _nearest(self) -> Value:
        """Pixels gathered by their number; halves are rounded up."""
        node, (height, width) = self.node, self._extents
        n, channels = node.builder.dims(self.x)[:2]
        samples = self._samples(*self._grid())
        rows, columns = (self._rounded(at, extent) for at, extent in zip(samples, (height, width), strict=True))
        image = node.add("Reshape", self.numbers, node.ints(-1, 1, 1, 1))
        at = node.add("Add", node.add("Mul", image, node.ints(height)), rows)
        at = node.add("Add", node.add("Mul", at, node.ints(width)), columns)
        count = node.builder.dims(self.boxes)[0]
        flat = node.add("Reshape", at, node.ints(count, self.rows, self.columns))
        pixels = node.add("Transpose", self.x, perm=(0, 2, 3, 1))
        pixels = node.add("Reshape", pixels, node.ints(n * height * width, channels))
        result = node.add("Transpose", node.add("Gather", pixels, flat, axis=0), perm=(0, 3, 1, 2))
        within = [self._inside(at, n) for at, n in zip(samples, (height, width), strict=True)]
        return node.add("Where", node.add("And", *within), result, self.outside)

    def _samples(self, first: Value, step: Value) -> tuple[Value, Value]:
        """Where samples lie: rows [boxes, 1, rows, 1] and columns [boxes, 1, 1, columns], in pixels."""
        node = self.node
        places = []
        for axis, count in enumerate((self.rows, self.columns)):
            begin, gap = (node.split(v, 1, [1, 1])[axis] for v in (first, step))
            indices = node.constant(np.arange(count, dtype=np.float32)[None], "places")
            at = node.add("Add", begin, node.add("Mul", gap, indices))
            places.append(node.add("Reshape", at, node.ints(*((-1, 1, count, 1) if axis == 0 else (-1, 1, 1, count)))))
        return places[0], places[1]

    def _inside(self, at: Value, extent: int) -> Value:
        middle = (extent - 1) / 2
        away = self.node.add("Abs", self.node.add("Sub", at, middle))
        return self.node.add("LessOrEqual", away, middle + _ROUNDING * extent)

    def _rounded(self, at: Value, extent: int) -> Value:
        """The nearest pixel of an axis, i64."""
        node = self.node
        floor = node.add("Floor", at)
        up = node.add("Cast", node.add("GreaterOrEqual", node.add("Sub", at, floor), 0.5), to="f32")
        limited = node.add("Max", node.add("Min", node.add("Add", floor, up), float(extent - 1)), 0.0)
        return node.add("Cast", limited, to="i64")
