"""Builds small ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tenon.network.graph.graph import Array

Inputs = Mapping[str, Sequence[int | str | None] | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Inputs,
    outputs: Sequence[str],
    weights: Mapping[str, Array] | None = None,
    opset: int = 21,
    **changes: Any,
) -> onnx.ModelProto:
    """A model of f32 inputs; the shapes of outputs are left open."""
    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(data, name) for name, data in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **changes)


def node(type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """A node named after its first output."""
    made: onnx.NodeProto = helper.make_node(type, inputs, outputs, name=f"the_{outputs[0]}", **attributes)
    return made


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def classifier() -> onnx.ModelProto:
    """Convolution, normalisation, pooling, shape arithmetic and a matrix product."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "s", "b", "b", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", ["p"], ["shape"]),
        node("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0))),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Constant", [], ["axes"], value_ints=[0]),
        node("Unsqueeze", ["batch", "axes"], ["batch1"]),
        node("Constant", [], ["rest"], value_ints=[-1]),
        node("Concat", ["batch1", "rest"], ["target"], axis=0),
        node("Reshape", ["p", "target"], ["flat"]),
        node("Gemm", ["flat", "fc", "fb"], ["g"], transB=1),
        node("Softmax", ["g"], ["y"]),
    ]
    weights = {
        "w": random(4, 2, 3, 3),
        "b": random(4),
        "s": random(4, seed=1),
        "v": np.abs(random(4)) + 1,
        "fc": random(3, 64),
        "fb": random(3),
    }
    return model(nodes, {"x": ("batch", 2, 8, 8)}, ["y"], weights)


def gated() -> onnx.ModelProto:
    """Forms of old opsets: attributes that became inputs, and a softmax over flattened dimensions."""
    nodes = [
        node("Clip", ["x"], ["c"], min=-0.5, max=0.5),
        node("Slice", ["c"], ["s"], starts=[0, 1], ends=[1, 3], axes=[0, 1]),
        node("Pad", ["s"], ["p"], pads=[0, 0, 1, 0, 0, 0, 0, 1], value=0.25),
        node("ReduceSum", ["p"], ["r"], axes=[3], keepdims=1),
        node("Squeeze", ["r"], ["q"], axes=[3]),
        node("Dropout", ["q"], ["d"], ratio=0.5),
        node("Softmax", ["d"], ["y"], axis=1),
    ]
    return model(nodes, {"x": (1, 4, 3, 3)}, ["y"], opset=9)
