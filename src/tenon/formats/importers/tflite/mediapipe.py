"""MediaPipe's custom operators: pooling that keeps positions, transposed convolutions with a bias; a table of all.

Source: mediapipe/util/tflite/operations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite.activation import activate
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.importers.tflite.landmark_boxes import landmarks_to_matrix
from tenon.formats.importers.tflite.warps import transform_landmarks, transform_tensor

_SAME, _VALID = 1, 2
"""TfLitePadding."""
LARGEST_WINDOW = 64


# ------------------------------------------------------------------------------------------------- windows
def _fields(node: TfliteNode, count: int) -> tuple[int, ...]:
    """The first integers of a C structure, which the custom options are."""
    if len(node.operation.custom) < 4 * count:
        raise RefusedError(f"its custom options have {len(node.operation.custom)} bytes; {4 * count} are needed")
    return struct.unpack_from(f"<{count}i", node.operation.custom)


def _convolution_transpose_bias(node: TfliteNode) -> Outputs:
    """A transposed convolution whose image is as large as its input and strides make it."""
    padding, stride_w, stride_h = _fields(node, 3)
    builder, strides = node.builder, (stride_h, stride_w)
    if padding not in (_SAME, _VALID) or min(strides) < 1:
        raise RefusedError(f"padding {padding} with strides {list(strides)} is not supported")
    sizes, kernel = builder.dims(node.x)[1:-1], builder.dims(node.input(1))[1:-1]
    windows = list(zip(sizes, kernel, strides, strict=True))
    cut = [max(0, k - (n - 1) % s - 1) if padding == _SAME else 0 for n, k, s in windows]
    image = [s * (n - 1) + k - c for (n, k, s), c in zip(windows, cut, strict=True)]
    w = builder.transpose(node.input(1), (3, 0, 1, 2))
    before = [c // 2 for c in cut]
    return builder.conv_transpose(node.x, w, node.optional(2), image, strides=strides, padding=before)


def _pool_with_argmax(node: TfliteNode) -> Outputs:
    """The largest element of each window, and its number within the window plus 0.1."""
    padding, stride_w, stride_h, width, height, activation = _fields(node, 6)
    builder, (_, *sizes, _) = node.builder, node.builder.dims(node.x)
    if padding not in (_SAME, _VALID) or min(stride_h, stride_w, width, height) < 1 or width * height > LARGEST_WINDOW:
        raise RefusedError(f"windows of {height}x{width} with padding {padding} are not supported")
    kernel, strides = (height, width), (stride_h, stride_w)
    name = "SAME" if padding == _SAME else "VALID"
    top, left, bottom, right = builder.pads(node.x, kernel, strides, (1, 1), name)
    pads = np.array([[0, 0], [top, bottom], [left, right], [0, 0]])
    lowest = builder.scalar(float(np.finfo(np.float32).min))
    x = builder.pad(node.x, pads, lowest) if pads.any() else node.x
    counts = [
        (n + p - k) // s + 1 for n, p, k, s in zip(sizes, (top + bottom, left + right), kernel, strides, strict=True)
    ]
    largest, at = lowest, builder.scalar(0.1)
    for number in range(width * height):
        row, column = divmod(number, width)
        ends = [row + (counts[0] - 1) * stride_h + 1, column + (counts[1] - 1) * stride_w + 1]
        part = builder.slice(x, [row, column], ends, [1, 2], strides)
        above = builder.add("Greater", part, largest)
        largest = builder.add("Where", above, part, largest)
        at = builder.add("Where", above, builder.scalar(number + 0.1), at)
    return [activate(builder, largest, activation), at]


def _unpool(node: TfliteNode) -> Outputs:
    """Elements put back to where they were in their windows, which lie side by side."""
    _, stride_w, stride_h, width, height = _fields(node, 5)
    builder, x = node.builder, node.x
    if (stride_h, stride_w) != (height, width) or not 0 < width * height <= LARGEST_WINDOW:
        raise RefusedError(f"windows of {height}x{width} with strides of {stride_h}x{stride_w} are not supported")
    number = builder.add("Cast", node.input(1), to="i32")
    zero, places = builder.number(0, x), range(width * height)
    parts = [builder.add("Where", builder.add("Equal", number, builder.number(i, number)), x, zero) for i in places]
    n, rows, columns, channels = builder.dims(x)
    apart = builder.reshape(builder.pack(parts, 3), (n, rows, columns, height, width, channels))
    return builder.reshape(builder.transpose(apart, (0, 1, 3, 2, 4, 5)), (n, rows * height, columns * width, channels))


MEDIAPIPE: dict[str, Callable[[TfliteNode], Outputs]] = {
    "Convolution2DTransposeBias": _convolution_transpose_bias,
    "Landmarks2TransformMatrix": landmarks_to_matrix,
    "MaxPoolingWithArgmax2D": _pool_with_argmax,
    "MaxUnpooling2D": _unpool,
    "TransformLandmarks": transform_landmarks,
    "TransformTensor": transform_tensor,
    "TransformTensorBilinear": transform_tensor,
}
