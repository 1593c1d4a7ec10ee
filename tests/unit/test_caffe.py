"""Caffe files: versions, phases, pairs of files, inputs, cuts and errors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tenon
from caffe_models import blob, caffemodel, head, layer, loaded, random, run
from evaluate import evaluate
from tenon.errors import FormatError, InputError, ModelError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.caffe.schema import SCHEMA
from tenon.formats.wire.protobuf import Message
from tenon.formats.wire.protobuf_write import serialise
from tenon.formats.wire.prototext import parse
from tenon.network.graph.graph import Array
from tenon.network.graph.preprocessing import Preprocessing

pytestmark = pytest.mark.quick(importer="caffe")

W, B = random(4, 2, 3, 3), random(4)
X = random(1, 2, 5, 5)

V2 = (
    'name: "n" input: "data" input_dim: [1, 2, 5, 5]\n'
    'layer { name: "conv" type: "Convolution" bottom: "data" top: "c" '
    "convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }\n"
    'layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }\n'
    'layer { name: "pool" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }\n'
)
V1 = (
    V2.replace("layer {", "layers {")
    .replace('"Convolution"', "CONVOLUTION")
    .replace('"ReLU"', "RELU")
    .replace('"Pooling"', "POOLING")
    .replace('bottom: "c" top: "c"', 'bottom: "c" top: "c" blobs_lr: 1 weight_decay: 0')
)
V0 = (
    'name: "n" input: "data" input_dim: [1, 2, 5, 5]\n'
    'layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "padded" }\n'
    'layers { layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 } bottom: "padded" top: "c" }\n'
    'layers { layer { name: "relu" type: "relu" } bottom: "c" top: "c" }\n'
    'layers { layer { name: "pool" type: "pool" pool: AVE kernelsize: 2 stride: 2 } bottom: "c" top: "p" }\n'
)


def with_blobs(text: str) -> bytes:
    """The binary form of a net, its weights inside."""
    net = parse(SCHEMA, "NetParameter", text, "test")
    for one in (*net.layer, *net.layers):
        inner: Message = one.layer if one.has("layer") and one.type_name == "V1LayerParameter" else one
        if inner.name == "conv":
            inner.set(blobs=[blob(W), blob(B)])
    return serialise(net, ("dim",))


def answer(data: bytes, weights: bytes | None = None) -> Array:
    graph = importers.load(data, weights=weights)
    return evaluate(graph, {"data": X})["p"]


# -------------------------------------------------------------------------------------------- versions
def test_all_versions_as_text_and_binary_are_equivalent() -> None:
    expected = answer(V2.encode(), caffemodel({"conv": [W, B]}))
    assert expected.shape == (1, 4, 3, 3)
    assert expected.max() > 0
    for text in (V2, V1, V0):
        np.testing.assert_array_equal(answer(with_blobs(text)), expected)
        np.testing.assert_array_equal(answer(text.encode(), with_blobs(V1)), expected)


def test_old_and_new_layers_cannot_be_mixed() -> None:
    with pytest.raises(FormatError, match="layers of the old kind"):
        importers.load((V2 + V1[V1.index("layers {") :]).encode())
    with pytest.raises(FormatError, match="unknown type 'magic'"):
        importers.load(V0.replace('"relu"  ', "").replace('type: "relu"', 'type: "magic"').encode())


def test_shapes_of_old_blobs() -> None:
    old = SCHEMA.new("BlobProto", data=W.reshape(-1), num=4, channels=2, height=3, width=3)
    made = SCHEMA.new("LayerParameter", name="conv", type="x", blobs=[old, blob(B)])
    weights = serialise(SCHEMA.new("NetParameter", layer=[made]))
    np.testing.assert_array_equal(answer(V2.encode(), weights), answer(with_blobs(V2)))
    double = SCHEMA.new("BlobProto", double_data=W.reshape(-1).astype(np.float64), shape=blob(W).shape)
    made.set(blobs=[double, blob(B)])
    weights = serialise(SCHEMA.new("NetParameter", layer=[made]), ("dim",))
    np.testing.assert_array_equal(answer(V2.encode(), weights), answer(with_blobs(V2)))
    made.set(blobs=[SCHEMA.new("BlobProto", data=W.reshape(-1), num=5, channels=2, height=3, width=3), blob(B)])
    with pytest.raises(FormatError, match=r"layer 'conv': holds 72 numbers where its shape \[5, 2, 3, 3\] needs 90"):
        importers.load(V2.encode(), weights=serialise(SCHEMA.new("NetParameter", layer=[made])))


# ---------------------------------------------------------------------------------------- training nets
TRAINING = """
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN } transform_param { crop_size: 9 } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
        transform_param { crop_size: 4 mean_value: [1, 2] } data_param { batch_size: 50 } }
layer { name: "drop" type: "Dropout" bottom: "data" top: "data" exclude { phase: TEST }
        dropout_param { scale_train: false } }
layer { name: "late" type: "Power" bottom: "data" top: "data" include { stage: "deploy" } power_param { scale: 3 } }
layer { name: "level" type: "Power" bottom: "data" top: "data" include { min_level: 1 } power_param { scale: 3 } }
layer { name: "twice" type: "Power" bottom: "data" top: "y" power_param { scale: 2 } }
layer { name: "accuracy" type: "Accuracy" bottom: "y" bottom: "label" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
"""


def test_training_nets_are_imported_in_test_phase() -> None:
    graph = loaded(TRAINING)
    assert [(v.name, v.type.dims) for v in graph.inputs] == [("data", (1, 2, 4, 4))]
    x = random(1, 2, 4, 4)
    np.testing.assert_array_equal(evaluate(graph, {"data": x})["y"], x * 2)
    staged = loaded('state { stage: "deploy" level: 2 }' + TRAINING)
    np.testing.assert_allclose(evaluate(staged, {"data": x})["y"], x * 18, rtol=1e-6)


def test_mean_image_is_subtracted(tmp_path: Path) -> None:
    text = TRAINING.replace("mean_value: [1, 2]", 'mean_file: "data/set/mean.binaryproto" scale: 0.5')
    (tmp_path / "net.prototxt").write_text(text)
    shapes = {"data": (1, 2, 4, 4)}
    x, mean = random(1, 2, 4, 4), random(1, 2, 7, 6)
    np.testing.assert_array_equal(evaluate(importers.load(tmp_path, shapes=shapes), {"data": x})["y"], x * 2)
    (tmp_path / "mean.binaryproto").write_bytes(serialise(blob(mean)))
    graph = importers.load(tmp_path, shapes=shapes)
    assert graph.preprocessing["data"] == Preprocessing((0.0,), (0.5,), "bgr", "crop")
    expected = (x - 0.5 * mean[:, :, 1:5, 1:5]) * 2
    np.testing.assert_allclose(evaluate(graph, {"data": x})["y"], expected, rtol=1e-6)
    (tmp_path / "mean.binaryproto").write_bytes(serialise(blob(mean[:, :, :3])))
    with pytest.raises(FormatError, match=r"mean.binaryproto is a mean image \[1, 2, 3, 6\] for .* remove mean_file"):
        importers.load(tmp_path, shapes=shapes)


def test_shape_option_for_data_layers() -> None:
    text = TRAINING.replace("crop_size: 4", "")
    with pytest.raises(ShapeError, match=r"input 'data': .* --shape data=1,2,N,N"):
        loaded(text)
    graph = importers.load(text.encode(), shapes={"data": (3, 2, 6, 7)})
    assert graph.outputs[0].type.dims == (3, 2, 6, 7)
    graph = importers.load(text.encode(), shapes={"data_h": 6, "data_w": 7})
    assert graph.outputs[0].type.dims == (1, 2, 6, 7)
    with pytest.raises(InputError, match="no input or dimension is called 'image'"):
        importers.load(TRAINING.encode(), shapes={"image": (1, 2, 6, 7)})


def test_other_data_layers() -> None:
    memory = (
        'layer { name: "d" type: "MemoryData" top: "data" top: "l" '
        "memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } }"
    )
    images = 'layer { name: "d" type: "ImageData" top: "data" image_data_param { new_height: 4 new_width: 5 } }'
    for text, shape in ((memory, (2, 3, 4, 5)), (images, (1, 3, 4, 5))):
        assert loaded(text + layer("TanH")).inputs[0].type.dims == shape


# -------------------------------------------------------------------------------------------- structure
def test_in_place_layers_with_several_readers() -> None:
    text = (
        head(1, 3)
        + layer("ReLU", "", ("data",), "data", "a")
        + layer("Power", "power_param { scale: 2 }", ("data",), "p", "b")
        + layer("Power", "power_param { shift: 1 }", ("data",), "data", "c")
        + layer("Eltwise", "", ("data", "p"), "y", "d")
    )
    x = random(1, 3)
    np.testing.assert_allclose(run(text, x)[0], 3 * np.maximum(x, 0) + 1, rtol=1e-6)


def test_unread_tops_are_outputs() -> None:
    text = head(1, 4) + layer("TanH", "", top="a", name="a") + layer("AbsVal", "", top="b", name="b")
    text += layer("Slice", 'top: "unused"', ("a",), "used", "s") + layer("ReLU", "", ("used",), "c", "c")
    graph = loaded(text)
    assert [v.name for v in graph.outputs] == ["b", "c"]
    assert [v.name for v in importers.load(text.encode(), outputs=["unused", "a"]).outputs] == ["unused", "a"]


def test_cut_between_tensors() -> None:
    text = head(1, 4) + layer("Unheard", "", top="a", name="a") + layer("TanH", "", ("a",), "b", "b")
    text += layer("Unheard", "", ("b",), "c", "c")
    graph = importers.load(text.encode(), inputs=["a"], outputs=["b"], shapes={"a": (2, 3)})
    assert [(v.name, v.type.dims) for v in (*graph.inputs, *graph.outputs)] == [("a", (2, 3)), ("b", (2, 3))]
    with pytest.raises(UnsupportedError, match="1 problem"):
        importers.load(text.encode(), outputs=["b"])
    with pytest.raises(InputError, match="no tensor is called 'z'"):
        importers.load(text.encode(), outputs=["z"])


def test_shared_weights() -> None:
    options = 'inner_product_param {{ num_output: 3 bias_term: false }} param {{ name: "{}" }}'
    text = head(1, 3) + layer("InnerProduct", options.format("w"), top="a", name="a")
    text += layer("InnerProduct", options.format("w"), ("a",), "b", "b")
    w, x = random(3, 3), random(1, 3)
    np.testing.assert_allclose(run(text, x, blobs={"a": [w]})[0], x @ w.T @ w.T, rtol=1e-5)


# --------------------------------------------------------------------------------------------- problems
def test_all_problems_at_once() -> None:
    text = head(1, 4, 6, 6) + layer("Bogus", "", top="a", name="first")
    text += layer("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }", top="b", name="second")
    text += layer("Pooling", "pooling_param { kernel_size: 2 novelty: 3 }", top="c", name="third")
    text += layer("Concat", "", ("a", "b"), "d", "fourth") + layer("ReLU", "", ("nowhere",), "e", "fifth")
    text += layer("Convolution", "convolution_param { num_output: 3 kernel_size: 9 group: 2 }", top="f", name="sixth")
    with pytest.raises(UnsupportedError) as error:
        loaded(text)
    shown = str(error.value)
    for part in (
        "5 problems",
        "first (Bogus): this layer is not supported",
        "second (Pooling): the pooling method STOCHASTIC",
        "third (Pooling): pooling_param: the parameter 'novelty' is not known",
        "reads 'nowhere', which no earlier layer",
        "sixth (Convolution): cannot make 3 channels of 4 in 2 groups",
    ):
        assert part in shown


def test_contradicting_shapes() -> None:
    text = head(1, 4) + head(1, 5, name="b") + layer("Eltwise", "", ("data", "b"))
    with pytest.raises(ShapeError, match="do not broadcast"):
        loaded(text)


def test_nets_without_weights_can_only_be_inspected() -> None:
    graph = loaded(V2)
    assert graph.outputs[0].type.dims == (1, 4, 3, 3)
    description, _ = tenon.inspect(graph)
    assert description.macs == 5 * 5 * 4 * 2 * 9
    with pytest.raises(
        ModelError, match="cannot be compiled: its weights were not given; name their file with --weights"
    ):
        tenon.compile(graph)


def test_weights_of_another_net() -> None:
    with pytest.raises(UnsupportedError, match=r"weights 0 have the shape \[4, 2, 5, 5\], expected \[4, 2, 3, 3\]"):
        loaded(V2, {"conv": [random(4, 2, 5, 5), B]})
    with pytest.raises(UnsupportedError, match=r"conv \(Convolution\): has no weights in the file"):
        loaded(V2, {"other": [W, B]})


# ------------------------------------------------------------------------------------- files and folders
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(V2)
    (tmp_path / "net.caffemodel").write_bytes(caffemodel({"conv": [W, B]}))
    return tmp_path


def test_load_by_either_file_or_the_folder(folder: Path) -> None:
    expected = answer(with_blobs(V2))
    (folder / "solver.prototxt").write_text("base_lr: 0.1\nmax_iter: 3\n")
    for source in (folder / "net.prototxt", folder / "net.caffemodel", folder):
        graph = importers.load(source)
        assert graph.incomplete == ""
        np.testing.assert_array_equal(evaluate(graph, {"data": X})["p"], expected)


def test_weights_file_with_another_name(folder: Path) -> None:
    (folder / "net.caffemodel").rename(folder / "snapshot_iter_7.caffemodel")
    assert importers.load(folder / "net.prototxt").incomplete == ""
    (folder / "another.caffemodel").write_bytes(b"\x0a\x01n")
    with pytest.raises(FormatError, match=r"could be any of another.caffemodel, snapshot.*; name one with --weights"):
        importers.load(folder / "net.prototxt")
    graph = importers.load(folder / "net.prototxt", weights=folder / "snapshot_iter_7.caffemodel")
    assert graph.incomplete == ""
    with pytest.raises(FormatError, match="named with --weights, but not its weights"):
        importers.load(folder / "net.prototxt", weights=folder / "net.prototxt")
    with pytest.raises(InputError, match="nowhere"):
        importers.load(folder / "net.prototxt", weights="nowhere")


def test_folders_without_a_model_or_with_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no model is in this folder; looked for .*\*.prototxt") as refused:
        importers.load(tmp_path)
    looked = str(refused.value).rpartition("looked for ")[2].split(", ")
    assert len(looked) == len(set(looked))
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: False)  # root may read all folders
        with pytest.raises(InputError, match="the folder cannot be read"):
            importers.load(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.prototxt").write_text(V2)
    with pytest.raises(InputError, match=r"several models are in this folder; give one of a\.prototxt, b\.prototxt"):
        importers.load(tmp_path)
    with pytest.raises(InputError, match="a folder has no SHA-256"):
        importers.load(tmp_path, sha256="0" * 64)


def test_format_is_detected_by_content(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(with_blobs(V1))
    assert len(importers.load(tmp_path / "model.bin")) == 3
    (tmp_path / "net.txt").write_text(V2)
    assert importers.load(tmp_path / "net.txt").outputs[0].name == "p"
    (tmp_path / "prose.txt").write_text("A layer of paint.\n")
    with pytest.raises(FormatError, match="the format is not known"):
        importers.load(tmp_path / "prose.txt")
