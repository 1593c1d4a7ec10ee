"""Real Darknet networks: Yolo-Fastest compared with OpenCV, and every known .cfg imported without weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tenon
from real import ROOT, SHARED, shared
from tenon.formats import importers
from tenon.machine.plan.describe import describe

YOLO = "models/darknet/yolo-fastest-1.1"


@pytest.fixture(scope="module")
def bundle() -> tenon.Bundle:
    return tenon.compile(shared(YOLO))


def test_yolo_fastest_matches_opencv(bundle: tenon.Bundle) -> None:
    """OpenCV lists centre, size, objectness and score of every box, and a score of 0 below 0.2."""
    golden = np.load(shared("models/expected/darknet__yolo-fastest-1.1.npz"))
    with tenon.open(bundle) as engine:
        actual = engine.run({"data": golden["in_data"]})
    expected = np.concatenate([golden["out_yolo_121"], golden["out_yolo_130"]])
    boxes, scores = actual["boxes"][0], actual["scores"][0]
    np.testing.assert_allclose((boxes[:, :2] + boxes[:, 2:]) / 2, expected[:, :2], atol=1e-5)
    np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], expected[:, 2:4], atol=1e-5)
    np.testing.assert_allclose(np.where(scores > 0.2, scores, 0), expected[:, 5:], atol=1e-5)


def test_yolo_fastest_detections(bundle: tenon.Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "yolo"))
    sys.modules.pop("detect", None)
    from detect import detect_objects  # type: ignore[import-not-found]

    names = shared("models/darknet/coco.names").read_text().split("\n")
    with tenon.open(bundle) as engine:
        detections = detect_objects(engine, shared("models/images/darknet_dog.jpg"), names)
    sys.modules.pop("detect", None)
    assert [(detection.label, round(detection.score, 2)) for detection in detections] == [
        ("car", 0.9),
        ("dog", 0.65),
        ("bicycle", 0.53),
    ]
    np.testing.assert_allclose(detections[0].box, [454, 76, 684, 179], atol=4)
    np.testing.assert_allclose(detections[1].box, [122, 220, 364, 514], atol=4)


def cfgs() -> list[Path]:
    return sorted((SHARED / "models/darknet/cfg_only").glob("*.cfg"))


KNOWN_MACS = {"darknet19": 3.65e9, "vgg-16": 15.47e9, "yolov3": 70.35e9, "resnet50": 4.87e9, "yolov3-tiny": 2.78e9}
"""Half of the BFLOPs that Darknet prints for these files."""


@pytest.mark.parametrize("path", cfgs(), ids=lambda p: p.stem)
def test_cfg_is_imported_with_known_macs(path: Path) -> None:
    graph = importers.load(path)
    assert graph.incomplete
    facts = describe(graph)
    assert all(v.type.bound for v in graph.outputs)
    assert facts.macs > 1e5
    if path.stem in KNOWN_MACS:
        assert facts.macs == pytest.approx(KNOWN_MACS[path.stem], rel=0.01)


def test_every_cfg_is_tested() -> None:
    shared("models/darknet/cfg_only")
    assert len(cfgs()) >= 50
