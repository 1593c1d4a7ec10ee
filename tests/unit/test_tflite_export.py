"""Quantised graphs as TFLite files: read again they give the same integers, and LiteRT computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from quantised_networks import (
    CASES,
    CONSTANTS,
    FLOATS,
    LAST,
    PROBABILITIES,
    images,
    in_integers,
    make,
    network,
    quantised,
    ranges_of,
)
from tenon.errors import InputError, UnsupportedError
from tenon.formats.exporters.save import save
from tenon.formats.exporters.tflite.ops import to_tflite
from tenon.formats.wire.flatbuffer import FlatBuffer
from tenon.formats.wire.flatbuffer_write import serialise
from tenon.network.graph.graph import Array, Graph, Value
from tenon.tools.quantization.by_ranges import profiled, quantize_by_ranges
from tenon.tools.quantization.half_precision import in_fp16


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


@pytest.mark.parametrize(("scheme", "step"), [("int8", 1 / 256), ("uint8", 1 / 256), ("int16x8", 1 / 32768)])
@pytest.mark.parametrize("name", PROBABILITIES)
def test_probabilities_are_computed_in_integers(name: str, scheme: str, step: float) -> None:
    """The last layer has the scale that TFLite prescribes, and gives within rounding what floats give."""
    made = quantised(network(PROBABILITIES[name]), scheme)
    again = in_integers(tenon.load(to_tflite(made)))
    operators = {n.op.name for n in again}
    assert operators & {"IntegerSoftmax", "IntegerSoftmax16"}
    assert "Softmax" not in operators
    for image in images(1):
        (wanted,), (got,) = evaluate(made, {"x": image}).values(), evaluate(again, {"x": image}).values()
        assert np.abs(wanted - got).max() < max(2 * step, 2e-3)  # TFLite's tables of 16 bits have errors of 1e-3


def test_a_softmax_that_floats_read_stays_in_floats() -> None:
    """As the weights of attention, which 8 bits are too coarse for."""
    made = quantised(network([make("Softmax", ["a"], ["c"], axis=1), make("Mul", ["c", "c"], ["b"])]))
    operators = {n.op.name for n in in_integers(tenon.load(to_tflite(made)))}
    assert "LookupSoftmax" in operators
    assert "IntegerSoftmax" not in operators


def test_weights_in_f16_stay_so() -> None:
    """All layers, or those in fp16, keep them: LiteRT's convolutions in floats read them through DEQUANTIZE, and need a
    bias."""
    graph = network([make("Relu", ["a"], ["c"]), make("Conv", ["c", "point"], ["b"], name="last")])
    stored = {name: CONSTANTS[name].transpose(0, 2, 3, 1).astype(np.float16).tobytes() for name in ("w", "point")}
    narrow, (image,), computed = in_f16(graph), images(1), list[tuple[bytes, Array]]()
    for made, names in ((tenon.quantize(graph, scheme="fp16").graph, {"w"}), (narrow, {"point"})):
        data = to_tflite(made)
        assert {name for name in stored if stored[name] in data} == names  # "point" is too small for the scheme
        again = in_integers(tenon.load(data))
        (wanted,), (got,) = evaluate(made, {"x": image}).values(), evaluate(again, {"x": image}).values()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02)  # a step of the 8 bits before it
        computed.append((data, got))
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    for data, got in computed:
        np.testing.assert_allclose(litert(interpreter, data, image), got, rtol=0, atol=1e-5)


def in_f16(graph: Graph) -> Graph:
    """The graph with its layer "last" in fp16, the rest in int8."""
    ranges = ranges_of(graph)
    made = quantize_by_ranges(graph, ranges, exclude=["last"])
    in_fp16(made, ["last"])
    return made


def test_tflm_computes_the_same() -> None:
    """With the arithmetic ``tflm``: convolution, matrix product and softmax."""
    runtime = pytest.importorskip("tflite_micro", reason="TFLite Micro's interpreter is not installed").runtime
    data = to_tflite(quantised(network(PROBABILITIES["softmax of scores"])))
    net, graph = runtime.Interpreter.from_bytes(data), in_integers(tenon.load(data), "tflm")
    for image in images():
        net.set_input(image, 0)
        net.invoke()
        (ours,) = evaluate(graph, {"x": image}).values()
        np.testing.assert_array_equal(ours, net.get_output(0))


@pytest.mark.parametrize("scheme", ["int8", "uint8", "int8-per-tensor", "int4-weights", "int16x8"])
@pytest.mark.parametrize("name", [*CASES, *PROBABILITIES])
def test_litert_computes_the_same(name: str, scheme: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    data = to_tflite(quantised(network((CASES | PROBABILITIES)[name]), scheme))
    graph = in_integers(tenon.load(data))
    for image in images():
        (ours,) = evaluate(graph, {"x": image}).values()
        np.testing.assert_array_equal(ours, litert(interpreter, data, image))


def litert(interpreter: Any, data: bytes, image: Array) -> Array:
    """The output by LiteRT's reference kernels."""
    resolver = interpreter.OpResolverType.BUILTIN_REF
    net = interpreter.Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    net.allocate_tensors()
    net.set_tensor(net.get_input_details()[0]["index"], image)
    net.invoke()
    return np.asarray(net.get_tensor(net.get_output_details()[0]["index"]))


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
            0: ("text", "name"),
            1: ("tables", [wide] * count),
            3: ("[f32]@16", np.arange(count)),
            4: ("[i64]", [7]),
            6: ("table", {1: ("[bool]", [True, False])}),
        },
        b"TEST",
    )
    assert data[4:8] == b"TEST"
    root = FlatBuffer(data).root()
    assert root.text(0) == "name"
    assert [(t.get(0, "u64"), t.get(2, "i8"), t.get(3, "bool")) for t in root.tables(1)] == [(2**40, -3, True)] * count
    assert root.vector(3, "f32").tolist() == list(range(count))
    assert root.ints(4, "i64") == [7]
    inner = root.table(6)
    assert inner is not None
    assert inner.vector(1, "bool").tolist() == [True, False]
