"""Quantised graphs as TFLite files: read again they give the same integers, and LiteRT computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from quantised_networks import CASES, FLOATS, LAST, images, in_integers, make, network, quantised
from tenon.errors import InputError, UnsupportedError
from tenon.exporters.save import save
from tenon.exporters.tflite.ops import to_tflite
from tenon.ir.graph import Array, Graph, Value
from tenon.quantization.by_ranges import profiled
from tenon.wire.flatbuffer import Buffer
from tenon.wire.flatbuffer_write import serialise


@pytest.mark.parametrize("scheme", ["int8", pytest.param("uint8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_a_file_read_again_gives_the_same_integers(name: str, scheme: str) -> None:
    made = quantised(network(CASES[name]), scheme)
    again = in_integers(tenon.load(to_tflite(made)))
    moved = ("QuantizeLinear", "DequantizeLinear")
    assert not [n for n in again if n.op.name not in moved and any(v.type.dtype.is_float for v in n.outputs)]
    before = in_integers(made)
    for image in images():
        (ours,), (theirs,) = evaluate(before, {"x": image}).values(), evaluate(again, {"x": image}).values()
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", FLOATS)
def test_operators_in_floats_keep_their_results(name: str) -> None:
    """Resampling keeps the quantisation in TFLite, so that its result is rounded twice: three steps of the output."""
    made = quantised(network(FLOATS[name]))
    again, tolerance = tenon.load(to_tflite(made)), 0.08 if name == "linear" else 1e-5
    for image in images(1):
        (ours,), (theirs,) = evaluate(made, {"x": image}).values(), evaluate(again, {"x": image}).values()
        np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize("scheme", ["int8", "uint8", "int8-per-tensor", "int4-weights", "int16x8"])
@pytest.mark.parametrize("name", CASES)
def test_litert_computes_the_same(name: str, scheme: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    data = to_tflite(quantised(network(CASES[name]), scheme))
    resolver = interpreter.OpResolverType.BUILTIN_REF
    net = interpreter.Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    net.allocate_tensors()
    graph = in_integers(tenon.load(data))
    for image in images():
        net.set_tensor(net.get_input_details()[0]["index"], image)
        net.invoke()
        (ours,) = evaluate(graph, {"x": image}).values()
        np.testing.assert_array_equal(ours, net.get_tensor(net.get_output_details()[0]["index"]))


def test_halves_are_rounded_away_from_zero_as_litert_does() -> None:
    """Inputs of half steps: those of images that were scaled to -1..1, say."""
    made = quantised(network(CASES["relu"]), "int8-symmetric")
    graph = in_integers(tenon.load(to_tflite(made)))
    first = graph.nodes[0]
    step = np.float32(first.input(1).array)
    x = ((np.arange(-94, 95, dtype=np.float32) + 0.5) * step).reshape(1, 3, 9, 7)
    (stored,) = evaluate(_until(graph, first.output), {"x": x}).values()
    wanted = np.concatenate([np.arange(-94, 0), np.arange(1, 96)])
    np.testing.assert_array_equal(np.sort(stored.reshape(-1)), wanted)


def _until(graph: Graph, value: Value) -> Graph:
    graph.outputs = [value]
    graph.prune()
    return graph


def test_names_and_shapes_of_inputs_and_outputs_stay() -> None:
    made = quantised(network(CASES["relu"]))
    again = tenon.load(to_tflite(made))
    for before, after in ((made.inputs, again.inputs), (made.outputs, again.outputs)):
        assert [(v.name, v.type.dims, v.type.dtype) for v in before] == [
            (v.name, v.type.dims, v.type.dtype) for v in after
        ]


def test_a_float_graph_is_written_in_floats() -> None:
    graph = profiled(network(CASES["add"]))
    again = tenon.load(to_tflite(graph))
    (ours,), (theirs,) = (evaluate(g, {"x": images(1)[0]}).values() for g in (graph, again))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_operators_that_tflite_has_not_are_listed(tmp_path: Path) -> None:
    made = profiled(network([make("Erf", ["a"], ["c"], name="the_erf"), LAST]))
    with pytest.raises(UnsupportedError, match=r"the_erf.*TFLite has no operator Erf"):
        save(made, tmp_path / "net.tflite")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"ends in \.onnx, \.tflite or \.tmfile"):
        save(made, tmp_path / "net.bin")


def test_digests_of_bundles_agree(tmp_path: Path) -> None:
    """The graph and the file compile to programs that compute the same bits."""
    made = quantised(network([*CASES["depthwise"]]))
    save(made, tmp_path / "net.tflite")
    results: list[Mapping[str, Array]] = []
    for model in (made, tmp_path / "net.tflite"):
        with tenon.open(tenon.compile(model, arithmetic="tflm")) as engine:
            results.append({name: a.copy() for name, a in engine.run({"x": images()[0]}).items()})
    np.testing.assert_array_equal(results[0]["b"], results[1]["b"])


@pytest.mark.parametrize("count", [0, 1, 5])
def test_flatbuffers_read_what_is_written(count: int) -> None:
    wide: dict[int, tuple[str, Any]] = {0: ("u64", 2**40), 2: ("i8", -3), 3: ("bool", True)}
    data = serialise(
        {
            0: ("text", "name"), 1: ("tables", [wide] * count), 3: ("[f32]@16", np.arange(count)), 4: ("[i64]", [7]),
            6: ("table", {1: ("[bool]", [True, False])}),
        },
        b"TEST",
    )  # fmt: skip
    assert data[4:8] == b"TEST"
    root = Buffer(data).root()
    assert root.text(0) == "name"
    assert [(t.get(0, "u64"), t.get(2, "i8"), t.get(3, "bool")) for t in root.tables(1)] == [(2**40, -3, True)] * count
    assert root.vector(3, "f32").tolist() == list(range(count))
    assert root.ints(4, "i64") == [7]
    inner = root.table(6)
    assert inner is not None
    assert inner.vector(1, "bool").tolist() == [True, False]
