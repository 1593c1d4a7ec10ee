"""Mutated Darknet files: importers raise ModelError only."""

from __future__ import annotations

import pytest

from damage import COUNT, survive
from real import shared
from tenon.formats import importers
from tenon.network.graph.graph import Graph

SMALL = b"""[net]
height=16
width=16
channels=3

[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky

[maxpool]
size=2
stride=1

[route]
layers=-1,0

[convolutional]
filters=14
size=1
activation=linear

[yolo]
mask=0,1
anchors=1,2, 3,4
classes=2
num=2
"""
WEIGHTS = b"\0\0\0\0\2\0\0\0\0\0\0\0" + bytes(8) + bytes(4 * (8 * 4 + 8 * 27 + 14 + 14 * 16))


@pytest.mark.parametrize("name", ["small", "yolov4-csp", "lstm.train", "yolov1-tiny"])
def test_cfg(name: str) -> None:
    data = SMALL if name == "small" else shared(f"models/darknet/cfg_only/{name}.cfg").read_bytes()
    assert survive(name, data, importers.load, COUNT if name == "small" else COUNT // 8) > COUNT // 40


def test_weights() -> None:
    def load(data: bytes) -> Graph:
        return importers.load(SMALL, weights=data)

    assert load(WEIGHTS).outputs[-1].type.dims == (1, 128, 2)
    assert survive("weights", WEIGHTS, load) > 100
