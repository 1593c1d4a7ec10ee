"""Files of ONNX Runtime (.ort) are the models that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tenon
from evaluate import evaluate
from exact_onnxruntime import session
from onnx_models import classifier, node, random
from ort_models import MODELS, ort_file
from tenon.errors import FormatError, ModelError
from tenon.formats import importers
from tenon.formats.importers.onnx.ort_file import GRAPH, MODEL, NODE, SESSION, TENSOR, is_ort, parse_ort
from tenon.formats.wire.flatbuffer_write import Fields, serialise


def feeds_of(graph: tenon.Graph) -> dict[str, Any]:
    return {v.name: np.array(True) if v.type.dtype == "bool" else random(*v.type.dims, seed=3) for v in graph.inputs}


def loaded(source: Path | bytes, name: str) -> tenon.Graph:
    return tenon.load(source, shapes={"batch": 2} if name == "classifier" else None)


def close(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, 1e-5, 1e-5 * np.abs(array).max(), err_msg=name)


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_model(name: str, tmp_path: Path, optimised: bool) -> None:
    path = tmp_path / "model.ort"
    ort_file(MODELS[name], path, optimised=optimised)
    imported = importers.read(path)
    assert imported.format == "ONNX"
    graph, plain = loaded(path, name), loaded(MODELS[name].SerializeToString(), name)
    feeds = feeds_of(plain)
    assert [(v.name, v.type.shape) for v in graph.inputs] == [(v.name, v.type.shape) for v in plain.inputs]
    results = evaluate(graph, feeds)
    theirs = dict(zip(results, session(path).run(list(results), feeds), strict=True))
    close(results, theirs)
    close(results, evaluate(plain, feeds))
    with tenon.open(tenon.compile(graph)) as engine:
        close(dict(engine.run(feeds)), theirs)


def test_fused_operators(tmp_path: Path) -> None:
    """ONNX Runtime writes operators of its own in place of those that were given to it."""
    data = ort_file(MODELS["integers"], tmp_path / "model.ort", optimised=True)
    types = {(each.domain, each.op_type) for each in parse_ort(data, "model.ort").graph.node}
    assert ("com.microsoft", "DynamicQuantizeMatMul") in types


def test_without_optimisation_the_nodes_are_those_of_the_model(tmp_path: Path) -> None:
    for name in ("classifier", "branches", "loop"):
        given = MODELS[name]
        read = parse_ort(ort_file(given, tmp_path / f"{name}.ort"), name)
        same_nodes(read.graph, given.graph)
        onnx.checker.check_model(read)


def same_nodes(read: onnx.GraphProto, given: onnx.GraphProto) -> None:
    """All nodes but constants, which the files keep as initializers; of these all attributes but defaults."""
    for ours, theirs in zip(rows(read), rows(given), strict=True):
        assert (ours.op_type, ours.input, ours.output) == (theirs.op_type, theirs.input, theirs.output)
        held = {a.name: a for a in ours.attribute}
        for attribute in theirs.attribute:
            if attribute.type == attribute.GRAPH:
                same_nodes(held[attribute.name].g, attribute.g)
            else:
                assert helper.get_attribute_value(held[attribute.name]) == helper.get_attribute_value(attribute)


def rows(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return sorted((each for each in graph.node if each.op_type != "Constant"), key=lambda each: each.output[0])


def test_attributes_of_all_types(tmp_path: Path) -> None:
    classes = node("LabelEncoder", ["x"], ["y"], keys_strings=["a", "ä"], values_floats=[1.5, 2.5], default_float=-1.0)
    classes.domain = "ai.onnx.ml"
    graph = helper.make_graph(
        [classes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    given = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    read = parse_ort(ort_file(given, tmp_path / "m.ort"), "m.ort")
    same_nodes(read.graph, given.graph)
    assert read.graph.input[0].type == given.graph.input[0].type
    assert {(o.domain, o.version) for o in opsets} <= {(o.domain, o.version) for o in read.opset_import}


def test_names_and_metadata(tmp_path: Path) -> None:
    given = classifier()
    given.producer_name = "someone"
    helper.set_model_props(given, {"classes": "a,b"})
    read = parse_ort(ort_file(given, tmp_path / "m.ort"), "m.ort")
    assert read.producer_name == "someone"
    assert {p.key: p.value for p in read.metadata_props}["classes"] == "a,b"


# ------------------------------------------------------------------------------------------- files by hand
def session_of(graph: Fields | None) -> bytes:
    held: dict[int, Any] = {MODEL["ir_version"]: ("i64", 8), MODEL["opset_import"]: ("tables", [{1: ("i64", 18)}])}
    if graph is not None:
        held[MODEL["graph"]] = ("table", graph)
    return serialise({SESSION["model"]: ("table", held)}, b"ORTM")


def test_a_file_by_hand() -> None:
    """Nodes of which the first reads the second, an initializer and an operand that is left out."""
    values = np.array([1.5, -2], np.float32)
    weights = {
        TENSOR["name"]: ("text", "w"),
        TENSOR["dims"]: ("[i64]", [2]),
        TENSOR["data_type"]: ("i32", TensorProto.FLOAT),
        TENSOR["raw_data"]: ("[u8]", np.frombuffer(values.tobytes(), np.uint8)),
    }

    def row(type: str, inputs: list[str], output: str) -> Fields:
        texts = {NODE["inputs"]: ("texts", inputs), NODE["outputs"]: ("texts", [output])}
        return {NODE["op_type"]: ("text", type), **texts}

    shape = ("table", {0: ("tables", [{0: ("table", {0: ("i8", 1), 1: ("i64", 2)})}])})
    port = {0: ("text", "x"), 2: ("table", {1: ("u8", 1), 2: ("table", {0: ("i32", 1), 1: shape})})}
    data = session_of(
        {
            GRAPH["initializers"]: ("tables", [weights]),
            GRAPH["node_args"]: ("tables", [port]),
            GRAPH["nodes"]: (
                "tables",
                [row("Clip", ["s", "", "top"], "y"), row("Add", ["x", "w"], "s"), row("ReduceMax", ["w"], "top")],
            ),
            GRAPH["inputs"]: ("texts", ["x"]),
            GRAPH["outputs"]: ("texts", ["y"]),
        }
    )
    assert is_ort(data)
    assert evaluate(tenon.load(data), {"x": np.array([1, 1], np.float32)})["y"].tolist() == [1.5, -1]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (None, "its model has no graph"),
        (
            {GRAPH["nodes"]: ("tables", [{NODE["op_type"]: ("text", "Add"), NODE["type"]: ("i32", 1)}])},
            "compiled for another device",
        ),
        (
            {
                GRAPH["initializers"]: (
                    "tables",
                    [{TENSOR["name"]: ("text", "w"), TENSOR["external_offset"]: ("i64", 64)}],
                )
            },
            "lies in another file",
        ),
        (
            {GRAPH["nodes"]: ("tables", [{NODE["attributes"]: ("tables", [{0: ("text", "a"), 2: ("i32", 77)}])}])},
            "which does not exist",
        ),
        (
            {GRAPH["nodes"]: ("tables", [{NODE["attributes"]: ("tables", [{0: ("text", "a"), 2: ("i32", 5)}])}])},
            "has no value",
        ),
    ],
)
def test_refusals(graph: Fields | None, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        tenon.load(session_of(graph))


def test_a_cut_file(tmp_path: Path) -> None:
    data = ort_file(classifier(), tmp_path / "m.ort")
    for size in range(8, len(data), 97):
        with pytest.raises(ModelError):
            tenon.load(data[:size])


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "model.ort"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    with pytest.raises(FormatError, match="PNG"):
        tenon.load(path)
