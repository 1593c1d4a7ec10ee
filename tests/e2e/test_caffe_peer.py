"""Single Caffe layers compared with OpenCV's importer; skipped if OpenCV is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caffe_models import caffemodel, head, layer, random, run
from tenon.network.graph.graph import Array

cv2: Any = pytest.importorskip("cv2", reason="OpenCV is not installed")

IMAGE = (2, 6, 9, 8)
POSITIVE = np.abs(random(6)) + np.float32(0.5)
HALVED = layer("Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }", top="a", name="a")
OF_TWO = layer("AbsVal", "", top="a", name="a")

Row = tuple[str, str, list[Array]]
ALONE: list[Row] = [
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 }",
        [random(4, 6, 3, 3), random(4)],
    ),
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 "
        "pad_w: 2 group: 2 dilation: 2 bias_term: false }",
        [random(4, 3, 3, 2)],
    ),
    (
        "Deconvolution",
        "convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 }",
        [random(6, 4, 4, 4), random(4)],
    ),
    (
        "Deconvolution",
        "convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 group: 6 bias_term: false }",
        [random(6, 1, 4, 4)],
    ),
    *(
        ("Pooling", f"pooling_param {{ pool: {pool} {window} }}", [])
        for pool in ("MAX", "AVE")
        for window in (
            "kernel_size: 3 stride: 2",
            "kernel_size: 3 stride: 2 pad: 1",
            "kernel_size: 2 stride: 2",
            "kernel_size: 4 stride: 3 pad: 1",
            "global_pooling: true",
        )
    ),
    ("InnerProduct", "inner_product_param { num_output: 5 }", [random(5, 432), random(5)]),
    ("InnerProduct", "inner_product_param { num_output: 5 axis: 3 bias_term: false }", [random(5, 8)]),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.01 beta: 0.6 }", []),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.01 beta: 0.6 norm_region: WITHIN_CHANNEL }", []),
    (
        "BatchNorm",
        "batch_norm_param { use_global_stats: true eps: 0.001 }",
        [random(6), POSITIVE, np.array([2], np.float32)],
    ),
    ("Scale", "scale_param { bias_term: true }", [random(6), random(6, seed=1)]),
    ("Scale", "", [random(6)]),
    *((name, "", []) for name in ("ReLU", "Sigmoid", "TanH", "AbsVal", "BNLL", "ELU", "Flatten", "Softmax", "MVN")),
    ("ReLU", "relu_param { negative_slope: 0.2 }", []),
    ("PReLU", "", [random(6)]),
    ("Power", "power_param { power: 2 scale: 0.5 shift: 1.5 }", []),
    ("Exp", "exp_param { base: 2 scale: 0.5 shift: 0.1 }", []),
    ("Flatten", "flatten_param { axis: 2 }", []),
    ("Reshape", "reshape_param { shape { dim: 0 dim: 3 dim: -1 dim: 8 } }", []),
    ("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", []),
    ("Softmax", "softmax_param { axis: 2 }", []),
    ("MVN", "mvn_param { across_channels: true normalize_variance: false }", []),
    ("Normalize", "norm_param { across_spatial: false channel_shared: false }", [random(6)]),
    ("Normalize", "norm_param { across_spatial: true channel_shared: true }", [random(1)]),
    ("ShuffleChannel", "shuffle_channel_param { group: 3 }", []),
    ("Interp", "interp_param { height: 5 width: 13 }", []),
]
PAIRS: list[tuple[str, str, str, tuple[str, str], tuple[int, ...]]] = [
    *(("Eltwise", f"eltwise_param {{ operation: {o} }}", OF_TWO, ("data", "a"), IMAGE) for o in ("SUM", "PROD", "MAX")),
    ("Eltwise", "eltwise_param { operation: SUM coeff: 0.5 coeff: -2 }", OF_TWO, ("data", "a"), IMAGE),
    ("Concat", "concat_param { axis: 2 }", OF_TWO, ("data", "a"), IMAGE),
    ("Crop", "crop_param { axis: 2 offset: 1 offset: 2 }", HALVED, ("data", "a"), IMAGE),
    (
        "PriorBox",
        "prior_box_param { min_size: 10 max_size: 20 aspect_ratio: 2 flip: true clip: true variance: 0.1 "
        "variance: 0.1 variance: 0.2 variance: 0.2 }",
        HALVED,
        ("a", "data"),
        (1, 6, 40, 60),
    ),
]


def compare(text: str, blobs: list[Array], x: Array) -> None:
    weights = {"it": blobs} if blobs else {}
    net = cv2.dnn.readNetFromCaffe(np.frombuffer(text.encode(), np.uint8), np.frombuffer(caffemodel(weights), np.uint8))
    net.setInput(x, "data")
    expected = net.forward(net.getUnconnectedOutLayersNames()[-1])
    (actual,) = run(text, x, blobs=weights)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("row", ALONE, ids=lambda row: f"{row[0]} {row[1]}")
def test_layers_match_opencv(row: Row) -> None:
    type, options, blobs = row
    compare(head(*IMAGE) + layer(type, options), blobs, random(*IMAGE, seed=3))


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: f"{row[0]} {row[1]}")
def test_two_layer_nets_match_opencv(row: tuple[str, str, str, tuple[str, str], tuple[int, ...]]) -> None:
    type, options, before, bottoms, shape = row
    compare(head(*shape) + before + layer(type, options, bottoms), [], random(*shape, seed=3))
