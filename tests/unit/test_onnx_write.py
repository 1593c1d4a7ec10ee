"""Export to ONNX: files pass the checker, and give the graph's results in onnxruntime and after re-import."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from evaluate import difference, evaluate, random_inputs
from onnx_models import classifier, gated
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.formats.exporters.onnx import to_onnx
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph, Origin
from tenon.network.graph.types import F32, I64, tensor
from tenon.network.graph.writer import Writer
from tenon.network.ops.activation import Swish
from tenon.network.ops.base import Operator
from tenon.network.ops.detection import Proposal
from tenon.network.ops.pointwise import Add
from tenon.network.ops.shuffle import ChannelShuffle


def onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    import onnxruntime as rt

    options = rt.SessionOptions()
    options.log_severity_level = 3
    session = rt.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(a) for a in session.run(None, dict(inputs))]


def check(graph: Graph, tolerance: float = 1e-5) -> onnx.ModelProto:
    """Compare the written model with the graph."""
    model = to_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    inputs = random_inputs(graph)
    expected = evaluate(graph, inputs)
    assert [o.name for o in model.graph.output] == list(expected) or len(set(expected)) < len(graph.outputs)
    for name, outputs in zip(expected, onnxruntime(model, inputs), strict=False):
        assert difference(outputs, expected[name]) < tolerance
    again = evaluate(importers.load(model.SerializeToString()), inputs)
    for name, array in expected.items():
        assert difference(again[name], array) < tolerance
    return model


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("make", [classifier, gated])
def test_optimised_models(make: object, level: int) -> None:
    assert callable(make)
    graph = importers.load(make().SerializeToString(), shapes={"batch": 2} if make is classifier else None)
    passes.optimize(graph, level=level)
    check(graph)


def graph_of(op: Operator, *dims: int) -> Graph:
    graph = Graph("one", "one")
    x = graph.add_input("x", tensor(F32, *dims))
    graph.outputs = list(Writer(graph).add(op, [x], ["y"], Origin("one", "it", op.name)))
    return graph


def test_own_operators_are_decomposed() -> None:
    assert [n.op_type for n in check(graph_of(ChannelShuffle(3), 2, 6, 4, 5)).graph.node] == [
        "Reshape",
        "Transpose",
        "Reshape",
    ]
    for alpha in (1.0, 2.0):
        model = check(graph_of(Swish(alpha=alpha), 2, 6))
        assert model.graph.node[-1].op_type == "Mul"
        assert model.opset_import[0].version == 20


def test_operators_without_onnx_form_are_reported() -> None:
    graph = Graph("rpn", "rpn")
    shapes = {"scores": (1, 6, 2, 2), "deltas": (1, 12, 2, 2), "image": (1, 3), "anchors": (3, 4)}
    inputs = [graph.add_input(name, tensor(F32, *dims)) for name, dims in shapes.items()]
    graph.outputs = list(Writer(graph).add(Proposal(post_nms=4), inputs, ["y"], Origin("rpn", "proposal", "Proposal")))
    with pytest.raises(UnsupportedError, match=r"proposal \(Proposal\): ONNX has no operator Proposal"):
        to_onnx(graph)


def test_outputs_that_are_inputs_or_constants() -> None:
    graph = Graph("ends", "ends")
    x = graph.add_input("x", tensor(F32, 2, 3))
    graph.outputs = [x, graph.constant("c", np.arange(4)), x]
    model = to_onnx(graph)
    onnx.checker.check_model(model)
    outputs = onnxruntime(model, {"x": np.ones((2, 3), np.float32)})
    assert [f.tolist() for f in outputs] == [[[1, 1, 1]] * 2, [0, 1, 2, 3], [[1, 1, 1]] * 2]
    assert model.graph.output[1].type.tensor_type.elem_type == onnx.TensorProto.INT64
    assert I64 is graph.outputs[1].type.dtype


def test_equal_names_are_made_unique() -> None:
    graph = Graph("names", "names")
    x = graph.add_input("x", tensor(F32, 3))
    y = x
    for n in range(3):
        y = graph.add(Add(), [y, graph.constant("c", np.full(3, n + 1, np.float32))], ["y"]).output
    graph.outputs = [y]
    (output,) = onnxruntime(to_onnx(graph), {"x": np.zeros(3, np.float32)})
    assert output.tolist() == [6, 6, 6]
