"""Formats of inputs and outputs requested by the caller: axis order, element type, range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tenon
from evaluate import evaluate
from tenon.cli.parse import parse_assignments, parse_list
from tenon.errors import InputError
from tenon.formats import importers
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.text import parse
from tenon.network.graph.types import F32, Quant, TensorType
from tenon.network.passes.io_adapters import adapted, data_format
from tenon.runtime.bundle import read_manifest
from tenon.runtime.engine.timing import fill_randomly

RNG = np.random.default_rng(1)
X = RNG.uniform(-1, 1, (1, 3, 4, 6)).astype(np.float32)


def add(graph: Graph, type: str, x: Value, name: str, **attributes: Any) -> Value:
    return graph.add(ops.registry()[type](**attributes), [x], [name]).output


def first() -> Graph:
    """Channels first: y = |x|, and as a second output its mean."""
    graph = Graph("first")
    x = graph.add_input("x", TensorType(F32, X.shape))
    y = add(graph, "Abs", x, "y")
    graph.outputs = [y, add(graph, "GlobalAveragePool", y, "mean")]
    return graph


def last() -> Graph:
    """Channels last, as from TensorFlow, with five channels: transposed before and after the operators."""
    graph = Graph("last")
    x = graph.add_input("x", TensorType(F32, (1, 4, 6, 5)))
    y = add(graph, "Abs", add(graph, "Transpose", x, "t", perm=(0, 3, 1, 2)), "a")
    graph.outputs = [add(graph, "Transpose", y, "y", perm=(0, 2, 3, 1))]
    return graph


def test_detected_formats() -> None:
    assert [data_format(v) for v in (*first().inputs, *first().outputs)] == ["NCHW"] * 3
    assert [data_format(v) for v in (*last().inputs, *last().outputs)] == ["NHWC"] * 2


def test_images_are_transposed() -> None:
    new = adapted(first(), {"": "NHWC"}, {})
    actual = evaluate(new, {"x": X.transpose(0, 2, 3, 1)})
    np.testing.assert_array_equal(actual["y"], np.abs(X).transpose(0, 2, 3, 1))
    assert actual["mean"].shape == (1, 1, 1, 3)
    back = adapted(last(), {"": "NCHW"}, {})
    x = RNG.normal(size=(1, 5, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(back, {"x": x})["y"], np.abs(x))


def test_only_named_inputs_are_changed() -> None:
    new = adapted(first(), {"": "NHWC", "x": "NONE", "mean": "NCHW"}, {})
    actual = evaluate(new, {"x": X})
    np.testing.assert_array_equal(actual["y"], np.abs(X).transpose(0, 2, 3, 1))
    assert actual["mean"].shape == (1, 3, 1, 1)
    same = first()
    assert adapted(same, {}, {}) is same
    assert len(adapted(same, {"": "NCHW"}, {})) == len(same)


def test_other_types() -> None:
    new = adapted(first(), {"x": "NHWC"}, {"x": "uint8", "y": "float16", "mean": "int32"})
    pixels = RNG.integers(0, 256, (1, 4, 6, 3), np.uint8)
    actual = evaluate(new, {"x": pixels})
    assert [str(actual[n].dtype) for n in ("y", "mean")] == ["float16", "int32"]
    np.testing.assert_array_equal(actual["y"], pixels.transpose(0, 3, 1, 2).astype(np.float16))


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="no input or output is called 'z'; the model has x, y, mean"):
        adapted(first(), {"z": "NHWC"}, {})
    with pytest.raises(InputError, match="no input or output is called 'z'"):
        adapted(first(), {}, {"z": "int32"})
    flat = Graph("flat")
    x = flat.add_input("x", TensorType(F32, (1, 7)))
    flat.outputs = [add(flat, "Abs", x, "y")]
    with pytest.raises(InputError, match="no image: its format can only be NONE"):
        adapted(flat, {"x": "NHWC"}, {})
    assert adapted(flat, {"": "NHWC"}, {}).inputs[0].type.dims == (1, 7)


@pytest.mark.parametrize(
    "bad", [{"data_formats": {"": "HWC"}}, {"data_types": {"x": "float"}}, {"ranges": {"x": (1,)}}]
)
def test_bad_options(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="option"):
        tenon.Options(**bad)


def chain() -> bytes:
    nodes = [helper.make_node(op, [x], [y]) for op, x, y in (("Abs", "x", "a"), ("Sqrt", "a", "b"), ("Neg", "b", "y"))]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 4)) for n in "xy"]
    model: bytes = helper.make_model(helper.make_graph(nodes, "chain", ports[:1], ports[1:])).SerializeToString()
    return model


def test_compiled_with_formats_and_types(tmp_path: Path) -> None:
    bundle = tenon.compile(
        chain(),
        inputs=("a",),
        outputs=("b",),
        shapes={"a": (1, 4)},
        data_types={"b": "float16"},
        ranges={"": (0, 9)},
        target="null",
    )
    manifest = read_manifest(bundle.save(tmp_path / "out"))
    assert [(t.name, t.dtype, t.range) for t in (*manifest.inputs, *manifest.outputs)] == [
        ("a", "f32", (0, 9)),
        ("b", "f16", None),
    ]
    with pytest.raises(InputError, match="cannot be cut again"):
        tenon.compile(importers.load(chain()), outputs=("b",))


def test_random_numbers_stay_in_range() -> None:
    inputs: dict[str, Array] = {
        "x": np.zeros(1000, np.float32),
        "i": np.zeros(1000, np.int32),
        "n": np.zeros(1000, np.float32),
    }
    fill_randomly(inputs, {"x": (2, 3), "i": (-1, 5)})
    assert 2 <= inputs["x"].min() < 2.1 < 2.9 < inputs["x"].max() <= 3
    assert sorted(set(inputs["i"].tolist())) == list(range(-1, 6))
    assert inputs["n"].std() == pytest.approx(1, abs=0.1)


def test_parsing_of_format_options() -> None:
    assert parse_assignments("--data-format", ["NHWC", "a:0=NCHW"]) == {"": "NHWC", "a:0": "NCHW"}
    assert parse_list("a, b,") == ("a", "b")
    assert parse_list(None) == ()
    with pytest.raises(InputError, match="each name once"):
        parse_assignments("--data-format", ["x=", "x=NHWC"])


# ------------------------------------------------------------------------------------------------- quantised elements
QUANTISED = """
graph "quantised" {
  input %x: f32[1,2,3,4]
  const %s: f32[] = [0.5]
  const %z: i8[] = [-3]
  %q: i8[1,2,3,4] = QuantizeLinear(to="i8") %x, %s, %z
  %r: i8[1,2,4,3] = Transpose(perm=(0, 1, 3, 2)) %q
  %y: f32[1,2,4,3] = DequantizeLinear() %r, %s, %z
  output %y
}
"""


def test_integers_of_a_quantised_model() -> None:
    graph = parse(QUANTISED, ops.registry())
    new = adapted(graph, {}, {"x": "quantized", "y": "quantized"})
    (x,), (y,) = new.inputs, new.outputs
    assert (x.name, str(x.type.dtype), y.name, str(y.type.dtype)) == ("x", "i8", "y", "i8")
    assert x.type.quant == y.type.quant == Quant((0.5,), (-3,))
    assert [node.op.name for node in new] == ["Transpose"]
    steps = RNG.integers(-128, 128, (1, 2, 3, 4)).astype(np.int8)
    real = evaluate(graph, {"x": (steps.astype(np.float32) + 3) / 2})["y"]
    np.testing.assert_array_equal((evaluate(new, {"x": steps})["y"].astype(np.float32) + 3) / 2, real)
    assert graph.inputs[0].type.dtype is F32


MOVED = """
graph "moved" {
  input %x: f32[1,2,3,4]
  input %other: f32[1,24]
  const %s: f32[] = [0.5]
  const %z: i8[] = [-3]
  %t: f32[1,3,4,2] = Transpose(perm=(0, 2, 3, 1)) %x
  %q: i8[1,3,4,2] = QuantizeLinear(to="i8") %t, %s, %z
  %r: i8[1,2,3,4] = Transpose(perm=(0, 3, 1, 2)) %q
  %d: f32[1,2,3,4] = DequantizeLinear() %r, %s, %z
  %y: f32[1,24] = Flatten(axis=1) %d
  %w: f32[1,24] = Abs() %other
  output %y
  output %w
}
"""


def test_integers_of_all_that_a_model_quantises() -> None:
    """Tensors that are moved first are integers, too; what the model does not quantise stays as it is."""
    graph = parse(MOVED, ops.registry())
    new = adapted(graph, {}, {"": "quantized"})
    assert [str(v.type.dtype) for v in (*new.inputs, *new.outputs)] == ["i8", "f32", "i8", "f32"]
    assert [v.name for v in (*new.inputs, *new.outputs)] == ["x", "other", "y", "w"]
    assert new.inputs[0].type.quant == new.outputs[0].type.quant == Quant((0.5,), (-3,))
    steps = RNG.integers(-128, 128, (1, 2, 3, 4)).astype(np.int8)
    other = RNG.uniform(-1, 1, (1, 24)).astype(np.float32)
    real = evaluate(graph, {"x": (steps.astype(np.float32) + 3) / 2, "other": other})
    made = evaluate(new, {"x": steps, "other": other})
    np.testing.assert_array_equal((made["y"].astype(np.float32) + 3) / 2, real["y"])
    np.testing.assert_array_equal(made["w"], real["w"])
    kept = adapted(graph, {}, {"": "quantized", "y": "float32"})
    assert [str(v.type.dtype) for v in (*kept.inputs, *kept.outputs)] == ["i8", "f32", "f32", "f32"]


def test_an_input_that_is_quantised_twice() -> None:
    """Becomes integers where both have the same scale, and only there."""
    second = '  %q2: i8[1,2,3,4] = QuantizeLinear(to="i8") %x, %s, %z\n  %a: i8[2,12] = Flatten(axis=2) %q2\n'
    text = QUANTISED.replace("  %r: i8", f"{second}  %r: i8").replace("output %y", "output %y\n  output %a")
    new = adapted(parse(text, ops.registry()), {}, {"x": "quantized"})
    assert str(new.inputs[0].type.dtype) == "i8"
    other = text.replace("%x, %s, %z\n  %a", "%x, %s2, %z\n  %a")
    other = other.replace("  const %z", "  const %s2: f32[] = [0.25]\n  const %z")
    with pytest.raises(InputError, match="'x' is not quantised by the model"):
        adapted(parse(other, ops.registry()), {}, {"x": "quantized"})


def test_integers_of_a_model_without_any() -> None:
    with pytest.raises(InputError, match="quantises no input and dequantises no output: leave out --io integer"):
        adapted(first(), {}, {"": "quantized"})


def test_what_is_not_quantised() -> None:
    for name in ("x", "y"):
        with pytest.raises(InputError, match=f"'{name}' is not (de)?quantised by the model"):
            adapted(first(), {}, {name: "quantized"})
