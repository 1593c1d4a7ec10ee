"""Mutated files of the formats without a fuzz test of their own: importers raise ModelError only."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from damage import COUNT, survive
from pt2_models import call, pt2
from real import shared
from small_models import (
    MXNET,
    ONEFLOW_JOB,
    Node,
    caffe2_fill,
    caffe2_net,
    caffe2_operator,
    mace_net,
    mxnet_parameters,
    mxnet_stored,
    mxnet_symbol,
    ncnn_net,
    paddle,
    paddle_operator,
    paddle_tensor,
    pir,
    pir_operator,
    tmfile,
)
from tenon.formats import importers
from tenon.network.graph.graph import Graph

FACES = {"input": (1, 3, 240, 320)}


def main_file(shapes: Mapping[str, tuple[int, ...]], weights: bytes | None = None) -> Callable[[bytes], Graph]:
    return lambda data: importers.load(data, shapes, weights=weights)


def weights_of(main: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Callable[[bytes], Graph]:
    """Mutated weights of a valid model."""
    return lambda data: importers.load(main, shapes, weights=data or b"\0")


X = {"x": (1, 4, 6, 5)}
IMAGE = {"data": (1, 4, 6, 6)}
W, B = np.ones((3, 4, 1, 1), np.float32), np.ones(3, np.float32)
NCNN = ncnn_net("Convolution c 1 1 data a 0=3 1=1 5=1 6=9", "Pooling p 1 1 a b 0=1 1=2 2=2", "Permute q 1 1 b c 0=3")
CAFFE2 = caffe2_net([caffe2_operator("Conv", ["x", "w", "b"], ["y"], kernel=1)], ["x", "w", "b"], ["y"])
INIT = caffe2_net([caffe2_fill("w", W), caffe2_fill("b", B)])
PADDLE = paddle(
    paddle_operator(
        "conv2d",
        {"Input": "x", "Filter": "w"},
        {"Output": "c"},
        strides=[1, 1],
        dilations=[1, 1],
        paddings=[0, 0],
        groups=1,
    ),
    paddle_operator("elementwise_add", {"X": "c", "Y": "b"}, {"Out": "y"}, axis=1),
)
PIR = pir(
    pir_operator("1.conv2d", (1, 2), (4,), strides=[1, 1], dilations=[1, 1], paddings=[0, 0], groups=1),
    pir_operator("1.full_int_array", (), (5,), value=[1, -1, 1, 1], dtype="int64"),
    pir_operator("1.reshape", (3, 5), (6,)),
    pir_operator("1.add", (4, 6), (7,)),
    pir_operator("0.combine", (7, 4), (8,)),
    pir_operator("1.add_n", (8,), (9,)),
)
STORED = paddle_tensor(B) + paddle_tensor(W)
SYMBOL, PARAMETERS = mxnet_symbol(*MXNET), mxnet_parameters(mxnet_stored())
CONV = [1, 1, 2, 1, 1, 1, 4, 3, 1, 6, 0, 0, 0, 0]
YOLO = ncnn_net(
    "Yolov3DetectionOutput d 1 1 data y 0=2 1=2 -23304=4,1,2,3,4 -23305=2,0,1 -23306=1,8", shape="0=3 1=2 2=14"
)
SSD = ncnn_net(
    "Input p 0 1 image 0=60 1=40 2=3",
    "PriorBox b 2 1 data image priors -23300=1,12 -23302=1,2 9=-233 10=-233",
    "Input l 0 1 location 0=72",
    "Input c 0 1 confidence 0=54",
    "DetectionOutput d 3 1 location confidence priors y 0=3 2=100 3=5",
    shape="0=3 1=2 2=1",
)
RECURRENT = ncnn_net("LSTM r 1 1 data h 0=4 1=96 2=2", "GRU g 1 1 h y 0=3 1=72", shape="0=3 1=4")
MXNET_RNN: list[Node] = [
    ("null", "data", {}, ()),
    ("null", "rnn_weight", {}, ()),
    ("RNN", "y", {"mode": "gru", "state_size": "4", "num_layers": "2", "bidirectional": "True"}, (0, 1)),
]
PT2 = pt2(
    [
        call("aten.conv2d.default", "c", input="x", weight="w"),
        call("aten.select.int", "r", self="c", dim=1, index=1),
        call("aten.relu_.default", "r_", self="r"),
        call("aten.split.Tensor", ("a", "b"), self="c", split_size=2, dim=2),
        call("aten.cat.default", "y", tensors=("b", "a"), dim=2),
    ],
    {
        "x": (1, 4, 4, 5),
        "c": (1, 3, 4, 5),
        "r": (1, 4, 5),
        "r_": (1, 4, 5),
        "a": (1, 3, 2, 5),
        "b": (1, 3, 2, 5),
        "y": (1, 3, 4, 5),
    },
    ["x"],
    ["y"],
    {"w": W},
)
PROGRAM = "net/models/model.json"


def with_program(description: bytes) -> Graph:
    """The archive with another program."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(PT2)) as source, zipfile.ZipFile(out, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, description if name == PROGRAM else source.read(name))
    return importers.load(out.getvalue())


SMALL: dict[str, tuple[bytes, Callable[[bytes], Graph]]] = {
    "pytorch": (PT2, main_file({})),
    "pytorch program": (zipfile.ZipFile(io.BytesIO(PT2)).read(PROGRAM), with_program),
    "ncnn": (NCNN, main_file({}, bytes(4 + 36 + 12))),
    "ncnn weights": (bytes(4 + 36 + 12), weights_of(NCNN, {})),
    "ncnn yolo": (YOLO, main_file({}, b"\0")),
    "ncnn ssd": (SSD, main_file({}, b"\0")),
    "ncnn recurrent": (RECURRENT, main_file({}, bytes(4 * 6 + 4 * (96 + 32 + 128 + 72 + 12 + 27)))),
    "mxnet rnn": (
        mxnet_symbol(*MXNET_RNN),
        main_file({"data": (3, 2, 3)}, mxnet_parameters({"rnn_weight": np.ones(552, np.float32)})),
    ),
    "tmfile": (tmfile(5, CONV, W), main_file({})),
    "tmfile pooling": (tmfile(16, [0, 3, 3, 2, 2, 0, 1, 1, 1, 1, 1]), main_file({})),
    "caffe2": (CAFFE2, main_file(X, INIT)),
    "caffe2 weights": (INIT, weights_of(CAFFE2, X)),
    "paddle": (PADDLE, main_file({}, STORED)),
    "paddle weights": (STORED, weights_of(PADDLE, {})),
    "paddle 3": (PIR, main_file({}, STORED)),
    "mxnet": (SYMBOL, main_file(IMAGE, PARAMETERS)),
    "mxnet weights": (PARAMETERS, weights_of(SYMBOL, IMAGE)),
    "mace": (mace_net("Conv2D", {"padding": 1, "activation": "RELU"}, (W, B)), main_file({}, bytes(400))),
    "oneflow": (ONEFLOW_JOB.replace("KIND", "relu").encode(), main_file({})),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_files(name: str) -> None:
    data, load = SMALL[name]
    assert load(data).outputs
    assert survive(name, data, load) > COUNT // 5


REAL = {
    "ncnn": ("models/ncnn/version-RFB-320/RFB-320.param", FACES),
    "tmfile": ("models/tmfile/tengine_benchmark_noweights/mssd_benchmark.tmfile", {}),
    "caffe2": ("models/caffe2/super_resolution/squeeze_predict_net.pb", {}),
    "megengine": ("models/megengine/xornet_deploy/xornet_deploy.mge", {}),
    "paddle": ("models/paddle/uci_housing_separate_params/__model__", {}),
    "oneflow": ("models/oneflow/affine_graph/affine_with_parameter/model.mlir", {}),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    path, shapes = REAL[name]
    count = max(20, COUNT // (10 if name in ("ncnn", "tmfile", "caffe2") else 1))
    assert survive(name, shared(path).read_bytes(), main_file(shapes), count) > count // 4
