"""Mutated Caffe files, text and binary, imported or rewritten by the Caffe exporter."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest

from caffe_models import blob, head, layer
from caffe_models import random as numbers
from damage import COUNT, FIELDS, flipped, survive
from real import shared
from tenon.formats import importers
from tenon.formats.exporters.caffe import optimise
from tenon.formats.exporters.rewrite import Rewritten, WriteRequest, rewritten
from tenon.formats.importers.caffe.schema import SCHEMA
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf_write import serialise
from tenon.formats.wire.prototext import parse
from tenon.network.graph.graph import Graph

TEXT = (
    head(1, 3, 8, 8)
    + layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 group: 1 }", top="c", name="c")
    + layer("BatchNorm", "batch_norm_param { eps: 0.1 }", ("c",), "c", "n")
    + layer("Scale", "scale_param { bias_term: true }", ("c",), "c", "s")
    + layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", ("c",), "p", "p")
    + layer("PriorBox", "prior_box_param { min_size: 3 aspect_ratio: 2 }", ("p", "data"), "b", "b")
    + layer("Slice", 'top: "q" slice_param { slice_point: 1 }', ("c",), "r", "t")
    + layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", ("q",), "f", "f")
    + layer("InnerProduct", "inner_product_param { num_output: 5 }", ("f",), "i", "i")
)


def binary() -> bytes:
    net = parse(SCHEMA, "NetParameter", TEXT, "net")
    shapes: dict[str, list[tuple[int, ...]]] = {
        "c": [(4, 3, 3, 3), (4,)],
        "n": [(4,), (4,), (1,)],
        "s": [(4,), (4,)],
        "i": [(5, 108), (5,)],
    }
    for one in net.layer:
        one.set(blobs=[blob(numbers(*dims)) for dims in shapes.get(one.name, [])] or None)
    return serialise(net, ("dim",))


REAL = {
    "lenet": "prototxt_only/lenet/lenet",
    "ssd": "prototxt_only/mobilenet_ssd/MobileNetSSD_deploy",
    "train_val": "cifar10_cgo/train_val",
}


@pytest.mark.parametrize("name", ["text", "binary", *REAL])
def test_only_model_errors_escape(name: str) -> None:
    def load(data: bytes) -> Graph:
        return importers.load(data, shapes={"data": (1, 3, 32, 32)} if name == "train_val" else None)

    if name in REAL:
        data, count = shared(f"models/caffe/{REAL[name]}.prototxt").read_bytes(), COUNT // 5
    else:
        data, count = TEXT.encode() if name == "text" else binary(), COUNT
    assert len(load(data)) > 5
    assert survive(name, data, load, count) > count // 40


def test_mutated_weights() -> None:
    survive("weights", binary(), lambda data: importers.load(TEXT.encode(), weights=data or b"\0"))


def test_rewriting_mutated_nets() -> None:
    valid = binary()

    def rewrite(text: bytes) -> None:
        rng = random.Random(len(text))
        damaged = rng.choice((flipped, *FIELDS))(valid, rng)
        weights = ModelFile("w.caffemodel", rng.choice((valid, damaged)))
        optimise(ModelFile("net.prototxt", text, weights=weights)).caffemodel()

    assert survive("rewriting", TEXT.encode(), rewrite) < COUNT


def test_mutated_rewrite_configurations(tmp_path: Path) -> None:
    """Mutations of config.ini and of the mean image named in it."""
    files = ("original_prototxt", "original_model", "optimized_prototxt", "optimized_model")
    text = "[DEFAULT]\n" + "".join(f"{name}_path = ./{name}\n" for name in files)
    text += "merge_bn_scale = yes\nmean_proto_path = ./{}\nmean_R = 30\nmean_G = 20\nmean_B = 1e1\n"
    text += "input_scale = 0.5\nC = 3\n"
    (tmp_path / files[0]).write_text(TEXT)
    (tmp_path / files[1]).write_bytes(binary())
    image = io.BytesIO()
    np.save(image, np.ones((3, 4, 4)))

    def rewrite(config: bytes, mean: bytes = b"") -> Rewritten:
        (tmp_path / "config.ini").write_bytes(config)
        (tmp_path / "mean.npy").write_bytes(mean)
        return rewritten(WriteRequest(str(tmp_path / "config.ini"), None), lambda graph: None)

    survive("configuration", text.format("").encode(), rewrite, COUNT // 2)
    survive("mean", image.getvalue(), lambda data: rewrite(text.format("mean.npy").encode(), data), COUNT // 2)
