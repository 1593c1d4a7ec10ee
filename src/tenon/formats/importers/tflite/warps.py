"""MediaPipe's operators that transform images and landmarks by a matrix.

Source: transform_tensor_bilinear.cc and transform_landmarks.cc in mediapipe/util/tflite/operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite.float_arithmetic import FloatArithmetic
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.wire.flatbuffer import flex_map
from tenon.network.graph.graph import Value


def _matrix(node: TfliteNode, k: int) -> list[list[Value]]:
    """The first two rows of an operand of 4x4 numbers, as scalars."""
    builder = node.builder
    if math.prod(builder.dims(node.input(k))) != 16:
        raise RefusedError(f"its transform has the shape {list(builder.dims(node.input(k)))}; it must be 4x4")
    flat = builder.unpack(builder.reshape(node.input(k), (16,)), 0)
    return [list(flat[:4]), list(flat[4:8])]


def _transform_image(node: TfliteNode, options: dict[str, Any], *, centres: bool) -> Outputs:
    """The image at transformed positions, between its four neighbours; 0 outside.  ``centres``: of pixels' centres."""
    floats, builder, (n, height, width, channels) = FloatArithmetic(node), node.builder, node.image(node.x)
    rows, columns = options["output_size"]
    if n != 1 or not (0 < rows < 1 << 16 and 0 < columns < 1 << 16):
        raise RefusedError(f"{n} images are made ones of {rows}x{columns}; it must be one image")
    across, down = (builder.constant(np.arange(count, dtype=np.float32), "positions") for count in (columns, rows))
    positions = []
    for a, b, _, shift in _matrix(node, 1):
        if centres:
            half = floats.of("Mul", floats.of("Add", a, b), 0.5)
            shift = floats.sum(shift, half, -0.5)
        by_row = builder.reshape(floats.of("Mul", down, b), (rows, 1))
        positions.append(floats.sum(floats.of("Mul", across, a), by_row, shift))
    return _bilinear(floats, builder.reshape(node.x, (height * width, channels)), (height, width), positions)


def _bilinear(floats: FloatArithmetic, pixels: Value, sizes: tuple[int, int], positions: Sequence[Value]) -> Value:
    """Pixels [height * width, channels] at positions (x, y) [rows, columns]."""
    builder, (x, y), (height, width) = floats.builder, positions, sizes
    rows, columns = builder.dims(x)
    channels = builder.dims(pixels)[1]
    inside = None
    neighbours = []
    for at, size in ((x, width), (y, height)):
        within = builder.add("And", floats.of("GreaterOrEqual", at, 0.0), floats.of("LessOrEqual", at, size - 1.0))
        inside = within if inside is None else builder.add("And", inside, within)
        floor = builder.clip(floats.of("Floor", at), 0, size - 1)
        share = builder.reshape(floats.of("Sub", at, floor), (rows, columns, 1))
        second = builder.clip(floats.of("Add", floor, 1.0), 0, size - 1)
        neighbours.append(([builder.add("Cast", v, to="i64") for v in (floor, second)], share))
    (left_right, share_x), (upper_lower, share_y) = neighbours
    step = builder.constant(np.array(width, np.int64), "step")

    def line(row: Value) -> Value:
        """Between two neighbours of a row."""
        first = builder.add("Mul", row, step)
        a, b = (builder.add("Gather", pixels, builder.add("Add", first, column), axis=0) for column in left_right)
        return floats.of("Add", floats.of("Mul", floats.of("Sub", 1.0, share_x), a), floats.of("Mul", share_x, b))

    upper, lower = (line(row) for row in upper_lower)
    result = floats.of("Add", floats.of("Mul", share_y, lower), floats.of("Mul", floats.of("Sub", 1.0, share_y), upper))
    assert inside is not None
    result = builder.add("Where", builder.reshape(inside, (rows, columns, 1)), result, builder.scalar(0.0))
    return builder.reshape(result, (1, rows, columns, channels))


def transform_tensor(node: TfliteNode) -> Outputs:
    options = flex_map(node.operation.custom)
    if node.operation.version == 1:
        size = options.get("output_size", [])
        if options.get("mode", "bilinear") != "bilinear" or not isinstance(size, list) or len(size) != 2:
            raise RefusedError(f"mode {options.get('mode')} with output_size {size} is not supported")
        return _transform_image(node, {"output_size": [int(v) for v in size]}, centres=False)
    size = [int(options.get(f"output_{side}", 0)) for side in ("height", "width")]
    return _transform_image(node, {"output_size": size}, centres=True)


def transform_landmarks(node: TfliteNode) -> Outputs:
    """Landmarks of 2 or 3 numbers, the first two of them transformed."""
    floats, builder, options, dims = FloatArithmetic(node), node.builder, {}, node.dims
    size, scale = dims[-1], 1.0
    if node.operation.version == 1:
        options = flex_map(node.operation.custom)
        size, scale = int(options.get("dimensions", 3)), float(options.get("scale", 1))
    if size not in (2, 3) or math.prod(dims) % size:
        raise RefusedError(f"landmarks of {size} numbers in {list(dims)} are not supported")
    x, y, *rest = builder.unpack(builder.reshape(node.x, (-1, size)), 1)
    moved = [
        floats.sum(floats.of("Mul", x, a), floats.of("Mul", y, b), floats.of("Mul", shift, scale))
        for a, b, _, shift in _matrix(node, 1)
    ]
    return builder.reshape(builder.pack([*moved, *rest], 1), dims)
