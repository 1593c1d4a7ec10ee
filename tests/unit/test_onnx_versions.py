"""Operators of older opsets: the list of all defaults that changed between versions, and of behaviour before an
attribute existed, is complete; those that matter are compared with onnxruntime.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_models import model, node, random
from tenon.errors import ModelError
from tenon.formats import importers
from tenon.formats.importers.onnx.upgrade import IMPLIED, UPGRADES
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array

Change = tuple[str, str, int]
"""Operator, attribute, and the version that has the change."""


def default(attribute: onnx.defs.OpSchema.Attribute | None) -> object:
    """None if there is none."""
    if attribute is None or attribute.required or not attribute.default_value.type:
        return None
    return onnx.helper.get_attribute_value(attribute.default_value)


def changes() -> Iterator[tuple[Change, str]]:
    """Every change of a default from one version of an operator to the next: "new", "changed" or "gone"."""
    versions: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        versions[schema.domain, schema.name].append(schema)
    for (_, name), output in versions.items():
        ordered = sorted(output, key=lambda schema: schema.since_version)
        for before, after in pairwise(ordered):
            for key in {*before.attributes, *after.attributes}:
                a, b = before.attributes.get(key), after.attributes.get(key)
                if default(a) != default(b):
                    kind = "new" if a is None else "gone" if b is None else "changed"
                    yield (name, key, after.since_version), kind


ARITHMETIC = ("Add", "Div", "Mul", "Sub")
LOGIC = ("And", "Equal", "Greater", "Less", "Or", "Pow", "Xor")
REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

NEW: dict[str, set[Change]] = {
    "it says what the operator always did": {
        ("AveragePool", "ceil_mode", 10),
        ("AveragePool", "count_include_pad", 7),
        ("ArgMax", "select_last_index", 12),
        ("ArgMin", "select_last_index", 12),
        ("DepthToSpace", "mode", 11),
        ("GRU", "layout", 14),
        ("GRU", "linear_before_reset", 3),
        ("GatherND", "batch_dims", 12),
        ("LSTM", "layout", 14),
        ("LpPool", "ceil_mode", 18),
        ("MaxPool", "ceil_mode", 10),
        ("MaxPool", "storage_order", 8),
        ("RNN", "layout", 14),
        ("ScatterElements", "reduction", 16),
        ("ScatterND", "reduction", 16),
        ("Shape", "start", 15),
        ("SpaceToDepth", "mode", 28),
        ("TopK", "largest", 11),
        ("TopK", "sorted", 11),
        ("Reshape", "allowzero", 14),
        ("Attention", "left_window_size", 25),
        ("Attention", "right_window_size", 25),
        ("BatchNormalization", "training_mode", 14),
        *((f"Reduce{r}", "noop_with_empty_axes", 18) for r in REDUCTIONS),
        ("ReduceSum", "noop_with_empty_axes", 13),
    },
    "before it, parameters were of the whole tensor, where the attribute says nothing": {
        ("DequantizeLinear", "axis", 13),
        ("QuantizeLinear", "axis", 13),
    },
    "it is about element types, or blocks, that came with it": {
        ("Cast", "saturate", 19),
        ("Cast", "round_mode", 24),
        ("CastLike", "saturate", 19),
        ("CastLike", "round_mode", 24),
        ("DequantizeLinear", "block_size", 21),
        ("DequantizeLinear", "output_dtype", 23),
        ("QuantizeLinear", "block_size", 21),
        ("QuantizeLinear", "output_dtype", 21),
        ("QuantizeLinear", "precision", 23),
        ("QuantizeLinear", "saturate", 19),
        ("LabelEncoder", "default_float", 2),
    },
    "it is the type to compute in, which is f32 for the half types": {
        ("GroupNormalization", "stash_type", 21),
        ("Range", "stash_type", 27),
    },
    "it was an input, or an attribute of another operator, and _resize makes it": {
        ("Resize", "coordinate_transformation_mode", 11),
        ("Resize", "cubic_coeff_a", 11),
        ("Resize", "exclude_outside", 11),
        ("Resize", "extrapolation_value", 11),
        ("Resize", "nearest_mode", 11),
    },
    "before it, Resize did neither": {("Resize", "antialias", 18), ("Resize", "keep_aspect_ratio_policy", 18)},
    "stands in IMPLIED": {("RoiAlign", "coordinate_transformation_mode", 16)},
}

CHANGED: dict[str, set[Change]] = {
    "the importer fills in the default of the model's opset": {
        ("Clip", "max", 6),
        ("Clip", "min", 6),
        ("Selu", "alpha", 6),
        ("Selu", "gamma", 6),
        ("Split", "axis", 2),
    },
    "_softmax, _hardmax": {("Hardmax", "axis", 13), ("LogSoftmax", "axis", 13), ("Softmax", "axis", 13)},
    "_gru: a misspelt word": {("GRU", "direction", 3)},
    "_grid_sample: another word for the same": {("GridSample", "mode", 20)},
}

GONE: dict[str, set[Change]] = {
    "_broadcast, _gemm": {*((name, "broadcast", 7) for name in (*ARITHMETIC, *LOGIC, "Gemm"))},
    "whether it is trained: models are imported for inference": {
        ("BatchNormalization", "is_test", 7),
        ("Dropout", "is_test", 7),
    },
    "_batch_normalization": {("BatchNormalization", "spatial", 9)},
    "an upgrade makes an input of it": {("Clip", "max", 11), ("Clip", "min", 11), ("Pad", "value", 11)},
    "without the input the operator's importer reads the attribute": {("DFT", "axis", 20), ("Dropout", "ratio", 12)},
    "whether the output is asked for, which the node's outputs say": {
        (name, "output_sequence", 7) for name in ("GRU", "LSTM", "RNN")
    },
}


@pytest.mark.parametrize(("kind", "known"), [("new", NEW), ("changed", CHANGED), ("gone", GONE)])
def test_list_of_changed_defaults_is_complete(kind: str, known: dict[str, set[Change]]) -> None:
    listed = [change for group in known.values() for change in group]
    assert sorted(listed) == sorted(change for change, how in changes() if how == kind)


def test_required_attributes_with_a_documented_default() -> None:
    """Concat-1: the default of its axis is stated in the description only."""
    schema = onnx.defs.get_schema("Concat", 3, "")
    assert default(schema.attributes["axis"]) is None
    assert "Default value is 1" in schema.attributes["axis"].description
    assert IMPLIED["Concat"] == (4, {"axis": 1})
    assert imported([node("Concat", ["x", "x"], ["y"])], {"x": random(2, 3)}, {}, 3).shape == (2, 6)


def test_implied_values_differ_from_current_defaults() -> None:
    for name, (since, implied) in IMPLIED.items():
        newest, oldest = onnx.defs.get_schema(name), onnx.defs.get_schema(name, since - 1, "")
        assert newest.since_version >= since > oldest.since_version
        for key, value in implied.items():
            assert default(newest.attributes[key]) != (value.encode() if isinstance(value, str) else value)
            assert default(oldest.attributes.get(key)) is None
    assert set(UPGRADES) <= {schema.name for schema in onnx.defs.get_all_schemas_with_history()}


# ---------------------------------------------------------------------------------------- against onnxruntime
def imported(nodes: list[onnx.NodeProto], inputs: dict[str, Array], weights: dict[str, Array], opset: int) -> Array:
    made = model(nodes, {name: array.shape for name, array in inputs.items()}, ["y"], weights, opset)
    return evaluate(importers.load(made.SerializeToString()), inputs)["y"]


def theirs(nodes: list[onnx.NodeProto], inputs: dict[str, Array], weights: dict[str, Array], opset: int) -> Array:
    import onnxruntime as rt

    made = model(nodes, {name: array.shape for name, array in inputs.items()}, ["y"], weights, opset)
    made.graph.output[0].type.Clear()  # of any type
    return np.asarray(rt.InferenceSession(made.SerializeToString()).run(None, inputs)[0])


X = random(1, 2, 6, 5)
ROIS: dict[str, Array] = {"r": np.array([[1, 1, 5, 6], [0.3, -1, 2.2, 3.1]], np.float32), "b": np.zeros(2, np.int64)}
SCALES = {"s": np.array([1, 1, 1.6, 0.7], np.float32)}
QUANTS: dict[str, Array] = {"s": np.array(0.03, np.float32), "z": np.array(7, np.uint8)}
GRU = {"w": random(1, 6, 5), "r": random(1, 6, 2, seed=1)}

PLAIN: list[tuple[str, str, tuple[int, ...], dict[str, Array], dict[str, Any]]] = [
    ("RoiAlign", "xrb", (10, 13, 15, 16, 21), ROIS, {"output_height": 2, "output_width": 3}),
    ("RoiAlign", "xrb", (15, 16), ROIS, {"output_height": 2, "output_width": 3, "mode": "max", "sampling_ratio": 2}),
    ("Softmax", "x", (7, 11, 12, 13), {}, {}),
    ("LogSoftmax", "x", (7, 11, 12, 13), {}, {}),
    ("Hardmax", "x", (7, 11, 12, 13), {}, {}),
    ("Resize", "xs", (10,), SCALES, {}),
    ("Resize", "xs", (10,), SCALES, {"mode": "linear"}),
    ("Selu", "x", (6, 22), {}, {}),
    ("Clip", "x", (6, 11), {}, {}),
    ("AveragePool", "x", (7, 10, 11, 19, 22), {}, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 2]}),
    ("MaxPool", "x", (7, 8, 10, 11, 12, 22), {}, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 2]}),
    ("LpPool", "x", (2, 11, 18, 22), {}, {"kernel_shape": [3, 2], "strides": [2, 2]}),
    ("ArgMax", "x", (7, 11, 12, 13), {}, {}),
    ("ReduceSum", "x", (7, 11, 13), {}, {}),
    ("ReduceMean", "x", (7, 11, 13, 18), {}, {}),
    ("DepthToSpace", "x", (7, 11, 13), {}, {"blocksize": 1}),
    ("QuantizeLinear", "xsz", (10, 13, 19, 21), QUANTS, {}),
    ("Flatten", "x", (7, 9, 11, 13), {}, {}),
    ("Shape", "x", (7, 13, 15, 21), {}, {}),
    ("Split", "x", (2, 11), {}, {}),
]


@pytest.mark.parametrize(("name", "operands", "opsets", "weights", "attributes"), PLAIN)
def test_missing_attributes_have_the_default_of_the_opset(
    name: str, operands: str, opsets: tuple[int, ...], weights: dict[str, Array], attributes: dict[str, Any]
) -> None:
    for opset in opsets:
        nodes = [node(name, list(operands), ["y"], **attributes)]
        ours, right = (run(nodes, {"x": X}, weights, opset) for run in (imported, theirs))
        assert ours.dtype == right.dtype
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6, err_msg=f"{name} of opset {opset}")


@pytest.mark.parametrize(("opset", "axis"), [(17, 1), (20, 2)])
def test_axis_of_dft_depends_on_the_opset(opset: int, axis: int) -> None:
    x = random(2, 3, 4, 1)
    got = imported([node("DFT", ["x"], ["y"])], {"x": x}, {}, opset)
    wanted = np.fft.fft(x[..., 0], axis=axis)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], wanted, atol=1e-5)


def test_misspelt_default_direction_of_gru_is_forward() -> None:
    x = {"x": random(3, 1, 5)}
    nodes = [node("GRU", ["x", "w", "r"], ["y"], hidden_size=2)]
    assert default(onnx.defs.get_schema("GRU", 1, "").attributes["direction"]) == b"foward"
    np.testing.assert_allclose(imported(nodes, x, GRU, 1), theirs(nodes, x, GRU, 7), atol=1e-6)


@pytest.mark.parametrize(("bins", "length"), [(5, None), (5, 8), (5, 9), (4, 10), (1, None)])
def test_length_of_one_sided_inverse_dft(bins: int, length: int | None) -> None:
    """2 * (bins - 1), unless it is given."""
    x = random(2, bins, 2)
    given = {} if length is None else {"n": np.array(length, np.int64)}
    nodes = [node("DFT", ["x", *given], ["y"], axis=1, inverse=1, onesided=1)]
    if length is None and bins == 1:
        with pytest.raises(ModelError):
            imported(nodes, {"x": x}, given, 17)
        return
    got = imported(nodes, {"x": x}, given, 17)
    wanted = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length or 2 * (bins - 1), axis=1)
    assert got.shape == (2, length or 2 * (bins - 1), 1)
    np.testing.assert_allclose(got[..., 0], wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("clip", [0.1, 1.0])
def test_clip_applies_to_gates(kind: str, clip: float) -> None:
    """As in onnxruntime: it does not apply to the cell state of an LSTM, which is larger here."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    weights = {"w": random(1, gates * 4, 3), "r": random(1, gates * 4, 4, seed=1), "h": random(1, 2, 4, seed=2)}
    operands = ["x", "w", "r", "", "", "h"]
    if kind == "LSTM":
        weights["c"] = 4 * random(1, 2, 4, seed=3)
        operands.append("c")
    nodes = [node(kind, operands, ["y"], hidden_size=4, clip=clip)]
    ours, right = (run(nodes, {"x": 3 * random(5, 2, 3)}, weights, 14) for run in (imported, theirs))
    np.testing.assert_allclose(ours, right, atol=1e-6)


def test_windows_of_padding_only_are_zero() -> None:
    for included in (0, 1):
        given = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1], "strides": [3], "count_include_pad": included}
        nodes = [node("AveragePool", ["x"], ["y"], **given)]
        ours, right = (run(nodes, {"x": random(3, 1, 1)}, {}, 21) for run in (imported, theirs))
        np.testing.assert_array_equal(ours, right)
        assert not ours.any()
