"""Control flow in formats without support for it is rejected by name, and no branch is imported in its place.
Conditions that TensorFlow and ONNX evaluate at import time have tests of their own.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import model, node
from pt2_models import call, pt2
from small_models import mxnet_symbol, paddle, paddle_operator
from tenon.errors import ShapeError, UnsupportedError
from tenon.formats import importers
from tflite_models import Model
from wire import field, message


@pytest.mark.parametrize("type", ["conditional_block", "while"])
def test_paddle_blocks_are_rejected(type: str) -> None:
    entry = message((1, "sub_block"), (2, 8), (12, 1))
    operator = paddle_operator(type, {"Cond": "x"}, {"Out": "y"}) + field(4, entry)
    program = paddle(operator, shape=(1, 4)) + field(1, message((1, 1), (2, 0)))
    with pytest.raises(UnsupportedError, match=rf"y \({type}\): control flow is not supported"):
        importers.load(program)


@pytest.mark.parametrize("type", ["IF", "WHILE"])
def test_tflite_subgraphs_that_do_not_exist(type: str) -> None:
    made = Model()
    condition = made.constant("c", np.array(True))
    x, y = made.tensor("x", (1, 4)), made.tensor("y", (1, 4))
    made.add(type, [condition, x], [y])
    with pytest.raises(UnsupportedError, match=rf"\({type}\): it calls sub-graph 0, which does not exist"):
        importers.load(made.bytes([x], [y]))


@pytest.mark.parametrize("op", ["_cond", "_foreach", "_while_loop"])
def test_mxnet_subgraphs_are_rejected(op: str) -> None:
    symbol = mxnet_symbol(("null", "data", {}, ()), (op, "y", {}, (0,)))
    with pytest.raises(UnsupportedError, match=rf"y \({op}\): this operator is not supported"):
        importers.load(symbol, {"data": (1, 4)})


@pytest.mark.parametrize("name", ["cond", "while_loop", "map_impl"])
def test_pytorch_subgraphs_are_rejected(name: str) -> None:
    calls = [call(f"higher_order.{name}", "y", pred="x"), call("aten.relu.default", "z", self="y")]
    archive = pt2(calls, {"x": (1, 4), "y": (1, 4), "z": (1, 4)}, ["x"], ["z"])
    with pytest.raises(UnsupportedError, match=name):
        importers.load(archive)


def branch(*nodes: onnx.NodeProto, output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


def test_unsupported_onnx_branch_does_not_select_the_other() -> None:
    good = branch(helper.make_node("Constant", [], ["a"], value_floats=[0.0]), output="a")
    other = branch(helper.make_node("Mine", ["x"], ["b"], domain="mine"), output="b")
    made = model([node("If", ["flag"], ["y"], then_branch=good, else_branch=other)], {"x": (1,)}, ["y"])
    made.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    with pytest.raises(UnsupportedError, match="Mine of the domain 'mine' is not supported"):
        importers.load(made.SerializeToString())


def test_empty_outputs_that_contradict_declared_shapes_are_rejected() -> None:
    """Rows 5 to 9 of an input of two rows are none, but the file declares four."""
    bounds = [helper.make_node("Constant", [], [name], value_ints=[n]) for name, n in (("b", 5), ("e", 9), ("z", 0))]
    made = model([*bounds, node("Slice", ["x", "b", "e", "z"], ["y"])], {"x": (2, 3)}, ["y"])
    assert importers.load(made.SerializeToString()).outputs[0].type.dims == (0, 3)
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 3)))
    with pytest.raises(ShapeError, match=r"output 'y': it is empty, f32\[0,3\]; the file says \[4, 3\]"):
        importers.load(made.SerializeToString())


def test_outputs_declared_empty_are_accepted() -> None:
    """The slice of a shape from dimension 3 to 2 is empty."""
    made = model([node("Shape", ["x"], ["y"], start=2, end=1)], {"x": (3, 4, 5)}, ["y"])
    with pytest.raises(ShapeError, match="'y' is empty, whatever the inputs"):
        importers.load(made.SerializeToString())
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, (0,)))
    assert importers.load(made.SerializeToString()).outputs[0].type.dims == (0,)
