"""An ONNX model as a PyTorch module that exporters can trace: shapes are plain numbers, never tensors.

Covers the operators of the model zoo.  A value is a tensor, or an array where it is known: everything that follows
from constants and shapes alone is computed by ONNX's own reference evaluator while the module is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812  # PyTorch's own name for it
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

Attributes = dict[str, Any]


class OnnxModule(torch.nn.Module):
    """Runs a model's nodes in order; returns its outputs as a tuple.  Raises KeyError for an operator not covered."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        graph = model.graph
        self.opset = model.opset_import[0].version
        self.nodes = list(graph.node)
        self.outputs = [value.name for value in graph.output]
        self.known: dict[str, np.ndarray] = {}
        self.weights: dict[str, str] = {}
        for i, initializer in enumerate(graph.initializer):
            array = numpy_helper.to_array(initializer)
            if array.dtype == np.float32:
                self.register_buffer(f"weight{i}", torch.from_numpy(array.copy()))
                self.weights[initializer.name] = f"weight{i}"
            else:
                self.known[initializer.name] = array
        self.input = next(v.name for v in graph.input if v.name not in {*self.weights, *self.known})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[str, Any] = {**self.known, **{name: getattr(self, at) for name, at in self.weights.items()}}
        values[self.input], values[""] = x, None
        for node in self.nodes:
            inputs = [values[name] for name in node.input]
            results = self.apply(node, inputs)
            values.update(zip(node.output, results, strict=False))
        return tuple(values[name] for name in self.outputs)

    def apply(self, node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
        if node.op_type == "Shape":
            return [np.array(inputs[0].shape, np.int64)]
        if not any(isinstance(value, torch.Tensor) for value in inputs):
            given = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
            return list(ReferenceEvaluator(node, opsets={"": self.opset}).run(None, given))
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        result = OPERATORS[node.op_type](attributes, *inputs)
        return list(result) if isinstance(result, (tuple, list)) else [result]


def tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def ints(value: Any) -> list[int]:
    return [int(v) for v in value]


def binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda attributes, a, b: function(tensor(a), tensor(b))


def unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda attributes, x: function(x)


def padded(x: torch.Tensor, pads: list[int], value: float = 0.0) -> torch.Tensor:
    """``pads`` are ONNX's for the last axes: all the begins, then all the ends."""
    n = len(pads) // 2
    pairs = [amount for i in reversed(range(n)) for amount in (pads[i], pads[i + n])]
    return F.pad(x, pairs, value=value) if any(pairs) else x


def symmetric(a: Attributes) -> tuple[list[int], list[int]]:
    """The pads that PyTorch applies itself, and those that must be applied before (all ONNX pads if they differ)."""
    pads = list(a.get("pads", [0, 0, 0, 0]))
    half = pads[: len(pads) // 2]
    return (half, []) if half == pads[len(pads) // 2 :] else ([0] * len(half), pads)


def conv(a: Attributes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    inside, before = symmetric(a)
    strides, dilations = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    return F.conv2d(padded(x, before), w, b, strides, inside, dilations, a.get("group", 1))


def max_pool(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    inside, before = symmetric(a)
    x = padded(x, before, float("-inf"))
    return F.max_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), inside, ceil_mode=bool(a.get("ceil_mode", 0)))


def average_pool(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    inside, before = symmetric(a)
    if before:
        raise KeyError("AveragePool with different pads on two sides")
    counted = bool(a.get("count_include_pad", 0))
    return F.avg_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), inside, bool(a.get("ceil_mode", 0)), counted)


def resize(a: Attributes, x: torch.Tensor, roi: Any = None, scales: Any = None, sizes: Any = None) -> torch.Tensor:
    given = scales is not None and len(scales)
    size = [int(n * s) for n, s in zip(x.shape, scales, strict=True)] if given else ints(sizes)
    mode = {b"nearest": "nearest", b"linear": "bilinear"}[a.get("mode", b"nearest")]
    return F.interpolate(x, size=size[2:], mode=mode)


def slices(a: Attributes, x: torch.Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> torch.Tensor:
    picked = [slice(None)] * x.dim()
    for i, (start, end) in enumerate(zip(ints(starts), ints(ends), strict=True)):
        axis = int(axes[i]) if axes is not None else i
        picked[axis] = slice(start, min(end, x.shape[axis]), int(steps[i]) if steps is not None else 1)
    return x[tuple(picked)]


def pad(a: Attributes, x: torch.Tensor, pads: Any, value: Any = None) -> torch.Tensor:
    return padded(x, ints(pads), 0.0 if value is None else float(value))


def gemm(a: Attributes, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, w if a.get("transB", 0) else w.t(), b)


def reshape(a: Attributes, x: torch.Tensor, shape: Any) -> torch.Tensor:
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(ints(shape))])


def squeeze(a: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    return x.squeeze(tuple(ints(a.get("axes", axes))))


def unsqueeze(a: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    for axis in sorted(ints(a.get("axes", axes))):
        x = x.unsqueeze(axis)
    return x


def split(a: Attributes, x: torch.Tensor, sizes: Any) -> tuple[torch.Tensor, ...]:
    return torch.split(x, ints(sizes), a.get("axis", 0))


def gather(a: Attributes, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = a.get("axis", 0)
    return x.select(axis, int(index)) if np.ndim(index) == 0 else x.index_select(axis, tensor(index))


def mean(a: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    return x.mean(ints(a.get("axes", axes)), keepdim=bool(a.get("keepdims", 1)))


def layer_norm(a: Attributes, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.layer_norm(x, scale.shape, scale, bias, a.get("epsilon", 1e-5))


def batch_norm(a: Attributes, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    scale, bias, average, variance = rest
    return F.batch_norm(x, average, variance, scale, bias, eps=a.get("epsilon", 1e-5))


def clip(a: Attributes, x: torch.Tensor, low: Any = None, high: Any = None) -> torch.Tensor:
    return torch.clamp(x, None if low is None else float(low), None if high is None else float(high))


def prelu(a: Attributes, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return F.prelu(x, slope.reshape(-1))


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": binary(torch.add),
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Clip": clip,
    "Concat": lambda a, *xs: torch.cat([tensor(x) for x in xs], a["axis"]),
    "Conv": conv,
    "Div": binary(torch.div),
    "Erf": unary(torch.erf),
    "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(x.shape, ints(shape))),
    "Flatten": lambda a, x: torch.flatten(x, a.get("axis", 1)),
    "Gather": gather,
    "Gemm": gemm,
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
    "HardSigmoid": lambda a, x: F.hardsigmoid(x),
    "HardSwish": unary(F.hardswish),
    "Identity": unary(lambda x: x),
    "LayerNormalization": layer_norm,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "MatMul": binary(torch.matmul),
    "MaxPool": max_pool,
    "Mul": binary(torch.mul),
    "PRelu": prelu,
    "Pad": pad,
    "ReduceMean": mean,
    "Relu": unary(F.relu),
    "Reshape": reshape,
    "Resize": resize,
    "Sigmoid": unary(torch.sigmoid),
    "Slice": slices,
    "Softmax": lambda a, x: F.softmax(x, a.get("axis", -1)),
    "Split": split,
    "Squeeze": squeeze,
    "Sub": binary(torch.sub),
    "Transpose": lambda a, x: x.permute(a["perm"]),
    "Unsqueeze": unsqueeze,
}
