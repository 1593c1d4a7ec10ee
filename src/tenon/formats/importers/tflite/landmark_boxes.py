"""MediaPipe's operator that makes a matrix from the box around landmarks.

Source: mediapipe/util/tflite/operations/landmarks_to_transform_matrix.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tenon.formats.decompositions import tensorflow_data_movement as elements
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite.float_arithmetic import FloatArithmetic
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.wire.flatbuffer import flex_map
from tenon.network.graph.graph import Value


def _landmarks(node: TfliteNode, numbers: Sequence[int]) -> tuple[Value, Value]:
    """x and y of some landmarks of three numbers each."""
    builder, count = node.builder, math.prod(node.dims) // 3
    if not numbers or not all(0 <= i < count for i in numbers):
        raise RefusedError(f"it reads landmarks {list(numbers)[:8]} of {count}")
    table = builder.reshape(node.x, (-1, 3)) if math.prod(node.dims) == 3 * count else node.x
    rows = builder.add("Gather", table, builder.ints(*numbers), axis=0)
    x, y, _ = builder.unpack(rows, 1)
    return x, y


def _indices(options: dict[str, Any], name: str) -> list[int]:
    given = options.get(name, [])
    return [int(v) for v in given] if isinstance(given, list) else []


def landmarks_to_matrix(node: TfliteNode) -> Outputs:
    options = flex_map(node.operation.custom)
    return (_matrix_1 if node.operation.version == 1 else _matrix_2)(node, options)


def _box(node: TfliteNode, subset: Sequence[int], sine: Value, cosine: Value) -> tuple[list[Value], list[Value]]:
    """The size and the centre, in the given axes, of the box around turned landmarks."""
    floats, builder = FloatArithmetic(node), node.builder
    sizes, middles = [], []
    for along in floats.rotated(*_landmarks(node, subset), sine, cosine):
        high, low = builder.reduce("Max", along, [0], keep=False), builder.reduce("Min", along, [0], keep=False)
        sizes.append(floats.of("Sub", high, low))
        middles.append(floats.of("Mul", floats.of("Add", high, low), 0.5))
    return sizes, middles


def _rows(node: TfliteNode, rows: Sequence[Sequence[Value]]) -> Value:
    """A matrix [1, 4, 4] of two rows and two of the identity."""
    builder, zero, one = node.builder, node.builder.scalar(0.0), node.builder.scalar(1.0)
    numbers = [v for a, b, shift in rows for v in (a, b, zero, shift)]
    return builder.reshape(builder.pack([*numbers, zero, zero, one, zero, zero, zero, zero, one], 0), (1, 4, 4))


def _matrix_1(node: TfliteNode, options: dict[str, Any]) -> Outputs:
    """From pixels of the output to pixels of the input, of the upright box around landmarks."""
    floats, builder = FloatArithmetic(node), node.builder
    (in_h, in_w), (out_h, out_w) = (_pair(options, name) for name in ("input_hw", "output_hw"))
    limit, factor = float(options.get("landmarks_range", 0)), float(options.get("bbox_size_multiplier", 0))
    if limit <= 0 or factor == 0 or int(options.get("dimensions", 0)) != 3 or min(out_h, out_w) < 2:
        raise RefusedError("its landmarks_range, bbox_size_multiplier, dimensions or output_hw are impossible")
    ends = [int(options.get(f"{side}_rotation_idx", -1)) for side in ("left", "right")]
    (left_x, right_x), (left_y, right_y) = (builder.unpack(v, 0) for v in _landmarks(node, ends))
    slope = floats.of("Div", floats.of("Sub", right_y, left_y), floats.of("Sub", right_x, left_x))
    angle = floats.of("Atan", slope)  # the landmarks are turned back by it
    sine, cosine = floats.of("Sin", angle), floats.of("Cos", angle)
    sizes, middles = _box(node, _indices(options, "subset"), floats.of("Neg", sine), cosine)
    centre = floats.rotated(middles[0], middles[1], sine, cosine)
    scale_x, scale_y = (floats.of("Mul", size, factor / limit) for size in sizes)
    rows = []
    for (a, b), middle, pixels in zip(
        ((cosine, floats.of("Neg", sine)), (sine, cosine)), centre, (in_w, in_h), strict=True
    ):
        half = (pixels - 1) / 2
        first, second = floats.of("Mul", a, scale_x), floats.of("Mul", b, scale_y)
        shift = floats.sum(floats.of("Mul", middle, 2 / limit), -1.0, floats.of("Neg", first), floats.of("Neg", second))
        rows.append(
            (
                floats.of("Mul", first, half * 2 / (out_w - 1)),
                floats.of("Mul", second, half * 2 / (out_h - 1)),
                floats.sum(floats.of("Mul", shift, half), half),
            )
        )
    return _rows(node, rows)


def _matrix_2(node: TfliteNode, options: dict[str, Any]) -> Outputs:
    """From pixels of the output to the box around landmarks, turned to a given angle."""
    floats, builder = FloatArithmetic(node), node.builder
    height, width = (float(options.get(f"output_{side}", 0)) for side in ("height", "width"))
    scales = [float(options.get(f"scale_{axis}", 0)) for axis in "xy"]
    if min(height, width, *scales) <= 0:
        raise RefusedError("its output_height, output_width, scale_x or scale_y is not above 0")
    ends = [int(options.get(f"{side}_rotation_idx", -1)) for side in ("left", "right")]
    (left_x, right_x), (left_y, right_y) = (builder.unpack(v, 0) for v in _landmarks(node, ends))
    direction = elements.atan2(builder, floats.of("Sub", right_y, left_y), floats.of("Sub", right_x, left_x))
    turn = floats.of("Sub", float(options.get("target_rotation_radians", 0)), direction)
    sine, cosine = floats.of("Sin", turn), floats.of("Cos", turn)
    sizes, middles = _box(node, _indices(options, "subset_idxs"), sine, cosine)
    back = floats.of("Neg", sine)
    centre = floats.rotated(middles[0], middles[1], back, cosine)
    scale_x, scale_y = (
        floats.of("Mul", size, scale / extent)
        for size, scale, extent in zip(sizes, scales, (width, height), strict=True)
    )
    rows = []
    for (a, b), middle in zip(((cosine, sine), (back, cosine)), centre, strict=True):
        first, second = floats.of("Mul", a, scale_x), floats.of("Mul", b, scale_y)
        shift = floats.sum(middle, floats.of("Mul", first, -width / 2), floats.of("Mul", second, -height / 2))
        rows.append((first, second, shift))
    return _rows(node, rows)


def _pair(options: dict[str, Any], name: str) -> tuple[int, int]:
    numbers = _indices(options, name)
    if len(numbers) != 2 or min(numbers) < 1:
        raise RefusedError(f"its {name} {numbers} is not a height and a width")
    return numbers[0], numbers[1]
