"""ncnn's detection layers compared with loops that follow their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate
from small_models import ncnn_net
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.graph.preprocessing import Heads
from tenon.network.passes.detection_outputs import find_heads

RNG = np.random.default_rng(4)
ANCHORS = [10, 14, 23, 27, 37, 58]


def run(param: bytes, **inputs: Array) -> Array:
    """The only output; inputs of which only the shape matters are zeros."""
    graph = importers.load(param, weights=b"\0")
    zeros = {v.name: np.zeros(v.type.dims, np.float32) for v in graph.inputs}
    (output,) = evaluate(graph, {**zeros, **inputs}).values()
    return output


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def overlap(a: Array, b: Array) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    return float(sides.prod() / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - sides.prod()))


def nms(rows: list[list[float]], limit: float) -> Array:
    kept: list[Array] = []
    for row in sorted(rows, key=lambda r: -r[1]):
        if all(overlap(np.array(row[2:]), other[2:]) <= limit for other in kept):
            kept.append(np.array(row))
    return np.array(kept)


def yolo(x: Array, anchors: Array, classes: int, third: bool, least: float) -> list[list[float]]:
    """Detections of one map [A * (5 + classes), H, W]; anchors are relative to the image's size."""
    count, (h, w) = len(anchors), x.shape[1:]
    rows = []
    for a, i, j in np.ndindex(count, h, w):
        numbers = x.reshape(count, -1, h, w)[a, :, i, j]
        kinds = sigmoid(numbers[5:]) if third else np.exp(numbers[5:]) / np.exp(numbers[5:]).sum()
        score = kinds.max() * sigmoid(numbers[4])
        if score >= least:
            middle = (np.array([j, i]) + sigmoid(numbers[:2])) / [w, h]
            half = np.exp(numbers[2:4]) * anchors[a] / 2
            rows.append([kinds.argmax() + 1, score, *(middle - half), *(middle + half)])
    return rows


def test_yolo_v3_of_two_maps() -> None:
    """Three classes, two anchors on each map of strides 32 and 16; of the first map the larger anchors."""
    lists = "-23304=6,10,14,23,27,37,58 -23305=4,1,2,0,1 -23306=2,32,16"
    net = ncnn_net(
        "Input in2 0 1 more 0=6 1=4 2=16",
        f"Yolov3DetectionOutput d 2 1 data more out 0=3 1=2 2=0.4 3=0.3 {lists}",
        shape="0=3 1=2 2=16",
    )
    first, second = (RNG.normal(0, 1.5, (1, 16, h, w)).astype(np.float32) for h, w in ((2, 3), (4, 6)))
    pairs, image_size = np.array(ANCHORS, float).reshape(-1, 2), np.array([96, 64])
    rows = yolo(first[0], pairs[[1, 2]] / image_size, 3, True, 0.4) + yolo(
        second[0], pairs[[0, 1]] / image_size, 3, True, 0.4
    )
    expected = nms(rows, 0.3)
    output = run(net, data=first, more=second)
    assert output.shape == (1, min(300, 2 * 6 + 2 * 24), 6)
    assert len(expected) > 3
    np.testing.assert_allclose(output[0, : len(expected)], expected, atol=1e-5)
    assert not output[0, len(expected) :].any()


def test_yolo_v2() -> None:
    net = ncnn_net(
        "YoloDetectionOutput d 1 1 data out 0=4 1=3 2=0.2 3=0.45 -23304=6,1,2,2.5,1.5,3,3", shape="0=5 1=4 2=27"
    )
    x = RNG.normal(0, 1.5, (1, 27, 4, 5)).astype(np.float32)
    anchors = np.array([[1, 2], [2.5, 1.5], [3, 3]]) / [5, 4]
    expected = nms(yolo(x[0], anchors, 4, False, 0.2), 0.45)
    assert len(expected) > 3
    np.testing.assert_allclose(run(net, data=x)[0, : len(expected)], expected, atol=1e-5)


def test_heads_are_recognised() -> None:
    graph = importers.load(ncnn_net("YoloDetectionOutput d 1 1 data out 0=1 1=1 -23304=2,1,2", shape="0=2 1=2 2=6"))
    assert find_heads(graph) == Heads("rows", ("out",), pixels=False, background=0)


SSD = (
    "Input p 0 1 image 0=60 1=40 2=3",
    "PriorBox b 2 1 data image priors -23300=1,12 -23301=1,20 -23302=1,2 7=1 8=0 9=-233 10=-233 13=0.5",
)


def test_prior_boxes() -> None:
    """A map of 3 x 2 positions on an image of 60 x 40: squares of 12 and sqrt(12 * 20), then 2:1 and 1:2."""
    output = run(ncnn_net(*SSD, shape="0=3 1=2 2=1"))
    boxes = output[0, 0].reshape(2, 3, 4, 4)
    root = np.sqrt([1, 12 * 20 / 144, 2, 0.5])
    sizes = 12 * np.stack([root, np.array([root[0], root[1], 1 / root[2], 1 / root[3]])], -1)
    middle = np.array([50, 10])  # at the third position of the first row
    np.testing.assert_allclose(
        boxes[0, 2] * [60, 40, 60, 40], np.hstack([middle - sizes / 2, middle + sizes / 2]), rtol=1e-5
    )
    np.testing.assert_allclose(output[0, 1, :8], [0.1, 0.1, 0.2, 0.2] * 2)


def test_prior_boxes_in_mxnet_form() -> None:
    line = "PriorBox b 1 1 data out -23300=2,0.2,0.3 -23302=2,1,4 9=-233 10=-233 13=0.5"
    output = run(ncnn_net(line, shape="0=4 1=2 2=1"))
    assert output.shape == (1, 4 * 8 * 3)
    first = output.reshape(2, 4, 3, 4)[1, 3]
    middle = [0.875, 0.75]
    sizes = np.array([[0.1, 0.2], [0.15, 0.3], [0.2, 0.1]])
    np.testing.assert_allclose(first, np.hstack([middle - sizes / 2, middle + sizes / 2]), rtol=1e-5)


def test_ssd_detection_output() -> None:
    """One prior is of class 2 and one of class 1, with location offsets of zero; the rest is background."""
    net = ncnn_net(
        *SSD,
        "Input l 0 1 location 0=96",
        "Input c 0 1 confidence 0=72",
        "DetectionOutput d 3 1 location confidence priors out 0=3 1=0.45 2=100 3=5 4=0.5",
        shape="0=3 1=2 2=1",
    )
    scores = np.tile(np.array([1, 0, 0], np.float32), (24, 1))
    scores[5], scores[22] = [0.1, 0.1, 0.8], [0.3, 0.7, 0]
    assert find_heads(importers.load(net)) is not None
    output = run(net, location=np.zeros((1, 96), np.float32), confidence=scores.reshape(1, -1))
    assert output.shape == (1, 5, 6)
    np.testing.assert_allclose(output[0, :2, :2], [[2, 0.8], [1, 0.7]])
    assert (output[0, 2:] == -1).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("YoloDetectionOutput d 1 1 data out 0=9 1=3", "from 27 channels"),
        ("YoloDetectionOutput d 1 1 data out 0=4 1=3 -23304=2,1,2", "2 numbers for its anchors"),
        ("Yolov3DetectionOutput d 1 1 data out 0=4 1=3 -23304=2,1,2", "0 numbers in its mask"),
        ("PriorBox d 1 1 data out -23300=1,-3 9=8 10=8", "has the sizes"),
        ("DetectionOutput d 1 1 data out 0=3", "1 inputs instead of 3"),
    ],
)
def test_refusals(line: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        importers.load(ncnn_net(line, shape="0=5 1=4 2=27"))


def test_masks_written_as_the_bits_of_floats() -> None:
    """As written by the converter of Yolo-Fastest: 1073741824 is the bit pattern of 2.0."""
    x = RNG.uniform(-1, 1, (1, 3 * 9, 2, 3)).astype(np.float32)
    anchors = ",".join(f"{n}.0" for n in ANCHORS * 2)
    outputs = []
    for mask in ("2.0,0.0,4.0", "1073741824,0,1082130432", "2,0,4"):
        line = f"Yolov3DetectionOutput d 1 1 data out 0=4 1=3 2=0.1 -23304=12,{anchors} -23305=3,{mask} -23306=1,8.0"
        outputs.append(run(ncnn_net(line, shape="0=3 1=2 2=27"), data=x))
    assert outputs[0].size
    np.testing.assert_array_equal(outputs[1], outputs[0])
    np.testing.assert_array_equal(outputs[2], outputs[0])
