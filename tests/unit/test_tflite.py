"""TFLite files: the FlatBuffers reader, quantisation, and errors."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from evaluate import evaluate
from real import ROOT
from tenon.errors import FormatError, InputError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.tflite.importer import dequantized
from tenon.formats.importers.tflite.load import parse
from tenon.formats.importers.tflite.ops import MOVERS, OPERATORS
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.flatbuffer import FlatBuffer, flex_map, options
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType, Quant
from tflite_models import Model, convolution, flatbuffer

pytestmark = pytest.mark.quick(importer="tflite")


def run(data: bytes, *inputs: Array) -> list[Array]:
    graph = importers.load(data)
    return list(evaluate(graph, {v.name: a for v, a in zip(graph.inputs, inputs, strict=True)}).values())


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph]


# ------------------------------------------------------------------------------------------------- FlatBuffers
def test_tables() -> None:
    data = flatbuffer({0: ("i32", -5), 2: "text", 3: np.array([1, 2, 3], np.int32), 4: {1: ("f32", 0.5)}, 6: [{}, {}]})
    root = FlatBuffer(data).root()
    assert (root.get(0, "i32"), root.get(1, "i32", 7), root.text(2), root.text(9)) == (-5, 7, "text", "")
    assert root.ints(3) == [1, 2, 3]
    inner = root.table(4)
    assert inner is not None
    assert inner.get(1, "f32") == 0.5
    assert len(root.tables(6)) == 2
    assert root.tables(5) == []
    assert options(root, "a:i32 b:i32=9 - v:[i32]") == {"a": -5, "b": 9, "v": [1, 2, 3]}


def test_vector_length_beyond_the_file() -> None:
    data = bytearray(flatbuffer({0: np.arange(3, dtype=np.int32)}))
    at = data.index(struct.pack("<4I", 3, 0, 1, 2))
    struct.pack_into("<I", data, at, 1 << 30)
    with pytest.raises(FormatError, match="1073741824 elements"):
        FlatBuffer(bytes(data)).root().vector(0, "i32")


def test_overlapping_vectors_cannot_expand() -> None:
    shared = FlatBuffer(flatbuffer({0: np.arange(1000, dtype=np.int32)}))
    root = shared.root()
    with pytest.raises(FormatError, match="elements"):
        all(root.vector(0, "i32").size for _ in range(1000))


def test_options_of_custom_operators() -> None:
    """A FlexBuffer map {"a": 3, "b": 0.5}, encoded by the specification."""
    keys = b"a\0b\0"
    body = keys + bytes([2, 4, 3])  # the vector of keys: its length, then offsets back to "a" and "b"
    vector = len(body) - 2
    body += bytes(-len(body) % 4)
    at = len(body)
    body += struct.pack("<III", at - vector, 1, 2)  # offset to the keys, their width, the number of values
    values = len(body)
    body += struct.pack("<If", 3, 0.5) + bytes([1 << 2 | 2, 3 << 2 | 2])
    body += bytes([len(body) - values, 9 << 2 | 2, 1])
    body = body.replace(bytes([2, 4, 3]), bytes([2, 5, 4]), 1)
    assert flex_map(body) == {"a": 3, "b": 0.5}
    for cut in range(len(body)):
        with pytest.raises(FormatError):
            flex_map(body[:cut] + b"\xff")


# ------------------------------------------------------------------------------------------------ conversion
def test_explicit_padding_and_fused_activation() -> None:
    graph = importers.load(convolution(stride_w=2, stride_h=2, activation=3))
    assert names(graph) == ["Transpose", "Conv", "Transpose", "Clip"]
    conv = graph.nodes[1]
    assert conv.op.pads == (1, 0, 1, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 1e-3), ("i8", 1e-6)])
def test_fp16_and_dynamic_range_weights(dtype: str, tolerance: float) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (1, 5, 6, 2)).astype(np.float32)
    graph = importers.load(convolution(dtype))
    (output,) = evaluate(graph, {"x": x}).values()
    weights = next(node for node in graph if node.op.name == "Conv").input(1)
    assert weights.type.dims == (3, 2, 3, 3)
    if dtype == "i8":
        scale = tuple(np.array([0.01, 0.02, 0.03], np.float32).tolist())
        assert weights.type.quant == Quant(scale, (0, 0, 0), 0)
    else:
        (expected,) = run(convolution("f32"), x)
        assert np.abs(output - expected).max() < tolerance * 10


def quantised(zero: int = -7) -> bytes:
    model = Model()
    x = model.tensor("x", (1, 4), "i8", scale=[0.5], zero=[zero])
    w = model.constant("w", np.array([[1, 2, 3, 4], [-1, 0, 1, 2]], np.int8), scale=[0.25])
    b = model.constant("b", np.array([10, -10], np.int32), scale=[0.125])
    y = model.tensor("y", (1, 2), "i8", scale=[1.0], zero=[3])
    z = model.tensor("z", (2, 1), "i8", scale=[1.0], zero=[3])
    model.add("FULLY_CONNECTED", [x, w, b], [y], activation=1)
    model.add("RESHAPE", [y, model.constant("shape", np.array([2, 1], np.int32))], [z])
    return model.bytes([x], [z])


def test_quantised_products_use_integer_operators() -> None:
    x = np.array([[5, -20, 7, 100]], np.int8)
    graph = importers.load(quantised())
    assert names(graph) == ["DequantizeLinear", "Gemm", "Mul", "Relu", "QuantizeLinear", "Reshape"]
    product = next(node for node in graph if node.op.name == "Gemm")
    assert product.input(1).type.quant == Quant((0.25,), (0,), steps=True)
    np.testing.assert_array_equal(product.input(1).array, [[1, 2, 3, 4], [-1, 0, 1, 2]])
    passes.optimize(graph)  # the scale is applied after summation
    assert any(v.type.quant == Quant((0.25,), (0,), steps=True) for v in graph.constants())
    assert graph.inputs[0].type.quant == Quant((0.5,), (-7,))
    real = (x.astype(int) + 7) * 0.5
    y = real @ (np.array([[1, 2, 3, 4], [-1, 0, 1, 2]]).T * 0.25) + np.array([10, -10]) * 0.125
    expected = np.clip(np.round(np.maximum(y, 0)) + 3, -128, 127).reshape(2, 1)
    np.testing.assert_array_equal(run(quantised(), x)[0], expected)


def test_data_movement_keeps_integers() -> None:
    model = Model()
    x = model.tensor("x", (2, 2), "u8", scale=[0.5], zero=[9])
    y = model.tensor("y", (2, 4), "u8", scale=[0.5], zero=[9])
    model.add("PAD", [x, model.constant("pads", np.array([[0, 0], [1, 1]], np.int32))], [y])
    data = model.bytes([x], [y])
    assert names(importers.load(data)) == ["Pad"]
    (output,) = run(data, np.array([[1, 2], [3, 4]], np.uint8))
    np.testing.assert_array_equal(output, [[9, 1, 2, 9], [9, 3, 4, 9]])


def test_per_channel_dequantisation() -> None:
    output = dequantized(np.array([[2, 4], [6, 8]], np.int8), Quant((0.5, 2.0), (0, 4), 1))
    np.testing.assert_array_equal(output, np.array([[1, 0], [3, 8]], np.float32))


def test_atrous_convolution_is_one_dilated_convolution() -> None:
    rng = np.random.default_rng(1)
    model = Model()
    x = model.tensor("x", (1, 6, 7, 2))
    block, crops = np.array([2, 2], np.int32), np.array([[0, 0], [0, 1]], np.int32)
    pads = np.array([[2, 2], [2, 3]], np.int32)
    a, b, c = model.tensor("a", (4, 5, 6, 2)), model.tensor("b", (4, 3, 4, 2)), model.tensor("c", (1, 6, 7, 2))
    model.add("SPACE_TO_BATCH_ND", [x, model.constant("block", block), model.constant("pads", pads)], [a])
    w = model.constant("w", rng.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32))
    bias = model.constant("bias", np.array([1, -1], np.float32))
    model.add("CONV_2D", [a, w, bias], [b], padding=1, stride_w=1, stride_h=1, activation=1)
    model.add("BATCH_TO_SPACE_ND", [b, model.constant("block2", block), model.constant("crops", crops)], [c])
    graph = importers.load(model.bytes([x], [c]))
    assert names(graph) == ["Transpose", "Conv", "Transpose", "Relu"]
    assert graph.nodes[1].op.dilations == (2, 2)  # type: ignore[attr-defined]
    whole = importers.load(model.bytes([x], [b, c]))
    x_data = rng.uniform(-1, 1, (1, 6, 7, 2)).astype(np.float32)
    blocks, direct = evaluate(whole, {"x": x_data}).values()
    rows = blocks.reshape(2, 2, 1, 3, 4, 2).transpose(2, 3, 0, 4, 1, 5).reshape(1, 6, 8, 2)[:, :, :7]
    np.testing.assert_allclose(direct, rows, atol=1e-5)


# --------------------------------------------------------------------------------------------------- refusals
def test_all_unsupported_operators_are_reported_together() -> None:
    model = Model()
    x, y, z, last = (model.tensor(n, (2,)) for n in "xyzl")
    model.add("SKIP_GRAM", [x], [y])
    model.add("Mine", [y], [z])
    model.add("RELU", [z], [last])
    with pytest.raises(UnsupportedError) as error:
        importers.load(model.bytes([x], [last]))
    assert [p.where for p in error.value.problems] == ["y (SKIP_GRAM)", "z (Mine)"]


def strings(model: Model) -> None:
    model.add("RELU", [model.tensor("s", (2,), "string")], [1])


def odd_axis(model: Model) -> None:
    w = model.constant("w", np.ones((2, 3), np.int8), scale=[1, 2], axis=1)
    model.add("ADD", [0, w], [1])


def truncated(model: Model) -> None:
    w = model.constant("w", np.ones(3, np.float32))
    model.tensors[w] = {**model.tensors[w], 0: np.array([4], np.int32)}
    model.add("ADD", [0, w], [1])


@pytest.mark.parametrize(
    ("spoil", "match"),
    [(strings, "STRING"), (odd_axis, "quantized_dimension"), (truncated, "holds 12 bytes where .4. needs 16")],
    ids=["strings", "quantised axis", "data cut off"],
)
def test_invalid_tensors(spoil: Callable[[Model], None], match: str) -> None:
    model = Model()
    x, y = model.tensor("x", (2,)), model.tensor("y", (2,))
    spoil(model)
    with pytest.raises(UnsupportedError, match=match):
        importers.load(model.bytes([x], [y]))


def test_wrong_quantized_dimension_of_a_vector_is_accepted() -> None:
    model = Model()
    x, y = model.tensor("x", (1, 4)), model.tensor("y", (1, 2))
    w = model.constant("w", np.ones((2, 4), np.int8), scale=[1, 2], axis=7)
    model.add("FULLY_CONNECTED", [x, w, -1], [y])
    np.testing.assert_array_equal(run(model.bytes([x], [y]), np.ones((1, 4), np.float32))[0], [[4, 8]])


def test_other_schema_versions() -> None:
    with pytest.raises(FormatError, match="version 2"):
        importers.load(Model().bytes([], [], version=2))


def test_cutting() -> None:
    data = convolution(activation=1)
    graph = importers.load(data, inputs=["x"], outputs=["y"])
    assert [v.name for v in graph.outputs] == ["y"]
    with pytest.raises(InputError, match="'nothing'"):
        importers.load(data, outputs=["nothing"])


def test_repeated_names_are_made_unique() -> None:
    model = Model()
    x, y, z = model.tensor("t", (2,)), model.tensor("t", (2,)), model.tensor("t", (2,))
    model.add("NEG", [x], [y])
    model.add("ABS", [y], [z])
    graph = importers.load(model.bytes([x], [z]))
    assert len({v.name for v in graph.values()}) == 3


def test_every_operator_is_documented() -> None:
    words = set((ROOT / "docs/reference/formats/tflite.md").read_text().split())
    assert set(OPERATORS) <= words
    assert set(OPERATORS) >= MOVERS


def test_format_detection() -> None:
    (content,) = parse(ModelFile("by hand", quantised()))
    assert [o.type for o in content.operations] == ["FULLY_CONNECTED", "RESHAPE"]
    assert content.tensors[0].dtype is DType.I8
