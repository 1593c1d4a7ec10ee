"""A face detector quantised with photos: the faces that it finds in floats are found in integers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import tenon
from real import shared

PREPROCESS = {"mean": 127.0, "scale": 1 / 128}


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    wide, high = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    common = max(wide, 0.0) * max(high, 0.0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return common / (areas - common)


@pytest.mark.slow
def test_faces_are_found_by_the_quantised_detector() -> None:
    """By default; which of several boxes of one face has the greatest score is left open (before NMS)."""
    model, photos = shared("models/onnx/version-RFB-320/version-RFB-320.onnx"), shared("models/images")
    made = tenon.quantize(tenon.load(model), photos, preprocess=PREPROCESS)
    assert {each.name: each.sqnr for each in made.report.outputs}["boxes"] > 50
    shares: list[float] = []
    for name in ("rfb_faces_1.jpg", "rfb_faces_test.jpg", "rfb_face_13.jpg", "dog_207.png", "mtcnn_ivan.jpg"):
        with tenon.open(tenon.compile(tenon.load(model), preprocess=PREPROCESS)) as engine:
            floats = tenon.detect(engine, photos / name, threshold=0.7)
        with tenon.open(tenon.compile(made.graph, preprocess=PREPROCESS)) as engine:
            integers = tenon.detect(engine, photos / name, threshold=0.35, overlap=1.0)
        shares += [max(overlap(a.box, b.box) for b in integers) for a in floats]
    assert len(shares) > 50
    assert min(shares) > 0.9


@pytest.mark.slow
def test_a_detector_with_leaky_activations_keeps_its_boxes() -> None:
    """On 16 photos; which of several boxes of one object has the greatest score is left open (before NMS).  The layers
    in 16 bits are the first that a contract takes."""
    model, photos = shared("models/darknet/yolo-fastest-1.1"), shared("models/images")
    wide = [
        f"convolutional_{i}"
        for i in (1, 10, 125, 3, 12, 22, 17, 9, 129, 120, 36, 24, 5, 127, 105, 60, 13, 83, 100, 118)
    ]
    made = tenon.quantize(tenon.load(model), photos, samples=16, method="min-max", range_search=False, int16=wide)
    noise = {each.name: each.sqnr for each in made.report.outputs}
    assert noise["scores"] > 20
    assert noise["boxes"] > 42
    shares: list[float] = []
    engines = [tenon.open(tenon.compile(graph, arithmetic="onnx")) for graph in (tenon.load(model), made.graph)]
    for name in ("darknet_dog.jpg", "darknet_giraffe.jpg", "darknet_horses.jpg", "darknet_person.jpg", "zebra_340.png"):
        floats = tenon.detect(engines[0], photos / name)
        integers = tenon.detect(engines[1], photos / name, threshold=0.25, overlap=1.0)
        shares += [max(overlap(a.box, b.box) for b in integers if b.kind == a.kind) for a in floats]
    for engine in engines:
        engine.close()
    assert len(shares) > 10
    assert min(shares) > 0.9
