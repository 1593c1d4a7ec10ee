"""Recognition and decoding of detection outputs of every kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from tenon.cli import main
from tenon.cli.draw import draw
from tenon.errors import InputError
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.preprocessing import Heads
from tenon.network.graph.types import F32, TensorType
from tenon.network.passes.detection_outputs import find_heads
from tenon.runtime.answers.boxes import detections_answer
from tenon.runtime.engine.detect import Detection, nms_indices

SIZE = (40, 80)
"""Height and width of the image; the network sees 16 x 16."""


class ConstantNet:
    """A network whose outputs are constants, independent of the image."""

    def __init__(self) -> None:
        self.graph = Graph("made")
        self.x = self.graph.add_input("image", TensorType(F32, (1, 3, 16, 16)))

    def add(
        self, type: str, *inputs: Value | Array, name: str = "", count: int = 1, **attributes: object
    ) -> list[Value]:
        values = [
            v if isinstance(v, Value) else self.graph.constant(f"c{len(self.graph)}{i}", v)
            for i, v in enumerate(inputs)
        ]
        names = [f"{name or type}{i or ''}" for i in range(count)]
        return list(self.graph.add(ops.registry()[type](**attributes), values, names).outputs)

    def given(self, name: str, data: Array) -> Value:
        """The constant, added to zero times the image."""
        zero = self.add(
            "Mul",
            self.add("ReduceMean", self.x, np.arange(4), keepdims=0, name=f"{name}m")[0],
            np.zeros(1, np.float32),
            name=f"{name}z",
        )
        return self.add("Add", zero[0], data.astype(np.float32), name=name)[0]


def detections_of(graph: Graph, tmp_path: Path, **options: float) -> list[Detection]:
    photo = tmp_path / "photo.png"
    Image.new("RGB", SIZE[::-1], (90, 60, 30)).save(photo)
    with tenon.open(tenon.compile(graph, compiler="gcc")) as engine:
        return tenon.detect(engine, photo, **options)


BOXES = np.array([[0.1, 0.2, 0.5, 0.6], [0.11, 0.2, 0.5, 0.6], [0.5, 0.5, 1.2, 0.9], [0, 0, 0.1, 0.1]])
ON_IMAGE = [(8, 8, 40, 24), (40, 20, 80, 36)]
"""The first and the third box in pixels, cut at the image's edge."""


def check(detections: list[Detection], kinds: tuple[int, int], scores: tuple[float, float]) -> None:
    assert [detection.kind for detection in detections] == list(kinds)
    assert [detection.score for detection in detections] == pytest.approx(list(scores))
    np.testing.assert_allclose([detection.box for detection in detections], ON_IMAGE, atol=1e-4)


def test_boxes_and_scores(tmp_path: Path) -> None:
    """The second box overlaps the first, the last one has a low score."""
    made = ConstantNet()
    scores = np.array([[0.1, 0.9, 0], [0, 0.8, 0], [0, 0.1, 0.7], [0.2, 0, 0]])
    made.graph.outputs = [made.given("scores", scores[None]), made.given("boxes", BOXES[None])]
    assert find_heads(made.graph) == Heads("boxes", ("boxes", "scores"))
    check(detections_of(made.graph, tmp_path), (1, 2), (0.9, 0.7))
    assert len(detections_of(made.graph, tmp_path, threshold=0.1, overlap=1)) == 4


def test_probabilities_have_a_background(tmp_path: Path) -> None:
    made = ConstantNet()
    scores = np.array([[0.1, 0.9, 0], [0.9, 0.1, 0], [0.2, 0.1, 0.7], [1, 0, 0]])
    made.graph.outputs = [made.given("scores", scores[None]), made.given("boxes", BOXES[None])]
    check(detections_of(made.graph, tmp_path), (1, 2), (0.9, 0.7))


def test_torchvision_outputs_in_pixels(tmp_path: Path) -> None:
    """Outputs of torchvision's detectors: boxes in pixels of the input, labels and scores."""
    made = ConstantNet()
    labels = made.add("Cast", made.given("l", np.array([3, 3, 5, 7])), to="i64", name="labels")[0]
    scores = made.given("scores", np.array([0.9, 0.2, 0.7, 0.1]))
    made.graph.outputs = [made.given("boxes", BOXES * 16), labels, scores]
    assert find_heads(made.graph) == Heads("lists", ("boxes", "labels", "scores"))
    check(detections_of(made.graph, tmp_path), (3, 5), (0.9, 0.7))


def test_tensorflow_outputs(tmp_path: Path) -> None:
    made = ConstantNet()
    boxes = made.given("detection_boxes", BOXES[None][:, :, [1, 0, 3, 2]])
    kinds = made.given("detection_classes", np.array([[3, 3, 5, 7]]))
    scores = made.given("detection_scores", np.array([[0.9, 0.2, 0.7, 0.1]]))
    made.graph.outputs = [boxes, kinds, scores]
    check(detections_of(made.graph, tmp_path), (3, 5), (0.9, 0.7))


def centred(boxes: Array) -> Array:
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)


@pytest.mark.parametrize("objectness", [True, False])
def test_yolo_grids(objectness: bool, tmp_path: Path) -> None:
    """16 x 16 pixels: 4 cells of stride 8 and one of 16; with objectness there are three anchors in each."""
    made = ConstantNet()
    rows = np.zeros((15 if objectness else 5, 7 if objectness else 6))
    rows[[4, 1, 2], :4] = centred(BOXES[:3]) * 16
    rows[[4, 1, 2], -2:] = [[0.9, 0.1], [0.8, 0.1], [0, 0.7]]
    if objectness:
        rows[[4, 1, 2], 4] = 1
        rows[6] = [8, 8, 16, 16, 0.1, 1, 1]  # no object
    made.graph.outputs = [made.given("output0", rows[None] if objectness else rows.T[None])]
    assert find_heads(made.graph) == Heads("yolo" if objectness else "columns", ("output0",), "cxcywh", pixels=True)
    check(detections_of(made.graph, tmp_path), (0, 1), (0.9, 0.7))


def test_rows_of_ssd(tmp_path: Path) -> None:
    made = ConstantNet()
    scores = np.array([[0.1, 0.9, 0], [0.2, 0.8, 0], [0.2, 0.1, 0.7], [1, 0, 0]])
    priors = np.stack([np.zeros(16), np.ones(16)]).astype(np.float32)[None]
    location = made.given("location", BOXES.reshape(1, -1))
    confidence = made.given("confidence", scores.reshape(1, -1))
    rows = made.add("DetectionOutput", location, confidence, priors, name="rows", classes=3, nms_threshold=0.45)
    made.graph.outputs = rows
    assert find_heads(made.graph) == Heads("rows", ("rows",), pixels=False, background=0)
    check(detections_of(made.graph, tmp_path), (1, 2), (0.9, 0.7))


def test_outputs_that_are_not_detections(tmp_path: Path) -> None:
    """Boxes directly from a convolution are not decoded; a single output of numbers lists no detections."""
    made = ConstantNet()
    w = np.zeros((4, 3, 16, 16), np.float32), np.zeros((2, 3, 16, 16), np.float32)
    for name, weights in zip(("boxes", "scores"), w, strict=True):
        y = made.add("Conv", made.x, weights, kernel_shape=(16, 16), name=f"{name}_raw")[0]
        y = made.add("Concat", y, y, axis=2, name=f"{name}_two")[0]
        made.graph.outputs.append(made.add("Reshape", y, np.array([1, 2, -1]), name=name)[0])
    assert find_heads(made.graph) is None
    with pytest.raises(InputError, match="list no detections"):
        detections_of(made.graph, tmp_path)


def test_nms_is_per_class() -> None:
    boxes = np.array([[0, 0, 1, 1], [0, 0, 1, 0.7], [0, 0, 1, 0.99], [0, 0, 1, 0.55]])
    kinds, scores = np.array([0, 1, 1, 0]), np.array([0.9, 0.8, 0.7, 0.6])
    assert nms_indices(boxes, kinds, scores, 0.5).tolist() == [0, 1]
    assert nms_indices(boxes, kinds, scores, 0.65).tolist() == [0, 1, 3]
    assert nms_indices(boxes[:0], kinds[:0], scores[:0], 0.5).tolist() == []


def test_drawn_image(tmp_path: Path) -> None:
    photo, out = tmp_path / "photo.png", tmp_path / "out.png"
    Image.new("RGB", (200, 100), (255, 255, 255)).save(photo)
    draw(photo, detections_answer([Detection(1, 0.9, (50.0, 60.0, 150.0, 90.0))], ["cat", "dog"]), out)
    with Image.open(out) as file:
        pixels = np.asarray(file)
    inside, edge, outside = pixels[85, 140], pixels[90, 100], pixels[10, 10]
    assert tuple(inside) == tuple(outside) == (255, 255, 255)
    assert tuple(edge) != (255, 255, 255)
    with pytest.raises(InputError, match=r"'.nothing' is not an image format"):
        draw(photo, detections_answer([], []), tmp_path / "out.nothing")


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    monkeypatch.setattr(sys, "argv", ["tenon", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    return printed.out if not end.value.code else printed.err


def test_run_command_prints_detections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ConstantNet()
    scores = np.array([[0.1, 0.9, 0], [0, 0.8, 0], [0, 0.1, 0.7], [0.2, 0, 0]])
    made.graph.outputs = [made.given("scores", scores[None]), made.given("boxes", BOXES[None])]
    bundle = tenon.compile(made.graph, compiler="gcc", preprocess={"fit": "letterbox"}).save(tmp_path / "out")
    photo, drawn, labels = tmp_path / "photo.png", tmp_path / "drawn.png", tmp_path / "labels.txt"
    Image.new("RGB", SIZE[::-1]).save(photo)
    labels.write_text("nothing\nface\nhand\n", encoding="utf-8")
    run = ("run", bundle, photo, "--labels", labels)
    table = command(capsys, monkeypatch, *run, "--draw", drawn)
    assert [line.split()[0] for line in table.splitlines()[:-1]] == ["class", "face", "hand", "2"]
    assert drawn.exists()
    answer = json.loads(command(capsys, monkeypatch, *run, "--json"))
    assert [one["label"] for one in answer["detections"]] == ["face", "hand"]
    assert answer["detections"][0]["box"] == pytest.approx([8, 0, 40, 28], abs=1e-3)  # 16 x 16 shows 80 x 80
    stretched = json.loads(command(capsys, monkeypatch, *run, "--json", "--fit", "stretch"))
    assert stretched["detections"][0]["box"] == pytest.approx([8, 8, 40, 24], abs=1e-3)
    assert "--mean is for an image" in command(capsys, monkeypatch, "run", bundle, "--mean", "3")


@pytest.mark.parametrize(("overlap", "kept"), [(0.5, [0, 1]), (0.49, [0]), (0.51, [0, 1])])
def test_boxes_with_an_overlap_of_exactly_the_threshold_are_kept(overlap: float, kept: list[int]) -> None:
    """Two boxes that share two thirds of their area have an intersection over union of one half."""
    boxes = np.array([[0, 0, 3, 1], [1, 0, 4, 1]], np.float32)
    output = nms_indices(boxes, np.zeros(2, np.int64), np.array([0.9, 0.8], np.float32), overlap)
    assert output.tolist() == kept
