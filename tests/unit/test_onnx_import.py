"""Import of ONNX files: supported forms, errors, and messages."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from evaluate import difference, evaluate, random_inputs
from onnx_models import classifier, gated, model, node, random
from tenon.errors import FormatError, InputError, ModelError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.network import ops
from tenon.network.graph.bind import bind
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.verify import verify

pytestmark = pytest.mark.quick(importer="onnx")


def load(made: onnx.ModelProto, **options: object) -> Graph:
    graph = importers.load(made.SerializeToString(), **options)  # type: ignore[arg-type]
    verify(graph, typed=all(v.type.bound for v in graph.inputs))
    return graph


def onnxruntime(made: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    import onnxruntime as rt

    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    return [np.asarray(a) for a in rt.InferenceSession(made.SerializeToString(), options).run(None, inputs)]


def agrees(made: onnx.ModelProto, **options: object) -> Graph:
    graph = load(made, **options)
    inputs = random_inputs(graph)
    ours = evaluate(graph, inputs)
    for a, b in zip(ours.values(), onnxruntime(made, inputs), strict=True):
        assert difference(a, b) < 1e-5
    return graph


# ---------------------------------------------------------------------------------------------- shapes
def test_shape_arithmetic_is_folded() -> None:
    graph = agrees(classifier(), shapes={"batch": 2})
    assert [n.op.name for n in graph] == ["Conv", "BatchNormalization", "Relu", "MaxPool", "Reshape", "Gemm", "Softmax"]
    assert graph.nodes[0].origin.layer == "the_c"
    assert graph.nodes[0].origin.type == "Conv"


def test_unbound_graph_is_loaded_and_bound_later() -> None:
    graph = load(classifier())
    assert str(graph.inputs[0].type) == "f32[batch,2,8,8]"
    assert any(n.op.name == "Shape" for n in graph)
    assert [v.type.dims for v in bind(graph).inputs] == [(1, 2, 8, 8)]
    bound = bind(graph, {"x": (3, 2, 8, 8)})
    verify(bound)
    assert len(bound) == len(load(classifier(), shapes={"batch": 3}))
    inputs = random_inputs(bound)
    assert difference(evaluate(bound, inputs)["y"], onnxruntime(classifier(), inputs)[0]) < 1e-5


def test_every_unbound_dimension_is_listed() -> None:
    made = model([node("Add", ["a", "b"], ["y"])], {"a": ("n", None), "b": None}, ["y"])
    with pytest.raises(ShapeError) as error:
        bind(load(made))
    assert "a: f32[n,a_dim_1]" in str(error.value)
    assert "b: f32[...]" in str(error.value)
    assert [v.type.dims for v in load(made, shapes={"a": (2, 3), "b": (3,)}).inputs] == [(2, 3), (3,)]


def test_one_input_binds_a_dimension_of_another() -> None:
    made = model([node("Add", ["a", "b"], ["y"])], {"a": ("n", 3), "b": ("n", 1)}, ["y"])
    assert [v.type.dims for v in load(made, shapes={"a": (5, 3)}).inputs] == [(5, 3), (5, 1)]
    with pytest.raises(ShapeError, match="'n' is bound to 5 and"):
        load(made, shapes={"a": (5, 3), "b": (4, 1)})


def test_number_for_an_input_of_one_dimension() -> None:
    made = model([node("Relu", ["a"], ["y"])], {"a": (4,)}, ["y"])
    assert [v.type.dims for v in load(made, shapes={"a": 3}).inputs] == [(3,)]
    with pytest.raises(ShapeError, match="'x' has 4 dimensions"):
        load(classifier(), shapes={"x": 3})


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"z": (1,)}, InputError, "no input is called 'z'; the model has 'x'"),
        ({"z": 1}, InputError, "no dimension is called 'z'; the model has 'batch'"),
        ({"batch": -1}, InputError, "-1 is not a possible extent"),
        ({"x": (1, 2)}, ShapeError, "'x' has 4 dimensions"),
        ({"x": (1, 3, 8, 8)}, ShapeError, r"the_c \(Conv\)"),
    ],
)
def test_wrong_shapes(shapes: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(classifier(), shapes=shapes)


# ----------------------------------------------------------------------------------------- old opsets
def test_forms_of_old_opsets() -> None:
    agrees(gated())


OLD = [
    (1, [node("Reshape", ["x"], ["y"], shape=[2, -1])], {}),
    (1, [node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)], {"b": random(4)}),
    (6, [node("PRelu", ["x", "b"], ["y"])], {"b": random(4)}),
    (5, [node("Cast", ["x"], ["y"], to="FLOAT")], {}),
    (7, [node("Upsample", ["x"], ["y"], scales=[1.0, 1.0, 2.0, 3.0], mode="nearest")], {}),
    (9, [node("Upsample", ["x", "b"], ["y"], mode="linear")], {"b": np.array([1, 1, 2, 2], np.float32)}),
    (10, [node("Resize", ["x", "b"], ["y"])], {"b": np.array([1, 1, 2, 2], np.float32)}),
    (11, [node("Softmax", ["x"], ["y"])], {}),
    (12, [node("LogSoftmax", ["x"], ["y"], axis=3)], {}),
    (11, [node("Split", ["x"], ["y", "z"], axis=1, split=[1, 3])], {}),
    (11, [node("Unsqueeze", ["x"], ["u"], axes=[0, 5]), node("Squeeze", ["u"], ["y"], axes=[0])], {}),
    (10, [node("Pad", ["x"], ["y"], mode="reflect", pads=[0, 0, 1, 1, 0, 0, 1, 1])], {}),
    (
        8,
        [node("BatchNormalization", ["x", "b", "b", "b", "v"], ["y"], momentum=0.5)],
        {"b": random(4), "v": np.ones(4, np.float32)},
    ),
    (17, [node("ReduceMean", ["x"], ["y"], axes=[1, -1], keepdims=0)], {}),
]


@pytest.mark.parametrize(
    ("opset", "nodes", "weights"), OLD, ids=lambda v: v[0].op_type if isinstance(v, list) else None
)
def test_old_opset(opset: int, nodes: list[onnx.NodeProto], weights: dict[str, Array]) -> None:
    outputs = [name for name in nodes[-1].output if name]
    made = model(nodes, {"x": (2, 4, 3, 3)}, outputs, weights, opset)
    graph = load(made)
    if opset >= 7:
        agrees(made)
    for n in graph:
        n.op.infer(n.inputs)


def test_old_broadcast_axis() -> None:
    made = model([node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)], {"x": (2, 4, 3, 3)}, ["y"], {"b": random(4)}, 6)
    graph = load(made)
    x = random(2, 4, 3, 3, seed=3)
    assert np.array_equal(evaluate(graph, {"x": x})["y"], x + random(4).reshape(4, 1, 1))


def test_constants_of_every_form() -> None:
    nodes = [
        node("Constant", [], ["a"], value=numpy_helper.from_array(random(3))),
        node("Constant", [], ["b"], value_float=1.5),
        node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0]),
        node("Constant", [], ["i"], value_int=3),
        node("Constant", [], ["j"], value_ints=[3]),
        node("ConstantOfShape", ["j"], ["d"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [4.0])),
        node("Cast", ["i"], ["e"], to=TensorProto.FLOAT),
        node("Sum", ["a", "b", "c", "d", "e", "x"], ["y"]),
    ]
    assert len(agrees(model(nodes, {"x": (3,)}, ["y"]))) == 1


def test_initializers_that_are_also_inputs() -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"x": (2,), "w": (2,)}, ["y"], {"w": random(2)})
    assert [v.name for v in load(made).inputs] == ["x"]


def test_unused_nodes_may_be_unsupported() -> None:
    made = model([node("Relu", ["x"], ["y"]), node("Nonsense", ["x"], ["z"])], {"x": (2,)}, ["y"])
    assert len(load(made)) == 1


def branches(condition: Array | None) -> onnx.ModelProto:
    def body(name: str, type: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([node(type, ["x"], [name])], name, [], [out])

    chosen = node("If", ["flag"], ["i"], then_branch=body("t", "Relu"), else_branch=body("e", "Neg"))
    made = model([chosen, node("Abs", ["i"], ["y"])], {"x": (3,)}, ["y"])
    if condition is None:
        made.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    else:
        made.graph.initializer.append(numpy_helper.from_array(condition, "flag"))
    return made


def test_if_with_constant_condition() -> None:
    assert [n.op.name for n in agrees(branches(np.array(True)))] == ["Relu", "Abs"]
    assert [n.op.name for n in agrees(branches(np.array(False)))] == ["Neg", "Abs"]
    made = branches(np.array(True))
    del made.graph.node[1]
    made.graph.output[0].name = "i"
    assert [v.name for v in agrees(made).outputs] == ["i"]


def test_if_with_computed_condition() -> None:
    """A node has both branches as bodies, of which it runs one."""
    graph = load(branches(None))
    assert [n.op.name for n in graph] == ["If", "Abs"]
    assert [[n.op.name for n in body] for body in graph.nodes[0].bodies] == [["Relu"], ["Neg"]]


def with_reversed_nodes(made: onnx.GraphProto) -> None:
    """The model with the nodes of the graph and of its subgraphs in reverse order."""
    nodes = [*made.node][::-1]
    del made.node[:]
    made.node.extend(nodes)
    for one in made.node:
        for attribute in one.attribute:
            if attribute.HasField("g"):
                with_reversed_nodes(attribute.g)


def test_nodes_in_any_order() -> None:
    """onnxruntime sorts them topologically, in branches and functions too."""
    made = classifier()
    expected = [n.op.name for n in load(made, shapes={"batch": 2})]
    with_reversed_nodes(made.graph)
    assert sorted(n.op.name for n in agrees(made, shapes={"batch": 2})) == sorted(expected)
    inner = helper.make_graph(
        [node("Abs", ["a"], ["b"]), node("Neg", ["x"], ["a"])],
        "inner",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    flag = numpy_helper.from_array(np.array(True), "flag")
    made = model([node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner)], {"x": (3,)}, ["y"])
    made.graph.initializer.append(flag)
    assert [n.op.name for n in load(made)] == ["Neg", "Abs"]
    body = helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [node("Add", ["a", "a"], ["y"]), node("Neg", ["x"], ["a"])],
        [helper.make_opsetid("", 21)],
    )
    made = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], {"x": (3,)}, ["y"], functions=[body])
    made.opset_import.append(helper.make_opsetid("own", 1))
    assert [n.op.name for n in load(made)] == ["Neg", "Add"]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_nodes_in_a_cycle(length: int) -> None:
    nodes = [node("Add", ["x", f"t{(i + 1) % length}"], [f"t{i}"]) for i in range(length)]
    made = model([node("Neg", ["t0"], ["y"]), *nodes], {"x": (3,)}, ["y"])
    with pytest.raises(FormatError, match=r"nodes in a cycle: .*the_t0 \(Add\)"):
        load(made)


# ------------------------------------------------------------------------------------------------ cuts
def test_cut() -> None:
    graph = load(classifier(), inputs=["n"], outputs=["p", "r"], shapes={"batch": 2})
    assert [n.op.name for n in graph] == ["Relu", "MaxPool"]
    assert [(v.name, v.type.dims) for v in graph.inputs] == [("n", (2, 4, 8, 8))]
    assert [v.name for v in graph.outputs] == ["p", "r"]
    with pytest.raises(InputError, match="no tensor is called 'nothing'; 'tenon inspect' prints its inputs"):
        load(classifier(), outputs=["nothing"])
    with pytest.raises(InputError, match=r"no tensor is called 'flet'; did you mean 'flat'\?"):
        load(classifier(), outputs=["flet"])


def test_cut_removes_unsupported_nodes() -> None:
    nodes = [node("Nonsense", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Nonsense", ["b"], ["y"])]
    made = model(nodes, {"x": (3,)}, ["y"])
    graph = load(made, inputs=["a"], outputs=["b"], shapes={"a": (1, 5)})
    assert [(n.op.name, n.output.type.dims) for n in graph] == [("Relu", (1, 5))]


# -------------------------------------------------------------------------------------------- refusals
def test_all_problems_at_once() -> None:
    nodes = [
        node("ImageDecoder", ["x"], ["a"]),
        node("Conv", ["a", "half"], ["b"]),
        node("Loop", ["", "", "b"], ["c"]),
        node("Conv", ["x", "w"], ["d"], fancy=3),
        node("FusedThing", ["d"], ["e"], domain="com.example"),
        node("Relu", ["nobody"], ["f"]),
        node("Sum", ["c", "e", "f", "bf"], ["y"]),
    ]
    made = model(nodes, {"x": (1, 2, 8, 8)}, ["y"], {"w": random(3, 2, 3, 3), "half": random(3, 2, 3, 3)})
    made.graph.initializer.append(TensorProto(name="bf", data_type=TensorProto.COMPLEX64, dims=[1], float_data=[0, 1]))
    with pytest.raises(UnsupportedError) as error:
        load(made)
    assert [p.where for p in error.value.problems] == [
        "initializer 'bf'",
        "the_a (ImageDecoder)",
        "the_c (Loop)",
        "the_d (Conv)",
        "the_e (FusedThing)",
        "the_f (Relu)",
    ]
    text = str(error.value)
    assert "fancy=3" in text
    assert "'com.example'" in text
    assert "COMPLEX64 is not supported" in text
    assert "reads 'nobody'" in text
    assert "the_d (Conv) of f32[1,2,8,8], f32[3,2,3,3]: Conv with fancy=3 is not supported" in text
    assert "(decode the image in the application and cut the model after it with --input)" in text


def test_no_follow_up_problems() -> None:
    nodes = [
        node("FusedThing", ["x"], ["a"], domain="com.example"),
        node("LpPool", ["a"], ["b"], kernel_shape=[2, 2]),
        node("LSTM", ["b", "w", "w"], ["c"], hidden_size=1),
        node("LpNormalization", ["x"], ["d"], axis=7),
        node("Sum", ["c", "d"], ["y"]),
    ]
    with pytest.raises(UnsupportedError) as error:
        load(model(nodes, {"x": (1, 2, 8, 8)}, ["y"], {"w": random(1, 4, 4)}))
    assert [p.where for p in error.value.problems] == ["the_a (FusedThing)", "the_d (LpNormalization)"]


def test_error_asks_for_required_shapes() -> None:
    made = model([node("LpPool", ["x"], ["y"], kernel_shape=[2, 2])], {"x": (1, 2, "h", 8)}, ["y"])
    message = r"the_y \(LpPool\) of f32\[1,2,h,8\]: it needs the shapes.*--shape x=1,2,N,8, or --shape h=N"
    with pytest.raises(ShapeError, match=message):
        load(made)
    agrees(made, shapes={"h": 6})


def test_training_graphs_are_refused() -> None:
    nodes = [node("Dropout", ["x", "ratio", "training"], ["y"])]
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    with pytest.raises(UnsupportedError, match="training mode, and without a seed"):
        load(model(nodes, {"x": (1, 2, 3)}, ["y"], constants))


def test_local_functions_are_expanded() -> None:
    made = model([node("Twice", ["x"], ["y"], domain="mine")], {"x": (2,)}, ["y"])
    made.functions.append(
        helper.make_function(
            "mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
        )
    )
    assert [n.op.name for n in load(made)] == ["Add"]


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x07", b"PK\x03\x04", b"TFL3" * 10, classifier().SerializeToString()[:200], b"\x00" * 64]
)
def test_not_a_model(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        importers.load(data)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"m\.onnx"):
        importers.load(path)


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(FormatError, match="Tenon reads ONNX"):
        importers.load(b"something else")


@pytest.mark.parametrize("dims", [[10**6, 10**6], [-1], [2**62, 4], [3]])
def test_impossible_tensors(dims: list[int]) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"x": (2,)}, ["y"], {"w": random(2)})
    made.graph.initializer[0].dims[:] = dims
    with pytest.raises(ModelError, match="initializer 'w'"):
        load(made)


HUGE = [
    [node("ConstantOfShape", ["huge"], ["c"]), node("Add", ["x", "c"], ["y"])],
    [node("Expand", ["one", "huge"], ["c"]), node("Add", ["x", "c"], ["y"])],
    [node("Tile", ["one", "huge"], ["c"]), node("Add", ["x", "c"], ["y"])],
    [node("Expand", ["one", "large"], ["c"]), node("ReduceSum", ["c"], ["d"]), node("Add", ["x", "d"], ["y"])],
]


@pytest.mark.parametrize("nodes", HUGE, ids=lambda nodes: nodes[0].op_type)
def test_huge_constants_are_not_folded(nodes: list[onnx.NodeProto]) -> None:
    weights = {"huge": np.array([10**6, 10**6]), "large": np.array([2**15, 2**15]), "one": random(1, 1)}
    with pytest.raises(ModelError, match="too large"):
        load(model(nodes, {"x": (1,)}, ["y"], weights))


# ---------------------------------------------------------------------------------------- external data
def with_external(folder: Path, **entries: str) -> Path:
    made = model([node("Add", ["x", "w"], ["y"])], {"x": (4,)}, ["y"], {"w": random(4)})
    tensor = made.graph.initializer[0]
    (folder / "w.bin").write_bytes(b"\0" * 16 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "16", "length": "16", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    assert np.array_equal(importers.load(path).constants()[0].array, random(4))
    with pytest.raises(UnsupportedError, match="load the model from a path"):
        importers.load(path.read_bytes())


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret"}, "not inside the model's folder"),
        ({"location": "a/../../secret"}, "not inside the model's folder"),
        ({"location": "a\\..\\..\\secret"}, "not inside the model's folder"),
        ({"location": "/etc/hostname"}, "not inside the model's folder"),
        ({"location": "C:\\secret"}, "not inside the model's folder"),
        ({"location": ""}, "not inside the model's folder"),
        ({"location": "out"}, "a link out of the model's folder"),
        ({"location": "folder/secret"}, "a link out of the model's folder"),
        ({"location": "absent.bin"}, "'absent.bin' that holds its data is missing"),
        ({"location": "x" * 5000}, "cannot be read"),
        ({"offset": "17"}, "would end after the 32 bytes of 'w.bin'"),
        ({"offset": "-1"}, "offset '-1' is not a size"),
        ({"offset": "9" * 30}, "is not a size"),
        ({"length": "15"}, "names 15 bytes"),
    ],
)
def test_external_data_stays_inside(entries: dict[str, str], message: str, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(b"\1" * 64)
    (inside / "out").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    with pytest.raises(UnsupportedError, match=message):
        importers.load(with_external(inside, **entries))


# -------------------------------------------------------------------------------------------- checksums
def test_checksum(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(gated().SerializeToString())
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    importers.load(path, sha256=right.upper())
    with pytest.raises(FormatError, match=f"{right}, expected {'0' * 64}"):
        importers.load(path, sha256="0" * 64)


def test_no_such_file() -> None:
    with pytest.raises(InputError, match="No such file"):
        importers.load("nowhere/model.onnx")
    with pytest.raises(InputError, match="over http and https only, not ftp"):
        importers.load("ftp://example.com/model.onnx")


def test_every_operator_is_registered() -> None:
    assert ops.lookup("Conv") is ops.registry()["Conv"]
    assert ops.lookup("Nonsense") is None


def test_output_listed_twice() -> None:
    made = model([node("Identity", ["x"], ["y"])], {"x": (2,)}, ["y", "y"])
    graph = load(made)
    assert [v.name for v in graph.outputs] == ["y"]
    verify(graph)


def test_split_into_a_million_parts() -> None:
    made = model([node("Split", ["x"], ["y"], num_outputs=1 << 20)], {"x": (2,)}, ["y"])
    with pytest.raises(ModelError, match="1048576 parts"):
        load(made)


@pytest.mark.parametrize("type", ["ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1"])
def test_reductions_of_bools(type: str) -> None:
    """ONNX defines only ReduceMax and ReduceMin."""
    cast = node("Cast", ["x"], ["b"], to=TensorProto.BOOL)
    for op, refused in ((type, True), ("ReduceMax", False), ("ReduceMin", False)):
        made = model(
            [cast, node(op, ["b"], ["r"]), node("Cast", ["r"], ["y"], to=TensorProto.FLOAT)], {"x": (2, 3)}, ["y"]
        )
        if refused:
            with pytest.raises(ModelError, match=f"{op} is not defined for bool: cast"):
                load(made)
        else:
            load(made)


def test_means_of_integers() -> None:
    """Sums wrap around in 64 bits, also in the reference, and quotients are rounded towards zero."""
    for dtype in (np.int64, np.uint64, np.int32, np.int8):
        info = np.iinfo(dtype)
        x = np.array(
            [[info.max, info.max, 5], [info.min, info.min, -7 if info.min else 7], [1, -2 if info.min else 2, 0]], dtype
        )
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        mean, port = (
            node("ReduceMean", ["x", "a"], ["y"], keepdims=0),
            helper.make_tensor_value_info("x", kind, x.shape),
        )
        made = helper.make_model(
            helper.make_graph(
                [mean],
                "g",
                [port],
                [helper.make_tensor_value_info("y", kind, None)],
                [numpy_helper.from_array(np.array([1]), "a")],
            ),
            opset_imports=[helper.make_opsetid("", 18)],
        )
        wide = [sum(int(v) for v in row) for row in x]
        bits = 64 if dtype == np.uint64 else 63
        wrapped = [(v + 2**bits) % 2**64 - 2**bits if bits == 63 else v % 2**64 for v in wide]
        expected = [int(abs(v) // 3) * (1 if v >= 0 else -1) for v in wrapped]
        got = tenon.open(tenon.compile(made.SerializeToString(), target="host")).run(x)["y"]
        assert got.tolist() == np.array(expected).astype(dtype).tolist(), dtype
        (value,) = evaluate(load(made), {"x": x}).values()
        assert value.tolist() == got.tolist()
