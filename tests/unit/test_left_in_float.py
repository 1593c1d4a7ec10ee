"""Quantised operators that integers are not defined for are computed in float, with a reason, and never refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.network.graph.graph import Array
from tenon.options import Arithmetic
from tenon.pipeline import inspect

make = helper.make_node
RNG = np.random.default_rng(7)
STEP = np.float32(0.07)


@dataclass(frozen=True)
class Case:
    """An operator of an image, and its constant operands; ``weights`` are stored as integers, with scales for each of
    ``axis``."""

    operator: str
    dims: tuple[int, ...] = (1, 4, 4, 5, 6)
    options: dict[str, Any] = field(default_factory=dict)
    operands: Sequence[Array | None] = ()
    weights: Array | None = None
    axis: int = 0
    twice: bool = False

    def file(self, dtype: type[np.integer[Any]]) -> bytes:
        kind = np.iinfo(dtype)
        grids = {"x": (np.float32(0.05), kind.max - 124), "y": (STEP, kind.max - 129)}
        constants: dict[str, Array] = {}
        for name, (scale, zero) in grids.items():
            constants |= {f"{name}_scale": np.array(scale), f"{name}_zero": np.array(zero, dtype)}
        nodes = [
            make("QuantizeLinear", ["x", "x_scale", "x_zero"], ["xq"]),
            make("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["xf"]),
        ]
        inputs = ["xf"] * (2 if self.twice else 1)
        if self.weights is not None:
            outs = self.weights.shape[self.axis]
            scales = np.linspace(0.002, 0.009, outs, dtype=np.float32)
            constants |= {"w": self.weights, "w_scale": scales, "w_zero": np.zeros(outs, np.int8)}
            nodes.append(make("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=self.axis))
            inputs.append("wf")
        for i, operand in enumerate(self.operands):
            inputs.append("" if operand is None else f"c{i}")
            constants |= {} if operand is None else {f"c{i}": operand}
        nodes += [
            make(self.operator, inputs, ["real"], **self.options),
            make("QuantizeLinear", ["real", "y_scale", "y_zero"], ["yq"]),
            make("DequantizeLinear", ["yq", "y_scale", "y_zero"], ["y"]),
        ]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.dims)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        stored = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
        graph = helper.make_graph(nodes, "net", [x], [y], stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return bytes(model.SerializeToString())


def filters(*dims: int) -> Array:
    return RNG.integers(-127, 128, dims).astype(np.int8)


WINDOW: dict[str, Any] = {"kernel_shape": (2, 3, 2), "strides": (1, 2, 2), "pads": (1, 1, 0, 0, 1, 0)}
PADS = np.array([0, 0, 1, 1, 1, 0, 0, 1, 1, 1])
CASES = {
    "conv": Case("Conv", options={"pads": (1,) * 6}, weights=filters(5, 4, 3, 3, 3)),
    "conv, groups": Case("Conv", options={"strides": (2, 1, 2), "group": 2}, weights=filters(6, 2, 2, 3, 1)),
    "conv, depthwise": Case("Conv", options={"group": 4, "dilations": (2, 1, 1)}, weights=filters(4, 1, 2, 3, 3)),
    "conv of four axes": Case("Conv", (1, 2, 3, 4, 3, 4), weights=filters(3, 2, 2, 2, 2, 2)),
    "transposed": Case("ConvTranspose", options={"strides": (2, 2, 2)}, weights=filters(4, 3, 3, 3, 2), axis=1),
    "transposed, dilated": Case("ConvTranspose", (1, 4, 5, 6), {"dilations": (2, 1)}, (), filters(4, 3, 3, 3), 1),
    "max": Case("MaxPool", options=WINDOW),
    "average": Case("AveragePool", options=WINDOW),
    "average, padding counts": Case("AveragePool", options={**WINDOW, "count_include_pad": 1}),
    "global average": Case("GlobalAveragePool"),
    "global max": Case("GlobalMaxPool"),
    "global max of an image": Case("GlobalMaxPool", (2, 5, 4, 7)),
    "global max of a row": Case("GlobalMaxPool", (2, 5, 9)),
    "power mean": Case("LpPool", options={"kernel_shape": (2, 2, 2), "p": 2}),
    "mean": Case("ReduceMean", operands=[np.array([2, 3, 4])]),
    "greatest": Case("ReduceMax", operands=[np.array([1, 3])]),
    "resized": Case("Resize", options={"mode": "linear"}, operands=[None, np.array([1, 1, 2, 2, 2], np.float32)]),
    "padded": Case("Pad", operands=[PADS]),
    "slopes": Case("PRelu", operands=[RNG.uniform(0, 1, (4, 1, 1, 1)).astype(np.float32)]),
    "sum": Case("Add", twice=True),
    "joined": Case("Concat", twice=True, options={"axis": 2}),
    "normalised": Case("InstanceNormalization", operands=[np.ones(4, np.float32), np.zeros(4, np.float32)]),
    "softmax": Case("Softmax", options={"axis": 1}),
    "product": Case("MatMul", weights=filters(6, 7), axis=1),
}
ARITHMETICS: tuple[Arithmetic, ...] = ("onnx", "litert", "tflm")


def reference(file: bytes, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = onnxruntime.InferenceSession(file, options).run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_images_of_any_rank_are_compiled(name: str, dtype: type[np.integer[Any]]) -> None:
    case = CASES[name]
    file, x = case.file(dtype), RNG.normal(0, 2, case.dims).astype(np.float32)
    expected = reference(file, x)
    for arithmetic in ARITHMETICS:
        (y,) = tenon.open(tenon.compile(file, arithmetic=arithmetic)).run({"x": x}).values()
        steps = np.abs(y - expected) / STEP
        assert steps.max() < 1.01  # ties are rounded differently by each arithmetic, and in floats
        assert np.mean(steps > 0.5) < 0.02


def test_what_stays_in_float_has_a_reason() -> None:
    """Windows of nothing but padding: the operators on integers have no kernel for these."""
    file = Case("AveragePool", (1, 2, 5, 5), {"kernel_shape": (1, 1), "pads": (1, 1, 1, 1)}).file(np.int8)
    description, _ = inspect(file, arithmetic="onnx")
    assert [why for _, why in description.left_in_float] == ["some windows lie wholly in the padding: use smaller pads"]
    (y,) = tenon.open(tenon.compile(file)).run({"x": np.ones((1, 2, 5, 5), np.float32)}).values()
    assert not y[:, :, 0].any()
    assert np.abs(y[:, :, 1:6, 1:6] - 1).max() <= STEP


@pytest.mark.parametrize("name", ["conv", "conv, groups", "conv of four axes"])
def test_sums_of_integers_are_those_of_onnxruntime(name: str) -> None:
    """ONNX Runtime's optimised graph has QLinearConv: convolutions of more than two axes round once, as others do."""
    case = CASES[name]
    file, x = case.file(np.uint8), RNG.normal(0, 2, case.dims).astype(np.float32)
    description, _ = inspect(file, arithmetic="onnx")
    assert not description.left_in_float
    (expected,) = onnxruntime.InferenceSession(file).run(None, {"x": x})
    (y,) = tenon.open(tenon.compile(file, arithmetic="onnx")).run({"x": x}).values()
    assert (np.abs(y - expected) / STEP).max() < 0.5


def test_the_greatest_of_an_image_is_found_among_integers() -> None:
    description, _ = inspect(CASES["global max"].file(np.int8), arithmetic="litert")
    assert not description.left_in_float
