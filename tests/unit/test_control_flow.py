"""Control flow of Paddle and PyTorch; where there is none, it is rejected by name, and no branch takes its place.

That of ONNX, TensorFlow and TFLite has tests of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import model, node
from pt2_models import body, call, numbered, pt2
from small_models import mxnet_symbol, paddle, paddle_operator
from tenon.errors import ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.ops.scan import Scan
from tflite_models import Model
from wire import field, message


def block_operator(type: str, inputs: Mapping[str, str | list[str]], outputs: str, block: int = 1) -> bytes:
    """An operator of Paddle that runs a block."""
    entry = message((1, "sub_block"), (2, 8), (12, block))
    return paddle_operator(type, dict(inputs), {"Out": outputs}) + field(4, entry)


def program(operators: Sequence[bytes], *blocks: Sequence[bytes], shape: Sequence[int] = (1, 4)) -> bytes:
    """A program from x to y with further blocks."""
    others = [field(1, message((1, i), (2, 0)) + b"".join(field(4, op) for op in b)) for i, b in enumerate(blocks, 1)]
    return paddle(*operators, shape=shape, parameters={}) + b"".join(others)


def filled(name: str, value: float, shape: Sequence[int] = (1,), dtype: int = 5) -> bytes:
    return paddle_operator("fill_constant", {}, {"Out": name}, shape=list(shape), value=float(value), dtype=dtype)


@pytest.mark.parametrize(
    ("type", "slot", "words"),
    [
        ("conditional_block", "Cond", "its condition has 4 elements"),
        ("while", "Condition", "runs block 1, which does not exist"),
    ],
)
def test_paddle_blocks_that_cannot_run(type: str, slot: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"y \({type}\).*{words}"):
        importers.load(program([block_operator(type, {slot: "x"}, "y")]))


@pytest.mark.parametrize("known", [None, -1, 1])
def test_paddle_branches(known: int | None) -> None:
    """Twice x if its sum is positive, else its square."""
    total = (
        filled("s", known)
        if known is not None
        else paddle_operator("reduce_sum", {"X": "x"}, {"Out": "s"}, reduce_all=True)
    )
    operators = [
        total,
        filled("zero", 0),
        paddle_operator("greater_than", {"X": "s", "Y": "zero"}, {"Out": "c"}),
        paddle_operator("logical_not", {"X": "c"}, {"Out": "n"}),
        block_operator("conditional_block", {"Cond": "c", "Input": ["x"]}, "a"),
        block_operator("conditional_block", {"Cond": "n", "Input": ["x"]}, "b", 2),
        paddle_operator("cast", {"X": "c"}, {"Out": "mask"}, in_dtype=0, out_dtype=2),
        paddle_operator("select_input", {"X": ["b", "a"], "Mask": "mask"}, {"Out": "y"}),
    ]
    twice = [paddle_operator("elementwise_add", {"X": "x", "Y": "x"}, {"Out": "a"})]
    square = [paddle_operator("elementwise_mul", {"X": "x", "Y": "x"}, {"Out": "b"})]
    graph = importers.load(program(operators, twice, square))
    assert [n.op.name for n in graph if n.op.name == "If"] == ["If"] * (2 if known is None else 0)
    for sign in (1, -1):
        x = np.array([[1, 2, 3, 4]], np.float32) * sign
        right = x + x if (known or sign) > 0 else x * x
        np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], right)


def test_paddle_branches_of_different_extents() -> None:
    """x twice, one below the other, if its sum is positive, else x."""
    operators = [
        paddle_operator("reduce_sum", {"X": "x"}, {"Out": "s"}, reduce_all=True),
        filled("zero", 0),
        paddle_operator("greater_than", {"X": "s", "Y": "zero"}, {"Out": "c"}),
        block_operator("conditional_block", {"Cond": "c", "Input": ["x"]}, "a"),
        paddle_operator("cast", {"X": "c"}, {"Out": "mask"}, in_dtype=0, out_dtype=2),
        paddle_operator("select_input", {"X": ["x", "a"], "Mask": "mask"}, {"Out": "y"}),
    ]
    graph = importers.load(program(operators, [paddle_operator("concat", {"X": ["x", "x"]}, {"Out": "a"}, axis=0)]))
    for sign, rows in ((1, 2), (-1, 1)):
        x = np.array([[1, 2, 3, 4]], np.float32) * sign
        results = evaluate(graph, {"x": x})
        ((axis, held),) = graph.extents["y"]
        assert (axis, int(results[held])) == (0, rows)
        np.testing.assert_array_equal(results["y"][:rows], np.concatenate([x, x])[:rows])


@pytest.mark.parametrize(
    ("steps", "dtype", "loop"),
    [(5, 5, False), (5, 3, True), (2, 3, False), (50, 5, True), (50, 3, True), (None, 5, True)],
)
def test_paddle_while(steps: int | None, dtype: int, loop: bool) -> None:
    """y = x, doubled and halved plus 1 in each step, as often as a constant or the rounded first element says.

    Where integers (3) count the steps and their number is known, a node repeats the body so often.
    """
    first = paddle_operator("slice", {"Input": "x"}, {"Out": "n"}, axes=[1], starts=[0], ends=[1], decrease_axis=[1])
    body = [
        paddle_operator("elementwise_add", {"X": "y", "Y": "one"}, {"Out": "y"}),
        paddle_operator("increment", {"X": "i"}, {"Out": "i"}, step=1.0),
        paddle_operator("less_than", {"X": "i", "Y": "n"}, {"Out": "c"}),
    ]
    operators = [
        filled("n", steps, dtype=dtype) if steps is not None else first,
        filled("i", 0, dtype=dtype),
        filled("one", 1),
        paddle_operator("scale", {"X": "x"}, {"Out": "y"}, scale=2.0),
        paddle_operator("less_than", {"X": "i", "Y": "n"}, {"Out": "c"}),
        block_operator("while", {"Condition": "c", "X": ["y", "i"]}, "y"),
    ]
    graph = importers.load(program(operators, body))
    counts = [n.op.counted for n in graph if isinstance(n.op, Scan)]
    assert counts == ([dtype == 5] if loop else [])
    for number in (0, 3, 40):
        x = np.array([[number, 2, 3, 4]], np.float32)
        right = x * 2 + (number if steps is None else steps)
        np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], right)


@pytest.mark.parametrize("type", ["IF", "WHILE"])
def test_tflite_subgraphs_that_do_not_exist(type: str) -> None:
    made = Model()
    condition = made.constant("c", np.array(True))
    x, y = made.tensor("x", (1, 4)), made.tensor("y", (1, 4))
    made.add(type, [condition, x], [y])
    with pytest.raises(UnsupportedError, match=rf"\({type}\): it calls sub-graph 0, which does not exist"):
        importers.load(made.bytes([x], [y]))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("_cond", "it has 0 subgraphs, 1 are needed"),
        ("_foreach", "the attribute in_data_locs is missing"),
        ("_while_loop", "the attribute cond_input_locs is missing"),
    ],
)
def test_mxnet_nodes_without_subgraphs(op: str, words: str) -> None:
    symbol = mxnet_symbol(("null", "data", {}, ()), (op, "y", {}, (0,)))
    with pytest.raises(UnsupportedError, match=rf"y \({op}\): {words}"):
        importers.load(symbol, {"data": (1, 4)})


def mxnet_with_subgraphs(
    op: str, attributes: dict[str, str], inputs: Sequence[str], *parts: bytes, outputs: int
) -> bytes:
    """A symbol of one node, which gives all of its outputs."""
    made = json.loads(mxnet_symbol(*(("null", name, {}, ()) for name in inputs), (op, "y", attributes, ())))
    made["nodes"][-1]["inputs"] = [[i, 0, 0] for i in range(len(inputs))]
    made["nodes"][-1]["subgraphs"] = [json.loads(part) for part in parts]
    made["heads"] = [[len(inputs), k, 0] for k in range(outputs)]
    return json.dumps(made).encode()


@pytest.mark.parametrize("version", ["1.3", "1.5"])
def test_mxnet_foreach(version: str) -> None:
    """Sums of rows of x, each plus b; the sums so far are stacked.  The subgraph reads state, slice, b."""
    body = json.loads(
        mxnet_symbol(
            *(("null", name, {}, ()) for name in ("s", "r", "b")),
            ("elemwise_add", "more", {}, (1, 2)),
            ("elemwise_add", "sum", {}, (0, 3)),
        )
    )
    body["heads"] = [[4, 0, 0], [4, 0, 0]]
    attributes = {"num_args": "4", "num_outputs": "2", "num_out_data": "1", "in_data_locs": "(1,)"}
    attributes["in_state_locs"] = "(0,)"
    order = ["state", "x", "other"]
    if version == "1.5":
        attributes["remain_locs"], order = "(2,)", ["x", "state", "other"]
    content = mxnet_with_subgraphs("_foreach", attributes, order, json.dumps(body).encode(), outputs=2)
    graph = importers.load(content, {"x": (5, 4), "state": (4,), "other": (4,)})
    assert [node.op.count for node in graph if isinstance(node.op, Scan)] == [5]
    rng = np.random.default_rng(2)
    feeds = {
        name: rng.normal(0, 1, dims).astype(np.float32) for name, dims in (("x", (5, 4)), ("state", 4), ("other", 4))
    }
    stacked, last = evaluate(graph, feeds).values()
    right = feeds["state"] + np.cumsum(feeds["x"] + feeds["other"], axis=0)
    np.testing.assert_allclose(stacked, right, rtol=1e-5)
    np.testing.assert_allclose(last, right[-1], rtol=1e-5)


def test_mxnet_while_loop() -> None:
    """While i < n, and at most 6 times: s grows by b, i by 1; s is stacked."""
    condition = mxnet_symbol(("null", "i", {}, ()), ("null", "n", {}, ()), ("broadcast_lesser", "c", {}, (0, 1)))
    body = json.loads(
        mxnet_symbol(
            *(("null", name, {}, ()) for name in ("s", "b", "i")),
            ("elemwise_add", "sum", {}, (0, 1)),
            ("_plus_scalar", "next", {"scalar": "1"}, (2,)),
        )
    )
    body["heads"] = [[3, 0, 0], [4, 0, 0], [3, 0, 0]]
    places = {"cond_input_locs": "(0, 3)", "func_input_locs": "(1, 2, 0)", "func_var_locs": "(2, 0)"}
    places |= {"num_out_data": "1", "max_iterations": "6"}
    inputs = ["i", "s", "b", "n"]
    content = mxnet_with_subgraphs("_while_loop", places, inputs, condition, json.dumps(body).encode(), outputs=3)
    graph = importers.load(content, {"i": (1,), "s": (3,), "b": (3,), "n": (1,)})
    assert [node.op.counted for node in graph if isinstance(node.op, Scan)] == [True]
    s, b = np.array([1, 2, 3], np.float32), np.array([0.5, 1, -1], np.float32)
    for n, steps in ((0, 0), (4, 4), (9, 6)):
        feeds = {"i": np.zeros(1, np.float32), "s": s, "b": b, "n": np.array([n], np.float32)}
        stacked, number, last, extent = evaluate(graph, feeds).values()
        assert (int(number[0]), int(extent)) == (steps, steps)
        np.testing.assert_allclose(last, s + steps * b)
        np.testing.assert_allclose(stacked[:steps], s + np.arange(1, steps + 1)[:, None] * b)


def test_mxnet_cond() -> None:
    """x + x where the flag is not 0, else x * b."""
    condition = mxnet_symbol(("null", "f", {}, ()), ("identity", "c", {}, (0,)))
    first = mxnet_symbol(("null", "x", {}, ()), ("elemwise_add", "t", {}, (0, 0)))
    second = mxnet_symbol(("null", "x", {}, ()), ("null", "b", {}, ()), ("elemwise_mul", "e", {}, (0, 1)))
    places = {"cond_input_locs": "(2,)", "then_input_locs": "(0,)", "else_input_locs": "(0, 1)"}
    content = mxnet_with_subgraphs("_cond", places, ["x", "b", "flag"], condition, first, second, outputs=1)
    graph = importers.load(content, {"x": (3,), "b": (3,), "flag": (1,)})
    x, b = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    assert [node.op.name for node in graph if node.bodies] == ["If"]
    for flag in (0, 1):
        (result,) = evaluate(graph, {"x": x, "b": b, "flag": np.array([flag], np.float32)}).values()
        np.testing.assert_array_equal(result, x + x if flag else x * b)


@pytest.mark.parametrize("name", ["while_loop_stack_output", "associative_scan"])
def test_pytorch_subgraphs_are_rejected(name: str) -> None:
    calls = [call(f"higher_order.{name}", "y", pred="x"), call("aten.relu.default", "z", self="y")]
    archive = pt2(calls, {"x": (1, 4), "y": (1, 4), "z": (1, 4)}, ["x"], ["z"])
    with pytest.raises(UnsupportedError, match=name):
        importers.load(archive)


def evaluated(graph: Graph, **inputs: Any) -> list[Array]:
    return list(
        evaluate(graph, {v.name: np.asarray(inputs[v.name], v.type.dtype.numpy) for v in graph.inputs}).values()
    )


def test_pytorch_cond() -> None:
    """torch.cond, whose branches read a weight, too."""
    shapes = {"x": (2, 3), "w": (3,)}
    yes = body("yes", [call("aten.mul.Tensor", "p", self="x", other="w")], {**shapes, "p": (2, 3)}, ["x", "w"], ["p"])
    no = body("no", [call("aten.neg.default", "q", self="x")], {**shapes, "q": (2, 3)}, ["x", "w"], ["q"])
    calls = [numbered("higher_order.cond", ("y",), "c", yes, no, ("x", "w"))]
    weights = {"w": np.array([1, 2, 3], np.float32)}
    made = pt2(calls, {"x": (2, 3), "c": (), "y": (2, 3)}, ["c", "x"], ["y"], weights, {"c": "bool"})
    graph, x = importers.load(made), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert [node.op.name for node in graph] == ["If", "Identity"]
    np.testing.assert_array_equal(evaluated(graph, c=True, x=x)[0], x * [1, 2, 3])
    np.testing.assert_array_equal(evaluated(graph, c=False, x=x)[0], -x)


@pytest.mark.parametrize("start", [None, 0, 3])
def test_pytorch_while_loop(start: int | None) -> None:
    """Whose count is known, few, or given."""
    shapes = {"i": (), "x": (2,), "w": (2,), "more": (), "y": (2,), "j": ()}
    kinds = {"i": "int64", "j": "int64", "more": "bool"}
    condition = body(
        "condition", [call("aten.lt.Scalar", "more", self="i", other=5)], shapes, ["i", "x", "w"], ["more"], kinds
    )
    calls = [call("aten.add.Tensor", "j", self="i", other=1), call("aten.add.Tensor", "y", self="x", other="w")]
    step = body("step", calls, shapes, ["i", "x", "w"], ["j", "y"], kinds)
    given = {"w": np.array([1, 10], np.float32)} | ({} if start is None else {"i": np.array(start, np.int64)})
    loop = numbered("higher_order.while_loop", ("last", "sum"), condition, step, ("i", "x"), ("w",))
    inputs = ["x"] if start is not None else ["i", "x"]
    described = {"i": (), "x": (2,), "last": (), "sum": (2,)}
    kinds = {"i": "int64", "last": "int64"}
    graph = importers.load(pt2([loop], described, inputs, ["last", "sum"], given, kinds))
    scans = [node.op for node in graph if isinstance(node.op, Scan)]
    assert [(op.count, op.counted) for op in scans] == {None: [(2**31 - 1, True)], 0: [(5, False)], 3: []}[start]
    for first in (0, 2, 7) if start is None else (start,):
        last, sum = evaluated(graph, i=first, x=[0.5, 0.25])
        assert last == max(first, 5)
        np.testing.assert_array_equal(sum, np.array([0.5, 0.25]) + max(0, 5 - first) * np.array([1, 10]))


@pytest.mark.parametrize("states", [True, False])
def test_pytorch_scan_and_map(states: bool) -> None:
    shapes = {"h": (2,), "x": (2,), "s": (2,)}
    calls = [call("aten.add.Tensor", "s", self="h", other="x")]
    if states:
        step = body("step", calls, shapes, ["h", "x"], ["s", "s"])
        loop = numbered("higher_order.scan", ("last", "all"), step, ("h",), ("xs",), ())
    else:
        step = body("step", calls, shapes, ["x", "h"], ["s"])
        loop = numbered("higher_order.map_impl", ("all",), step, ("xs",), ("h",))
    graph = importers.load(pt2([loop], {"h": (2,), "xs": (4, 2), "last": (2,), "all": (4, 2)}, ["h", "xs"], ["all"]))
    h, xs = np.array([1, 2], np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(evaluated(graph, h=h, xs=xs)[0], h + (xs.cumsum(0) if states else xs))


@pytest.mark.parametrize(
    ("operator", "arguments", "words"),
    [
        ("cond", ("x", "x", "x", ("x",)), "its condition has 4 elements, not one"),
        ("scan", ("x", (), ("x",), ()), "its argument 0 is no graph"),
        ("scan", (body("b", [], {}, [], []), ("x",), (), ()), "it cuts no tensor into slices"),
        ("map_impl", (body("b", [], {"a": (1,)}, ["a"], ["a"]), ("x",), ("x",)), "takes 1 tensors, and gets 2"),
        ("map_impl", ("x", [1, 2], ()), "its argument 1 lists numbers"),
    ],
)
def test_pytorch_control_that_does_not_fit(operator: str, arguments: tuple[Any, ...], words: str) -> None:
    archive = pt2([numbered(f"higher_order.{operator}", ("y",), *arguments)], {"x": (4,), "y": (4,)}, ["x"], ["y"])
    with pytest.raises(UnsupportedError, match=words):
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
