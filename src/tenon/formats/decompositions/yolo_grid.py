"""Constants that decode YOLO heads: the cells of a map, which pairs of numbers (across, down) are laid along axis 2
of [1, anchors, 2, cells], and boxes from their centres and sizes."""

from __future__ import annotations

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.network.graph.graph import Array, Value

MAX_CELLS = 1 << 22
"""Most cells of a feature map: an image of 65,536 x 65,536 pixels has as many at stride 32."""


def positions(height: int, width: int) -> Array:
    """[1, 1, 2, cells]: the column and the row of every cell.  Raises RefusedError for a map of too many."""
    if height * width > MAX_CELLS:
        raise RefusedError(f"a map of {height} x {width} cells; at most {MAX_CELLS} are possible")
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    return np.stack([columns, rows]).reshape(1, 1, 2, -1)


def extents(height: int, width: int) -> Array:
    """[1, 1, 2, 1]: how many cells there are across and down."""
    return np.array([width, height], np.float32).reshape(1, 1, 2, 1)


def corners(node: NodeContext, centre: Value, half: Value, axis: int = 2) -> Value:
    """Boxes (left, top, right, bottom) along an axis."""
    return node.add("Concat", node.add("Sub", centre, half), node.add("Add", centre, half), axis=axis)
