"""Inputs fixed to values with --value and ``values=``, in every format; used for conditions and shapes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tensorflow_models as tf
from caffe_models import head, layer
from command_line import run_main
from evaluate import evaluate, random_inputs
from ggml_models import TINY, whisper_file
from gguf_models import DecoderFile
from keras_models import small as keras
from onnx_models import model, node
from pt2_models import call, pt2
from small_models import (
    MXNET,
    ONEFLOW_JOB,
    caffe2_net,
    caffe2_operator,
    mace_net,
    mxnet_parameters,
    mxnet_stored,
    mxnet_symbol,
    ncnn_net,
    paddle,
    paddle_operator,
    tmfile,
)
from tenon.cli.app import app
from tenon.cli.parse import parse_values
from tenon.errors import FormatError, InputError, ShapeError, TenonError
from tenon.formats import importers
from tenon.formats.importers import FORMATS
from tenon.network.graph.bind import fix
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import TensorType
from tenon.pipeline import compile as compile_model
from tenon.pipeline import inspect as inspect_model
from tenon.pipeline import load, rewrite, tune
from tflite_models import convolution
from transformer_models import SMALL_BERT, bert_tensors, config, safetensors, whisper_tensors

X = {"x": (1, 4, 6, 5)}
DARKNET = "[net]\nheight=8\nwidth=8\nchannels=3\n[maxpool]\nsize=2\nstride=2\n"
SMALL: dict[str, tuple[bytes, dict[str, Any]]] = {
    "ONNX": (model([node("Neg", ["x"], ["y"])], {"x": (1, 3)}, ["y"]).SerializeToString(), {}),
    "Caffe": ((head(1, 2, 5, 5) + layer("ReLU")).encode(), {}),
    "Darknet": (DARKNET.encode(), {"weights": b"\0\0\0\0\2\0\0\0\0\0\0\0" + bytes(8)}),
    "ncnn": (ncnn_net("ReLU r 1 1 data y"), {"weights": b"\0"}),
    "Tengine": (tmfile(16, [0, 3, 3, 2, 2, 0, 1, 1, 1, 1, 1]), {}),
    "Caffe2": (caffe2_net([caffe2_operator("Relu", ["x"], ["y"])], ["x"], ["y"]), {"shapes": X}),
    "Paddle": (paddle(paddle_operator("relu", {"X": "x"}, {"Out": "y"}), parameters={}), {}),
    "MXNet": (mxnet_symbol(*MXNET), {"shapes": {"data": (1, 4, 6, 6)}, "weights": mxnet_parameters(mxnet_stored())}),
    "OneFlow": (ONEFLOW_JOB.replace("KIND", "relu").encode(), {}),
    "MACE": (
        mace_net("Conv2D", {"padding": 1}, (np.ones((3, 4, 1, 1), np.float32), np.ones(3, np.float32))),
        {"weights": np.ones(100, np.float32).tobytes()},
    ),
    "TFLite": (convolution(), {}),
    "TensorFlow": (tf.graph(tf.placeholder("x", 2), tf.node("y", "Neg", "x")), {}),
    "PyTorch": (pt2([call("aten.relu.default", "y", self="x")], {"x": (1, 4), "y": (1, 4)}, ["x"], ["y"]), {}),
    "Safetensors": (
        safetensors(bert_tensors(SMALL_BERT)),
        {"weights": config("bert", SMALL_BERT), "shapes": {"length": 3}},
    ),
    "Keras": (keras(), {}),
    "ggml": (whisper_file(TINY, whisper_tensors(TINY))[0], {"outputs": ["cross.0.key"]}),
    "GGUF": (DecoderFile("llama", 1).file(), {"shapes": {"length": 2, "past": 3}}),
}
"""A small model of each format but MegEngine, for which there is no writer in the tests."""


def test_every_format_has_a_model() -> None:
    assert {*SMALL, "MegEngine"} == set(FORMATS)


@pytest.mark.parametrize("format", SMALL)
def test_fixed_input_of_every_format(format: str) -> None:
    data, options = SMALL[format]
    whole = importers.load(data, **options)
    feeds = random_inputs(whole)
    name = next(iter(feeds))
    expected = evaluate(whole, feeds)
    for fixed in (importers.load(data, values={name: feeds[name]}, **options), fix(whole, {name: feeds[name]})):
        assert [v.name for v in fixed.inputs] == [v.name for v in whole.inputs if v.name != name]
        assert fixed.fixed == {name}
        rest = {k: v for k, v in feeds.items() if k != name}
        for a, b in zip(evaluate(fixed, rest).values(), expected.values(), strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(InputError, match=rf"no input is called '{name}_'; is '{name}' meant\?"):
        importers.load(data, values={f"{name}_": 1}, **options)


# ----------------------------------------------------------------------------------------------- branches
def rates(kind: int = TensorProto.INT64) -> onnx.ModelProto:
    """Voice detection at two sampling rates: the branch of the other rate is invalid for the frame's shape."""

    def branch(reshape: list[int]) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], ["s"], value_ints=reshape),
            helper.make_node("Reshape", ["x", "s"], ["z"]),
        ]
        return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", kind, [], [16000])),
        node("Equal", ["sr", "k"], ["wide"]),
        node("If", ["wide"], ["i"], then_branch=branch([2, 4]), else_branch=branch([3, 5])),
        node("Neg", ["i"], ["y"]),
    ]
    made = model(nodes, {"x": (8,)}, ["y"])
    made.graph.input.append(helper.make_tensor_value_info("sr", kind, []))
    return made


def test_branch_not_taken_may_be_invalid() -> None:
    data = rates().SerializeToString()
    with pytest.raises(TenonError, match="Reshape"):
        importers.load(data)
    graph = importers.load(data, values={"sr": 16000})
    assert [n.op.name for n in graph] == ["Reshape", "Neg"]
    with pytest.raises(TenonError, match="Reshape"):
        importers.load(data, values={"sr": 8000})
    with pytest.raises(InputError, match=r"no input is called 'rs'; is 'sr' meant\? \(the model has 'sr', 'x'\)"):
        importers.load(data, values={"rs": 8000})


def test_error_names_the_input_that_determines_a_shape() -> None:
    made = model([node("Reshape", ["x", "s"], ["y"])], {"x": (2, 6)}, ["y"])
    made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    with pytest.raises(ShapeError, match=r"fix --value s=\.\.\."):
        importers.load(made.SerializeToString())
    assert importers.load(made.SerializeToString(), values={"s": [3, -1]}).outputs[0].type.dims == (3, 4)


def test_value_replaces_the_default_of_an_input() -> None:
    made = model([node("Mul", ["x", "a"], ["y"])], {"x": (2,), "a": (2,)}, ["y"], {"a": np.ones(2, np.float32)})
    graph = importers.load(made.SerializeToString(), values={"a": [3, 4]})
    np.testing.assert_array_equal(evaluate(graph, {"x": np.ones(2, np.float32)})["y"], [3, 4])


def test_tensorflow_condition() -> None:
    data = tf.graph(
        tf.placeholder("x", 2),
        tf.placeholder("p", dtype="bool"),
        tf.node("s", "Switch", "x", "p"),
        tf.node("neg", "Neg", "s"),
        tf.node("mine", "Mine", "s:1"),
        tf.node("y", "Merge", "neg", "mine"),
    )
    graph = importers.load(data, outputs=["y"], values={"p": False})
    assert [n.op.name for n in graph] == ["Neg"]


# --------------------------------------------------------------------------------------- types and shapes
def fixed(kind: int, shape: Any, value: Any) -> Array:
    """The constant that replaces an input of this type."""
    made = model([node("Identity", ["a"], ["y"])], {"x": (1,)}, ["y"])
    made.graph.input.append(helper.make_tensor_value_info("a", kind, shape))
    graph = importers.load(made.SerializeToString(), values={"a": value})
    return graph.outputs[0].array


def test_values_take_the_type_and_the_shape_of_their_input() -> None:
    for kind, shape, value, expected in (
        (TensorProto.INT64, [], 16000, np.array(16000)),
        (TensorProto.INT64, [1], 16000, np.array([16000])),
        (TensorProto.FLOAT, [2, 2], 0.5, np.full((2, 2), 0.5, np.float32)),
        (TensorProto.FLOAT, ["n", 3], 2, np.full((1, 3), 2, np.float32)),
        (TensorProto.FLOAT, ["n", 3], [1, 2, 3, 4, 5, 6], np.arange(1, 7, dtype=np.float32).reshape(2, 3)),
        (TensorProto.FLOAT, ["n"], np.arange(3), np.arange(3, dtype=np.float32)),
        (TensorProto.BOOL, [], True, np.array(True)),
        (TensorProto.INT8, [2], [-128.0, 127.0], np.array([-128, 127], np.int8)),
    ):
        output = fixed(kind, shape, value)
        np.testing.assert_array_equal(output, expected)
        assert output.dtype == expected.dtype


@pytest.mark.parametrize(
    ("kind", "shape", "value", "message"),
    [
        (TensorProto.INT64, [], 0.5, "are not integers"),
        (TensorProto.INT8, [], 128, "does not fit"),
        (TensorProto.FLOAT, [3], [1, 2], r"an array of shape \[2\] for an input f32\[3\]"),
        (TensorProto.FLOAT, [2, 2], np.ones((2, 3)), r"an array of shape \[2, 3\]"),
        (TensorProto.FLOAT, [2], "words", "is not a number"),
        (TensorProto.FLOAT, [2], [[1], [1, 2]], "input 'a' is a list"),
        (TensorProto.STRING, [2], 1, "it holds strings"),
    ],
)
def test_invalid_values(kind: int, shape: Any, value: Any, message: str) -> None:
    with pytest.raises((InputError, ShapeError), match=message):
        fixed(kind, shape, value)


def test_value_binds_dimensions_everywhere() -> None:
    made = model([node("Add", ["x", "a"], ["y"])], {"x": ("n", 3), "a": ("n", 3)}, ["y"])
    graph = importers.load(made.SerializeToString(), values={"a": np.ones((4, 3))})
    assert graph.inputs[0].type == TensorType(graph.inputs[0].type.dtype, (4, 3))


def test_other_dimensions_can_be_bound_later() -> None:
    made = model([node("Add", ["x", "a"], ["y"])], {"x": ("n", 3), "a": (3,)}, ["y"])
    graph = importers.load(made.SerializeToString(), values={"a": 1})
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in fix(importers.load(made.SerializeToString()), {"a": 1}).inputs] == ["x"]


# ------------------------------------------------------------------------------------- Python, command line
def test_values_from_python(tmp_path: Path) -> None:
    data, values = rates().SerializeToString(), {"sr": 16000}
    assert [v.name for v in load(data, values=values).inputs] == ["x"]
    bundle = compile_model(data, values=values)
    assert [port.name for port in bundle.program.inputs] == ["x"]
    both = importers.load(model([node("Add", ["x", "a"], ["y"])], {"x": (3,), "a": (3,)}, ["y"]).SerializeToString())
    assert [port.name for port in compile_model(both, values={"a": 1}).program.inputs] == ["x"]
    description, graph = inspect_model(data, values=values)
    assert [t.name for t in description.inputs] == ["x"]
    assert isinstance(graph, Graph)
    rewrite(data, tmp_path / "out.onnx", values=values)
    assert [v.name for v in onnx.load(tmp_path / "out.onnx").graph.input] == ["x"]
    assert list(tune(data, values=values, tuning=tmp_path / "table.json")) == []


def test_every_command_that_takes_a_model_takes_values() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        options = inspect.signature(command.callback).parameters
        assert ("value" in options) == ("model" in options or "models" in options), command.name


def test_values_on_the_command_line(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    output = parse_values(["sr=16000", "f=-0.5", "t=True", "x=1,2,3", "one=7,", f"a={tmp_path / 'a.npy'}", "n=1e3"])
    np.testing.assert_array_equal(output.pop("a"), np.arange(4))
    assert output == {"sr": 16000, "f": -0.5, "t": True, "x": [1, 2, 3], "one": [7], "n": 1000.0}
    for word in ("sr", "=3", "sr=", "sr=wide", "a=missing.npy", "x=1,two"):
        with pytest.raises(InputError):
            parse_values([word])
    with pytest.raises(InputError, match="each name once"):
        parse_values(["a=1", "a=2"])


def commands(folder: Path) -> dict[str, Callable[[str], list[str]]]:
    return {
        "inspect": lambda path: ["inspect", path, "--json"],
        "compile": lambda path: ["compile", path, "-o", str(folder / "bundle"), "--json", "--target", "wasm32"],
        "optimize": lambda path: ["optimize", path, "-o", str(folder / "out.onnx"), "--json"],
    }


@pytest.mark.parametrize("command", ["inspect", "compile", "optimize"])
def test_values_option_of_every_command(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tenon.cli import main

    path = tmp_path / "net.onnx"
    path.write_bytes(rates().SerializeToString())
    arguments = commands(tmp_path)[command](str(path))
    assert run_main(main, [*arguments, "--value", "sr=16000"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert run_main(main, arguments) == 2
    capsys.readouterr()
    assert run_main(main, [*arguments, "--value", "rs=16000"]) == 2
    assert "is 'sr' meant?" in " ".join(capsys.readouterr().err.split())


def test_caffe_rewriting_rejects_values(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_bytes(SMALL["Caffe"][0])
    with pytest.raises((InputError, FormatError), match="--value"):
        rewrite(tmp_path / "net.prototxt", tmp_path / "out", values={"data": 1})
