"""Rows of OpenCV's detection layers as the outputs of Darknet networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.tools.peers.open_cv_heads import DetectionHeads, without_threshold

CFG = """
[net]
height=64
width=96
channels=21

[yolo]
mask=0,1,2
anchors=10,14, 23,27, 37,58
classes=2
num=3
thresh = 0.3
scale_x_y=1.1
"""


class Net:
    """Names of layers, as OpenCV's networks give them."""

    def getLayerNames(self) -> tuple[str, ...]:  # noqa: N802  # OpenCV's name
        return ("conv_0", "permute_1", "yolo_1")


def rows_of(boxes: Array, scores: Array, objectness: Array) -> Array:
    """Centre, size, objectness and scores of every box, as OpenCV lists them."""
    centre, size = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
    return np.concatenate([centre, size, objectness, scores], axis=-1)


def test_outputs_are_those_of_the_imported_network(tmp_path: Path) -> None:
    (tmp_path / "net.cfg").write_text(CFG)
    graph = importers.load(tmp_path / "net.cfg", shapes={})
    height, width = graph.inputs[0].type.dims[2:]
    x = np.random.default_rng(0).uniform(-2, 2, (1, 21, height, width)).astype(np.float32)
    raw, boxes, scores = evaluate(graph, {graph.inputs[0].name: x}).values()
    inputs = x.transpose(0, 2, 3, 1)
    objectness = 1 / (1 + np.exp(-inputs.reshape(1, -1, 7)[..., 4:5]))
    heads = DetectionHeads(Net(), ["yolo_1"])
    assert heads.layers == ["yolo_1", "permute_1"]
    made = heads.outputs([rows_of(boxes, scores, objectness)[0], inputs])
    for mine, theirs in zip(made, (raw, boxes, scores), strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, atol=2e-4)


@pytest.mark.parametrize("heads", [b"[yolo]\na=1\n thresh = .2\n", b"[region]\nthresh=.6", b"[yolo]\n"])
def test_boxes_of_every_score_are_asked_for(heads: bytes) -> None:
    made = without_threshold(b"[net]\nwidth=8\n[convolutional]\nthresh=1\n" + heads)
    assert made.startswith(b"[net]\nwidth=8\n[convolutional]\nthresh=1\n")
    last = made[made.rindex(b"[") :]
    assert [line for line in last.split() if b"thresh" in line] == [b"thresh=0"]
    assert without_threshold(b"") == b""
