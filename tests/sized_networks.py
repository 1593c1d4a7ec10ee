"""Small networks as exporters write them, with extents that a run decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_models import node
from tenon.network.graph.graph import Array

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

Inputs = Mapping[str, tuple[int, Sequence[Any]]]
"""Element types and shapes by name."""


class Network:
    """A model under construction."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, Array] = {}

    def __call__(self, type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """The first output of a new node."""
        output = name or f"t{len(self.nodes)}"
        self.nodes.append(node(type, list(inputs), [output], **attributes))
        return output

    def constant(self, data: Any, dtype: Any = None) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors[name] = np.asarray(data, dtype)
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float) -> str:
        return self.constant(np.array(number, np.float32))

    def weights(self, *shape: int, scale: float | None = None) -> str:
        spread = scale or 1 / math.sqrt(max(1, math.prod(shape[1:])))
        return self.constant(self.random.standard_normal(shape) * spread, np.float32)

    def extent(self, x: str, axis: int) -> str:
        """One extent of a tensor, as exporters of PyTorch ask for it."""
        return self("Gather", self("Shape", x), self.constant(np.array(axis)), axis=0)

    def column(self, number: str) -> str:
        return self("Unsqueeze", number, self.ints(0))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self("Add", self("MatMul", x, self.weights(inputs, outputs)), self.weights(outputs))

    def conv(self, x: str, inputs: int, outputs: int, kernel: Sequence[int], **attributes: Any) -> str:
        return self("Conv", x, self.weights(outputs, inputs, *kernel), self.weights(outputs, scale=0.1), **attributes)

    def normed(self, x: str, width: int) -> str:
        return self("LayerNormalization", x, self.weights(width, scale=1.0), self.weights(width), axis=-1)

    def model(self, inputs: Inputs, outputs: dict[str, int]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(name, type, shape) for name, (type, shape) in inputs.items()],
            [helper.make_tensor_value_info(name, type, None) for name, type in outputs.items()],
            [numpy_helper.from_array(data, name) for name, data in self.tensors.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


# --------------------------------------------------------------------------------------------- encoder
def encoder(width: int = 16, heads: int = 2, longest: int = 32) -> onnx.ModelProto:
    """A BERT of one layer: ids and mask [1, L] to states [1, L, width], their mean and a pooled first state."""
    n = Network()
    length, batch = n.column(n.extent("ids", 1)), n.column(n.extent("ids", 0))
    one = n.ints(1)
    places = n("Slice", n.constant(np.arange(longest).reshape(1, -1)), n.ints(0), length, one)
    x = n("Add", n("Gather", n.weights(50, width), "ids"), n("Gather", n.weights(longest, width), places))
    x = n.normed(x, width)
    mask = n("Unsqueeze", n("Unsqueeze", n("Cast", "mask", to=FLOAT), one), n.ints(2))
    full = n("Concat", batch, one, length, length, axis=0)
    ones = n("ConstantOfShape", n("Shape", full), value=numpy_helper.from_array(np.array([1])))
    open_axes = n("Equal", full, n("Mul", ones, n.ints(-1)))
    mask = n("Expand", mask, n("Where", open_axes, ones, full))
    mask = n("Mul", n("Sub", n.scalar(1), mask), n.scalar(-1e9))
    x = _attended(n, x, mask, width, heads)
    hidden = n.linear(x, width, 2 * width)
    gelu = n("Mul", hidden, n("Add", n("Erf", n("Div", hidden, n.scalar(2**0.5))), n.scalar(1)))
    x = n.normed(n("Add", x, n.linear(gelu, 2 * width, width)), width)
    n("Identity", x, name="states")
    n("ReduceMean", x, one, keepdims=0, name="mean")
    first = n("Gather", x, n.constant(np.array(0)), axis=1)
    n("Tanh", n("Gemm", first, n.weights(width, 8), n.weights(8)), name="pooled")
    inputs: Inputs = {name: (INT64, [1, "L"]) for name in ("ids", "mask")}
    return n.model(inputs, dict.fromkeys(("states", "mean", "pooled"), FLOAT))


def _attended(n: Network, x: str, mask: str, width: int, heads: int) -> str:
    def parted(x: str) -> str:
        batch, length = n.column(n.extent(x, 0)), n.column(n.extent(x, 1))
        return n("Reshape", x, n("Concat", batch, length, n.ints(heads, width // heads), axis=0))

    query, key, value = (parted(n.linear(x, width, width)) for _ in range(3))
    query, value = (n("Transpose", each, perm=[0, 2, 1, 3]) for each in (query, value))
    scores = n("Div", n("MatMul", query, n("Transpose", key, perm=[0, 2, 3, 1])), n.scalar((width / heads) ** 0.5))
    mixed = n("MatMul", n("Softmax", n("Add", scores, mask), axis=-1), value)
    mixed = n("Transpose", mixed, perm=[0, 2, 1, 3])
    batch, length = n.column(n.extent(mixed, 0)), n.column(n.extent(mixed, 1))
    whole = n("Reshape", mixed, n("Concat", batch, length, n.ints(width), axis=0))
    return n.normed(n("Add", x, n.linear(whole, width, width)), width)


# -------------------------------------------------------------------------------------------- detector
def detector(classes: int = 2) -> onnx.ModelProto:
    """x [1, 3, H, W] to boxes [K, 4] and scores [K]: convolutions, an upsampled path, a grid of anchors, and NMS."""
    n = Network(1)
    fine = n("Relu", n.conv("x", 3, 6, (3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    fine = n("Relu", n.conv(fine, 6, 8, (3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    coarse = n("MaxPool", fine, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    coarse = n("Relu", n.conv(coarse, 8, 8, (3, 3), pads=[1, 1, 1, 1]))
    sizes = n("Concat", n("Slice", n("Shape", coarse), n.ints(0), n.ints(2)), _plane(n, fine), axis=0)
    up = n(
        "Resize",
        coarse,
        "",
        "",
        sizes,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    joined = n("Concat", fine, up, axis=1)
    raw = n.conv(joined, 16, 4 + classes, (3, 3), pads=[1, 1, 1, 1])
    flat = n("Reshape", raw, n.ints(1, 4 + classes, -1))
    shifts = n("Slice", n("Transpose", flat, perm=[0, 2, 1]), n.ints(0), n.ints(4), n.ints(2))
    scores = n("Sigmoid", n("Slice", flat, n.ints(4), n.ints(1 << 40), n.ints(1)))
    centres = _grid(n, n.extent(raw, 2), n.extent(raw, 3))
    middle = n("Add", centres, n("Mul", n("Slice", shifts, n.ints(0), n.ints(2), n.ints(2)), n.scalar(2)))
    half = n("Exp", n("Slice", shifts, n.ints(2), n.ints(4), n.ints(2)))
    half = n("Mul", half, n.scalar(6))
    boxes = n("Concat", n("Sub", middle, half), n("Add", middle, half), axis=2)
    selected = n("NonMaxSuppression", boxes, scores, n.ints(40), n.scalar(0.4), n.scalar(0.55))
    which = n("Squeeze", n("Slice", selected, n.ints(2), n.ints(3), n.ints(1)), n.ints(1))
    n("Gather", n("Squeeze", boxes, n.ints(0)), which, name="boxes")
    n("GatherND", scores, selected, name="scores")
    return n.model({"x": (FLOAT, [1, 3, "H", "W"])}, {"boxes": FLOAT, "scores": FLOAT})


def _plane(n: Network, x: str) -> str:
    """The last two extents of an image."""
    return n("Slice", n("Shape", x), n.ints(2), n.ints(4))


def _grid(n: Network, rows: str, columns: str) -> str:
    """The centres [1, rows * columns, 2] of the squares of a grid, in pixels."""
    zero, one = n.constant(np.array(0)), n.constant(np.array(1))
    y, x = (n("Cast", n("Range", zero, count, one), to=FLOAT) for count in (rows, columns))
    shape = n("Concat", n.column(rows), n.column(columns), axis=0)
    y = n("Expand", n("Unsqueeze", y, n.ints(1)), shape)
    x = n("Expand", n("Unsqueeze", x, n.ints(0)), shape)
    grid = n("Concat", n("Unsqueeze", x, n.ints(2)), n("Unsqueeze", y, n.ints(2)), axis=2)
    return n("Mul", n("Reshape", grid, n.ints(1, -1, 2)), n.scalar(4))


# --------------------------------------------------------------------------------------------- cascade
def cascade() -> onnx.ModelProto:
    """x [1, 3, 26, 22] to boxes, scores and landmarks: a P-Net, then an R-Net and an O-Net on crops of the image, each
    with a filter and NMS behind it."""
    n = Network(10)
    maps = n("Relu", n.conv("x", 3, 6, (3, 3)))
    maps = n("MaxPool", maps, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    maps = n("Relu", n.conv(maps, 6, 8, (3, 3)))
    chances = n("Softmax", n("Mul", n.conv(maps, 8, 2, (1, 1)), n.scalar(4)), axis=1)
    chance = n("Squeeze", n("Slice", chances, n.ints(1), n.ints(2), n.ints(1)), n.ints(0, 1))
    shifts = n("Squeeze", n.conv(maps, 8, 4, (1, 1)), n.ints(0))
    places = n("Transpose", n("NonZero", n("Greater", chance, n.scalar(0.5))), perm=[1, 0])
    scores = n("GatherND", chance, places)
    own = n("GatherND", n("Transpose", shifts, perm=[1, 2, 0]), places)
    corner = n("Mul", n("Cast", places, to=FLOAT), n.scalar(2))
    boxes = n("Concat", corner, n("Add", corner, n.scalar(12)), axis=1)
    boxes = n("Add", boxes, n("Mul", own, n.scalar(3)))
    kept = _suppressed(n, boxes, scores, 9)
    boxes = n("Gather", boxes, kept)
    boxes, _, _ = _refined(n, boxes, 8, 0.45, 8)
    boxes, score, features = _refined(n, boxes, 12, 0.4, 4)
    n("Identity", boxes, name="boxes")
    n("Identity", score, name="scores")
    n("Gemm", features, n.weights(12, 10), n.weights(10), name="landmarks")
    return n.model({"x": (FLOAT, [1, 3, 26, 22])}, {"boxes": FLOAT, "scores": FLOAT, "landmarks": FLOAT})


def _refined(n: Network, boxes: str, side: int, threshold: float, most: int) -> tuple[str, str, str]:
    """The boxes that an R-Net or O-Net keeps, moved by its regression, their scores and their features [K, 12]."""
    x = n("Relu", n.conv(_crops(n, boxes, side), 3, 6, (3, 3)))
    x = n("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n("Relu", n("Gemm", n("Flatten", x), n.weights(6 * (side // 2 - 1) ** 2, 12), n.weights(12)))
    chances = n("Softmax", n("Gemm", x, n.weights(12, 2), n.weights(2)), axis=1)
    score = n("Squeeze", n("Slice", chances, n.ints(1), n.ints(2), n.ints(1)), n.ints(1))
    boxes = n("Add", boxes, n("Gemm", x, n.weights(12, 4), n.weights(4)))
    boxes, score, x = _picked(n, _strong(n, score, threshold), boxes, score, x)
    return _picked(n, _suppressed(n, boxes, score, most), boxes, score, x)


def _picked(n: Network, numbers: str, boxes: str, scores: str, features: str) -> tuple[str, str, str]:
    """The rows of three tensors."""
    return n("Gather", boxes, numbers), n("Gather", scores, numbers), n("Gather", features, numbers)


def _strong(n: Network, scores: str, threshold: float) -> str:
    """The numbers of the boxes with scores above a threshold."""
    return n("Squeeze", n("NonZero", n("Greater", scores, n.scalar(threshold))), n.ints(0))


def _suppressed(n: Network, boxes: str, scores: str, most: int) -> str:
    """The numbers of the boxes [K, 4] that NMS keeps."""
    selected = n(
        "NonMaxSuppression",
        n("Unsqueeze", boxes, n.ints(0)),
        n("Unsqueeze", scores, n.ints(0, 1)),
        n.ints(most),
        n.scalar(0.5),
    )
    return n("Squeeze", n("Gather", selected, n.ints(2), axis=1), n.ints(1))


def _crops(n: Network, boxes: str, side: int) -> str:
    """The parts [K, 3, side, side] of the image in boxes, sampled by RoiAlign."""
    turned = n("Gather", boxes, n.ints(1, 0, 3, 2), axis=1)
    count = n("Shape", boxes)
    first = n("ConstantOfShape", n("Slice", count, n.ints(0), n.ints(1)), value=numpy_helper.from_array(np.array([0])))
    return n("RoiAlign", "x", turned, first, output_height=side, output_width=side, sampling_ratio=2)


# ---------------------------------------------------------------------------------------------- speech
def speech(width: int = 12) -> onnx.ModelProto:
    """A VITS without noise: ids [1, L] and their number to sound [1, 1, 4 * frames].

    An encoder with relative positions, durations, their expansion to frames, a coupling layer, and a generator of
    transposed convolutions with residual blocks.  ``frames`` is the number of frames before they are limited.
    """
    n = Network(3)
    x = n("Transpose", n("Gather", n.weights(30, width, scale=1.0), "ids"), perm=[0, 2, 1])
    mask = _sequence_mask(n, "length", n.extent("ids", 1))
    mask = n("Cast", n("Unsqueeze", mask, n.ints(1)), to=FLOAT)
    x = n("Mul", x, mask)
    x = n("Mul", n("Add", x, _relative_attention(n, x, mask, width)), mask)
    statistics = n("Mul", n.conv(x, width, 2 * width, (1,)), mask)
    means = n("Slice", statistics, n.ints(0), n.ints(width), n.ints(1))
    durations = n("Relu", n.conv(n("Mul", x, mask), width, 8, (3,), pads=[1, 1]))
    durations = n("Mul", n("Exp", n.conv(n("Mul", durations, mask), 8, 1, (1,))), mask)
    whole = n("Ceil", n("Mul", durations, n.scalar(1.5)))
    total = n("Max", n("ReduceSum", whole, n.ints(1, 2), keepdims=0), n.constant(np.ones(1, np.float32)))
    frames = n("Cast", total, to=INT64, name="frames")
    count = n("ReduceMax", frames, keepdims=0)
    frame_mask = n("Cast", n("Unsqueeze", _sequence_mask(n, frames, count), n.ints(1)), to=FLOAT)
    path = _path(n, whole, mask, frame_mask)
    z = n("Transpose", n("MatMul", path, n("Transpose", means, perm=[0, 2, 1])), perm=[0, 2, 1])
    z = n("Mul", _coupled(n, z, frame_mask, width), frame_mask)
    n("Tanh", _generated(n, z, width), name="sound")
    inputs: Inputs = {"ids": (INT64, [1, "L"]), "length": (INT64, [1])}
    return n.model(inputs, {"sound": FLOAT})


def _sequence_mask(n: Network, lengths: str, count: str) -> str:
    """[1, count]: which places come before a length."""
    places = n("Range", n.constant(np.array(0)), count, n.constant(np.array(1)))
    return n("Less", n("Unsqueeze", places, n.ints(0)), n("Unsqueeze", lengths, n.ints(1)))


def _relative_attention(n: Network, x: str, mask: str, width: int, window: int = 2) -> str:
    """Attention of one head over x [1, width, L] with embeddings of relative positions, as in VITS."""
    length = n.extent(x, 2)
    query, key, value = (n("Transpose", n.conv(x, width, width, (1,)), perm=[0, 2, 1]) for _ in range(3))
    query = n("Div", query, n.scalar(width**0.5))
    scores = n("MatMul", query, n("Transpose", key, perm=[0, 2, 1]))
    places = n.weights(1, 2 * window + 1, width)
    one, zero = n.constant(np.array(1)), n.constant(np.array(0))
    most = n.constant(np.array(window + 1))
    padding = n.column(n("Max", n("Sub", length, most), zero))
    start = n("Max", n("Sub", most, length), zero)
    end = n("Add", start, n("Sub", n("Mul", length, n.constant(np.array(2))), one))
    pads = n("Concat", n.ints(0), padding, n.ints(0, 0), padding, n.ints(0), axis=0)
    used = n("Slice", n("Pad", places, pads), n.column(start), n.column(end), n.ints(1))
    relative = n("MatMul", query, n("Transpose", used, perm=[0, 2, 1]))  # [1, L, 2 L - 1]
    padded = n("Pad", relative, n.ints(0, 0, 0, 0, 0, 1))
    flat = n("Reshape", padded, n.ints(1, -1))
    rest = n("Concat", n.ints(0, 0, 0), n.column(n("Sub", length, one)), axis=0)
    flat = n("Pad", flat, rest)
    double = n("Sub", n("Mul", length, n.constant(np.array(2))), one)
    shape = n("Concat", n.ints(1), n.column(n("Add", length, one)), n.column(double), axis=0)
    turned = n("Reshape", flat, shape)
    turned = n("Slice", turned, n.ints(0), n.column(length), n.ints(1))
    turned = n("Slice", turned, n.column(n("Sub", length, one)), n.ints(1 << 60), n.ints(2))
    scores = n("Add", scores, turned)
    hidden = n("Equal", mask, n.scalar(0))
    chances = n("Softmax", n("Where", hidden, n.scalar(-1e4), scores), axis=-1)
    return n("Transpose", n("MatMul", chances, value), perm=[0, 2, 1])


def _path(n: Network, durations: str, mask: str, frame_mask: str) -> str:
    """[1, frames, L]: which symbol every frame belongs to."""
    ends = n("Reshape", n("CumSum", durations, n.constant(np.array(2))), n.ints(-1))
    count = n.extent(frame_mask, 2)
    places = n("Range", n.constant(np.array(0)), count, n.constant(np.array(1)))
    places = n("Cast", places, to=FLOAT)
    before = n("Less", n("Unsqueeze", places, n.ints(0)), n("Unsqueeze", ends, n.ints(1)))
    before = n("Cast", before, to=FLOAT)
    length = n.extent(mask, 2)
    before = n("Reshape", before, n("Concat", n.ints(1), n.column(length), n.column(count), axis=0))
    shifted = n("Slice", n("Pad", before, n.ints(0, 1, 0, 0, 0, 0)), n.ints(0), n.ints(-1), n.ints(1))
    path = n("Mul", n("Sub", before, shifted), n("Mul", n("Transpose", mask, perm=[0, 2, 1]), frame_mask))
    return n("Transpose", path, perm=[0, 2, 1])


def _coupled(n: Network, z: str, mask: str, width: int) -> str:
    """A coupling layer: the second half of the channels shifted by a gated convolution of the first."""
    half = width // 2
    n.nodes.append(node("Split", [z], ["first_half", "second_half"], axis=1, num_outputs=2))
    hidden = n("Mul", n.conv("first_half", half, width, (1,)), mask)
    gates = n.conv(hidden, width, 2 * width, (3,), pads=[1, 1])
    gate = n("Tanh", n("Slice", gates, n.ints(0), n.ints(width), n.ints(1)))
    gate = n("Mul", gate, n("Sigmoid", n("Slice", gates, n.ints(width), n.ints(2 * width), n.ints(1))))
    shift = n("Mul", n.conv(gate, width, half, (1,)), mask)
    both = n("Concat", "first_half", n("Mul", n("Sub", "second_half", shift), mask), axis=1)
    return n("Slice", both, n.ints(-1), n.ints(-(1 << 40)), n.ints(1), n.ints(-1))


def _generated(n: Network, z: str, width: int) -> str:
    """HiFi-GAN: twice a transposed convolution of stride 2 and a residual block."""
    x = n.conv(z, width, 8, (7,), pads=[3, 3])
    for channels in (8, 4):
        x = n("LeakyRelu", x, alpha=0.1)
        weights = n.weights(channels, channels // 2, 4)
        x = n("ConvTranspose", x, weights, n.weights(channels // 2), strides=[2], pads=[1, 1])
        inner = n.conv(n("LeakyRelu", x, alpha=0.1), channels // 2, channels // 2, (3,), pads=[3, 3], dilations=[3])
        inner = n.conv(n("LeakyRelu", inner, alpha=0.1), channels // 2, channels // 2, (3,), pads=[1, 1])
        x = n("Add", x, inner)
    return n.conv(n("LeakyRelu", x), 2, 1, (7,), pads=[3, 3])
