"""Small networks of a convolution and a few operators, and the same quantised by the ranges of some images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from evaluate import evaluate
from tenon.formats.importers import load
from tenon.network.graph.graph import Array, Graph
from tenon.network.passes.integers import to_integers
from tenon.options import Arithmetic
from tenon.tools.quantization.by_ranges import profiled, quantize_by_ranges

RNG = np.random.default_rng(3)
CONSTANTS: dict[str, Array] = {
    "w": RNG.normal(0, 0.4, (6, 3, 3, 3)).astype(np.float32),
    "wb": RNG.normal(0, 0.4, 6).astype(np.float32),
    "depthwise": RNG.normal(0, 0.4, (12, 1, 3, 3)).astype(np.float32),
    "grouped": RNG.normal(0, 0.4, (6, 3, 3, 3)).astype(np.float32),
    "quarters": RNG.normal(0, 0.4, (4, 3, 3, 3)).astype(np.float32),
    "point": RNG.normal(0, 0.4, (4, 6, 1, 1)).astype(np.float32),
    "up": RNG.normal(0, 0.4, (6, 4, 3, 3)).astype(np.float32),
    "dense": RNG.normal(0, 0.4, (10, 6 * 9 * 7)).astype(np.float32),
    "by_channel": RNG.normal(0, 0.4, (1, 6, 1, 1)).astype(np.float32),
    "slopes": RNG.uniform(0, 0.4, (6, 1, 1)).astype(np.float32),
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
    "two": np.array(2, np.float32),
    "minus": np.array(-1, np.float32),
    "one": np.array(1, np.float32),
    "flat": np.array([1, -1], np.int64),
    "axes": np.array([2, 3], np.int64),
    "pads": np.array([0, 0, 1, 2, 0, 0, 0, 1], np.int64),
    "twice": np.array([1, 1, 2, 2], np.float32),
    "starts": np.array([1, 2], np.int64),
    "ends": np.array([8, 6], np.int64),
    "at": np.array([2, 3], np.int64),
    "steps": np.array([2, 1], np.int64),
    "parts": np.array([2, 4], np.int64),
}

make = helper.make_node


def network(nodes: Sequence[NodeProto], outputs: Sequence[str] = ("b",)) -> Graph:
    """A convolution to 6 channels of 9 x 7, the nodes from "a" to "b", and a result that a product reads if it is an
    image of 6 channels, else the sum of it and itself."""
    body = [make("Conv", ["x", "w", "wb"], ["a"], pads=[1] * 4), *nodes]
    used = {name for node in body for name in node.input}
    graph = helper.make_graph(
        body,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 7])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in CONSTANTS.items() if name in used],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


LAST = make("Conv", ["c", "point"], ["b"])
CASES: dict[str, list[NodeProto]] = {
    "relu": [make("Relu", ["a"], ["c"]), LAST],
    "relu6": [make("Clip", ["a", "zero", "six"], ["c"]), LAST],
    "clip to 2": [make("Clip", ["a", "zero", "two"], ["c"]), LAST],
    "clip to -1..1": [make("Clip", ["a", "minus", "one"], ["c"]), LAST],
    "depthwise": [make("Conv", ["a", "depthwise"], ["b"], group=6, strides=[2, 2], pads=[1, 1, 1, 1])],
    "groups": [make("Conv", ["a", "grouped"], ["b"], group=2, dilations=[2, 2])],
    "unequal pads": [make("Conv", ["a", "grouped"], ["b"], group=2, pads=[2, 0, 1, 1])],
    "same": [make("Conv", ["a", "grouped"], ["b"], group=2, auto_pad="SAME_UPPER", strides=[2, 2])],
    "transposed": [make("ConvTranspose", ["a", "up"], ["b"], strides=[2, 2], pads=[1, 1, 1, 0])],
    "transposed whole": [make("ConvTranspose", ["a", "up"], ["b"], strides=[2, 2])],
    "add": [make("Relu", ["a"], ["d"]), make("Add", ["a", "d"], ["c"]), LAST],
    "sub": [make("Relu", ["a"], ["d"]), make("Sub", ["d", "a"], ["c"]), LAST],
    "mul": [make("Relu", ["a"], ["d"]), make("Mul", ["a", "d"], ["c"]), LAST],
    "mul by channel": [make("Relu", ["a"], ["d"]), make("Mul", ["d", "by_channel"], ["c"]), LAST],
    "sigmoid": [make("Sigmoid", ["a"], ["c"]), LAST],
    "tanh": [make("Tanh", ["a"], ["c"]), LAST],
    "hard swish": [make("HardSwish", ["a"], ["c"]), LAST],
    "leaky": [make("LeakyRelu", ["a"], ["c"], alpha=0.1), LAST],
    "max pool": [make("MaxPool", ["a"], ["c"], kernel_shape=[2, 2], strides=[2, 2]), LAST],
    "max pool, padded": [make("MaxPool", ["a"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), LAST],
    "max pool, unequal": [make("MaxPool", ["a"], ["c"], kernel_shape=[3, 3], pads=[2, 0, 0, 1]), LAST],
    "max pool, ceil": [make("MaxPool", ["a"], ["c"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), LAST],
    "average": [make("AveragePool", ["a"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), LAST],
    "average of all": [make("AveragePool", ["a"], ["c"], kernel_shape=[9, 7]), LAST],
    "global average": [make("GlobalAveragePool", ["a"], ["c"]), LAST],
    "global max": [make("GlobalMaxPool", ["a"], ["c"]), LAST],
    "mean": [make("ReduceMean", ["a", "axes"], ["c"], keepdims=1), LAST],
    "concat": [
        make("Relu", ["a"], ["d"]),
        make("Concat", ["d", "a"], ["e"], axis=1),
        make("Conv", ["e", "quarters"], ["b"], group=4),
    ],
    "flatten": [make("Reshape", ["a", "flat"], ["c"]), make("Gemm", ["c", "dense"], ["b"], transB=1)],
    "transpose": [make("Transpose", ["a"], ["d"], perm=[0, 1, 3, 2]), make("Relu", ["d"], ["c"]), LAST],
    "pad": [make("Pad", ["a", "pads"], ["c"]), LAST],
    "pad by 2": [make("Pad", ["a", "pads", "two"], ["c"]), LAST],
    "slice": [make("Slice", ["a", "starts", "ends", "at"], ["c"]), LAST],
    "slice by steps": [make("Slice", ["a", "starts", "ends", "at", "steps"], ["c"]), LAST],
    "split": [make("Split", ["a", "parts"], ["d", "e"], axis=1), make("Concat", ["e", "d"], ["c"], axis=1), LAST],
    "nearest": [
        make(
            "Resize",
            ["a", "", "twice"],
            ["c"],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        LAST,
    ],
}
_SCORES = [make("Reshape", ["a", "flat"], ["c"]), make("Gemm", ["c", "dense"], ["d"], transB=1)]
PROBABILITIES: dict[str, list[NodeProto]] = {
    "softmax of an image": [make("Softmax", ["a"], ["b"], axis=1)],
    "softmax of scores": [*_SCORES, make("Softmax", ["d"], ["b"], axis=1)],
    "softmax, reshaped": [make("Softmax", ["a"], ["c"], axis=1), make("Reshape", ["c", "flat"], ["b"])],
}
"""Networks that end in a softmax, which TFLite computes in integers."""
FLOATS = {
    "div": [make("Div", ["a", "two"], ["b"])],
    "linear": [make("Resize", ["a", "", "twice"], ["c"], mode="linear"), LAST],
    "prelu": [make("PRelu", ["a", "slopes"], ["c"]), LAST],
}
"""Operators that are computed in floats, at least in part."""


def images(count: int = 3) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-1, 1, (1, 3, 9, 7)).astype(np.float32) for _ in range(count)]


def ranges_of(graph: Graph) -> dict[str, tuple[float, float]]:
    """The ranges of all tensors on the images."""
    whole = profiled(graph)
    whole.outputs = [v for node in whole for v in node.outputs]
    ranges: dict[str, tuple[float, float]] = {"x": (-1.0, 1.0)}
    for image in images():
        for name, values in evaluate(whole, {"x": image}).items():
            low, high = ranges.get(name, (0.0, 0.0))
            ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
    return ranges


def quantised(graph: Graph, scheme: str = "int8") -> Graph:
    return quantize_by_ranges(graph, ranges_of(graph), scheme=scheme)


def in_integers(graph: Graph, arithmetic: Arithmetic = "litert") -> Graph:
    """As it is computed in an arithmetic."""
    copy = graph.copy()
    to_integers(copy, arithmetic)
    return copy
